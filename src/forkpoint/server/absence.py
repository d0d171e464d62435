"""A database that is not there yet when a server starts: it is waited for, and each try says why.

Machines that start together, a failover, a restart of everything: whoever comes first waits, and nobody has to start it
again by hand. A file that cannot be opened is refused at once, and so is a database that refuses the role, its password
or the name: waiting mends none of these. Tests: tests/postgres/test_absence.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from forkpoint.errors import StoreUnavailable
from forkpoint.store import is_postgres

T = TypeVar("T")

FIRST, LONGEST = 0.5, 10.0
"""Seconds between two tries: they double from the first to the longest."""


async def once_there(address: str, ask: Callable[[], Awaitable[T]], told: Callable[[str], None]) -> T:
    """Asks the store at an address, again and again until its server answers. Calls ``told`` after each try."""
    pause = FIRST
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            if not is_postgres(address):
                raise
            told(f"{error.fact()} Trying again in {pause:g} s, until it answers.")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST)

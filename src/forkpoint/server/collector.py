"""The collector of a server: it removes what was deleted, every few minutes and soon after a deletion.
Tests: tests/server/test_collection.py."""

import asyncio
import logging
from collections.abc import Callable

from forkpoint.errors import ForkpointError, StoreError
from forkpoint.store import Collected, Store

SOON = 1.0
"""Seconds after a deletion: several deletions in a row are collected together."""

_log = logging.getLogger("forkpoint.server")


class CollectionLoop:
    """Collects for all tenants of a store, for as long as the server runs."""

    def __init__(self, store: Store, every: float, told: Callable[[Collected], None]) -> None:
        self._store = store
        self._every = every
        self._told = told  # of what each collection has done
        self._due = asyncio.Event()

    def soon(self) -> None:
        """Something was deleted."""
        self._due.set()

    async def run(self) -> None:
        """Collects when the server starts, after every deletion, and every few minutes; not if it only reads."""
        try:
            self._store.check_writable()
        except StoreError:
            return
        while True:
            try:
                self._told(await self._store.collect(every_tenant=True))
            except ForkpointError as error:
                _log.warning("what was deleted could not be removed from the disk, and will be later: %s", error)
            try:
                await asyncio.wait_for(self._due.wait(), self._every)
                await asyncio.sleep(min(SOON, self._every))
            except TimeoutError:
                pass
            self._due.clear()

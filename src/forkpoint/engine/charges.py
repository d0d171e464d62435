"""Charges: what was spent outside of turns, counted in the store. Tests: tests/conversation/test_once.py."""

import logging

from forkpoint.errors import ForkpointError, NotFound
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.threads.shield import finished

_log = logging.getLogger("forkpoint")


class Charges:
    """What was spent and is not in the store yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: list[tuple[str | None, str, Usage]] = []  # conversation, id of the charge, what it is
        self._unused: list[str] = []  # charges for which something may be reserved, and that are not made

    def check(self) -> None:
        """Raises `StoreUnusable` if the store can count nothing. Called before a model is asked outside of a turn."""
        self._store.check_writable()

    def add(self, conversation: str | None, used: Usage, reserved: str | None = None) -> None:
        """Something was spent outside of a turn: for a conversation, or for None.

        ``reserved`` is the id under which that was reserved in budgets; None: it was not.
        """
        if used:
            self._open.append((conversation, reserved or new_id(), used))
        elif reserved is not None:
            self._unused.append(reserved)

    async def settle(self) -> None:
        """Counts all charges in the store, even if the caller is cancelled meanwhile."""
        await finished(self._settle)

    async def _settle(self) -> None:
        await self._count()
        while self._unused:
            try:
                await self._store.give_back(self._unused[0])
            except ForkpointError as error:
                _log.warning("what was reserved beside a turn is not given back yet: %s", error)
                return
            del self._unused[:1]

    async def _count(self) -> None:
        while self._open:
            charge = conversation, id, used = self._open[0]
            try:
                await self._store.charge(conversation, id, used)
            except NotFound:  # the conversation was deleted meanwhile, with all that is counted for it
                self._unused.append(id)
            except ForkpointError as error:  # it is counted with the next charge
                _log.warning("what was spent beside a turn is not counted yet: %s", error)
                return
            if charge in self._open:  # another task may have counted it meanwhile: the same charge counts once
                self._open.remove(charge)

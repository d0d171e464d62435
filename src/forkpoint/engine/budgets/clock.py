"""The clock of a turn whose time a budget limits: it reserves slice after slice, and ends the turn when none is left.
Tests: tests/conversation/test_budgets.py."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from forkpoint.engine.turns.journal import Steps
from forkpoint.errors import BudgetExceeded, ForkpointError, TurnLost
from forkpoint.store.protocol import Store

T = TypeVar("T")

AGAIN = 1_000_000
"""Microseconds after which the store is asked again that could not be written."""

_log = logging.getLogger("forkpoint")


class TurnClock:
    """The time of a turn that runs here. It goes on when the turn does, after a message that came before the commit."""

    def __init__(self, store: Store, steps: Steps, slice: int) -> None:
        self._store = store
        self._steps = steps
        self._until: float | None = anyio.current_time() + slice / 1e6  # when the slice ends; None: no limit any more
        self.exceeded: BudgetExceeded | None = None

    async def during(self, work: Callable[[], Awaitable[T]], scope: anyio.CancelScope) -> T:
        """Does the turn's work, and cancels ``scope`` when its budget has no time left."""
        ended: list[T] = []
        failed: list[Exception] = []
        async with anyio.create_task_group() as group:
            group.start_soon(self._renew, scope)
            try:
                ended.append(await work())
            except Exception as error:
                failed.append(error)
            group.cancel_scope.cancel()
        if failed:
            raise failed[0]
        return ended[0]

    async def _renew(self, scope: anyio.CancelScope) -> None:
        while self._until is not None:
            await anyio.sleep_until(self._until)
            try:
                slice, self.exceeded = await self._store.renew(self._steps.turn)
            except TurnLost:
                return  # whoever has the turn now counts its time
            except ForkpointError as error:
                _log.warning("the time of a turn is not counted yet: %s", error)
                slice = AGAIN
            self._until = None if slice is None else anyio.current_time() + slice / 1e6
            if self.exceeded is not None:
                scope.cancel()
                return


def clock_of(store: Store, steps: Steps) -> TurnClock | None:
    """The clock of a turn; None if no budget limits its time."""
    slice = steps.turn.slice
    return None if slice is None else TurnClock(store, steps, slice)

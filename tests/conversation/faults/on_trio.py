"""The same turn on trio, cancelled at a step of it. trio tells of each step of a task, so none is listed by hand."""

from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeAlias

import anyio
import trio
from tests.conversation.faults.runs import Run
from tests.conversation.faults.scenario import STRUCK

from forkpoint.errors import Busy, NoSuchTurn
from forkpoint.store.sqlite import SqliteStore

How: TypeAlias = Literal["scope", "cancel()"]


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks, and does something after one of them."""

    def __init__(self, at: int | None, act: Callable[[], None]) -> None:
        self.count = 0
        self._at = at
        self._act = act

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        if self.count == self._at:
            self._act()


async def cancelled_on_trio(run: Run, at: int | None, how: How) -> int:
    """Runs the turn, and cancels it after so many steps. Returns how many there were."""
    ended = trio.Event()
    async with await SqliteStore.open(run.file) as store, await run.open(store) as conversation:

        async def cancel() -> None:
            with suppress(NoSuchTurn, Busy):  # it came before the turn had begun, or too late
                run.cancelled = await conversation.cancel()
            ended.set()

        scope = anyio.CancelScope()

        def strike() -> None:
            run.struck = True
            if how == "scope":
                scope.cancel()
            else:
                trio.lowlevel.spawn_system_task(cancel)

        steps = Steps(at, strike)
        trio.lowlevel.add_instrument(steps)
        try:
            with scope:
                run.returned(await conversation.run(STRUCK))
        except Exception as error:
            run.raised(error)
        finally:
            trio.lowlevel.remove_instrument(steps)
        if scope.cancelled_caught:
            run.told = "cancelled"
        if run.struck and how == "cancel()":
            await ended.wait()
    return steps.count

"""Every test has a time limit, which `pyproject.toml` sets: a test that hangs fails with its stack, and the others run.

pytest-timeout raises an error in the test. If that does not end the test, pytest's fault handler prints all stacks and
ends the worker a minute later, and xdist starts another worker. This module adds what these three lack.
"""

import asyncio
import faulthandler
import signal
import traceback
from collections.abc import Generator, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling
from xdist.workermanage import WorkerController


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, object, object]:
    """Makes a test that runs out of time print where its tasks wait: the stack of its thread ends in the event loop."""
    done = yield
    if settings.method == "signal" and callable(fail := signal.getsignal(signal.SIGALRM)):

        def tell(number: int, frame: FrameType | None) -> None:
            with suppress(RuntimeError):  # no loop runs
                for task in asyncio.all_tasks():
                    print(task.get_name(), *traceback.StackSummary.extract(_frames(task)).format(), sep="\n")
            fail(number, frame)

        signal.signal(signal.SIGALRM, tell)
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Limits the time of fixtures that end after a failure: at a failure pytest stops its clocks, for a debugger."""
    if limit := float(item.config.getini("faulthandler_timeout") or 0):
        faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class FileScheduling(LoadFileScheduling):
    """Runs the tests of a file in one worker, and goes on after a worker has died.

    xdist 3.8 would run the deadly test again until no worker may be replaced, or wait for ever on a new worker:
    pytest-dev/pytest-xdist, issues 1323, 1327 and 1378.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Returns the test that the worker died of, or None if it had run all. Others run what else it had to."""
        units = self.assigned_work.pop(node)
        deadly = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        if deadly is None:
            return None
        for scope, unit in units.items():
            if left := [test for test, done in unit.items() if not done and test != deadly]:
                self.workqueue[scope] = dict.fromkeys(left, False)
        for other in self.assigned_work:
            self._reschedule(other)
        return deadly

    def _reschedule(self, node: WorkerController) -> None:
        """Gives a worker a second test, or tells it that there is none: it does not begin the first before."""
        if node not in self.registered_collections:  # it has just started, and is asked later
            return
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def _frames(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """Where a task waits, from its outermost coroutine to the innermost."""
    inner: Any = task.get_coro()
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        yield frame, frame.f_lineno
        inner = inner.cr_await

"""Tests for work in other threads and the tasks that wait for it, on both event loops."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import anyio
import anyio.to_thread
import pytest

from forkpoint.threads.wakeup import Wakeup, end_of, finish_in_thread, in_thread, result_of, soon_here

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
PATIENCE = 15  # seconds that no test takes


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What work in a thread waits for. However a test ends, the thread does too."""
    gate = threading.Event()
    yield gate
    gate.set()


@both
async def test_a_call_from_another_thread_is_made_in_the_loop_and_nobody_waits_for_it() -> None:
    soon, called = soon_here(), anyio.Event()
    where: list[threading.Thread] = []

    def call(text: str) -> None:
        where.append(threading.current_thread())
        called.set()

    await anyio.to_thread.run_sync(soon, call, "x")
    with anyio.fail_after(PATIENCE):
        await called.wait()
    assert where == [threading.current_thread()]


@both
async def test_many_waiting_tasks_wake_at_once() -> None:
    wakeups = [Wakeup() for _ in range(3)]
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for wakeup in wakeups:
                group.start_soon(wakeup.wait)
            await anyio.to_thread.run_sync(Wakeup.wake_all, wakeups)


@both
async def test_a_wakeup_that_was_set_off_stays_so_until_it_is_rearmed() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    with anyio.fail_after(PATIENCE):
        await wakeup.wait()
        await wakeup.wait_shielded()
    wakeup.rearm()
    with anyio.move_on_after(0.01) as waiting:
        await wakeup.wait()
    assert waiting.cancelled_caught
    wakeup.wake()
    with anyio.fail_after(PATIENCE):
        await wakeup.wait()


@both
async def test_work_in_a_thread_gives_its_result_or_its_error() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert await result_of(in_thread("x", lambda: threading.current_thread().name)) == "x"
    with pytest.raises(ValueError, match="no"):
        await result_of(in_thread("x", fail))
    with pytest.raises(ValueError, match="no"):
        await finish_in_thread(fail)
    failed = in_thread("x", fail)
    await end_of(failed)
    assert isinstance(failed.exception(), ValueError)


@both
async def test_what_a_thread_says_before_its_result_is_heard_before_it_although_the_result_is_there_already() -> None:
    told: list[str] = []
    future: Future[str] = Future()
    soon_here()(told.append, "half of it is done")
    future.set_result("done")
    assert (await result_of(future), told) == ("done", ["half of it is done"])


@both
async def test_a_cancelled_wait_for_a_result_leaves_the_work_alone(gate: threading.Event) -> None:
    work = in_thread("x", gate.wait)
    with anyio.move_on_after(0.01) as waiting:
        await result_of(work)
    assert waiting.cancelled_caught
    assert not work.done()
    gate.set()
    assert await result_of(work)


@both
async def test_a_cancelled_wait_for_an_end_goes_on_to_the_end(gate: threading.Event) -> None:
    ended: list[bool] = []

    async def wait(work: "Future[bool]") -> None:
        try:
            await end_of(work)
        finally:
            ended.append(work.done())

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(wait, in_thread("x", gate.wait))
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
            threading.Timer(0.05, gate.set).start()
    assert ended == [True]


async def test_work_is_finished_though_asyncio_cancels_its_task_twice(gate: threading.Event) -> None:
    done: list[bool] = []
    task = asyncio.create_task(finish_in_thread(lambda: done.append(gate.wait())))
    for _ in range(2):
        await asyncio.sleep(0.01)
        task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [True]


async def test_nobody_minds_a_wakeup_of_a_loop_that_has_ended() -> None:
    async def make() -> Wakeup:
        return Wakeup()

    for backend in ("asyncio", "trio"):
        wakeup = await anyio.to_thread.run_sync(partial(anyio.run, make, backend=backend))
        wakeup.wake()


AT_EXIT = """
import atexit, anyio
from forkpoint.threads.wakeup import finish_in_thread
atexit.register(lambda: anyio.run(finish_in_thread, lambda: print("finished")))
"""


async def test_work_is_finished_while_the_process_ends() -> None:
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60)
    )
    assert (done.stdout, done.stderr) == ("finished\n", "")

"""A task in the background: it goes on after whoever started it, and ends when it is cancelled."""

import anyio
import pytest

from forkpoint.threads.background import Background

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_it_goes_on_after_the_task_that_started_it_until_it_is_cancelled() -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def work() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    started: list[Background] = []

    async def start() -> None:
        started.append(Background.start(work))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
        await began.wait()
        assert not ended.is_set()
        started[0].cancel()
        await ended.wait()
        started[0].cancel()  # once more has no effect

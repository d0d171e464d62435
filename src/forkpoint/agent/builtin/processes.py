"""Commands that tools run: one that cannot be started is something to tell the model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forkpoint import process
from forkpoint.agent.builtin.failure import told
from forkpoint.process import CannotStart, Ended, Job


async def run(job: Job) -> Ended:
    """Runs a command to its end, and all that it started. Raises `ToolFailed` if it cannot be started."""
    with _told():
        return await process.run(job)


def supervise(job: Job, stopped: Callable[[], bool] = lambda: False) -> Ended:
    """The same for a thread, which goes on until ``stopped`` says so."""
    with _told():
        return process.supervise(job, stopped)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except CannotStart as refused:
        with told("The command cannot be started"):
            raise refused.error from None

"""Between the thread in which a model speaks and the task that hears it. Tests: tests/llm/local/test_engine.py."""

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from forkpoint.threads.wakeup import Wakeup, end_of, in_thread

T = TypeVar("T")


async def converse(name: str, work: Callable[[Callable[[T], bool]], None], heard: Callable[[T], None]) -> None:
    """Does blocking work in a thread, and passes what it tells to ``heard``, in this task.

    The work gets a function to tell things with, which returns whether to stop. If this task is cancelled, or ``heard``
    raises, the work is asked to stop, and the task goes on only when the thread has ended.
    """
    wakeup = Wakeup()
    told: deque[T] = deque()  # no limit: an answer is no longer than the model's context
    stop = threading.Event()

    def tell(something: T) -> bool:
        told.append(something)
        wakeup.wake()
        return stop.is_set()

    done = in_thread(name, lambda: work(tell))
    done.add_done_callback(lambda _: wakeup.wake())
    try:
        while True:
            ended = done.done()  # asked before the last things told are taken, so that none is left behind
            while told:
                heard(told.popleft())
            if ended:
                break
            await wakeup.wait()
            wakeup.rearm()
    except BaseException:
        stop.set()
        await end_of(done)
        raise
    done.result()

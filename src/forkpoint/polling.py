"""Waiting for what nobody announces: looks at ever longer intervals."""

from collections.abc import Iterator


def pauses(first: float, longest: float) -> Iterator[float]:
    """The seconds to wait after each look: ``first``, then each time twice as long, up to ``longest``::

    for wait in pauses(0.05, 1.0):
        if await is_done():
            return
        await anyio.sleep(wait)

    There is no last pause. The caller sleeps, so that a task, a thread and a wait with a deadline can use the same.
    """
    while True:
        yield first
        first = min(first * 2, longest)

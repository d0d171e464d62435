"""A clock that stands still until a test moves it."""

from forkpoint.clock import system_clock


class ManualClock:
    """Call it for the time; `pass_by` lets time go by. Two readings are never the same, as with a real clock."""

    def __init__(self) -> None:
        self._now = system_clock()

    def __call__(self) -> int:
        self._now += 1
        return self._now

    def pass_by(self, seconds: float) -> None:
        self._now += int(seconds * 1_000_000)

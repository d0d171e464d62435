"""The database's clock, as well as this process knows it between two looks: all processes of a store share that clock.
Tests: tests/postgres/test_opening.py."""

import time


class ServerClock:
    """Goes on from the last time that the server said, in microseconds since 1970. Jumps of the machine's own clock do
    not move it."""

    def __init__(self) -> None:
        self._offset = time.time_ns() // 1_000 - _monotonic()

    def __call__(self) -> int:
        return _monotonic() + self._offset

    def hear(self, now: int) -> None:
        """The server said what time it is."""
        self._offset = now - _monotonic()


def _monotonic() -> int:
    return time.monotonic_ns() // 1_000

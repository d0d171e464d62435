"""Time as the engine sees it: whole microseconds since 1970, UTC, from a clock that can be replaced.
Tests: tests/test_ids.py."""

import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Returns the current time in microseconds since 1970, UTC."""


def system_clock() -> int:
    """The machine's own clock."""
    return time.time_ns() // 1_000

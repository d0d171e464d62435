"""Saying on the terminal what is going on, for people who wait."""

import sys
import time


class Progress:
    """Lines on standard error, with the time since the start. Parts are said now and then, not each."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._start = self._said = time.monotonic()

    def say(self, what: str) -> None:
        self._said = time.monotonic()
        if not self._quiet:
            print(f"[{self._said - self._start:6.1f} s] {what}", file=sys.stderr, flush=True)

    def part(self, what: str, done: int, total: int) -> None:
        """How far something has come; said at most every few seconds."""
        if time.monotonic() - self._said >= 5:
            self.say(f"    {what} {done:,} of {total:,}")

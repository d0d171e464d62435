"""`TypedLines`: the lines that a user types while something else goes on. Tests: tests/cli/test_steer.py."""

import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Self


class TypedLines:
    """Takes whole lines off the terminal while the block runs, from a thread of its own.

    A line that is not ended yet stays where it is: the next prompt goes on with it. ``take`` gets None for Ctrl-D.
    """

    def __init__(self, take: Callable[[str | None], None]) -> None:
        self._take = take
        self._file = sys.stdin.fileno()
        self._lock = threading.Lock()
        self._wake: int | None = None
        self._thread = threading.Thread(target=self._run, name="forkpoint typed lines", daemon=True)

    def __enter__(self) -> Self:
        self._woken, self._wake = os.pipe()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()
        os.close(self._woken)

    def stop(self) -> None:
        """Takes no line any more that is typed from now on. Any thread may call it, also more than once."""
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            os.close(wake)  # which wakes the thread

    def _run(self) -> None:
        while True:
            readable, _, _ = select.select([self._file, self._woken], [], [])
            if self._woken in readable:
                return
            read = os.read(self._file, 65536)
            if not read:
                self._take(None)
                return
            for line in read.decode(errors="surrogateescape").splitlines():
                if line.strip():
                    self._take(line.strip())

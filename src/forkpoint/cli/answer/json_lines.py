"""`JsonLines`: a turn on stdout while it runs, one JSON document a line. docs/stream-json.md has all fields.

Updates have the form of a server's stream of events. The last line is the turn as it ended, or an error.
Tests: tests/cli/test_stream_json.py.
"""

import sys
import threading
from typing import Any

import msgspec

from forkpoint.conversation import Turn, TurnStarted, Update
from forkpoint.updates import TurnJoined
from forkpoint.wire.updates import update_json


class JsonLines:
    """Prints each update as it comes. Any thread may call it."""

    def __init__(self) -> None:
        self._turn: str | None = None
        self._lock = threading.Lock()
        self._is_read = True  # False: whoever read this has gone, which must not end a turn that is paid for

    def __call__(self, update: Update) -> None:
        if isinstance(update, Turn):
            return  # it is printed when the program knows its outcome
        if isinstance(update, TurnStarted | TurnJoined):
            self._turn = update.id
        self._print(update_json(self._turn, update))

    def ended(self, document: dict[str, Any]) -> None:
        """The last line: the turn, after its commit or without one."""
        self._print(msgspec.json.encode({"type": "turn"} | document))

    def _print(self, line: bytes) -> None:
        with self._lock:
            try:
                if self._is_read:
                    sys.stdout.write(line.decode() + "\n")
                    sys.stdout.flush()
            except BrokenPipeError:
                self._is_read = False

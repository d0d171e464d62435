"""What a turn says while it runs, as JSON: the same in a server's stream of events and with ``run --stream-json``.
Tests: tests/cli/test_stream_json.py, tests/server/test_streams.py."""

from collections.abc import Callable

import msgspec

from forkpoint.backend.callbacks import Update
from forkpoint.updates import TurnStarted

_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


def update_json(turn: str | None, update: Update) -> bytes:
    """An update on one line, with the id of its turn. Its ``type`` says what it is."""
    data = _encode(update)
    if turn is None or isinstance(update, TurnStarted):
        return data
    return b'{"turn":"' + turn.encode() + b'",' + data[1:]

"""Examples of branches for the OpenAPI document: how two differ, and what one brought from another.
Tests: tests/server/test_openapi.py."""

from forkpoint.backend.bring import BringReport
from forkpoint.backend.diff import Diff, DiffSide, DiffTurn, SettingDifference, StateDifference, TurnPair
from forkpoint.events import Brought, Envelope, Event, Position, Text, Usage, UserMessage
from forkpoint.history.branches.diff import Piece, TextDiff

_HERE, _THERE = "01a8f6e0-3f6c-7b1a-9d2e-5c8b7a6f4e3d", "01a8f6e0-8e54-7a7c-8d45-6fd1a29e80bf"
_TURNS = "01a8f6e0-4a10-7c3e-8f01-2b9d6e5a4c7b", "01a8f6e0-9f65-7b8d-9e56-70e2b3af91c0"
_NOTE = "01a8f6e0-a076-7c9e-8f67-81f3c4b0a2d1"
_TIME = 1_800_000_000_000_000
_USAGE = Usage(calls=1, input=1200, cached=1100, output=80, nanodollars=1_450_000)
_SIDE = {"model": "openai/gpt-5.6", "agent": "support", "events": 3, "turns": 1, "usage": _USAGE, "seconds": 1.2}
_ASKED = "What now?"

DIFF = Diff(
    a=DiffSide(_HERE, "build-1234", None, "root", head="1-6", **_SIDE),  # type: ignore[arg-type]
    b=DiffSide(_THERE, "other-fix", "Try the other fix", "fork", head="2-6", **_SIDE),  # type: ignore[arg-type]
    ancestor="1-3",
    related=True,
    shared=3,
    pairs=(
        TurnPair(
            DiffTurn(
                _TURNS[0], "turn", "1-4", "1-6", _ASKED, "Restart the build.", usage=_USAGE, started=_TIME, ended=_TIME
            ),
            DiffTurn(
                _TURNS[1],
                "turn",
                "2-4",
                "2-6",
                _ASKED,
                "Restart the machine.",
                usage=_USAGE,
                started=_TIME,
                ended=_TIME,
            ),
            input=TextDiff((Piece("both", _ASKED),)),
            text=TextDiff(
                (Piece("both", "Restart the "), Piece("a", "build"), Piece("b", "machine"), Piece("both", "."))
            ),
        ),
    ),
    state=(StateDifference("suspect", None, '"disk"', '"network"'),),
    settings=(SettingDifference("model", "openai/gpt-5.6", "openai/gpt-5.6-mini"),),
)

_SAID = (
    f"From the branch other-fix of this conversation. There this was asked:\n\n{_ASKED}\n\nAnd this was answered:\n\n"
)
BROUGHT = BringReport(
    id=_NOTE,
    conversation=_HERE,
    source=_THERE,
    what="answer",
    events=(
        Event(
            Position(1, 7),
            _NOTE,
            Envelope("brought", _TIME),
            Brought(_THERE, "answer", 1, (f"{_TURNS[1]}/0", f"{_TURNS[1]}/2"), ("9f" * 32, "5a" * 32)),
        ),
        Event(
            Position(1, 8),
            _NOTE,
            Envelope("user_message", _TIME, "user", parts=("text",)),
            UserMessage((Text(f"{_SAID}Restart the machine."),)),
        ),
    ),
)

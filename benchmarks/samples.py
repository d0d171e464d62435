"""The messages that every contender stores: the same texts, each about 1 KB once it is stored."""

import random
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

TEXT = 945
"""Characters in a text; with the JSON around it a payload of Forkpoint's comes to 1,015 to 1,065 bytes."""

TURN = 4
"""Events in a turn: the user asks, the model calls a tool, the tool returns, the model answers."""

Kind: TypeAlias = Literal["user", "call", "result", "answer"]

_NUMBER = re.compile(r"#(\d{8})")
_WORDS = [
    "the",
    "build",
    "failed",
    "again",
    "because",
    "a",
    "test",
    "reads",
    "what",
    "another",
    "one",
    "wrote",
    "so",
    "run",
    "it",
    "alone",
    "and",
    "look",
    "at",
    "its",
    "log",
]


class Message(Struct, frozen=True):
    """One message, before a contender puts it into its own form."""

    number: int
    kind: Kind
    call_id: str
    text: str


def messages(first: int, count: int, *, turn: int = TURN) -> list[Message]:
    """Messages by their numbers; number 0 and every ``turn``-th after it is a user's and opens a turn."""
    return [_message(number, turn) for number in range(first, first + count)]


def turn(number: int) -> list[Message]:
    """The four messages of a turn."""
    return messages(number * TURN, TURN)


def number_of(text: str) -> int:
    """The number of the message that a text belongs to, wherever in a stored document the text stands."""
    found = _NUMBER.search(text)
    return int(found[1]) if found else -1


def contiguous(stored: Sequence[int], number: int) -> bool | None:
    """Whether a turn's messages stand together and in order; None if one of them is missing."""
    wanted = list(range(number * TURN, number * TURN + TURN))
    if not set(wanted) <= set(stored):
        return None
    start = stored.index(wanted[0])
    return list(stored[start : start + TURN]) == wanted


def _message(number: int, turn: int) -> Message:
    start = number * 37 % (len(_STREAM) - TEXT)
    text = f"#{number:08d} {_STREAM[start : start + TEXT]}"[:TEXT]
    kind = _kind(number % turn, turn)
    call = number - 1 if kind == "result" else number
    return Message(number, kind, f"call-{call:08d}", text)


def _kind(place: int, turn: int) -> Kind:
    if place == 0:
        return "user"
    if place == turn - 1:
        return "answer"
    return "call" if place % 2 else "result"


def _stream() -> str:
    """Text to cut messages from: plain words in lines, as people and models write."""
    chance = random.Random(0)
    return "".join(chance.choice(_WORDS) + ("\n" if chance.random() < 0.07 else " ") for _ in range(20_000))


_STREAM = _stream()

"""What clients were told, and what was found. Several threads write to it."""

import threading
import time
from bisect import bisect
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

Kind: TypeAlias = Literal[
    "lost",  # acknowledged, and not there
    "doubled",  # there twice, or a tool ran twice
    "half",  # a turn without its end
    "made up",  # there, and nobody asked for it
    "not verified",  # `verify` or an anchor found a flaw
    "stuck",  # a client never got an answer, or something stays open
    "crashed",  # a node ended by itself, or an error that nobody foresaw
]
KINDS: tuple[Kind, ...] = ("lost", "doubled", "half", "made up", "not verified", "stuck", "crashed")


class Finding(Struct, frozen=True):
    """Something that should not be."""

    kind: Kind
    what: str


class Talk:
    """One conversation, and what must be in it."""

    def __init__(self, id: str, *, shared: bool = False, texts: list[str] | None = None) -> None:
        self.id = id
        self.shared = shared  # among all clients: then the order of its turns is not known
        self.texts: list[str] = texts or []  # acknowledged, in order
        self.inherited = len(self.texts)
        self.turns: dict[str, str] = {}  # by text: the turn that the client was told
        self.title: str | None = None  # the last that was acknowledged
        self.taken = False  # whether an action is under way: a talk that is not shared has one at a time

    @property
    def path(self) -> str:
        return f"/api/conversations/{self.id}"


class Ledger:
    """All talks, all acknowledged answers, and all findings."""

    def __init__(self, file: Path) -> None:
        self.talks: list[Talk] = []
        self.counts: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.accepted: dict[str, tuple[str, str]] = {}  # by turn: conversation and text; answered with 202
        self.anchors: list[Any] = []
        self.by_place: Counter[str] = Counter()  # turns that clients of a place were told of
        self.asked = 0  # actions that have begun
        self.answered = 0  # actions that have ended
        self.times: list[float] = [time.monotonic()]  # when answers came
        self._lock = threading.Lock()
        self._file = file.open("wb")

    def begin(self) -> float:
        """Begins to count time: silence before now is none."""
        self.times = [time.monotonic()]
        return self.times[0]

    def add(self, talk: Talk) -> None:
        with self._lock:
            self.talks.append(talk)

    def count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self.counts[what] += times

    def acknowledged(self, what: str, **facts: Any) -> None:
        """Writes down that a client was told something."""
        now = time.monotonic()
        with self._lock:
            self.counts[f"acknowledged: {what}"] += 1
            self.times.append(now)
            self._file.write(msgspec.json.encode({"time": time.time(), "what": what, **facts}) + b"\n")

    def committed(self, talk: Talk, text: str, turn: str, how: str, place: str = "") -> None:
        with self._lock:
            self.by_place[place] += 1
            talk.texts.append(text)
            talk.turns[text] = turn
        self.acknowledged(f"turn, {how}", conversation=talk.id, turn=turn, text=text, place=place)

    def found(self, kind: Kind, what: str) -> None:
        with self._lock:
            self.findings.append(Finding(kind, what))
            self._file.write(msgspec.json.encode({"time": time.time(), "found": kind, "what": what}) + b"\n")
            self._file.flush()

    @property
    def turns(self) -> int:
        """How many turns were acknowledged."""
        with self._lock:
            return sum(times for what, times in self.counts.items() if what.startswith("acknowledged: turn"))

    def silence(self, after: float, before: float) -> float:
        """The longest time without any answer that ended between two moments."""
        with self._lock:
            times = self.times[max(0, bisect(self.times, after) - 1) : bisect(self.times, before) + 1]
        return max((second - first for first, second in pairwise(times)), default=0.0)

    def close(self) -> None:
        self._file.close()

"""The check of one chain of records, or of a turn's steps, as the lines of an export have them.
Tests: tests/history/test_exports.py."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TypeAlias

import msgspec

from forkpoint.events import Usage
from forkpoint.history import records
from forkpoint.history.digests import Link, flaw
from forkpoint.history.exports.lines import Chain, ConversationLine, RecordLine, StepLine, TurnLine
from forkpoint.history.records import Fact, Point, Standing

load_usage = msgspec.json.Decoder(Usage).decode
_TEXTS = ("settings", "cache", "approvals", "name", "title", "tags")


Found: TypeAlias = Callable[[str], None]
"""Is called with each flaw of the line in hand."""


class ChainCheck:
    """The check of one chain of records, and of the conversation whose it is."""

    def __init__(
        self,
        line: Chain,
        start: bytes | None,
        follows: int,
        starts: Mapping[int, bytes] = {},
        told: ConversationLine | None = None,
        birth: records.Birth | None = None,
    ) -> None:
        self.key = bytes.fromhex(line.chain)
        self.last: tuple[Fact | None, bytes | None] = (None, None)
        self._line = line
        self._start, self._follows = start, follows
        self._starts = dict(starts) if start is None else {**starts, follows: start}
        self._told = told
        self._number = 0
        self._digest = self._starts.get(0)
        self._standing: dict[str, tuple[object, bytes | None]] = {}
        if birth is not None and told is not None:
            self._state(birth, from_hex(told.born_salt))

    @property
    def is_family(self) -> bool:
        return self.key[:1] == b"f"

    def take(self, line: RecordLine, found: Found) -> Fact | None:
        self._number += 1
        if line.number != self._number:
            found("a record before it is missing")
            self._number = line.number
        fact = None
        digest, salt = bytes.fromhex(line.digest), from_hex(line.salt)
        if line.body is None:
            if self.is_family or (self._told is not None and line.number > self._follows):
                found("its body is missing")
        else:
            previous = self._starts.get(line.number - 1, self._digest)
            if previous is None or records.record_digest(previous, self.key, line.number, line.body) != digest:
                found("the record or its place in the chain was changed")
            fact = records.decode_fact(line.body)
            if fact.kind != line.kind:
                found("its kind is another than in its body")
            subject = fact.turn.id if fact.turn else fact.charge.id if fact.charge else None
            if subject is not None and subject != line.subject:
                found("it is about something else than its body says")
            if line.number > self._follows:
                self._state(fact, salt)
        self._digest = digest
        self.last = (fact, salt)
        return fact

    def end(self, found: Found, root: bytes) -> None:
        last = self._start if self._number == self._follows and self._start is not None else self._digest
        if self._number != self._line.records or (last is not None and last.hex() != self._line.digest):
            found("the records before this line are not all of their chain")
        if self._told is not None:
            for what in self._differences(self._told, root):
                found(f"conversation {self._told.id} has another {what} than its records say")

    def _state(self, said: Standing, salt: bytes | None) -> None:
        """Keeps what a birth or a record states."""
        for name in Standing.__struct_fields__:
            if (value := getattr(said, name)) is not None:
                self._standing[name] = (value, salt)
        if isinstance(said, Fact) and said.kind in ("committed", "note") and said.turn is not None:
            self._standing |= {"head": (said.turn.end, None), "draft": (False, None)}

    def _differences(self, told: ConversationLine, root: bytes) -> list[str]:
        stands = {
            "head": Point(0, root) if told.head is None else Point(told.head[1], bytes.fromhex(told.head_digest)),
            "revision": told.revision,
            "own_from": told.own_from,
            "inherited": load_usage(told.inherited),
            "draft": told.draft,
        }
        said = {"revision": 0} | {name: value for name, (value, _) in self._standing.items()}
        different = [name for name, value in stands.items() if said.get(name) != value]
        for name in _TEXTS:
            value, salt = self._standing.get(name, (None, None))
            if salt is not None and records.salted(salt, getattr(told, name)) != value:
                different.append(name)
        return different


class StepsCheck:
    """The check of a turn's steps."""

    def __init__(self, turn: TurnLine, key: bytes, gone: set[str]) -> None:
        self._turn, self._key, self._gone = turn, key, gone
        self._digest = records.start_of_steps(key)
        self._number = 0

    def take(self, line: StepLine, found: Found) -> None:
        self._number += 1
        payload_digest = bytes.fromhex(line.payload_digest)
        link = Link(self._key, line.envelope, line.payload, from_hex(line.salt), payload_digest, b"")
        digest = sha256(self._digest + self._key + line.envelope.encode() + payload_digest).digest()
        if what := flaw(self._digest, msgspec.structs.replace(link, chain_digest=digest)):
            found(what)
        if line.payload is None and self._turn.id not in self._gone:
            found("its payload is missing, and no record says that it was erased")
        self._digest = digest

    def end(self, found: Found) -> None:
        stated = from_hex(self._turn.steps_digest)
        if self._number == 0:
            if stated is not None and self._turn.id not in self._gone:
                found(f"the steps of turn {self._turn.id} are missing")
        elif self._digest != stated:
            found(f"the steps of turn {self._turn.id} were changed")


def from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)

"""The reach of an erasure: every event, try and conversation of a family that has what somebody wants to erase.

It begins with what was chosen and follows copies both ways, until nothing is added any more:

- a call and what belongs to it: its approvals, its hooks, and the event that tells of a sub-agent;
- copies of a turn's steps in sub-agents (`copied_events`);
- a sub-agent's task, which its parent's call and its own first message both have, and its answer, which its parent's
  result repeats;
- other tries of the same input;
- what clients asked beside the conversation, since their questions repeat its text;
- an answer that was brought to another branch (`brought_notes`).

Then comes what was made of it: summaries, also those that were brought to another branch, titles, and the digests of
prompts in `model_called`.
Tests: tests/store/test_erasure.py.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import msgspec

from forkpoint.errors import NotFound
from forkpoint.events import Condensation, Position, SubAgentSpawned, ToolCall, decode_body, decode_envelope
from forkpoint.history.paths import Path
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.erasure.brought_notes import BroughtNotes
from forkpoint.store.tables.operations import conversations, history, turns
from forkpoint.store.tables.rows import ORDINALS, Scope, head_of, pack, unpack

_OF_A_CALL = {
    "tool_call": {"sub_agent_spawned", "approval_asked", "approval_given", "approval_denied", "hook_run"},
    "tool_result": {"sub_agent_finished", "approval_denied", "hook_run"},
    "sub_agent_spawned": {"tool_call"},
    "sub_agent_finished": {"tool_result"},
}
"""Which events of the same call go with an event."""

_READ = ("tool_call", "sub_agent_spawned", "condensation")
"""The kinds of events whose content is looked at."""


class Found:
    """One event that is to be erased."""

    def __init__(self, row: Row) -> None:
        payload: str | None = row["payload"]
        self.key: int = row["id"]
        self.turn: bytes = row["turn"]
        self.envelope = decode_envelope(row["envelope"])
        self.digest: bytes = row["chain_digest"]
        self.is_there = payload is not None
        self.size = 0 if payload is None else len(payload.encode())
        self.payload = payload if self.kind in _READ else None  # the others may be large, and many

    @property
    def kind(self) -> str:
        return self.envelope.kind


class Reach:
    """What an erasure in one family has found so far."""

    def __init__(self, db: Database, scope: Scope, family: bytes) -> None:
        self._db = db
        self._scope = scope
        self.family = family
        self.events: dict[int, Found] = {}
        self.tries: set[bytes] = set()  # turns that are not history, and lose all that they have
        self.turns: set[bytes] = set()  # turns that lose what they were asked, and why they failed
        self.described: set[bytes] = set()  # conversations that lose all that they are called
        self.untasked: set[bytes] = set()  # sub-agents that lose their task
        self._of_turn: dict[bytes, list[Found]] = {}
        self._copies: dict[bytes, list[tuple[Found, int]]] = {}
        self._first_turns: dict[bytes, bytes | None] = {}  # of sub-agents
        self._whole: set[bytes] = set()
        self._sides: set[bytes] = set()
        self._brought = BroughtNotes(db, scope, family, self._events_of)

    @cached_property
    def conversations(self) -> dict[bytes, Row]:
        """All conversations of the family, with how their open turns stand."""
        of_family = {"tenant": self._scope.tenant, "family": self.family}
        return {row["id"]: row for row in self._db.run("conversations_of_a_family", of_family)}

    # What was chosen.

    def add_conversation(self, row: Row) -> None:
        """Everything in a conversation: its path, its tries, its sub-agents and its sides, and what it is called."""
        doomed = {"tenant": self._scope.tenant, "id": row["id"], "family": self.family}
        for one in self._db.run("with_dependents", doomed).fetchall():
            if one["id"] in self.described or one["id"] not in self.conversations:
                continue
            self.described.add(one["id"])
            self.untasked.add(one["id"])
            there = self.conversations[one["id"]]
            for span in history.read_path(self._db, self._scope, self.family, unpack(there["head"])).spans:
                self._add_all(_stretch(self._db, span.segment, span.first, span.last))
            for turn in turns.uncommitted(self._db, self._scope, there):
                self.add_turn(conversations.key_of(turn.id))

    def add_everything(self) -> None:
        """Everything in the family, also what no conversation reaches any more."""
        of_family = {"tenant": self._scope.tenant, "family": self.family}
        for row in self.conversations.values():
            self.add_conversation(row)
        for row in self._db.run("segments_of_a_family", of_family).fetchall():
            self._add_all(_stretch(self._db, row["id"], 0, ORDINALS))

    def add_turn_of(self, row: Row, turn: str) -> None:
        """One turn of a conversation's path, or one of its tries. Raises `NotFound`.

        All of the turn goes, also if the path has only its first events.
        """
        found = turns.find(self._db, self._scope, turn) if len(turn) == 36 else None
        if found is None:
            raise NotFound("turn", turn[:200])
        base, end = unpack(found["base"]), unpack(found["end"])
        is_here = found["conversation"] == row["id"]
        if end is not None:
            is_here = history.last_on(self._path(row), base, end) is not None
        if not is_here:
            raise NotFound("turn", turn)
        self.add_turn(found["id"])

    def add_event_of(self, row: Row, event: Position) -> None:
        """One event of a conversation's path. Raises `NotFound`."""
        if event not in self._path(row):
            raise NotFound("event", str(event))
        self._add_all(_stretch(self._db, event.segment, event.ordinal, event.ordinal))

    def add_turn(self, id: bytes) -> None:
        """All of a turn, and the other tries of its input."""
        if id in self._whole:
            return
        self._whole.add(id)
        row = self._turn(id)
        if row is None:
            return
        if row["end"] is None:
            self._add_try(row)
        else:
            self.turns.add(id)
            self._add_all(self._events_of(id))
        for other in self._same_input(row):
            self.add_turn(other)

    # What goes with it.

    def follow(self) -> None:
        """Adds what goes with events that are in it already."""
        for one in list(self.events.values()):
            self._follow(one)

    def _add_all(self, found: Iterable[Found]) -> None:
        for one in found:
            if one.is_there and one.key not in self.events:
                self.events[one.key] = one
                self._follow(one)

    def _follow(self, one: Found) -> None:
        first_of_turn = one.turn not in self.turns
        self.turns.add(one.turn)
        if first_of_turn or one.kind == "user_message":
            self._add_tries_like(one)
        self._add_call(one)
        self._add_source(one)
        self._add_copies(one)

    def _add_call(self, one: Found) -> None:
        kinds, call = _OF_A_CALL.get(one.kind), one.envelope.call_id
        if kinds is None:
            return
        if call is not None:
            self._add_all(
                other for other in self._events_of(one.turn) if other.kind in kinds and other.envelope.call_id == call
            )
        elif isinstance(told := decode_body(one.payload), SubAgentSpawned):
            self._add_all(other for other in self._events_of(one.turn) if _asks_for(other, told.task))

    def _add_source(self, one: Found) -> None:
        """The event that this one repeats."""
        copy = self._db.run("copy_at", {"position": one.key}).fetchone()
        if copy is None:
            return
        if copy["source_step"] > 0:
            source = self._turn(copy["source_turn"])
            if source is not None and source["end"] is None:
                self.add_turn(source["id"])
            elif source is not None:
                self._add_all([found] if (found := self._source_of(source["id"], copy["source_step"], one)) else [])
        elif one.kind == "sub_agent_spawned":
            self._add_task(copy["source_turn"])
        else:
            self._add_answer(copy["source_turn"])

    def _add_copies(self, one: Found) -> None:
        """The events that repeat this one."""
        copies = self._copies_of(one.turn)
        asked = self._first_asked(one) if one.kind == "user_message" else None
        if asked is not None:
            copies = copies + self._copies_of(asked)
        for copy, step in copies:
            if step > 0:
                repeats = self._source_of(one.turn, step, copy)
                if repeats is not None and repeats.key == one.key:
                    self._add_all([copy])
            elif (one.kind, copy.kind) in _REPEATS:
                self._add_all([copy])
        if asked is not None:
            self._add_asking_turn(asked)

    def _add_task(self, id: bytes) -> None:
        """What a sub-agent was asked, in its own history: ``id`` is its turn's, or its own."""
        row = self._turn(id)
        if row is None:
            self._add_first_task(id)
        elif row["end"] is None:
            self.untasked.add(row["conversation"])
            self.add_turn(id)
        else:
            self.untasked.add(row["conversation"])
            self._add_all(one for one in self._events_of(id) if one.kind == "user_message")

    def _add_first_task(self, child: bytes) -> None:
        """The task of a sub-agent that was made with it: in its settings, in its tries, in its first turn."""
        row = self.conversations.get(child)
        if row is None or child in self.untasked:
            return
        self.untasked.add(child)
        for turn in turns.uncommitted(self._db, self._scope, row):
            self.add_turn(conversations.key_of(turn.id))
        said = self._own_messages(row)
        self._add_all(one for one in said if one.turn == said[0].turn)

    def _add_answer(self, turn: bytes) -> None:
        """What a sub-agent answered: the messages of its turn's last response."""
        said = [one for one in self._events_of(turn) if one.kind == "assistant_message"]
        self._add_all(one for one in said if one.envelope.response == said[-1].envelope.response)

    def _add_asking_turn(self, child: bytes) -> None:
        """The try that made a sub-agent, if it is not history: its call has the sub-agent's task."""
        row = self.conversations.get(child)
        if row is None or row["lineage_kind"] != "sub_agent":
            return
        self.untasked.add(child)
        if row["lineage_turn"] is not None:
            asked = self._turn(row["lineage_turn"])
            if asked is not None and asked["end"] is None:
                self.add_turn(asked["id"])

    def _add_try(self, row: Row) -> None:
        """A turn that is not history: what it was asked, its steps, the copies of them, and the tasks in them."""
        self.tries.add(row["id"])
        self.turns.add(row["id"])
        self._add_all(copy for copy, _ in self._copies_of(row["id"]))
        spawned = {"tenant": self._scope.tenant, "turn": row["id"]}
        for child in self._db.run("children_of_a_turn", spawned).fetchall():
            self._add_first_task(child["id"])

    def _add_tries_like(self, one: Found) -> None:
        """Other tries of the same input. Those that are history lose the same message."""
        row = self._turn(one.turn)
        if row is None:
            return
        for id in self._same_input(row):
            other = self._turn(id)
            if other is None or id in self._whole:
                continue
            if other["end"] is None:
                self.add_turn(id)
            elif one.kind == "user_message":
                self._add_all(said for said in self._events_of(id) if said.kind == "user_message")

    def add_sides(self, affected: Iterable[Row]) -> bool:
        """All of what clients asked beside these conversations after the text was there. Says whether there was any."""
        ids = {row["id"] for row in affected}
        region = self.region()
        found = [
            row
            for id, row in self.conversations.items()
            if row["lineage_kind"] == "side"
            and row["lineage_source"] in ids
            and id not in self._sides
            and _is_after(region, row["lineage_at"])
        ]
        for row in found:
            self._sides.add(row["id"])
            self.add_conversation(row)
        return bool(found)

    def add_quotes(self) -> bool:
        """Answers that were brought to another branch and quote what is erased, and what erased ones quote. Says
        whether there was any."""
        before = len(self.events)
        self._add_all(list(self._brought.made_of(self.events, "answer")))
        self._add_all(list(self._brought.quoted_in(self.events)))
        return len(self.events) > before

    # What was made of it.

    def region(self) -> dict[int, int]:
        """Where the text was before whoever wrote: by segment, the first ordinal of an erased event on the paths there.

        A segment whose base is at or after an erased event has that event's ordinal, which is below its own first.
        """
        erased: dict[int, int] = {}
        for key in self.events:
            segment, ordinal = key >> 32, key & ORDINALS
            erased[segment] = min(ordinal, erased.get(segment, ordinal))
        region: dict[int, int] = {}
        of_family = {"tenant": self._scope.tenant, "family": self.family}
        for row in self._db.run("segments_of_a_family", of_family):  # parents first
            base, found = unpack(row["base"]), erased.get(row["id"])
            above = None if base is None else region.get(base.segment)
            if base is not None and above is not None and above <= base.ordinal:
                found = above
            if found is not None:
                region[row["id"]] = found
        return region

    def summaries(self) -> list[Found]:
        """The condensations that cover an erased event and are not erased themselves; and the summaries of a branch
        that has one, which were brought to another."""
        region = self.region()
        covering = [one for one in self.after(region, "condensation") if region[one.key >> 32] < _kept_from(one)]
        found = (*covering, *self._brought.made_of(self.events, "summary"))
        return [one for one in found if one.is_there and one.key not in self.events]

    def add_summaries(self, found: Iterable[Found]) -> None:
        self._add_all(found)

    def after(self, region: dict[int, int], kind: str) -> Iterator[Found]:
        """The events of a kind that were written when an erased text was before whoever wrote."""
        for segment, first in region.items():
            stretch = {"first": (segment << 32) + first + 1, "last": segment << 32 | ORDINALS}
            rows = self._db.run("events_of_a_kind", stretch | {"kind": f'{{"kind":"{kind}"%'}).fetchall()
            yield from map(Found, rows)

    def affected(self) -> list[Row]:
        """The conversations whose history shows something else once this is erased."""
        region = self.region()
        return [row for row in self.conversations.values() if _is_after(region, row["head"])]

    def tries_after(self, affected: Iterable[Row]) -> list[Row]:
        """The tries that had the text before them: why they failed may quote it."""
        region = self.region()
        tries = (turn for row in affected for turn in turns.uncommitted(self._db, self._scope, row))
        found = [self._turn(conversations.key_of(turn.id)) for turn in tries if _is_after(region, pack(turn.base))]
        return [row for row in found if row is not None]

    def loses_title(self, row: Row) -> bool:
        """Whether a conversation is called after something that is erased."""
        if row["title"] is None or row["id"] in self.described:
            return False
        said = next(self._messages(row), None)
        return (said is not None and said.key in self.events) or self._has(row["title"])

    def _messages(self, row: Row) -> Iterator[Found]:
        for span in history.read_path(self._db, self._scope, self.family, unpack(row["head"])).spans:
            found = _stretch(self._db, span.segment, span.first, span.last)
            yield from (one for one in found if one.kind == "user_message")

    def _has(self, title: str) -> bool:
        words = " ".join(title.rstrip(".… ").split()).casefold()
        return any(words in text for text in self._texts)

    @property
    def _texts(self) -> Iterator[str]:
        """The texts of all that is erased, as titles are compared with them."""
        for key in self.events:
            payload = self._db.run("event_to_erase", {"id": key}).fetchone()["payload"]
            yield " ".join(" ".join(_strings(msgspec.json.decode(payload))).split()).casefold()

    # Reading.

    def _turn(self, id: bytes) -> Row | None:
        row: Row | None = self._db.run("read_turn", {"tenant": self._scope.tenant, "id": id}).fetchone()
        return row

    def _event(self, key: int) -> Found | None:
        row = self._db.run("event_to_erase", {"id": key}).fetchone()
        return None if row is None else Found(row)

    def _events_of(self, turn: bytes) -> list[Found]:
        """The events of a turn that is history."""
        if turn not in self._of_turn:
            row = self._turn(turn)
            end = None if row is None else unpack(row["end"])
            if row is None or end is None:
                return []
            first = ((row["base"] or 0) & ORDINALS) + 1
            found = _stretch(self._db, end.segment, first, end.ordinal)
            self._of_turn[turn] = [one for one in found if one.turn == turn]
        return self._of_turn[turn]

    def _same_input(self, row: Row) -> list[bytes]:
        if row["input"] is None:
            return []
        same = {"tenant": self._scope.tenant, "id": row["id"], "retry_of": row["retry_of"], "input": row["input"]}
        return [other["id"] for other in self._db.run("retries_of", same).fetchall()]

    def _source_of(self, turn: bytes, step: int, copy: Found) -> Found | None:
        """The event of a turn that a copy repeats. Steps keep their places in history, but results: these stand in the
        order of their calls."""
        events = self._events_of(turn)
        if copy.kind != "tool_result":
            return events[step - 1] if step <= len(events) else None
        results = [n for n, one in enumerate(events) if one.kind == "tool_result" and _same_call(one, copy)]
        return events[min(results, key=lambda n: abs(n - step + 1))] if results else None

    def _copies_of(self, turn: bytes) -> list[tuple[Found, int]]:
        """The events that repeat what a turn says, each with the step that it repeats."""
        if turn not in self._copies:
            rows = self._db.run("copies_of_a_turn", {"turn": turn}).fetchall()
            found = [(self._event(row["position"]), row["source_step"]) for row in rows]
            self._copies[turn] = [(copy, step) for copy, step in found if copy is not None]
        return self._copies[turn]

    def _first_asked(self, one: Found) -> bytes | None:
        """The sub-agent whose task a message is; None if the message is something else."""
        row = self._turn(one.turn)
        child = None if row is None else self.conversations.get(row["conversation"])
        if child is None or child["lineage_kind"] != "sub_agent":
            return None
        if child["id"] not in self._first_turns:
            said = self._own_messages(child)
            self._first_turns[child["id"]] = said[0].turn if said else None
        return child["id"] if self._first_turns[child["id"]] == one.turn else None

    def _own_messages(self, child: Row) -> list[Found]:
        """What a sub-agent was asked, after all that it began with."""
        spans = history.read_spans(self._db, self._scope, self.family, unpack(child["head"]), child["own_from"])
        own = (one for span in spans for one in _stretch(self._db, span.segment, span.first, span.last))
        return [one for one in own if one.kind == "user_message" and one.envelope.origin is None]

    def _path(self, row: Row) -> Path:
        return history.read_path(self._db, self._scope, self.family, head_of(row).position)


_REPEATS = {("user_message", "sub_agent_spawned"), ("assistant_message", "sub_agent_finished")}


def _stretch(db: Database, segment: int, first: int, last: int) -> list[Found]:
    stretch = {"first": segment << 32 | first, "last": segment << 32 | last}
    return [Found(row) for row in db.run("events_to_erase", stretch)]


def _is_after(region: dict[int, int], key: int | None) -> bool:
    """Whether a path to this place has an erased event."""
    return key is not None and region.get(key >> 32, ORDINALS + 1) <= (key & ORDINALS)


def _kept_from(one: Found) -> int:
    """The first ordinal that a condensation does not cover. An earlier format has it in the content alone."""
    body = decode_body(one.payload)
    kept_from = body.kept_from if isinstance(body, Condensation) else one.envelope.kept_from
    return ORDINALS if kept_from is None else kept_from


def _same_call(one: Found, other: Found) -> bool:
    return one.envelope.call_id == other.envelope.call_id


def _asks_for(one: Found, task: str) -> bool:
    """Whether an event is a call with this task among its arguments."""
    if one.kind != "tool_call" or one.payload is None:
        return False
    body = decode_body(one.payload)
    try:
        return isinstance(body, ToolCall) and task in _strings(msgspec.json.decode(body.arguments))
    except msgspec.DecodeError:
        return False


def _strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for one in value.values():
                yield from _strings(one)
        case list():
            for one in value:
                yield from _strings(one)
        case _:
            pass

"""The intake: a family comes out of a file into the store, whole or not at all.

Events come first, in short transactions, into segments that no head reaches and that are pinned. Then everything that
points to them comes in one transaction, with the record that says where it is from. Whoever is killed before that has
changed nothing that anybody sees. Tests: tests/store/test_import.py, forkpoint.testing.conformance.evidence.copies.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

import anyio.to_thread
from msgspec import UNSET, Struct

from forkpoint.errors import ForkpointError, ImportRefused
from forkpoint.history import records
from forkpoint.history.digests import Link, flaw
from forkpoint.history.exports.lines import (
    Chain,
    ConversationLine,
    EventLine,
    Header,
    Line,
    Place,
    RecordLine,
    Segment,
    Spent,
    StepLine,
    TurnLine,
)
from forkpoint.history.records import ErasedRun, Erasure, Fact, Import, Left
from forkpoint.ids import id_from_bytes, id_to_bytes, new_id
from forkpoint.store.tables.budgets import limits
from forkpoint.store.tables.budgets.evidence import counted, recount
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.erasure.copied_events import insert_imported_copies
from forkpoint.store.tables.erasure.repetition import repeat
from forkpoint.store.tables.evidence import records as told
from forkpoint.store.tables.operations import conversations, garbage, holds
from forkpoint.store.tables.operations.history import read_path
from forkpoint.store.tables.rows import Scope, blob, unpack
from forkpoint.store.tables.transfer import pins
from forkpoint.store.tables.transfer.comparison import Comparison, compare
from forkpoint.store.tables.view import View
from forkpoint.store.values import FamilyImported

T = TypeVar("T")

BATCH_BYTES = 1 << 20
BATCH = 500
_TRIES = 3

Lines: TypeAlias = Callable[[], Iterable[Line]]
"""Reads the lines of a family, each time from the first."""

_Row: TypeAlias = tuple[int, bytes, str, str | None, bytes | None, bytes, bytes]


async def import_family(view: View, family: str, lines: Lines, header: Header, *, rename: bool) -> FamilyImported:
    """Brings a family of a checked file into the store. Raises `ImportRefused` or `AlreadyExists`."""
    key = id_to_bytes(family)
    for left in reversed(range(_TRIES)):
        found = await view.read(lambda db, scope: compare(db, scope, key, lines(), rename=rename))
        if not found.changes:
            return FamilyImported(family)
        view.opened.check_writable()
        await view.opened.enrol()
        await pins.clear_abandoned(view)
        intake = _Intake(view, key, lines, header, found, rename)
        try:
            done = await intake.run()
            if found.erases:
                await view.clean()
            return done
        except _Changed:
            if not left:
                raise ImportRefused(f"family {family}", "others kept changing it meanwhile") from None
    raise AssertionError("unreachable")


class _Changed(Exception):
    """What the store has of the family is no longer what it was when it was compared with the file."""


class _Batch(Struct):
    """Lines of events that are written in one transaction."""

    lines: list[Segment | EventLine]
    size: int = 0
    number: int = 0  # the segment of the first event


class _Intake:
    def __init__(
        self, view: View, family: bytes, lines: Lines, header: Header, found: Comparison, rename: bool
    ) -> None:
        self._view, self._family, self._lines, self._header = view, family, lines, header
        self._found, self._rename = found, rename
        self._id = id_to_bytes(new_id())
        self._segments: dict[int, int] = {}  # the segments that were opened here, by their number in the file

    async def run(self) -> FamilyImported:
        await self._write(partial(pins.begin, id=self._id, family=self._family), pins.exists)
        try:
            batches = self._batches()
            while (batch := await anyio.to_thread.run_sync(next, batches, None)) is not None:
                opened = await self._write(partial(self._insert, batch=batch), _never, batch.size)
                self._segments |= opened
            return await self._write(self._finish, _is_done, exclusive=True)
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(ForkpointError):  # else the next import or collection does it
                await pins.clear(self._view, self._id)
            raise

    async def _write(
        self,
        operation: Callable[[Database, Scope], T],
        landed: Callable[[Database, Scope, bytes], bool],
        size: int = 0,
        *,
        exclusive: bool = False,
    ) -> T:
        return await self._view.write(
            "import",
            id_from_bytes(self._id),
            operation,
            landed=lambda db, scope: landed(db, scope, self._id),
            size=size,
            exclusive=exclusive,
        )

    # Events.

    def _batches(self) -> Iterator[_Batch]:
        """The events that the store has not, a batch at a time."""
        batch = _Batch([])
        number, opening = 0, None
        for line in self._lines():
            if isinstance(line, Segment):
                number, opening = line.segment, line
            elif isinstance(line, EventLine):
                known = self._found.known.get(number)
                if known is not None and line.ordinal <= known.upto:
                    continue
                if not batch.lines:
                    batch.number = number
                if opening is not None:
                    batch.lines.append(opening)
                    opening = None
                batch.lines.append(line)
                batch.size += len(line.envelope) + len(line.payload or "") + 200
                if batch.size > BATCH_BYTES or len(batch.lines) >= BATCH:
                    yield batch
                    batch = _Batch([])
            elif isinstance(line, ConversationLine | TurnLine):
                break
        if batch.lines:
            yield batch

    def _insert(self, db: Database, scope: Scope, batch: _Batch) -> dict[int, int]:
        """Writes a batch. Returns the segments that it opened."""
        self._go_on(db, scope)
        opened: dict[int, int] = {}
        segment = self._segments.get(batch.number, 0)
        expected: bytes | None = None  # what the first event of a segment follows
        rows: list[_Row] = []
        for line in batch.lines:
            if isinstance(line, Segment):
                self._write_events(db, rows)
                rows.clear()
                segment, expected = self._open(db, scope, line, opened)
                opened[line.segment] = segment
                continue
            link = Link(
                id_to_bytes(line.turn),
                line.envelope,
                line.payload,
                None if line.salt is None else bytes.fromhex(line.salt),
                bytes.fromhex(line.payload_digest),
                bytes.fromhex(line.chain_digest),
            )
            if expected is not None and flaw(expected, link):
                raise ImportRefused(f"turn {line.turn}", "what comes before it is not the same here")
            expected = None
            row = (link.turn, link.envelope, link.payload, link.salt, link.payload_digest, link.chain_digest)
            rows.append((segment << 32 | line.ordinal, *row))
        self._write_events(db, rows)
        return opened

    def _write_events(self, db: Database, rows: list[_Row]) -> None:
        db.run_many("insert_event", rows)
        insert_imported_copies(db, ((key, envelope, payload) for key, _, envelope, payload, *_ in rows))

    def _open(self, db: Database, scope: Scope, line: Segment, opened: dict[int, int]) -> tuple[int, bytes]:
        known = self._found.known.get(line.segment)
        base = self._key(db, scope, line.base, opened) if known is None else known.key
        digest = bytes.fromhex(line.base_digest)
        if base is not None:
            event = db.run("event_at", {"id": base}).fetchone()
            if event is None:
                raise _Changed
            digest = event["chain_digest"]
        parameters = {"tenant": scope.tenant, "family": self._family, "base": base, "base_digest": digest}
        segment = db.insert("open_imported_segment", parameters)
        db.run("pin_segment", {"segment": segment, "import": self._id})
        return segment, digest

    def _key(self, db: Database, scope: Scope, place: Place | None, opened: dict[int, int]) -> int | None:
        """The key of an event of the file in this store."""
        if place is None:
            return None
        number, ordinal = place
        known = self._found.known.get(number)
        if number == 0:
            return ordinal
        if known is not None and ordinal <= known.upto:
            at = read_path(db, scope, self._family, unpack(known.key)).at(ordinal)
            if at is None:
                raise _Changed
            return at.segment << 32 | at.ordinal
        segment = opened.get(number) or self._segments.get(number)
        return ordinal if segment is None else segment << 32 | ordinal

    def _go_on(self, db: Database, scope: Scope) -> None:
        if not db.run("touch_import", {"id": self._id, "now": scope.now}).rowcount:
            raise _Changed

    # Everything else, in one transaction.

    def _finish(self, db: Database, scope: Scope) -> FamilyImported:
        self._go_on(db, scope)
        if compare(db, scope, self._family, self._lines(), rename=self._rename) != self._found:
            raise _Changed
        done = _Finish(db, scope, self._family, self._found, partial(self._key, db, scope, opened={}))
        for line in self._lines():
            done.take(line)
        done.tell(self._header, id_from_bytes(self._id))
        done.erase()
        done.recount()
        db.run("unpin_segments", {"import": self._id})
        db.run("end_import", {"id": self._id})
        return done.result()


class _Finish:
    """Writes all that points to the events of an import."""

    def __init__(
        self, db: Database, scope: Scope, family: bytes, found: Comparison, key: Callable[[Place | None], int | None]
    ) -> None:
        self._db, self._scope, self._family, self._found, self._key = db, scope, family, found, key
        self._told: ConversationLine | None = None
        self._chain: Chain | None = None
        self._writes_records = self._writes_steps = False
        self._turn = b""
        self._events = 0
        self._left: list[Left] = []
        self._held = {one.id for one in holds.holds_of(db, scope, family)}  # before anything came
        self._budgeted = {change.conversation for change in limits.on_record(db, scope, family).values()}  # likewise
        self._counted = counted(db, scope, family)  # likewise
        self._number = 0  # of the last record that was read
        self._numbers = 0
        self._erasures: list[Erasure] = []  # that are new here
        self._erased = 0
        self._parted: dict[int, ErasedRun] = {}  # by the segment's number in the file

    def take(self, line: Line) -> None:
        match line:
            case ConversationLine():
                self._told = line
            case Chain():
                told, self._told = self._told, None
                self._begin_chain(line, told)
            case RecordLine():
                self._number = line.number
                if self._writes_records and self._chain is not None:
                    self._record(self._chain, line)
            case TurnLine():
                self._take_turn(line)
            case StepLine() if self._writes_steps:
                salt = None if line.salt is None else bytes.fromhex(line.salt)
                digest = bytes.fromhex(line.payload_digest)
                row = (self._turn, line.number, line.envelope, line.payload, salt, digest)
                self._db.run("insert_step", row)
            case Segment():
                self._numbers = line.segment
            case EventLine():
                self._take_event(line)
            case Spent() if self._found.steps.get(line.conversation) != "same":
                parameters = {
                    "tenant": self._scope.tenant,
                    "family": self._family,
                    "conversation": id_to_bytes(line.conversation),
                    "usage": line.usage,
                    "deleted": line.deleted,
                    "id": blob(line.id),
                }
                self._db.run("import_ledger", parameters)
            case _:
                pass

    def _take_event(self, line: EventLine) -> None:
        known = self._found.known.get(self._numbers)
        if known is not None and line.ordinal <= known.upto:
            return
        self._events += 1
        if known is not None and line.payload is None:  # of a run, perhaps, that began in what is here
            digest = bytes.fromhex(line.chain_digest)
            run = self._parted.get(self._numbers, ErasedRun(digest, digest, 0))
            if line.ordinal == known.upto + run.events + 1:
                self._parted[self._numbers] = ErasedRun(run.first, digest, run.events + 1)

    def result(self) -> FamilyImported:
        by = {step: tuple(id for id, done in self._found.steps.items() if done == step) for step in ("new", "grown")}
        renamed = tuple(self._found.names.items())
        return FamilyImported(id_from_bytes(self._family), by["new"], by["grown"], self._events, renamed, self._erased)

    def tell(self, header: Header, id: str) -> None:
        """Adds the record that says where all of it is from, and those of new names."""
        for conversation, name in self._found.names.items():
            conversations.rename(self._db, self._scope, conversation, name)
        changed = sum(step != "same" for step in self._found.steps.values())
        left = [one for one in self._left if not conversations.exists(self._db, self._scope, one.conversation)]
        came = Import(id, header.store, header.tenant, header.time, changed, tuple(left), tuple(self._parted.values()))
        fact = Fact(kind="imported", time=self._scope.now, by=self._scope.by, imported=came)
        told.tell_in(self._db, self._scope, records.family_chain(self._family), fact)

    def erase(self) -> None:
        """Erases here what was erased in the other store since it was here."""
        if not self._erasures:
            return
        told = set(map(id_to_bytes, self._found.steps))
        came = {id_to_bytes(id) for id, step in self._found.steps.items() if step != "same"}
        new = {id_to_bytes(id) for id, step in self._found.steps.items() if step == "new"}
        members = self._db.run("family_conversations", {"tenant": self._scope.tenant, "family": self._family})
        was_here = self._found.known or any(row["id"] not in new for row in members)
        if was_here:
            self._erased = repeat(self._db, self._scope, self._family, self._erasures, told, came)

    def _begin_chain(self, line: Chain, told: ConversationLine | None) -> None:
        self._chain = line
        key = bytes.fromhex(line.chain)
        if key[:1] == b"f":
            self._writes_records = self._found.family_grows
            if self._found.family_grows:
                parameters = {"chain": key, "records": line.records, "digest": bytes.fromhex(line.digest)}
                self._db.run("import_chain", parameters | {"tenant": self._scope.tenant})
            return
        # Of a conversation that is not in the file, all is taken that is missing: its turns are on the path of another.
        self._writes_records = told is None or self._found.steps[told.id] != "same"
        is_here = conversations.exists(self._db, self._scope, id_from_bytes(key[1:]))
        if told is None and (is_here or key[1:] in self._found.removed):
            self._writes_records = False  # all of them are here, or nothing but their digests is to be
        if told is not None and self._writes_records:
            self._conversation(line, told)
        if told is None and line.first is not None and self._writes_records:
            first, digest = bytes.fromhex(line.first), bytes.fromhex(line.digest)
            self._left.append(Left(id_from_bytes(key[1:]), line.follows, first, line.records, digest))

    def _conversation(self, line: Chain, told: ConversationLine) -> None:
        birth = records.decode_birth(told.born)
        parameters = {name: getattr(told, name) for name in told.__struct_fields__}
        parameters |= {
            "tenant": self._scope.tenant,
            "id": id_to_bytes(told.id),
            "family": self._family,
            "name": f"{told.id}-renamed" if told.id in self._found.names else told.name,
            "head": self._key(told.head),
            "head_digest": bytes.fromhex(told.head_digest),
            "lineage_at": self._key(told.lineage_at),
            "born_salt": None if told.born_salt is None else bytes.fromhex(told.born_salt),
            "first_digest": records.first_digest(
                bytes.fromhex(line.source or records.NO_SOURCE.hex()), birth.records or 0, told.born
            ),
            "record_digest": bytes.fromhex(line.digest),
            "records": line.records,
            "erases": self._found.erases,
        }
        for name in ("head_turn", "head_state_of", "open_turn", "lineage_source", "lineage_turn"):
            parameters[name] = blob(getattr(told, name))
        self._db.run("import_conversation", parameters)

    def _record(self, chain: Chain, line: RecordLine) -> None:
        parameters = {
            "tenant": self._scope.tenant,
            "chain": bytes.fromhex(chain.chain),
            "number": line.number,
            "kind": line.kind,
            "subject": blob(line.subject),
            "body": line.body,
            "salt": None if line.salt is None else bytes.fromhex(line.salt),
            "digest": bytes.fromhex(line.digest),
            "erases": self._found.erases,
        }
        self._db.run("import_record", parameters)
        is_new = line.number > self._found.chains.get(chain.chain, 0)
        if is_new and line.kind in ("held", "released", "erased", "budget") and line.body is not None:
            fact = records.decode_fact(line.body)
            self._check_release(fact)
            self._check_budget(fact)
            holds.adopt(self._db, self._scope, self._family, fact)
            limits.adopt(self._db, self._scope, self._family, fact)
            self._erasures += [] if fact.erased is None else [fact.erased]

    def _check_release(self, fact: Fact) -> None:
        """Refuses to end a hold that stands here: that takes somebody who may release it here."""
        if fact.kind == "released" and fact.hold is not None and fact.hold.id in self._held:
            why = f"hold {fact.hold.id} was released there and stands here; release it here first"
            raise ImportRefused(f"family {id_from_bytes(self._family)}", why)

    def _check_budget(self, fact: Fact) -> None:
        """Refuses to change a budget that stands here: that takes somebody who may do so here."""
        if fact.budget is not None and fact.budget.conversation in self._budgeted:
            of = "the family" if fact.budget.conversation is None else f"conversation {fact.budget.conversation}"
            why = f"the budget of {of} was changed there and stands here; remove it here first"
            raise ImportRefused(f"family {id_from_bytes(self._family)}", why)

    def recount(self) -> None:
        """Counts what came in the budgets that the family has."""
        recount(self._db, self._scope, self._family, self._counted)

    def _take_turn(self, line: TurnLine) -> None:
        self._turn = id_to_bytes(line.id)
        step = self._found.steps.get(line.conversation)
        is_here = self._db.run("turn_row", {"id": self._turn}).fetchone() is not None
        self._writes_steps = step == "grown" or (step != "same" and not is_here)
        if not self._writes_steps:
            return
        if is_here:
            self._db.run("delete_steps", {"turn": self._turn})
        parameters = {name: getattr(line, name) for name in line.__struct_fields__}
        parameters |= {
            "tenant": self._scope.tenant,
            "id": self._turn,
            "conversation": id_to_bytes(line.conversation),
            "base": self._key(line.base),
            "end": self._key(line.end),
            "token": records.new_salt(),
            "record": self._number if line.outcome == "committed" else None,
            "state_of": blob(line.state_of),
            "retry_of": blob(line.retry_of),
            "steps_digest": None if line.steps_digest is None else bytes.fromhex(line.steps_digest),
            "steered": None if line.steered is UNSET else line.steered,
        }
        self._db.run("import_turn", parameters)
        if line.outcome in ("running", "awaiting_approval") and line.base is not None and line.base[0]:
            head = conversations.row_of(self._db, self._scope, line.conversation)["head"]
            if head != parameters["base"]:
                garbage.pin(self._db, self._turn, parameters["base"])


def _never(db: Database, scope: Scope, id: bytes) -> bool:
    return False


def _is_done(db: Database, scope: Scope, id: bytes) -> bool:
    return not pins.exists(db, scope, id)

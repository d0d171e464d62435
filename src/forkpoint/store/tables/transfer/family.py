"""A family as the lines of an export, read from one snapshot. Tests: forkpoint.testing.conformance.evidence.copies."""

from collections.abc import Collection, Iterable, Iterator

from msgspec import UNSET, Struct

from forkpoint.errors import NotFound
from forkpoint.history import records
from forkpoint.history.exports.lines import (
    Chain,
    ConversationLine,
    EventLine,
    Family,
    FamilyEnd,
    Line,
    Place,
    RecordLine,
    Segment,
    Spent,
    StepLine,
    TurnLine,
)
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import ORDINALS, Scope, text

_PAGE = 500


def family_of(db: Database, scope: Scope, conversation: bytes) -> bytes:
    """The family of a conversation. Raises `NotFound`."""
    row = db.run("read_conversation", {"tenant": scope.tenant, "id": conversation}).fetchone()
    if row is None:
        raise NotFound("conversation", id_from_bytes(conversation))
    return bytes(row["family"])


def with_dependents(db: Database, scope: Scope, conversation: bytes) -> set[bytes]:
    """A conversation with its sub-agents and sides: what is deleted with it is exported with it."""
    family = family_of(db, scope, conversation)
    parameters = {"tenant": scope.tenant, "id": conversation, "family": family}
    return {row["id"] for row in db.run("with_dependents", parameters)}


class _Counts(Struct):
    conversations: int = 0
    segments: int = 0
    events: int = 0
    turns: int = 0
    records: int = 0


def family_lines(db: Database, scope: Scope, family: bytes, chosen: Collection[bytes] | None) -> Iterator[Line]:
    """All lines of a family, or of the chosen conversations of it with what their chains go on from."""
    reading = _Reading(db, scope, family, chosen)
    counts = _Counts()
    yield Family(family=id_from_bytes(family), whole=chosen is None)
    for line in reading.lines():
        match line:
            case ConversationLine():
                counts.conversations += 1
            case Segment():
                counts.segments += 1
            case EventLine():
                counts.events += 1
            case TurnLine():
                counts.turns += 1
            case RecordLine():
                counts.records += 1
        yield line
    yield FamilyEnd(
        family=id_from_bytes(family),
        conversations=counts.conversations,
        segments=counts.segments,
        events=counts.events,
        turns=counts.turns,
        records=counts.records,
    )


class _Reading:
    """One export of a family: what is in it, found before the first line is written."""

    def __init__(self, db: Database, scope: Scope, family: bytes, chosen: Collection[bytes] | None) -> None:
        self._db, self._scope, self._family = db, scope, family
        self._whole = chosen is None
        rows = db.run("family_conversations", self._own(family=family)).fetchall()
        self._rows = [row for row in rows if chosen is None or row["id"] in chosen]
        if not self._rows:
            raise NotFound("family", id_from_bytes(family))
        self._ids = {row["id"] for row in self._rows}
        self._reach: dict[int, int] = {}  # how far each segment is reached
        self._bases: dict[int, tuple[int | None, bytes]] = {}
        self._find_segments()
        self._numbers = {segment: number for number, segment in enumerate(sorted(self._bases), 1)}
        self._chains = self._find_chains()

    def _own(self, **more: object) -> dict[str, object]:
        return {"tenant": self._scope.tenant} | more

    def lines(self) -> Iterator[Line]:
        family = records.family_chain(self._family)
        end = self._db.run("end_of_chain", self._own(chain=family)).fetchone()
        if end is not None:
            yield Chain(chain=family.hex(), records=end["records"], digest=end["digest"].hex())
            yield from self._records(family, end["records"], bodies=True)
        for segment in sorted(self._bases):
            yield from self._segment(segment)
        for row in self._rows:
            chain = records.conversation_chain(row["id"])
            yield self._conversation(row)
            source = self._source_digest(row)
            yield Chain(
                chain=chain.hex(),
                records=row["records"],
                digest=row["record_digest"].hex(),
                source=None if source is None else source.hex(),
            )
            yield from self._records(chain, row["records"], bodies=True)
        for id, upto in sorted(self._chains.items()):
            chain = records.conversation_chain(id)
            last = self._db.run("record_at", self._own(chain=chain, number=upto)).fetchone()
            follows, first = self._beginning(id)
            digest = first if last is None else last["digest"]
            if digest is not None:
                yield Chain(chain=chain.hex(), records=upto, digest=digest.hex(), follows=follows, first=_hex(first))
                yield from self._records(chain, upto, bodies=False)
        for turn in self._turns_without_a_record():
            yield from self._turn(turn)
        for row in self._db.run("ledger_rows", self._own(family=self._family)).fetchall():
            if self._whole or row["deleted"] or row["conversation"] in self._ids:
                yield Spent(
                    id=text(row["id"]),
                    conversation=id_from_bytes(row["conversation"]),
                    usage=row["usage"],
                    deleted=row["deleted"],
                )

    # What is in it.

    def _find_segments(self) -> None:
        for row in self._rows:
            self._reaches(row["head"])
            if row["open_turn"] is not None:
                turn = self._db.run("turn_row", {"id": row["open_turn"]}).fetchone()
                if turn is not None and (self._whole or turn["base"] == row["head"]):
                    self._reaches(turn["base"])
        for row in self._db.run("segments_down", self._own(family=self._family)).fetchall():
            if row["id"] in self._reach:
                self._bases[row["id"]] = (row["base"], row["base_digest"])
                self._reaches(row["base"])

    def _reaches(self, key: int | None) -> None:
        if key is not None:
            self._reach[key >> 32] = max(self._reach.get(key >> 32, 0), key & ORDINALS)

    def _find_chains(self) -> dict[bytes, int]:
        """Whose chains are told though the conversation is not in the file, and up to which record."""
        chains: dict[bytes, int] = {}

        def need(conversation: bytes, number: int | None) -> None:
            if conversation not in self._ids:
                chains[conversation] = max(chains.get(conversation, 0), number or 0)

        for segment, upto in self._reach.items():
            if segment not in self._bases:
                continue
            stretch = {"first": segment << 32, "last": segment << 32 | upto}
            for row in self._db.run("turn_writers", self._own(**stretch)):
                need(row["conversation"], row["number"])
            event = self._db.run("event_at", {"id": segment << 32 | upto}).fetchone()
            turn = None if event is None else self._db.run("turn_row", {"id": event["turn"]}).fetchone()
            if turn is not None:  # perhaps only a part of it is here
                need(turn["conversation"], self._last_about(turn))
        for row in self._rows:
            birth = records.decode_birth(row["born"])
            if birth.records is not None and birth.source is not None:
                need(id_to_bytes(birth.source), birth.records)
        for gone in (*self._removed(), *(id_to_bytes(left.conversation) for left in self._left())):
            end = self._db.run("record_end", self._own(chain=records.conversation_chain(gone))).fetchone()
            need(gone, None if end is None else end["number"])
        return chains

    def _removed(self) -> Iterable[bytes]:
        chain = records.family_chain(self._family)
        return [row["subject"] for row in self._db.run("removals_of_family", self._own(chain=chain))]

    def _left(self) -> Iterable[records.Left]:
        chain = records.family_chain(self._family)
        bodies = self._db.run("imports_of_family", self._own(chain=chain)).fetchall()
        facts = [records.decode_fact(row["body"]) for row in bodies]
        return [left for fact in facts if fact.imported is not None for left in fact.imported.left]

    def _beginning(self, id: bytes) -> tuple[int, bytes | None]:
        """Where the chain of a conversation begins that is not in the file and was not deleted."""
        row = self._db.run("read_conversation", self._own(id=id)).fetchone()
        if row is not None:
            return records.decode_birth(row["born"]).follows, row["first_digest"]
        found = [left for left in self._left() if id_to_bytes(left.conversation) == id]
        return (found[-1].follows, found[-1].first) if found else (0, None)

    def _last_about(self, turn: Row) -> int | None:
        """The number of the last record about a turn, in the chain of its conversation."""
        if turn["record"] is not None:
            return int(turn["record"])
        row = self._db.run("last_record_about", self._own(subject=turn["id"])).fetchone()
        number: int | None = row["number"]
        return number

    def _is_told(self, turn: Row) -> bool:
        """Whether a turn belongs into the file: at least one of its events does, or it is a try of a conversation."""
        if turn["end"] is None:
            return turn["conversation"] in self._ids
        segment = turn["end"] >> 32
        return segment in self._bases and (turn["base"] or 0) & ORDINALS < self._reach[segment]

    # Lines.

    def _place(self, key: int | None) -> Place | None:
        return None if key is None else (self._numbers.get(key >> 32, 0), key & ORDINALS)

    def _inside(self, key: int | None) -> Place | None:
        """The same; segment 0 if there is no such event in the file."""
        if key is None:
            return None
        is_there = (key & ORDINALS) <= self._reach.get(key >> 32, 0) and key >> 32 in self._bases
        return (self._numbers[key >> 32] if is_there else 0, key & ORDINALS)

    def _segment(self, segment: int) -> Iterator[Line]:
        base, digest = self._bases[segment]
        yield Segment(segment=self._numbers[segment], base=self._place(base), base_digest=digest.hex())
        first, last = segment << 32, segment << 32 | self._reach[segment]
        while first <= last:
            rows = self._db.run("links_between", {"first": first, "last": last, "limit": _PAGE}).fetchall()
            for row in rows:
                yield EventLine(
                    ordinal=row["id"] & ORDINALS,
                    turn=id_from_bytes(row["turn"]),
                    envelope=row["envelope"],
                    payload=row["payload"],
                    salt=_hex(row["salt"]),
                    payload_digest=row["payload_digest"].hex(),
                    chain_digest=row["chain_digest"].hex(),
                )
            if len(rows) < _PAGE:
                return
            first = rows[-1]["id"] + 1

    def _conversation(self, row: Row) -> ConversationLine:
        return ConversationLine(
            id=id_from_bytes(row["id"]),
            name=row["name"],
            revision=row["revision"],
            head=self._place(row["head"]),
            head_digest=row["head_digest"].hex(),
            head_turn=text(row["head_turn"]),
            head_totals=row["head_totals"],
            head_state_of=text(row["head_state_of"]),
            head_state=row["head_state"],
            head_open_calls=row["head_open_calls"],
            open_turn=text(row["open_turn"]),
            settings=row["settings"],
            cache=row["cache"],
            approvals=row["approvals"],
            lineage_kind=row["lineage_kind"],
            lineage_source=text(row["lineage_source"]),
            lineage_at=self._inside(row["lineage_at"]),
            lineage_turn=text(row["lineage_turn"]),
            lineage_call=row["lineage_call"],
            own_from=row["own_from"],
            inherited=row["inherited"],
            carries_metrics=bool(row["carries_metrics"]),
            title=row["title"],
            tags=row["tags"],
            draft=bool(row["draft"]),
            created=row["created"],
            updated=row["updated"],
            used=row["used"],
            born=row["born"],
            born_salt=_hex(row["born_salt"]),
        )

    def _records(self, chain: bytes, upto: int, *, bodies: bool) -> Iterator[Line]:
        """The records of a chain, each turn after the last record about it.

        Without ``bodies`` the conversation is not in the file: then only records about turns that are keep theirs.
        """
        after = 0
        while after < upto:
            page = self._own(chain=chain, after=after, upto=upto, limit=_PAGE)
            rows = self._db.run("page_of_chain", page).fetchall()
            for row in rows:
                turn = None
                if row["kind"] in records.ABOUT_A_TURN:
                    turn = self._db.run("turn_row", {"id": row["subject"]}).fetchone()
                    turn = turn if turn is not None and self._is_told(turn) else None
                has_body = bodies or turn is not None
                yield RecordLine(
                    number=row["number"],
                    kind=row["kind"],
                    subject=text(row["subject"]),
                    body=row["body"] if has_body else None,
                    salt=_hex(row["salt"]) if has_body else None,
                    digest=row["digest"].hex(),
                )
                if turn is not None and self._last_about(turn) == row["number"]:
                    yield from self._turn(turn)
            if len(rows) < _PAGE:
                return
            after = rows[-1]["number"]

    def _turn(self, row: Row) -> Iterator[Line]:
        yield TurnLine(
            id=id_from_bytes(row["id"]),
            conversation=id_from_bytes(row["conversation"]),
            kind=row["kind"],
            outcome=row["outcome"],
            base=self._inside(row["base"]),
            end=self._place(row["end"]),
            staged=row["staged"],
            input=row["input"],
            usage=row["usage"],
            totals=row["totals"],
            state_of=text(row["state_of"]),
            state=row["state"],
            open_calls=row["open_calls"],
            error=row["error"],
            retry_of=text(row["retry_of"]),
            started=row["started"],
            ended=row["ended"],
            by=row["by"],
            steps_digest=_hex(row["steps_digest"]),
            expired=row["expired"],
            steered=UNSET if row["steered"] is None else row["steered"],
        )
        for step in self._db.run("steps_with_digests", {"turn": row["id"]}).fetchall():
            yield StepLine(
                number=step["number"],
                envelope=step["envelope"],
                payload=step["payload"],
                salt=_hex(step["salt"]),
                payload_digest=step["payload_digest"].hex(),
            )

    def _turns_without_a_record(self) -> Iterator[Row]:
        """Turns that have only begun, and turns of conversations that were deleted before there were records."""
        for segment in sorted(self._bases):
            stretch = {"first": segment << 32, "last": segment << 32 | ORDINALS}
            for row in self._db.run("turns_ending", stretch):
                if self._is_told(row) and self._last_about(row) is None:
                    yield row
        for row in self._rows:
            tries = self._own(conversation=row["id"], open_turn=row["open_turn"])
            for turn in self._db.run("turns_without_end", tries).fetchall():
                if self._last_about(turn) is None:
                    yield turn

    def _source_digest(self, row: Row) -> bytes | None:
        """The digest that a fork's chain goes on from; None if it goes on from no other."""
        birth = records.decode_birth(row["born"])
        if birth.records is None:
            return None
        for digest in self._digests_of_source(birth):
            if records.first_digest(digest, birth.records, row["born"]) == row["first_digest"]:
                return digest
        return None

    def _digests_of_source(self, birth: records.Birth) -> Iterator[bytes]:
        """The digests that the source may have stood at when it had so many records."""
        if birth.source is None or birth.records is None:
            return
        source = id_to_bytes(birth.source)
        chain = records.conversation_chain(source)
        record = self._db.run("record_at", self._own(chain=chain, number=birth.records)).fetchone()
        if record is not None:
            yield record["digest"]
        of_source = self._db.run("read_conversation", self._own(id=source)).fetchone()
        if of_source is not None:
            yield of_source["first_digest"]
        for removal in self._db.run(
            "removals_of_family", self._own(chain=records.family_chain(self._family))
        ).fetchall():
            removed = None if removal["body"] is None else records.decode_fact(removal["body"]).removed
            if removed is not None and removed.conversation == birth.source:
                yield removed.first
        for left in self._left():
            if left.conversation == birth.source:
                yield left.first


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()

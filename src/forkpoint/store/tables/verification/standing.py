"""The standing of conversations: whether each row says what its birth and its records add up to.
Tests: tests/store/test_verify.py."""

from collections.abc import Iterator
from itertools import groupby

import msgspec

from forkpoint.errors import ForkpointError, StoreDamaged
from forkpoint.events import Usage
from forkpoint.history.digests import root_digest
from forkpoint.history.records import (
    ABOUT_A_TURN,
    NO_SOURCE,
    Birth,
    Fact,
    Point,
    Standing,
    conversation_chain,
    decode_birth,
    first_digest,
    salted,
)
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.operations.history import head_at, read_path
from forkpoint.store.tables.rows import ORDINALS, Scope, head_of, load_usage, unpack
from forkpoint.store.tables.verification.absences import Absences, Life
from forkpoint.store.tables.verification.chains import ChainWalk, owner_of
from forkpoint.store.tables.verification.findings import Findings
from forkpoint.store.tables.verification.ledger import check_charge
from forkpoint.store.tables.verification.part_cost import part_cost
from forkpoint.store.tables.verification.turns import COMMITTED, check_turn

EVERY_RECORD = (1 << 63) - 1
TEXTS = ("settings", "cache", "approvals", "name", "title", "tags")
PLAIN = ("head", "revision", "own_from", "inherited", "draft")
WORDS = {
    "head": "its head",
    "own_from": "the place from which on it pays",
    "inherited": "what it inherited",
    "draft": "whether it is a draft",
    "cache": "its cache identity",
    "approvals": "its standing approvals",
}


class Fold:
    """What a birth and the records after it add up to."""

    def __init__(self, birth: Birth, salt: bytes | None, *, whole: bool = True) -> None:
        """If it is not ``whole``, only what the records say that are added counts: they are not all that there are."""
        self.family = id_to_bytes(birth.family)
        self.whole = whole
        self.plain: dict[str, object] = {"revision": 0} if whole else {}
        self.texts: dict[str, tuple[bytes, bytes | None]] = {}  # the digest of each, and its salt
        self.totals: Usage | None = None  # what the path has cost; None: the records do not say it
        if whole:
            self._state(birth, salt)
            if _begins_with_what_it_inherits(birth):
                self.totals = birth.inherited

    def add(self, fact: Fact, salt: bytes | None) -> None:
        before = self.plain.get("head")
        if fact.kind in COMMITTED and fact.turn is not None:
            is_here = fact.turn.base == before or (fact.turn.base is None and _is_root(before))
            self.totals = self.totals + fact.turn.usage if is_here and self.totals is not None else None
            self.plain |= {"head": fact.turn.end, "draft": False}
        elif fact.head is not None and fact.head != before:
            self.totals = fact.totals
        self._state(fact, salt)

    def _state(self, standing: Standing, salt: bytes | None) -> None:
        for name in PLAIN:
            if (value := getattr(standing, name)) is not None:
                self.plain[name] = value
        for name in TEXTS:
            if (digest := getattr(standing, name)) is not None:
                self.texts[name] = digest, salt


class Conversations:
    """Checks conversations: their chains, the rows that follow from these, and the turns that they tell of."""

    def __init__(self, db: Database, scope: Scope, findings: Findings, absences: Absences) -> None:
        self._db = db
        self._scope = scope
        self._findings = findings
        self._absences = absences

    def check_all(self) -> list[Row]:
        """Checks all of the tenant's, and returns their rows."""
        rows = self._db.run("conversations_to_verify", {"tenant": self._scope.tenant}).fetchall()
        waiting = {conversation_chain(row["id"]): row for row in rows}
        for chain, group in groupby(self._records(b"c", b"d"), key=lambda row: row["chain"]):
            self._check(chain, waiting.pop(chain, None), group)
        for chain, row in waiting.items():  # those without a record
            self._check(chain, row, iter(()))
        gone = {id for id, removed in self._absences.removed.items() if any(one.removal.records for one in removed)}
        self._find_lost_chains(gone)
        return rows

    def check_one(self, row: Row) -> None:
        """Checks one, and the chains that its own goes on from, up to where it left them."""
        chain = conversation_chain(row["id"])
        self._check(chain, row, self._records(chain, chain + b"\0"))
        birth, checked = _birth(row), {row["id"]}
        while birth is not None and birth.source is not None and birth.records is not None:
            source = id_to_bytes(birth.source)
            if source in checked:
                return self._findings.found(owner_of(chain), "it would be forked from itself")
            checked.add(source)
            found = self._db.run("read_conversation", {"tenant": self._scope.tenant, "id": source}).fetchone()
            self._check(
                conversation_chain(source),
                found,
                self._records(conversation_chain(source), conversation_chain(source) + b"\0", birth.records),
                upto=birth.records,
            )
            birth = None if found is None else _birth(found)
        return None

    def check_from(self, chain: bytes, number: int) -> Row | None:
        """Checks a conversation by its records from a number on, and returns its row, unless that is gone."""
        of_it = {"tenant": self._scope.tenant, "id": chain[1:]}
        row: Row | None = self._db.run("read_conversation", of_it).fetchone()
        self._check(chain, row, self._records(chain, chain + b"\0", least=number), start=number)
        return row

    def _records(self, first: bytes, below: bytes, most: int = EVERY_RECORD, *, least: int = 1) -> Iterator[Row]:
        within = {"tenant": self._scope.tenant, "first": first, "below": below, "least": least, "most": most}
        return self._db.run("records_of_conversations", within)

    def _find_lost_chains(self, gone: set[bytes]) -> None:
        for id in gone:
            last = {"tenant": self._scope.tenant, "chain": conversation_chain(id), "number": 1}
            if self._db.run("digest_of_record", last).fetchone() is None:
                self._findings.found(f"conversation {id_from_bytes(id)}", "all its records are missing")

    def _check(
        self, chain: bytes, row: Row | None, records: Iterator[Row], *, start: int = 1, upto: int = EVERY_RECORD
    ) -> None:
        """Follows a chain through all conversations that have had its id; the last of them may be there still.

        ``start`` is the number of the first record. The record before it is not looked at, only its digest.
        """
        where, id = owner_of(chain), chain[1:]
        walk = ChainWalk(self._findings, where, chain, None)
        birth = None if row is None else self._check_birth(where, row)
        lives = self._absences.past_lives(id, None if birth is None else birth.follows)
        if row is not None and birth is not None:
            digests = (row["first_digest"], row["records"], row["record_digest"])
            lives.append(Life(birth.follows, *digests, removed=False))
        elif row is None and not lives:
            self._findings.found(where, "it is missing, and no record says that it was deleted")
        fold = None
        if row is not None and birth is not None:
            fold = Fold(birth, row["born_salt"], whole=birth.follows >= start - 1)
        walk.number = start - 1
        record = next(records, None)
        for life in lives:
            if 1 < start > life.records:
                continue
            is_begun = life.follows < start - 1
            if life.follows != walk.number and life.follows <= upto and not is_begun:
                self._findings.found(where, "its records do not begin where they should")
            walk.previous = self._digest(chain, start - 1) if is_begun else life.first
            open_turns: dict[bytes, tuple[Row, Fact]] = {}
            while record is not None and record["number"] <= life.records:
                self._follow(walk, record, life, None if life.removed else fold, open_turns)
                record = next(records, None)
            if upto >= life.records:
                for last, fact in open_turns.values():
                    self._check_turn(id, last, fact)
                if (walk.number, walk.previous) != (life.records, life.digest):
                    names = "the record of its deletion" if life.removed else "its row"
                    self._findings.found(where, f"its chain does not end with the record that {names} names")
        while record is not None:
            if lives:
                self._findings.found(walk.place(record), "nothing accounts for it")
            walk.follow(record)
            record = next(records, None)
        if row is not None and birth is not None and fold is not None and upto == EVERY_RECORD:
            self._check_row(where, row, birth, fold)

    def _follow(
        self, walk: ChainWalk, record: Row, life: Life, fold: Fold | None, open_turns: dict[bytes, tuple[Row, Fact]]
    ) -> None:
        """Checks one record, and what it says about a turn once no later record can say otherwise."""
        fact, place = walk.follow(record), walk.place(record)
        id = record["chain"][1:]
        if record["kind"] == "charged":
            told, family = (None, None) if fold is None else (fact, fold.family)
            check_charge(self._db, self._scope, self._findings, place, record, told, conversation=id, family=family)
        if record["body"] is None:
            if not life.removed or (record["kind"] in COMMITTED and record["turn"] is not None):
                self._findings.found(place, "what it said is missing, which nothing allows")
            return
        if fact is None:
            return
        if record["salt"] is None and _has_texts(fact) and not (life.removed or self._may_have_no_salt(record, id)):
            self._findings.found(place, "its salt is missing, which nothing allows")
        if fold is not None:
            fold.add(fact, record["salt"])
        if fact.turn is not None and record["subject"] is not None:
            open_turns.pop(record["subject"], None)
            if fact.kind in COMMITTED:
                self._check_turn(id, record, fact)
            else:
                open_turns[record["subject"]] = record, fact

    def _check_turn(self, conversation: bytes, record: Row, fact: Fact) -> None:
        if fact.turn is not None:
            check_turn(self._scope, self._findings, self._absences, conversation, record, fact.turn)

    def _may_have_no_salt(self, record: Row, conversation: bytes) -> bool:
        if record["kind"] not in ABOUT_A_TURN:
            return conversation in self._absences.erased_conversations
        collected = record["turn"] is None  # `check_turn` says if it must not be
        return collected or self._absences.lost_its_texts(record["subject"])

    def _check_birth(self, where: str, row: Row) -> Birth | None:
        """Checks that a conversation began as it says, and that its chain goes on from its source's."""
        if (birth := _birth(row)) is None:
            self._findings.found(where, "how it began cannot be read")
            return None
        if birth.records is None:
            before = {NO_SOURCE}
        else:
            before = self._digests_at(birth.source or "", birth.records)
            if not before:
                self._findings.found(where, "the conversation that it was forked from is missing without a record")
        firsts = {first_digest(digest, birth.records or 0, row["born"]) for digest in before}
        if before and row["first_digest"] not in firsts:
            self._findings.found(where, "how it began was changed, or its chain does not go on from its source's")
        erased = row["id"] in self._absences.erased_conversations
        if row["born_salt"] is None and not erased:
            self._findings.found(where, "the salt of its birth is missing, which nothing allows")
        return birth

    def _digest(self, chain: bytes, number: int) -> bytes | None:
        at = {"tenant": self._scope.tenant, "chain": chain, "number": number}
        row = self._db.run("digest_of_record", at).fetchone()
        return None if row is None else row["digest"]

    def _digests_at(self, source: str, number: int) -> set[bytes]:
        """The digests that the chain of a conversation had after so many records, in any of its lives."""
        try:
            id = id_to_bytes(source)
        except ValueError:
            return set()
        row = self._db.run("read_conversation", {"tenant": self._scope.tenant, "id": id}).fetchone()
        birth = None if row is None else _birth(row)
        lives = self._absences.past_lives(id, None if birth is None else birth.follows)
        if row is not None and birth is not None:
            lives.append(Life(birth.follows, row["first_digest"], row["records"], row["record_digest"], removed=False))
        if not lives:
            return set()
        found = {life.first for life in lives if life.follows == number}
        at = {"tenant": self._scope.tenant, "chain": conversation_chain(id), "number": number}
        record = self._db.run("digest_of_record", at).fetchone()
        return found if record is None else found | {record["digest"]}

    def _check_row(self, where: str, row: Row, birth: Birth, fold: Fold) -> None:
        self._check_lineage(where, row, birth)
        try:
            here: dict[str, object] = {
                "head": Point((row["head"] or 0) & ORDINALS, row["head_digest"]),
                "revision": row["revision"],
                "own_from": row["own_from"],
                "inherited": load_usage(row["inherited"]),
                "draft": bool(row["draft"]),
            }
        except msgspec.DecodeError as error:
            self._findings.found(where, f"what it inherited cannot be read: {error}")
            return
        for name, value in here.items():
            if fold.plain.get(name, None if fold.whole else value) != value:
                self._findings.found(where, f"{_words(name)} {_is(name)} not what its records say")
        if fold.totals is not None and load_usage(row["head_totals"]) != fold.totals:
            self._findings.found(where, "what its path has cost is not what its records say")
        for name in TEXTS if fold.whole else fold.texts:
            digest, salt = fold.texts.get(name, (b"", None))
            if salt is None:
                self._findings.found(where, f"no record vouches for {_words(name)} any more")
            elif salted(salt, row[name]) != digest:
                self._findings.found(where, f"{_words(name)} {_is(name)} not what its records say")
        for name in ("settings", "cache", "approvals", "tags"):
            try:
                msgspec.json.decode(row[name])
            except msgspec.DecodeError as error:
                self._findings.found(where, f"{_words(name)} cannot be read: {error}")

    def _check_lineage(self, where: str, row: Row, birth: Birth) -> None:
        imported = birth.tenant in self._absences.tenants.get(row["family"], ())  # the tenant of another store
        stated = (
            birth.id,
            row["tenant"] if imported else birth.tenant,
            birth.family,
            birth.kind,
            birth.source,
            birth.turn,
            birth.call,
        )
        row_says = (
            *(id_from_bytes(row["id"]), row["tenant"], id_from_bytes(row["family"]), row["lineage_kind"]),
            *(_name(row["lineage_source"]), _name(row["lineage_turn"]), row["lineage_call"]),
        )
        if stated != row_says or not self._is_at(birth.at, row["lineage_at"]):
            self._findings.found(where, "where it came from is not what its birth says")
        if (birth.created, birth.carries_metrics) != (row["created"], bool(row["carries_metrics"])):
            self._findings.found(where, "when it was made, or what it counts, is not what its birth says")

    def _is_at(self, point: Point | None, key: int | None) -> bool:
        """Whether a position is the point that a birth names. The event there may have been collected."""
        if key is None or point is None:
            return key is None and (point is None or point.ordinal == 0)
        event = self._db.run("event_at", {"id": key}).fetchone()
        return key & ORDINALS == point.ordinal and (event is None or event["chain_digest"] == point.digest)


def check_head(db: Database, scope: Scope, findings: Findings, row: Row) -> None:
    """Checks that a head stands on an event, that all it states is true there, and who may write after it."""
    where = f"conversation {id_from_bytes(row['id'])}"
    position = unpack(row["head"])
    try:
        stated, true = head_of(row), head_at(db, row["family"], position)
        if stated.digest != true.digest:
            findings.found(where, "its head names another digest than the event there")
        part = part_cost(db, position) if stated.totals != true.totals else None
        is_cost = stated.totals == true.totals or (part is not None and part.allows(stated.totals))
        if (stated.turn, stated.state_of) != (true.turn, true.state_of) or not is_cost:
            findings.found(where, "its head states another turn, cost or state than there is")
        if (stated.open_calls, stated.state) != (true.open_calls, true.state):
            findings.found(where, "its head states another state or other open calls than there are")
        read_path(db, scope, row["family"], position)
    except StoreDamaged as damage:
        findings.found(where, f"its head does not hold: {damage.detail}")
    except (ForkpointError, msgspec.DecodeError) as damage:
        findings.found(where, f"its head does not hold: {damage}")
    if row["open_segment"] is not None and (position is None or position.segment != row["open_segment"]):
        findings.found(where, "it would write to another segment than the one where its head stands")
    if row["open_turn"] is None:
        return
    turn = db.run("open_turn_of", {"id": row["open_turn"], "tenant": scope.tenant}).fetchone()
    if turn is None:
        findings.found(where, "its open turn is missing")
    elif turn["conversation"] != row["id"] or turn["outcome"] not in ("running", "awaiting_approval"):
        findings.found(where, "the turn that it says is open is not, or is another conversation's")


def is_root(row: Row, digest: bytes) -> bool:
    """Whether a digest is the one with which a conversation's path begins."""
    return root_digest(row["family"]) == digest


def _begins_with_what_it_inherits(birth: Birth) -> bool:
    """Whether all that a path had cost when its conversation was made is what that inherited: nothing was its own."""
    if birth.head is None or birth.head.ordinal != (birth.own_from or 0):
        return False
    return (birth.kind == "fork" and birth.records is not None) or birth.head.ordinal == 0


def _is_root(point: object) -> bool:
    return isinstance(point, Point) and point.ordinal == 0


def _birth(row: Row) -> Birth | None:
    try:
        birth = decode_birth(row["born"])
        id_to_bytes(birth.family)
    except (msgspec.DecodeError, ValueError):
        return None
    return birth


def _has_texts(fact: Fact) -> bool:
    turn = fact.turn
    in_turn = turn is not None and any(one is not None for one in (turn.input, turn.error, turn.steered))
    return in_turn or any(getattr(fact, name) is not None for name in TEXTS)


def _words(name: str) -> str:
    return WORDS.get(name, f"its {name}")


def _is(name: str) -> str:
    return "are" if name in ("settings", "approvals", "tags") else "is"


def _name(id: bytes | None) -> str | None:
    return None if id is None else id_from_bytes(id)

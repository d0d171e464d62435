"""Records on disk: each is written in the transaction that it is about, and chained to the record before.
Tests: forkpoint.testing.conformance.evidence.records, tests/store/test_verify.py."""

from typing import TypedDict

from msgspec import Struct

from forkpoint.errors import NotFound
from forkpoint.events import Usage
from forkpoint.history import records
from forkpoint.history.records import Birth, Charge, Fact, Point, Removal, TurnFacts, conversation_chain, salted
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import ORDINALS, Parameters, Scope, head_of, load_usage, pack
from forkpoint.store.values import Head, Lineage


class Link(Struct, frozen=True):
    """A record that is about to be written, and its place in its chain."""

    chain: bytes
    number: int
    digest: bytes
    fact: Fact
    body: str

    @property
    def place(self) -> Parameters:
        """The columns that say where a conversation's chain has come to with this record."""
        return {"records": self.number, "record_digest": self.digest}


def next_link(chain: bytes, number: int, digest: bytes, fact: Fact) -> Link:
    """What follows the record with this number and digest. Whoever asks moves the chain in the same transaction."""
    body = records.encode(fact)
    return Link(chain, number + 1, records.record_digest(digest, chain, number + 1, body), fact, body)


def insert(db: Database, scope: Scope, link: Link, *, salt: bytes | None = None, subject: bytes | None = None) -> None:
    """Writes a record."""
    parameters = {
        "tenant": scope.tenant,
        "chain": link.chain,
        "number": link.number,
        "kind": link.fact.kind,
        "subject": subject,
        "body": link.body,
        "salt": salt,
        "digest": link.digest,
    }
    db.run("insert_record", parameters)


def tell(
    db: Database,
    scope: Scope,
    conversation: bytes,
    fact: Fact,
    *,
    salt: bytes | None = None,
    subject: bytes | None = None,
) -> int:
    """Adds a record to a conversation's chain. Returns its number."""
    row = db.run("read_chain", {"tenant": scope.tenant, "id": conversation}).fetchone()
    if row is None:
        raise NotFound("conversation", id_from_bytes(conversation))
    link = next_link(conversation_chain(conversation), row["records"], row["record_digest"], fact)
    moved = {"tenant": scope.tenant, "id": conversation, "number": link.number, "digest": link.digest}
    db.run("move_chain", moved)
    insert(db, scope, link, salt=salt, subject=subject)
    return link.number


def tell_in(db: Database, scope: Scope, chain: bytes, fact: Fact, *, subject: bytes | None = None) -> None:
    """Adds a record to the chain of a family or of the tenant."""
    row = db.run("read_shared_chain", {"tenant": scope.tenant, "chain": chain}).fetchone()
    number, digest = (0, records.start_of(chain)) if row is None else (row["records"], row["record_digest"])
    link = next_link(chain, number, digest, fact)
    moved = {"tenant": scope.tenant, "chain": chain, "number": link.number, "digest": link.digest}
    db.run("move_shared_chain", moved)
    insert(db, scope, link, subject=subject)


def tell_of_turn(db: Database, scope: Scope, turn: Row, kind: str) -> None:
    """Adds how a turn stands, from its row, which has just been written and is not committed."""
    salt = records.new_salt()
    facts = turn_facts(turn, salt, base=point_at(db, turn["base"]), end=None)
    fact = Fact(kind=kind, time=scope.now, by=scope.by, turn=facts)
    tell(db, scope, turn["conversation"], fact, salt=salt, subject=turn["id"])


def turn_facts(row: Row | Parameters, salt: bytes, *, base: Point | None, end: Point | None) -> TurnFacts:
    """What a record says about a turn, from the turn's row."""
    return TurnFacts(
        id=id_from_bytes(row["id"]),
        outcome=row["outcome"],
        base=base,
        end=end,
        usage=load_usage(row["usage"]),
        started=row["started"],
        ended=row["ended"],
        by=row["by"],
        retry_of=None if row["retry_of"] is None else id_from_bytes(row["retry_of"]),
        input=None if row["input"] is None else salted(salt, row["input"]),
        error=None if row["error"] is None else salted(salt, row["error"]),
        steps=row["steps_digest"],
        steered=None if row["steered"] is None else salted(salt, row["steered"]),
    )


def tell_of_charge(db: Database, scope: Scope, conversation: bytes | None, id: str, usage: Usage) -> None:
    """Adds a charge: to its conversation's chain, or to one of the tenant's."""
    subject = id_to_bytes(id)
    fact = Fact(kind="charged", time=scope.now, by=scope.by, charge=Charge(id, usage))
    if conversation is None:
        tell_in(db, scope, records.tenant_chain(subject), fact, subject=subject)
    else:
        tell(db, scope, conversation, fact, salt=None, subject=subject)


def tell_of_removal(db: Database, scope: Scope, row: Row, spent: Usage, charged: Usage, kind: str) -> None:
    """Adds to the family's chain that a conversation is gone, and forgets what was kept about it alone."""
    follows = records.decode_birth(row["born"]).follows
    chain = (follows, row["first_digest"], row["records"], row["record_digest"])
    removed = Removal(id_from_bytes(row["id"]), *chain, spent, charged)
    fact = Fact(kind=kind, time=scope.now, by=scope.by, removed=removed)
    tell_in(db, scope, records.family_chain(row["family"]), fact, subject=row["id"])
    of_it = {"tenant": scope.tenant, "chain": conversation_chain(row["id"])}
    db.run("forget_records_beside_turns", of_it)
    db.run("forget_salts", of_it)


def restate(db: Database, scope: Scope, row: Row) -> None:
    """Adds a record that states all of how a conversation stands, under a new salt, from its row."""
    salt = records.new_salt()
    fact = Fact(
        kind="restated",
        time=scope.now,
        by=scope.by,
        head=point_of(head_of(row)),
        revision=row["revision"],
        own_from=row["own_from"],
        inherited=load_usage(row["inherited"]),
        draft=bool(row["draft"]),
        **_texts(row, salt),
    )
    tell(db, scope, row["id"], fact, salt=salt)


def forget_turn(db: Database, scope: Scope, turn: Row) -> None:
    """Forgets what was kept about a committed turn that is gone: nobody reaches its events any more.

    A conversation that has left the turn behind keeps what its records say, since it stands as they say. Only the salts
    go. If the conversation had stated its settings or its cache identity under them, it states them anew.
    """
    about = {"tenant": scope.tenant, "subject": turn["id"]}
    commit = {"tenant": scope.tenant, "chain": conversation_chain(turn["conversation"]), "number": turn["record"]}
    left = db.run("conversation_that_left_a_turn", commit).fetchone()
    if left is None:
        db.run("forget_tries", about)
        db.run("forget_commit", commit)
        return
    forget_salts(db, scope, turn)
    if _states_texts(left["body"]):
        restate(db, scope, left)


def forget_salts(db: Database, scope: Scope, turn: Row) -> None:
    """Forgets the salts of the records about a turn, so that nobody can guess its texts from the digests in them."""
    db.run("forget_salts_of_tries", {"tenant": scope.tenant, "subject": turn["id"]})
    commit = {"tenant": scope.tenant, "chain": conversation_chain(turn["conversation"]), "number": turn["record"]}
    db.run("forget_salt_of_commit", commit)


def _states_texts(body: str) -> bool:
    fact = records.decode_fact(body)
    return fact.settings is not None or fact.cache is not None


def point_of(head: Head) -> Point:
    """Where a head stands. The root counts as a point too."""
    return Point(head.ordinal, head.digest)


def base_of(head: Head) -> Point | None:
    """The base of a turn that stands at this head; None for the root."""
    return None if head.position is None else point_of(head)


def point_at(db: Database, key: int | None) -> Point | None:
    """The point at the key of an event; None for the root. It has no digest if the event was collected."""
    if key is None:
        return None
    event = db.run("event_at", {"id": key}).fetchone()
    return Point(key & ORDINALS, b"" if event is None else event["chain_digest"])


def earlier(db: Database, scope: Scope, id: bytes) -> int:
    """How many records a conversation with this id had that was deleted: the numbers go on after them."""
    row = db.run("last_number", {"tenant": scope.tenant, "chain": conversation_chain(id)}).fetchone()
    return int(row["number"])


def birth(db: Database, row: Parameters, lineage: Lineage, head: Head, source: Row | None) -> Parameters:
    """The columns of a new conversation's birth, from its other columns.

    Its chain goes on from the chain of ``source``, if that is given.
    """
    salt = records.new_salt()
    born = records.encode(
        Birth(
            id=id_from_bytes(row["id"]),
            tenant=row["tenant"],
            family=id_from_bytes(row["family"]),
            kind=lineage.kind,
            source=lineage.source,
            at=base_of(head) if lineage.at == head.position else point_at(db, pack(lineage.at)),
            turn=lineage.turn,
            call=lineage.call,
            head=point_of(head),
            records=None if source is None else source["records"],
            own_from=row["own_from"],
            inherited=load_usage(row["inherited"]),
            carries_metrics=row["carries_metrics"],
            draft=row["draft"],
            created=row["now"],
            follows=row["records"],
            **_texts(row, salt),
        )
    )
    digest = records.NO_SOURCE if source is None else source["record_digest"]
    first = records.first_digest(digest, 0 if source is None else source["records"], born)
    return {"born": born, "born_salt": salt, "record_digest": first}


class _Texts(TypedDict):
    settings: bytes
    cache: bytes
    approvals: bytes
    name: bytes
    title: bytes
    tags: bytes


def _texts(row: Row | Parameters, salt: bytes) -> _Texts:
    """The salted digests of the texts in a conversation's row."""
    return {
        "settings": salted(salt, row["settings"]),
        "cache": salted(salt, row["cache"]),
        "approvals": salted(salt, row["approvals"]),
        "name": salted(salt, row["name"]),
        "title": salted(salt, row["title"]),
        "tags": salted(salt, row["tags"]),
    }

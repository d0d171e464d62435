"""Adoption: the records of all that a program of an earlier format has written, made by the migration to format 6.
Tests: tests/store/test_migrations.py."""

import sqlite3
from itertools import groupby

from forkpoint.events import Usage
from forkpoint.history.digests import forge
from forkpoint.history.records import (
    NO_SOURCE,
    Charge,
    Fact,
    Removal,
    conversation_chain,
    family_chain,
    first_digest,
    new_salt,
    start_of_steps,
    tenant_chain,
)
from forkpoint.ids import id_from_bytes
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.rows import Scope, head_of, lineage_of, load_usage


def adopt(db: Database, now: int) -> None:
    """Gives every conversation, turn, step and charge of an earlier format its records.

    A conversation is born as it stands today: nobody can tell any more how it began. Then come its turns, in the order
    in which they began, its charges, and a record that states how it stands. A conversation that was deleted gets the
    records of the turns that others still stand on, and the record of its deletion.
    """
    _seal_steps(db)
    db.execute(SQL["index_turns"])
    for row in db.execute(SQL["conversations_without_a_chain"]).fetchall():
        scope = _scope(row["tenant"], now)
        _begin(db, scope, row)
        _tell_of_turns(db, scope, row["id"])
        _tell_of_charges(db, scope, row["id"])
        records.restate(db, scope, row)
    db.execute(SQL["close_charges_of_deleted_conversations"])
    for row in db.execute(SQL["deleted_conversations"]).fetchall():
        _tell_of_deletion(db, _scope(row["tenant"], now), row)
    db.execute(SQL["drop_index_of_turns"])
    for charge in db.execute(SQL["charges_of_no_conversation"]).fetchall():
        fact = Fact(kind="charged", time=now, charge=_charge(charge))
        records.tell_in(db, _scope(charge["tenant"], now), tenant_chain(charge["id"]), fact, subject=charge["id"])


def _scope(tenant: str, now: int) -> Scope:
    return Scope(tenant, now, b"", lambda holder, seen: False)


def _begin(db: Database, scope: Scope, row: sqlite3.Row) -> None:
    columns = dict(row) | {"now": row["created"], "draft": bool(row["draft"])}
    columns["carries_metrics"] = bool(row["carries_metrics"])
    born = records.birth(db, columns, lineage_of(row), head_of(row), None)
    parameters = {"born": born["born"], "salt": born["born_salt"], "digest": born["record_digest"]}
    db.execute(SQL["begin_chain"], parameters | {"tenant": scope.tenant, "id": row["id"]})


def _tell_of_turns(db: Database, scope: Scope, conversation: bytes) -> None:
    for turn in _turns(db, scope, conversation):
        salt = new_salt()
        fact = _fact(db, turn, salt, scope.now)
        number = records.tell(db, scope, conversation, fact, salt=salt, subject=turn["id"])
        _name_record(db, turn, number)


def _tell_of_deletion(db: Database, scope: Scope, row: sqlite3.Row) -> None:
    """Adds what is known of a conversation that was deleted: its committed turns, and what it had spent.

    Its records have no salt, as those of any conversation that was deleted.
    """
    id = row["conversation"]
    chain, first = conversation_chain(id), first_digest(NO_SOURCE, 0, "")
    number, digest = 0, first
    for turn in _turns(db, scope, id) if row["is_last"] else ():
        fact = _fact(db, turn, new_salt(), scope.now)
        link = records.next_link(chain, number, digest, fact)
        number, digest = link.number, link.digest
        records.insert(db, scope, link, subject=turn["id"])
        _name_record(db, turn, number)
    at_once = {"tenant": scope.tenant, "conversation": id, "deleted": row["deleted"]}
    charged = sum((load_usage(charge["usage"]) for charge in db.execute(SQL["charges_closed"], at_once)), Usage())
    removed = Removal(id_from_bytes(id), 0, first, number, digest, load_usage(row["usage"]), charged)
    fact = Fact(kind="deleted", time=row["deleted"], removed=removed)
    records.tell_in(db, scope, family_chain(row["family"]), fact, subject=id)


def _name_record(db: Database, turn: sqlite3.Row, number: int) -> None:
    if turn["outcome"] == "committed":
        db.execute(SQL["name_record"], {"id": turn["id"], "record": number})


def _turns(db: Database, scope: Scope, conversation: bytes) -> list[sqlite3.Row]:
    """A conversation's turns and notes, except a turn that has only begun: that has no record."""
    return db.execute(SQL["turns_to_adopt"], {"tenant": scope.tenant, "conversation": conversation}).fetchall()


def _fact(db: Database, turn: sqlite3.Row, salt: bytes, now: int) -> Fact:
    base, end = records.point_at(db, turn["base"]), records.point_at(db, turn["end"])
    kind = "note" if turn["kind"] == "note" else turn["outcome"]
    row = dict(turn) | {"steered": None}  # no program of that time could steer a turn
    return Fact(kind=kind, time=now, turn=records.turn_facts(row, salt, base=base, end=end))


def _tell_of_charges(db: Database, scope: Scope, conversation: bytes) -> None:
    charged = {"tenant": scope.tenant, "conversation": conversation}
    for charge in db.execute(SQL["ledger_of_a_conversation"], charged).fetchall():
        fact = Fact(kind="charged", time=scope.now, charge=_charge(charge))
        records.tell(db, scope, conversation, fact, subject=charge["id"])


def _charge(row: sqlite3.Row) -> Charge:
    return Charge(id_from_bytes(row["id"]), load_usage(row["usage"]))


def _seal_steps(db: Database) -> None:
    steps = db.execute(SQL["steps_without_a_digest"]).fetchall()
    for turn, of_turn in groupby(steps, key=lambda row: row["turn"]):
        digest = start_of_steps(turn)
        for step in of_turn:
            link = forge(digest, turn, step["envelope"], step["payload"])
            digest = link.chain_digest
            sealed = {"turn": turn, "number": step["number"], "salt": link.salt, "digest": link.payload_digest}
            db.execute(SQL["seal_step"], sealed)
        db.execute(SQL["sum_up_steps"], {"turn": turn, "digest": digest})

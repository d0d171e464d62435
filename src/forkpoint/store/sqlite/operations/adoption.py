"""Adoption: the records of all that a program of an earlier format has written, made by the migration to format 6.
Tests: tests/store/test_migrations.py."""

import sqlite3
from collections.abc import Iterable
from itertools import groupby

from forkpoint.history.digests import forge
from forkpoint.history.records import Charge, Fact, new_salt, start_of_steps, tenant_chain
from forkpoint.ids import id_from_bytes
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.operations import records
from forkpoint.store.sqlite.rows import Scope, head_of, lineage_of, load_usage


def adopt(db: Database, now: int) -> None:
    """Gives every conversation, turn, step and charge of an earlier format its records.

    A conversation is born as it stands today: nobody can tell any more how it began. Then come its turns, in the order
    in which they began, its charges, and a record that states how it stands.
    """
    _seal_steps(db)
    turns = groupby(db.execute(SQL["all_turns"]).fetchall(), key=lambda row: (row["tenant"], row["conversation"]))
    key, of_key = next(turns, (None, iter(())))
    for row in db.execute(SQL["conversations_without_a_chain"]).fetchall():
        while key is not None and key < (row["tenant"], row["id"]):  # of a conversation that was deleted
            key, of_key = next(turns, (None, iter(())))
        scope = _scope(row["tenant"], now)
        _begin(db, scope, row)
        _tell_of_turns(db, scope, of_key if key == (row["tenant"], row["id"]) else ())
        _tell_of_charges(db, scope, row["id"])
        records.restate(db, scope, row)
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


def _tell_of_turns(db: Database, scope: Scope, turns: Iterable[sqlite3.Row]) -> None:
    for turn in turns:
        if turn["outcome"] == "running":
            continue  # a turn that has only begun has no record
        salt = new_salt()
        base, end = records.point_at(db, turn["base"]), records.point_at(db, turn["end"])
        kind = "note" if turn["kind"] == "note" else turn["outcome"]
        fact = Fact(kind=kind, time=scope.now, turn=records.turn_facts(turn, salt, base=base, end=end))
        number = records.tell(db, scope, turn["conversation"], fact, salt=salt, subject=turn["id"])
        if turn["outcome"] == "committed":
            db.execute(SQL["name_record"], {"id": turn["id"], "record": number})


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

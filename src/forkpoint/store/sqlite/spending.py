"""What was spent: beside history, by one branch, and in a whole family. Each token is counted once.

A charge goes straight into the ledger and stays there, whatever becomes of its conversation. What turns spent stands in
their rows, and goes into the ledger when their conversation is deleted.
"""

import sqlite3

from forkpoint.errors import KeyReused
from forkpoint.events import Usage
from forkpoint.ids import id_to_bytes
from forkpoint.store.sqlite import conversations, turns
from forkpoint.store.sqlite.connection import SQL, Connection
from forkpoint.store.sqlite.rows import Scope, dumps, load_usage


def charge(db: Connection, scope: Scope, conversation: str, id: str, usage: Usage) -> None:
    """Enters a charge into the ledger, unless it is there. Raises `KeyReused` if its id names another one."""
    row = conversations.row_of(db, scope, conversation)
    if (found := _find(db, scope, id)) is not None:
        if (found["conversation"], load_usage(found["usage"])) != (row["id"], usage):
            raise KeyReused(id)
        return
    parameters = {
        "tenant": scope.tenant,
        "family": row["family"],
        "conversation": row["id"],
        "usage": dumps(usage),
        "id": id_to_bytes(id),
    }
    db.execute(SQL["insert_charge"], parameters)


def is_charged(db: Connection, scope: Scope, id: str) -> bool:
    return _find(db, scope, id) is not None


def spent(db: Connection, scope: Scope, conversation: str) -> Usage:
    """What a conversation itself has spent: in its turns, committed or not, and beside them."""
    row = conversations.row_of(db, scope, conversation)
    charges = db.execute(SQL["charges"], {"tenant": scope.tenant, "conversation": row["id"]})
    return sum((load_usage(charge["usage"]) for charge in charges), in_turns(db, scope, row))


def family_usage(db: Connection, scope: Scope, family: str) -> Usage:
    """All that was ever spent in a family: in each branch's own turns, beside them, and in deleted branches."""
    parameters = {"tenant": scope.tenant, "family": conversations.key_of(family, "family")}
    total = sum((load_usage(row["usage"]) for row in db.execute(SQL["family_ledger"], parameters)), Usage())
    for row in db.execute(SQL["branches"], parameters).fetchall():
        total += in_turns(db, scope, row)
    return total


def write_off(db: Connection, scope: Scope, row: sqlite3.Row) -> None:
    """Keeps what a conversation had spent, which is about to be deleted. Its charges are in the ledger already."""
    own = {"tenant": scope.tenant, "conversation": row["id"], "now": scope.now}
    db.execute(SQL["write_off"], own | {"family": row["family"], "usage": dumps(in_turns(db, scope, row))})
    db.execute(SQL["close_charges"], own)


def in_turns(db: Connection, scope: Scope, row: sqlite3.Row) -> Usage:
    """What a conversation's own turns have spent: those committed since it branched off, and its other tries."""
    committed = load_usage(row["head_totals"]) - load_usage(row["inherited"])
    return sum((turn.usage for turn in turns.uncommitted(db, scope, row)), committed)


def _find(db: Connection, scope: Scope, id: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(SQL["find_charge"], {"tenant": scope.tenant, "id": id_to_bytes(id)}).fetchone()
    return row

"""Reservations: what something that is under way may still cost.

A reservation belongs to a process: if the process is gone, so is the reservation. What is over gives it back, in the
transaction that says so. Tests: forkpoint.testing.conformance.budgets, tests/store/test_budgets.py.
"""

from collections.abc import Callable

from forkpoint.history.budgets import Amount
from forkpoint.store.tables.budgets.rows import amount_in, columns
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import Scope


def write_reservation(db: Database, scope: Scope, rows: list[Row], owner: bytes, kind: str, amount: Amount) -> None:
    """Reserves an amount of several budgets. Whether it fits was looked up in the same transaction."""
    for row in rows:
        reserved = columns(amount) | {"id": row["id"]}
        db.run("insert_reservation", reserved | {"owner": owner, "kind": kind, "holder": scope.holder})
        db.run("add_reserved", reserved)


def reservations_by(db: Database, owner: bytes, kind: str | None) -> list[Row]:
    """What is reserved for a turn, a charge or a note."""
    return db.run("reservations_by", {"owner": owner, "kind": kind}).fetchall()


def give_back(db: Database, owner: bytes, kind: str | None = None) -> None:
    """What was reserved for something that is over is free again."""
    for row in reservations_by(db, owner, kind):
        db.run("add_reserved", columns(Amount() - amount_in(row)) | {"id": row["budget"]})
    db.run("delete_reservations", {"owner": owner, "kind": kind})


def is_reserved(db: Database, owner: bytes, granted: Amount) -> bool:
    """Whether this is what is reserved for a call."""
    rows, wanted = reservations_by(db, owner, "call"), columns(granted)
    return bool(rows) and all(columns(amount_in(row)) == wanted for row in rows)


def keep(db: Database, owner: bytes, kind: str, kept: Callable[[Amount], Amount]) -> None:
    """Gives a part of what is reserved back: ``kept`` says what stays of each amount."""
    for row in reservations_by(db, owner, kind):
        had, stays = amount_in(row), kept(amount_in(row))
        db.run("add_reserved", columns(stays - had) | {"id": row["budget"]})
        db.run("keep_reservation", columns(stays) | {"owner": owner, "kind": kind, "id": row["budget"]})


def is_alive(scope: Scope, reservation: Row) -> bool:
    """Whether the process is there that reserved something."""
    return reservation["holder"] == scope.holder or scope.alive(reservation["holder"], reservation["seen"])


def reserved_now(db: Database, scope: Scope, row: Row) -> Amount:
    """What living processes have reserved of a budget."""
    found = db.run("reservations_of", {"id": row["id"]}).fetchall()
    return sum((amount_in(one) for one in found if is_alive(scope, one)), Amount())

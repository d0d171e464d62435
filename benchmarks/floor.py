"""The floor: bare sqlite3 doing the same to the disk, and nothing else.

What writes works on a copy of the file that Forkpoint made, so the tables, the indexes and the rows that are there
already are the same, and it writes copies of rows that Forkpoint wrote, under new keys that were worked out before
the clock started. No checks, no digests, no fencing, no queue; WAL and `synchronous=FULL` as there.

What reads scans a table of one JSON document for each event.
"""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from benchmarks.samples import TURN
from forkpoint.clock import system_clock
from forkpoint.events import Event
from forkpoint.ids import id_to_bytes, new_id

Row: TypeAlias = tuple[Any, ...]

_MOVE_HEAD = """
UPDATE conversation SET head = ?, head_digest = ?, head_turn = ?, updated = ?, revision = revision + 1
WHERE tenant = ? AND id = ?
"""


def connect(path: Path) -> sqlite3.Connection:
    """A plain connection that is as durable as Forkpoint's."""
    db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA fullfsync = ON")  # macOS: an fsync that reaches the disk; elsewhere without effect
    return db


class TurnRows(msgspec.Struct, frozen=True):
    """All that a turn writes, ready to be written."""

    turn: Row
    events: list[Row]
    head: Row


class Floor:
    """Writes to a copy of a file of Forkpoint's what a fork or a turn writes there."""

    def __init__(self, path: Path, conversation: str, fork: str | None = None) -> None:
        self.db = connect(path)
        by_id = "SELECT * FROM conversation WHERE id = ?"
        self._conversation = _row(self.db, by_id, id_to_bytes(conversation))
        self._fork = self._conversation if fork is None else _row(self.db, by_id, id_to_bytes(fork))
        self._head = self._conversation["head"]
        self._turn = _row(self.db, 'SELECT * FROM turn WHERE "end" = ?', self._head)
        self._events = [
            _row(self.db, "SELECT * FROM event WHERE id = ?", self._head - back) for back in reversed(range(TURN))
        ]
        self._insert = {
            "conversation": _insert("conversation", self._fork),
            "turn": _insert("turn", self._turn),
            "event": _insert("event", self._events[0]),
        }

    def close(self) -> None:
        self.db.close()

    def fork_row(self) -> Row:
        """The row of one more fork."""
        id = new_id()
        return tuple((self._fork | {"id": id_to_bytes(id), "name": id}).values())

    def write_fork(self, row: Row) -> None:
        """One row in a durable transaction of its own."""
        self.db.execute(self._insert["conversation"], row)

    def turn_rows(self) -> TurnRows:
        """The rows of one more turn."""
        turn, now = id_to_bytes(new_id()), system_clock()
        base, self._head = self._head, self._head + TURN
        changed = {"id": turn, "base": base, "end": self._head, "started": now, "ended": now}
        return TurnRows(
            tuple((self._turn | changed).values()),
            [tuple((row | {"id": base + n, "turn": turn}).values()) for n, row in enumerate(self._events, start=1)],
            (
                self._head,
                self._events[-1]["chain_digest"],
                turn,
                now,
                self._conversation["tenant"],
                self._conversation["id"],
            ),
        )

    def write_turn(self, rows: TurnRows) -> None:
        """The turn's row, its events and the head, in one durable transaction."""
        self.write_turns([rows])

    def write_turns(self, turns: Sequence[TurnRows]) -> None:
        """The same for several turns, which may be of other conversations in the file: a group commit by hand."""
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        for rows in turns:
            db.execute(self._insert["turn"], rows.turn)
            db.executemany(self._insert["event"], rows.events)
            db.execute(_MOVE_HEAD, rows.head)
        db.execute("COMMIT")


def make_documents(path: Path, found: Sequence[Event]) -> None:
    """A table with one JSON document for each event: the same envelope and content, as most programs would store it."""
    db = connect(path)
    db.execute("CREATE TABLE floor (id INTEGER PRIMARY KEY, body TEXT NOT NULL)")
    db.execute("BEGIN")
    for number, each in enumerate(found, start=1):
        document = {"turn": each.turn, "envelope": each.envelope, "body": each.body}
        db.execute("INSERT INTO floor VALUES (?, ?)", (number, msgspec.json.encode(document).decode()))
    db.execute("COMMIT")
    db.close()


def scan(db: sqlite3.Connection, first: int, last: int) -> list[tuple[int, Any]]:
    """The documents of a range, parsed."""
    loads = json.loads
    rows = db.execute("SELECT id, body FROM floor WHERE id BETWEEN ? AND ?", (first, last))
    return [(id, loads(body)) for id, body in rows]


def _row(db: sqlite3.Connection, query: str, key: object) -> dict[str, Any]:
    cursor = db.execute(query, (key,))
    found = cursor.fetchone()
    return dict(zip((column[0] for column in cursor.description), found, strict=True))


def _insert(table: str, row: dict[str, Any]) -> str:
    columns = ", ".join(f'"{name}"' for name in row)
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})"

"""The floor: psycopg doing the same to the database in one statement, and nothing else.

It writes copies of rows that Forkpoint wrote into Forkpoint's own tables, with their indexes and foreign keys, under
new keys that were worked out before the clock started. No guards, no digests, no fencing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from benchmarks.samples import TURN
from forkpoint.clock import system_clock
from forkpoint.ids import id_to_bytes, new_id


class PostgresFloor:
    """One connection that writes forks and turns of one conversation."""

    def __init__(self, db: psycopg.AsyncConnection[dict[str, Any]]) -> None:
        self._db = db
        self._fork: dict[str, Any] = {}
        self._turn: dict[str, Any] = {}
        self._record: dict[str, Any] = {}
        self._events: list[dict[str, Any]] = []
        self._head = self._number = 0

    @classmethod
    async def open(cls, url: str, conversation: str) -> Self:
        """Connects, and reads the rows that it is to repeat: those of the last turn of a conversation."""
        db = await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row)
        floor = cls(db)
        id = id_to_bytes(conversation)
        floor._fork = await floor._row("conversation", "id = %s", id)
        floor._head, floor._number = floor._fork["head"], floor._fork["records"]
        floor._turn = await floor._row("turn", "id = %s", floor._fork["head_turn"])
        floor._record = await floor._row("record", "subject = %s AND kind = 'committed'", floor._fork["head_turn"])
        segment, last = floor._head >> 32, floor._head & 0xFFFFFFFF
        for ordinal in range(last - TURN + 1, last + 1):
            floor._events.append(await floor._row("event", "segment = %s AND ordinal = %s", segment, ordinal))
        return floor

    async def close(self) -> None:
        await self._db.close()

    def fork_row(self) -> tuple[str, list[Any]]:
        """The statement of one more fork, and its parameters."""
        id = new_id()
        row = self._fork | {"id": id_to_bytes(id), "name": id, "open_segment": None, "open_turn": None}
        return _insert("conversation", [row]), list(row.values())

    def turn_rows(self) -> tuple[str, list[Any]]:
        """The statement of one more turn, record included, and its parameters."""
        turn, now = id_to_bytes(new_id()), system_clock()
        base, self._head, self._number = self._head, self._head + TURN, self._number + 1
        rows = {
            "turn": [self._turn | {"id": turn, "base": base, "end": self._head, "started": now, "ended": now}],
            "event": [
                row | {"turn": turn, "ordinal": (base & 0xFFFFFFFF) + number}
                for number, row in enumerate(self._events, start=1)
            ],
            "record": [self._record | {"number": self._number, "subject": turn}],
        }
        parts = [f"written_{table} AS ({_insert(table, some)})" for table, some in rows.items()]
        statement = (
            f"WITH {', '.join(parts)} UPDATE conversation SET head = %s, head_digest = %s, head_turn = %s, "
            "updated = %s, revision = revision + 1, records = %s, record_digest = %s WHERE tenant = %s AND id = %s"
        )
        parameters = [value for some in rows.values() for row in some for value in row.values()]
        parameters += [self._head, self._events[-1]["chain_digest"], turn, now, self._number, self._record["digest"]]
        return statement, [*parameters, self._fork["tenant"], self._fork["id"]]

    async def write(self, rows: tuple[str, Sequence[Any]]) -> None:
        """One statement, in a transaction of its own."""
        await self._db.execute(rows[0].encode(), rows[1], prepare=True)

    async def _row(self, table: str, where: str, *parameters: Any) -> dict[str, Any]:
        """A row, without the columns that the database fills in itself."""
        columns = await self._db.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND is_generated = 'NEVER' "
            "AND is_identity = 'NO' AND column_name <> 'xid' ORDER BY ordinal_position",
            [table],
        )
        names = ", ".join(f'"{column["column_name"]}"' for column in await columns.fetchall())
        found = await (
            await self._db.execute(f"SELECT {names} FROM {table} WHERE {where}".encode(), parameters)
        ).fetchone()
        assert found is not None, f"{table} has no such row"
        return found


async def make_documents(url: str, table: str, bodies: Sequence[str]) -> None:
    """A table with one JSON document for each event, as most programs would store it."""
    async with await psycopg.AsyncConnection.connect(url) as db:
        await db.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, body text NOT NULL)".encode())
        async with db.cursor() as cursor:
            rows = list(enumerate(bodies, start=1))
            await cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s)".encode(), rows)


def _insert(table: str, rows: Sequence[Mapping[str, Any]]) -> str:
    names = ", ".join(f'"{name}"' for name in rows[0])
    values = ", ".join(f"({', '.join(['%s'] * len(row))})" for row in rows)
    return f"INSERT INTO {table} ({names}) VALUES {values}"

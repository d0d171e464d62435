"""A process that deletes a conversation or collects, and is killed at a statement of that.

    python dying_process.py FILE delete|collect ID NUMBER

It kills itself with SIGKILL when it is about to say the statement with this number, and ends with status 0 if there
are not so many. A conversation is deleted by its ID; a collection ignores it.
"""

import os
import signal
import sqlite3
import sys
from typing import Any

import anyio

from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Database, connect


class Dying(Database):
    """A connection that counts statements once it is told to, and dies at one of them."""

    left: int | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if Dying.left is not None:
            Dying.left -= 1
            if Dying.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, parameters)


def connect_dying(path: str) -> Database:
    db = connect(path)
    db.__class__ = Dying
    return db


async def main(file: str, act: str, id: str, number: int) -> None:
    store = await SqliteStore.open(file, connect=connect_dying)
    Dying.left = number
    if act == "delete":
        await store.delete(id)
    else:
        await store.collect()
    Dying.left = None
    os._exit(0)  # without closing the store, which would collect


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

"""Residue: copies of removed text that SQLite leaves in the files of a store.

SQLite overwrites what it removes from a table (``secure_delete``). Two kinds of copies stay behind:

- **In the log.** It has every page as it was when it was written, until a checkpoint has emptied the log. That cannot
  be done while somebody reads from the log.
- **In the unused part of a page.** When SQLite moves rows to a neighbouring page, it does not overwrite the place where
  they were: a few words in ten thousand are left there. They go when the whole file is written anew
  (`Writer.compact`), which takes long if the store is large.

Tests: tests/store/test_gone.py, test_erasure.py.
"""

import anyio
import anyio.to_thread

from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.writer import Writer
from forkpoint.store.tables.rows import Scope

_PAUSE = 0.02  # seconds between two attempts to empty a log: most reads are over within milliseconds


async def empty_log(writer: Writer, *, attempts: int) -> bool:
    """Empties the log. False if somebody read from it at every attempt."""
    for attempt in range(attempts):
        if attempt:
            await anyio.sleep(_PAUSE)
        if await anyio.to_thread.run_sync(writer.empty_log):
            return True
    return False


def size_of_store(db: Database, scope: Scope) -> int:
    """How many bytes would be written to write a store anew."""
    pages: int = db.execute("PRAGMA page_count").fetchone()[0]
    size: int = db.execute("PRAGMA page_size").fetchone()[0]
    return pages * size

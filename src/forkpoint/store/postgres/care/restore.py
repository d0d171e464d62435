"""A store in a new database, made of a backup by PostgreSQL's own program ``pg_restore``.

What was erased after the backup was made is erased again before anybody is told that the store is there. It has an id
of its own, since it and the store of the backup go different ways. Tests: tests/postgres/test_dump.py.
"""

import asyncio
import os
from pathlib import Path

import psycopg
from psycopg.rows import dict_row

from forkpoint.errors import BadArgument, CopyRefused, NotFound
from forkpoint.store.erasure import Receipt
from forkpoint.store.postgres.address import PostgresAddress, postgres_address
from forkpoint.store.postgres.care.dump import check_every_tenant, find_program, place_of, run_program
from forkpoint.store.postgres.session.connections import conninfo
from forkpoint.store.postgres.session.database import READING
from forkpoint.store.postgres.session.failures import translated
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.sqlite.copies.erasures import read_receipts
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import CopyProgress, CopyStep, Restored


def restore_database(
    backup: str | os.PathLike[str],
    url: str,
    *,
    force: bool = False,
    erasures: str | os.PathLike[str] | None = None,
    forget_erasures: bool = False,
    progress: CopyProgress | None = None,
) -> Restored:
    """Makes a store of a backup in a database that has none. Blocks its thread, in which no event loop may run.

    The arguments are those of `forkpoint.store.sqlite.copies.restore.restore`; but ``force`` is refused, since a
    database is never replaced.
    """
    source, address = Path(os.path.abspath(backup)), postgres_address(url)
    if erasures is not None and forget_erasures:
        raise BadArgument("restore()", "forget_erasures=True", "erasures= names what was erased")
    if force:
        raise BadArgument("restore()", "force=True", "a database is never replaced; name a new one")
    if erasures is None and not forget_erasures:
        raise CopyRefused.erasures_not_named(str(source))
    if not source.is_file():
        raise NotFound("backup", str(source))
    if address.is_pooled and not address.listen:
        raise CopyRefused.behind_a_pooler(address.shown)
    receipts = [] if erasures is None else read_receipts(Path(erasures))
    size = source.stat().st_size

    def tell(stage: CopyStep) -> None:
        if progress is not None:
            progress(stage)

    where, environment = place_of(address)
    said = f"pg_restore --exit-on-error --single-transaction --no-owner --dbname={address.shown} {source}"
    program = find_program("pg_restore", _version_of_free(address), address.shown, said)
    how = ["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges"]
    command = [program, *how, f"--dbname={where}", str(source)]
    run_program(command, environment, address.shown, lambda: tell(CopyStep("copying", 0, size)))
    tell(CopyStep("checking", 0, size))
    return asyncio.run(_prepare(url, size, receipts))


def _version_of_free(address: PostgresAddress) -> int:
    """The server's version. Raises `CopyRefused` if there is a store in the database."""
    with translated(address.shown), psycopg.connect(conninfo(address), row_factory=dict_row) as db:
        found = db.execute(READING["is_free"].encode()).fetchone()
    assert found is not None
    if not found["is_free"]:
        raise CopyRefused(address.shown, "a store is there already; make a new database")
    version: int = found["version"]
    return version


async def _prepare(url: str, size: int, receipts: list[Receipt]) -> Restored:
    """Makes the copy a store of its own, of the newest format, and checks it."""
    async with await PostgresStore.open(url) as store:
        await store._view.write("restore", "", _renew, landed=lambda db, scope: True)
        done = 0
        for receipt in receipts:
            done += await store.within(receipt.tenant).replay(receipt)
        conversations, events, format = await store._view.read(_contents)
        path = store._view.opened.path
        return Restored(
            path=path, bytes=size, conversations=conversations, events=events, format=format, erasures=done, kept=None
        )


def _renew(db: Database, scope: Scope) -> None:
    db.run("forget_all_holders")
    db.run("renew_store_id")


def _contents(db: Database, scope: Scope) -> tuple[int, int, int]:
    return *check_every_tenant(db, scope), int(db.run("read_format").fetchone()["format"])

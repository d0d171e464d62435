"""The tables of a store in a database: making them, migrating them, refusing what is not ours.

Every process that opens the store does this, so several may meet: whoever makes or migrates the tables holds a lock of
its transaction meanwhile, and the others find them made. A migration that a running older program could not write past
raises `meta.writable_from`; one that only adds leaves it, and old and new programs run side by side.
Tests: tests/postgres/test_opening.py.
"""

from typing import Any

from msgspec import Struct

from forkpoint.errors import BadStoreUrl, StoreDamaged, StoreUnusable
from forkpoint.store.postgres.address import PostgresAddress
from forkpoint.store.postgres.session.database import WRITING
from forkpoint.store.postgres.session.link import STATEMENT, Link
from forkpoint.store.sql import migrations

MIGRATIONS = migrations("postgres")
FORMAT = len(MIGRATIONS)
"""The newest format that this program knows."""

OLDEST_SERVER = 140000
PARTITIONS = 16
"""How many partitions events have in a store that is made now, unless its address says something else."""

_LONG = 600  # seconds that a migration may take


class Standing(Struct, frozen=True):
    """What stands in a database."""

    version: int  # of the server, as 180004
    encoding: str
    is_standby: bool
    schema: str | None  # in which the tables are, or would be
    tables: int  # how many there are, of anybody
    has_meta: bool


def prepare(link: Link, address: PostgresAddress) -> None:
    """Makes sure that the tables of the current format are there: checks, makes or migrates them."""
    if _format(link) >= FORMAT and not _lacks_row_security(link, address):
        return
    link.begin("", f"statement_timeout = '{_LONG}s'", f"lock_timeout = '{STATEMENT}s'")
    try:
        _say(link, "lock_migrations")
        found = _format(link)
        if not found:
            link.connection.execute(_text("set_partitions"), {"partitions": str(address.partitions or PARTITIONS)})
        if found < FORMAT:
            for script in MIGRATIONS[found:]:
                with link.waiting(_LONG):
                    link.connection.execute(script.encode())
            link.connection.execute(_text("set_format"), {"format": FORMAT})
        if _lacks_row_security(link, address):
            _say(link, "enable_tenancy")
    except BaseException:
        link.rollback()
        raise
    link.commit(STATEMENT)


def prepare_to_read(link: Link) -> None:
    """Makes sure that tables are there that can be read, and writes nothing."""
    found = _format(link)
    if not found:
        raise BadStoreUrl(link.address.shown, "there is no store in that database yet, and nothing may be written")
    if found < FORMAT:
        raise StoreUnusable.store_older(link.address.shown, found, FORMAT)


def standing(link: Link) -> Standing:
    """What stands in the database."""
    return Standing(**_say(link, "standing"))


def store_id(link: Link) -> bytes:
    """Which store this is."""
    found: bytes = _say(link, "store_id")["store"]
    return found


def _format(link: Link) -> int:
    """The format of the store, 0 for an empty database. Raises if it is not ours, or not ours to write."""
    path, found = link.address.shown, standing(link)
    if found.version < OLDEST_SERVER:
        raise StoreUnusable.unfit_database(
            path, f"PostgreSQL 14 or newer is needed, and this is {found.version // 10000}"
        )
    if found.encoding != "UTF8":
        raise StoreUnusable.unfit_database(path, f"its encoding is {found.encoding}, and must be UTF8")
    if found.schema is None:
        raise StoreUnusable.unfit_database(path, "no schema of the search_path exists")
    if not found.has_meta:
        if found.tables:
            raise StoreUnusable.other_tables(path, f"the schema {found.schema} has tables of another program")
        return 0
    row = _say(link, "read_format")
    if row is None:
        raise StoreDamaged(path, "it does not state its format")
    if row["writable_from"] > FORMAT:
        raise StoreUnusable.store_newer(path, row["format"], FORMAT)
    return int(row["format"])


def _lacks_row_security(link: Link, address: PostgresAddress) -> bool:
    return address.has_row_security and not _say(link, "is_tenancy_enabled")["enabled"]


def _say(link: Link, name: str) -> Any:
    """The first row that a statement answers with."""
    with link.waiting(STATEMENT + 5):
        cursor = link.connection.execute(_text(name), {})
    return cursor.fetchone() if cursor.description is not None else None


def _text(name: str) -> bytes:
    return WRITING[name].encode()

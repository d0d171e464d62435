"""The ways in which a store in PostgreSQL is used. Tests run in each of them.

The whole suite of what a store must do runs in one mode. Of the other modes each run of the tests has a sample: a
quarter of the tests, another quarter for each mode, chosen by a fixed rule. ``pytest --every-mode`` runs everything.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from msgspec import Struct
from tests.postgres.fixtures import Databases
from tests.postgres.pooler import Pooler

from forkpoint.store.postgres.store import PostgresStore


class Mode(Struct, frozen=True):
    """How a store is reached, and how it was made."""

    name: str
    options: str = ""  # of the address
    partitions: int | None = None
    is_pooled: bool = False


DIRECT = Mode("direct")
POOLED = Mode("pooled", options="?pooler=transaction", is_pooled=True)
POLLING = Mode("polling", options="?listen=off")
ONE_PARTITION = Mode("one partition", partitions=1)


@contextmanager
def new_store(mode: Mode, databases: Databases, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a new database in which the tables of a store are, and nothing else."""
    server = databases.server
    pooler: Pooler | None = request.getfixturevalue("postgres_pooler") if mode.is_pooled else None
    template = databases.template(f"tables {mode.partitions}", lambda url: _make_tables(url, mode.partitions))
    with databases.fresh(template) as name:
        yield (pooler.url(name) if pooler else server.url(name)) + mode.options


def _make_tables(url: str, partitions: int | None) -> None:
    options = "listen=off" + (f"&partitions={partitions}" if partitions else "")

    async def make() -> None:
        await (await PostgresStore.open(f"{url}?{options}")).close()

    thread = Thread(target=asyncio.run, args=[make()])  # a loop may run in this one
    thread.start()
    thread.join()

"""Fixtures for every folder of tests: a database on a real PostgreSQL, which starts when a test first asks for it.

`tests/conftest.py` registers this module. Each process of pytest-xdist has a server of its own. A test gets a
database of its own, copied from one that is ready, which is the fastest of what was tried: 15 ms to make it and 8 ms
to drop it, against 70 ms and more to make our tables in it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from zlib import crc32

import pytest
from tests.postgres.pooler import MISSING, Pooler
from tests.postgres.programs import pgbouncer_program
from tests.postgres.server import Server

_NUMBERS = count(1)
_PARTS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run the whole suite of stores in every mode of PostgreSQL, not samples"
    parser.addoption("--every-mode", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sample(part): without --every-mode only this quarter of the tests is run")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is in no sample. Which tests are in one depends on their names alone."""
    if config.getoption("every_mode"):
        return
    left = [item for item in items if (mark := item.get_closest_marker("sample")) and not _is_in(item, *mark.args)]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = {*left}
        items[:] = [item for item in items if item not in gone]


def _is_in(item: pytest.Item, part: int) -> bool:
    return crc32(item.name.encode()) % _PARTS == part


class Databases:
    """Databases of one server, made by copying."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._templates: dict[str, str] = {}

    @contextmanager
    def fresh(self, template: str = "template0") -> Iterator[str]:
        """The name of a new database. It is dropped, whoever is connected to it, at the end."""
        name = f"test_{next(_NUMBERS)}"
        self.server.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        yield name
        self.server.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def template(self, name: str, fill: Callable[[str], None]) -> str:
        """The database that ``fill``, which gets its address, has filled once; nobody may be connected to it."""
        if name not in self._templates:
            database = f"template_{next(_NUMBERS)}"
            self.server.execute(f"CREATE DATABASE {database} TEMPLATE template0 STRATEGY file_copy")
            fill(self.server.url(database))
            self._templates[name] = database
        return self._templates[name]


@pytest.fixture(scope="session")
def postgres_databases() -> Iterator[Databases]:
    """The server that the tests of this process share. Nobody changes its settings."""
    server = Server.make(autovacuum="off", full_page_writes="off")
    yield Databases(server)
    server.stop("immediate")


@pytest.fixture(scope="session")
def postgres_pooler(postgres_databases: Databases) -> Iterator[Pooler]:
    """PgBouncer in front of that server."""
    if pgbouncer_program() is None:
        pytest.skip(MISSING)
    pooler = Pooler.make(postgres_databases.server)
    yield pooler
    pooler.stop()


@pytest.fixture
def postgres(postgres_databases: Databases) -> Iterator[str]:
    """The address of an empty database."""
    with postgres_databases.fresh() as name:
        yield postgres_databases.server.url(name)


@pytest.fixture
def pgbouncer(postgres: str, postgres_pooler: Pooler) -> str:
    """The address of the database of the fixture ``postgres``, through PgBouncer in transaction mode."""
    return postgres_pooler.url(postgres.rpartition("/")[2])


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    """Makes servers of the test's own, whose settings it may change: `Server.make`.

    They and their standbys are stopped at its end.
    """
    with ExitStack() as stack:

        def make(**settings: str | int) -> Server:
            server = Server.make(**settings)
            stack.callback(server.stop_all)
            return server

        yield make

"""PostgreSQL's statements: PostgreSQL understands each of them, and they are those of SQLite under the same names."""

import re
from collections.abc import Iterator

import psycopg
import pytest
from tests.postgres.fixtures import Databases

from forkpoint.store.sql import migrations, postgres_statements, statements

PARAMETER = re.compile(r"%\((\w+)\)s")
STATEMENTS = {locking: postgres_statements(locking=locking) for locking in (False, True)}


@pytest.fixture(scope="module")
def tables(postgres_databases: Databases) -> Iterator[psycopg.Connection]:
    """A connection to a database in which the tables are."""
    with postgres_databases.fresh() as name, psycopg.connect(postgres_databases.server.url(name)) as db:
        for script in migrations("postgres"):
            db.execute(script.encode())
        db.commit()
        yield db


def test_postgresql_understands_every_statement(tables: psycopg.Connection) -> None:
    faults = []
    for name, statement in [*STATEMENTS[False].items(), *STATEMENTS[True].items()]:
        numbers: dict[str, int] = {}
        text = PARAMETER.sub(lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", statement)  # noqa: B023
        said = tables.pgconn.prepare(b"", text.replace("%%", "%").encode())
        if said.status != psycopg.pq.ExecStatus.COMMAND_OK:
            faults.append(f"{name}: {said.error_message.decode()}")
            tables.rollback()
    assert not faults, "\n".join(faults)


def test_every_statement_of_postgresql_has_the_parameters_of_sqlites() -> None:
    different = []
    for name, statement in STATEMENTS[False].items():
        theirs = statements("sqlite").get(name)
        if theirs is not None:
            ours = {*PARAMETER.findall(statement)} - {"tenant"}
            theirs_named = {*re.findall(r"(?<![:\w]):(\w+)", theirs)} - {"tenant"}
            theirs_named |= {str(n) for n in range(theirs.count("?"))}
            if not ours <= theirs_named:
                different.append(f"{name} also wants {', '.join(sorted(ours - theirs_named))}")
    assert not different

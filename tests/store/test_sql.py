"""The SQL files: each statement has a name, a purpose and a caller, compiles, and the hot ones find rows by a key."""

import re
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

import forkpoint
from forkpoint.store.sql import migrations, postgres_statements, statements
from forkpoint.store.sqlite.connection import MEMORY, SQL, Database, connect
from forkpoint.store.sqlite.files import make_tables

FILES = sorted(
    (
        file
        for file in resources.files("forkpoint.store.sql").joinpath("sqlite").iterdir()
        if file.name.endswith(".sql")
    ),
    key=lambda file: file.name,
)
SOURCE = {path: path.read_text(encoding="utf-8") for path in Path(forkpoint.__file__).parent.rglob("*.py")}
CALLS = re.compile(r"""(?:\bSQL\[|\bdb\.(?:run|run_many|tuples|insert)\()\s*["'](\w+)["']""")
CALLED = {(name, path.name) for path, text in SOURCE.items() for name in CALLS.findall(text)}
PASSED_ON = {  # said by functions that are given the name
    name for path, text in SOURCE.items() if "tables" in path.parts for name in re.findall(r'"(\w+)"', text)
}

# Said for each turn, each read or each event: they must cost the same however much the database holds.
HOT = [
    *(
        "path_events",
        "path_spans",
        "event_at",
        "turns_in_span",
        "newest_turns_in_span",
        "newest_tries",
        "turn_behind_event",
        "state_of_turn",
    ),
    *("read_conversation", "read_revisions", "find_conversation", "read_turn", "read_steps"),
    *("find_child", "list_children", "list_family", "list_open", "list_by_creation", "list_by_use"),
    *("list_tagged_by_creation", "list_tagged_by_use", "count_tagged", "read_listed", "use_conversation"),
    *("take_lock", "release_lock", "journal_turn", "commit_turn", "end_turn", "take_over", "move_head", "rewind_head"),
    *(
        "delete_steps",
        "uncommitted_turns",
        "branches",
        "family_ledger",
        "find_charge",
        "charges",
        "close_charges",
        "find_key",
        "free_key",
        "beat",
    ),
]

each_statement = pytest.mark.parametrize("name", sorted(SQL))


class Dummies(dict[str, None]):
    """NULL for whatever parameter a statement has."""

    def __missing__(self, name: str) -> None:
        return None


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    """A fresh database of the current format."""
    connection = connect(MEMORY)
    make_tables(connection)
    yield connection
    connection.close()


def explain(db: Database, prefix: str, name: str) -> list[sqlite3.Row]:
    """What SQLite says of a statement, without running it."""
    sql = SQL[name]
    parameters = (None,) * sql.count("?") if "?" in sql else Dummies()
    return db.execute(f"{prefix} {sql}", parameters).fetchall()


def named_in_files() -> list[tuple[str, str, str]]:
    """Each statement as it stands in the files: its file, its name, and all up to the next one."""
    found = []
    for file in FILES:
        parts = re.split(r"^-- name:(.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found += [(file.name, parts[n].strip(), parts[n + 1]) for n in range(1, len(parts), 2)]
    return found


def test_every_statement_is_named_once() -> None:
    names = [name for _, name, _ in named_in_files()]
    assert sorted(names) == sorted(SQL), "a statement is named twice, or its name is not one word"


def test_no_two_statements_are_the_same() -> None:
    names: dict[str, list[str]] = {}
    for name, sql in SQL.items():
        names.setdefault(" ".join(re.sub("--.*", "", sql).split()), []).append(name)
    assert [same for same in names.values() if len(same) > 1] == [], "use one of them for both"


def test_nothing_stands_before_the_first_name_of_a_file() -> None:
    for file in FILES:
        opening = file.read_text(encoding="utf-8").split("-- name:")[0]
        code = [line for line in opening.splitlines() if line.strip() and not line.startswith("--")]
        assert not code, f"{file.name} begins with SQL that has no name: {code[0]}"


@pytest.mark.parametrize(("file", "name", "text"), named_in_files(), ids=lambda value: None)
def test_every_statement_says_what_it_is_for(file: str, name: str, text: str) -> None:
    first = text.strip("\n").splitlines()[0]
    assert re.match(r"-- \w", first), f"{file}: put a line under `-- name: {name}` that says what it is for"
    assert first.rstrip().endswith((".", ",", ":", ";")) or text.strip("\n").splitlines()[1].startswith("-- "), (
        f"{file}: the line on {name} is not a sentence: {first}"
    )


@each_statement
def test_every_statement_is_one_statement(name: str) -> None:
    assert sqlite3.complete_statement(SQL[name] + ";"), f"{name} is cut off"
    assert ";" not in SQL[name], f"{name} is more than one statement"


@each_statement
def test_every_statement_has_a_caller(name: str) -> None:
    assert name in PASSED_ON or any(name == called for called, _ in CALLED), (
        f'nothing in src runs "{name}": remove the statement, or use it'
    )


def test_every_statement_that_is_called_exists() -> None:
    assert CALLED, "the way of calling statements has changed; teach this test the new one"
    known = SQL.keys() | postgres_statements(locking=False).keys()  # some are needed where several write at once
    unknown = sorted((name, file) for name, file in CALLED if name not in known)
    assert not unknown, f"called, but in no file: {unknown}"


def test_no_sql_hides_in_the_code() -> None:
    """Whoever opens store/sql/ sees all that is done to a disk; transactions and pragmas are the exception."""
    hidden = re.compile(r"""["'](SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|CREATE|DROP|ALTER)\s[^"']*["']""")
    # Makes the tables; begins a transaction and reads the clock; says what an operator has to set.
    allowed = {"files.py", "link.py", "examination.py"}
    found = [
        f"{path.name}: {match.group(0)}"
        for path, text in SOURCE.items()
        for match in hidden.finditer(text)
        if path.name not in allowed and "store" in path.parts
    ]
    assert not found, f"give these a name in store/sql/: {found}"


@each_statement
def test_every_statement_compiles_against_a_fresh_database(db: Database, name: str) -> None:
    assert explain(db, "EXPLAIN", name)


@pytest.mark.parametrize("name", HOT)
def test_no_hot_statement_looks_at_every_row_of_a_table(db: Database, name: str) -> None:
    assert name in SQL, f"{name} was renamed or removed: say so in HOT"
    tables = {row["name"] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    plan = [row["detail"] for row in explain(db, "EXPLAIN QUERY PLAN", name)]
    scans = [step for step in plan if (found := re.match(r"SCAN (\w+)", step)) and found.group(1) in tables]
    assert not scans, f"{name} gets slower with every row that is stored: {scans}"


@pytest.mark.parametrize("name", ["path_events", "path_spans", "turns_in_span", "read_steps", "links_between"])
def test_no_statement_that_reads_in_order_sorts(db: Database, name: str) -> None:
    plan = [row["detail"] for row in explain(db, "EXPLAIN QUERY PLAN", name)]
    assert not [step for step in plan if "TEMP B-TREE" in step], f"{name} sorts what an index has in order: {plan}"


def test_there_are_no_statements_for_a_database_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        statements("no such engine")


def test_migrations_are_numbered_without_a_gap() -> None:
    folder = resources.files("forkpoint.store.sql").joinpath("sqlite/migrations")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    assert [name[:5] for name in names] == [f"{n:04}_" for n in range(1, len(names) + 1)]
    assert len(migrations("sqlite")) == len(names)


def test_statements_cannot_be_changed_by_whoever_reads_them() -> None:
    with pytest.raises(TypeError):
        SQL["beat"] = ""  # type: ignore[index]

"""Every statement that Forkpoint says to a database stands in a ``.sql`` file here, under a name.

A file holds statements of one concept, each opened by ``-- name: NAME`` and a line that says what it is for.
``migrations/`` holds what makes the tables, numbered, append-only.

PostgreSQL's statements have two forms. A line ``-- locks: TABLE, TABLE`` says which rows a writer locks when it reads
them, because it then decides by them; a reader says the same statement without the locks. A line ``-- after: NAME``
says that a writer first says another statement, with the same parameters: it takes the locks, and what is read
afterwards is as whoever had them has left it.
Tests: tests/store/test_sql.py, test_migrations.py, tests/postgres/test_statements.py.
"""

import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

_OPENING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_LOCKS = re.compile(r"^-- locks: (\w+(?:, \w+)*)$", re.MULTILINE)
_AFTER = re.compile(r"^-- after: (\w+)$", re.MULTILINE)

# What is looked for in a statement: comments, texts and quoted names, which have no parameters; casts; parameters.
_TOKEN = re.compile(r"""(?P<quoted>--[^\n]*|'[^']*'|"[^"]*")|(?P<cast>::)|:(?P<name>[a-z_]\w*)|(?P<place>\?)""")


def statements(engine: str) -> Mapping[str, str]:
    """All named statements for a database, by name."""
    return MappingProxyType({name: _uncommented(text) for name, text in _named(engine).items()})


def postgres_statements(*, locking: bool) -> Mapping[str, str]:
    """All named statements for PostgreSQL, by name, as psycopg takes them. A writer's lock the rows that they read."""
    found: dict[str, str] = {}
    for name, text in _named("postgres").items():
        found[name] = with_placeholders(_uncommented(text))
        if locking and (locks := _LOCKS.search(text)) is not None:
            found[name] += f"\nFOR NO KEY UPDATE OF {locks.group(1)}"
    return MappingProxyType(found)


def postgres_preludes() -> Mapping[str, str]:
    """The statement that a writer says before another one, both by name. Most statements have none."""
    found = {name: _AFTER.search(text) for name, text in _named("postgres").items()}
    return MappingProxyType({name: after.group(1) for name, after in found.items() if after is not None})


def with_placeholders(statement: str) -> str:
    """A statement with psycopg's placeholders: ``:name`` is ``%(name)s``, and the first ``?`` is ``%(0)s``."""
    count = 0

    def placeholder(found: re.Match[str]) -> str:
        nonlocal count
        if found["quoted"] or found["cast"]:
            return found.group()
        if found["name"]:
            return f"%({found['name']})s"
        count += 1
        return f"%({count - 1})s"

    return _TOKEN.sub(placeholder, statement.replace("%", "%%"))


def _named(engine: str) -> dict[str, str]:
    """The texts of the statements for a database as they stand in its files, by name."""
    found: dict[str, str] = {}
    for file in _files(engine):
        parts = _OPENING.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"{file.name} names {name} again")
            found[name] = text
    return found


def migrations(engine: str) -> list[str]:
    """The migration scripts for a database, in order; the first makes format 1."""
    return [file.read_text(encoding="utf-8") for file in _files(f"{engine}/migrations")]


def _files(folder: str) -> list[Traversable]:
    entries = resources.files(__package__).joinpath(folder).iterdir()
    return sorted((entry for entry in entries if entry.name.endswith(".sql")), key=lambda entry: entry.name)


def _uncommented(text: str) -> str:
    lines = (line for line in text.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip().removesuffix(";")

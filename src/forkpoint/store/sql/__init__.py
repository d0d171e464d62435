"""Every statement that Forkpoint says to a database stands in a ``.sql`` file here, under a name.

A file holds statements of one concept, each opened by ``-- name: NAME`` and a line that says what it is for.
``migrations/`` holds what makes the tables, numbered, append-only. Tests: tests/store/test_sql.py, test_migrations.py.
"""

import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

_OPENING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def statements(engine: str) -> Mapping[str, str]:
    """All named statements for a database, by name."""
    found: dict[str, str] = {}
    for file in _files(engine):
        parts = _OPENING.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"{file.name} names {name} again")
            found[name] = _uncommented(text)
    return MappingProxyType(found)


def migrations(engine: str) -> list[str]:
    """The migration scripts for a database, in order; the first makes format 1."""
    return [file.read_text(encoding="utf-8") for file in _files(f"{engine}/migrations")]


def _files(folder: str) -> list[Traversable]:
    entries = resources.files(__package__).joinpath(folder).iterdir()
    return sorted((entry for entry in entries if entry.name.endswith(".sql")), key=lambda entry: entry.name)


def _uncommented(text: str) -> str:
    lines = (line for line in text.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip().removesuffix(";")

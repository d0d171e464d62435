"""The texts of hot statements: PostgreSQL's own placeholders, and as many rows as a write has.

psycopg would look for placeholders in these long texts each time they are said. So this is done once, and the text is
kept for each number of rows. Tests: tests/postgres/test_hot_commit.py.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from forkpoint.store.sql import statements, with_placeholders

SAID: Mapping[str, str] = statements("postgres/hot")
"""The statements and their parts, by name."""

ROWS: Mapping[str, tuple[str, ...]] = {
    "commit_at_once": ("text", "text", "bytea", "bytea", "bytea"),
    "commit_landmarks": ("bigint", "text", "bigint"),
    "commit_copies": ("bigint", "bytea", "bigint"),
    "journal_steps": ("text", "text", "bytea", "bytea"),
}
"""The types of a row's columns, of statements and parts that take rows. If the first column of a row is text, the row's
number, from 1, comes before it."""

_UNUSED = re.compile(r"/\* (?!rows)\w+ \*/\s*")  # the place of a part that is not there
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


class Text(Struct, frozen=True):
    """A statement as the server takes it, and the names of its parameters; those of rows follow."""

    text: bytes
    names: tuple[str, ...]


def compose(
    name: str, parts: Mapping[str, Sequence[Sequence[Any]]], named: Mapping[str, Any]
) -> tuple[bytes, list[Any]]:
    """The text of a statement with some of its parts and their rows, and its parameters. The statement itself may be
    among the parts, to say its rows."""
    text = _text(name, tuple((part, len(rows)) for part, rows in parts.items()))
    values = [named[one] for one in text.names]
    for rows in parts.values():
        for row in rows:
            values += row
    return text.text, values


@lru_cache(maxsize=1024)
def _text(name: str, parts: tuple[tuple[str, int], ...]) -> Text:
    counts = dict(parts)
    text = SAID[name]
    last = []
    for part in counts:
        if f"/* {part} */" in text:  # it has a place of its own
            text = text.replace(f"/* {part} */", _shaped(part))
        elif part != name:
            last.append(_shaped(part))
    text = _UNUSED.sub("", text.replace("/* parts */", " ".join(last)))
    if name in counts:
        text = text.replace("/* rows */", f"/* rows of {name} */")
    text = with_placeholders(text)
    names = tuple(dict.fromkeys(_PLACEHOLDER.findall(text)))
    text = _PLACEHOLDER.sub(lambda found: f"${names.index(found[1]) + 1}", text).replace("%%", "%")
    number = len(names)
    for part, count in parts:
        types = ROWS.get(part, ())
        rows = []
        for place in range(1, count + 1):
            values = [f"${number + n}::{type}" for n, type in enumerate(types, start=1)]
            number += len(types)
            rows.append(f"({', '.join(values if types[0] == 'bigint' else [str(place), *values])})")
        text = text.replace(f"/* rows of {part} */", ", ".join(rows))
    return Text(text.encode(), names)


def _shaped(part: str) -> str:
    return SAID[part].replace("/* rows */", f"/* rows of {part} */")

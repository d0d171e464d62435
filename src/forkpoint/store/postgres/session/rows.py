"""Rows that are read by the names of their columns, and taken apart in their order, as SQLite's are.
Tests: tests/postgres/test_transactions.py."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg


class NamedRow:
    """One row of an answer."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: Mapping[str, int], values: Sequence[Any]) -> None:
        self._places = places
        self._values = values

    def __getitem__(self, column: str | int) -> Any:
        return self._values[self._places[column] if isinstance(column, str) else column]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"NamedRow({dict(zip(self._places, self._values, strict=True))})"

    def keys(self) -> Sequence[str]:
        return tuple(self._places)


class NamedRows:
    """Makes the rows of one answer; what psycopg calls a row factory."""

    def __init__(self, cursor: "psycopg.Cursor[Any]") -> None:
        self._places = {column.name: place for place, column in enumerate(cursor.description or ())}

    def __call__(self, values: Sequence[Any]) -> NamedRow:
        return NamedRow(self._places, values)

"""What operations need of a database: statements by their names, and rows by the names of their columns.
Tests: forkpoint.testing.conformance, which runs every operation on every database."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol


class Row(Protocol):
    """One row of an answer."""

    def __getitem__(self, column: str, /) -> Any: ...

    def keys(self) -> Iterable[str]: ...


class Cursor(Protocol):
    """What a statement has answered."""

    @property
    def rowcount(self) -> int: ...

    def close(self) -> None: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...


class Database(Protocol):
    """A connection on which an operation runs, inside a transaction."""

    @property
    def path(self) -> str:
        """What errors call the store."""
        ...

    def within(self, tenant: str, /) -> "Database":
        """The same transaction for another tenant: its rows are meant where a statement's parameters name no tenant."""
        ...

    def run(self, name: str, parameters: Mapping[str, Any] | Sequence[Any] = (), /) -> Cursor:
        """Runs a statement of `forkpoint.store.sql` by its name."""
        ...

    def run_many(self, name: str, rows: Iterable[Sequence[Any]], /) -> Cursor:
        """Runs a statement once for each row of parameters."""
        ...

    def tuples(self, name: str, parameters: Mapping[str, Any] | Sequence[Any] = (), /) -> Cursor:
        """As `run`, with plain tuples as rows, where the cost of a row counts."""
        ...

    def insert(self, name: str, parameters: Mapping[str, Any], /) -> int:
        """Inserts one row, and returns the number that the database has given it."""
        ...

    def flaws(self) -> Iterator[tuple[str, str]]:
        """Where the database itself finds that rows do not fit together, and what is wrong there.

        Raises `StoreDamaged` if it cannot be read as it should.
        """
        ...

    def is_duplicate(self, error: Exception) -> bool:
        """Whether a statement was refused since an id, a key or a name is there already. The operation fails then."""
        ...

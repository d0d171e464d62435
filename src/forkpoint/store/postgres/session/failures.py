"""What PostgreSQL's errors mean, by their SQLSTATE: to a caller, and to whoever decides whether to try again.
Tests: tests/postgres/test_transactions.py, test_opening.py."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg

from forkpoint.errors import ForkpointError, StoreDamaged, StoreUnavailable, StoreUnusable

# Serialization, deadlock, a unique key that another transaction had taken first, an event that the collector was taking
# while a head came to stand there.
_AGAIN = {"40001", "40P01", "23505", "23503", "23001"}
_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25P03")  # connection errors, the server goes or comes, it hung up
_POOLER = {"26000", "42P05"}  # a prepared statement that is not there, or is there already
_FULL = {"53100"}
_CONNECTIONS = {"53300"}
_READ_ONLY = "25006"
# What a server or a pooler says of a connection that it will never take, in English: there is no SQLSTATE then.
_REFUSED = ("authentication failed", "does not exist", "no password supplied", "no pg_hba.conf entry", "no such ")
_ABSENT = ("42P01", "42703", "42883", "3F000", "42704")  # tables, columns, functions that a store has
_DAMAGED = ("XX001", "XX002")


def is_to_be_tried_again(error: BaseException) -> bool:
    """Whether the same operation may well succeed in another transaction: another one came between."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _AGAIN


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, so that nobody heard what became of the statement."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, OSError)
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_LOST)
    return isinstance(error, psycopg.OperationalError)


def is_read_only(error: BaseException) -> bool:
    """Whether the server only reads, as a standby does."""
    return isinstance(error, psycopg.Error) and error.sqlstate == _READ_ONLY


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Within it, what psycopg raises becomes an error that says what to do."""
    try:
        yield
    except (psycopg.Error, OSError) as error:
        raise translate(error, path) from error
    except msgspec.DecodeError as error:
        raise StoreDamaged(path, f"a row cannot be read ({error})") from error


def translate(error: Exception, path: str) -> ForkpointError:
    """What an error of PostgreSQL, or of the way to it, means to a caller."""
    if isinstance(error, ForkpointError):
        return error
    detail = _first_line(error)
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    match state:
        case None if "unsupported startup parameter" in detail:  # PgBouncer, which gives no SQLSTATE here
            return StoreUnusable.pooler_not_named(path, detail)
        case None if isinstance(error, psycopg.Error) and any(text in str(error) for text in _REFUSED):
            return StoreUnusable.login_refused(path, detail)
        case None:
            return StoreUnavailable(path, detail)
        case _ if state in _POOLER:
            return StoreUnusable.pooler_not_named(path, detail)
        case _ if state in _CONNECTIONS:
            return StoreUnavailable.too_many_connections(path, detail)
        case _ if state in _FULL:
            return StoreUnavailable.disk_full(path, detail)
        case _ if state in _ABSENT:
            return StoreUnusable.other_tables(path, detail)
        case "42501":
            return StoreUnusable.missing_rights(path, detail)
        case "08P01" if "startup parameter" in detail:
            return StoreUnusable.pooler_not_named(path, detail)
        case _ if state in _DAMAGED:
            return StoreDamaged(path, detail)
        case "25006":
            return StoreUnavailable(path, f"it only reads, as a standby does ({detail})")
        case _:
            return StoreUnavailable(path, detail)


def _first_line(error: Exception) -> str:
    """What an error says, without the statement and its place in it."""
    said = str(error).strip()
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        said = error.diag.message_primary
    return said.splitlines()[0].rstrip(".") if said else type(error).__name__

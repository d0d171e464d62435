"""The store on SQLite: one file, one writer thread, any number of readers."""

from forkpoint.store.sqlite.open_file import SqliteSettings
from forkpoint.store.sqlite.store import SqliteStore

__all__ = ["SqliteSettings", "SqliteStore"]

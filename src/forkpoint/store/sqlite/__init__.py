"""The store on SQLite: one file, one writer thread, any number of readers."""

from forkpoint.store.sqlite.store import Settings, SqliteStore

__all__ = ["Settings", "SqliteStore"]

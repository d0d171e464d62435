"""The address of a store: which database it names, and opening it. Tests: tests/store/test_address.py."""

import os
import re
from urllib.parse import unquote

from msgspec import Struct

from forkpoint.errors import BadStoreUrl
from forkpoint.store.postgres.address import is_postgres, postgres_address
from forkpoint.store.postgres.address import without_password as shown_address
from forkpoint.store.protocol import Store
from forkpoint.store.values import DEFAULT_TENANT, Access, Retention
from forkpoint.system.extras import load

_FILE = "sqlite:///"
READ_ONLY = "?mode=ro"
"""After the address of a file: nothing is written there."""

_ENDINGS = (".db", ".sqlite", ".sqlite3")
_SCHEME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]+:")  # also of host:8008; the drive of a Windows path is one letter


class FileAddress(Struct, frozen=True):
    """What the address of a SQLite file says."""

    path: str  # as it was given: perhaps relative
    read_only: bool = False


def file_address(address: str, folder: str | os.PathLike[str] = "") -> FileAddress | None:
    """The file that an address names, or None if the address names none. Raises `BadStoreUrl` for unknown options.

    A file is named by its URL, or by its plain path: a text that ends as files of SQLite do (``forkpoint.db``), that
    has a path separator (``./forkpoint``), or that is the name of a file in ``folder``, by default the working folder.
    ``~`` in a plain path is the home folder.
    """
    if not address.startswith(_FILE):
        return _plain_path(address, folder)
    name, question, options = address.removeprefix(_FILE).partition("?")
    if question and f"?{options}" != READ_ONLY:
        why = f"?{options} is not known; the only option is {READ_ONLY}, and a question mark in a name is written %3F"
        raise BadStoreUrl(address, why)
    path = unquote(name, errors="surrogateescape")
    if not path or "\0" in path:
        raise BadStoreUrl(address, "it names no file")
    return FileAddress(path, read_only=bool(question))


def _plain_path(text: str, folder: str | os.PathLike[str]) -> FileAddress | None:
    path = text.removesuffix(READ_ONLY)
    if not path.strip() or "\0" in path or _SCHEME.match(path.lstrip()):
        return None
    is_path = path.lower().endswith(_ENDINGS) or bool({os.sep, os.altsep, "/"} & {*path})
    if is_path or os.path.isfile(os.path.join(folder, path)):
        return FileAddress(os.path.expanduser(path), read_only=path != text)
    return None


async def open_store(
    url: str, *, tenant: str = DEFAULT_TENANT, access: Access = "write", retention: Retention = Retention()
) -> Store:
    """Opens a store for a tenant: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, a path, ``memory:``, or
    ``postgresql://user@host/database``.

    ``access`` says what may be written (`Access`). An address that ends in ``?mode=ro`` is opened to read.
    ``retention`` is how long this process lets the store keep what is kept for a time only.
    """
    if is_postgres(url):
        address = postgres_address(url)
        load("postgres", f"The store at {address.shown}")  # psycopg is big, and imported only here
        from forkpoint.store.postgres.settings import PostgresSettings
        from forkpoint.store.postgres.store import PostgresStore

        kept = PostgresSettings.with_retention(retention)
        return await PostgresStore.open(url, tenant=tenant, settings=kept, access=access)
    from forkpoint.store.sqlite import SqliteSettings, SqliteStore

    settings = SqliteSettings.with_retention(retention)
    if url == "memory:":
        return await SqliteStore.open(None, tenant=tenant, settings=settings)
    if (file := file_address(url)) is not None:
        allowed: Access = "read" if file.read_only else access
        return await SqliteStore.open(file.path, tenant=tenant, settings=settings, access=allowed)
    raise BadStoreUrl(without_password(url), "it is neither an address of a kind that is known nor the path of a file")


def without_password(url: str) -> str:
    """The address as an error may show it: errors end up in logs."""
    return shown_address(url) if is_postgres(url) else re.sub(r"(?<=//)[^/@]*@", "***@", url)

"""`look`: what is at a store's address. It makes no file, migrates no format and takes no lock.
Tests: tests/cli/test_doctor.py, tests/cli/test_with_a_server.py."""

import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.conversation.place import as_url
from forkpoint.conversation.portal import wait_for
from forkpoint.errors import BadStoreUrl
from forkpoint.remote.addresses import is_server
from forkpoint.store.address import file_address, open_store, without_password
from forkpoint.store.postgres.address import is_postgres, postgres_address
from forkpoint.store.sqlite.disk.log import check_absent
from forkpoint.store.sqlite.files import FORMAT
from forkpoint.store.sqlite.glance import glance
from forkpoint.system import extras
from forkpoint.workspace.defaults import named_store


class Look(Struct, frozen=True):
    """What is at an address."""

    address: str  # without a password
    source: str | None  # who named it: FORKPOINT_STORE, settings file or default; None if the caller did
    there: bool = False
    format: int | None = None
    newest_format: int = FORMAT  # of this version, which migrates an older format when it opens the store
    conversations: int | None = None
    bytes: int | None = None
    readers: str | None = None  # who else than its owner may read the file
    is_checked: bool = False  # whether SQLite has checked every page of the file
    anchored: int | None = None  # when the newest seal in it was made
    pending: bool = False  # whether something that was deleted may still be on the disk
    flaws: tuple[str, ...] = ()  # settings of a database server that break a promise, with what mends them
    advice: tuple[str, ...] = ()  # what could be better there
    postgres: str | None = None  # the version of PostgreSQL, if the address is a database's
    server: str | None = None  # the version of the server, if the address is a server's
    key: bool = False  # whether FORKPOINT_API_KEY was sent to the server, and accepted


def look(store: str | None = None) -> Look:
    """What is at a store's address. Default: the address that `Conversation` uses. Raises what opening it would raise.

    A server is asked whether it is ready, and whether it accepts the key of FORKPOINT_API_KEY.
    """
    address, source = _address(store)
    shown = Look(without_password(address), source)
    path = _file(address)
    if path is None:
        if is_server(address):
            version, key = wait_for("look()", _look_at_server, address)
            return replace(shown, there=True, server=version, key=key)
        if is_postgres(address):
            return _look_into_database(address, shown)
        if address != "memory:":
            wait_for("look()", open_store, address)  # raises: no other kind of address exists
        return shown
    try:
        return _look_into(path, shown)
    except OSError as error:
        raise BadStoreUrl(shown.address, error.strerror or str(error)) from error


def is_there(store: str | None) -> bool:
    """Whether a store's address has something to read. If not, opening the store would make a file."""
    path = _file(_address(store)[0])
    try:
        return path is None or path.exists() or Path(f"{path}-wal").exists()  # a log alone is an error
    except OSError:
        return True  # opening it raises the reason


def is_remote(store: str | None) -> bool:
    """Whether a store's address is a server's."""
    return is_server(_address(store)[0])


def default_agent(store: str | None) -> "ServerAgent":
    """The agent that answers at a server unless the caller names another."""
    agents = wait_for("agents", _agents_of_server, _address(store)[0])
    return next((agent for agent in agents if agent.default), agents[0])


class ServerAgent(Struct, frozen=True):
    """An agent of a server."""

    name: str
    model: str
    default: bool = False


def _look_into(path: Path, shown: Look) -> Look:
    """What is in a file."""
    if not path.exists():
        check_absent(path)
        if not path.parent.is_dir() and shown.source != "default":
            raise BadStoreUrl(shown.address, f"there is no folder {str(path.parent)!r}; make it first")
        return shown
    if not path.is_file():
        raise BadStoreUrl(shown.address, "it is not a file")
    found = glance(path)
    return replace(
        shown,
        there=True,
        format=found.format,
        conversations=found.conversations,
        bytes=found.bytes,
        readers=found.readers,
        is_checked=found.is_checked,
        anchored=found.anchored,
        pending=found.pending,
    )


def _look_into_database(address: str, shown: Look) -> Look:
    """What is in a PostgreSQL database, and which settings of its server matter."""
    extras.load("postgres", "a store in PostgreSQL")
    from forkpoint.store.postgres.care.examination import examine

    found = examine(postgres_address(address))
    return replace(
        shown,
        address=postgres_address(address).shown,
        there=found.format is not None,
        format=found.format,
        newest_format=found.newest_format,
        conversations=found.conversations,
        bytes=found.bytes,
        is_checked=True,
        flaws=found.flaws,
        advice=found.advice,
        postgres=found.server,
    )


class _Health(Struct, frozen=True):
    version: str


class _Agents(Struct, frozen=True):
    items: tuple[ServerAgent, ...]


async def _agents_of_server(url: str) -> tuple[ServerAgent, ...]:
    from forkpoint.remote.connection import ServerConnection, ServerRequest

    connection = ServerConnection(url)
    try:
        return (await connection.read(ServerRequest(method="GET", path="/api/agents"), _Agents)).items
    finally:
        await connection.close()


async def _look_at_server(url: str) -> tuple[str, bool]:
    """The version of a server, and whether a key was sent. Raises an error if it is not ready or rejects the caller."""
    from forkpoint.remote.backend import RemoteBackend
    from forkpoint.remote.connection import ServerConnection, ServerRequest, api_key

    connection = ServerConnection(url)
    server = RemoteBackend(connection)
    try:
        health = await connection.read(ServerRequest(method="GET", path="/health"), _Health)
        await connection.call(ServerRequest(method="GET", path="/ready"))
        await server.conversations(limit=1)
    finally:
        await server.close()
    return health.version, api_key(url) is not None


def _address(store: str | None) -> tuple[str, str | None]:
    """The address as a URL, and who named it; None if the caller did."""
    address, source = (store, None) if store is not None else named_store()
    return as_url(address), source


def _file(address: str) -> Path | None:
    """The file that an address names; None if it names no file."""
    try:
        file = file_address(address)
        return None if file is None else Path(os.path.realpath(file.path))
    except (BadStoreUrl, ValueError):  # opening it raises the reason
        return None

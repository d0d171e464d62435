"""A look at a store that changes nothing: no file is made, no format is migrated, no lock is taken."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.conversation.place import as_url
from forkpoint.conversation.portal import wait_for
from forkpoint.errors import BadStoreUrl
from forkpoint.remote.addresses import is_server
from forkpoint.store.address import open_store
from forkpoint.store.sqlite.files import FORMAT
from forkpoint.store.sqlite.glance import glance
from forkpoint.workspace.defaults import named_store

_FILE = "sqlite:///"


class Look(Struct, frozen=True):
    """What stands at an address."""

    address: str  # without a password
    source: str  # who named it
    there: bool = False
    format: int | None = None
    newest_format: int = FORMAT  # that this program knows; it migrates an older one when it opens it
    conversations: int | None = None
    bytes: int | None = None
    server: str | None = None  # its version, if it is a server's
    key: bool = False  # whether it was shown a key, and took it


def look(store: str | None = None) -> Look:
    """What stands at a store's address, by default the one that commands use. Raises what opening it would raise.

    A server is asked whether it is ready, and whether it takes our key.
    """
    address, source = _address(store)
    shown = Look(re.sub(r"(?<=//)[^/@]*@", "***@", address), source)
    path = _file(address)
    if path is None:
        if is_server(address):
            version, key = wait_for("look()", _look_at_server, address)
            return replace(shown, there=True, server=version, key=key)
        if address != "memory:":
            wait_for("look()", open_store, address)  # raises, for nothing else can be opened
        return shown
    try:
        return _look_into(path, shown)
    except OSError as error:
        raise BadStoreUrl(shown.address, error.strerror or str(error)) from error


def is_there(store: str | None) -> bool:
    """Whether there is something to read at a store's address, so that reading makes no file."""
    path = _file(_address(store)[0])
    try:
        return path is None or path.exists()
    except OSError:
        return True  # opening it says what is wrong


def is_remote(store: str | None) -> bool:
    """Whether a store's address is a server's."""
    return is_server(_address(store)[0])


def default_agent(store: str | None) -> "AgentThere":
    """Who answers at a server if nobody says who."""
    agents = wait_for("agents", _agents_of_server, _address(store)[0])
    return next((agent for agent in agents if agent.default), agents[0])


class AgentThere(Struct, frozen=True):
    """An agent that a server has."""

    name: str
    model: str
    default: bool = False


def _look_into(path: Path, shown: Look) -> Look:
    """What stands in a file."""
    if not path.exists():
        if not path.parent.is_dir() and shown.source != "default":
            raise BadStoreUrl(shown.address, f"there is no folder {str(path.parent)!r}; make it first")
        return shown
    if not path.is_file():
        raise BadStoreUrl(shown.address, "it is not a file")
    found = glance(path)
    return replace(shown, there=True, format=found.format, conversations=found.conversations, bytes=found.bytes)


class _Health(Struct, frozen=True):
    version: str


class _Agents(Struct, frozen=True):
    items: tuple[AgentThere, ...]


async def _agents_of_server(url: str) -> tuple[AgentThere, ...]:
    from forkpoint.remote.connection import ServerConnection, ServerRequest

    connection = ServerConnection(url)
    try:
        return (await connection.read(ServerRequest(method="GET", path="/api/agents"), _Agents)).items
    finally:
        await connection.close()


async def _look_at_server(url: str) -> tuple[str, bool]:
    """The version of a server that is ready and lets us in, and whether it was shown a key. Raises what is wrong."""
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


def _address(store: str | None) -> tuple[str, str]:
    """The address that is meant, and who says so."""
    address, source = (store, "--store") if store is not None else named_store()
    return as_url(address), source


def _file(address: str) -> Path | None:
    """The file that an address names, if it names one."""
    if not address.startswith(_FILE) or not (name := unquote(address.removeprefix(_FILE), errors="surrogateescape")):
        return None
    try:
        return Path(os.path.realpath(name))
    except ValueError:  # no file can have that name; opening it says so
        return None

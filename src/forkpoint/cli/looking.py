"""A look at a store that changes nothing: no file is made, no format is migrated, no lock is taken."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.conversation.defaults import named_store
from forkpoint.conversation.places import as_url
from forkpoint.conversation.portal import wait_for
from forkpoint.errors import BadStoreUrl
from forkpoint.store.opening import open_store
from forkpoint.store.sqlite.files import FORMAT
from forkpoint.store.sqlite.glance import glance

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


def look(store: str | None = None) -> Look:
    """What stands at a store's address, by default the one that commands use. Raises what opening it would raise."""
    address, source = _address(store)
    shown = Look(re.sub(r"(?<=//)[^/@]*@", "***@", address), source)
    path = _file(address)
    if path is None:
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

"""What a store keeps for its servers: the keys of callers, and the file with agents and settings. So a server needs
nothing but the address of its store. Tests: tests/server/test_stored_keys.py, tests/cli/test_config.py."""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from forkpoint.conversation.look import is_there
from forkpoint.conversation.portal import wait_for
from forkpoint.errors import BadConfig
from forkpoint.server.absence import once_there
from forkpoint.server.http.keys import ApiKey, NewKey, Role, add_key, change_role, list_keys, revoke_key
from forkpoint.server.http.stored_keys import (
    StoredKeys,
    add_stored_key,
    change_stored_role,
    list_stored_keys,
    revoke_stored_key,
    stored_keys,
)
from forkpoint.server.settings import History
from forkpoint.store import Store, StoredDocument, open_store

KIND, NAME = "config", "server"
"""Where a server's file stands on the store's shelf."""

T = TypeVar("T")


class Shelf(Struct, frozen=True):
    """What a store has for its servers. None is what it does not have."""

    keys: StoredKeys | None = None
    config: str | None = None


def read_shelf(address: str, told: Callable[[str], None]) -> Shelf:
    """What is on the shelf of the store at an address. A file that is not there is not made. Raises `BadKeys`.

    A database that does not answer is waited for; ``told`` is called after each try.
    """
    if address == "memory:" or not is_there(address):
        return Shelf()

    async def read(store: Store) -> Shelf:
        config = await store.document(KIND, NAME)
        keys = await stored_keys(store, f"the store at {shown(address)}")
        return Shelf(keys, None if config is None else config.text)

    return wait_for("the store", lambda: once_there(address, lambda: _use(address, read), told))


def read_config(address: str) -> StoredDocument | None:
    """The server's file in the store at an address, or None."""
    return _at(address, lambda store: store.document(KIND, NAME))


def put_config(address: str, text: str | None) -> bool:
    """Puts a server's file into a store, or takes it away with None. Returns whether one was there before."""

    async def put(store: Store) -> bool:
        while True:
            before = await store.document(KIND, NAME)
            version = 0 if before is None else before.version
            if before is None and text is None:
                return False
            if await store.put_document(KIND, NAME, text, if_version=version) is not None:
                return before is not None

    return _at(address, put)


class KeyPlace(Protocol):
    """Where keys are kept, as ``forkpoint keys`` changes them."""

    name: str  # as people call it
    document: dict[str, str]  # the same for programs

    def add(self, name: str, tenant: str, *, role: Role, history: History | None) -> NewKey: ...

    def list(self) -> tuple[ApiKey, ...]: ...

    def change_role(self, given: str, role: Role) -> ApiKey: ...

    def revoke(self, given: str) -> ApiKey: ...


class KeysInFile:
    """The keys of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)
        self.document = {"file": self.name}

    def add(self, name: str, tenant: str, *, role: Role, history: History | None) -> NewKey:
        return add_key(self._path, name, tenant, role=role, history=history)

    def list(self) -> tuple[ApiKey, ...]:
        return list_keys(self._path)

    def change_role(self, given: str, role: Role) -> ApiKey:
        return change_role(self._path, given, role)

    def revoke(self, given: str) -> ApiKey:
        return revoke_key(self._path, given)


class KeysInStore:
    """The keys of a store."""

    def __init__(self, address: str) -> None:
        if address == "memory:":
            raise BadConfig("a store in memory is gone with this command: name a file or a database for the keys")
        self._address = address
        self.name = f"the store at {shown(address)}"
        self.document = {"store": shown(address)}

    def add(self, name: str, tenant: str, *, role: Role, history: History | None) -> NewKey:
        add = partial(add_stored_key, place=self.name, name=name, tenant=tenant, role=role, history=history)
        return _at(self._address, add)

    def list(self) -> tuple[ApiKey, ...]:
        if not is_there(self._address):
            return ()
        return _at(self._address, partial(list_stored_keys, place=self.name))

    def change_role(self, given: str, role: Role) -> ApiKey:
        return _at(self._address, partial(change_stored_role, place=self.name, given=given, role=role))

    def revoke(self, given: str) -> ApiKey:
        return _at(self._address, partial(revoke_stored_key, place=self.name, given=given))


def shown(address: str) -> str:
    """An address as it may be shown: without a password."""
    return re.sub(r"(?<=//)[^/@]*@", "***@", address)


def _at(address: str, do: Callable[[Store], Awaitable[T]]) -> T:
    return wait_for("the store", lambda: _use(address, do))


async def _use(address: str, do: Callable[[Store], Awaitable[T]]) -> T:
    """Opens the store at an address, does something with it, and closes it."""
    async with await open_store(address) as store:
        return await do(store)

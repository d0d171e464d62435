"""Keys of callers in the store itself: all servers on the store have the same, and none needs a file.

The store has the very text that a file would have, with hashes only. A server looks every second whether it has
changed. Tests: tests/server/test_stored_keys.py.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from forkpoint.clock import Clock, system_clock
from forkpoint.errors import BadKeys, ForkpointError
from forkpoint.server.http.keys import (
    ApiKey,
    KeyEntry,
    KeyTable,
    NewKey,
    Role,
    change_to_role,
    changed_entries,
    check_new_key,
    key_of,
    new_entry,
    parse_keys,
    write_keys,
)
from forkpoint.server.settings import History
from forkpoint.store import DEFAULT_TENANT, Store, StoredDocument

KIND, NAME = "keys", "callers"
"""Where the keys stand on the store's shelf."""

LOOK = 1.0
"""Seconds between two looks whether the keys have changed."""

_TRIES = 50  # others may change the keys at the same moment

_log = logging.getLogger("forkpoint.server")


class StoredKeys:
    """The keys in a store, as they are now: a key that is added or revoked is so here within a second or two.

    While the store does not answer, and if what it has cannot be used, the keys stay as they were, and a warning says
    so once.
    """

    def __init__(self, document: StoredDocument, place: str = "the store") -> None:
        """The keys of a document. Raises `BadKeys` if it cannot be used."""
        self._place = place
        self._version = document.version
        self._table = KeyTable(parse_keys(place, document.text.encode()))
        self._warned = False

    def find(self, token: str) -> ApiKey | None:
        return self._table.find(token)

    async def watch(self, store: Store) -> None:
        """Looks for changes. Never ends by itself."""
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self.refresh(store)
            except ForkpointError as error:
                if not self._warned:
                    _log.warning("The keys stay as they were when they were last read. %s", error)
                self._warned = True
            except Exception:
                _log.exception("whether the keys have changed could not be seen")
            else:
                self._warned = False

    async def refresh(self, store: Store) -> None:
        """Looks once. Raises `BadKeys` if the keys are gone or cannot be used, and what the store raises."""
        version = (await store.document_versions(KIND)).get(NAME)
        if version == self._version:
            return
        document = await store.document(KIND, NAME)
        if document is None:
            raise BadKeys(self._place, "it has no keys any more")
        self._table = KeyTable(parse_keys(self._place, document.text.encode()))
        self._version = document.version
        _log.info("the keys have changed: there are %d", len(self._table))


async def stored_keys(store: Store, place: str = "the store") -> StoredKeys | None:
    """The keys in a store, or None if it never had any. Raises `BadKeys`."""
    document = await store.document(KIND, NAME)
    return None if document is None else StoredKeys(document, place)


async def list_stored_keys(store: Store, place: str) -> tuple[ApiKey, ...]:
    """The keys in a store, in the order in which they were made."""
    entries, _ = await _read(store, place)
    return tuple(map(key_of, entries))


async def add_stored_key(
    store: Store,
    place: str,
    name: str,
    tenant: str = DEFAULT_TENANT,
    *,
    role: Role = "use",
    history: History | None = None,
    clock: Clock = system_clock,
) -> NewKey:
    """Makes a key in a store. Raises `AlreadyExists` if the name is taken."""
    check_new_key(name, tenant, role, history)
    token = ""

    def add(entries: Sequence[KeyEntry]) -> tuple[tuple[KeyEntry, ...], ApiKey]:
        nonlocal token
        made, token = new_entry(entries, name, tenant, role, history, clock())
        return (*entries, made), key_of(made)

    return NewKey(await _change(store, place, add), token)


async def revoke_stored_key(store: Store, place: str, given: str) -> ApiKey:
    """Takes a key out of a store, by its id, its name, or the whole key. Raises `NotFound`."""
    return await _change(store, place, lambda entries: changed_entries(entries, given, lambda _: None, place))


async def change_stored_role(store: Store, place: str, given: str, role: Role) -> ApiKey:
    """Gives a key in a store another role. The key stays as it is. Raises `NotFound`."""
    change = change_to_role(role)
    return await _change(store, place, lambda entries: changed_entries(entries, given, change, place))


async def _read(store: Store, place: str) -> tuple[tuple[KeyEntry, ...], int]:
    """The keys as they are kept, and their version."""
    document = await store.document(KIND, NAME)
    return ((), 0) if document is None else (parse_keys(place, document.text.encode()), document.version)


async def _change(
    store: Store, place: str, change: Callable[[Sequence[KeyEntry]], tuple[tuple[KeyEntry, ...], ApiKey]]
) -> ApiKey:
    """Changes the keys. Begins again if somebody else was faster."""
    for _ in range(_TRIES):
        entries, version = await _read(store, place)
        changed, key = change(entries)
        if await store.put_document(KIND, NAME, write_keys(changed).decode(), if_version=version) is not None:
            return key
    raise BadKeys(place, "others changed the keys all the time")

"""`Place`: where conversations live, by its address. A place is opened when it is first needed.

All conversations of an event loop that name the same address, or the same open store, share one backend: one writer,
and one set of connections to models. The backend is closed together with the last of these conversations.
Tests: tests/conversation/test_place.py.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread

from forkpoint.backend.protocol import Backend
from forkpoint.errors import BadSetting, BadStoreUrl, CopyRefused
from forkpoint.remote.addresses import is_server, key_in_use, server_url
from forkpoint.store.address import file_address, open_store, without_password
from forkpoint.store.postgres.address import is_postgres
from forkpoint.store.protocol import Store
from forkpoint.store.values import Restored
from forkpoint.threads.shield import finished
from forkpoint.workspace.defaults import address_within, default_store, file_url, named_store
from forkpoint.workspace.retention import retention

Where: TypeAlias = str | os.PathLike[str] | Store | None
"""Where conversations live: an address, a path of a SQLite file, an open store, or None for the default."""


class Place:
    """An address, and its backend once that is needed."""

    def __init__(self, where: Where = None) -> None:
        self._where = where
        self._shared: _Shared | None = None
        self._is_remote: bool | None = None

    @classmethod
    def around(cls, backend: Backend) -> "Place":
        """A place with a backend that is open already. Whoever opened the backend closes it."""
        place = cls()
        place._shared = _Shared("", "", None)
        place._shared.backend = backend
        place._shared.users = 2  # this one, and whoever opened it
        place._is_remote = False
        return place

    @property
    def is_remote(self) -> bool:
        """Whether the address is a server's. Decided once, because a server takes other agents and folders."""
        if self._is_remote is None:
            where = self._where
            if where is None:
                with suppress(BadSetting):  # a file that cannot be read is an error when the place is opened
                    where = named_store()[0]
            self._is_remote = isinstance(where, str) and is_server(where)
            self._where = where if self._is_remote else self._where
        return self._is_remote

    @property
    def address(self) -> str:
        """The address, without a password."""
        return without_password(self._named()[0])

    @property
    def is_open(self) -> bool:
        """Whether the backend was needed yet."""
        return self._shared is not None

    async def backend(self) -> Backend:
        """The backend, opened now if it is not open yet."""
        if self._shared is None:
            address, store = self._named()
            key = f"{address} {key_in_use()}" if is_server(address) else address  # another key is another place
            shared = _all_shared().setdefault(key, _Shared(key, address, store))
            shared.users += 1
            self._shared = shared  # before anything is awaited, so that two at once are one user
        shared = self._shared
        try:
            return await shared.opened()
        except BaseException:
            if shared.backend is None and self._shared is shared:
                self._shared = None
                shared.left()
            raise

    def also(self) -> "Place":
        """The same place for one more user, who leaves it too."""
        again = Place(self._where)
        again._is_remote = self._is_remote
        if self._shared is not None:
            again._shared = self._shared
            self._shared.users += 1
        return again

    async def leave(self) -> None:
        """Ends this use of the backend. The last user closes it."""
        shared = self._shared
        if shared is not None and shared.users == 1 and shared.backend is not None:
            shared.backend.check_closable()
        self._shared = None
        if shared is not None and shared.left() and shared.backend is not None:
            await finished(shared.backend.close)

    async def restore(self, restore: Callable[[str], Restored]) -> Restored:
        """Makes the file or the tables of this place, in another thread. Raises `CopyRefused` for a server."""
        address, _ = self._named()
        if is_server(address):
            raise CopyRefused.on_a_server(self.address)
        if address in _all_shared():
            raise CopyRefused.store_in_use(self.address)
        if is_postgres(address):
            return await anyio.to_thread.run_sync(restore, address)
        file = file_address(address)
        if file is None or file.read_only:
            raise BadStoreUrl(
                self.address, "only a file can be restored, as sqlite:///file.db, or a PostgreSQL database"
            )
        return await anyio.to_thread.run_sync(restore, file.path)

    def _named(self) -> tuple[str, Store | None]:
        """The name under which the backend is shared; and the store, if the caller gave an open one."""
        if self._where is None or isinstance(self._where, str | os.PathLike):
            return as_url(self._where), None
        return f"store {id(self._where)}", self._where


def as_url(where: str | os.PathLike[str] | None) -> str:
    """The address as a URL, the same for all spellings. A path is a SQLite file."""
    if where is None:
        where = default_store()
    if isinstance(where, os.PathLike):
        return file_url(os.fspath(where))
    return server_url(where) if is_server(where) else address_within(Path(), where)


class _Shared:
    """A backend, and how many conversations use it."""

    def __init__(self, key: str, address: str, store: Store | None) -> None:
        self.backend: Backend | None = None
        self.users = 0
        self._key = key
        self._address = address
        self._store = store
        self._lock = anyio.Lock()

    async def opened(self) -> Backend:
        async with self._lock:
            if self.backend is None:
                self.backend = await self._open()
            return self.backend

    async def _open(self) -> Backend:
        from forkpoint.engine.engine import Engine

        if self._store is not None:
            return Engine(self._store, owns_store=False)
        if is_server(self._address):
            from forkpoint.remote.backend import RemoteBackend

            return RemoteBackend(self._address)
        return Engine(await open_store(self._address, access="as_needed", retention=retention()))

    def left(self) -> bool:
        """Counts one user less. Returns whether that was the last."""
        self.users -= 1
        if self.users == 0:
            _all_shared().pop(self._key, None)
        return self.users == 0


_shared: anyio.lowlevel.RunVar[dict[str, _Shared]] = anyio.lowlevel.RunVar("forkpoint places")


def _all_shared() -> dict[str, _Shared]:
    """The places that this event loop has open."""
    try:
        return _shared.get()
    except LookupError:
        places: dict[str, _Shared] = {}
        _shared.set(places)
        return places


async def close_all() -> None:
    """Closes every place that this event loop has open, whoever still uses it."""
    places = _all_shared()
    for shared in list(places.values()):
        if shared.backend is not None:
            await shared.backend.close()
    places.clear()

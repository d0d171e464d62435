"""An open store: its file, its writer, its readers, and the turns that this process holds in it.
Tests: tests/store/test_files.py, test_several_processes.py, test_one_process_twice.py, test_kill.py, test_absent.py,
test_read_only.py."""

import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio.to_thread

from forkpoint.clock import Clock
from forkpoint.errors import BadStoreUrl, ForkpointError, StoreUnavailable, StoreUnusable
from forkpoint.events import Usage
from forkpoint.store.checks import Checks
from forkpoint.store.sqlite.connection import (
    MEMORY,
    Connect,
    Database,
    closed_on_failure,
    connect,
    connect_reader,
    translated,
)
from forkpoint.store.sqlite.disk.log import check_absent
from forkpoint.store.sqlite.disk.quiet import QuietPulse, QuietReaders, unwritable
from forkpoint.store.sqlite.files import check_place, make_tables, prepare, prepare_to_read, write_lock
from forkpoint.store.sqlite.holders import Holder
from forkpoint.store.sqlite.pulse import Pulse
from forkpoint.store.sqlite.reader import Readers, SharedReaders
from forkpoint.store.sqlite.writer import WriteJob, Writer
from forkpoint.store.tables.database import Database as AnyDatabase
from forkpoint.store.tables.settings import SECOND, StoreSettings
from forkpoint.store.values import Access, Capabilities
from forkpoint.system.file_lock import NoLock
from forkpoint.threads.wakeup import finish_in_thread

_log = logging.getLogger("forkpoint")


class SqliteSettings(StoreSettings, frozen=True, kw_only=True):
    """How a SQLite store behaves."""

    readers: int = 4  # reads at once


DEFAULTS = SqliteSettings()


@dataclass
class OpenFile:
    """What all tenants of one open store share.

    It is in one of three states. **Open**: it has a writer. **Absent**: there is no file yet, reads find an empty
    store, and the first write makes the file. **Quiet**: nothing is written, and `read_only` says why.
    """

    path: str
    settings: SqliteSettings
    clock: Clock
    holder: Holder
    readers: Readers
    pulse: Pulse | QuietPulse
    connect: Connect
    read_only: str | None = None
    beaten: int | None = None  # when this process last said, in a committed transaction, that it is alive
    running: set[bytes] = field(default_factory=set)  # tokens of the turns that this process holds
    # Turns whose outcome is unknown, by tenant and id: their token, and what was spent last.
    unsettled: dict[tuple[str, str], tuple[bytes, Usage]] = field(default_factory=dict)
    closed: bool = False
    _writer: Writer | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)
    is_only_measured: bool = False  # somebody asked what a collection would remove: then closing removes nothing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None,
        settings: SqliteSettings,
        clock: Clock,
        connect: Connect,
        access: Access = "write",
    ) -> Self:
        """Opens a file, as far as ``access`` says; None keeps everything in memory. Blocks its thread."""
        try:
            name = MEMORY if path is None else os.path.realpath(path)
        except ValueError as error:
            raise BadStoreUrl(str(path), f"no file can have that name ({error})") from None
        place = Path(name)
        why = None if path is None else _reason_not_to_write(place, access)
        holder = Holder(None if path is None else name, settings.expiry, clock(), tidies=why is None)
        empty = Readers(name, connect_to_nothing, 1)
        file = cls(name, settings, clock, holder, empty, QuietPulse(name), connect, why)
        if why is not None:
            prepare_to_read(place)
            file.readers = QuietReaders(name, settings.readers)
        elif path is None or access == "write" or place.exists():
            file._open()
        else:
            check_place(place)
            check_absent(place)
        return file

    @property
    def writer(self) -> Writer:
        """The writer of a store that is open."""
        assert self._writer is not None
        return self._writer

    @property
    def commits(self) -> int:
        """How many transactions this process has committed."""
        return 0 if self._writer is None else self._writer.commits

    @property
    def is_open(self) -> bool:
        """Whether it can be written to, as it is."""
        return self._writer is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether a COMMIT failed, and nobody knows yet what is on the disk."""
        return self._writer is not None and self._writer.in_doubt

    async def to_read(self) -> Readers:
        """The readers. If another process has made the file meanwhile, it is opened first."""
        if self._writer is None and self.read_only is None:
            await anyio.to_thread.run_sync(self._open_if_there)
        return self.readers

    async def to_write(self) -> Writer:
        """The writer. Makes the file if need be. Raises `StoreUnusable` if nothing may be written."""
        if self._writer is None:
            self.check_writable()
            await anyio.to_thread.run_sync(self._open)
        return self.writer

    async def enrol(self) -> None:
        """Makes the file if need be, and takes the lock that shows that this process lives."""
        await self.to_write()  # before the lock of this process is put beside the file
        try:
            self.holder.enrol()
        except OSError as error:
            raise StoreUnusable.read_only(self.path, error.strerror or str(error)) from error

    def check_writable(self) -> None:
        """Raises `StoreUnusable` if the file is open for reading only."""
        if self.read_only is not None:
            raise StoreUnusable.opened_to_read(self.path, self.read_only)

    async def is_made(self) -> bool:
        """Whether there is a file to write to. Raises `StoreUnusable` if nothing may be written."""
        await self.to_read()
        self.check_writable()
        return self.is_open

    async def to_watch(self) -> Pulse | QuietPulse:
        """The pulse."""
        await self.to_read()
        return self.pulse

    def _open_if_there(self) -> None:
        if os.path.exists(self.path):
            self._open()
        else:
            check_absent(Path(self.path))

    def _open(self) -> None:
        """Makes or migrates the file if need be, and opens it for reading and writing. Once it is open: nothing."""
        with self._opening:
            if self._writer is not None:
                return
            if self.closed:
                raise StoreUnavailable.store_closed(self.path)
            on_disk, place = self.path != MEMORY, Path(self.path)
            if on_disk:
                prepare(place)
            lock = write_lock(place) if on_disk else NoLock()
            every = self.settings.heartbeat / SECOND
            of_nothing = self.readers
            with translated(self.path):
                writer = Writer(self.path, self.connect, lock, beat=self.beat, every=every, alone=self.is_alone)
                if on_disk:
                    self.readers = Readers(self.path, connect_reader, self.settings.readers)
                else:
                    make_tables(writer.connection)
                    self.readers = SharedReaders(writer)
                self.pulse = Pulse(self.path, connect_reader, writer)
            self._writer = writer
            of_nothing.retire()

    @property
    def checks(self) -> Checks:
        return Checks(self.settings.limits)

    @property
    def capabilities(self) -> Capabilities:
        on_disk = self.path != MEMORY
        return Capabilities(durable=on_disk, shared=on_disk, notify=False)

    async def close(self) -> None:
        """Finishes the jobs that are queued, then closes everything. Turns that are still open are interrupted."""
        if self.closed:
            return
        self.closed = True
        try:
            if self.beaten is not None:
                with suppress(ForkpointError):  # the lock of its holder says the same
                    await self.writer.finish(
                        WriteJob("leave", "", self._say_gone, landed=lambda db: True, durable=False)
                    )
        finally:
            await finish_in_thread(self._let_go)

    def beat(self) -> WriteJob[Any] | None:
        """The heartbeat; None while this process holds no turn."""
        if not self.running:
            return None
        return WriteJob("heartbeat", "", self.say_alive, landed=lambda db: True, durable=False)

    def is_alone(self) -> bool:
        """Whether at most one turn is open here, so that no other could share its transaction."""
        return len(self.running) <= 1

    def say_alive(self, db: AnyDatabase) -> int:
        """Writes a heartbeat, and returns its time."""
        now = self.clock()
        db.run("beat", self.holder.row | {"now": now})
        return now

    def doubt(self, token: bytes, *, begun: bool) -> None:
        self.running.add(token)  # until it is settled: only this process can say what became of it

    def is_silent(self) -> bool:
        """Whether the last heartbeat is old, because this process held no turn for a while."""
        return self.beaten is None or self.clock() - self.beaten > self.settings.heartbeat

    def _say_gone(self, db: Database) -> None:
        db.run("leave", {"id": self.holder.id})

    def _let_go(self) -> None:
        """Closes the parts, in an order in which no part is used after it is closed. A part that fails is logged."""
        with self._opening:  # nobody opens it from now on
            ends = () if self._writer is None else (self._writer.close,)
        for part in (self.readers.close, self.pulse.close, *ends, self.holder.leave):
            try:
                part()
            except Exception:
                _log.exception("a part of the store could not be closed")


def connect_to_nothing(path: str) -> Database:
    """A connection to an empty store, in memory: for reads where there is no file yet."""
    db = connect(MEMORY)
    with closed_on_failure(db):
        db.path = path
        make_tables(db)
        db.execute("PRAGMA query_only = ON")
    return db


def _reason_not_to_write(path: Path, access: Access) -> str | None:
    """Why a store is opened for reading only; None if it is opened for writing too."""
    if access == "read":
        return "by ?mode=ro"
    if access == "as_needed" and path.is_file():
        return unwritable(path)
    return None

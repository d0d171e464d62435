"""An open store: its file, its writer, its readers, and the turns that this process holds in it.
Tests: tests/store/test_files.py, test_several_processes.py, test_one_process_twice.py, test_kill.py."""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from forkpoint.clock import Clock
from forkpoint.errors import BadStoreUrl, ForkpointError
from forkpoint.events import Usage
from forkpoint.store.checks import Checks
from forkpoint.store.sqlite.connection import MEMORY, SQL, Connect, Database, connect_reader, translated
from forkpoint.store.sqlite.files import make_tables, prepare, write_lock
from forkpoint.store.sqlite.holders import Holder
from forkpoint.store.sqlite.pulse import Pulse
from forkpoint.store.sqlite.reader import Readers, SharedReaders
from forkpoint.store.sqlite.writer import WriteJob, Writer
from forkpoint.store.values import Capabilities, StoreLimits
from forkpoint.system.file_lock import NoLock
from forkpoint.threads.wakeup import finish_in_thread

_log = logging.getLogger("forkpoint")

SECOND = 1_000_000
HOUR = 3600 * SECOND


class SqliteSettings(Struct, frozen=True, kw_only=True):
    """How a SQLite store behaves. Times are in microseconds."""

    limits: StoreLimits = StoreLimits()
    readers: int = 4  # reads at once
    heartbeat: int = 10 * SECOND
    expiry: int = 60 * SECOND  # a process that was silent for longer may lose its turns
    keep_drafts: int = 24 * HOUR
    keep_keys: int = 7 * 24 * HOUR


DEFAULTS = SqliteSettings()


@dataclass
class OpenFile:
    """What all tenants of one open store share."""

    path: str
    settings: SqliteSettings
    clock: Clock
    holder: Holder
    writer: Writer = field(init=False)
    readers: Readers = field(init=False)
    pulse: Pulse = field(init=False)
    beaten: int | None = None  # when this process last said, in a committed transaction, that it is alive
    running: set[bytes] = field(default_factory=set)  # tokens of the turns that this process holds
    # Turns whose outcome is unknown, by tenant and id: their token, and what was spent last.
    unsettled: dict[tuple[str, str], tuple[bytes, Usage]] = field(default_factory=dict)
    closed: bool = False

    @classmethod
    def open(
        cls, path: str | os.PathLike[str] | None, settings: SqliteSettings, clock: Clock, connect: Connect
    ) -> Self:
        """Opens a file, and makes it if it does not exist; None keeps everything in memory. Blocks its thread."""
        try:
            name = MEMORY if path is None else os.path.realpath(path)
        except ValueError as error:
            raise BadStoreUrl(str(path), f"no file can have that name ({error})") from None
        if path is not None:
            prepare(Path(name))
        file = cls(name, settings, clock, Holder(None if path is None else name, settings.expiry, clock()))
        lock = NoLock() if path is None else write_lock(Path(name))
        with translated(name):
            file.writer = Writer(
                name, connect, lock, beat=file.beat, every=settings.heartbeat / SECOND, alone=file.is_alone
            )
            if path is None:
                make_tables(file.writer.connection)
                file.readers = SharedReaders(file.writer)
            else:
                file.readers = Readers(name, connect_reader, settings.readers)
            file.pulse = Pulse(name, connect_reader, file.writer)
        return file

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

    def say_alive(self, db: Database) -> int:
        """Writes a heartbeat, and returns its time."""
        now = self.clock()
        db.execute(SQL["beat"], self.holder.row | {"now": now})
        return now

    def is_silent(self) -> bool:
        """Whether the last heartbeat is old, because this process held no turn for a while."""
        return self.beaten is None or self.clock() - self.beaten > self.settings.heartbeat

    def _say_gone(self, db: Database) -> None:
        db.execute(SQL["leave"], {"id": self.holder.id})

    def _let_go(self) -> None:
        """Closes the parts, in an order in which no part is used after it is closed. A part that fails is logged."""
        for part in (self.readers.close, self.pulse.close, self.writer.close, self.holder.leave):
            try:
                part()
            except Exception:
                _log.exception("a part of the store could not be closed")

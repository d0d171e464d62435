"""`SqliteStore`: the store of one machine, in a file or in memory. What it does in its tables, `TableStore` says.
Tests: tests/store/test_sqlite_conformance.py, test_state_machine.py, test_limits.py, test_faults.py.
"""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Self

import anyio
from anyio.lowlevel import checkpoint

from forkpoint.clock import Clock, system_clock
from forkpoint.store.sqlite.collection import collect, collect_at_close
from forkpoint.store.sqlite.connection import Connect, connect
from forkpoint.store.sqlite.copies.backup import back_up
from forkpoint.store.sqlite.open_file import DEFAULTS, OpenFile, SqliteSettings
from forkpoint.store.sqlite.tenant_view import TenantView
from forkpoint.store.tables.held_turns import HeldTurns
from forkpoint.store.tables.store import TableStore
from forkpoint.store.values import DEFAULT_TENANT, Access, Backup, Collected, CopyProgress, check_name


@dataclass(eq=False, repr=False)
class SqliteStore(TableStore, AbstractAsyncContextManager["SqliteStore", None]):
    """Conversations in a SQLite file, or in memory. Open it with `open` or `forkpoint.store.open_store`."""

    _view: TenantView

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str] | None,
        *,
        tenant: str = DEFAULT_TENANT,
        settings: SqliteSettings = DEFAULTS,
        access: Access = "write",
        clock: Clock = system_clock,
        connect: Connect = connect,
    ) -> Self:
        """Opens a file, and makes it if it does not exist; None keeps everything in memory.

        ``access`` says what may be written (`Access`). ``clock`` and ``connect`` can be replaced to test what time and
        broken disks do.
        """
        check_name("tenant", tenant)
        file = await anyio.to_thread.run_sync(partial(OpenFile.open, path, settings, clock, connect, access))
        view = TenantView(file, tenant)
        return cls(tenant, file.capabilities, view, HeldTurns(view))

    async def close(self) -> None:
        if self._is_owner:
            try:
                await collect_at_close(self._view)
            finally:
                await self._view.opened.close()

    # Care.

    async def pulse(self) -> int:
        await checkpoint()
        pulse = await self._view.opened.to_watch()
        if not pulse.is_ready:
            await anyio.to_thread.run_sync(pulse.prepare)
        return pulse.read()

    async def tell(self, text: str) -> None:
        """Reaches nobody: other processes see by the file's pulse that something was committed."""

    def hear(self, heard: Callable[[str], None]) -> AbstractContextManager[None]:
        return nullcontext()

    async def collect(self, *, dry_run: bool = False, compact: bool = False, every_tenant: bool = False) -> Collected:
        return await collect(self._view, dry_run=dry_run, compact=compact, every_tenant=every_tenant)

    async def backup(
        self, path: str | os.PathLike[str], *, force: bool = False, progress: CopyProgress | None = None
    ) -> Backup:
        return await back_up(self._view, path, force=force, progress=progress)

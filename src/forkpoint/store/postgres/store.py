"""`PostgresStore`: the store of many machines, in a PostgreSQL database. What it does in its tables, `TableStore` says.
Tests: tests/postgres/test_opening.py, test_transactions.py."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Self

from forkpoint.clock import Clock
from forkpoint.errors import StoreUnusable
from forkpoint.store.postgres.address import postgres_address
from forkpoint.store.postgres.care.dump import back_up
from forkpoint.store.postgres.care.vacuum import collect, collect_at_close
from forkpoint.store.postgres.open_database import OpenDatabase
from forkpoint.store.postgres.settings import DEFAULTS, PostgresSettings
from forkpoint.store.postgres.view import PostgresView
from forkpoint.store.tables.held_turns import HeldTurns
from forkpoint.store.tables.store import TableStore
from forkpoint.store.values import DEFAULT_TENANT, Access, Backup, Collected, CopyProgress, check_name


@dataclass(eq=False, repr=False)
class PostgresStore(TableStore, AbstractAsyncContextManager["PostgresStore", None]):
    """Conversations in a PostgreSQL database. Open it with `open` or `forkpoint.store.open_store`."""

    _view: PostgresView

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        tenant: str = DEFAULT_TENANT,
        settings: PostgresSettings = DEFAULTS,
        access: Access = "write",
        clock: Clock | None = None,
    ) -> Self:
        """Opens the database at ``postgresql://...``, and makes the tables if there are none.

        ``access`` says what may be written (`Access`). ``clock`` replaces the database's clock in tests.
        """
        check_name("tenant", tenant)
        address = postgres_address(url)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise StoreUnusable.other_event_loop(address.shown) from None
        opened = await OpenDatabase.open(address, settings, clock, access)
        view = PostgresView(opened, tenant)
        return cls(tenant, opened.capabilities, view, HeldTurns(view))

    async def close(self) -> None:
        if self._is_owner:
            try:
                await collect_at_close(self._view)
            finally:
                await self._view.opened.close()

    # Care.

    async def pulse(self) -> int:
        return await self._view.opened.pulse.read()

    async def tell(self, text: str) -> None:
        await self._view.opened.hints.tell(text)

    def hear(self, heard: Callable[[str], None]) -> AbstractContextManager[None]:
        return self._view.opened.hints.hear(heard)

    async def collect(self, *, dry_run: bool = False, compact: bool = False, every_tenant: bool = False) -> Collected:
        return await collect(self._view, dry_run=dry_run, compact=compact, every_tenant=every_tenant)

    async def backup(
        self, path: str | os.PathLike[str], *, force: bool = False, progress: CopyProgress | None = None
    ) -> Backup:
        return await back_up(self._view, path, force=force, progress=progress)

"""An open file, seen from one tenant: runs operations as reads or as writes.
Tests: tests/store/test_reading.py, test_failed_commit.py, test_failed_fsync.py, test_faults.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from forkpoint.errors import ForkpointError
from forkpoint.events import NewEvent
from forkpoint.store.actor import actor
from forkpoint.store.erasure import OUT_OF_REACH
from forkpoint.store.sqlite.cleaning import LOG_IS_READ, NOT_COMPACTED, clean
from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.open_file import OpenFile
from forkpoint.store.sqlite.writer import WriteJob
from forkpoint.store.stage import Staged, stage
from forkpoint.store.tables.held_turns import raise_barrier
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import OpenTurn

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TenantView:
    """Runs operations on a file for one tenant."""

    opened: OpenFile
    tenant: str
    quick: None = None  # a statement costs no round trip here

    async def read(self, operation: Callable[[Database, Scope], T]) -> T:
        """Runs an operation that only reads, on one snapshot: the newest at the time of the call."""
        if self.opened.is_in_doubt:
            # What is missing now might be there after a crash, until a barrier is on disk: a read must not guess.
            await self.write("barrier", "", raise_barrier, landed=lambda db, scope: True)
        scope = self.scope()
        return await (await self.opened.to_read()).run(lambda db: operation(db, scope))

    async def read_for_good(
        self, what: str, id: str, operation: Callable[[Database, Scope], T], is_answer: Callable[[T], bool]
    ) -> T:
        """The same: whatever can be read of a file is on its disk."""
        return await self.read(operation)

    async def write(
        self,
        what: str,
        id: str,
        operation: Callable[[Database, Scope], T],
        *,
        landed: Callable[[Database, Scope], bool],
        not_landed: Callable[[Exception], ForkpointError] | None = None,
        durable: bool = True,
        size: int = 0,
        alone: bool = False,
        exclusive: bool = False,
    ) -> T:
        """Runs an operation in a transaction. `WriteJob` says what the arguments mean; every one is ``exclusive`` here.

        Makes the file if it is not there yet. Raises `StoreUnusable.read_only` if nothing may be written.
        """
        writer = await self.opened.to_write()
        scope = self.scope()
        job = WriteJob(
            what,
            id,
            lambda db: operation(db, scope),
            landed=lambda db: landed(db, scope),
            not_landed=not_landed,
            durable=durable,
            size=size,
            alone=alone,
        )
        return await writer.submit(job)

    async def finish(self, what: str, id: str, operation: Callable[[Database, Scope], T]) -> T:
        """Runs an operation to its end although the caller is being cancelled. It can be repeated without harm."""
        scope = self.scope()

        def landed(db: Database) -> bool:
            operation(db, scope)  # whether it was done or not: it is now
            return True

        job = WriteJob(what, id, lambda db: operation(db, scope), landed=landed, durable=False)
        return await self.opened.writer.finish(job)

    @property
    def residue(self) -> tuple[str, ...]:
        return LOG_IS_READ, NOT_COMPACTED

    @property
    def out_of_reach(self) -> tuple[str, ...]:
        return OUT_OF_REACH

    async def clean(self) -> tuple[str, ...]:
        """Writes the file anew and empties the log, if erasures have left that to do. Returns what has to wait."""
        return await clean(self)

    def within(self, tenant: str) -> "TenantView":
        """The same file for another tenant."""
        return TenantView(self.opened, tenant)

    def scope(self) -> Scope:
        """The inputs that all operations share, as they are now."""
        now, holder = self.opened.clock(), self.opened.holder
        return Scope(self.tenant, now, holder.id, partial(holder.is_alive, now=now), actor())

    def stage(self, turn: OpenTurn, events: Sequence[NewEvent]) -> Staged:
        """The events, ready to be stored after those that the turn has journalled."""
        return stage(turn, events, now=self.opened.clock(), limits=self.opened.settings.limits)

"""An open database, seen from one tenant: runs operations as reads or as writes.
Tests: tests/postgres/test_transactions.py, forkpoint.testing.conformance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forkpoint.errors import ForkpointError
from forkpoint.events import NewEvent
from forkpoint.store.postgres.care import vacuum
from forkpoint.store.postgres.hot.writes import HotWrites
from forkpoint.store.postgres.open_database import OpenDatabase
from forkpoint.store.postgres.transactions import Write
from forkpoint.store.stage import Staged, stage
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import OpenTurn
from forkpoint.threads.shield import finished

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class PostgresView:
    """Runs operations on a database for one tenant. `forkpoint.store.tables.view.View` says what each method does."""

    opened: OpenDatabase
    tenant: str

    @property
    def quick(self) -> HotWrites | None:
        """None if each transaction has to say first whose rows it may see."""
        return None if self.opened.connections.address.has_row_security else HotWrites(self.opened, self.tenant)

    def within(self, tenant: str) -> "PostgresView":
        return PostgresView(self.opened, tenant)

    async def read(self, operation: Callable[[Database, Scope], T]) -> T:
        return await self.opened.transactions.read(self.tenant, operation)

    async def read_for_good(
        self, what: str, id: str, operation: Callable[[Database, Scope], T], is_answer: Callable[[T], bool]
    ) -> T:
        if self.opened.read_only is not None:  # then nothing can be written either, so there is no barrier
            return await self.read(operation)
        return await self.opened.transactions.read_for_good(self.tenant, what, id, operation, is_answer)

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
        """``size`` and ``alone`` are of no use here: no transaction is shared."""
        self.opened.check_writable()
        write = Write(what, id, operation, landed, not_landed, durable=durable, exclusive=exclusive)
        return await self.opened.transactions.write(self.tenant, write)

    async def finish(self, what: str, id: str, operation: Callable[[Database, Scope], T]) -> T:
        def landed(db: Database, scope: Scope) -> bool:
            operation(db, scope)  # whether it was done or not: it is now
            return True

        async def work() -> T:
            return await self.write(what, id, operation, landed=landed, durable=False)

        return await finished(work)

    @property
    def residue(self) -> tuple[str, ...]:
        return (vacuum.DEAD_ROWS,)

    @property
    def out_of_reach(self) -> tuple[str, ...]:
        return vacuum.OUT_OF_REACH

    async def clean(self) -> tuple[str, ...]:
        return await vacuum.clean(self)

    def scope(self) -> Scope:
        return self.opened.scope(self.tenant)

    def stage(self, turn: OpenTurn, events: Sequence[NewEvent]) -> Staged:
        return stage(turn, events, now=self.opened.clock(), limits=self.opened.settings.limits)

"""What a database offers to whoever runs operations: an open store, and one tenant's view of it.
Tests: forkpoint.testing.conformance, which runs every operation on every database."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from forkpoint.clock import Clock
from forkpoint.errors import ForkpointError
from forkpoint.events import NewEvent, Usage
from forkpoint.store.checks import Checks
from forkpoint.store.stage import Staged
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.quick import QuickWrites
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.settings import StoreSettings
from forkpoint.store.values import OpenTurn

T = TypeVar("T")


class OpenStore(Protocol):
    """What all tenants of one open store share, and the account of the turns that this process holds in it."""

    beaten: int | None  # when this process last said, in a committed transaction, that it is alive

    @property
    def path(self) -> str:
        """What errors call the store."""
        ...

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def checks(self) -> Checks: ...

    @property
    def running(self) -> set[bytes]:
        """The tokens of the turns that this process holds."""
        ...

    @property
    def unsettled(self) -> dict[tuple[str, str], tuple[bytes, Usage]]:
        """Turns whose outcome is unknown, by tenant and id: their token, and what was spent last."""
        ...

    def doubt(self, token: bytes, *, begun: bool) -> None:
        """Nobody knows whether this process has begun a turn, or taken it over, and nobody here runs it."""
        ...

    @property
    def commits(self) -> int:
        """How many transactions this process has committed."""
        ...

    def check_writable(self) -> None:
        """Raises `StoreUnusable` if nothing may be written."""
        ...

    async def is_made(self) -> bool:
        """Whether the store is there already: the first write makes it. Raises `StoreUnusable` as `check_writable`."""
        ...

    async def enrol(self) -> None:
        """Makes this process known before it holds its first turn. Raises `StoreUnusable` if nothing can be written."""
        ...

    def is_silent(self) -> bool:
        """Whether the last heartbeat is old, because this process held no turn for a while."""
        ...

    def say_alive(self, db: Database) -> int:
        """Writes a heartbeat, and returns its time."""
        ...


class View(Protocol):
    """Runs operations on an open store for one tenant."""

    @property
    def opened(self) -> OpenStore: ...

    @property
    def tenant(self) -> str: ...

    @property
    def quick(self) -> QuickWrites | None:
        """Writes in one statement, if the database has such."""
        ...

    def within(self, tenant: str) -> "View":
        """The same store for another tenant."""
        ...

    async def read(self, operation: Callable[[Database, Scope], T]) -> T:
        """Runs an operation that only reads, on one snapshot: the newest at the time of the call."""
        ...

    async def read_for_good(
        self, what: str, id: str, operation: Callable[[Database, Scope], T], is_answer: Callable[[T], bool]
    ) -> T:
        """The same. If ``is_answer`` says so of what was read, it is as safe as a commit when this returns.

        A caller may hear it as the answer to a request then. ``what`` and ``id`` name it in `OutcomeUnknown`, which is
        raised if nobody can say that it is safe.
        """
        ...

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
        """Runs an operation in a transaction, and returns its result when that is certain.

        ``what`` and ``id`` name it in errors. ``landed`` says, after a COMMIT whose outcome is unknown, whether it was
        written; ``not_landed`` makes the error of one that was not. Only ``durable`` ones survive a power cut. ``size``
        is how many bytes it writes, about. ``alone``: it shares its transaction with no other. ``exclusive``: it
        decides over many rows, so nobody else may write to the store meanwhile.
        """
        ...

    async def finish(self, what: str, id: str, operation: Callable[[Database, Scope], T]) -> T:
        """Runs an operation to its end although the caller is being cancelled. It can be repeated without harm."""
        ...

    @property
    def residue(self) -> tuple[str, ...]:
        """What an erasure leaves behind until somebody cleans up, in words for its receipt."""
        ...

    @property
    def out_of_reach(self) -> tuple[str, ...]:
        """What no erasure can remove, in words for its receipt."""
        ...

    async def clean(self) -> tuple[str, ...]:
        """Removes what erasures have left behind. Returns what has to wait, and why; nothing raises."""
        ...

    def scope(self) -> Scope:
        """The inputs that all operations share, as they are now."""
        ...

    def stage(self, turn: OpenTurn, events: Sequence[NewEvent]) -> Staged:
        """The events, ready to be stored after those that the turn has journalled."""
        ...

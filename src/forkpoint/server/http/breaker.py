"""The breaker: what keeps requests from a store that does not answer. Tests: tests/server/test_breaker.py.

A database that restarts, fails over or is slow must neither hang a server nor fill its memory. So the operations of the
store go through two circuits, one for reads and one for writes. A circuit opens after a few failures in a row, or when
an operation is out for too long. While it is open, requests are refused at once with 503 and `Retry-After`, and the
store is left alone but for one probe at a time. When the probe is answered, the circuit closes.

Writes to turns that run here are always tried: there are at most as many as turns, and each knows what it costs if it
is not written.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from forkpoint.errors import CommitFailed, NotFound, OutcomeUnknown, StoreUnavailable
from forkpoint.ids import new_id
from forkpoint.polling import pauses
from forkpoint.store import Store

FAILURES = 5
"""So many failures in a row open a circuit."""

SLOW = 15.0
"""Seconds after which an operation that is still out opens its circuit."""

PATIENCE = 30.0
"""Seconds that a read may take. A write is not given up: nobody would know what became of it."""

PAUSES = 0.25, 5.0
"""Seconds between two probes, at first and at most."""

READS = frozenset(
    {
        *("read", "find", "made_with", "conversations", "glances", "revisions", "approvals", "holds", "erasures"),
        *("families", "erasure_count", "stops", "turn", "whole_turn", "turns", "spent", "usage", "budgets", "path"),
        *("events", "landmarks", "steps", "digests", "state", "pulse", "records", "identity"),
        *("document", "document_versions", "orphans"),
    }
)
"""Operations that change nothing, and are quick."""

HELD = frozenset(
    {
        *("journal", "commit", "fail", "cancel", "wait", "refresh", "settle", "stops", "reserve", "renew"),
        *("give_back", "charge", "close"),
    }
)
"""Operations for turns that run here. They are never refused."""

LONG = frozenset(
    {*("verify", "anchor", "export_family", "import_family", "collect", "backup", "erase", "replay", "delete"), "close"}
)
"""Operations that may take their time."""

Kind: TypeAlias = Literal["reads", "writes"]
Operation: TypeAlias = Callable[..., Awaitable[Any]]

_STORE = "(the server's)"  # what the errors here call it

_log = logging.getLogger("forkpoint.server")


class Breaker:
    """The circuits of a server's store."""

    def __init__(
        self,
        most: int,
        told: Callable[[Kind, bool], None] = lambda kind, is_open: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._told = told  # of each circuit that opens or closes
        self._pause = pause
        self._opened = asyncio.Event()
        self._circuits: dict[Kind, Circuit] = {
            kind: Circuit(kind, most, clock, self._changed) for kind in ("reads", "writes")
        }

    def check(self) -> None:
        """Raises `StoreUnavailable` while a circuit is open."""
        for circuit in self._circuits.values():
            circuit.check()

    def guarded(self, name: str, operation: Operation) -> Operation:
        """An operation of the store that goes through its circuit."""
        circuit = self._circuits["reads" if name in READS else "writes"]
        patience = PATIENCE if name in READS else None

        async def run(*args: Any, **kwargs: Any) -> Any:
            if name not in HELD:
                circuit.admit()
            out = circuit.begin(is_long=name in LONG)
            try:
                async with asyncio.timeout(patience) as limit:
                    result = await operation(*args, **kwargs)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                circuit.fail(f"no answer within {patience:g} s")
                raise StoreUnavailable(_STORE, f"it did not answer within {patience:g} s") from error
            except Exception as error:
                if _is_failure(error):
                    circuit.fail(str(error))
                else:
                    circuit.succeed()
                raise
            finally:
                circuit.end(out)
            circuit.succeed()
            return result

        return run

    async def probe(self, store: Store) -> None:
        """Asks the store, one probe at a time, while a circuit is open. Never ends by itself."""
        while True:
            await self._opened.wait()
            for wait in pauses(*PAUSES):
                await self._pause(wait)
                for circuit in self._circuits.values():
                    if circuit.is_open and await _answers(store, circuit.kind):
                        circuit.close()
                if not any(circuit.is_open for circuit in self._circuits.values()):
                    self._opened.clear()
                    break

    def _changed(self, circuit: "Circuit") -> None:
        if circuit.is_open:
            self._opened.set()
        self._told(circuit.kind, circuit.is_open)


class Circuit:
    """The operations of one kind: how many are out, and whether they are answered."""

    def __init__(self, kind: Kind, most: int, clock: Callable[[], float], changed: Callable[["Circuit"], None]) -> None:
        self.kind: Kind = kind
        self.is_open = False
        self._most = most
        self._clock = clock
        self._changed = changed
        self._failures = 0
        self._count = 0
        self._out: dict[int, float] = {}  # since when each operation is out that should be quick, the oldest first
        self._known = float("-inf")  # operations that were out before this moment have opened the circuit already

    def check(self) -> None:
        """Raises `StoreUnavailable` if the circuit is open."""
        if not self.is_open and self._out:
            since = next(iter(self._out.values()))
            if since > self._known and self._clock() - since > SLOW:
                self._open(f"no answer within {SLOW:g} s")
        if self.is_open:
            raise StoreUnavailable.store_away(_STORE, self.kind)

    def admit(self) -> None:
        """Raises `StoreUnavailable` if the circuit is open, or if too many operations wait already."""
        self.check()
        if len(self._out) >= self._most:
            raise StoreUnavailable.store_away(_STORE, self.kind)

    def begin(self, *, is_long: bool) -> int | None:
        """An operation is out. Returns what `end` needs."""
        if is_long:
            return None
        self._count += 1
        self._out[self._count] = self._clock()
        return self._count

    def end(self, out: int | None) -> None:
        """An operation is back, whatever came of it."""
        if out is not None:
            del self._out[out]

    def fail(self, why: str) -> None:
        """The store did not answer an operation."""
        self._failures += 1
        if self._failures >= FAILURES and not self.is_open:
            self._open(why)

    def succeed(self) -> None:
        """The store has answered an operation, if only by refusing it."""
        self._failures = 0

    def close(self) -> None:
        """A probe was answered."""
        self.is_open, self._failures = False, 0
        _log.info("the store answers %s again", self.kind)
        self._changed(self)

    def _open(self, why: str) -> None:
        self.is_open, self._known = True, self._clock()
        _log.warning("the store does not answer %s, and requests are refused until it does: %s", self.kind, why)
        self._changed(self)


def _is_failure(error: Exception) -> bool:
    """Whether the store did not answer. A store that is closed, or on a full disk, says so at once."""
    if isinstance(error, StoreUnavailable):
        return error.code == StoreUnavailable.code
    return isinstance(error, OutcomeUnknown | CommitFailed)


async def _answers(store: Store, kind: Kind) -> bool:
    """Whether the store answers. The probe of writes takes the store's lock, and changes nothing."""
    try:
        async with asyncio.timeout(SLOW):
            if kind == "reads":
                await store.pulse()
                await store.identity()
            else:
                await store.describe(new_id(), title="")
    except NotFound:
        return True
    except Exception:  # whatever it is: the next probe may be answered
        return False
    return True

"""`timed`: a store that says how long each of its operations takes."""

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

from forkpoint.store import Store

Report: TypeAlias = Callable[[str, float], None]
"""Is told an operation's name and its seconds, whichever way it ended."""

OPERATIONS = frozenset(
    name for name, value in vars(Store).items() if inspect.iscoroutinefunction(value) and not name.startswith("_")
)
"""What is timed: all that can be awaited of a store, by the protocol itself, so that nothing new can be forgotten."""

_log = logging.getLogger("forkpoint.server")


Operation: TypeAlias = Callable[..., Awaitable[Any]]
Guard: TypeAlias = Callable[[str, Operation], Operation]
"""Makes another operation of an operation and its name."""


def timed(store: Store, report: Report, guard: Guard = lambda name, operation: operation) -> Store:
    """The same store, which reports how long each operation took. ``guard`` may stand before each operation."""
    return cast("Store", TimedStore(store, report, guard))


class TimedStore:
    """A store around a store. What is not an operation is passed through as it is."""

    def __init__(self, store: Store, report: Report, guard: Guard) -> None:
        self._store = store
        self._report = report
        self._guard = guard

    def within(self, tenant: str) -> "TimedStore":
        return TimedStore(self._store.within(tenant), self._report, self._guard)

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._store.__aexit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions, which are asked of a half-made object too
            raise AttributeError(name)
        value = getattr(self._store, name)
        if name in OPERATIONS:
            value = self.__dict__[name] = self._guard(
                name, _timed(name, value, self._report)
            )  # found at once next time
        return value


def _timed(name: str, operation: Operation, report: Report) -> Operation:
    async def run(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return await operation(*args, **kwargs)
        finally:
            try:
                report(name, time.perf_counter() - started)
            except Exception:  # the operation is done, and counts for its caller
                _log.exception("an operation of the store could not be counted")

    return run

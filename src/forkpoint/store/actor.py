"""Who acts: the name that records, turns and notes are kept with. It goes with the context.
Tests: tests/server/test_by.py, forkpoint.testing.conformance.evidence.records."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_actor: ContextVar[str | None] = ContextVar("forkpoint actor", default=None)


@contextmanager
def acting(name: str) -> Iterator[None]:
    """Within the block, this name acts."""
    before = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(before)


def actor() -> str | None:
    """The name of whoever acts here; None if nobody has said it."""
    return _actor.get()

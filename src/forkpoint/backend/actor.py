"""Who acts: the name that turns and notes are kept with, as `Turn.by`.

It goes with the context, so that whatever a call causes has it too: the turns of sub-agents, condensations. A server
sets it to the name of the caller's key. Tests: tests/server/test_by.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from forkpoint.errors import BadArgument
from forkpoint.llm.prompt.manifest import is_text

_LONGEST = 256  # characters of a name
_actor: ContextVar[str | None] = ContextVar("forkpoint actor", default=None)


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Within the block, turns and notes of a store that this process writes are kept with this name: `Turn.by`.

    On a server, the caller's key decides what is kept.
    """
    if not (name and is_text(name) and len(name) <= _LONGEST):
        raise BadArgument("acting_as()", "this name", f"it takes 1 to {_LONGEST} characters, in valid Unicode")
    before = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(before)


def actor() -> str | None:
    """The name of whoever acts here; None if nobody has said it."""
    return _actor.get()

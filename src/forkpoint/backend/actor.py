"""Who acts: the name that records, turns and notes are kept with, as `Turn.by`.

It goes with the context, so that whatever a call causes has it too: the turns of sub-agents, condensations. A server
sets it to the name of the caller's key. Tests: tests/server/test_by.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from forkpoint.errors import BadArgument
from forkpoint.llm.prompt.manifest import is_text
from forkpoint.store.actor import acting, actor

__all__ = ["acting_as", "actor"]

_LONGEST = 256  # characters of a name


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Within the block, turns and notes of a store that this process writes are kept with this name: `Turn.by`.

    On a server, the caller's key decides what is kept.
    """
    if not (name and is_text(name) and len(name) <= _LONGEST):
        raise BadArgument("acting_as()", "this name", f"it takes 1 to {_LONGEST} characters, in valid Unicode")
    with acting(name):
        yield

"""Who gets the updates of a turn: callbacks, streams, and visualizers, which show them on a screen.
Tests: tests/conversation/test_callbacks.py."""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from forkpoint.backend.results import Turn
from forkpoint.updates import Provisional

_log = logging.getLogger("forkpoint")


Update: TypeAlias = Provisional | Turn
"""An update of a turn. All are provisional but the last one, which is the `Turn`."""

Callback: TypeAlias = Callable[[Update], None]


class Visualizer(Protocol):
    """A callback that shows a conversation on a screen, and can do the same for a fork."""

    def __call__(self, update: Update, /) -> None: ...

    def for_fork(self) -> "Visualizer":
        """A visualizer of the same kind, for a fork."""
        ...


def tell_all(callbacks: Iterable[Callback]) -> Callback:
    """One callback that calls them all. If one raises, that is logged: it must not end a turn that is paid for."""
    callbacks = tuple(callbacks)

    def tell(update: Update) -> None:
        for callback in callbacks:
            try:
                callback(update)
            except Exception:
                _log.exception("a callback failed, and the turn goes on")

    return tell

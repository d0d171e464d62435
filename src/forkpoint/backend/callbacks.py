"""What is told while a turn runs, to callbacks, to streams and to whoever shows it on a screen."""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from forkpoint.backend.results import Turn
from forkpoint.updates import Provisional

_log = logging.getLogger("forkpoint")


Update: TypeAlias = Provisional | Turn
"""What is told of a turn. Everything but the `Turn`, which is the last, is provisional."""

Callback: TypeAlias = Callable[[Update], None]


class Visualizer(Protocol):
    """A callback that shows a conversation to somebody, and knows how to show a fork of it."""

    def __call__(self, update: Update, /) -> None: ...

    def for_fork(self) -> "Visualizer":
        """One of the same kind, for a fork."""
        ...


def tell_all(callbacks: Iterable[Callback]) -> Callback:
    """One callback for many. One that raises is logged: it must not cost a turn that was paid for."""
    callbacks = tuple(callbacks)

    def tell(update: Update) -> None:
        for callback in callbacks:
            try:
                callback(update)
            except Exception:
                _log.exception("a callback failed, and the turn goes on")

    return tell

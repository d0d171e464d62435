"""What is told while a turn runs, to callbacks, to streams and to whoever shows it on a screen."""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from msgspec import Struct

from forkpoint.agent.updates import StepUpdate
from forkpoint.backend.results import Turn
from forkpoint.events import UserMessage

_log = logging.getLogger("forkpoint")


class TurnStarted(Struct, frozen=True, tag="turn_started"):
    """A turn has begun, or goes on."""

    id: str
    conversation: str
    input: tuple[UserMessage, ...]
    resumed: bool = False


class TurnJoined(Struct, frozen=True, tag="turn_joined"):
    """An idempotency key named a turn that was begun before: it is waited for, and none is begun.

    It is not told what happens in that turn; the `Turn` is what ``run`` returns.
    """

    id: str
    conversation: str


Provisional: TypeAlias = TurnStarted | TurnJoined | StepUpdate
"""What is told of a turn while it runs."""

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

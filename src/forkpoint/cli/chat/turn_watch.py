"""`TurnWatch`: which turn of a chat has begun, for Ctrl-C. Tests: tests/cli/test_chat.py."""

from collections.abc import Callable

from forkpoint.cli.chat.attachments import own_words
from forkpoint.conversation import Turn, TurnStarted, Update


class TurnWatch:
    """A callback that remembers which turn has begun. It can show the turn's message, and tell its end."""

    def __init__(self, repeat: Callable[[str], None]) -> None:
        self._repeat = repeat
        self.repeats = False
        self.turn: str | None = None
        self.at_end: Callable[[], None] = lambda: None  # called when a turn has ended

    def __call__(self, update: Update) -> None:
        if isinstance(update, TurnStarted):
            self.turn = update.id
            if self.repeats:
                self._repeat(asked(update))
        elif isinstance(update, Turn):
            self.at_end()


def asked(turn: Turn | TurnStarted) -> str:
    """What the user typed in a turn."""
    return own_words(turn.input)

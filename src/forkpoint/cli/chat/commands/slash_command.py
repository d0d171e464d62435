"""`SlashCommand`: a command of a chat. Tests: tests/cli/test_chat.py."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from msgspec import Struct

Answer: TypeAlias = dict[str, Any]
"""What a line of a chat came to, for programs."""


class SlashCommand(Struct, frozen=True):
    """A command: what it is called, what it takes, what it does in words, and what does it.

    ``completes`` gives what could stand after its name, where that begins so.
    """

    name: str
    takes: str
    does: str
    act: Callable[[str], Answer]
    completes: Callable[[str], Iterable[str]] | None = None

    @property
    def form(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.takes}".rstrip()


class Refused(Exception):
    """A command cannot be done, for the reason that stands here."""


class WrongUse(Exception):
    """A command was not typed in its form."""

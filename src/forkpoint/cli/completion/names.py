"""The names of conversations that a shell offers. Tests: tests/cli/test_completion.py."""

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkpoint.conversation import Info

MOST = 1000
"""How many names are offered."""

PATIENCE = 3.0
"""Seconds that a store has to answer: nobody waits longer for a Tab."""


def known_names(store: str | None) -> list[tuple[str, str]]:
    """The conversations of a store with their titles, the last used first. Empty if the store is not there."""
    from forkpoint.conversation import Conversations
    from forkpoint.conversation.look import is_there

    found: list[tuple[str, str]] = []

    def look() -> None:
        with suppress(Exception):  # a store that is broken has no names to offer
            if is_there(store):
                with Conversations(store) as conversations:
                    page = conversations.list(limit=MOST, order="used", asides=False, drafts=True, glance=True)
                    found.extend((info.name, _about(info)) for info in page.items)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(PATIENCE)
    if looking.is_alive():
        raise TimeoutError("the store does not answer")
    return found


def _about(info: "Info") -> str:
    """The title of a conversation, or else its first words."""
    return info.title or (info.glance.opening if info.glance is not None else "")

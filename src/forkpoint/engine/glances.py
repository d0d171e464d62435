"""What a list shows of a conversation beside what it is: its first words, and what is folded under it.

Nothing of it is stored: the words are read from the first turn, so that an erasure reaches them too.
Tests: tests/conversation/test_glances.py.
"""

from collections.abc import Sequence

from forkpoint.backend.messages import read_input, said_in
from forkpoint.backend.results import Glance, words
from forkpoint.events import UserMessage
from forkpoint.store.protocol import Store
from forkpoint.store.values import StoredConversation

LONGEST = 200
"""How many characters the first words of a conversation have at most."""

_IMPORTED = 20  # how far the first message is looked for in a conversation that began with messages from elsewhere


async def glances(store: Store, listed: Sequence[StoredConversation]) -> dict[str, Glance]:
    """What a list shows of these conversations, by id."""
    found = await store.glances([record.id for record in listed])
    return {
        id: Glance(
            _opening(said_in(read_input(glance.first.input))) if glance.first else await _first_message(store, id),
            glance.asides,
            glance.sides,
        )
        for id, glance in found.items()
    }


async def _first_message(store: Store, id: str) -> str:
    """The first message of a conversation that has no turn: somebody brought its history from elsewhere."""
    events = await store.events(id, limit=_IMPORTED, kinds=["user_message"])
    return _opening([event.body for event in events if isinstance(event.body, UserMessage)][:1])


def _opening(messages: Sequence[UserMessage]) -> str:
    """The beginning of messages, on one line."""
    start = " ".join(words(message.parts)[: LONGEST * 4] for message in messages)
    line = " ".join(start.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1].rstrip() + "…"

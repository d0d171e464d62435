"""The guards of a stored agent: the part of its document that says what it may do without a person.

A conversation that keeps a branch gets the branch's agent, and its own guards stay. Documents are put together as they
are, so that no Python function of either agent has to be at hand. Tests: tests/agent/stored/test_guards.py.
"""

import msgspec

from forkpoint.agent.stored.document import Document
from forkpoint.events import JsonText

GUARDS = ("limits", "approval", "unattended", "hooks")
"""The fields of a document that stay with the conversation, whichever agent comes into it."""

_FIELDS = tuple(field.name for field in msgspec.structs.fields(Document))


def with_guards_of(document: JsonText, guarded: JsonText) -> JsonText:
    """The agent of ``document`` with the guards of the agent of ``guarded``, each field as it is written there.

    A guard that is not written there has its default, also if ``document`` says otherwise. Raises
    ``msgspec.DecodeError`` if either of the two is not a document.
    """
    fields = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    guards = msgspec.json.decode(guarded, type=dict[str, msgspec.Raw])
    there = {name: value for name, value in fields.items() if name not in GUARDS}
    there |= {name: value for name, value in guards.items() if name in GUARDS}
    order = {name: number for number, name in enumerate(_FIELDS)}
    ordered = sorted(there.items(), key=lambda field: order.get(field[0], len(order)))
    return msgspec.json.encode(dict(ordered)).decode()

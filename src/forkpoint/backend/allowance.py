"""Opening a conversation again: what is missing of it, and a substitute for that if `allow` permits it.

Nothing here reads or writes a store. What comes of it is recorded by the next turn that commits.
Tests: tests/conversation/test_allow.py, test_reopening.py.
"""

import os
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.settings import Settings
from forkpoint.errors import BadArgument, CannotResume, ForkpointError, Item
from forkpoint.events import JsonText
from forkpoint.llm.model import LLM
from forkpoint.masking import masked

KINDS = {
    "tools": "tool",
    "output": "output",
    "approval": "approval",
    "workspace": "workspace",
    "model": "model",
    "hooks": "hook",
    "condenser": "condenser",
}
"""What may be missing, as callers name it, and the kind of its items."""

NOTHING: frozenset[str] = frozenset()

Finds: TypeAlias = Callable[[JsonText, Callable[[Item], bool]], Agent]
"""Finds the agent of a document, without the items that a function says yes to. Raises `CannotResume`."""


class GoingOn(Struct, frozen=True):
    """What a conversation goes on with. ``settings`` are the stored ones, the very same, if nothing is missing."""

    agent: Agent | None
    settings: Settings


def as_allowed(allow: Collection[str], call: str = "open()") -> frozenset[str]:
    """What a caller goes on without: kinds (``tools``), or single items (``tool:read_log``). Raises `BadArgument`."""
    named = [allow] if isinstance(allow, str) else list(allow)  # one text is one of them, and not its letters
    for one in named:
        kind, colon, name = str(one).partition(":")
        known = kind in KINDS.values() and bool(name) if colon else kind in KINDS
        if not known:
            why = f"it takes {', '.join(KINDS)}, or a single item such as tool:NAME"
            raise BadArgument(call, f"allow={str(one)[:200]!r}", why)
    return frozenset(named)


def allows(allow: frozenset[str], item: Item) -> bool:
    """Whether somebody goes on without an item."""
    return f"{item.kind}:{item.name}" in allow or any(KINDS.get(one) == item.kind for one in allow)


def allows_models(allow: Collection[str]) -> bool:
    """Whether somebody may go on with another model."""
    return any(one.partition(":")[0] == "model" for one in allow)


def reopened(stored: Settings, find: Finds, allow: frozenset[str] = NOTHING, *, model: LLM | None = None) -> GoingOn:
    """What a conversation goes on with. Raises `CannotResume` with everything that is missing and not allowed.

    ``find`` finds the agent of a document, without what may be missing of it. ``model`` is the one that the caller
    means to go on with. It is a changed one if another model is asked, at another address, or over another wire. How
    it is asked (temperature, timeouts, prices) is as it was stored, whatever the caller's own says.

    A missing tool or output type is left out, a missing policy asks before every call, a missing workspace is none,
    and a changed model is the caller's.
    """
    items, agent, document = missing_workspace(stored), None, stored.agent_json
    if document is not None:
        try:
            agent = find(document, partial(allows, allow))
        except CannotResume as refused:
            items += refused.items
        items += changed_model(document, model)
    if refused_items := [item for item in items if not allows(allow, item)]:
        raise CannotResume.of(refused_items)
    if agent is not None and model is not None and any(item.kind == "model" for item in items):
        agent = standing_in(agent.replace(llm=model), document)
    return GoingOn(agent, going_on(stored, agent, allow))


def going_on(stored: Settings, agent: Agent | None, allow: frozenset[str]) -> Settings:
    """The settings that hold from here on if this agent stands for theirs; they themselves if nothing changes."""
    settings = stored
    if agent is not None and is_stand_in(agent) and stored.agent_json not in (None, agent.to_json()):
        settings = replace(settings, agent=msgspec.Raw(agent.to_json().encode()))
    if allow and any(allows(allow, item) for item in missing_workspace(stored)):
        settings = settings.at(Settings())
    return settings


def missing_workspace(stored: Settings) -> list[Item]:
    """An item if the folder of the settings is gone; empty if it is there, or if they name none."""
    folder = stored.workspace
    if folder is None or os.path.isdir(folder):
        return []
    return [Item("workspace", folder, "it is not a folder" if os.path.exists(folder) else "there is no such folder")]


def changed_model(document: JsonText, model: LLM | None) -> list[Item]:
    """The item that says that a caller's model is not the stored one; none if it is, or if the caller names none."""
    stored = _stored_model(document)
    if model is None or stored is None or _place(stored) == _place(model):
        return []
    said, other = _said(stored), _said(model)
    return [Item("model", stored.model, f"it is {said}, and the agent given has {other}")]


def check_model(stored: str | None, model: LLM | None, allow: frozenset[str]) -> None:
    """Raises `CannotResume` if a caller's model has another name than the stored one, and may not."""
    if model is None or stored is None or stored == model.model:
        return
    item = Item("model", stored, f"it is {stored}, and the agent given has {model.model}")
    if not allows(allow, item):
        raise CannotResume.of([item])


def standing_in(agent: Agent, document: JsonText | None) -> Agent:
    """An agent that goes on where the one of a document has stood."""
    object.__setattr__(agent, "_instead_of", document)
    return agent


def is_stand_in(agent: Agent) -> bool:
    """Whether an agent goes on where another has stood."""
    return "_instead_of" in agent.__dict__


def stands_for(agent: Agent, document: JsonText) -> bool:
    """Whether an agent is the one of a document, or goes on where that one has stood."""
    return document in (agent.to_json(), agent.__dict__.get("_instead_of"))


class _Document(Struct, frozen=True):
    llm: msgspec.Raw


def _stored_model(document: JsonText) -> LLM | None:
    try:
        return LLM.from_json(bytes(msgspec.json.decode(document, type=_Document).llm))
    except (msgspec.DecodeError, UnicodeError, RecursionError, ForkpointError):
        return None  # `bind` says what is wrong with it


def _place(llm: LLM) -> tuple[str, str | None, str]:
    return llm.model, llm.base_url, llm.wire


def _said(llm: LLM) -> str:
    where = f" at {masked(llm.base_url)}" if llm.base_url else ""
    return f"{llm.model}{where} ({llm.wire})"

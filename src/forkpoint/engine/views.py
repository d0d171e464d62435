"""From a store's records to what callers get, and back. Tests: tests/conversation/test_conversations.py."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.backend.options import Draft
from forkpoint.backend.results import Glance, Info, Isolation
from forkpoint.backend.settings import Settings
from forkpoint.events import Usage
from forkpoint.llm.prompt.identity import CacheIdentity, own_identity
from forkpoint.store.values import Head, Lineage, NewConversation, StoredConversation, Tags


class _Model(Struct, frozen=True):
    model: str | None = None


class _Agent(Struct, frozen=True):
    """As much of a stored agent as a list shows, whatever else it has."""

    llm: _Model = _Model()
    name: str | None = None


def identity_of(record: StoredConversation) -> CacheIdentity:
    """What a conversation shows a provider. One that was made without an identity has its own."""
    return CacheIdentity.from_json(record.cache) if record.cache != "{}" else own_identity(record.id)


def info_of(record: StoredConversation, glance: Glance | None = None) -> Info:
    """A conversation, for a caller; with what a list shows besides, if it was asked for."""
    settings = Settings.from_json(record.settings)
    agent = _agent_of(settings)
    tags = dict(record.tags)
    if record.title is not None:
        tags["title"] = record.title
    # A fork of a sub-agent has its settings, but is nobody's sub-agent.
    sub_agent = settings.sub_agent if record.lineage.kind == "sub_agent" else None
    return Info(
        id=record.id,
        name=record.name,
        title=record.title,
        tags=tags,
        status=record.status,
        family=record.family,
        lineage=record.lineage,
        revision=record.revision,
        events=record.head.ordinal,
        inherited_events=record.own_from,
        head=str(record.head.position) if record.head.position is not None else None,
        digest=record.head.digest.hex(),
        model=agent.llm.model,
        agent=agent.name,
        workspace=settings.workspace,
        cache=identity_of(record),
        open_turn=record.open_turn,
        created=record.created,
        updated=record.updated,
        parent=sub_agent.parent if sub_agent is not None else None,
        path=sub_agent.path if sub_agent is not None else None,
        nickname=sub_agent.nickname if sub_agent is not None else None,
        role=sub_agent.role if sub_agent is not None else None,
        depth=sub_agent.depth if sub_agent is not None else 0,
        isolation=isolation_of(settings, record.id, is_root=record.lineage.kind == "root"),
        draft=record.draft,
        glance=glance,
    )


def isolation_of(settings: Settings, id: str, *, is_root: bool) -> Isolation | None:
    """How a branch stands to the folder of what it branched off; None for what is no branch, or has no folder."""
    if settings.workspace is None or is_root:
        return None
    made = settings.made
    kind: Literal["share", "path", "worktree", "copy"] = "path" if made is None else made.kind
    if settings.placed != id:
        kind = "share"
    return Isolation(kind) if made is None else Isolation(kind, made.source, made.branch, made.notes)


def _agent_of(settings: Settings) -> _Agent:
    """What is shown of the agent. Of one that only another version can read, nothing is."""
    if settings.agent_json is None:
        return _Agent()
    try:
        agent = msgspec.json.decode(settings.agent_json, type=_Agent | str)
    except msgspec.DecodeError:
        return _Agent()
    return _Agent(name=agent) if isinstance(agent, str) else agent  # a name: one of a server's own, not looked up yet


def new_conversation(draft: Draft) -> NewConversation:
    """A conversation that is yet to be, for a store."""
    new = NewConversation(
        id=draft.id,
        name=draft.name,
        settings=draft.settings.to_json(),
        cache=own_identity(draft.id).to_json(),
        title=draft.title,
        tags=stored_tags(draft.tags),
        budget=draft.budget,
        family_budget=draft.family_budget,
    )
    if (beside := draft.beside) is None:
        return new
    return replace(
        new,
        cache=new.cache if beside.cache is None else beside.cache.to_json(),
        lineage=Lineage(beside.kind, beside.source, beside.at),
        family=beside.family,
        onto=beside.onto,
    )


def stored_tags(tags: Mapping[str, str]) -> Tags:
    """Tags as a store has them."""
    return tuple(sorted(tags.items()))


def info_of_draft(draft: Draft) -> Info:
    """A conversation that nothing was said in yet, for a caller."""
    empty = StoredConversation(
        id=draft.id,
        tenant="",
        name=draft.name or draft.id,
        family=draft.id,
        revision=0,
        head=Head(None, b""),
        settings=draft.settings.to_json(),
        cache=own_identity(draft.id).to_json(),
        lineage=Lineage(),
        own_from=0,
        inherited=Usage(),
        carries_metrics=False,
        title=draft.title,
        tags=stored_tags(draft.tags),
        status="idle",
        open_turn=None,
        draft=True,
        created=0,
        updated=0,
        used=0,
    )
    return info_of(empty)

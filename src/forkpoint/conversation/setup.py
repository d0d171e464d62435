"""How a conversation is made or opened: each function here gives a `Handle`.

Tests: tests/conversation/test_reopening.py, tests/conversation/test_allow.py, tests/conversation/test_conversations.py.
"""

import os
from collections.abc import Collection, Mapping

from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.stored.document import bind as bind_to
from forkpoint.agent.stored.document import portable_document
from forkpoint.backend.allowance import as_allowed, check_model, reopened
from forkpoint.backend.names import as_answerer, as_id, with_title
from forkpoint.backend.options import Draft
from forkpoint.backend.protocol import Backend
from forkpoint.backend.results import Info
from forkpoint.backend.settings import Settings, as_workspace
from forkpoint.conversation.handle import Handle, at_hand
from forkpoint.conversation.place import Place
from forkpoint.engine.team.spawn import known_agent
from forkpoint.engine.trust import check_trust
from forkpoint.errors import AlreadyExists, NotFound
from forkpoint.llm.model import LLM


class NewOptions(Struct, frozen=True):
    """What a caller says of a new conversation."""

    agent: Agent | LLM | str
    conversation_id: str | None = None
    workspace: str | os.PathLike[str] | None = None
    trust: bool | None = None
    title: str | None = None
    tags: Mapping[str, str] | None = None


class OpenOptions(Struct, frozen=True, kw_only=True):
    """How a caller opens a conversation that exists."""

    agent: Agent | LLM | str | None = None
    create: Agent | LLM | str | None = None
    bind: bool = True
    allow: Collection[str] = ()
    trust: bool | None = None


def drafted(place: Place, options: NewOptions) -> Handle:
    """A new conversation. Nothing is read or written yet."""
    remote = place.is_remote
    answerer = as_answerer(options.agent, remote=remote)
    id, name = as_id(options.conversation_id)
    settings = Settings.of(answerer, as_workspace(options.workspace, remote=remote), remote=remote)
    check_trust(options.trust, "its agent's" if remote else settings.workspace)  # a server's agent may have one
    title, tags = with_title(options.title, options.tags)
    chosen = options.conversation_id is not None
    draft = Draft(id=id, name=name, settings=settings, chosen=chosen, title=title, tags=tags, trust=options.trust)
    return Handle(place, id, name or id, at_hand(answerer), settings, draft=draft)


async def created(place: Place, options: NewOptions) -> Handle:
    """A new conversation that is in the store already. If that fails, the place is left."""
    try:
        handle = drafted(place, options)
        await handle.backend()
    except BaseException:
        await place.leave()
        raise
    return handle


async def opened(place: Place, id: str, options: OpenOptions) -> Handle:
    """The conversation with this id or name. If it cannot be opened, the place is left."""
    try:
        return await _opened(place, id, options)
    except BaseException:
        await place.leave()
        raise


async def _opened(place: Place, id: str, options: OpenOptions) -> Handle:
    allowed = as_allowed(options.allow)
    remote = place.is_remote
    given, new = (None if one is None else as_answerer(one, remote=remote) for one in (options.agent, options.create))
    backend = await place.backend()
    info, settings = await _found(backend, id, new, remote=remote)
    if isinstance(given, Agent) and not remote:
        given = known_agent(given, settings)  # whoever has the parent's agent has its sub-agents' too
    known = at_hand(given or new)
    wanted = given.llm if isinstance(given, Agent) else None
    bound: Agent | None = None
    if remote:
        if known is not None:
            portable_document(known)  # raises for functions of this process: the server could not run them
        bound = known
        check_model(info.model, wanted, allowed)  # the server checks all the rest when a turn is run
    elif options.bind:
        found = reopened(settings, lambda text, without: bind_to(text, known, without=without), allowed, model=wanted)
        bound, settings = found.agent, found.settings
    if options.trust is not None:
        check_trust(options.trust, None if remote else settings.workspace, "Conversation.open()")
    trust = None if options.trust is None else (info.family, options.trust)
    return Handle(place, info.id, info.name, bound, settings, allow=allowed, trust=trust)


async def _found(backend: Backend, id: str, new: Agent | str | None, *, remote: bool) -> tuple[Info, Settings]:
    """The conversation and its settings. If it does not exist, the agent ``new`` gets one; without it: `NotFound`."""
    try:
        return await backend.find(id)
    except NotFound:
        if new is None:
            raise
    fresh, name = as_id(id)
    draft = Draft(id=fresh, name=name, settings=Settings.of(new, None, remote=remote), chosen=True)
    try:
        return await backend.create(draft), draft.settings
    except AlreadyExists:  # somebody else has just made it
        return await backend.find(id)

"""`Handle`: one conversation, as an object of this process holds it.

A handle knows who answers, with what settings, and where the conversation lives. A new conversation is a *draft* until
its first turn begins, or until something else needs it in the store. `drafted`, `created` and `opened` give handles.
Tests: tests/conversation/test_turns.py, test_reopening.py, test_conversations.py, tests/engine/test_trust.py.
"""

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import cast

import anyio
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.stored.document import bind as bind_to
from forkpoint.agent.stored.document import portable_document
from forkpoint.backend.allowance import NOTHING, as_allowed, check_model, going_on, reopened, standing_in, stands_for
from forkpoint.backend.messages import ImportedList
from forkpoint.backend.names import Id, as_answerer, as_id, with_title
from forkpoint.backend.options import Draft
from forkpoint.backend.protocol import Backend
from forkpoint.backend.results import Info
from forkpoint.backend.settings import Settings, as_workspace
from forkpoint.conversation.place import Place
from forkpoint.engine.team.spawn import known_agent
from forkpoint.engine.trust import check_trust, taken_over
from forkpoint.engine.views import info_of_draft
from forkpoint.errors import (
    AlreadyExists,
    BadArgument,
    BadWorkspace,
    CannotResume,
    ConversationClosed,
    NoAgent,
    NotFound,
    Stale,
)
from forkpoint.history.budgets import Budget
from forkpoint.llm.model import LLM
from forkpoint.workspace.models.names import as_model


class Handle:
    """One conversation: its id and name, who answers, its settings, and the place where it lives.

    - ``draft``: what is to be made, until the conversation is in the store; then None.
    - ``allow``: what may be missing of all that the conversation was made with.
    - ``trust``: a family, and what the user says of its workspace; kept before the next turn.
    """

    def __init__(
        self,
        place: Place,
        id: str,
        name: str,
        agent: Agent | None,
        settings: Settings,
        *,
        draft: Draft | None = None,
        allow: frozenset[str] = NOTHING,
        trust: tuple[str, bool] | None = None,
    ) -> None:
        self.place = place
        self.id = id
        self.name = name
        self.agent = agent
        self.settings = settings
        self.draft = draft
        self.allow = allow
        self.trust_warning: str | None = None
        self._trust = trust
        self._closed = False
        self._process = os.getpid()
        self._making = anyio.Lock()  # held by whoever puts the draft into the store, or changes it

    # Open and closed.

    @property
    def is_at_rest(self) -> bool:
        """Whether closing has nothing to wait for: the store was never needed, or the handle is closed."""
        return self._closed or not self.place.is_open or os.getpid() != self._process

    def end(self) -> bool:
        """Marks the handle as closed. Says whether there is a place to leave."""
        at_rest, self._closed = self.is_at_rest, True
        return not at_rest

    async def close(self) -> None:
        """Lets go of the store."""
        if self.end():
            await self.place.leave()

    async def backend(self, *, keep_draft: bool = False) -> Backend:
        """The backend of this conversation. A draft is put into the store first, unless ``keep_draft``.

        Raises `ConversationClosed`, also in a child of the process that made this handle (`reopen_after_fork`).
        """
        self._check_open()
        if os.getpid() != self._process:
            raise ConversationClosed.reopen_after_fork(self.id)
        backend = await self.place.backend()
        self._check_open()  # somebody may have closed it meanwhile
        if self.draft is not None and self.draft.asked is None:
            await self._prepare(backend)
        if not keep_draft:
            await self._make(backend)
        return backend

    async def ready(self) -> Backend:
        """The backend, once the conversation is in the store and the user's word on trust is kept."""
        backend = await self.backend()
        await self.keep_trust(backend)
        return backend

    def _check_open(self) -> None:
        if self._closed:
            raise ConversationClosed(self.id)

    # From a draft to a conversation.

    async def _prepare(self, backend: Backend) -> None:
        """Adds what the project of the workspace says to the draft."""
        async with self._making:
            if self.draft is not None and self.draft.asked is None:
                self.draft, self.agent = await backend.prepared(self.draft, self.agent)
                self.settings = self.draft.settings

    async def _make(self, backend: Backend) -> None:
        """Puts the draft into the store. Two callers at once make one conversation."""
        async with self._making:
            if self.draft is not None:
                try:
                    await backend.create(self.draft)
                except AlreadyExists:
                    if self.draft.chosen:
                        raise
                    # A fresh id can only be this conversation's own, made by an earlier try.
                finally:
                    self.trust_warning = backend.trust_warning(self.id)
                self.draft = None

    @asynccontextmanager
    async def first_turn(self, backend: Backend) -> AsyncIterator[Callable[[str], None]]:
        """Keeps everybody else from making the conversation until its first turn has begun.

        Yields a function. Whoever runs the turn calls it with the conversation's id once the turn has begun: the id is
        another one if an earlier request with the same key made the conversation. Does nothing more if the conversation
        is in the store already.
        """
        draft, held = self.draft, False

        def begun(conversation: str) -> None:
            nonlocal held
            self.id, self.draft = conversation, None
            if held:
                held = False
                self._making.release()

        if draft is not None:
            await self._making.acquire()
            held = True
        try:
            yield begun
        finally:
            if held:
                self._making.release()
            if draft is not None:
                self.trust_warning = backend.trust_warning(draft.id)

    async def keep_trust(self, backend: Backend) -> None:
        """Keeps what the user said of the workspace when the conversation was opened."""
        if self._trust is not None and self.settings.workspace is not None:
            family, trusted = self._trust
            await backend.trust(family, self.settings.workspace, trusted)
            self._trust = None
            self.trust_warning = backend.trust_warning(family)

    def check_draft(self, if_revision: int | None) -> None:
        """Raises `Stale` if the caller expects a revision of a conversation that is still a draft."""
        if self.draft is not None and if_revision:  # a new conversation begins at revision 0
            raise Stale(self.id, if_revision, 0)

    # What it is.

    async def info(self) -> Info:
        """The conversation as it stands now."""
        return info_of_draft(self.draft) if self.draft is not None else (await (await self.backend()).find(self.id))[0]

    async def describe(self, title: str | None, tags: Mapping[str, str] | None, if_info: Info | None) -> Info:
        """Sets the title or all tags. None leaves them; an empty title removes it."""
        async with self._making:
            if self.draft is not None:
                self.draft = replace(
                    self.draft,
                    title=self.draft.title if title is None else title or None,
                    tags=self.draft.tags if tags is None else tags,
                )
                return info_of_draft(self.draft)
        return await (await self.backend()).describe(self.id, title=title, tags=tags, if_info=if_info)

    async def rename(self, name: str) -> Info:
        """Gives the conversation another name. The name of a draft is checked when the draft is put into the store."""
        async with self._making:
            if self.draft is not None:
                self.draft = replace(self.draft, name=None if name == self.id else name, chosen=True)
                self.name = name
                return info_of_draft(self.draft)
        info = await (await self.backend()).describe(self.id, name=name)
        self.name = info.name
        return info

    async def change_agent(self, agent: Agent | LLM | str, if_revision: int | None) -> None:
        """Lets another agent answer from here on."""
        remote = self.place.is_remote
        answerer = as_answerer(agent, remote=remote)
        settings = replace(self.settings, agent=Settings.of(answerer, None, remote=remote).agent)
        async with self._making:
            self.check_draft(if_revision)
            if self.draft is not None:  # what its project says is added when it is made
                settings = replace(settings, project=None)
                self.draft = replace(self.draft, settings=settings, asked=None)
            elif isinstance(answerer, Agent) and not remote:
                settings, answerer = taken_over(self.settings, answerer)
        if self.draft is None:
            await (await self.backend()).change(self.id, settings, at_hand(answerer), if_revision=if_revision)
        self.agent, self.settings = at_hand(answerer), settings

    async def use_model(self, model: LLM | str) -> None:
        """Lets another model answer from the next turn on. That turn records it if it commits."""
        llm = as_model(model)
        async with self._making:
            if self.draft is None and self.place.is_remote:
                self.agent = Agent(llm) if self.agent is None else self.agent.replace(llm=llm)
                self.allow |= {"model"}  # the server keeps all else of its agent
            elif self.draft is None and self.answerer().llm != llm:
                self.agent = standing_in(self.answerer().replace(llm=llm), self.settings.agent_json)
                self.allow |= {"model"}
                self.settings = going_on(self.settings, self.agent, self.allow)
        if self.draft is not None:
            await self.change_agent(llm if self.agent is None else self.agent.replace(llm=llm), None)

    def kept(self, settings: Settings, lender: Agent | None) -> None:
        """Goes on with the settings that came with a branch. ``lender`` is the branch's agent, if it is at hand.

        The agent is None from then on if it is not at hand: its functions are in neither of the two agents, or only
        the server has it.
        """
        agent, lent = self.agent, None
        if agent is not None and lender is not None:
            guards = {"limits": agent.limits, "approval": agent.approval}
            lent = lender.replace(**guards, unattended=agent.unattended, hooks=agent.hooks)
        if not self.place.is_remote and (lent is None or lent.to_json() != settings.agent_json):
            lent = self.agent_of(settings)
        self.agent, self.settings = lent, settings

    # Who answers.

    def answerer(self) -> Agent:
        """The agent that runs turns. Raises `NoAgent` if none is at hand."""
        if self.place.is_remote:
            return cast("Agent", self.agent)  # None is fine: the server knows who answers
        if self.agent is None:
            why = "it has no agent" if self.settings.agent_json is None else "it was opened without its functions"
            raise NoAgent(self.id, why)
        return self.agent

    def agent_of(self, settings: Settings) -> Agent | None:
        """The agent of a branch with these settings; None if its functions are not at hand.

        The branch may have another agent than this handle: somebody else may have changed it.
        """
        if self.agent is None or settings.agent_json == self.settings.agent_json or self.place.is_remote:
            return self.agent
        if settings.agent_json is not None and stands_for(self.agent, settings.agent_json):
            return self.agent
        with suppress(CannotResume):
            return settings.bound(self.agent, same=True)
        return None

    def beside(
        self, info: Info, settings: Settings, agent: Agent | None, *, allow: frozenset[str] = NOTHING
    ) -> "Handle":
        """A handle of another conversation of the same place."""
        return Handle(self.place.also(), info.id, info.name, agent, settings, allow=allow)


class NewOptions(Struct, frozen=True):
    """What a caller says of a new conversation."""

    agent: Agent | LLM | str
    conversation_id: Id | None = None
    workspace: str | os.PathLike[str] | None = None
    trust: bool | None = None
    title: str | None = None
    tags: Mapping[str, str] | None = None
    budget: Budget | None = None
    family_budget: Budget | None = None
    history: ImportedList | None = None


class OpenOptions(Struct, frozen=True, kw_only=True):
    """How a caller opens one. ``workspace``, ``title`` and ``tags`` are for the one that ``create`` makes."""

    agent: Agent | LLM | str | None = None
    create: Agent | LLM | str | None = None
    workspace: str | os.PathLike[str] | None = None
    title: str | None = None
    tags: Mapping[str, str] | None = None
    bind: bool = True
    allow: str | Collection[str] = ()
    trust: bool | None = None

    def new(self, id: str) -> NewOptions | None:
        """The conversation that is made if none has this id; None if none is to be made.

        Raises `BadArgument` for what only a new conversation can have.
        """
        if self.create is not None:
            return NewOptions(self.create, id, self.workspace, self.trust, self.title, self.tags)
        for name in ("workspace", "title", "tags"):
            if (given := getattr(self, name)) is not None:
                why = "it is for a new conversation: say with create= who answers there, if none has this name yet"
                raise BadArgument("open()", f"{name}={given!r}", why)
        return None


def drafted(place: Place, options: NewOptions) -> Handle:
    """A new conversation. Nothing is read or written yet."""
    remote = place.is_remote
    answerer = as_answerer(options.agent, remote=remote)
    id, name = as_id(options.conversation_id)
    settings = Settings.of(answerer, as_workspace(options.workspace, remote=remote), remote=remote)
    check_trust(options.trust, "its agent's" if remote else settings.workspace)  # a server's agent may have one
    title, tags = with_title(options.title, options.tags)
    chosen = options.conversation_id is not None
    draft = Draft(
        id=id,
        name=name,
        settings=settings,
        chosen=chosen,
        title=title,
        tags=tags,
        trust=options.trust,
        budget=options.budget,
        family_budget=options.family_budget,
        history=options.history,
    )
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
    new = options.new(id)
    given, fresh = (None if one is None else as_answerer(one, remote=remote) for one in (options.agent, options.create))
    workspace = as_workspace(options.workspace, remote=remote)
    info, settings, made = await _found(place, id, new)
    if workspace is not None and not made and not _is_same(workspace, settings.workspace, remote=remote):
        raise BadWorkspace.workspace_differs(info.name, workspace, settings.workspace or "no folder")
    if isinstance(given, Agent) and not remote:
        given = known_agent(given, settings)  # whoever has the parent's agent has its sub-agents' too
    known = at_hand(given or fresh)
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
    trust = None
    if options.trust is not None and not made:  # else it was kept when the conversation was made
        check_trust(options.trust, None if remote else settings.workspace, "Conversation.open()")
        trust = (info.family, options.trust)
    return Handle(place, info.id, info.name, bound, settings, allow=allowed, trust=trust)


async def _found(place: Place, id: str, new: NewOptions | None) -> tuple[Info, Settings, bool]:
    """The conversation, its settings, and whether it was made now. Raises `NotFound` if none is to be made."""
    backend = await place.backend()
    try:
        return *await backend.find(id), False
    except NotFound:
        if new is None:
            raise
    draft = drafted(place, new)
    try:
        await draft.backend()
    except AlreadyExists:  # somebody else has just made it
        return *await backend.find(id), False
    return (await backend.find(draft.id))[0], draft.settings, True


def _is_same(folder: str, other: str | None, *, remote: bool) -> bool:
    plain = os.path.normpath if remote else os.path.realpath  # links of a server's disk are not ours to follow
    return other is not None and plain(folder) == plain(other)


def at_hand(answerer: Agent | str | None) -> Agent | None:
    """The agent; None for the name of an agent that only a server has."""
    return None if isinstance(answerer, str) else answerer

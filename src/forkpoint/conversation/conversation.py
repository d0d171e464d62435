"""`AsyncConversation`: a conversation that runs.

::

    async with AsyncConversation(agent) as conversation:
        turn = await conversation.run("Why did build 1234 fail?")   # commits, or raises TurnFailed
        fork = await conversation.fork(title="Try the other fix")   # shares history, and nothing else

The object holds no history and no state: all of that is in the store, so any number of objects, in any number of
processes, may stand for one conversation. What it does hold is the agent with its Python functions, who is told while
a turn runs, and messages that were sent and not run yet.
"""

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, cast, get_args

import anyio
from msgspec.structs import replace

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.arguments import decode_as
from forkpoint.agent.stored.document import bind as bind_to
from forkpoint.agent.stored.document import portable_document
from forkpoint.backend.callbacks import Callback, Update, Visualizer, tell_all
from forkpoint.backend.messages import Given, Message, as_message, as_result
from forkpoint.backend.names import Point, as_answerer, as_id, as_point, as_turn, with_title
from forkpoint.backend.protocol import Backend, Decision, Draft, ForkOptions
from forkpoint.backend.results import Branch, Call, Info, RemovedWorkspace, SideAnswer, Stats, Turn
from forkpoint.backend.settings import Settings, as_workspace
from forkpoint.conversation.place import Place
from forkpoint.conversation.stream import TurnStream, streamed
from forkpoint.conversation.sub_agents import HasMembers
from forkpoint.engine.team.spawn import known_agent
from forkpoint.engine.trust import check_trust, taken_over, with_project
from forkpoint.engine.turns.missing import NOTHING, as_allowed, check_model, reopened, stands_for
from forkpoint.engine.views import info_of_draft
from forkpoint.errors import (
    AlreadyExists,
    BadArgument,
    CannotResume,
    ConversationClosed,
    NoAgent,
    NoSuchTurn,
    NotFound,
    NothingToRun,
    ReopenAfterFork,
    Stale,
    TurnFailed,
)
from forkpoint.events import Condensation, Event, ToolResult, UserMessage
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.identity import CacheIdentity, CachePolicy
from forkpoint.llm.prompt.inspection import Inspection
from forkpoint.paging import Page
from forkpoint.store.protocol import Store
from forkpoint.store.records import Status, Verification
from forkpoint.updates import TurnJoined, TurnStarted
from forkpoint.workspace.folders import Kind

Where: TypeAlias = str | os.PathLike[str] | Store | None
"""Where conversations live: an address, a path of a SQLite file, an open store, or None for the default."""

Events: TypeAlias = list[Event]  # in a class with a method of that name, `list` is the method


class AsyncConversation(HasMembers):
    """A conversation. Making one does no I/O: it comes into being with its first turn.

    - ``agent``: who answers. A model's name or an `LLM` is an agent without tools or instructions.
    - ``conversation_id``: its id, or a name to know it by; by default it gets a fresh id.
    - ``workspace``: the folder that tools work in.
    - ``trust``: whether the user trusts the project of that folder. It is kept in the user's settings, if that is
      possible (`trust_warning`), when the conversation comes into being. An explicit "untrusted" there stays.
    - ``store``: where it lives, ``sqlite:///file.db``, ``memory:``, or ``http://host:8008`` for a server, whose agents
      are named like ``"support"``. Default: FORKPOINT_STORE, else a file in the user's data folder.
    - ``callbacks``: functions that are told of everything while a turn runs.
    - ``visualizer``: the same, for a screen; a fork has one of the same kind.
    """

    def __init__(
        self,
        agent: Agent | LLM | str,
        *,
        conversation_id: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        trust: bool | None = None,
        store: Where = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        callbacks: Iterable[Callback] = (),
        visualizer: Visualizer | None = None,
    ) -> None:
        place = Place(store)
        remote = place.is_remote
        answerer = as_answerer(agent, remote=remote)
        id, name = as_id(conversation_id)
        settings = Settings.of(answerer, as_workspace(workspace, remote=remote), remote=remote)
        check_trust(trust, "its agent's" if remote else settings.workspace)  # an agent of a server may have one
        title, others = with_title(title, tags)
        chosen = conversation_id is not None
        draft = Draft(id=id, name=name, settings=settings, chosen=chosen, title=title, tags=others, trust=trust)
        self._set_up(id, name or id, _at_hand(answerer), settings, place, draft, callbacks, visualizer)

    def _set_up(
        self,
        id: str,
        name: str,
        agent: Agent | None,
        settings: Settings,
        place: Place,
        draft: Draft | None,
        callbacks: Iterable[Callback],
        visualizer: Visualizer | None,
        allow: frozenset[str] = NOTHING,
    ) -> None:
        self._id = id
        self._name = name
        self._agent = agent
        self._settings = settings
        self._place = place
        self._draft = draft  # until it is in the store
        self._callbacks = tuple(callbacks)
        self._visualizer = visualizer
        self._allow = allow  # what may be missing
        self._pending: list[UserMessage] = []
        self._trust: tuple[str, bool] | None = None  # a family, and what is to be kept before its next turn
        self._trust_warning: str | None = None
        self._waiting: Turn | None = None  # the turn that waits, as this object has shown it
        self._closed = False
        self._process = os.getpid()
        self._making = anyio.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    # Opening and closing.

    @classmethod
    async def open(
        cls,
        id: str,
        *,
        agent: Agent | LLM | str | None = None,
        create: Agent | LLM | str | None = None,
        bind: bool = True,
        allow: Collection[str] = (),
        trust: bool | None = None,
        store: Where = None,
        callbacks: Iterable[Callback] = (),
        visualizer: Visualizer | None = None,
    ) -> Self:
        """A conversation that exists, by its id or name.

        Its Python functions are imported again, or taken from ``agent``; what is missing or has changed raises
        `CannotResume` with everything, before anything runs: functions, the workspace, and the model if ``agent`` has
        another. With ``create`` one that does not exist is made with that agent. ``bind=False`` opens it without its
        functions: to read, fork or rewind it, not to run it.

        ``allow`` names what may be missing, by its kind (``tools``, ``output``, ``approval``, ``workspace``,
        ``model``) or singly (``tool:read_log``). This object goes on without: without the tools, the form of answers
        or the folder; asking before every call where a policy is missing; with the model of ``agent``. Nothing is
        written until a turn commits, which records it.

        ``trust`` is what the user says of its workspace, kept before the first turn that is run from here. At a server
        it is said when a conversation is made.
        """
        allowed = as_allowed(allow)
        place = Place(store)
        remote = place.is_remote
        given, new = (None if one is None else as_answerer(one, remote=remote) for one in (agent, create))
        try:
            backend = await place.backend()
            try:
                info, settings = await backend.find(id)
            except NotFound:
                if new is None:
                    raise
                new_one, name = as_id(id)
                draft = Draft(id=new_one, name=name, settings=Settings.of(new, None, remote=remote), chosen=True)
                try:
                    info, settings = await backend.create(draft), draft.settings
                except AlreadyExists:  # somebody else has just made it
                    info, settings = await backend.find(id)
            if isinstance(given, Agent) and not remote:
                given = known_agent(given, settings)  # whoever has the parent's agent has its sub-agents' too
            known = _at_hand(given or new)
            if remote and known is not None:
                portable_document(known)  # functions of this process are refused: they could not run there
            asks = given.llm if isinstance(given, Agent) else None
            if remote:
                bound = known
                check_model(info.model, asks, allowed)  # all the rest is for the server to say, when a turn is to run
            elif bind:
                found = reopened(
                    settings, lambda text, without: bind_to(text, known, without=without), allowed, model=asks
                )
                bound, settings = found.agent, found.settings
            else:
                bound = None
            if trust is not None:
                check_trust(trust, None if remote else settings.workspace, "Conversation.open()")
        except BaseException:
            await place.leave()
            raise
        this = cls._made(info, settings, bound, place, callbacks, visualizer, allowed)
        this._trust = None if trust is None else (info.family, trust)
        return this

    @classmethod
    def over(
        cls,
        backend: Backend,
        info: Info,
        settings: Settings,
        agent: Agent | None,
        *,
        callbacks: Iterable[Callback] = (),
        allow: frozenset[str] = NOTHING,
    ) -> Self:
        """A conversation of a backend that is open already, and that whoever opened it closes."""
        return cls._made(info, settings, agent, Place.around(backend), callbacks, None, allow)

    @classmethod
    def _made(
        cls,
        info: Info,
        settings: Settings,
        agent: Agent | None,
        place: Place,
        callbacks: Iterable[Callback],
        visualizer: Visualizer | None,
        allow: frozenset[str] = NOTHING,
    ) -> Self:
        made = cls.__new__(cls)
        made._set_up(info.id, info.name, agent, settings, place, None, callbacks, visualizer, allow)
        return made

    @classmethod
    async def list(
        cls,
        *,
        store: Where = None,
        cursor: str | None = None,
        limit: int = 50,
        tags: Mapping[str, str] | None = None,
        status: Status | None = None,
        sub_agents: bool = False,
        parent: str | None = None,
    ) -> Page[Info]:
        """Conversations of a store, the newest first; all given tags must match.

        Sub-agents are among them with ``sub_agents=True``; ``parent`` lists only those of one conversation.
        """
        place = Place(store)
        try:
            backend = await place.backend()
            return await backend.conversations(
                cursor=cursor, limit=limit, tags=tags, status=status, sub_agents=sub_agents, parent=parent
            )
        finally:
            await place.leave()

    @classmethod
    async def verify_store(cls, *, store: Where = None, head_digest: str | None = None) -> Verification:
        """Checks that nobody changed the history of any conversation in a store."""
        place = Place(store)
        try:
            return await (await place.backend()).verify(None, head_digest=head_digest)
        finally:
            await place.leave()

    async def close(self) -> None:
        """Lets go of the store. The last conversation that does closes it, and cancels what still runs there."""
        if not self._closed:
            self._closed = True
            if os.getpid() == self._process:  # after os.fork there is nothing here to let go of
                await self._place.leave()

    @property
    def _is_at_rest(self) -> bool:
        """Whether it holds nothing open here: nothing was needed of its store yet, or it is closed."""
        return self._closed or not self._place.is_open or os.getpid() != self._process

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # What it is.

    @property
    def id(self) -> str:
        """Its inner id, the same for good."""
        return self._id

    @property
    def name(self) -> str:
        """Its outer name; its id if nobody gave it one."""
        return self._name

    @property
    def agent(self) -> Agent | None:
        """Who answers. None if it was opened without its functions, or if only the server has it."""
        return self._agent

    @property
    def workspace(self) -> Path | None:
        """The folder that tools work in."""
        return self._settings.folder

    @property
    def trust_warning(self) -> str | None:
        """Why ``trust`` was not kept in the user's settings, or does not hold; None if all is well, or yet to be done.

        It was logged too. What could not be kept holds for this conversation, its forks and sub-agents all the same,
        for as long as this process has its store open.
        """
        return self._trust_warning

    @property
    def pending(self) -> tuple[UserMessage, ...]:
        """Messages that were sent and not run yet. They live in this object only."""
        return tuple(self._pending)

    async def info(self) -> Info:
        """All that is known of it, as it stands now."""
        if self._draft is not None:
            return info_of_draft(self._draft)
        return (await (await self._here()).find(self._id))[0]

    async def title(self) -> str | None:
        """Its title, if it has one."""
        return (await self.info()).title

    async def tags(self) -> dict[str, str]:
        """Its tags, the title among them."""
        return (await self.info()).tags

    async def status(self) -> Status:
        """idle, running, awaiting_approval or interrupted."""
        return (await self.info()).status

    async def cache(self) -> CacheIdentity:
        """What it shows providers: its prompt-cache key, and whose that is."""
        return (await self.info()).cache

    async def describe(self, *, title: str | None = None, tags: Mapping[str, str] | None = None) -> Info:
        """Sets the title ("" removes it) or all tags. Disturbs no turn that runs."""
        title, others = with_title(title, tags)
        async with self._making:
            if self._draft is not None:
                self._draft = replace(
                    self._draft,
                    title=self._draft.title if title is None else title or None,
                    tags=self._draft.tags if tags is None else others,
                )
                return info_of_draft(self._draft)
        return await (await self._here()).describe(self._id, title=title, tags=None if tags is None else others)

    async def change_agent(self, agent: Agent | LLM | str, *, if_revision: int | None = None) -> None:
        """Another agent answers from here on. Recorded as a note; the conversation must have no open turn.

        The agent that it has already changes nothing. ``if_revision``: as in `run`.
        """
        answerer = as_answerer(agent, remote=self._place.is_remote)
        settings = replace(self._settings, agent=Settings.of(answerer, None, remote=self._place.is_remote).agent)
        async with self._making:
            self._check_draft(if_revision)
            if self._draft is not None:  # what its project tells is added when it is made
                settings = replace(settings, project=None)
                self._draft = replace(self._draft, settings=settings, asked=None)
            elif isinstance(answerer, Agent) and not self._place.is_remote:
                settings, answerer = taken_over(self._settings, answerer)
        if self._draft is None:
            await (await self._here()).change(self._id, settings, _at_hand(answerer), if_revision=if_revision)
        self._agent, self._settings = _at_hand(answerer), settings

    # Turns.

    def send_message(self, message: Message) -> None:
        """Queues a message for the next turn. Several are one turn, in order; until then they live in this object."""
        self._pending.append(as_message(message))

    async def run(
        self,
        message: Message | None = None,
        *,
        results: Mapping[str, Message | ToolResult] | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> Turn:
        """Runs one turn with all that was sent, and ``message``; and with ``results`` of calls that the client's own
        tools were handed (`Turn.handed`), by the call's id. A call without a result is told to have none.

        Returns the turn when it is committed, or when it waits for an approval. Raises `TurnFailed` (`TurnCancelled`
        if it was cancelled) when it is certain that nothing has moved. While an earlier turn is open, `TurnOpen` is
        raised, unless ``supersede`` discards that one. ``key`` makes it happen once: the same key with the same
        messages gives the same turn. ``if_revision`` is `Info.revision` as the caller knows it: if the conversation
        has moved since, `Stale` is raised and nothing has changed.
        """
        return await self._run(self._taking(message, results), supersede=supersede, key=key, if_revision=if_revision)

    @asynccontextmanager
    async def run_stream(
        self,
        message: Message | None = None,
        *,
        results: Mapping[str, Message | ToolResult] | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> AsyncIterator[TurnStream]:
        """The same, told as it happens: ``async with conversation.run_stream("...") as stream``, then
        ``async for update in stream``. Updates are provisional; the last one is the turn. Leaving early cancels it.
        """
        messages = self._taking(message, results)

        async def start(tell: Callback) -> Turn:
            return await self._run(messages, supersede=supersede, key=key, if_revision=if_revision, also=tell)

        async with streamed(start) as stream:
            yield stream

    async def ask(self, message: Message) -> SideAnswer:
        """A side question: answered from the history as it is, and nothing of it is kept but what it cost.

        It needs no lock: a turn may be running. Tools are not used.
        """
        backend, asked = await self._here(), [as_message(message)]
        return await backend.ask(self._id, self._runs(), asked, allow=self._allow, tell=self._teller())

    async def condense(self, *, if_revision: int | None = None) -> Condensation | None:
        """Lets prompts forget the older part of the path at once, however short it is. Recorded as a note.

        The agent's condenser does it; for an agent without one, its model writes a summary. Gives what prompts show
        instead; None if there is nothing to forget, or if what the model wrote is of no use, which is logged. The
        conversation must have no open turn, and if it goes on meanwhile, `Stale` is raised.

        ``if_revision``: as in `run`.
        """
        self._check_draft(if_revision)
        backend = await self._here()
        return await backend.condense(self._id, self._runs(), if_revision=if_revision, allow=self._allow)

    async def cancel(self) -> Turn:
        """Cancels the turn that runs in this process, and waits for its outcome. Too late, it says ``committed``."""
        if self._draft is not None:
            raise NoSuchTurn(self._id, "cancel", "nothing was run yet")
        return await (await self._here()).cancel(self._id)

    async def retry(self, turn: str | Turn | None = None, *, key: str | None = None) -> Turn:
        """Runs the input of a turn again, from the last good state: by default of the last one that did not commit.

        One that is still open is discarded.
        """
        failed = await self._one_of_the_tries("retry", turn)
        if failed.outcome == "committed":
            raise NoSuchTurn(self._id, "retry", f"turn {failed.id} is committed; rewind before it, and run its message")
        if not failed.given:
            raise NoSuchTurn(self._id, "retry", f"turn {failed.id} has no input")
        if failed.outcome in {"awaiting_approval", "interrupted"}:
            await (await self._here()).check(self._id, self._runs(), allow=self._allow)
            await (await self._here()).discard(self._id, failed.id)  # this one, and no other that is open by then
        return await self._run(failed.given, retry_of=failed.id, key=key)

    async def resume(
        self, turn: str | Turn | None = None, *, rerun: Collection[str] = (), limits: Limits | None = None
    ) -> Turn:
        """Goes on with a turn that failed, was cancelled or interrupted, after its last finished step.

        No finished tool is run again. A call that was started and has no result is `unknown`: the model is told so,
        unless its tool is repeatable or ``rerun`` names the call. ``limits`` replaces the agent's, this time.
        """
        open = await self._one_of_the_tries("resume", turn)
        again = (rerun,) if isinstance(rerun, str) else rerun  # one text is one call, and not its letters
        return await self._resume(open.id, rerun=again, limits=limits)

    async def approve(self, *calls: str | Call, by: str | None = None) -> Turn:
        """Lets calls that wait run, by default all of them, and goes on with the turn. From any process.

        Calls are named by their ids, or are those of ``turn.waiting``, which nobody can take for others.
        """
        return await self._decide("approve", calls, lambda chosen: Decision(True, chosen, by))

    async def deny(self, *calls: str | Call, by: str | None = None, reason: str | None = None) -> Turn:
        """Refuses calls that wait, by default all of them, and goes on: the model is told, with the reason."""
        return await self._decide("deny", calls, lambda chosen: Decision(False, chosen, by, reason))

    async def discard(self, turn: str | Turn | None = None) -> Turn:
        """Ends an open turn that nobody runs. What its tools did stays visible."""
        open = await self._one_of_the_tries("discard", turn, open=True)
        return await (await self._here()).discard(self._id, open.id)

    async def settle(self, turn: str | Turn) -> Turn:
        """After `OutcomeUnknown`: the turn as it turned out. Raises that again if it can still not be told."""
        settled = await (await self._here(keep_draft=True)).settle(self._id, as_turn(turn))
        self._draft = None  # its begin has landed, so the conversation is there
        return settled

    # Branches.

    async def fork(
        self,
        *,
        conversation_id: str | None = None,
        at: Point | None = None,
        before: Point | None = None,
        agent: Agent | LLM | str | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        reset_metrics: bool = True,
        cache: CachePolicy = "own",
        workspace: str | os.PathLike[str] = "share",
        callbacks: Iterable[Callback] = (),
        key: str | None = None,
        if_revision: int | None = None,
    ) -> Self:
        """A new conversation that shares this one's history up to a point, and nothing else.

        ``at`` is a turn or an event, included; ``before`` the same, excluded; by default it is all that is committed.
        Never waits for a turn that runs. Costs the same however long the history is. ``key`` makes it happen once:
        the same key with the same arguments gives the same fork. ``if_revision``: as in `run`.

        ``workspace``: ``share`` is the same folder, where both see each other's files; ``worktree`` is a branch and a
        folder of the repository, and ``copy`` a copy, both with all that the folder has now; else a folder that exists.
        """
        other = None if agent is None else as_answerer(agent, remote=self._place.is_remote)
        if cache not in get_args(CachePolicy):
            raise BadArgument("fork()", f"cache={cache!r}", "it is own or inherit")
        id, name = as_id(conversation_id)
        title, others = with_title(title, tags)
        self._check_draft(if_revision)
        backend = await self._here()
        await self._keep_trust(backend)
        options = ForkOptions(
            id=id,
            name=name,
            chosen=conversation_id is not None,
            at=as_point(at),
            before=as_point(before),
            agent=_at_hand(other),
            server_agent=other if isinstance(other, str) else None,
            title=title,
            tags=others,
            reset_metrics=reset_metrics,
            cache=cache,
            workspace=_named_workspace(workspace, remote=self._place.is_remote),
            isolation=_isolation(workspace),
        )
        info, settings = await backend.fork(self._id, options, self._agent, key=key, if_revision=if_revision)
        visualizer = self._visualizer.for_fork() if self._visualizer is not None else None
        agent_now = self._agent_of(settings) if other is None else _at_hand(other)
        if agent_now is not None and other is not None:
            agent_now = with_project(agent_now, settings.project)
        return self._made(info, settings, agent_now, self._place.also(), callbacks, visualizer, self._allow)

    async def rewind(
        self,
        *,
        at: Point | None = None,
        before: Point | None = None,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> Self | None:
        """Moves this conversation back. What stood after that point is kept, and returned, as a branch set aside.

        None if nothing stood after it. ``key`` makes it happen once: the same key with the same place gives the same
        branch, and moves nothing again. ``if_revision``: as in `run`.
        """
        self._check_draft(if_revision)
        backend = await self._here()
        await self._keep_trust(backend)
        aside = await backend.rewind(
            self._id, at=as_point(at), before=as_point(before), key=key, if_revision=if_revision
        )
        if aside is None:
            return None
        info, settings = aside
        return self._made(info, settings, self._agent_of(settings), self._place.also(), (), None, self._allow)

    async def tree(self) -> tuple[Branch, ...]:
        """Its family: roots, and what branched off each."""
        if self._draft is not None:
            return (Branch(info_of_draft(self._draft)),)
        return await (await self._here()).tree(self._id)

    async def delete(self, *, if_revision: int | None = None) -> RemovedWorkspace | None:
        """Removes it and its sub-agents, never a fork, and closes it. What was spent stays counted in the family.

        A folder that was made for a fork is removed with the last conversation that works there, if nothing is lost by
        that: what is returned says so, or why it stays. None if there is no such folder. ``if_revision``: as in `run`.
        """
        self._check_draft(if_revision)
        left = None
        if self._draft is None:
            left = await (await self._here()).delete(self._id, if_revision=if_revision)
        await self.close()
        return left

    # What is in it.

    async def events(self, *, after: int = 0, limit: int | None = None, kinds: Sequence[str] = ()) -> "Events":
        """Committed events in order, from after an ordinal on."""
        if self._draft is not None:
            return []
        return await (await self._here()).events(self._id, after=after, limit=limit, kinds=kinds)

    async def turns(self, *, cursor: str | None = None, limit: int = 50) -> Page[Turn]:
        """Its turns in order, with the tries that did not commit: what they cost and what their tools did."""
        if self._draft is not None:
            return Page(())
        page = await (await self._here()).turns(self._id, cursor=cursor, limit=limit)
        return Page(tuple(map(self._seen, page.items)), page.next)

    async def turn(self, id: str | Turn) -> Turn:
        """One turn, as it stands now."""
        if self._draft is not None:
            raise NotFound("turn", as_turn(id))
        return self._seen(await (await self._here()).turn(self._id, as_turn(id)))

    async def stats(self) -> Stats:
        """Tokens, dollars and cached share: its own, what it inherited, and its family's."""
        if self._draft is not None:
            return Stats()
        return await (await self._here()).stats(self._id)

    async def agent_state(self) -> dict[str, Any]:
        """What tools have set, as it is committed."""
        return {} if self._draft is not None else await (await self._here()).state(self._id)

    async def update_state(
        self,
        set: Mapping[str, Any] | None = None,
        *,
        remove: Collection[str] = (),
        if_revision: int | None = None,
    ) -> None:
        """Changes the agent's state from outside, as a note of its own. The conversation must have no open turn.

        ``if_revision``: as in `run`.
        """
        self._check_draft(if_revision)
        await (await self._here()).update_state(self._id, set or {}, remove, if_revision=if_revision)

    async def request(self, message: Message | None = None, *, turn: str | Turn | None = None) -> Inspection:
        """What ``run(message)`` would send, or what was sent last (by ``turn``), beside the request before it."""
        backend, agent = await self._here(keep_draft=True), self._runs()
        if message is not None:
            asked = [as_message(message)]
            return await backend.request(self._id, agent, asked, draft=self._draft, allow=self._allow)
        if self._draft is not None:
            raise NoSuchTurn(self._id, "show", "nothing was run yet")
        return await backend.sent(self._id, agent, None if turn is None else as_turn(turn), allow=self._allow)

    async def verify(self, *, head_digest: str | None = None) -> Verification:
        """Checks that nobody changed its history. ``head_digest`` is an earlier `Info.digest`, kept elsewhere."""
        if self._draft is not None:
            return Verification(0, 0, 0, ())
        return await (await self._here()).verify(self._id, head_digest=head_digest)

    # Below the surface.

    async def _here(self, *, keep_draft: bool = False) -> Backend:
        """The place where it lives. One that is not there yet is made, unless its first turn is to do that."""
        if self._closed:
            raise ConversationClosed(self._id)
        if os.getpid() != self._process:
            raise ReopenAfterFork(self._id)
        backend = await self._place.backend()
        if self._closed:  # by somebody else, meanwhile
            raise ConversationClosed(self._id)
        if self._draft is not None and self._draft.asked is None:
            await self._prepare(backend)
        if not keep_draft:
            async with self._making:  # two who are first at once make one
                if self._draft is not None:
                    try:
                        await backend.create(self._draft)
                    except AlreadyExists:
                        if self._draft.chosen:
                            raise
                    finally:
                        self._trust_warning = backend.trust_warning(self._id)
                    self._draft = None  # an id that nobody chose can only be this one's
        return backend

    async def _prepare(self, backend: Backend) -> None:
        """Looks at the workspace of a conversation that is yet to be: its project may have something to tell."""
        async with self._making:
            draft = self._draft
            if draft is not None and draft.asked is None:
                self._draft, self._agent = await backend.prepared(draft, self._agent)
                self._settings = self._draft.settings

    async def _keep_trust(self, backend: Backend) -> None:
        """Keeps what was said of the workspace when it was opened, before its first turn from here."""
        if self._trust is not None and self._settings.workspace is not None:
            family, trusted = self._trust
            await backend.trust(family, self._settings.workspace, trusted)
            self._trust = None
            self._trust_warning = backend.trust_warning(family)

    def _check_draft(self, if_revision: int | None) -> None:
        """Raises `Stale` if somebody expects something of a conversation that is not there yet."""
        if self._draft is not None and if_revision:  # it will begin at 0
            raise Stale(self._id, if_revision, 0)

    def _agent_of(self, settings: Settings) -> Agent | None:
        """This object's agent as a branch has it, which may have been changed elsewhere; None if it is not at hand."""
        if self._agent is None or settings.agent_json == self._settings.agent_json or self._place.is_remote:
            return self._agent
        if settings.agent_json is not None and stands_for(self._agent, settings.agent_json):
            return self._agent
        with suppress(CannotResume):
            return settings.bound(self._agent, same=True)
        return None

    def _runs(self) -> Agent:
        if self._place.is_remote:
            return cast("Agent", self._agent)  # it may well be None: the server knows who answers
        if self._agent is None:
            why = "it has no agent" if self._settings.agent_json is None else "it was opened without its functions"
            raise NoAgent(self._id, why)
        return self._agent

    def _taking(
        self, message: Message | None, results: Mapping[str, Message | ToolResult] | None = None
    ) -> tuple[Given, ...]:
        answered = [as_result(call, result) for call, result in (results or {}).items()]
        given: tuple[Given, ...] = (*answered, *self._pending, *([] if message is None else [as_message(message)]))
        if not given:
            raise NothingToRun(self._id, "; after a turn that failed, use retry() or resume()")
        return given

    async def _run(
        self,
        messages: tuple[Given, ...],
        *,
        retry_of: str | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
        also: Callback | None = None,
    ) -> Turn:
        self._runs()  # raises if nobody answers, before anything is opened
        backend = await self._here(keep_draft=True)
        agent = self._runs()  # its project may have told it something
        await self._keep_trust(backend)
        tell = self._teller(also)
        making = self._making if self._draft is not None else None  # until it has begun, nobody else may make it
        draft = self._draft

        def told(update: Update) -> None:
            nonlocal making
            if isinstance(update, TurnStarted | TurnJoined):
                self._taken(messages)
                self._id = update.conversation  # that of an earlier request with the same key, if it made it
                if making is not None:
                    making.release()
                    making = None
            tell(update)

        if making is not None:
            await making.acquire()
        try:
            turn = await backend.run(
                self._id,
                agent,
                messages,
                draft=self._draft,
                retry_of=retry_of,
                supersede=supersede,
                key=key,
                if_revision=if_revision,
                allow=self._allow,
                tell=told,
            )
        except TurnFailed:
            self._taken(messages)  # also if nobody told that it was begun or joined
            raise
        finally:
            if making is not None:
                making.release()
            if draft is not None:
                self._trust_warning = backend.trust_warning(draft.id)
        self._taken(messages)
        self._id = turn.conversation
        return self._seen(turn)

    def _taken(self, messages: Sequence[Given]) -> None:
        """A turn has begun: it is in the store, whatever becomes of it, and these messages are its own."""
        self._draft = None
        for message in messages:
            for place, pending in enumerate(self._pending):
                if pending is message:  # and not one like it, that was sent for a later turn
                    del self._pending[place]
                    break

    async def _resume(
        self,
        turn: str,
        *,
        decision: Decision | None = None,
        rerun: Collection[str] = (),
        limits: Limits | None = None,
        also: Callback | None = None,
    ) -> Turn:
        backend, agent = await self._here(), self._runs()
        await self._keep_trust(backend)
        gone_on = await backend.resume(
            self._id,
            turn,
            agent,
            decision=decision,
            rerun=rerun,
            limits=limits,
            allow=self._allow,
            tell=self._teller(also),
        )
        return self._seen(gone_on)

    async def _decide(
        self, verb: str, calls: Sequence[str | Call], decision: Callable[[tuple[Call, ...]], Decision]
    ) -> Turn:
        """Decides on calls as they were seen, and on no other that has come to wait meanwhile.

        What this object was shown counts as seen; an object that was shown nothing sees what waits now.
        """
        turn = await self._one_of_the_tries(verb, None, open=True)
        seen = turn if self._waiting is None else self._waiting
        if calls:
            chosen = tuple(self._meant(verb, call, seen, turn) for call in calls)
        else:
            chosen = tuple(call for call in seen.waiting if call in turn.waiting)
            if not chosen and turn.waiting:
                raise NoSuchTurn(self._id, verb, f"other calls wait now than were shown; look at turn({turn.id!r})")
        return await self._resume(turn.id, decision=decision(chosen))

    def _meant(self, verb: str, call: str | Call, seen: Turn, now: Turn) -> Call:
        if isinstance(call, str) and len([one for one in now.calls if one.id == call]) > 1:
            why = f"the model has used the id {call!r} for several calls; pass the one of turn.waiting itself"
            raise NoSuchTurn(self._id, verb, why)
        meant = call if isinstance(call, Call) else next((one for one in seen.waiting if one.id == call), None)
        if meant is None or meant not in now.waiting:
            id, waits = call if isinstance(call, str) else call.id, ", ".join(one.id for one in now.waiting) or "none"
            why = f"call {id!r} does not wait, or not as it was shown (turn {now.id} waits for: {waits})"
            raise NoSuchTurn(self._id, verb, why)
        return meant

    async def _one_of_the_tries(self, verb: str, turn: str | Turn | None, *, open: bool = False) -> Turn:
        """The turn that somebody means: the one given, or the last that did not commit."""
        if self._draft is not None:
            raise NoSuchTurn(self._id, verb, "nothing was run yet")
        backend = await self._here()
        if turn is not None:
            return await backend.turn(self._id, as_turn(turn))
        tries = [one for one in await backend.tries(self._id) if not open or one.outcome not in {"failed", "cancelled"}]
        if not tries:
            why = "none is open" if open else "all that was run from here is committed"
            raise NoSuchTurn(self._id, verb, why)
        return max(tries, key=lambda one: one.id)

    def _seen(self, turn: Turn) -> Turn:
        """A turn as it is shown to the caller, who then knows what waits in it."""
        if turn.outcome == "awaiting_approval":
            self._waiting = turn
        elif self._waiting is not None and self._waiting.id == turn.id:
            self._waiting = None
        return self._typed(turn)

    def _typed(self, turn: Turn) -> Turn:
        """The turn with its answer as the agent's output type."""
        output = self._agent.output if self._agent is not None else None
        if output is None or turn.outcome != "committed":
            return turn
        with suppress(ValueError):  # it is of a time when the agent had no such type, or another
            return replace(turn, output=decode_as(output, turn.text))
        return turn

    def _teller(self, also: Callback | None = None) -> Callback:
        told = (*self._callbacks, self._visualizer, also)
        tell = tell_all([callback for callback in told if callback is not None])
        return lambda update: tell(self._typed(update) if isinstance(update, Turn) else update)


def _at_hand(answerer: Agent | str | None) -> Agent | None:
    """An agent, unless it is one that only a server has."""
    return None if isinstance(answerer, str) else answerer


def _named_workspace(given: str | os.PathLike[str], *, remote: bool) -> str | None:
    """The folder that a fork is to have, if the word is none that means another one."""
    return None if given == "share" or _isolation(given) is not None else as_workspace(given, remote=remote)


def _isolation(given: str | os.PathLike[str]) -> Kind | None:
    return "worktree" if given == "worktree" else "copy" if given == "copy" else None

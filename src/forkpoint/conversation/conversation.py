"""`AsyncConversation`: a conversation that runs.

::

    async with AsyncConversation(agent) as conversation:
        turn = await conversation.run("Why did build 1234 fail?")   # commits, or raises TurnFailed
        fork = await conversation.fork(title="Try the other fix")   # shares history, and nothing else

The object holds no history and no state: both are in the store, so any number of objects, in any number of processes,
may stand for one conversation. The object does hold the agent with its Python functions, the callbacks, and messages
that were sent and not run yet. The work is done by its parts: `Handle`, `Tries` and `Members`.
Tests: tests/conversation/test_turns.py.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.agent.team.tools import Task
from forkpoint.backend.allowance import NOTHING
from forkpoint.backend.bring import BringOptions, BringReport
from forkpoint.backend.callbacks import Callback, Visualizer
from forkpoint.backend.diff import LIMIT, Diff, check_limit
from forkpoint.backend.messages import ListFormat, Message, as_message, as_result
from forkpoint.backend.names import (
    Id,
    Named,
    Point,
    TurnId,
    as_answerer,
    as_id,
    as_name,
    as_point,
    as_position,
    as_text,
    as_turn,
    check_chosen_name,
    with_title,
)
from forkpoint.backend.notebook import conversation_html
from forkpoint.backend.options import ErasureOptions, ExportOptions, ForkOptions, SpawnOptions
from forkpoint.backend.protocol import Backend
from forkpoint.backend.results import (
    Branch,
    Call,
    ExportReport,
    Info,
    Member,
    RemovedWorkspace,
    SideAnswer,
    Stats,
    SteerReceipt,
    Tree,
    Turn,
)
from forkpoint.backend.settings import Settings, as_workspace
from forkpoint.backend.state import as_state
from forkpoint.conversation.copies import Progress, Target, write_export
from forkpoint.conversation.edge import by_name, edge
from forkpoint.conversation.handle import Handle, NewOptions, OpenOptions, at_hand, created, drafted, opened
from forkpoint.conversation.place import Place, Where
from forkpoint.conversation.stream import StreamedTurn, streamed
from forkpoint.conversation.sub_agents import Members, part_of_key
from forkpoint.conversation.tries import Tries
from forkpoint.engine.trust import with_project
from forkpoint.engine.views import info_of_draft
from forkpoint.errors import BadArgument, CannotKeep, NoSuchTurn, NotFound
from forkpoint.events import BroughtAs, Condensation, Event, Position, ToolResult, UserMessage
from forkpoint.history.budgets import Budget, BudgetScope, BudgetStanding
from forkpoint.history.pairing import SAID
from forkpoint.ids import new_id
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.identity import CacheIdentity, CachePolicy
from forkpoint.llm.prompt.inspection import Inspection
from forkpoint.llm.prompt.misses import CacheReport
from forkpoint.paging import Page
from forkpoint.parameters import Count
from forkpoint.store.erasure import Receipt, check_reason
from forkpoint.store.values import Hold, ListOrder, Record, Status, Verification, VerifyProgress
from forkpoint.wire.message_lists import check_format, read_list, write_list

if TYPE_CHECKING:
    from forkpoint.conversation.conversations import AsyncConversations

Messages: TypeAlias = list[dict[str, Any]]
Events: TypeAlias = list[Event]  # in a class with a method of that name, `list` is the method


@edge(lambda self: self._names())
class AsyncConversation:
    """A conversation. Making the object does no I/O: the conversation comes into being with its first turn.

    - ``agent``: who answers. A model's name or an `LLM` is an agent without tools or instructions.
    - ``conversation_id``: an id, or a name to know the conversation by. Default: a fresh id.
    - ``workspace``: the folder that tools work in.
    - ``trust``: whether the user trusts the project of that folder. When the conversation comes into being, this is
      kept in the user's settings if possible (`trust_warning`). An explicit "untrusted" in the settings wins.
    - ``store``: where the conversation lives: ``forkpoint.db`` or another path of a file, ``sqlite:///file.db``,
      ``memory:``, or ``http://host:8008`` for a server, whose agents have names like ``"support"``. Default:
      FORKPOINT_STORE, else a file in the user's data folder.
    - ``budget`` and ``family_budget``: what it may spend in all, and it with all its forks and sub-agents.
    - ``callbacks``: functions that get every update while a turn runs.
    - ``visualizer``: a callback that shows updates on a screen. A fork gets one of the same kind.
    """

    def __init__(
        self,
        agent: Agent | LLM | str,
        *,
        conversation_id: Id | None = None,
        workspace: str | os.PathLike[str] | None = None,
        trust: bool | None = None,
        store: Where = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        family_budget: Budget | None = None,
        callbacks: Iterable[Callback] = (),
        visualizer: Visualizer | None = None,
    ) -> None:
        options = NewOptions(agent, conversation_id, workspace, trust, title, tags, budget, family_budget)
        self._compose(drafted(Place(store), options), callbacks, visualizer)

    @classmethod
    def _around(cls, handle: Handle, callbacks: Iterable[Callback] = (), visualizer: Visualizer | None = None) -> Self:
        """The conversation that a handle holds."""
        made = cls.__new__(cls)
        made._compose(handle, callbacks, visualizer)
        return made

    def _compose(self, handle: Handle, callbacks: Iterable[Callback], visualizer: Visualizer | None) -> None:
        self._handle = handle
        self._visualizer = visualizer
        self._tries = Tries(handle, [*callbacks, *([] if visualizer is None else [visualizer])])
        self._members = Members(handle)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _repr_html_(self) -> str:
        """What this object knows. Nothing is read for it."""
        model = None if self.agent is None else self.agent.llm.model
        waiting = f"{len(self.pending):,} messages to run" if self.pending else None
        return conversation_html(self.name, [model, waiting])

    # Opening and closing.

    @classmethod
    async def open(
        cls,
        id: Id,
        *,
        agent: Agent | LLM | str | None = None,
        create: Agent | LLM | str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        bind: bool = True,
        allow: str | Collection[str] = (),
        trust: bool | None = None,
        store: Where = None,
        callbacks: Iterable[Callback] = (),
        visualizer: Visualizer | None = None,
    ) -> Self:
        """Opens a conversation that exists, by its id or name.

        - ``agent``: has the Python functions. Without it they are imported again. If functions or the workspace are
          missing or have changed, or if ``agent`` has another model, `CannotResume` lists all of that, before anything
          runs.
        - ``create``: the agent of a new conversation, which is made if none has this id or name.
        - ``workspace``, ``title``, ``tags``: of the new conversation; they need ``create``. If the conversation exists,
          its title and tags stay as they are, and another workspace than the one that it has raises `BadWorkspace`.
        - ``bind=False``: opens the conversation without its functions: to read, fork or rewind it, not to run it.
        - ``allow``: what may be missing, by its kind (``tools``, ``output``, ``approval``, ``workspace``, ``model``) or
          by its name (``tool:read_log``). The conversation goes on without the tools, the form of answers or the
          folder, asks before every call if its policy is missing, and uses the model of ``agent``. Nothing is written
          until a turn commits, which records it.
        - ``trust``: what the user says of the workspace, kept before the first turn that is run from here. At a server,
          it is said when a conversation is made.
        - ``store``, ``callbacks``, ``visualizer``: as in `AsyncConversation`.
        """
        options = OpenOptions(
            agent=agent, create=create, workspace=workspace, title=title, tags=tags, bind=bind, allow=allow, trust=trust
        )
        return cls._around(await opened(Place(store), as_text(id), options), callbacks, visualizer)

    @classmethod
    async def from_messages(
        cls,
        messages: Sequence[Any],
        *,
        agent: Agent | LLM | str,
        format: ListFormat | None = None,
        conversation_id: Id | None = None,
        workspace: str | os.PathLike[str] | None = None,
        trust: bool | None = None,
        store: Where = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        family_budget: Budget | None = None,
        callbacks: Iterable[Callback] = (),
        visualizer: Visualizer | None = None,
    ) -> Self:
        """Makes a conversation whose history is a list of messages from elsewhere, all of it or nothing.

        - ``messages``: dicts, or an SDK's own objects, in the form of chat completions or in Anthropic's. System
          messages become part of the history; what Anthropic takes as ``system`` belongs into ``agent``.
        - ``format``: ``openai`` or ``anthropic``. Default: what stands in the list tells it.
        - All others are as in `AsyncConversation`.

        The conversation is in the store when this returns, with one note. If the list ends with the user's words,
        `go_on` answers them. Raises `BadMessages` with the index of the message that cannot be history.
        """
        history = read_list(messages, format)
        options = NewOptions(agent, conversation_id, workspace, trust, title, tags, budget, family_budget, history)
        return cls._around(await created(Place(store), options), callbacks, visualizer)

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
        """A conversation of a backend that is open already. Whoever opened the backend closes it."""
        handle = Handle(Place.around(backend), info.id, info.name, agent, settings, allow=allow)
        return cls._around(handle, callbacks)

    @classmethod
    async def list(
        cls,
        *,
        store: Where = None,
        cursor: str | None = None,
        limit: Count = 50,
        order: ListOrder = "created",
        tags: Mapping[str, str] | None = None,
        status: Status | None = None,
        sub_agents: bool = False,
        sides: bool = False,
        asides: bool = True,
        drafts: bool = False,
        glance: bool = False,
        parent: Id | None = None,
    ) -> Page[Info]:
        """Lists conversations of a store: `AsyncConversations.list`."""
        async with _conversations(store) as them:
            return await them.list(
                cursor=cursor,
                limit=limit,
                order=order,
                tags=tags,
                status=status,
                sub_agents=sub_agents,
                sides=sides,
                asides=asides,
                drafts=drafts,
                glance=glance,
                parent=parent,
            )

    @classmethod
    async def verify_store(
        cls, *, store: Where = None, head_digest: str | None = None, progress: VerifyProgress | None = None
    ) -> Verification:
        """Checks that nobody changed the history of any conversation in a store: `AsyncConversations.verify`."""
        async with _conversations(store) as them:
            return await them.verify(head_digest=head_digest, progress=progress)

    async def close(self) -> None:
        """Lets go of the store. The last user of the store closes it, which cancels turns that still run there."""
        await self._handle.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # What it is.

    @property
    def id(self) -> str:
        """The inner id, which never changes."""
        return self._handle.id

    @property
    def name(self) -> str:
        """The outer name; the id if nobody gave a name."""
        return self._handle.name

    @property
    def agent(self) -> Agent | None:
        """Who answers. None if the conversation was opened without its functions, or if only the server has them."""
        return self._handle.agent

    @property
    def workspace(self) -> Path | None:
        """The folder that tools work in."""
        return self._handle.settings.folder

    @property
    def project_instructions(self) -> str | None:
        """What the trusted project of the workspace tells the agent, after the agent's own instructions."""
        return self._handle.settings.project

    @property
    def trust_warning(self) -> str | None:
        """Why ``trust`` was not kept in the user's settings, or has no effect. None if all is well, or not done yet.

        The warning is logged too. What could not be kept still holds for this conversation, its forks and sub-agents,
        for as long as this process has the store open.
        """
        return self._handle.trust_warning

    @property
    def pending(self) -> tuple[UserMessage, ...]:
        """Messages that were sent and not run yet. Only this object has them."""
        return tuple(self._tries.pending)

    async def info(self) -> Info:
        """The conversation's metadata, as it stands now."""
        return await self._handle.info()

    async def title(self) -> str | None:
        """The title, or None."""
        return (await self.info()).title

    async def tags(self) -> dict[str, str]:
        """All tags, the title among them."""
        return (await self.info()).tags

    async def status(self) -> Status:
        """``idle``, ``running``, ``awaiting_approval`` or ``interrupted``."""
        return (await self.info()).status

    async def cache(self) -> CacheIdentity:
        """The cache identity: the prompt-cache key that providers get, and whose key that is."""
        return (await self.info()).cache

    async def describe(
        self, *, title: str | None = None, tags: Mapping[str, str] | None = None, if_info: Info | None = None
    ) -> Info:
        """Sets the title ("" removes it) or all tags. A turn that runs is not disturbed.

        ``if_info``: raises `Stale`, and changes nothing, if title, tags or history are not as they were when this was
        read.
        """
        title, others = with_title(title, tags)
        return await self._handle.describe(title, None if tags is None else others, if_info)

    async def rename(self, name: Id) -> Info:
        """Gives this conversation another name, and changes nothing else. A turn that runs is not disturbed.

        Its own id as the name takes the name away. Raises `AlreadyExists` if another conversation has the name, and
        `BadName` if it cannot be a name.
        """
        return await self._handle.rename(check_chosen_name("name", as_text(name)))

    async def change_agent(self, agent: Agent | LLM | str, *, if_revision: int | None = None) -> None:
        """Lets another agent answer from here on. A note records it; the conversation must have no open turn.

        Nothing changes if the conversation has this agent already. ``if_revision``: as in `run`.
        """
        await self._handle.change_agent(agent, if_revision)

    async def use_model(self, model: LLM | str) -> None:
        """Lets another model answer from the next turn on. All else of the agent stays, at a server too.

        Nothing is written yet: the next turn that commits records the change, and a turn that fails leaves the
        conversation as it was. A turn that is open meanwhile is not disturbed.
        """
        await self._handle.use_model(model)

    # Turns.

    def send_message(self, message: Message) -> None:
        """Queues a message for the next turn. Several messages are one turn, in order. Only this object has them."""
        self._tries.pending.append(as_message(message))

    async def run(
        self,
        message: Message | None = None,
        *,
        results: Mapping[str, Message | ToolResult] | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> Turn:
        """Runs one turn with all pending messages and ``message``.

        Returns the turn when it is committed, or when it waits for an approval. Raises `TurnFailed` (`TurnCancelled`
        if somebody cancelled it) when it is certain that nothing has moved.

        - ``results``: the results of calls of the client's own tools (`Turn.handed`), by the call's id. The model is
          told that a call without a result has none.
        - ``supersede``: discards an earlier turn that is still open. Without it, such a turn raises `TurnOpen`.
        - ``key``: an idempotency key. The same key with the same messages gives the same turn.
        - ``if_revision``: `Info.revision` as the caller knows it. If the conversation has moved since, `Stale` is
          raised and nothing has changed.
        """
        given = self._tries.given(message, results)
        return await self._tries.run(given, supersede=supersede, key=key, if_revision=if_revision)

    def run_stream(
        self,
        message: Message | None = None,
        *,
        results: Mapping[str, Message | ToolResult] | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> StreamedTurn:
        """Runs one turn, as `run` does, and streams its updates.

        ``async with conversation.run_stream("...") as stream``, then ``async for update in stream``. Updates are
        provisional (`forkpoint.updates`); the last one is the turn. Leaving early cancels the turn.
        """
        given = self._tries.given(message, results)

        async def start(tell: Callback) -> Turn:
            with by_name(self._names):
                return await self._tries.run(given, supersede=supersede, key=key, if_revision=if_revision, also=tell)

        return StreamedTurn("run_stream", streamed(start))

    async def go_on(self, *, key: str | None = None, if_revision: int | None = None) -> Turn:
        """Runs one turn without a message: the model goes on from where the path ends.

        That is possible where the path does not end in a finished answer: after a fork or a rewind into the middle of a
        turn, after a turn that stopped at a limit. Elsewhere it raises `NothingToRun`. Pending messages are not sent.

        - ``key``: an idempotency key. The same key gives the same turn, unless the conversation goes on elsewhere or
          with another model, instructions or tools: that raises `KeyReused`.
        - ``if_revision``: as in `run`.
        """
        return await self._tries.go_on(key=key, if_revision=if_revision)

    def go_on_stream(self, *, key: str | None = None, if_revision: int | None = None) -> StreamedTurn:
        """Runs one turn without a message, as `go_on` does, and streams its updates, as `run_stream` does."""

        async def start(tell: Callback) -> Turn:
            with by_name(self._names):
                return await self._tries.go_on(key=key, if_revision=if_revision, also=tell)

        return StreamedTurn("go_on_stream", streamed(start))

    async def ask(self, message: Message) -> SideAnswer:
        """Asks a side question. It is answered from the history; only its cost is kept.

        A turn may be running. Tools are not used.
        """
        handle, asked = self._handle, [as_message(message)]
        backend = await handle.backend()
        return await backend.questions.ask(
            handle.id, handle.answerer(), asked, allow=handle.allow, tell=self._tries.teller()
        )

    async def condense(self, *, focus: str | None = None, if_revision: int | None = None) -> Condensation | None:
        """Leaves the older part of the path out of prompts from now on, however short the path is. A note records it.

        The agent's condenser does it. For an agent without one, its model writes a summary. Returns what prompts show
        instead; None if there is nothing to leave out, or if the model's summary is of no use, which is logged. The
        conversation must have no open turn; if it goes on meanwhile, `Stale` is raised.

        - ``focus``: what the summary should look at above all, in words for the model that writes it.
        - ``if_revision``: as in `run`.
        """
        handle = self._handle
        handle.check_draft(if_revision)
        backend = await handle.backend()
        if focus is not None and not focus.strip():
            raise BadArgument("condense()", "focus", "it says nothing; leave it out, or say what to look at")
        return await backend.turns.condense(
            handle.id, handle.answerer(), focus=focus, if_revision=if_revision, allow=handle.allow
        )

    async def cancel(self) -> Turn:
        """Cancels the open turn, whichever process runs it, and waits for its outcome: ``committed`` if it is too late.

        A turn whose process has died ends as ``cancelled`` at once. If its process is stopped or hangs, this waits
        until the process counts as dead, which takes a minute. Raises `NoSuchTurn` if no turn is open, or if the turn
        waits for an approval: `discard` it.
        """
        if self._handle.draft is not None:
            raise NoSuchTurn(self.id, "cancel", "nothing was run yet")
        return self._tries.seen(await (await self._backend()).turns.cancel(self.id))

    async def steer(self, message: Message, *, turn: TurnId | None = None, key: str | None = None) -> SteerReceipt:
        """Sends a message to the turn that is open, whichever process runs it, and returns at once.

        The model is given the message with the next tool results. If it has its answer by then, it is asked again: the
        turn does not end before it has heard the message. A turn that waits or was interrupted hears it when it goes
        on. Raises `NoSuchTurn` if no turn is open: then `run` it.

        - ``turn``: the turn that is meant. If that is over, `NoSuchTurn` is raised. Default: whichever is open.
        - ``key``: an idempotency key. The same message with the same key is delivered once.
        """
        said, named = as_message(message), None if turn is None else as_turn(turn)
        backend = await self._handle.backend(keep_draft=True)  # its first turn may run, and this object not know it yet
        try:
            return await backend.turns.steer(self.id, said, turn=named, key=key)
        except NotFound as error:
            if self._handle.draft is not None and error.what == "conversation":
                raise NoSuchTurn(self.id, "steer", "nothing was run yet") from None
            raise

    async def retry(
        self, turn: TurnId | None = None, *, key: str | None = None, model: LLM | str | None = None
    ) -> Turn:
        """Runs the input of a turn again, from the head. Default: the last turn that did not commit.

        A turn that is still open is discarded. ``model``: another model answers, from here on, as with `use_model`.
        """
        return await self._tries.retry(turn, key, model)

    async def resume(
        self, turn: TurnId | None = None, *, rerun: str | Collection[str] = (), limits: Limits | None = None
    ) -> Turn:
        """Goes on with a turn that failed, was cancelled or interrupted, after its last finished step.

        No finished tool is run again. A call that was started and has no result is `unknown`, and the model is told
        so, unless its tool is repeatable or ``rerun`` names the call. ``limits`` replaces the agent's limits for this
        turn.
        """
        found = await self._tries.find("resume", turn)
        again = (rerun,) if isinstance(rerun, str) else rerun  # one text is one call, not a sequence of letters
        return await self._tries.resume(found.id, rerun=again, limits=limits)

    async def open_turn(self) -> Turn | None:
        """The turn that is open, with the calls that wait in it (`Turn.waiting`); None if no turn is open."""
        return await self._tries.open_turn()

    async def approve(
        self,
        *calls: str | Call,
        arguments: Mapping[str, Mapping[str, Any] | str] | None = None,
        by: str | None = None,
        always: str | None = None,
    ) -> Turn:
        """Lets calls that wait run, and goes on with the turn. Works from any process.

        An approval is of content: it means calls that this object has shown, in any turn that it has given you. By
        default these are all that were shown and still wait. If none was shown, `NotShown` is raised: look at
        `open_turn` first. If other content waits by now, `CallChanged` is raised. Then nothing has run.

        - ``calls``: the id of a call that was shown, or a `Call` itself, which is content in hand.
        - ``arguments``: what a call is to run with instead, by the call's id: a mapping, or JSON text. The call stays
          as the model wrote it; the approval records the other arguments, and the result tells the model. Raises
          `BadArgument` if the tool does not take them.
        - ``by``: who approves; it is recorded.
        - ``always``: what is allowed without a question from now on, until `revoke_approval`. ``"call"``: the same tool
          with exactly the same arguments. ``"tool"``: every call of the tool, unless it runs commands. For the shell
          ``"prefix:git status"``: commands of plain words that begin with these. Raises `BadArgument` with the reason
          if that may not be allowed.
        """
        return await self._tries.approve(calls, arguments, by, always)

    async def deny(self, *calls: str | Call, by: str | None = None, reason: str | None = None) -> Turn:
        """Refuses calls that wait, by default all of them, and goes on: the model is told, with the reason.

        Denying is safe, so the calls need not have been shown. A `Call` that does not wait as it is any more raises
        `CallChanged`.
        """
        return await self._tries.deny(calls, by, reason)

    async def approvals(self, *, revoked: bool = False) -> tuple[StandingApproval, ...]:
        """What is allowed here without a question: the standing approvals, the oldest first.

        With ``revoked``, those that were revoked too.
        """
        if self._handle.draft is not None:
            return ()
        return await (await self._backend()).approvals(self.id, revoked=revoked)

    async def revoke_approval(self, approval: Id | StandingApproval, *, by: str | None = None) -> StandingApproval:
        """Takes a standing approval back, by its id. From then on such calls wait again, also in a turn that runs.

        Revoking it once more changes nothing. Raises `NotFound` if the conversation has no such standing approval.
        """
        id = approval.id if isinstance(approval, StandingApproval) else as_text(approval)
        if self._handle.draft is not None:
            raise NotFound("standing approval", id)
        return await (await self._backend()).revoke_approval(self.id, id, by=by)

    async def discard(self, turn: TurnId | None = None) -> Turn:
        """Ends an open turn that nobody runs. What its tools did stays visible."""
        found = await self._tries.find("discard", turn, open=True)
        return await (await self._backend()).turns.discard(self.id, found.id)

    async def settle(self, turn: TurnId) -> Turn:
        """After `OutcomeUnknown`: the turn with its real outcome. Raises `OutcomeUnknown` if that is still unknown."""
        settled = await (await self._handle.backend(keep_draft=True)).turns.settle(self.id, as_turn(turn))
        self._handle.draft = None  # the turn was begun, so the conversation is in the store
        return self._tries.seen(settled)

    # Branches.

    async def fork(
        self,
        *,
        conversation_id: Id | None = None,
        at: Point | None = None,
        before: Point | None = None,
        agent: Agent | LLM | str | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        reset_metrics: bool = True,
        cache: CachePolicy = "own",
        workspace: str | os.PathLike[str] = "share",
        results: Mapping[str, Message | ToolResult] | None = None,
        state: Mapping[str, object] | None = None,
        budget: Budget | None = None,
        callbacks: Iterable[Callback] = (),
        key: str | None = None,
        if_revision: int | None = None,
    ) -> Self:
        """Makes a new conversation that shares this one's history up to a point, and nothing else.

        A fork never waits for a turn that runs, and costs the same however long the history is.

        - ``at``: a turn or an event, included; ``before``: the same, excluded. Default: all that is committed.
        - ``workspace``: ``share`` is the same folder, so both conversations see each other's files. ``worktree`` is a
          new branch and folder of the repository, ``copy`` a copy; both have all that the folder has now. Else the
          path of a folder that exists.
        - ``results``: other results for calls, by the call's id. ``at`` is then such a call (`Turn.calls`), its event,
          the event of its result, or its turn. The fork has the history up to the model's response with these calls;
          a note answers them, with the results that they had where you give no other. `go_on` goes on from there.
        - ``state``: keys of the agent's state that the fork begins with, as a note.
        - ``budget``: what the fork may spend in all. It does not draw from the family's budget then. Default: it does.
        - ``key``: an idempotency key. The same key with the same arguments gives the same fork.
        - ``if_revision``: as in `run`.
        """
        handle = self._handle
        remote = handle.place.is_remote
        other = None if agent is None else as_answerer(agent, remote=remote)
        id, name = as_id(conversation_id)
        title, others = with_title(title, tags)
        handle.check_draft(if_revision)
        backend = await handle.ready()
        options = ForkOptions(
            id=id,
            name=name,
            chosen=conversation_id is not None,
            at=as_point(at),
            before=as_point(before),
            agent=at_hand(other),
            server_agent=other if isinstance(other, str) else None,
            title=title,
            tags=others,
            reset_metrics=reset_metrics,
            cache=cache,
            workspace=None if workspace in _KEYWORDS else as_workspace(workspace, remote=remote),
            isolation="worktree" if workspace == "worktree" else "copy" if workspace == "copy" else None,
            results={call: as_result(call, result) for call, result in (results or {}).items()},
            state=as_state("fork()", state or {}),
            budget=budget,
        )
        info, settings = await backend.branches.fork(self.id, options, handle.agent, key=key, if_revision=if_revision)
        answers = handle.agent_of(settings) if other is None else at_hand(other)
        if answers is not None and other is not None:
            answers = with_project(answers, settings.project)
        return self._branch(handle.beside(info, settings, answers, allow=handle.allow), callbacks)

    async def rewind(
        self,
        *,
        at: Point | None = None,
        before: Point | None = None,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> Self | None:
        """Moves the head of this conversation back. Returns the branch that keeps what stood after that point.

        None if nothing stood after it. ``key`` is an idempotency key: the same key with the same point gives the same
        branch, and moves nothing again. ``if_revision``: as in `run`.
        """
        handle = self._handle
        handle.check_draft(if_revision)
        backend = await handle.ready()
        aside = await backend.branches.rewind(
            self.id, at=as_point(at), before=as_point(before), key=key, if_revision=if_revision
        )
        if aside is None:
            return None
        info, settings = aside
        return self._around(handle.beside(info, settings, handle.agent_of(settings), allow=handle.allow))

    async def keep(self, branch: Named, *, key: str | None = None, if_revision: int | None = None) -> Self | None:
        """Moves the head of this conversation to the head of a branch of its family. Returns what stood there.

        What stood there becomes a branch that is set aside, in the same transaction. None if nothing had to be set
        aside: the branch goes on from where this conversation stands, with the same agent. Undo it by keeping the
        branch that was set aside.

        The branch's agent and cache identity come along, so that the next prompt is warm. Id, name, title and tags of
        this conversation stay, and so do its approval policy, limits, hooks, standing approvals and workspace. The
        branch stays as it is. A turn that runs there is not waited for: what is committed there is kept.

        - ``branch``: a conversation, or its id or name. Raises `CannotKeep` if it is this conversation itself, of
          another family, a sub-agent, a draft, or waits for results of the client's own tools.
        - ``key``: an idempotency key. The same key with the same branch moves nothing again, and returns the same.
        - ``if_revision``: as in `run`.

        Raises `Busy` or `TurnOpen` while a turn holds this conversation.
        """
        handle = self._handle
        handle.check_draft(if_revision)
        named = as_name(branch)
        if handle.draft is not None:
            raise CannotKeep(self.id, named, "nothing was said in the conversation yet, so it has no branches")
        backend = await handle.ready()
        (_, settings), aside = await backend.branches.keep(self.id, named, key=key, if_revision=if_revision)
        left = None
        if aside is not None:
            info, former = aside
            left = self._around(handle.beside(info, former, handle.agent_of(former), allow=handle.allow))
        its_agent = getattr(branch, "agent", None)  # of an object that was opened with its functions
        handle.kept(settings, its_agent if isinstance(its_agent, Agent) else None)
        return left

    async def diff(self, other: Named, *, limit: int = LIMIT) -> Diff:
        """How this conversation (``a``) differs from another one (``b``): the common ancestor, and what each has since.

        ``other`` is a conversation, or its id or name. Only what is committed is compared, turn by turn, and nothing
        that both share is read. Conversations of different families have no common ancestor: then all of both is
        compared. ``limit`` is how many turns and notes of each are compared; `DiffSide.left_out` counts the others.
        """
        check_limit(limit)
        if self._handle.draft is not None:
            raise NotFound("conversation", self.id)
        return await (await self._backend()).branches.diff(self.id, as_name(other), limit=limit)

    async def bring(
        self, branch: Named, what: BroughtAs = "answer", *, key: str | None = None, if_revision: int | None = None
    ) -> BringReport:
        """Brings what a branch of this family has said since the common ancestor. A note records it.

        - ``answer``: the branch's last finished answer, with what was asked. One message of the user, which names the
          branch.
        - ``summary``: what this conversation's model, or the model of its condenser, makes of all that the branch did.
          One message of the user. What it costs is this conversation's.
        - ``turns``: copies of all whole exchanges, without thoughts. What was copied before is not copied again.

        Nothing that the branch has spent is counted here, and its state stays there. Raises `BringRefused` with the
        reason if there is nothing to bring, or if it may not be brought. The conversation must have no open turn.

        ``key`` is an idempotency key: the same key with the same arguments gives the same note, and asks no model
        again. ``if_revision``: as in `run`.
        """
        handle = self._handle
        agent = handle.answerer() if what == "summary" else None
        handle.check_draft(if_revision)
        backend = await handle.ready()
        options = BringOptions(branch=as_name(branch), what=what, key=key, if_revision=if_revision, allow=handle.allow)
        return await backend.branches.bring(self.id, options, agent)

    async def tree(self) -> Tree:
        """The family: its roots, each with what branched off."""
        if self._handle.draft is not None:
            return Tree((Branch(info_of_draft(self._handle.draft)),))
        return Tree(await (await self._backend()).branches.tree(self.id))

    async def delete(self, *, if_revision: int | None = None) -> RemovedWorkspace | None:
        """Deletes this conversation and its sub-agents, never a fork, and closes it. Its cost stays in the family's.

        A folder that was made for a fork is removed with the last conversation that works there, unless something
        would be lost. Returns what became of that folder, and why; None if there is no such folder.
        ``if_revision``: as in `run`.
        """
        self._handle.check_draft(if_revision)
        folder = None
        if self._handle.draft is None:
            folder = await (await self._backend()).delete(self.id, if_revision=if_revision)
        await self.close()
        return folder

    # Budgets.

    async def set_budget(
        self, budget: Budget | None, *, scope: BudgetScope = "conversation"
    ) -> tuple[BudgetStanding, ...]:
        """Sets what this conversation may spend in all, or with ``scope="family"`` its whole family; None removes it.

        What was spent before counts. A conversation's budget covers its turns, side questions and condensations, and
        the sub-agents beneath it. All budgets that cover a call must have room for the most that it can cost; else it
        is not made, and `BudgetExceeded` says why. Returns what `budget` does.
        """
        return await (await self._backend()).budgets.set(self.id, budget, scope=scope)

    async def budget(self) -> tuple[BudgetStanding, ...]:
        """The budgets that cover this conversation: limits, what is spent, reserved and left.

        Its own comes first, then those of the conversations that it works beneath, and the family's last.
        """
        return () if self._handle.draft is not None else await (await self._backend()).budgets.read(self.id)

    # Holding and erasing.

    async def hold(self, reason: str) -> Hold:
        """Keeps this conversation's family from deletion, erasure and retention, until it is released.

        Several holds may stand. The reason stays for good, also after the release.
        """
        check_reason(reason)
        return await (await self._backend()).hold(self.id, new_id(), reason)

    async def holds(self) -> tuple[Hold, ...]:
        """What holds this conversation's family, the oldest first."""
        return () if self._handle.draft is not None else await (await self._backend()).holds(self.id)

    async def release(self, id: Id | None = None) -> tuple[Hold, ...]:
        """Ends the hold with this id, or all holds of the family. Returns those that it ended. Raises `NotFound`."""
        return await (await self._backend()).release(self.id, None if id is None else as_text(id))

    async def erase(
        self,
        *,
        reason: str,
        turn: TurnId | None = None,
        event: str | Position | Event | None = None,
        everything: bool = False,
        preview: bool = False,
        keep_summaries: bool = False,
        cancel: bool = False,
    ) -> Receipt:
        """Removes content for good, from every place of the store that has it, and returns the receipt.

        Say what: a ``turn``, an ``event``, or ``everything``, which is the whole path with all tries, sub-agents and
        sides, and the conversation's title, tags and name. Forks show the same change, since they share these events.
        Erased events stay in place, and models are shown "[erased]" instead.

        - ``preview``: nothing is changed; the receipt says what would go, and which conversations it touches.
        - ``keep_summaries``: summaries of condensations that cover erased events stay, and summaries that were brought
          to another branch. By default they are erased too.
        - ``cancel``: cancels turns that run in what is touched. Else they are refused with `Busy`. Open turns that
          nobody runs are discarded.

        It is done whole or not at all. Raises `Held` if the family is held.
        """
        if [turn is not None, event is not None, everything].count(True) != 1:
            raise BadArgument("erase()", "what", "say one of turn=, event= and everything=True")
        check_reason(reason)
        options = ErasureOptions(
            reason=reason,
            turn=None if turn is None else as_turn(turn),
            event=None if event is None else as_position(event),
            preview=preview,
            keep_summaries=keep_summaries,
            cancel=cancel,
        )
        return await (await self._backend()).erase(self.id, options)

    # Sub-agents.

    async def spawn_agent(
        self,
        task: str,
        *,
        role: str | None = None,
        agent: Agent | str | None = None,
        model: str | None = None,
        nickname: str | None = None,
        fork: str | int = "none",
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        callbacks: Iterable[Callback] = (),
        key: str | None = None,
    ) -> Self:
        """Makes a sub-agent. Its task is its pending message: ``run()`` of the sub-agent begins it.

        - ``role``: one of the roles that this conversation's agent has for its sub-agents.
        - ``agent``: an agent, or the name of an agent that this conversation's agent offers. Default: the role's agent,
          else this conversation's agent.
        - ``model``: another model that this conversation's agent offers.
        - ``nickname``: its name among its siblings.
        - ``fork``: only ``none`` here. A sub-agent that begins with its parent's history is made by a call in a turn.
        - ``budget``: what the sub-agent may spend in all. It draws neither from this conversation's budget nor from
          the family's then. Default: it draws from both.
        - ``callbacks``: functions that get every update while its turns run.
        - ``key``: an idempotency key. The same key with the same arguments gives the same sub-agent, and ``run()`` of
          the sub-agent gives the turn that has its task: also after a restart, the task is not run twice.

        A note records the sub-agent, so this conversation must have no open turn. The sub-agent never has more rights
        than this conversation: the approvals of both hold, and the workspace is the same. Raises `SpawnRefused` with
        the reason.
        """
        pending = as_message(task)  # raises if it is not a message, before anything is made
        title, others = with_title(title, tags)
        options = SpawnOptions(
            id=new_id(),
            task=Task(
                task=task,
                role=role,
                agent=agent if isinstance(agent, str) else None,
                model=model,
                nickname=nickname,
                fork=fork,
            ),
            agent=None if isinstance(agent, str) else agent,
            title=title,
            tags=others,
            budget=budget,
        )
        child = self._branch(await self._members.spawn(options, key=key), callbacks)
        child._tries.set_task(pending, part_of_key(key, "task"))
        return child

    async def send_to_agent(
        self, agent: str, message: Message, *, callbacks: Iterable[Callback] = (), key: str | None = None
    ) -> Turn:
        """Runs a turn of a sub-agent with this message. Returns and raises what `run` does.

        A sub-agent that belongs to another branch of this conversation is forked first, and stays as it is there.
        ``key`` is an idempotency key. Raises `NotFound` or `SpawnRefused`.
        """
        child = await self._reached(agent, callbacks, key=key)
        try:
            return await child.run(message, key=key)
        finally:
            await child.close()

    async def wait_agent(
        self,
        agent: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the same in `Conversation`
    ) -> Turn | None:
        """The newest turn of a sub-agent, once nothing runs there: it may have failed, or wait for an approval.

        None if that takes longer than ``timeout`` seconds, or if nothing was ever run there. Raises `NotFound`.
        """
        return await self._members.newest_turn(agent, timeout)

    async def list_agents(self) -> tuple[Member, ...]:
        """The sub-agents that this conversation's history has, in the order in which they were spawned."""
        return await self._members.all()

    async def close_agent(self, agent: str) -> Member:
        """Closes a sub-agent: a turn that runs there is cancelled, and it gets no more messages from here.

        It can still be read and forked. A note records this, so this conversation must have no open turn.
        Raises `NotFound`.
        """
        return await self._members.end(agent)

    # What is in it.

    async def events(self, *, after: int = 0, limit: int | None = None, kinds: Sequence[str] = ()) -> Events:
        """Committed events in order, after an ordinal."""
        if self._handle.draft is not None:
            return []
        return await (await self._backend()).events(self.id, after=after, limit=limit, kinds=kinds)

    async def messages(self, format: ListFormat = "openai") -> Messages:
        """All that was said, as plain messages that a provider's SDK takes.

        - ``format``: ``openai``, for chat completions, or ``anthropic``, where the user says system messages.

        The agent's instructions are not among them, nor is what no such list has a place for: state, hooks, skills,
        summaries. Calls that wait for the client's results stand at the end without results.
        """
        check_format("messages()", format)
        return write_list(format, await self.events(kinds=sorted(SAID)))

    async def turns(
        self, *, cursor: str | None = None, limit: Count = 50, newest_first: bool = False, committed: bool = False
    ) -> Page[Turn]:
        """Turns, also those that did not commit, with their cost and what their tools did: the oldest first.

        - ``cursor``: `Page.next` of the page before, in the same order.
        - ``newest_first``: the turn first that began last. A turn that begins meanwhile is on no later page.
        - ``committed``: only those that are history.
        """
        if self._handle.draft is not None:
            return Page(())
        page = await (await self._backend()).turns.list(
            self.id, cursor=cursor, limit=limit, newest_first=newest_first, committed=committed
        )
        return Page(tuple(map(self._tries.seen, page.items)), page.next)

    async def last_turn(self, *, committed: bool = False) -> Turn | None:
        """The turn that began last, whatever its outcome; None if nothing was run.

        ``committed``: the last one of the history, after which others may have failed.
        """
        page = await self.turns(limit=1, newest_first=True, committed=committed)
        return page.items[0] if page.items else None

    async def turn(self, id: TurnId) -> Turn:
        """One turn, as it stands now."""
        if self._handle.draft is not None:
            raise NotFound("turn", as_turn(id))
        return self._tries.seen(await (await self._backend()).turns.read(self.id, as_turn(id)))

    async def stats(self) -> Stats:
        """Tokens, dollars and cached share: the conversation's own, what it inherited, and its family's."""
        if self._handle.draft is not None:
            return Stats()
        return await (await self._backend()).stats(self.id)

    async def agent_state(self) -> dict[str, Any]:
        """The committed state that tools have set."""
        return {} if self._handle.draft is not None else await (await self._backend()).state(self.id)

    async def update_state(
        self, set: Mapping[str, Any] | None = None, *, remove: Collection[str] = (), if_revision: int | None = None
    ) -> None:
        """Changes the agent's state from outside, as a note. The conversation must have no open turn.

        ``if_revision``: as in `run`.
        """
        self._handle.check_draft(if_revision)
        await (await self._backend()).update_state(self.id, set or {}, remove, if_revision=if_revision)

    async def request(self, message: Message | None = None, *, turn: TurnId | None = None) -> Inspection:
        """The request that ``run(message)`` would send, or that was sent last (by ``turn``), and the one before it."""
        handle = self._handle
        backend, agent = await handle.backend(keep_draft=True), handle.answerer()
        if message is not None:
            asked = [as_message(message)]
            return await backend.questions.request(handle.id, agent, asked, draft=handle.draft, allow=handle.allow)
        if handle.draft is not None:
            raise NoSuchTurn(handle.id, "show", "nothing was run yet")
        return await backend.questions.sent(
            handle.id, agent, None if turn is None else as_turn(turn), allow=handle.allow
        )

    async def why(self, turn: TurnId | None = None) -> CacheReport:
        """How the provider's cache served each call of a turn, and why less was cached than possible.

        By default it is the newest turn of the history that asked a model; name a turn to look at an earlier one, or at
        a try that did not commit. Each call has what was cached, written and fresh, how much could have been cached at
        most, and the reasons if less was. No tools are needed, so it also works with ``open(bind=False)``.
        Raises `NoSuchTurn` and `NotFound`.
        """
        if self._handle.draft is not None:
            raise NoSuchTurn(self.id, "explain", "nothing was run yet")
        return await (await self._backend()).questions.why(self.id, None if turn is None else as_turn(turn))

    async def verify(self, *, head_digest: str | None = None, progress: VerifyProgress | None = None) -> Verification:
        """Checks that nobody changed the history, the turns or the records.

        ``head_digest`` is an earlier `Info.digest`, kept elsewhere. ``progress`` is as for `AsyncConversations.verify`.
        """
        if self._handle.draft is not None:
            return Verification(0, 0, 0, ())
        return await (await self._backend()).verify(self.id, head_digest=head_digest, progress=progress)

    async def records(self, *, cursor: str | None = None, limit: Count = 50) -> Page[Record]:
        """What was kept about the conversation, in order: how it began, how each try ended, who changed what."""
        if self._handle.draft is not None:
            return Page(())
        return await (await self._backend()).records(self.id, cursor=cursor, limit=limit)

    async def export(
        self, to: Target, *, family: bool = False, format: str = "forkpoint", progress: Progress | None = None
    ) -> ExportReport:
        """Writes the conversation into a file: its path, or an open file that takes bytes. docs/export.md has more.

        - ``family``: with all conversations of its family. Else it has only its own sub-agents and sides with it.
        - ``format``: ``forkpoint``, which `AsyncConversations.import_` reads, or ``md``, for people.
        - ``progress``: called with the number of bytes that were written so far.
        """
        if self._handle.draft is not None:
            raise NotFound("conversation", self.id)
        wanted = ExportOptions(scope="family" if family else "conversation", id=self.id, format=format)
        return await write_export((await self._backend()).export(wanted), to, progress)

    def _names(self) -> dict[str, str]:
        """How messages name this conversation, by its id."""
        return {self.id: self.name}

    async def _backend(self) -> Backend:
        return await self._handle.backend()

    def _branch(self, handle: Handle, callbacks: Iterable[Callback]) -> Self:
        """A fork or a sub-agent, with a visualizer of the same kind."""
        return self._around(handle, callbacks, None if self._visualizer is None else self._visualizer.for_fork())

    async def _reached(self, agent: str, callbacks: Iterable[Callback] = (), *, key: str | None = None) -> Self:
        """The sub-agent to talk to from here, as a conversation."""
        return self._branch(await self._members.reach(agent, key=key), callbacks)


_KEYWORDS = ("share", "worktree", "copy")  # for the workspace of a fork; anything else is a path


def _conversations(store: Where) -> "AsyncConversations":
    """The store's face. It is imported when it is used, because its module imports this one."""
    from forkpoint.conversation.conversations import AsyncConversations

    return AsyncConversations(store)

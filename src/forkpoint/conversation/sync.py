"""`Conversation`: the same conversation for programs that are not async.

A thin portal without logic of its own: each method runs `AsyncConversation`'s in the portal's thread and waits. Ctrl-C
while it waits cancels the turn, waits for its outcome, and then goes on as ``KeyboardInterrupt``.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forkpoint.agent.agent import Agent, Limits
from forkpoint.backend.callbacks import Callback, Update, Visualizer
from forkpoint.backend.messages import Message
from forkpoint.backend.names import Point
from forkpoint.backend.results import Branch, Call, Info, Member, RemovedWorkspace, SideAnswer, Stats, Turn
from forkpoint.conversation.conversation import AsyncConversation, Events
from forkpoint.conversation.place import Where
from forkpoint.conversation.portal import inside, wait_for
from forkpoint.conversation.stream import TurnStream
from forkpoint.events import Condensation, ToolResult, UserMessage
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.identity import CacheIdentity, CachePolicy
from forkpoint.llm.prompt.inspection import Inspection
from forkpoint.paging import Page
from forkpoint.store.records import Status, Verification


class Conversation:
    """A conversation. Making one does no I/O: it comes into being with its first turn.

    - ``agent``: who answers. A model's name or an `LLM` is an agent without tools or instructions.
    - ``conversation_id``: its id, or a name to know it by; by default it gets a fresh id.
    - ``workspace``: the folder that tools work in.
    - ``trust``: whether the user trusts the project of that folder. It is kept in the user's settings, if that is
      possible (`trust_warning`), when the conversation comes into being. An explicit "untrusted" there stays.
    - ``store``: where it lives, ``sqlite:///file.db``, ``memory:``, or ``http://host:8008`` for a server, whose agents
      are named like ``"support"``. Default: FORKPOINT_STORE, else a file in the user's data folder.
    - ``callbacks``: functions that are told of everything while a turn runs, in the portal's thread.
    - ``visualizer``: the same, for a screen; a fork has one of the same kind.

    Every method is `AsyncConversation`'s, without ``await``.
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
        self._async = AsyncConversation(
            agent,
            conversation_id=conversation_id,
            workspace=workspace,
            trust=trust,
            store=store,
            title=title,
            tags=tags,
            callbacks=callbacks,
            visualizer=visualizer,
        )

    @classmethod
    def _around(cls, conversation: AsyncConversation) -> Self:
        made = cls.__new__(cls)
        made._async = conversation
        return made

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # Opening and closing.

    @classmethod
    def open(
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
        opened = wait_for(
            "Conversation.open()",
            AsyncConversation.open,
            id,
            agent=agent,
            create=create,
            bind=bind,
            allow=allow,
            trust=trust,
            store=store,
            callbacks=callbacks,
            visualizer=visualizer,
        )
        return cls._around(opened)

    @classmethod
    def list(
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
        return wait_for(
            "Conversation.list()",
            AsyncConversation.list,
            store=store,
            cursor=cursor,
            limit=limit,
            tags=tags,
            status=status,
            sub_agents=sub_agents,
            parent=parent,
        )

    @classmethod
    def verify_store(cls, *, store: Where = None, head_digest: str | None = None) -> Verification:
        """Checks that nobody changed the history of any conversation in a store."""
        return wait_for(
            "Conversation.verify_store()", AsyncConversation.verify_store, store=store, head_digest=head_digest
        )

    def close(self) -> None:
        """Lets go of the store. The last conversation that does closes it, and cancels what still runs there."""
        if self._async._handle.is_at_rest:  # there is nothing to wait for
            self._async._handle.end()
        else:
            wait_for("close()", self._async.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What it is.

    @property
    def id(self) -> str:
        """Its inner id, the same for good."""
        return self._async.id

    @property
    def name(self) -> str:
        """Its outer name; its id if nobody gave it one."""
        return self._async.name

    @property
    def agent(self) -> Agent | None:
        """Who answers. None if it was opened without its functions, or if only the server has it."""
        return self._async.agent

    @property
    def workspace(self) -> Path | None:
        """The folder that tools work in."""
        return self._async.workspace

    @property
    def trust_warning(self) -> str | None:
        """Why ``trust`` was not kept in the user's settings, or does not hold; None if all is well, or yet to be done.

        It was logged too. What could not be kept holds for this conversation, its forks and sub-agents all the same,
        for as long as this process has its store open.
        """
        return self._async.trust_warning

    @property
    def pending(self) -> tuple[UserMessage, ...]:
        """Messages that were sent and not run yet. They live in this object only."""
        return self._async.pending

    def info(self) -> Info:
        """All that is known of it, as it stands now."""
        return wait_for("info()", self._async.info)

    def title(self) -> str | None:
        """Its title, if it has one."""
        return wait_for("title()", self._async.title)

    def tags(self) -> dict[str, str]:
        """Its tags, the title among them."""
        return wait_for("tags()", self._async.tags)

    def status(self) -> Status:
        """idle, running, awaiting_approval or interrupted."""
        return wait_for("status()", self._async.status)

    def cache(self) -> CacheIdentity:
        """What it shows providers: its prompt-cache key, and whose that is."""
        return wait_for("cache()", self._async.cache)

    def describe(self, *, title: str | None = None, tags: Mapping[str, str] | None = None) -> Info:
        """Sets the title ("" removes it) or all tags. Disturbs no turn that runs."""
        return wait_for("describe()", self._async.describe, title=title, tags=tags)

    def change_agent(self, agent: Agent | LLM | str, *, if_revision: int | None = None) -> None:
        """Another agent answers from here on. Recorded as a note; the conversation must have no open turn.

        The agent that it has already changes nothing. ``if_revision``: as in `run`.
        """
        wait_for("change_agent()", self._async.change_agent, agent, if_revision=if_revision)

    # Turns.

    def send_message(self, message: Message) -> None:
        """Queues a message for the next turn. Several are one turn, in order; until then they live in this object."""
        self._async.send_message(message)

    def run(
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
        has moved since, `Stale` is raised and nothing has changed. Ctrl-C cancels the turn and waits for its outcome.
        """
        return wait_for(
            "run()", self._async.run, message, results=results, supersede=supersede, key=key, if_revision=if_revision
        )

    @contextmanager
    def run_stream(
        self,
        message: Message | None = None,
        *,
        results: Mapping[str, Message | ToolResult] | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> "Iterator[SyncTurnStream]":
        """The same, told as it happens: ``with conversation.run_stream("...") as stream``, then
        ``for update in stream``. Updates are provisional; the last one is the turn. Leaving early cancels it.
        """
        running = self._async.run_stream(
            message, results=results, supersede=supersede, key=key, if_revision=if_revision
        )
        with inside("run_stream()", running) as stream:
            yield SyncTurnStream(stream)

    def ask(self, message: Message) -> SideAnswer:
        """A side question: answered from the history as it is, and nothing of it is kept but what it cost.

        It needs no lock: a turn may be running. Tools are not used.
        """
        return wait_for("ask()", self._async.ask, message)

    def condense(self, *, if_revision: int | None = None) -> Condensation | None:
        """Lets prompts forget the older part of the path at once, however short it is. Recorded as a note.

        The agent's condenser does it; for an agent without one, its model writes a summary. Gives what prompts show
        instead; None if there is nothing to forget, or if what the model wrote is of no use, which is logged. The
        conversation must have no open turn, and if it goes on meanwhile, `Stale` is raised.

        ``if_revision``: as in `run`.
        """
        return wait_for("condense()", self._async.condense, if_revision=if_revision)

    def cancel(self) -> Turn:
        """Cancels the turn that runs in this process, and waits for its outcome. Too late, it says ``committed``."""
        return wait_for("cancel()", self._async.cancel)

    def retry(self, turn: str | Turn | None = None, *, key: str | None = None) -> Turn:
        """Runs the input of a turn again, from the last good state: by default of the last one that did not commit.

        One that is still open is discarded.
        """
        return wait_for("retry()", self._async.retry, turn, key=key)

    def resume(
        self, turn: str | Turn | None = None, *, rerun: Collection[str] = (), limits: Limits | None = None
    ) -> Turn:
        """Goes on with a turn that failed, was cancelled or interrupted, after its last finished step.

        No finished tool is run again. A call that was started and has no result is `unknown`: the model is told so,
        unless its tool is repeatable or ``rerun`` names the call. ``limits`` replaces the agent's, this time.
        """
        return wait_for("resume()", self._async.resume, turn, rerun=rerun, limits=limits)

    def approve(self, *calls: str | Call, by: str | None = None) -> Turn:
        """Lets calls that wait run, by default all of them, and goes on with the turn. From any process.

        Calls are named by their ids, or are those of ``turn.waiting``, which nobody can take for others.
        """
        return wait_for("approve()", self._async.approve, *calls, by=by)

    def deny(self, *calls: str | Call, by: str | None = None, reason: str | None = None) -> Turn:
        """Refuses calls that wait, by default all of them, and goes on: the model is told, with the reason."""
        return wait_for("deny()", self._async.deny, *calls, by=by, reason=reason)

    def discard(self, turn: str | Turn | None = None) -> Turn:
        """Ends an open turn that nobody runs. What its tools did stays visible."""
        return wait_for("discard()", self._async.discard, turn)

    def settle(self, turn: str | Turn) -> Turn:
        """After `OutcomeUnknown`: the turn as it turned out. Raises that again if it can still not be told."""
        return wait_for("settle()", self._async.settle, turn)

    # Branches.

    def fork(
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
        forked = wait_for(
            "fork()",
            self._async.fork,
            conversation_id=conversation_id,
            at=at,
            before=before,
            agent=agent,
            title=title,
            tags=tags,
            reset_metrics=reset_metrics,
            cache=cache,
            workspace=workspace,
            callbacks=callbacks,
            key=key,
            if_revision=if_revision,
        )
        return self._around(forked)

    def rewind(
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
        aside = wait_for("rewind()", self._async.rewind, at=at, before=before, key=key, if_revision=if_revision)
        return None if aside is None else self._around(aside)

    def tree(self) -> tuple[Branch, ...]:
        """Its family: roots, and what branched off each."""
        return wait_for("tree()", self._async.tree)

    def delete(self, *, if_revision: int | None = None) -> RemovedWorkspace | None:
        """Removes it and its sub-agents, never a fork, and closes it. What was spent stays counted in the family.

        A folder that was made for a fork is removed with the last conversation that works there, if nothing is lost by
        that: what is returned says so, or why it stays. None if there is no such folder. ``if_revision``: as in `run`.
        """
        return wait_for("delete()", self._async.delete, if_revision=if_revision)

    # Sub-agents.

    def spawn_agent(
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
        callbacks: Iterable[Callback] = (),
        key: str | None = None,
    ) -> Self:
        """A sub-agent of this conversation, whose task is its pending message: ``child.run()`` begins it.

        - ``role``: one of those that this conversation's agent has for its sub-agents.
        - ``agent``: who it is: any agent, or the name of one that this conversation's agent offers. Default: the role's
          agent, or else the same.
        - ``model``: another model that this conversation's agent offers.
        - ``nickname``: how it is called among its siblings.
        - ``fork``: only ``none`` here: a sub-agent that begins with its parent's history is made by a call in a turn.
        - ``callbacks``: functions that are told of everything while its turns run, in the portal's thread.

        It is recorded with a note, so this conversation must have no open turn. Its rights are never more than this
        one's: the approvals of both hold, and the workspace is the same. ``key`` makes it happen once: the same key
        with the same arguments gives the same sub-agent. Raises `SpawnRefused` with the reason.
        """
        child = wait_for(
            "spawn_agent()",
            self._async.spawn_agent,
            task,
            role=role,
            agent=agent,
            model=model,
            nickname=nickname,
            fork=fork,
            title=title,
            tags=tags,
            callbacks=callbacks,
            key=key,
        )
        return self._around(child)

    def send_to_agent(
        self, agent: str, message: Message, *, callbacks: Iterable[Callback] = (), key: str | None = None
    ) -> Turn:
        """Runs a turn of a sub-agent with this message. It commits, waits for an approval, or raises, as `run` does.

        A sub-agent that belongs to another branch of this conversation is forked first: there it stays as it is.
        ``key`` makes it happen once. Raises `NoSuchAgent` or `AgentClosed`.
        """
        return wait_for("send_to_agent()", self._async.send_to_agent, agent, message, callbacks=callbacks, key=key)

    def wait_agent(self, agent: str, *, timeout: float | None = None) -> Turn | None:
        """The newest turn of a sub-agent, once nothing runs there: it may have failed, or wait for an approval.

        None if that takes longer than ``timeout`` seconds, or if nothing was ever run there. Raises `NoSuchAgent`.
        """
        return wait_for("wait_agent()", self._async.wait_agent, agent, timeout=timeout)

    def list_agents(self) -> tuple[Member, ...]:
        """Its sub-agents and how they stand, in the order in which they came: those that its history knows of."""
        return wait_for("list_agents()", self._async.list_agents)

    def close_agent(self, agent: str) -> Member:
        """Closes a sub-agent: what runs there is cancelled, and no more is said to it from here.

        It can still be read and forked. It is recorded with a note, so this conversation must have no open turn.
        Raises `NoSuchAgent`.
        """
        return wait_for("close_agent()", self._async.close_agent, agent)

    def _reached(self, agent: str, callbacks: Iterable[Callback] = (), *, key: str | None = None) -> Self:
        """The sub-agent to talk to from here, as a conversation."""
        return self._around(wait_for("send_to_agent()", self._async._reached, agent, callbacks, key=key))

    # What is in it.

    def events(self, *, after: int = 0, limit: int | None = None, kinds: Sequence[str] = ()) -> Events:
        """Committed events in order, from after an ordinal on."""
        return wait_for("events()", self._async.events, after=after, limit=limit, kinds=kinds)

    def turns(self, *, cursor: str | None = None, limit: int = 50) -> Page[Turn]:
        """Its turns in order, with the tries that did not commit: what they cost and what their tools did."""
        return wait_for("turns()", self._async.turns, cursor=cursor, limit=limit)

    def turn(self, id: str | Turn) -> Turn:
        """One turn, as it stands now."""
        return wait_for("turn()", self._async.turn, id)

    def stats(self) -> Stats:
        """Tokens, dollars and cached share: its own, what it inherited, and its family's."""
        return wait_for("stats()", self._async.stats)

    def agent_state(self) -> dict[str, Any]:
        """What tools have set, as it is committed."""
        return wait_for("agent_state()", self._async.agent_state)

    def update_state(
        self,
        set: Mapping[str, Any] | None = None,
        *,
        remove: Collection[str] = (),
        if_revision: int | None = None,
    ) -> None:
        """Changes the agent's state from outside, as a note of its own. The conversation must have no open turn.

        ``if_revision``: as in `run`.
        """
        wait_for("update_state()", self._async.update_state, set, remove=remove, if_revision=if_revision)

    def request(self, message: Message | None = None, *, turn: str | Turn | None = None) -> Inspection:
        """What ``run(message)`` would send, or what was sent last (by ``turn``), beside the request before it."""
        return wait_for("request()", self._async.request, message, turn=turn)

    def verify(self, *, head_digest: str | None = None) -> Verification:
        """Checks that nobody changed its history. ``head_digest`` is an earlier `Info.digest`, kept elsewhere."""
        return wait_for("verify()", self._async.verify, head_digest=head_digest)


class SyncTurnStream:
    """What is told of a turn while it runs: an iterator whose last item is the turn."""

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Update:
        try:
            return wait_for("run_stream()", self._stream.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def turn(self) -> Turn | None:
        """The turn, once it was told."""
        return self._stream.turn

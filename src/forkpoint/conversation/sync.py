"""`Conversation` and `Conversations`: the same faces for programs that are not async.

They have no logic of their own: each method runs the async face's method in the portal's thread and waits. Signatures
and docstrings are those of the async faces. Ctrl-C during a wait cancels the turn, waits for its outcome, and then
goes on as ``KeyboardInterrupt``. Tests: tests/conversation/test_sync.py, tests/conversation/test_conversations.py.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast, overload

from forkpoint.agent.agent import Agent
from forkpoint.backend.messages import Message
from forkpoint.backend.notebook import conversation_html
from forkpoint.conversation.conversation import AsyncConversation
from forkpoint.conversation.conversations import AsyncConversations
from forkpoint.conversation.place import Where
from forkpoint.conversation.portal import inside, like, takes, wait_for, waits, waits_in_class
from forkpoint.conversation.stream import SyncStreamedTurn
from forkpoint.errors import ForkpointError
from forkpoint.events import UserMessage

SHOWN = 3
"""Turns that a notebook shows of a conversation."""

P = ParamSpec("P")
C = TypeVar("C", bound="Conversation")


class _Opens(Protocol[P]):
    """A class method that returns a conversation of the class that it is called on."""

    def __get__(self, instance: object, owner: type[C], /) -> Callable[P, C]: ...


def _opens(call: Callable[P, Awaitable[AsyncConversation]]) -> _Opens[P]:
    """A class method that waits for a conversation."""

    def method(cls: type[Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return cls._around(wait_for(f"{method.__qualname__}()", call, *args, **kwargs))

    return cast("_Opens[P]", classmethod(like(call, method)))


@overload
def _branches(call: Callable[Concatenate[Any, P], Awaitable[AsyncConversation]]) -> Callable[Concatenate[C, P], C]: ...
@overload
def _branches(
    call: Callable[Concatenate[Any, P], Awaitable[AsyncConversation | None]],
) -> Callable[Concatenate[C, P], C | None]: ...
def _branches(call: Callable[..., Awaitable[AsyncConversation | None]]) -> Callable[..., Any]:
    """A method that waits for another conversation, and returns it as one of the same class."""

    def method(self: C, /, *args: Any, **kwargs: Any) -> C | None:
        made = wait_for(f"{call.__name__}()", call, self._async, *args, **kwargs)
        return None if made is None else self._around(made)

    return like(call, method)


class Conversation:
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
    - ``callbacks``: functions that get every update while a turn runs, in the portal's thread.
    - ``visualizer``: a callback that shows updates on a screen. A fork gets one of the same kind.

    Every method is `AsyncConversation`'s, without ``await``. Ctrl-C cancels the turn and waits for its outcome.
    """

    @takes(AsyncConversation.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._async = AsyncConversation(*args, **kwargs)

    @classmethod
    def _around(cls, conversation: AsyncConversation) -> Self:
        made = cls.__new__(cls)
        made._async = conversation
        return made

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _repr_html_(self) -> str:
        """The conversation and its last turns, if its store is open. Otherwise nothing is read for it."""
        handle = self._async._handle
        if handle.is_at_rest or handle.draft is not None:
            return self._async._repr_html_()
        try:
            info, turns = self.info(), self.turns(limit=SHOWN, newest_first=True)
        except ForkpointError:  # a notebook shows something, whatever became of the store
            return self._async._repr_html_()
        facts = [info.title, info.model, f"{info.events:,} events", info.status]
        return conversation_html(self.name, facts, turns.items[::-1])

    # Opening and closing.

    open = _opens(AsyncConversation.open)
    from_messages = _opens(AsyncConversation.from_messages)
    list = waits_in_class(AsyncConversation.list)
    verify_store = waits_in_class(AsyncConversation.verify_store)

    def close(self) -> None:
        """Lets go of the store. The last user of the store closes it, which cancels turns that still run there."""
        if self._async._handle.is_at_rest:  # there is nothing to wait for
            self._async._handle.end()
        else:
            wait_for("close()", self._async.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What it is.

    @property
    def id(self) -> str:
        """The inner id, which never changes."""
        return self._async.id

    @property
    def name(self) -> str:
        """The outer name; the id if nobody gave a name."""
        return self._async.name

    @property
    def agent(self) -> Agent | None:
        """Who answers. None if the conversation was opened without its functions, or if only the server has them."""
        return self._async.agent

    @property
    def workspace(self) -> Path | None:
        """The folder that tools work in."""
        return self._async.workspace

    @property
    def project_instructions(self) -> str | None:
        """What the trusted project of the workspace tells the agent, after the agent's own instructions."""
        return self._async.project_instructions

    @property
    def trust_warning(self) -> str | None:
        """Why ``trust`` was not kept in the user's settings, or has no effect. None if all is well, or not done yet.

        The warning is logged too. What could not be kept still holds for this conversation, its forks and sub-agents,
        for as long as this process has the store open.
        """
        return self._async.trust_warning

    @property
    def pending(self) -> tuple[UserMessage, ...]:
        """Messages that were sent and not run yet. Only this object has them."""
        return self._async.pending

    info = waits(AsyncConversation.info)
    title = waits(AsyncConversation.title)
    tags = waits(AsyncConversation.tags)
    status = waits(AsyncConversation.status)
    cache = waits(AsyncConversation.cache)
    describe = waits(AsyncConversation.describe)
    rename = waits(AsyncConversation.rename)
    change_agent = waits(AsyncConversation.change_agent)
    use_model = waits(AsyncConversation.use_model)

    # Turns.

    def send_message(self, message: Message) -> None:
        """Queues a message for the next turn. Several messages are one turn, in order. Only this object has them."""
        self._async.send_message(message)

    run = waits(AsyncConversation.run)

    @takes(AsyncConversation.run_stream)
    def run_stream(self, *args: Any, **kwargs: Any) -> SyncStreamedTurn:
        """Runs one turn, as `run` does, and streams its updates.

        ``with conversation.run_stream("...") as stream``, then ``for update in stream``. Updates are provisional
        (`forkpoint.updates`); the last one is the turn. Leaving early cancels the turn.
        """
        return SyncStreamedTurn("run_stream", inside("run_stream()", self._async.run_stream(*args, **kwargs)))

    go_on = waits(AsyncConversation.go_on)

    @takes(AsyncConversation.go_on_stream)
    def go_on_stream(self, *args: Any, **kwargs: Any) -> SyncStreamedTurn:
        """Runs one turn without a message, as `go_on` does, and streams its updates, as `run_stream` does."""
        return SyncStreamedTurn("go_on_stream", inside("go_on_stream()", self._async.go_on_stream(*args, **kwargs)))

    ask = waits(AsyncConversation.ask)
    condense = waits(AsyncConversation.condense)
    cancel = waits(AsyncConversation.cancel)
    steer = waits(AsyncConversation.steer)
    retry = waits(AsyncConversation.retry)
    resume = waits(AsyncConversation.resume)
    open_turn = waits(AsyncConversation.open_turn)
    approve = waits(AsyncConversation.approve)
    deny = waits(AsyncConversation.deny)
    approvals = waits(AsyncConversation.approvals)
    revoke_approval = waits(AsyncConversation.revoke_approval)
    discard = waits(AsyncConversation.discard)
    settle = waits(AsyncConversation.settle)

    # Branches.

    fork = _branches(AsyncConversation.fork)
    rewind = _branches(AsyncConversation.rewind)
    keep = _branches(AsyncConversation.keep)
    diff = waits(AsyncConversation.diff)
    bring = waits(AsyncConversation.bring)
    tree = waits(AsyncConversation.tree)
    delete = waits(AsyncConversation.delete)
    set_budget = waits(AsyncConversation.set_budget)
    budget = waits(AsyncConversation.budget)
    hold = waits(AsyncConversation.hold)
    holds = waits(AsyncConversation.holds)
    release = waits(AsyncConversation.release)
    erase = waits(AsyncConversation.erase)

    # Sub-agents.

    spawn_agent = _branches(AsyncConversation.spawn_agent)
    send_to_agent = waits(AsyncConversation.send_to_agent)
    wait_agent = waits(AsyncConversation.wait_agent)
    list_agents = waits(AsyncConversation.list_agents)
    close_agent = waits(AsyncConversation.close_agent)
    _reached = _branches(AsyncConversation._reached)

    # What is in it.

    events = waits(AsyncConversation.events)
    messages = waits(AsyncConversation.messages)
    turns = waits(AsyncConversation.turns)
    last_turn = waits(AsyncConversation.last_turn)
    turn = waits(AsyncConversation.turn)
    stats = waits(AsyncConversation.stats)
    agent_state = waits(AsyncConversation.agent_state)
    update_state = waits(AsyncConversation.update_state)
    request = waits(AsyncConversation.request)
    why = waits(AsyncConversation.why)
    verify = waits(AsyncConversation.verify)
    records = waits(AsyncConversation.records)
    export = waits(AsyncConversation.export)


def _one_of_them(
    call: Callable[Concatenate[Any, P], Awaitable[AsyncConversation]],
) -> Callable[Concatenate[Any, P], Conversation]:
    """A method that waits for a conversation of a store."""

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Conversation:
        return Conversation._around(wait_for(f"{call.__name__}()", call, self._async, *args, **kwargs))

    return like(call, method)


class Conversations:
    """All conversations of a store, or all that a key may see at a server. Making the object does no I/O.

    ``store`` says where they live, as in `Conversation`: ``sqlite:///file.db``, ``memory:``, a path, an open `Store`,
    or ``http://host:8008`` for a server. Default: FORKPOINT_STORE, else a file in the user's data folder.

    The store is opened by the first call and stays open until `close`. Conversations that come from here share it, and
    each of them is closed on its own. Every method is `AsyncConversations`'s, without ``await``.
    """

    def __init__(self, store: Where = None) -> None:
        self._async = AsyncConversations(store)

    open = _one_of_them(AsyncConversations.open)
    create = _one_of_them(AsyncConversations.create)

    def close(self) -> None:
        """Lets go of the store. The last user of the store closes it, which cancels turns that still run there."""
        if self._async._is_at_rest:  # there is nothing to wait for
            self._async._closed = True
        else:
            wait_for("close()", self._async.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    list = waits(AsyncConversations.list)
    diff = waits(AsyncConversations.diff)
    usage = waits(AsyncConversations.usage)
    holds = waits(AsyncConversations.holds)
    erase = waits(AsyncConversations.erase)
    erasures = waits(AsyncConversations.erasures)
    verify = waits(AsyncConversations.verify)
    backup = waits(AsyncConversations.backup)
    restore = waits(AsyncConversations.restore)
    anchor = waits(AsyncConversations.anchor)
    collect = waits(AsyncConversations.collect)
    export = waits(AsyncConversations.export)
    import_ = waits(AsyncConversations.import_)

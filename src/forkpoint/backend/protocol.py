"""`Backend`: what a conversation needs from the place where it lives. There is one for a store in this process.

Everything here names a conversation by its id, and hands out frozen data, so that a place far away can offer the same.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.budget import Budget
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import Given
from forkpoint.backend.results import Branch, Call, Info, Member, RemovedWorkspace, SideAnswer, Stats, Turn
from forkpoint.backend.settings import Settings
from forkpoint.events import Condensation, Event, Position, SkillActivated, Usage, UserMessage
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.identity import CachePolicy
from forkpoint.llm.prompt.inspection import Inspection
from forkpoint.paging import Page
from forkpoint.store.records import Onto, Status, Verification
from forkpoint.workspace.folders import Kind


class Draft(Struct, frozen=True, kw_only=True):
    """A conversation that is yet to be: it comes into being with its first turn, or when something is said of it."""

    id: str
    name: str | None
    settings: Settings
    chosen: bool = False  # somebody chose the id, so it may be taken
    title: str | None = None
    tags: Mapping[str, str] = {}
    trust: bool | None = None  # what its maker says of the workspace
    asked: Settings | None = None  # what was asked for, once `Backend.prepared` has looked at the workspace


class ForkOptions(Struct, frozen=True, kw_only=True):
    """How a fork is to differ from its source."""

    id: str
    name: str | None = None
    chosen: bool = False  # somebody chose the id or the name: another one is another request
    at: str | Position | None = None
    before: str | Position | None = None
    agent: Agent | None = None
    server_agent: str | None = None  # one of a server's own agents, by name
    title: str | None = None
    tags: Mapping[str, str] = {}
    reset_metrics: bool = True
    cache: CachePolicy = "own"
    workspace: str | None = None  # None: the source's
    isolation: Kind | None = None  # a folder that is made from the source's


class SpawnOptions(Struct, frozen=True, kw_only=True):
    """A sub-agent that somebody wants: its task, and who it is to be.

    ``agent_name`` is one of those that the parent's agent offers; ``agent`` is one that the caller brings.
    """

    id: str
    task: str
    role: str | None = None
    agent: Agent | None = None
    agent_name: str | None = None
    model: str | None = None
    nickname: str | None = None
    fork: str | int = "none"
    title: str | None = None
    tags: Mapping[str, str] = {}


class How(Struct, frozen=True, kw_only=True):
    """How one turn is run, where that is not what the conversation's settings say.

    - ``settings``: others, from this turn on, if it commits. The agent given is then the one that they name.
    - ``onto``: where it stands instead of at the head. If it commits, what stands at the head is set aside.
    - ``attended``: whether somebody can be asked for an approval while it waits.
    - ``final``: whether what is told of it cannot be taken back, so that no model is asked again once it spoke.
    - ``request``: a digest of the request that it is of, kept with it.
    - ``budget``: what is left to whoever waits for it; ``caller`` is the turn of a parent that started it, kept with
      it; ``above`` is that parent's agent, without whose asking nothing runs here that it would have to ask about.
    - ``client``: whether a client is there that could answer calls of its own tools.
    - ``allow``: what may be missing of all that the conversation was made with. It goes on without, from this turn on.
    - ``skills``: those that it begins with, as the try did that it is a retry of; None: those that are called for.
    """

    settings: Settings | None = None
    onto: Onto | None = None
    options: Options = Options()
    limits: Limits | None = None
    attended: bool = True
    final: bool = False
    request: str | None = None
    budget: Budget | None = None
    caller: str | None = None
    above: Agent | None = None
    client: bool = True
    allow: frozenset[str] = frozenset()
    skills: tuple[SkillActivated, ...] | None = None


class Decision(Struct, frozen=True):
    """What somebody says to calls that wait, as they were seen: a model may use an id again for another call."""

    approved: bool
    calls: tuple[Call, ...]
    by: str | None = None
    reason: str | None = None


class Backend(Protocol):
    """A place where conversations live.

    ``key`` is an idempotency key: however often a request is made with it, it happens once, and each time gives what
    the first one gave; with another request it raises `KeyReused`. ``if_revision`` is the revision that the caller
    decided on: if the conversation is at another, `Stale` is raised and nothing is changed. A key is looked up first,
    since what a repeat asks for has moved the revision itself. ``allow`` says what may be missing of all that the
    conversation was made with; whatever else is missing raises `CannotResume` before anything begins.
    """

    async def close(self) -> None:
        """Cancels what still runs there for this process, and lets go of it."""
        ...

    def check_closable(self) -> None:
        """Raises `Busy` where closing would wait for whoever closes."""
        ...

    # Conversations.

    async def prepared(self, draft: Draft, agent: Agent | None) -> tuple[Draft, Agent | None]:
        """A new conversation with what its trusted project tells, and who answers there then. Nothing is written."""
        ...

    async def trust(self, family: str, workspace: str, trusted: bool) -> None:
        """Keeps what somebody says of the workspace of a conversation that exists, as well as it can be kept."""
        ...

    def trust_warning(self, family: str) -> str | None:
        """Why what was said of a workspace's trust was not kept, or does not hold; None if all is well."""
        ...

    async def create(self, draft: Draft, *, key: str | None = None) -> Info:
        """Makes a conversation that stays even if no turn ever commits. Raises `AlreadyExists`."""
        ...

    async def find(self, id_or_name: str) -> tuple[Info, Settings]:
        """A conversation by its id or its name, with what it is run with."""
        ...

    async def conversations(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        tags: Mapping[str, str] | None = None,
        status: Status | None = None,
        sub_agents: bool = False,
        parent: str | None = None,
    ) -> Page[Info]:
        """Conversations, the newest first: without sub-agents, or with them, or only those of a ``parent``."""
        ...

    async def tree(self, id: str) -> tuple[Branch, ...]:
        """The family of a conversation: roots, with what branched off them."""
        ...

    async def describe(self, id: str, *, title: str | None, tags: Mapping[str, str] | None) -> Info: ...

    async def fork(
        self,
        source: str,
        options: ForkOptions,
        agent: Agent | None = None,
        *,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> tuple[Info, Settings]:
        """A fork. ``agent`` is the source's, if it is at hand. ``if_revision`` is the source's."""
        ...

    async def rewind(
        self,
        id: str,
        *,
        at: str | Position | None,
        before: str | Position | None,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> tuple[Info, Settings] | None:
        """Moves the head back. Gives the branch that keeps what stood after it; None if nothing did."""
        ...

    async def delete(self, id: str, *, if_revision: int | None = None) -> RemovedWorkspace | None:
        """Deletes it and its sub-agents. Says what became of the folder that was made for it, if one was."""
        ...

    async def change(self, id: str, settings: Settings, agent: Agent | None, *, if_revision: int | None = None) -> Info:
        """Other settings from here on, recorded as a note. Those that it has already change nothing."""
        ...

    # Sub-agents.

    async def spawn(
        self, parent: str, options: SpawnOptions, agent: Agent | None, *, key: str | None = None
    ) -> tuple[Info, Settings]:
        """Makes a sub-agent, recorded as a note of its parent. Its task is not begun. ``agent`` is the parent's, bound.

        Raises `SpawnRefused`, and `Busy` or `TurnOpen` while a turn holds the parent.
        """
        ...

    async def agents(self, id: str) -> tuple[Member, ...]:
        """The sub-agents that a conversation's path knows of, in the order in which they came; closed ones too."""
        ...

    async def reach(self, id: str, agent: str, *, key: str | None = None) -> tuple[Info, Settings]:
        """The sub-agent to talk to from here, by its nickname, path or id. One of another branch is forked first.

        Raises `NoSuchAgent` or `AgentClosed`.
        """
        ...

    async def close_agent(self, id: str, agent: str) -> Member:
        """Closes a sub-agent: what runs there is cancelled, and a note of its parent says so. Once more, nothing is."""
        ...

    # Turns.

    async def run(
        self,
        id: str,
        agent: Agent,
        given: Sequence[Given],
        *,
        draft: Draft | None = None,
        retry_of: str | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
        allow: frozenset[str] = frozenset(),
        tell: Callback,
    ) -> Turn: ...

    async def resume(
        self,
        id: str,
        turn: str,
        agent: Agent,
        *,
        decision: Decision | None = None,
        rerun: Collection[str] = (),
        limits: Limits | None = None,
        allow: frozenset[str] = frozenset(),
        tell: Callback,
    ) -> Turn: ...

    async def check(self, id: str, agent: Agent, *, allow: frozenset[str] = frozenset()) -> None:
        """Raises `CannotResume` if a turn would, as far as that is known here before it is begun."""
        ...

    async def cancel(self, id: str) -> Turn: ...

    async def condense(
        self, id: str, agent: Agent, *, if_revision: int | None = None, allow: frozenset[str] = frozenset()
    ) -> Condensation | None:
        """Condenses the path at once, as a note. None if nothing can be forgotten, or the summary is of no use."""
        ...

    async def discard(self, id: str, turn: str) -> Turn: ...

    async def settle(self, id: str, turn: str) -> Turn: ...

    async def ask(
        self,
        id: str,
        agent: Agent,
        messages: Sequence[UserMessage],
        *,
        allow: frozenset[str] = frozenset(),
        tell: Callback,
    ) -> SideAnswer: ...

    async def request(
        self,
        id: str,
        agent: Agent,
        messages: Sequence[UserMessage],
        *,
        draft: Draft | None = None,
        allow: frozenset[str] = frozenset(),
    ) -> Inspection: ...

    async def sent(
        self, id: str, agent: Agent, turn: str | None, *, allow: frozenset[str] = frozenset()
    ) -> Inspection: ...

    # Reading.

    async def turn(self, id: str, turn: str) -> Turn: ...

    async def turns(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[Turn]: ...

    async def tries(self, id: str) -> tuple[Turn, ...]:
        """The turns that stand at the head and are not history: failed, cancelled, open; the newest last. And the one
        that is open, wherever it stands."""
        ...

    async def events(
        self, id: str, *, after: int = 0, limit: int | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]: ...

    async def stats(self, id: str) -> Stats: ...

    async def usage(self) -> tuple[Usage, Usage]:
        """All that the tenant has ever spent, each token once; and what of it beside any conversation."""
        ...

    async def state(self, id: str) -> dict[str, Any]: ...

    async def update_state(
        self, id: str, set: Mapping[str, Any], removed: Collection[str], *, if_revision: int | None = None
    ) -> None: ...

    async def verify(self, id: str | None, *, head_digest: str | None) -> Verification: ...

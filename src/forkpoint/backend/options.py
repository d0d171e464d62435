"""What somebody asks of a backend, as frozen values: a new conversation, a fork, a sub-agent, a turn.
Tests: tests/conversation/test_other_settings.py."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.budget import TurnBudget
from forkpoint.agent.run import Terms
from forkpoint.agent.team.tools import Task
from forkpoint.backend.messages import Given, ImportedList
from forkpoint.backend.settings import Settings
from forkpoint.events import JsonText, Position, SkillActivated, ToolResult
from forkpoint.history.budgets import Budget
from forkpoint.llm.prompt.identity import CacheIdentity, CachePolicy
from forkpoint.store.values import Onto, Status
from forkpoint.workspace.folders import Kind


class ConversationFilter(Struct, frozen=True, kw_only=True):
    """Which conversations a list has. All that is said here must hold.

    - ``tags``: conversations that have all of these tags. ``status``: conversations with this status.
    - ``sub_agents`` and ``sides``: with sub-agents; with what clients asked beside conversations.
    - ``asides``: with branches that were set aside. ``drafts``: with conversations in which no turn has committed yet.
    - ``parent``: only the sub-agents of this conversation, by its id or name.
    """

    tags: Mapping[str, str] = {}
    status: Status | None = None
    sub_agents: bool = False
    sides: bool = False
    asides: bool = True
    drafts: bool = False
    parent: str | None = None


class Beside(Struct, frozen=True):
    """A branch that its first turn makes beside a conversation. The conversation's name stays where it is.

    An ``aside`` and a ``fork`` begin ``onto`` a place of the family, a ``side`` with nothing.
    """

    kind: Literal["aside", "fork", "side"]
    source: str
    family: str
    at: Position | None = None  # where the source stood when somebody asked beside it
    onto: Onto | None = None  # None: at the root
    cache: CacheIdentity | None = None  # None: its own


class Draft(Struct, frozen=True, kw_only=True):
    """A conversation that does not exist yet: its first turn makes it, or whatever else is said of it."""

    id: str
    name: str | None
    settings: Settings
    chosen: bool = False  # somebody chose the id, so it may be taken
    title: str | None = None
    tags: Mapping[str, str] = {}
    trust: bool | None = None  # what its maker says of the workspace
    asked: Settings | None = None  # what was asked for, once `Backend.prepared` has looked at the workspace
    beside: Beside | None = None  # None: it is a root
    budget: Budget | None = None
    family_budget: Budget | None = None
    history: ImportedList | None = None  # what was said elsewhere before it


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
    results: Mapping[str, ToolResult] = {}  # other results for calls of the response that ``at`` names, by call
    state: Mapping[str, JsonText] = {}  # what the fork's state has from its beginning on, by key
    budget: Budget | None = None  # its own, instead of the family's


ExportScope: TypeAlias = Literal["conversation", "family", "tags", "all"]
"""What an export has: a conversation with its sub-agents and sides, its family, all with some tags, or all."""


class ExportOptions(Struct, frozen=True, kw_only=True):
    """An export that somebody wants. ``id`` is a conversation's id or name, for the first two scopes."""

    scope: ExportScope
    id: str | None = None
    tags: Mapping[str, str] = {}
    format: str = "forkpoint"


class SpawnOptions(Struct, frozen=True, kw_only=True):
    """A sub-agent that somebody wants: its task, and who it is to be.

    ``task.agent`` names one of the agents that the parent's agent offers; ``agent`` is one that the caller brings.
    """

    id: str
    task: Task
    agent: Agent | None = None
    title: str | None = None
    tags: Mapping[str, str] = {}
    budget: Budget | None = None  # its own, instead of its parent's and the family's


class How(Terms, frozen=True, kw_only=True):
    """How one turn is run, where that is not what the conversation's settings say. Also the terms of its loop.

    - ``settings``: other settings, from this turn on, if it commits. The agent given is then the one that they name.
    - ``onto``: where the turn stands instead of at the head. If it commits, what stands at the head is set aside.
    - ``request``: a digest of the request that the turn answers, kept with it.
    - ``echo``: what answers repeat of that request, kept with it: a document of the wire that the request came by.
    - ``caller``: the turn of a parent that started this one, kept with it. ``above`` is that parent's agent: whatever
      it would have to ask about, this turn asks about too.
    - ``allow``: what may be missing of all that the conversation was made with. It goes on without, from this turn on.
    - ``skills``: those that the turn begins with, as the try did that it retries; None: those that its input calls for.
    """

    settings: Settings | None = None
    onto: Onto | None = None
    request: str | None = None
    echo: JsonText | None = None
    caller: str | None = None
    above: Agent | None = None
    allow: frozenset[str] = frozenset()
    skills: tuple[SkillActivated, ...] | None = None

    def beneath(self, turn: str, agent: Agent, budget: TurnBudget) -> "How":
        """How the sub-agents of a turn run: within its budget, with its agent's rights, without a client."""
        return How(attended=self.attended, allow=self.allow, budget=budget, caller=turn, client=False, above=agent)


class DecidedCall(Struct, frozen=True):
    """A call that a decision is about, and the content that was seen.

    - ``digest``: `Call.digest` of what was seen. None is possible only in a refusal: whatever waits under this id.
    - ``arguments``: the exact text that the call is to run with instead of what the model wrote.
    """

    id: str
    digest: str | None
    arguments: str | None = None


class Decision(Struct, frozen=True):
    """What somebody says to calls that wait.

    ``always``: what is allowed without a question from now on, as `Always.of` takes it; None: nothing.
    """

    approved: bool
    calls: tuple[DecidedCall, ...]
    by: str | None = None
    reason: str | None = None
    always: str | None = None


class NewTurn(Struct, frozen=True, kw_only=True):
    """A turn that somebody asks for.

    - ``draft``: the conversation is made with its first turn. ``supersede``: an open turn is discarded for this one.
    - ``key`` and ``if_revision`` are as `Backend` says. ``if_name``: the name that the conversation must still have.
    - ``accepted``: whoever asks hears at once that it runs, and asks later. If this process dies, another goes on.
    - ``go_on``: nothing is given, and the model goes on from where the path ends. Raises `NothingToRun` elsewhere.
    """

    given: tuple[Given, ...]
    go_on: bool = False
    draft: Draft | None = None
    retry_of: str | None = None
    supersede: bool = False
    key: str | None = None
    if_revision: int | None = None
    if_name: str | None = None
    accepted: bool = False
    how: How = How()


class Continuation(Struct, frozen=True, kw_only=True):
    """How an open turn goes on: with a decision on calls that wait, and with calls to run again."""

    decision: Decision | None = None
    rerun: tuple[str, ...] = ()
    how: How = How()


class ErasureOptions(Struct, frozen=True, kw_only=True):
    """How somebody wants content erased, and of what.

    - ``turn`` or ``event``: only that turn or event; neither: everything in the conversation.
    - ``preview``: nothing is changed, and the receipt says what would go.
    - ``keep_summaries``: the summaries of condensations that cover erased events stay as they are.
    - ``cancel``: turns that run in what is touched are cancelled first. Else the erasure is refused with `Busy`.
    """

    reason: str
    turn: str | None = None
    event: Position | None = None
    preview: bool = False
    keep_summaries: bool = False
    cancel: bool = False

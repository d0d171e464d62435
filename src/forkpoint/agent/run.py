"""One run of an agent: everything that the loop needs to know of it, in one frozen value.
Tests: tests/agent/test_loop.py."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from anyio import CancelScope
from msgspec import Struct

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.budget import TurnBudget
from forkpoint.agent.skills.skill import Skill
from forkpoint.agent.standing_approval import StandingApprovalReader
from forkpoint.agent.team.tools import Team
from forkpoint.errors import BudgetExceeded
from forkpoint.events import StagedEvent, UserMessage
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.rendering import Rendering
from forkpoint.llm.request import Admission
from forkpoint.workspace.pins.pins import PinnedCommand

T = TypeVar("T")


class Terms(Struct, frozen=True, kw_only=True):
    """How a run goes about its work, as far as its caller may choose.

    - ``options`` hold for each call of the model. A tool that must be used must be used in the first call only:
      otherwise the run would never end.
    - ``limits`` replace those of the agent.
    - ``attended``: somebody can approve calls. If not, a call that needs an approval is denied, or run if the agent
      says so.
    - ``final``: what was told of an answer cannot be taken back, so no model is asked again once it has spoken.
      Where a hook may still object to the answer, nothing of it is told before it is committed.
    - ``retried``: says whether whoever asked will ask again by itself if the turn fails now. As long as it says so, a
      model is not asked again here after a passing failure: retries of both sides would multiply.
    - ``client``: a client is there that can answer calls of its own tools. Sub-agents have none.
    - ``budget``: what is left to the run that waits for this one.
    """

    options: Options = Options()
    limits: Limits | None = None
    attended: bool = True
    final: bool = False
    retried: Callable[[], bool] | None = None
    client: bool = True
    budget: TurnBudget | None = None


class RunClock(Protocol):
    """The time that a budget allows a run, slice by slice."""

    @property
    def exceeded(self) -> BudgetExceeded | None:
        """Why there is no time left; None as long as there is."""
        ...

    async def during(self, work: Callable[[], Awaitable[T]], scope: CancelScope) -> T:
        """Does the run's work, and cancels ``scope`` when no time is left."""
        ...


class Run(Struct, frozen=True, kw_only=True):
    """One run: who answers, on which prompt, where, and on which terms.

    - ``base`` is the prompt of the path that the turn stands on.
    - ``conversation`` is None if nothing of the run is kept. ``sub_agent`` is its path in its team, if it was spawned.
    - ``messages`` are what the user said, for hooks.
    - ``skills`` may be activated when a tool touches one of their files, except those in ``told``, by name: prompts
      show them already.
    - ``fresh`` are open calls that nobody can have started. ``rerun`` are open calls to run again although they may
      have been started.
    - ``budget`` is the run's own, and ``team`` its sub-agents.
    - ``admit`` is asked before each attempt of a call, and ``clock`` is set if a budget limits the run's time.
    - ``standing`` are the standing approvals of its conversation; None if it has no conversation.
    - ``pinned`` are the approved commands of the project's MCP servers, by the servers' names.
    - ``inherited`` are the steps of others that a run without a message goes on from: what their tools have done calls
      for skills and hooks as if they were its own.
    """

    agent: Agent
    context: CallContext
    base: Rendering
    turn: str = ""
    conversation: str | None = None
    sub_agent: str | None = None
    messages: tuple[UserMessage, ...] = ()
    workspace: Path | None = None
    skills: tuple[Skill, ...] = ()
    told: Collection[str] = ()
    fresh: Collection[str] = ()
    rerun: Collection[str] = ()
    terms: Terms = Terms()
    budget: TurnBudget | None = None
    team: Team | None = None
    admit: Admission | None = None
    clock: RunClock | None = None
    standing: StandingApprovalReader | None = None
    pinned: Mapping[str, PinnedCommand] = {}
    inherited: Sequence[StagedEvent] = ()

    @property
    def limits(self) -> Limits:
        """The limits of this run: those of its terms, or else the agent's."""
        return self.agent.limits if self.terms.limits is None else self.terms.limits

    def new_budget(self) -> TurnBudget:
        """A budget of this run's limits, within what is left to whoever waits for it."""
        return TurnBudget(self.limits, self.terms.budget)

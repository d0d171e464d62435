"""`Backend`: what a conversation needs from the place where it lives. There is one for a store in this process.

Everything here names a conversation by its id, and hands out frozen data, so that a place far away can offer the same.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from forkpoint.agent.agent import Agent, Limits
from forkpoint.conversation.messages import Given
from forkpoint.conversation.results import Branch, Call, Info, SideAnswer, Stats, Turn
from forkpoint.conversation.settings import Settings
from forkpoint.conversation.updates import Callback
from forkpoint.events import Event, Position, Usage, UserMessage
from forkpoint.llm.identity import CachePolicy
from forkpoint.llm.inspecting import Inspection
from forkpoint.llm.options import Options
from forkpoint.store.records import Onto, Page, Status, Verification


class Draft(Struct, frozen=True, kw_only=True):
    """A conversation that is yet to be: it comes into being with its first turn, or when something is said of it."""

    id: str
    name: str | None
    settings: Settings
    chosen: bool = False  # somebody chose the id, so it may be taken
    title: str | None = None
    tags: Mapping[str, str] = {}


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


class How(Struct, frozen=True, kw_only=True):
    """How one turn is run, where that is not what the conversation's settings say.

    - ``settings``: others, from this turn on, if it commits. The agent given is then the one that they name.
    - ``onto``: where it stands instead of at the head. If it commits, what stands at the head is set aside.
    - ``attended``: whether somebody can be asked for an approval while it waits.
    - ``final``: whether what is told of it cannot be taken back, so that no model is asked again once it spoke.
    - ``request``: a digest of the request that it is of, kept with it.
    """

    settings: Settings | None = None
    onto: Onto | None = None
    options: Options = Options()
    limits: Limits | None = None
    attended: bool = True
    final: bool = False
    request: str | None = None


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
    since what a repeat asks for has moved the revision itself.
    """

    async def close(self) -> None:
        """Cancels what still runs there for this process, and lets go of it."""
        ...

    def check_closable(self) -> None:
        """Raises `Busy` where closing would wait for whoever closes."""
        ...

    # Conversations.

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
    ) -> Page[Info]: ...

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

    async def delete(self, id: str, *, if_revision: int | None = None) -> None: ...

    async def change(self, id: str, settings: Settings, agent: Agent | None, *, if_revision: int | None = None) -> Info:
        """Other settings from here on, recorded as a note. Those that it has already change nothing."""
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
        tell: Callback,
    ) -> Turn: ...

    async def cancel(self, id: str) -> Turn: ...

    async def discard(self, id: str, turn: str) -> Turn: ...

    async def settle(self, id: str, turn: str) -> Turn: ...

    async def ask(self, id: str, agent: Agent, messages: Sequence[UserMessage], *, tell: Callback) -> SideAnswer: ...

    async def request(
        self, id: str, agent: Agent, messages: Sequence[UserMessage], *, draft: Draft | None = None
    ) -> Inspection: ...

    async def sent(self, id: str, agent: Agent, turn: str | None) -> Inspection: ...

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

"""`Backend`: what a conversation needs from the place where it lives.

`forkpoint.engine` is one for a store in this process, `forkpoint.remote` one for a server. Every call names a
conversation by its id and hands out frozen data, so that a place far away can offer the same.
Tests: tests/conversation/test_both_homes.py.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Protocol

from forkpoint.agent.agent import Agent
from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.backend.bring import BringOptions, BringReport
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.diff import LIMIT, Diff
from forkpoint.backend.options import (
    Continuation,
    ConversationFilter,
    Draft,
    ErasureOptions,
    ExportOptions,
    ForkOptions,
    NewTurn,
    SpawnOptions,
)
from forkpoint.backend.results import (
    Branch,
    ImportReport,
    Info,
    Member,
    RemovedWorkspace,
    SideAnswer,
    Stats,
    SteerReceipt,
    Turn,
)
from forkpoint.backend.settings import Settings
from forkpoint.events import Condensation, Event, Position, Usage, UserMessage
from forkpoint.history.anchors import Anchor
from forkpoint.history.budgets import Budget, BudgetScope, BudgetStanding
from forkpoint.llm.prompt.inspection import Inspection
from forkpoint.llm.prompt.misses import CacheReport
from forkpoint.paging import Page
from forkpoint.store.erasure import Receipt
from forkpoint.store.values import (
    Backup,
    Collected,
    CopyProgress,
    Hold,
    ListOrder,
    Record,
    Verification,
    VerifyProgress,
)


class BackendTurns(Protocol):
    """The turns of a backend's conversations.

    ``allow`` says what may be missing of all that the conversation was made with; whatever else is missing raises
    `CannotResume` before anything begins.
    """

    async def run(self, id: str, agent: Agent, new: NewTurn, tell: Callback) -> Turn:
        """Runs a turn to its end. Raises `TurnFailed` or `TurnCancelled`, and then nothing has moved."""
        ...

    async def resume(self, id: str, turn: str, agent: Agent, how: Continuation, tell: Callback) -> Turn:
        """Goes on with an open or failed turn after its last finished step."""
        ...

    async def make_way(self, id: str, turn: str, agent: Agent, *, allow: frozenset[str] = frozenset()) -> None:
        """Gives up an open turn whose input is about to be run again (`NewTurn.retry_of`).

        Raises `CannotResume` or `TrustChanged`, and leaves the turn as it is, if its input could not be run.
        """
        ...

    async def cancel(self, id: str, turn: str | None = None) -> Turn:
        """Cancels a turn, whichever process runs it, and gives it as it ended; the open turn, if none is named.

        Raises `NoSuchTurn` if there is nothing to cancel, or the turn waits for an approval.
        """
        ...

    async def steer(
        self, id: str, message: UserMessage, *, turn: str | None = None, key: str | None = None
    ) -> SteerReceipt:
        """Leaves a message for the open turn, whichever process runs it; for this turn, if one is named.

        Raises `NoSuchTurn` if no turn is open, or the turn is over.
        """
        ...

    async def discard(self, id: str, turn: str) -> Turn:
        """Gives up an open turn: it ends as cancelled, and its steps stay readable."""
        ...

    async def settle(self, id: str, turn: str) -> Turn:
        """Asks the disk how a turn of unknown outcome ended."""
        ...

    async def condense(
        self,
        id: str,
        agent: Agent,
        *,
        focus: str | None = None,
        if_revision: int | None = None,
        allow: frozenset[str] = frozenset(),
    ) -> Condensation | None:
        """Condenses the path at once, as a note. None if nothing can be forgotten, or the summary is of no use.

        ``focus`` says what the summary should look at above all.
        """
        ...

    async def read(self, id: str, turn: str) -> Turn:
        """A turn by its id."""
        ...

    async def list(
        self,
        id: str,
        *,
        cursor: str | None = None,
        limit: int = 50,
        newest_first: bool = False,
        committed: bool = False,
    ) -> Page[Turn]:
        """The turns of a conversation in the order of its path; or the turn first that began last.

        ``committed``: only those that are history.
        """
        ...

    async def tries(self, id: str) -> tuple[Turn, ...]:
        """The turns that stand at the head and are not history: failed, cancelled, open; the newest last. And the one
        that is open, wherever it stands."""
        ...

    async def made_with(self, id: str, key: str) -> Turn | None:
        """The turn of a conversation that a request with this idempotency key began, or None."""
        ...


class BackendQuestions(Protocol):
    """Questions beside a conversation's turns, and a look at what is sent to models. None of it becomes history."""

    async def ask(
        self,
        id: str,
        agent: Agent,
        messages: Sequence[UserMessage],
        *,
        allow: frozenset[str] = frozenset(),
        tell: Callback,
    ) -> SideAnswer:
        """Answers a question about the conversation. Nothing of it is kept but what it cost."""
        ...

    async def request(
        self,
        id: str,
        agent: Agent,
        messages: Sequence[UserMessage],
        *,
        draft: Draft | None = None,
        allow: frozenset[str] = frozenset(),
    ) -> Inspection:
        """What a turn with these messages would send to its model first."""
        ...

    async def sent(self, id: str, agent: Agent, turn: str | None, *, allow: frozenset[str] = frozenset()) -> Inspection:
        """What a committed turn has sent to its model last; None: the newest."""
        ...

    async def why(self, id: str, turn: str | None) -> CacheReport:
        """How the provider's cache served the calls of a turn, and why less was cached than possible.

        None is the newest turn of the path that asked a model. It needs no agent. Raises `NotFound` and `NoSuchTurn`.
        """
        ...


class BackendTeam(Protocol):
    """The sub-agents of a backend's conversations."""

    async def spawn(
        self, parent: str, options: SpawnOptions, agent: Agent | None, *, key: str | None = None
    ) -> tuple[Info, Settings]:
        """Makes a sub-agent, recorded as a note of its parent. Its task is not begun. ``agent`` is the parent's, bound.

        Raises `SpawnRefused`, and `Busy` or `TurnOpen` while a turn holds the parent.
        """
        ...

    async def members(self, id: str) -> tuple[Member, ...]:
        """The sub-agents that a conversation's path knows of, in the order in which they came; closed ones too."""
        ...

    async def reach(self, id: str, agent: str, *, key: str | None = None) -> tuple[Info, Settings]:
        """The sub-agent to talk to from here, by its nickname, path or id. One of another branch is forked first.

        Raises `NotFound` or `SpawnRefused`.
        """
        ...

    async def close(self, id: str, agent: str) -> Member:
        """Closes a sub-agent: what runs there is cancelled, and a note of its parent says so. Once more, nothing is."""
        ...


class BackendBranches(Protocol):
    """The branches of a backend's conversations. ``key`` and ``if_revision`` are as `Backend` says."""

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

    async def keep(
        self, id: str, branch: str, *, key: str | None = None, if_revision: int | None = None
    ) -> tuple[tuple[Info, Settings], tuple[Info, Settings] | None]:
        """Moves the head to the head of a branch, which is named by its id or name.

        Gives the conversation as it is then, and the branch that keeps what stood there; None if nothing had to be set
        aside. Raises `CannotKeep`, and `Busy` or `TurnOpen` if a turn holds the conversation.
        """
        ...

    async def diff(self, id: str, other: str, *, limit: int = LIMIT) -> Diff:
        """How a conversation differs from another one, which is named by its id or name. ``limit``: turns of each."""
        ...

    async def bring(self, id: str, options: BringOptions, agent: Agent | None = None) -> BringReport:
        """Brings what a branch has said since the common ancestor, as a note. ``agent`` is needed for a summary.

        Raises `BringRefused`, and `Busy` or `TurnOpen` while a turn holds the conversation.
        """
        ...

    async def tree(self, id: str) -> tuple[Branch, ...]:
        """The family of a conversation: roots, with what branched off them."""
        ...


class BackendBudgets(Protocol):
    """The budgets of a backend's conversations."""

    async def set(self, id: str, budget: Budget | None, *, scope: BudgetScope) -> tuple[BudgetStanding, ...]:
        """Sets what a conversation or its family may spend in all; None removes it. Returns what `read` does."""
        ...

    async def read(self, id: str) -> tuple[BudgetStanding, ...]:
        """The budgets that cover a conversation, its own first and the family's last, and how they stand."""
        ...


class Backend(Protocol):
    """A place where conversations live.

    ``key`` is an idempotency key: however often a request is made with it, it happens once, and each time gives what
    the first one gave; with another request it raises `KeyReused`. ``if_revision`` is the revision that the caller
    decided on: if the conversation is at another, `Stale` is raised and nothing is changed. A key is looked up first,
    since what a repeat asks for has moved the revision itself.
    """

    @property
    def turns(self) -> BackendTurns:
        """Runs turns, and reads them."""
        ...

    @property
    def branches(self) -> BackendBranches:
        """Branches conversations, and finds their families."""
        ...

    @property
    def budgets(self) -> BackendBudgets:
        """Sets what conversations and families may spend."""
        ...

    @property
    def questions(self) -> BackendQuestions:
        """Answers side questions, and shows what is sent."""
        ...

    @property
    def team(self) -> BackendTeam:
        """Makes and finds sub-agents."""
        ...

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
        order: ListOrder = "created",
        wanted: ConversationFilter = ConversationFilter(),
        glance: bool = False,
    ) -> Page[Info]:
        """Conversations, by default all but sub-agents, sides and drafts: the newest first, or the last used first.

        With ``glance``, each has `Info.glance`: its first words, and how much is folded under it.
        """
        ...

    async def describe(
        self,
        id: str,
        *,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        name: str | None = None,
        if_info: Info | None = None,
    ) -> Info:
        """Changes title, tags and name, all of it or nothing. A running turn is not disturbed.

        Raises `Stale`, and changes nothing, unless the conversation is still at the revision of ``if_info``, with its
        name, title and tags. Raises `AlreadyExists` or `BadName` for the name.
        """
        ...

    async def delete(self, id: str, *, if_revision: int | None = None) -> RemovedWorkspace | None:
        """Deletes it and its sub-agents. Says what became of the folder that was made for it, if one was."""
        ...

    async def change(self, id: str, settings: Settings, agent: Agent | None, *, if_revision: int | None = None) -> Info:
        """Other settings from here on, recorded as a note. Those that it has already change nothing."""
        ...

    # Standing approvals.

    async def approvals(self, id: str, *, revoked: bool = False) -> tuple[StandingApproval, ...]:
        """What is allowed without a question, the oldest first; with ``revoked``, what was allowed and is no more."""
        ...

    async def revoke_approval(self, id: str, approval: str, *, by: str | None = None) -> StandingApproval:
        """Takes a standing approval back, at any moment. Once more, it changes nothing. Raises `NotFound`."""
        ...

    # Holds and erasures.

    async def hold(self, id: str, hold: str, reason: str) -> Hold:
        """Keeps a conversation's family from deletion, erasure and retention. ``hold`` is the id that the hold gets."""
        ...

    async def holds(self, id: str | None) -> tuple[Hold, ...]:
        """What holds a conversation's family; all holds if None is given. The oldest first."""
        ...

    async def release(self, id: str, hold: str | None) -> tuple[Hold, ...]:
        """Ends one hold of a conversation's family, or all of them, and gives these. Raises `NotFound`."""
        ...

    async def erase(self, id: str, options: ErasureOptions) -> Receipt:
        """Erases content of a conversation for good. Raises `Busy` and `Held`."""
        ...

    async def erase_all(self, tags: Mapping[str, str] | None, options: ErasureOptions) -> tuple[Receipt, ...]:
        """Erases everything in all conversations with these tags; in all conversations if None is given.

        Each family is erased whole or not at all, one after the other.
        """
        ...

    async def erasures(self, *, cursor: str | None = None, limit: int = 50) -> Page[Receipt]:
        """The receipts of all erasures, the oldest first, with what a restored copy needs to erase the same."""
        ...

    # Reading.

    async def events(
        self, id: str, *, after: int = 0, limit: int | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        """Committed events of the path, in order."""
        ...

    async def stats(self, id: str) -> Stats:
        """What the conversation has spent, what it inherited, and what its whole family has spent."""
        ...

    async def usage(self) -> tuple[Usage, Usage]:
        """All that the tenant has ever spent, each token once; and what of it outside of conversations."""
        ...

    async def state(self, id: str) -> dict[str, Any]:
        """The agent's state at the head."""
        ...

    async def update_state(
        self, id: str, set: Mapping[str, Any], removed: Collection[str], *, if_revision: int | None = None
    ) -> None:
        """Changes the agent's state, as a note."""
        ...

    async def verify(
        self,
        id: str | None,
        *,
        head_digest: str | None,
        anchors: Sequence[Anchor] = (),
        since: Anchor | None = None,
        progress: VerifyProgress | None = None,
    ) -> Verification:
        """Checks one conversation, or all, against digests and records. Anchors are for all of them.

        ``since``: only what was recorded after this anchor. ``progress`` is called from another thread.
        """
        ...

    async def records(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[Record]:
        """The records of a conversation in order, beginning with its birth."""
        ...

    async def backup(self, path: str, *, force: bool, progress: CopyProgress | None) -> Backup:
        """Writes a checked copy of the whole store to a file. Raises `CopyRefused`, also for a server."""
        ...

    async def anchor(self, *, all_tenants: bool) -> Anchor:
        """Seals what is new, and returns the anchor that names the last seal: `Store.anchor`."""
        ...

    async def collect(self, *, dry_run: bool = False, compact: bool = False) -> Collected:
        """Removes what nobody reaches any more and what was kept long enough: `Store.collect`."""
        ...

    # Copies.

    def export(self, wanted: ExportOptions) -> AsyncGenerator[bytes, None]:
        """An export, piece by piece. Raises `NotFound`, and `BadArgument` for a format that there is not."""
        ...

    async def import_(self, chunks: AsyncIterator[bytes], *, rename: bool) -> ImportReport:
        """Brings an export into the store, each family whole or not at all. Raises as `Store.import_family`.

        Raises `BadExport` for a file that is not as it was written, and changes nothing then.
        """
        ...

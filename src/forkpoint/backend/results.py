"""What callers get: turns, conversations and figures, as frozen data. The same wherever a conversation lives.
Tests: tests/wire/test_documents.py."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, assert_never, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.loop import stand
from forkpoint.agent.team.tools import Member as Member
from forkpoint.agent.team.tools import MemberStatus as MemberStatus
from forkpoint.backend.messages import Given, said_in
from forkpoint.backend.notebook import tree_html, turn_html
from forkpoint.errors import Busy, TurnCancelled, TurnFailed, TurnOpen
from forkpoint.events import (
    ApprovalAsked,
    ApprovalDenied,
    ApprovalGiven,
    AssistantMessage,
    Event,
    ModelCalled,
    Part,
    Position,
    StagedEvent,
    Text,
    ToolCall,
    ToolResult,
    TurnStopped,
    Usage,
    UserMessage,
)
from forkpoint.history.digests import call_digest
from forkpoint.history.steers import Steer
from forkpoint.llm.answers import Finish, cut_of
from forkpoint.llm.prompt.identity import CacheIdentity
from forkpoint.store.values import Lineage, Outcome, Status, TurnError

CallStatus: TypeAlias = Literal["done", "failed", "unknown", "denied", "not_run", "not_answered", "waiting", "handed"]
"""How a call stands. `unknown`: it was started, and whether it finished is not known. `handed`: it is for the client's
own tools, and waits for their result."""


class Call(Struct, frozen=True):
    """One tool call of a turn: what was asked, and what came of it."""

    id: str
    tool: str
    arguments: str  # the exact text that the model wrote
    status: CallStatus
    result: str | None = None  # in words; None if there is none
    duration: float | None = None  # seconds
    reason: str | None = None  # why it waits, or was denied
    response: int = 0  # in which of the turn's answers it was asked for: some models use an id again
    approved_arguments: str | None = None  # what it runs with instead, if somebody changed that when approving it
    event: Position | None = None  # its event, once its turn is committed

    @property
    def digest(self) -> str:
        """What stands for the content of the call in an approval: `forkpoint.history.digests.call_digest` makes it."""
        return call_digest(self.response, self.id, self.tool, self.arguments)


class Turn(Struct, frozen=True):
    """One try at answering. Only a `committed` one is history; of the others this is all that is left."""

    id: str
    conversation: str
    outcome: Outcome
    given: tuple[Given, ...]  # all that it began with: messages, results of the client's tools, imported history
    events: tuple[Event, ...] | tuple[StagedEvent, ...]  # with ids once committed, without before
    usage: Usage
    error: TurnError | None = None
    retry_of: str | None = None
    started: int = 0  # microseconds since 1970, UTC
    ended: int | None = None
    output: Any = None  # the answer as the agent's output type
    by: str | None = None  # who asked for it: the name of a server's key, or of `acting_as`
    steered: tuple[Steer, ...] = ()  # what was sent to it while it was open, in order; each says if it was delivered
    partial: bool = False  # only its first events are on this path. What was inherited cost nothing here
    go_on: bool = False  # it went on without input
    accepted: bool = False  # it is open, and somebody was told that it runs: if its process dies, another goes on

    @property
    def input(self) -> tuple[UserMessage, ...]:
        """What the user said."""
        return said_in(self.given)

    @property
    def text(self) -> str:
        """What the model said last, in words; also beside calls that wait, or that it handed to the client."""
        standing = stand(self.events)
        if standing.answer is None and (standing.handed or standing.waiting):
            last = (event for event in self.events if event.envelope.response == standing.responses)
            return "".join(event.text for event in last if isinstance(event.body, AssistantMessage))
        return standing.answer or ""

    @property
    def finish(self) -> Finish | None:
        """Why the model's answer ended: ``stop``, ``length`` (a limit of tokens) or ``filter`` (its provider's);
        ``tool_calls`` if calls wait, for an approval or for the client. None if the turn has no answer."""
        if self.outcome not in {"committed", "awaiting_approval"} or self.stopped is not None or not self.steps:
            return None
        finish = self.steps[-1].finish
        return cast("Finish", finish) if finish in get_args(Finish) else None

    @property
    def cut(self) -> str | None:
        """How the answer was cut, in words: "cut at the limit of 256 tokens"; None if it was not."""
        return cut_of(self.steps[-1]) if self.finish in {"length", "filter"} else None

    @property
    def stopped(self) -> str | None:
        """The limit at which it ended without an answer, as its agent says: "100 steps"; None if it was not stopped."""
        ends = [event.body for event in self.events if isinstance(event.body, TurnStopped)]
        return f"{ends[-1].limit} {ends[-1].what}" if ends else None

    @property
    def cost(self) -> float | None:
        """Dollars; None if the price of a call is not known."""
        return self.usage.dollars

    @property
    def calls(self) -> tuple[Call, ...]:
        """What its tools did, or may have done, in the order they were asked for."""
        return calls_of(self.events)

    @property
    def waiting(self) -> tuple[Call, ...]:
        """The calls that wait for an approval."""
        return tuple(call for call in self.calls if call.status == "waiting")

    @property
    def handed(self) -> tuple[Call, ...]:
        """The calls of the client's own tools that wait for their results: ``run(results=...)`` gives them."""
        return tuple(call for call in self.calls if call.status == "handed")

    @property
    def steps(self) -> tuple[ModelCalled, ...]:
        """Each time that a model was asked: what was sent, what was cached, how long it took."""
        return tuple(event.body for event in self.events if isinstance(event.body, ModelCalled))

    def _repr_html_(self) -> str:
        return turn_html(self)


class SteerReceipt(Struct, frozen=True):
    """A message that was accepted for an open turn. It is on disk, and is delivered with the turn's next tool results.

    ``outcome`` is how the turn stood then: nobody runs a turn that waits or was interrupted, so the message waits too.
    """

    id: str
    turn: str
    conversation: str
    outcome: Outcome
    delivered: bool = False  # only if the message was sent before, with the same key


class Spending(Struct, frozen=True):
    """All that was ever spent in a store, each token once; and how much of it outside of any conversation."""

    total: Usage
    beside: Usage


class SideAnswer(Struct, frozen=True):
    """The answer to a side question. Nothing of it is in the conversation, except what it cost."""

    text: str
    usage: Usage
    finish: Finish = "stop"

    @property
    def cost(self) -> float | None:
        """Dollars; None if the price of the call is not known."""
        return self.usage.dollars


class Isolation(Struct, frozen=True):
    """How a branch stands to the folder of what it branched off.

    - ``kind``: ``share`` is the same folder, where both see each other's files; ``worktree`` and ``copy`` were made for
      it, and ``path`` was named.
    - ``source``: what a folder that was made for a fork was made from, and ``branch`` that of a worktree.
    - ``notes``: what of the source is not there, or leads back to it.
    """

    kind: Literal["share", "worktree", "copy", "path"]
    source: str | None = None
    branch: str | None = None
    notes: tuple[str, ...] = ()


class RemovedWorkspace(Struct, frozen=True):
    """What became of a folder that was made for a fork, when a conversation that worked there was deleted.

    ``why`` says why it stays.
    """

    path: str
    removed: bool
    why: str | None = None


class Glance(Struct, frozen=True):
    """What a list shows of a conversation beside what it is. Counts end at a thousand."""

    opening: str  # the first words that were said in it, on one line; in a branch the first since it parted
    asides: int = 0  # how many branches were set aside from it
    sides: int = 0  # how many sides it has: what clients asked beside it


class Info(Struct, frozen=True):
    """A conversation as it stood when it was read."""

    id: str
    name: str
    title: str | None
    tags: dict[str, str]  # the title among them
    status: Status
    family: str
    lineage: Lineage
    revision: int
    events: int  # how many there are on its path
    inherited_events: int  # how many of them its source had already
    head: str | None  # the id of the last one
    digest: str  # vouches for all of them; keep it elsewhere to be sure that nobody rewrites history
    model: str | None
    agent: str | None  # the agent's name
    workspace: str | None
    cache: CacheIdentity
    open_turn: str | None
    created: int
    updated: int
    parent: str | None = None  # of a sub-agent: whose it is; None for all others
    path: str | None = None  # where it stands in its team, as in /root/explorer
    nickname: str | None = None
    role: str | None = None
    depth: int = 0  # how far below a conversation that nobody spawned
    isolation: Isolation | None = None  # of a branch with a workspace: whether it shares its source's
    draft: bool = False  # no turn has committed in it yet, and it is removed after a time
    glance: Glance | None = None  # only in a list that was asked for it

    @property
    def version(self) -> str:
        """The revision with a digest of all that stands here: REVISION-DIGEST. It changes with any of it.

        Title, tags and status are no part of the revision, so that they disturb no turn.
        """
        shown = msgspec.json.encode(replace(self, glance=None), order="deterministic")
        return f"{self.revision}-{hashlib.sha256(shown).hexdigest()[:16]}"


class Branch(Struct, frozen=True):
    """A conversation in its family, and what branched off it."""

    info: Info
    branches: tuple["Branch", ...] = ()

    @property
    def is_sub_agent(self) -> bool:
        """Whether it was spawned, and neither forked nor set aside: `info.lineage.kind` tells all of them apart."""
        return self.info.lineage.kind == "sub_agent"

    def _repr_html_(self) -> str:
        return tree_html((self,))


class Tree(tuple[Branch, ...]):
    """A family: its roots, each with what branched off."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return tree_html(self)


class Stats(Struct, frozen=True):
    """What a conversation has used. `spent` is its own; what its source had spent before the fork stands apart."""

    spent: Usage = Usage()  # failed tries and side questions too
    inherited: Usage = Usage()
    family: Usage = Usage()  # the conversation with all its forks, each token counted once
    events: int = 0
    carries_metrics: bool = False  # whether the inherited part counts as its own, as fork(reset_metrics=False) says

    @property
    def total(self) -> Usage:
        """What the conversation shows as its own: with the inherited part if it carries that."""
        return self.spent + self.inherited if self.carries_metrics else self.spent

    @property
    def cost(self) -> float | None:
        """Dollars of the total; None if the price of a call is not known."""
        return self.total.dollars

    @property
    def family_cost(self) -> float | None:
        """Dollars of the whole family; None if the price of a call is not known."""
        return self.family.dollars

    @property
    def cached_share(self) -> float | None:
        """Which part of all prompt tokens was found in a cache, from 0 to 1; None before the first call."""
        return self.total.cached / self.total.input if self.total.input else None


def words(parts: Iterable[Part]) -> str:
    """Parts as text; a picture or a file by what it is."""
    return "\n".join(part.text if isinstance(part, Text) else f"[{part.media_type}]" for part in parts)


def calls_of(events: Iterable[Event | StagedEvent]) -> tuple[Call, ...]:
    """The tool calls among a turn's events, with how each one stands."""
    calls: list[Call] = []
    place: dict[str, int] = {}  # where the newest call of an id stands: some models use an id again
    for event in events:
        match event.body:
            case ToolCall() as call:
                place[call.call_id] = len(calls)
                response = event.envelope.response or 0
                status: CallStatus = "handed" if call.client else "unknown"
                place_of_it = event.id if isinstance(event, Event) else None
                calls.append(
                    Call(call.call_id, call.tool, call.arguments, status, response=response, event=place_of_it)
                )
            case ApprovalAsked(call_id=id, reason=why) if id in place:
                calls[place[id]] = replace(calls[place[id]], status="waiting", reason=why)
            case ApprovalGiven(call_id=id, arguments=changed) if id in place:
                given = {"status": "unknown", "reason": None, "approved_arguments": changed}
                calls[place[id]] = replace(calls[place[id]], **given)
            case ApprovalDenied(call_id=id, reason=why) if id in place:
                calls[place[id]] = replace(calls[place[id]], status="denied", reason=why)
            case ToolResult(call_id=id) as result if id in place:
                told = {"status": result.status, "result": words(result.parts), "duration": result.duration}
                calls[place[id]] = replace(calls[place[id]], **told)
            case _:
                pass
    return tuple(calls)


def steered_in(steers: Iterable[Steer], events: Iterable[Event | StagedEvent]) -> tuple[Steer, ...]:
    """The messages that were steered to a turn, each with its words: those of a delivered one stand in its event."""
    steers = tuple(steers)
    if not steers:
        return ()
    said = {event.envelope.steer: event.body for event in events if isinstance(event.body, UserMessage)}
    return tuple(replace(one, message=said.get(one.id, one.message), key=None) for one in steers)


def raise_for(turn: Turn) -> Turn:
    """The turn, if it is committed or waits. Raises what it ended with otherwise."""
    match turn.outcome:
        case "committed" | "awaiting_approval":
            return turn
        case "cancelled":
            raise TurnCancelled(turn.id, "it was stopped before its commit.", tools_of(turn), turn)
        case "failed":
            why = turn.error.message if turn.error else "it does not say why."
            raise TurnFailed(turn.id, why, tools_of(turn), turn)
        case "interrupted":
            raise TurnOpen(turn.conversation, turn.id, turn.outcome)
        case "running":
            raise Busy(turn.conversation, turn.id)
        case _ as never:
            assert_never(never)


def tools_of(turn: Turn) -> str:
    """What a turn's tools did, in a sentence: rolling back a conversation does not undo that."""
    by_status: dict[str, list[str]] = {}
    for call in calls_of(turn.events):
        by_status.setdefault(call.status, []).append(call.tool)
    if not by_status:
        return f"It had run no tools.{_steered_words(turn)}"
    told = "; ".join(f"{status}: {', '.join(tools)}" for status, tools in by_status.items())
    did = "did, or may have done," if "unknown" in by_status else "did"
    return f"What its tools {did} stays done ({told}).{_steered_words(turn)}"


def _steered_words(turn: Turn) -> str:
    if not turn.steered:
        return ""
    return " What was steered to it is no part of a retry; if the turn is resumed, its model is given all of it."


def tree_of(infos: Iterable[Info]) -> tuple[Branch, ...]:
    """A family as a tree. A branch whose source was deleted is a root."""
    by_source: dict[str | None, list[Info]] = {}
    infos = sorted(infos, key=lambda info: info.id)
    here = {info.id for info in infos}
    for info in infos:
        by_source.setdefault(info.lineage.source if info.lineage.source in here else None, []).append(info)
    order = list(by_source.get(None, ()))
    for info in order:  # sources before what branched off them, however long the chain
        order += by_source.get(info.id, ())
    made: dict[str, Branch] = {}
    for info in reversed(order):
        made[info.id] = Branch(info, tuple(made[branch.id] for branch in by_source.get(info.id, ())))
    return tuple(made[info.id] for info in by_source.get(None, ()))


class ExportReport(Struct, frozen=True):
    """What an export has written."""

    bytes: int
    digest: str | None = None  # that the last line of the file ends with; None: the format has none
    recorded: bool = True  # False: the store can only be read, so it has no record of this export


class ImportReport(Struct, frozen=True):
    """What an import did: the ids of conversations that were made, and of those that went on."""

    new: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    same: int = 0  # how many were here already, with all that the file has of them
    events: int = 0  # that were added
    families: int = 0
    renamed: Mapping[str, str] = {}  # the new names of conversations whose own were taken, by id
    store: str = ""  # which store the file is from
    erased: int = 0  # events that lost their content here, since the same was erased where the file is from

    @property
    def changed(self) -> bool:
        """Whether anything of the file was new here."""
        return bool(self.new or self.grown or self.erased)

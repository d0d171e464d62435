"""What programs get: conversations, turns, events and figures as JSON, the same from a server and with ``--json``.

Each document can be read back into what it was made of, without loss: that is how a conversation behind a server is
the same as one in this process. Times are microseconds since 1970, UTC. Ids of events are their positions.
"""

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict

from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.backend.messages import Given
from forkpoint.backend.results import (
    Call,
    CallStatus,
    Glance,
    ImportReport,
    Info,
    Isolation,
    Member,
    MemberStatus,
    RemovedWorkspace,
    SideAnswer,
    Stats,
    Turn,
)
from forkpoint.events import (
    Condensation,
    Content,
    Envelope,
    Event,
    Gone,
    Position,
    Role,
    StagedEvent,
    Usage,
    UserMessage,
    body_of,
    encode_body,
)
from forkpoint.history.budgets import BudgetStanding
from forkpoint.history.steers import Steer
from forkpoint.llm.answers import Finish
from forkpoint.llm.prompt.identity import CacheIdentity
from forkpoint.store.erasure import Receipt
from forkpoint.store.values import Flaw, Hold, Lineage, Outcome, Status, TurnError, Verification

D = TypeVar("D")


class UsageDocument(Struct, frozen=True):
    """Tokens and dollars. Null dollars are a price that nobody knows; ``nanodollars`` is the part that is known."""

    calls: int
    input: int
    cached: int
    written: int
    output: int
    reasoning: int
    nanodollars: int
    unpriced: int
    dollars: float | None


class LineageDocument(Struct, frozen=True):
    """Where a conversation came from."""

    kind: Literal["root", "fork", "aside", "side", "sub_agent"]
    source: str | None
    at: str | None
    turn: str | None
    call: str | None


class CacheDocument(Struct, frozen=True):
    """What a conversation shows a provider: its prompt-cache key and session, and whose they are."""

    key: str
    session: str
    inherited_from: str | None
    manifest: str | None
    dropped: str | None


class InfoDocument(Struct, frozen=True):
    """A conversation."""

    id: str
    name: str
    title: str | None
    tags: dict[str, str]
    status: Status
    family: str
    lineage: LineageDocument
    revision: int
    events: int
    inherited_events: int
    head: str | None
    digest: str
    model: str | None
    agent: str | None
    workspace: str | None
    cache: CacheDocument
    open_turn: str | None
    created: int
    updated: int
    parent: str | None = None  # these five are a sub-agent's
    path: str | None = None
    nickname: str | None = None
    role: str | None = None
    depth: int = 0
    isolation: Isolation | None = None
    draft: bool = False  # no turn has committed in it yet
    glance: Glance | None = None  # only in a list that was asked for it


class DeletedDocument(Struct, frozen=True):
    """What a conversation that was deleted left behind: the folder that was made for it, removed or not."""

    workspace: RemovedWorkspace


class SpawnedDocument(InfoDocument, frozen=True):
    """A sub-agent that was made. ``turn`` is that of its task, if it was begun."""

    turn: str | None = None


class MemberDocument(Struct, frozen=True):
    """A sub-agent, and how it stands: what it said last, or why it did not. A null turn: its parent knows of none."""

    conversation: str
    path: str
    nickname: str
    role: str | None
    depth: int
    task: str
    status: MemberStatus
    answer: str | None
    error: str | None
    turn: str | None


class TeamDocument(Struct, frozen=True):
    """The sub-agents of a conversation, in the order in which they came; closed ones too."""

    items: tuple[MemberDocument, ...]


class EventDocument(Struct, frozen=True, omit_defaults=True):
    """An event. One of a turn that did not commit has no id. A null body was erased."""

    id: str | None
    turn: str | None
    kind: str
    time: int
    body: Raw
    role: Role | None = None
    call_id: str | None = None
    tool: str | None = None
    client: bool = False
    parts: tuple[str, ...] = ()
    response: int | None = None
    origin: str | None = None
    kept_from: int | None = None
    steer: str | None = None


class CallDocument(Struct, frozen=True):
    """A tool call of a turn. `digest` stands for its content: an approval names it.

    `approved_arguments` are what it runs with instead of `arguments`, if somebody changed them when approving it.
    """

    id: str
    tool: str
    arguments: str
    status: CallStatus
    result: str | None
    duration: float | None
    reason: str | None
    response: int
    approved_arguments: str | None
    digest: str
    event: str | None = None  # the id of its event, once its turn is committed


class TurnDocument(Struct, frozen=True):
    """A turn. In lists it has no events unless they were asked for."""

    id: str
    conversation: str
    outcome: Outcome
    input: tuple[UserMessage, ...]
    text: str
    finish: Finish | None
    usage: UsageDocument
    calls: tuple[CallDocument, ...]
    waiting: tuple[str, ...]
    handed: tuple[str, ...]
    error: TurnError | None
    retry_of: str | None
    started: int
    ended: int | None
    given: tuple[Given, ...] | UnsetType = UNSET  # all that it began with, if that was more than messages
    stopped: str | UnsetType = UNSET  # the limit at which it was committed without an answer, if it was
    by: str | UnsetType = UNSET  # who asked for it: the name of a key, if the server has keys
    steered: tuple[Steer, ...] | UnsetType = UNSET  # what was sent to it while it was open, if anything was
    partial: bool = False  # only its first events are on the conversation's path
    go_on: bool = False  # it went on without input
    events: tuple[EventDocument, ...] | UnsetType = UNSET


class StatsDocument(Struct, frozen=True):
    """What a conversation has used."""

    spent: UsageDocument
    inherited: UsageDocument
    family: UsageDocument
    total: UsageDocument
    events: int
    carries_metrics: bool
    cached_share: float | None


class SpendingDocument(Struct, frozen=True):
    """All that was ever spent, each token once; and what of it was spent outside of conversations."""

    total: UsageDocument
    beside: UsageDocument


class SideAnswerDocument(Struct, frozen=True):
    """The answer to a side question."""

    text: str
    usage: UsageDocument
    finish: Finish = "stop"


class CondensedDocument(Struct, frozen=True):
    """What prompts show now in the place of all before an event, if anything could be forgotten."""

    condensed: bool
    summary: str | None = None
    kept_from: int | None = None


class VerificationDocument(Struct, frozen=True):
    """What was looked at, and what is wrong with it."""

    ok: bool
    conversations: int
    events: int
    erased: int
    flaws: tuple[Flaw, ...]
    records: int = 0
    chains: int = 0
    seals: int = 0
    remarks: tuple[str, ...] = ()
    since: int | None = None


class HoldsDocument(Struct, frozen=True):
    """What keeps families from deletion, erasure and retention."""

    items: tuple[Hold, ...]


class BudgetsDocument(Struct, frozen=True):
    """What a conversation may spend: the budgets that cover it, its own first and the family's last."""

    items: tuple[BudgetStanding, ...]


class ReceiptsDocument(Struct, frozen=True):
    """What was erased, family by family."""

    items: tuple[Receipt, ...]


class ImportDocument(Struct, frozen=True):
    """What an import did: which conversations were made, which went on, and how many were here already."""

    changed: bool
    new: tuple[str, ...]
    grown: tuple[str, ...]
    same: int
    events: int
    families: int
    renamed: dict[str, str]  # new names, by id
    store: str  # which store the file is from
    erased: int = 0  # events that lost their content here, since the same was erased where the file is from


class PageDocument(Struct, Generic[D], frozen=True):
    """Part of a list, and the cursor for the rest."""

    items: tuple[D, ...]
    next: str | None


class EventsDocument(Struct, frozen=True):
    """Committed events in order. ``next`` is the ``after`` of the next page; ``head`` the last event of the path."""

    items: tuple[EventDocument, ...]
    next: str | None
    head: str | None


class RewindDocument(Struct, frozen=True):
    """A conversation that went back, and the branch that keeps what stood after that point, if anything did."""

    conversation: InfoDocument
    aside: InfoDocument | None


class KeepDocument(Struct, frozen=True):
    """A conversation that has kept a branch, and the branch that keeps what stood there, if that was set aside."""

    conversation: InfoDocument
    aside: InfoDocument | None


class FamilyDocument(Struct, frozen=True):
    """All conversations of a family; the lineage of each says where it hangs."""

    items: tuple[InfoDocument, ...]


class ApprovalsDocument(Struct, frozen=True):
    """The standing approvals of a conversation, the oldest first."""

    items: tuple[StandingApproval, ...]


class StateDocument(Struct, frozen=True):
    """What tools have set, as it is committed."""

    state: dict[str, Any]


# From values to documents.


def plain(document: Struct) -> dict[str, Any]:
    """A document as a dictionary, to put further fields beside its own."""
    made: dict[str, Any] = msgspec.to_builtins(document)
    return made


def usage_document(usage: Usage) -> UsageDocument:
    return UsageDocument(**asdict(usage), dollars=usage.dollars)


def info_document(info: Info) -> InfoDocument:
    at = None if info.lineage.at is None else str(info.lineage.at)
    lineage = LineageDocument(**asdict(info.lineage) | {"at": at})
    return InfoDocument(**asdict(info) | {"lineage": lineage, "cache": CacheDocument(**asdict(info.cache))})


def member_document(member: Member) -> MemberDocument:
    return MemberDocument(**asdict(member))


def event_document(event: Event | StagedEvent) -> EventDocument:
    return EventDocument(
        id=str(event.id) if isinstance(event, Event) else None,
        turn=event.turn if isinstance(event, Event) else None,
        body=_raw(event.body),
        **asdict(event.envelope),
    )


def turn_document(turn: Turn, *, events: bool = False) -> TurnDocument:
    calls = turn.calls
    return TurnDocument(
        id=turn.id,
        conversation=turn.conversation,
        outcome=turn.outcome,
        input=turn.input,
        given=UNSET if len(turn.given) == len(turn.input) else turn.given,
        text=turn.text,
        finish=turn.finish,
        stopped=UNSET if turn.stopped is None else turn.stopped,
        usage=usage_document(turn.usage),
        calls=tuple(map(call_document, calls)),
        waiting=tuple(call.id for call in calls if call.status == "waiting"),
        handed=tuple(call.id for call in calls if call.status == "handed"),
        error=turn.error,
        retry_of=turn.retry_of,
        by=UNSET if turn.by is None else turn.by,
        steered=turn.steered or UNSET,
        partial=turn.partial,
        go_on=turn.go_on,
        started=turn.started,
        ended=turn.ended,
        events=tuple(map(event_document, turn.events)) if events else UNSET,
    )


def call_document(call: Call) -> CallDocument:
    event = None if call.event is None else str(call.event)
    return CallDocument(**asdict(call) | {"event": event}, digest=call.digest)


def stats_document(stats: Stats) -> StatsDocument:
    return StatsDocument(
        spent=usage_document(stats.spent),
        inherited=usage_document(stats.inherited),
        family=usage_document(stats.family),
        total=usage_document(stats.total),
        events=stats.events,
        carries_metrics=stats.carries_metrics,
        cached_share=stats.cached_share,
    )


def spending_document(total: Usage, beside: Usage) -> SpendingDocument:
    return SpendingDocument(usage_document(total), usage_document(beside))


def side_answer_document(answer: SideAnswer) -> SideAnswerDocument:
    return SideAnswerDocument(answer.text, usage_document(answer.usage), answer.finish)


def verification_document(found: Verification) -> VerificationDocument:
    return VerificationDocument(ok=found.ok, **asdict(found))


def import_document(done: ImportReport) -> ImportDocument:
    return ImportDocument(changed=done.changed, **(asdict(done) | {"renamed": dict(done.renamed)}))


# And back.


def usage_of(document: UsageDocument) -> Usage:
    return Usage(**_without(asdict(document), "dollars"))


def import_of(document: ImportDocument) -> ImportReport:
    return ImportReport(**_without(asdict(document), "changed"))


def info_of_document(document: InfoDocument) -> Info:
    at = None if document.lineage.at is None else Position.parse(document.lineage.at)
    lineage = Lineage(**asdict(document.lineage) | {"at": at})
    return Info(**asdict(document) | {"lineage": lineage, "cache": CacheIdentity(**asdict(document.cache))})


def member_of_document(document: MemberDocument) -> Member:
    return Member(**asdict(document))


def event_of(document: EventDocument) -> Event | StagedEvent:
    envelope = Envelope(**{name: getattr(document, name) for name in Envelope.__struct_fields__})
    raw = bytes(document.body)
    body = body_of(envelope, None if raw == b"null" else raw)
    if document.id is None or document.turn is None:
        return StagedEvent(envelope, body)
    return Event(Position.parse(document.id), document.turn, envelope, body)


def turn_of(document: TurnDocument) -> Turn:
    """The turn of a document that has its events."""
    events: Any = () if document.events is UNSET else tuple(map(event_of, document.events))
    return Turn(
        id=document.id,
        conversation=document.conversation,
        outcome=document.outcome,
        given=document.input if document.given is UNSET else document.given,
        events=events,
        usage=usage_of(document.usage),
        error=document.error,
        retry_of=document.retry_of,
        started=document.started,
        ended=document.ended,
        by=None if document.by is UNSET else document.by,
        steered=() if document.steered is UNSET else document.steered,
        partial=document.partial,
        go_on=document.go_on,
    )


def stats_of(document: StatsDocument) -> Stats:
    return Stats(
        spent=usage_of(document.spent),
        inherited=usage_of(document.inherited),
        family=usage_of(document.family),
        events=document.events,
        carries_metrics=document.carries_metrics,
    )


def spending_of(document: SpendingDocument) -> tuple[Usage, Usage]:
    return usage_of(document.total), usage_of(document.beside)


def condensed_document(made: Condensation | None) -> CondensedDocument:
    return CondensedDocument(False) if made is None else CondensedDocument(True, made.summary, made.kept_from)


def condensed_of(document: CondensedDocument) -> Condensation | None:
    if document.summary is None or document.kept_from is None:
        return None
    return Condensation(document.summary, document.kept_from)


def side_answer_of(document: SideAnswerDocument) -> SideAnswer:
    return SideAnswer(document.text, usage_of(document.usage), document.finish)


def verification_of(document: VerificationDocument) -> Verification:
    return Verification(**_without(asdict(document), "ok"))


def _raw(body: Content) -> Raw:
    """A body as its payload, to the byte. One that was erased is null."""
    return Raw(b"null") if isinstance(body, Gone) else Raw(encode_body(body).encode())


def _without(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}

"""Examples for the OpenAPI document, made of the very structs that are sent. Tests: tests/server/test_openapi.py."""

from typing import Any

import msgspec

from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.backend.results import ImportReport, Info, Member, SideAnswer, Stats, SteerReceipt, Turn
from forkpoint.errors import ForkpointError, TurnFailed
from forkpoint.events import AssistantMessage, Condensation, Envelope, Event, Position, Text, Usage, UserMessage
from forkpoint.history.anchors import Anchor
from forkpoint.history.budgets import Budget, BudgetStanding, Figures
from forkpoint.history.records import ErasedRun
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.server.http.openapi.branch_examples import BROUGHT, DIFF
from forkpoint.server.http.openapi.response_examples import RESPONSE_EXAMPLES
from forkpoint.server.wires.chat.answer import FinishedAnswer, completion
from forkpoint.store import Collected, Hold, Lineage, Receipt, Record, Touched, TurnError, Verification
from forkpoint.wire.branches import brought_document, diff_document
from forkpoint.wire.documents import (
    ApprovalsDocument,
    condensed_document,
    event_document,
    import_document,
    info_document,
    member_document,
    side_answer_document,
    spending_document,
    stats_document,
    turn_document,
    verification_document,
)

ID = "01a8f6e0-3f6c-7b1a-9d2e-5c8b7a6f4e3d"
TURN = "01a8f6e0-4a10-7c3e-8f01-2b9d6e5a4c7b"
_TIME = 1_800_000_000_000_000
_USAGE = Usage(calls=1, input=1200, cached=1100, output=80, nanodollars=1_450_000)

_INFO = Info(
    id=ID,
    name="build-1234",
    title="Why did it fail?",
    tags={"kind": "debug", "title": "Why did it fail?"},
    status="idle",
    family=ID,
    lineage=Lineage(),
    revision=1,
    events=3,
    inherited_events=0,
    head="1-3",
    digest="9f" * 32,
    model="openai/gpt-5.6",
    agent="support",
    workspace=None,
    cache=own_identity(ID),
    open_turn=None,
    created=_TIME,
    updated=_TIME,
)
_SAID = UserMessage((Text("Why did build 1234 fail?"),))
_EVENTS = (
    Event(Position(1, 1), TURN, Envelope("user_message", _TIME, "user", parts=("text",)), _SAID),
    Event(
        Position(1, 2),
        TURN,
        Envelope("assistant_message", _TIME, "assistant", parts=("text",), response=1),
        AssistantMessage((Text("The disk was full."),)),
    ),
)
_ANCHOR = Anchor("9f" * 16, "default", 3, "5a" * 32, 1200, _TIME, "c1" * 32)
_DONE = Turn(TURN, ID, "committed", (_SAID,), _EVENTS, _USAGE, started=_TIME, ended=_TIME)


def failed(cause: ForkpointError) -> TurnFailed:
    """The error of a turn that failed for this reason."""
    error = TurnError(cause.code, cause.message())
    turn = Turn(TURN, ID, "failed", (_SAID,), (), Usage(), error=error, started=_TIME, ended=_TIME)
    return TurnFailed(TURN, cause.message(), turn=turn, cause=cause)


def plain(value: Any) -> Any:
    """A value as its readers have it."""
    return msgspec.json.decode(msgspec.json.encode(value))


_INFO_DOCUMENT = plain(info_document(_INFO))
_TURN_DOCUMENT = plain(turn_document(_DONE, events=True))
_CHILD = "01a8f6e0-5b21-7d4f-9a12-3cae7f6b5d8c"
_MEMBER = Member(
    conversation=_CHILD,
    path="/root/explorer",
    nickname="explorer",
    role="reader",
    depth=1,
    task="Read the log of build 1234, and say why it failed.",
    status="idle",
    answer="The disk was full.",
    turn=TURN,
)
_STANDING = StandingApproval(
    id="9f2c41d07b3e",
    kind="prefix",
    tool="shell",
    tool_digest="5f0c1d9a" * 8,
    given=1_760_000_000_000_000,
    arguments="{}",
    prefix=("git", "status"),
    by="ann",
    turn=TURN,
    call="call_7",
)
_SPAWNED = msgspec.structs.replace(
    _INFO,
    id=_CHILD,
    name=_CHILD,
    title=None,
    tags={},
    status="running",
    lineage=Lineage("sub_agent", source=ID),
    revision=0,
    events=0,
    head=None,
    cache=own_identity(_CHILD),
    open_turn=TURN,
    parent=ID,
    path=_MEMBER.path,
    nickname=_MEMBER.nickname,
    role=_MEMBER.role,
    depth=1,
)
_MEMBER_DOCUMENT = plain(member_document(_MEMBER))
_MODEL_DOCUMENT = {"id": "support", "object": "model", "created": _TIME // 1_000_000, "owned_by": "forkpoint"}

_RECORD = Record(
    number=1,
    kind="failed",
    digest="5d1a2c0f" * 8,
    subject=TURN,
    time=_TIME,
    by="ci",
    body={"kind": "failed", "time": _TIME, "by": "ci", "turn": {"id": TURN, "outcome": "failed", "started": _TIME}},
)
_HOLD = Hold("01a8f6e0-6c32-7e5a-8b23-4dbf807c6e9d", ID, "case 17/2026", "ann", _TIME)
_BUDGET = BudgetStanding(
    scope="family",
    conversation=None,
    limits=Budget(dollars=5.0),
    spent=Figures(dollars=3.0, tokens=412_000, turns=38, seconds=301.5),
    reserved=Figures(dollars=0.25, tokens=30_000, turns=0, seconds=0.0),
    left=Figures(dollars=1.75, tokens=None, turns=None, seconds=None),
)
_RECEIPT = Receipt(
    id="01a8f6e0-7d43-7f6b-9c34-5ec0918d7fae",
    tenant="default",
    family=ID,
    reason="a request under article 17, ticket 4711",
    time=_TIME,
    by="ann",
    events=2,
    bytes=146,
    positions=("1-1..1-2",),
    runs=(ErasedRun(bytes(32), bytes(32), 2),),
    turns=(TURN,),
    touched=1,
    touched_named=(Touched(ID, "build-1234"),),
    places={"event": 2, "turn": 1},
)

EXAMPLES: dict[str, Any] = RESPONSE_EXAMPLES | {
    "InfoDocument": _INFO_DOCUMENT,
    "TurnDocument": _TURN_DOCUMENT,
    "PageDocument_InfoDocument": {"items": [_INFO_DOCUMENT], "next": None},
    "PageDocument_TurnDocument": {"items": [plain(turn_document(_DONE))], "next": None},
    "PageDocument_Record": {"items": [plain(_RECORD)], "next": None},
    "AgentsDocument": {"items": [{"name": "support", "model": "openai/gpt-5.6", "tools": ["search"], "default": True}]},
    "EventsDocument": {"items": [plain(event_document(event)) for event in _EVENTS], "next": None, "head": "1-2"},
    "MessagesDocument": {
        "format": "openai",
        "messages": [
            {"role": "user", "content": "Why did build 1234 fail?"},
            {"role": "assistant", "content": "The disk was full."},
        ],
    },
    "SpawnedDocument": plain(info_document(_SPAWNED)) | {"turn": TURN},
    "MemberDocument": _MEMBER_DOCUMENT,
    "TeamDocument": {"items": [_MEMBER_DOCUMENT]},
    "FamilyDocument": {"items": [_INFO_DOCUMENT, plain(info_document(_SPAWNED))]},
    "RewindDocument": {"conversation": _INFO_DOCUMENT, "aside": None},
    "KeepDocument": {"conversation": _INFO_DOCUMENT, "aside": None},
    "DiffDocument": plain(diff_document(DIFF)),
    "BroughtDocument": plain(brought_document(BROUGHT)),
    "DeletedDocument": {
        "workspace": {
            "path": "/srv/forkpoint/workspaces/second-try",
            "removed": False,
            "why": "it has 1 change that no commit has: build.toml",
        }
    },
    "StatsDocument": plain(stats_document(Stats(_USAGE, Usage(), _USAGE, 3))),
    "SpendingDocument": plain(spending_document(_USAGE + _USAGE, _USAGE)),
    "SideAnswerDocument": plain(side_answer_document(SideAnswer("Yes.", _USAGE))),
    "StateDocument": {"state": {"open_tickets": 3}},
    "CondensedDocument": plain(condensed_document(Condensation("The build of 1234 failed: the disk was full.", 812))),
    "Anchor": plain(_ANCHOR),
    "VerifyAll": {"anchors": [plain(_ANCHOR)]},
    "ImportDocument": plain(import_document(ImportReport(new=(ID,), events=3, families=1, store="5709b62d"))),
    "VerificationDocument": plain(verification_document(Verification(1, 3, 0, (), records=2, chains=2))),
    "Hold": plain(_HOLD),
    "HoldsDocument": {"items": [plain(_HOLD)]},
    "HoldFamily": {"reason": _HOLD.reason},
    "SetBudget": {"dollars": 5.0, "scope": "family"},
    "BudgetsDocument": {"items": [plain(_BUDGET)]},
    "Receipt": plain(_RECEIPT),
    "ReceiptsDocument": {"items": [plain(_RECEIPT)]},
    "PageDocument_Receipt": {"items": [plain(_RECEIPT)], "next": None},
    "EraseConversation": {"turn": TURN, "reason": _RECEIPT.reason, "dry_run": True},
    "EraseMany": {"tags": {"customer": "4711"}, "reason": _RECEIPT.reason},
    "CreateConversation": {"id": "build-1234", "agent": "support", "tags": {"kind": "debug"}},
    "DescribeConversation": {"title": "The disk was full"},
    "ChangeAgent": {"agent": "support"},
    "RunTurn": {"message": "Why did build 1234 fail?"},
    "AskAside": {"message": "Was it the disk?"},
    "SteerTurn": {"message": "Leave the tests alone."},
    "SteerReceipt": plain(SteerReceipt("01a8f6e0-6c32-7e50-8b23-4dbf8a7c6e9d", TURN, ID, "running")),
    "PreviewRequest": {"message": "And now?"},
    "Approve": {
        "calls": [
            {"id": "call_7", "digest": "sha256:dddff1ee50086370636f03700fd00d26275aea73b93dec28bbe4701316a8d443"}
        ],
        "by": "ann",
        "always": "call",
    },
    "ApprovalsDocument": plain(ApprovalsDocument((_STANDING,))),
    "StandingApproval": plain(_STANDING),
    "Deny": {"by": "ann", "reason": "not on a Friday"},
    "RetryTurn": {},
    "Condense": {},
    "ResumeTurn": {"rerun": []},
    "Fork": {"title": "Try the other fix", "tags": {"kind": "debug"}},
    "Rewind": {"at": "1-2"},
    "Keep": {"branch": "second-try"},
    "Bring": {"branch": "other-fix", "what": "answer"},
    "Spawn": {"task": _MEMBER.task, "role": "reader", "nickname": "explorer"},
    "TellAgent": {"message": "And build 1235?"},
    "ChangeState": {"set": {"open_tickets": 4}, "remove": []},
    "Collect": {"dry_run": True},
    "Collected": plain(Collected(events=412, payload_bytes=1_904_332, segments=3, turns=96)),
    "Verify": {},
    "Nothing": {},
    "Health": {"status": "ok", "version": "1.0"},
    "Ready": {"status": "ready"},
    "ChatRequest": {
        "model": "support",
        "messages": [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "Why did build 1234 fail?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "read_log",
                    "description": "The log of a build.",
                    "parameters": {"type": "object", "properties": {"build": {"type": "integer"}}},
                },
            }
        ],
    },
    "ChatCompletion": msgspec.json.decode(
        completion(
            FinishedAnswer(
                id=f"chatcmpl-{TURN}",
                model="support",
                created=_TIME // 1_000_000,
                text="The disk was full.",
                usage=_USAGE,
            ),
            reasoning_field=True,
        )
    ),
    "ModelDocument": _MODEL_DOCUMENT,
    "ModelsDocument": {"object": "list", "data": [_MODEL_DOCUMENT, _MODEL_DOCUMENT | {"id": "support:side"}]},
    "Inspection": {
        "body": "{}",
        "headers": [],
        "key": "fp_0123456789abcdef",
        "prefix": "9f" * 32,
        "manifest": "3c" * 32,
        "blocks": 1,
        "bytes": 2,
        "shared": 0,
        "shared_bytes": 0,
        "why": "there is no request before it",
        "cached": None,
        "lines": [{"index": 0, "change": "added", "place": "history", "role": "user", "text": "{}"}],
        "tokens": 1,
        "tokens_estimated": True,
        "tokens_how": "estimated: 4 bytes a token, which is a rule of thumb",
        "price_warm": 0.00000125,
        "price_cold": 0.00000125,
    },
    "CacheReport": {
        "conversation": ID,
        "turn": TURN,
        "outcome": "committed",
        "calls": [
            {
                "call": 1,
                "model": "openai/gpt-5.6",
                "provider": "openai/responses",
                "time": _TIME,
                "input": 5120,
                "cached": 0,
                "written": 4992,
                "fresh": 128,
                "possible": 4864,
                "possible_estimated": False,
                "blocks": 14,
                "shared": 12,
                "key": "fp_0123456789abcdef",
                "error": None,
                "before": TURN,
                "reasons": [
                    {
                        "code": "fork_with_own_key",
                        "words": "a fork with a key of its own: its source's cache is found only by bytes",
                        "facts": {"key": "fp_0123456789abcdef", "before": "fp_fedcba9876543210", "source": ID},
                    }
                ],
                "unknown": [],
            }
        ],
    },
}

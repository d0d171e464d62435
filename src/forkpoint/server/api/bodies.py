"""What calls take: one frozen struct for each body. A field that no call knows is refused, not ignored.
Tests: tests/server/test_openapi.py."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Limits
from forkpoint.backend.messages import Given, ListFormat, as_message, as_result
from forkpoint.errors import Invalid, NothingToRun, TooLarge
from forkpoint.events import BroughtAs, Part, ToolResult, UserMessage
from forkpoint.history.anchors import Anchor
from forkpoint.history.budgets import Budget, BudgetScope
from forkpoint.llm.prompt.identity import CachePolicy
from forkpoint.server.api.bad_json import UNREADABLE, fault_of

B = TypeVar("B", bound=Struct)

Name: TypeAlias = Annotated[
    str,
    Meta(pattern="^[A-Za-z0-9._:-]{1,128}$", description="An id, or a name to know it by.", examples=["build-1234"]),
]
Message: TypeAlias = str | tuple[Part, ...]
Tags: TypeAlias = dict[str, str]
AgentGiven: TypeAlias = Annotated[
    str | dict[str, Any],
    Meta(
        description="The name of one of the server's agents, or an agent as data.",
        examples=["support", {"llm": {"model": "openai/gpt-5.6"}, "instructions": "You review changes."}],
    ),
]
SubAgentGiven: TypeAlias = Annotated[
    str | dict[str, Any],
    Meta(
        description="The name of an agent that the conversation's agent offers, or an agent as data.",
        examples=["explorer", {"llm": {"model": "openai/gpt-5.6"}, "instructions": "You read logs."}],
    ),
]
TrustGiven: TypeAlias = Annotated[
    bool,
    Meta(
        description="Whether the workspace's project is trusted, for everything that its server runs there. Refused "
        "unless the server leaves that to its clients. An explicit untrusted is never changed."
    ),
]
Point: TypeAlias = Annotated[str, Meta(description="A turn's id or an event's id.", examples=["1-4"])]


Allow: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(max_length=4096)], ...],
    Meta(
        description="What may be missing of all that the conversation was made with: `tools`, `output`, `approval`, "
        "`workspace`, `model`, or a single item. It goes on without, from this turn on.",
        examples=[["tools", "workspace"], ["tool:read_log"]],
        max_length=1000,
    ),
]
GoOnWith: TypeAlias = Annotated[
    str | dict[str, Any],
    Meta(
        description="An agent whose model is to go on, by its name or as data. One that is not the conversation's is "
        "refused, unless `allow` has `model`.",
        examples=["support", {"llm": {"model": "openai/gpt-5.6"}}],
    ),
]


class _Body(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all bodies have in common."""


Reason: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        description="Why; it is recorded for good.",
        examples=["a request under article 17, ticket 4711"],
    ),
]


BudgetGiven: TypeAlias = Annotated[
    Budget,
    Meta(
        description="What may be spent in all. At least one of its limits is given.",
        examples=[{"dollars": 5.0}, {"tokens": 1_000_000, "turns": 100}],
    ),
]
OwnBudget: TypeAlias = Annotated[
    Budget,
    Meta(
        description="A budget of its own: what it spends does not draw from the family's. Needs the role operate.",
        examples=[{"dollars": 1.0}],
    ),
]


class SetBudget(_Body, frozen=True):
    """What a conversation or its family may spend in all. At least one limit is given."""

    dollars: Annotated[float, Meta(ge=0)] | None = None
    tokens: Annotated[int, Meta(ge=0, description="Input and output.")] | None = None
    turns: Annotated[int, Meta(ge=0, description="Turns that have asked a model.")] | None = None
    seconds: Annotated[float, Meta(ge=0, description="During which turns run.")] | None = None
    scope: Annotated[BudgetScope, Meta(description="Whose budget it is.")] = "conversation"


class HoldFamily(_Body, frozen=True):
    """Keeps a conversation's family from deletion, erasure and retention."""

    reason: Reason
    id: Annotated[str, Meta(description="A fresh UUID, so that a repeat sets one hold.", max_length=36)] | None = None


class _Erase(_Body, frozen=True, kw_only=True):
    """What all erasures take."""

    reason: Reason
    everything: Annotated[bool, Meta(description="Everything that is there. It has to be said.")] = False
    dry_run: Annotated[bool, Meta(description="Change nothing, and say what would go.")] = False
    cancel: Annotated[bool, Meta(description="Cancel turns that run in what is touched.")] = False


class EraseConversation(_Erase, frozen=True, kw_only=True):
    """What to erase of a conversation: one of `turn`, `event` and `everything`."""

    turn: Annotated[str, Meta(description="A turn's id.", max_length=36)] | None = None
    event: Annotated[str, Meta(description="An event's id.", examples=["1-4"], max_length=32)] | None = None
    keep_summaries: Annotated[
        bool, Meta(description="Keep the summaries of condensations that cover what is erased.")
    ] = False


class EraseMany(_Erase, frozen=True, kw_only=True):
    """What to erase of a tenant: one of `tags`, which conversations must all have, and `everything`."""

    tags: Tags = {}


class CreateConversation(_Body, frozen=True):
    """A new conversation. Everything is optional."""

    id: Name | None = None
    name: Name | None = None
    chosen: Annotated[bool, Meta(description="False: whoever sends the id made it up, and another will do.")] = True
    agent: AgentGiven | None = None
    title: str | None = None
    tags: Tags = {}
    workspace: str | None = None
    trust: TrustGiven | None = None
    budget: BudgetGiven | None = None
    family_budget: BudgetGiven | None = None
    messages: Annotated[
        list[dict[str, Any]] | None, Meta(description="What was said elsewhere before it: its history, all of it.")
    ] = None
    format: Annotated[
        ListFormat | None, Meta(description="Whose form the messages have. Default: what stands in them tells it.")
    ] = None


class DescribeConversation(_Body, frozen=True):
    """Another title ("" removes it), other tags (all of them), or another name. What is not given stays."""

    title: str | None = None
    tags: Tags | None = None
    name: Name | None = None


class ChangeAgent(_Body, frozen=True):
    """Who answers from here on."""

    agent: AgentGiven


class FirstTurn(_Body, frozen=True):
    """How the conversation is to be made, if it is not there yet: the turn makes it."""

    name: Name | None = None
    agent: AgentGiven | None = None
    title: str | None = None
    tags: Tags = {}
    workspace: str | None = None
    trust: TrustGiven | None = None
    chosen: Annotated[bool, Meta(description="Refuse if it exists already.")] = False
    budget: BudgetGiven | None = None
    family_budget: BudgetGiven | None = None


class Say(_Body, frozen=True):
    """One message, or several that are one turn: each a text, or a list of parts."""

    message: Message | None = None
    messages: tuple[Message, ...] = ()


class ClientResult(_Body, frozen=True):
    """What a client's own tool came to: the result of a call that the last turn handed to the client."""

    call_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    result: Message = ()
    status: Literal["done", "failed"] = "done"


class TellAgent(Say, frozen=True):
    """What a sub-agent is told: a turn of it."""

    cancel_on_disconnect: bool = False


class AskAside(Say, frozen=True):
    """A side question."""

    allow: Allow = ()
    agent: GoOnWith | None = None


class SteerTurn(_Body, frozen=True):
    """A message for a turn that is open."""

    message: Message


class RunTurn(Say, frozen=True):
    """A turn to run."""

    allow: Allow = ()
    agent: GoOnWith | None = None
    results: tuple[ClientResult, ...] = ()
    supersede: bool = False
    retry_of: str | None = None
    cancel_on_disconnect: bool = False
    create: FirstTurn | None = None
    go_on: Annotated[
        bool,
        Meta(
            description="Run a turn without a message, where the conversation does not end in a finished answer. "
            "Neither messages nor results go with it."
        ),
    ] = False


class PreviewRequest(Say, frozen=True):
    """What a turn with these messages would send."""

    allow: Allow = ()
    agent: GoOnWith | None = None
    create: FirstTurn | None = None


CallDigest: TypeAlias = Annotated[
    str,
    Meta(
        description="The call's `digest`, as the turn's document shows it: it stands for the content that was seen.",
        pattern="^sha256:[0-9a-f]{64}$",
        examples=["sha256:dddff1ee50086370636f03700fd00d26275aea73b93dec28bbe4701316a8d443"],
    ),
]


AlwaysGiven: TypeAlias = Annotated[
    str,
    Meta(
        description="What is allowed without a question from now on, beside these calls: `call`, the same tool with "
        "exactly the same arguments; `tool`, every call of a tool that runs no commands; `prefix:` and words, shell "
        "commands that begin with these words.",
        examples=["call", "prefix:git status"],
        max_length=2000,
    ),
]


class ApprovedCall(_Body, frozen=True):
    """A call that may run, by the content that was seen."""

    id: Annotated[str, Meta(description="The call's `id`.")]
    digest: CallDigest
    arguments: (
        Annotated[
            dict[str, Any] | str,
            Meta(
                description="What the call is to run with instead of what the model wrote: an object, or its exact "
                "JSON text. The approval records it, and the result tells the model."
            ),
        ]
        | None
    ) = None


class Approve(_Body, frozen=True):
    """Which of the calls that wait may run, each with the digest of its content."""

    calls: Annotated[tuple[ApprovedCall, ...], Meta(min_length=1)]
    by: str | None = None
    always: AlwaysGiven | None = None
    cancel_on_disconnect: bool = False
    allow: Allow = ()
    agent: GoOnWith | None = None


class DeniedCall(_Body, frozen=True):
    """A call that is refused. A digest that is given must be that of what waits."""

    id: Annotated[str, Meta(description="The call's `id`.")]
    digest: CallDigest | None = None


class Deny(_Body, frozen=True):
    """Which of the calls that wait are refused, and why; by default all of them."""

    calls: tuple[DeniedCall, ...] = ()
    by: str | None = None
    reason: str | None = None
    cancel_on_disconnect: bool = False
    allow: Allow = ()
    agent: GoOnWith | None = None


class RetryTurn(_Body, frozen=True):
    """The same input again, from the last good state."""

    cancel_on_disconnect: bool = False
    allow: Allow = ()
    agent: GoOnWith | None = None


class Condense(_Body, frozen=True):
    """A conversation whose prompts are to forget their older part. ``focus``: what the summary should look at."""

    focus: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    allow: Allow = ()
    agent: GoOnWith | None = None


class ResumeTurn(_Body, frozen=True):
    """How to go on: calls to run again though they may have been started, and other limits."""

    rerun: tuple[str, ...] = ()
    limits: Limits | None = None
    cancel_on_disconnect: bool = False
    allow: Allow = ()
    agent: GoOnWith | None = None


class Bring(_Body, frozen=True):
    """What to bring, and from which branch: its id or name. ``summary`` asks the conversation's model."""

    branch: Annotated[str, Meta(min_length=1, max_length=256)]
    what: BroughtAs = "answer"
    allow: Allow = ()
    agent: GoOnWith | None = None


GoesOn: TypeAlias = AskAside | RunTurn | PreviewRequest | Approve | Deny | RetryTurn | ResumeTurn | Condense | Bring
"""What may say that a conversation goes on without something."""


class OtherResult(_Body, frozen=True):
    """A result that is to stand in the place of the one that a call had."""

    call_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    result: Message = ()
    status: Literal["done", "failed"] = "done"


class Fork(_Body, frozen=True):
    """How a fork is to differ from its source. Everything is optional."""

    id: Name | None = None
    name: Name | None = None
    chosen: Annotated[bool, Meta(description="False: whoever sends the id made it up, and another will do.")] = True
    at: Point | None = None
    before: Point | None = None
    title: str | None = None
    tags: Tags = {}
    reset_metrics: bool = True
    cache: CachePolicy = "own"
    agent: AgentGiven | None = None
    workspace: (
        Annotated[
            str,
            Meta(
                description="`share`: the source's folder. `worktree` or `copy`: one that is made from it, where the "
                "server allows that. Else a folder under one of the server's roots.",
                examples=["worktree"],
            ),
        ]
        | None
    ) = None
    results: Annotated[
        tuple[OtherResult, ...],
        Meta(
            description="Other results for calls of one model response. `at` is then the event of such a call, that of "
            "its result, or their turn. A turn with `go_on` goes on from there."
        ),
    ] = ()
    state: Annotated[dict[str, Any], Meta(description="Keys of the agent's state that the fork begins with.")] = {}
    budget: OwnBudget | None = None


class Spawn(_Body, frozen=True):
    """A sub-agent: its task, and who it is to be."""

    task: Annotated[str, Meta(description="What it is to do, with everything that it has to know.")]
    role: Annotated[str, Meta(description="One of the roles that the conversation's agent has.")] | None = None
    agent: SubAgentGiven | None = None
    model: Annotated[str, Meta(description="One of the models that the conversation's agent offers.")] | None = None
    nickname: Annotated[str, Meta(description="How it is called among its siblings.")] | None = None
    fork: Annotated[str | int, Meta(description="`none`: what has the history is made by a call in a turn.")] = "none"
    title: str | None = None
    tags: Tags = {}
    run: Annotated[bool, Meta(description="Begin its task at once. The turn goes on by itself.")] = True
    budget: OwnBudget | None = None


class Rewind(_Body, frozen=True):
    """Where to go back to: ``at`` is included, ``before`` is not."""

    at: Point | None = None
    before: Point | None = None


class Keep(_Body, frozen=True):
    """The branch of the family whose head the conversation is to have: its id or its name."""

    branch: Annotated[str, Meta(min_length=1, max_length=256)]


class ChangeState(_Body, frozen=True):
    """Keys to set, each to any JSON value, and keys to remove."""

    set: dict[str, Any] = {}
    remove: tuple[str, ...] = ()


class Verify(_Body, frozen=True):
    """A digest that was kept elsewhere: it must be on the path."""

    head_digest: Annotated[str, Meta(pattern="^([0-9a-f]{2})*$")] | None = None


class VerifyAll(Verify, frozen=True):
    """Anchors that were kept elsewhere: the seals that they name must be there."""

    anchors: Annotated[tuple[Anchor, ...], Meta(max_length=100_000)] = ()
    since: Annotated[Anchor | None, Meta(description="Look only at what was recorded after this anchor.")] = None


class Collect(_Body, frozen=True):
    """What to remove for good."""

    dry_run: bool = False  # only say what would be removed


class Nothing(_Body, frozen=True):
    """A call that takes nothing."""


def read_body(type: type[B], body: bytes) -> B:
    """The body of a request; an empty one says nothing. Raises `BadRequest` or `Invalid`, which repeat no value."""
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=type)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except UNREADABLE as error:
        raise fault_of(body, error) from None


def given_in(body: RunTurn, conversation: str, most: int) -> tuple[Given, ...]:
    """What a turn is given: results of the client's tools, and messages. Raises as `messages_of`."""
    if body.go_on:
        for name in ("message", "messages", "results", "supersede", "create"):
            if getattr(body, name):
                raise Invalid(name, "a turn with `go_on` takes none")
        return ()
    results = results_in(body.results, most)
    if results and body.message is None and not body.messages:
        return tuple(results)
    return (*results, *messages_of(body, conversation, most))


def results_in(given: Sequence[ClientResult | OtherResult], most: int) -> list[ToolResult]:
    """Results of calls. Raises `NotWhole`, `TooLarge`, and `Invalid` if a call has two."""
    if len(given) > most:
        raise TooLarge("turn", len(given), most, "results")
    if len({one.call_id for one in given}) < len(given):
        raise Invalid("results", "a call has two results")
    return [replace(as_result(one.call_id, one.result), status=one.status) for one in given]


def messages_of(body: Say, conversation: str, most: int) -> tuple[UserMessage, ...]:
    """The messages of a turn. Raises `NothingToRun`, `NotWhole` or `TooLarge`."""
    given = body.messages if body.message is None else (body.message, *body.messages)
    if body.message is not None and body.messages:
        raise Invalid("messages", "there is a `message` too, and one of them is enough")
    if not given:
        raise NothingToRun(conversation, ": in `message`")
    if len(given) > most:
        raise TooLarge("turn", len(given), most, "messages")
    return tuple(as_message(message) for message in given)


def _invalid(said: str) -> Invalid:
    """What msgspec says of a body, without what stood there: it names the place and the expected form."""
    why, _, place = said.partition(" - at ")
    if why.startswith(("Invalid value", "Invalid enum value")):
        why = "its value is not one of those that are possible"
    return Invalid(place.strip("`").removeprefix("$").removeprefix(".")[:200] or "body", why[:200])

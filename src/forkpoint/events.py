"""The vocabulary: what can happen in a conversation.

An event is an immutable fact. It has two halves. The **envelope** says what kind of thing it is, when it
happened, and how it hangs together with others (role, call id, tool name); it is never erased. The **body** is the
content; it is stored as the event's *payload* and can be erased without breaking the chain of digests. An
event's id is its **position**.

Everything here is frozen data with tuples inside, so it is hashable and can be shared by any number of
conversations, threads and caches. JSON that must come back byte for byte (provider items, tool arguments,
state values) is kept as text (`JsonText`): no parser between the model and the disk ever sorts a key or
prints a number its own way.

A kind that this version does not know loads as `Opaque` and is written back exactly as it was read.
"""

import base64
import operator
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from forkpoint.errors import BadArgument, BadFile, NotWhole
from forkpoint.system.media import PDF, PICTURE_LIMIT, check_size, media_type, read_start

JsonText: TypeAlias = str
"""JSON kept as the exact text it was, never parsed and printed again."""

Role: TypeAlias = Literal["user", "assistant", "system", "tool"]

BroughtAs: TypeAlias = Literal["answer", "summary", "turns"]
"""What of a branch was brought into another conversation."""


class Position(Struct, frozen=True, order=True, gc=False):
    """A place in history. Ordinals count along the path, so the ordinal alone is the depth."""

    segment: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.segment}-{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """The position that ``str(position)`` gave. Raises ``ValueError`` for anything else."""
        segment, dash, ordinal = text.partition("-")
        if not (dash and segment.isascii() and segment.isdigit() and ordinal.isascii() and ordinal.isdigit()):
            raise ValueError(f"{text!r} is not a position")
        position = cls(int(segment), int(ordinal))
        if str(position) != text:
            raise ValueError(f"{text!r} is not a position")
        return position


# Parts of a message or a tool's result.


class Text(Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    text: str


class Image(Struct, frozen=True, gc=False, tag_field="type", tag="image", omit_defaults=True):
    """A picture: base64 ``data``, or a ``url`` that the provider fetches."""

    media_type: str
    data: str | None = None
    url: str | None = None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, limit: int = PICTURE_LIMIT) -> "Image":
        """The picture in a file: PNG, JPEG, GIF or WebP. The content, not the file's name, says which.

        Raises `BadFile` if the file cannot be read or is no such picture, and `TooLarge` if it has more than ``limit``
        bytes.
        """
        content = read_start(path, limit)
        check_size(path, content, limit)
        try:
            return cls.from_bytes(content)
        except BadArgument as error:
            raise BadFile(os.fsdecode(path), error.why) from None

    @classmethod
    def from_bytes(cls, content: bytes) -> "Image":
        """The picture that these bytes are: PNG, JPEG, GIF or WebP. Raises `BadArgument` if they are none."""
        kind = media_type(content)
        if kind is None or kind == PDF:
            raise BadArgument("Image.from_bytes()", "these bytes", "it is no PNG, JPEG, GIF or WebP")
        return cls(kind, base64.b64encode(content).decode())

    @classmethod
    def from_url(cls, url: str) -> "Image":
        """The picture at an address that the provider fetches. Raises `BadArgument` if it is no http or https URL."""
        if not url.startswith(("https://", "http://")):
            raise BadArgument("Image.from_url()", repr(url), "it must begin with https:// or http://")
        return cls("image/*", url=url)


class File(Struct, frozen=True, gc=False, tag_field="type", tag="file", omit_defaults=True):
    """A document: base64 ``data``, or a ``url`` that the provider fetches."""

    name: str
    media_type: str
    data: str | None = None
    url: str | None = None


Part: TypeAlias = Text | Image | File


# Bodies, one class for each kind.


class Body(Struct, frozen=True, gc=False, tag_field="kind", omit_defaults=True):
    """What all kinds of content have in common: nothing but their tag, which is the event's kind."""

    role: ClassVar[Role | None] = None


class UserMessage(Body, frozen=True, tag="user_message"):
    role: ClassVar[Role | None] = "user"
    parts: tuple[Part, ...]


class AssistantMessage(Body, frozen=True, tag="assistant_message"):
    """What the model said. ``item`` is the provider's own item, if it must go back untouched."""

    role: ClassVar[Role | None] = "assistant"
    parts: tuple[Part, ...]
    provider: str | None = None
    item: JsonText | None = None


class SystemMessage(Body, frozen=True, tag="system_message"):
    role: ClassVar[Role | None] = "system"
    parts: tuple[Part, ...]


class Reasoning(Body, frozen=True, tag="reasoning"):
    """What the model thought. Signature and encrypted content are the provider's and go back verbatim."""

    role: ClassVar[Role | None] = "assistant"
    text: str | None = None
    signature: str | None = None
    encrypted: str | None = None
    provider: str | None = None
    item: JsonText | None = None


class ToolCall(Body, frozen=True, tag="tool_call"):
    """The model asks for a tool. ``arguments`` is the exact text it wrote, valid JSON or not."""

    role: ClassVar[Role | None] = "assistant"
    call_id: str
    tool: str
    arguments: str
    client: bool = False  # handed to the client's own tools; only such a call may be open at the head
    provider: str | None = None
    item: JsonText | None = None


class ToolResult(Body, frozen=True, tag="tool_result"):
    """What a call came to. Anything but ``done`` is shown to the model as an error.

    ``unknown``: it was started, and whether it finished is not known. ``denied``: approval was refused.
    ``not_run``: not in this branch. ``not_answered``: the client sent a new message instead of a result.
    """

    role: ClassVar[Role | None] = "tool"
    call_id: str
    tool: str
    parts: tuple[Part, ...] = ()
    status: Literal["done", "failed", "unknown", "denied", "not_run", "not_answered"] = "done"
    duration: float | None = None  # seconds

    @property
    def error(self) -> bool:
        """Whether the model is told that the call failed."""
        return self.status != "done"


class ResultSubstituted(Body, frozen=True, tag="result_substituted"):
    """The result that follows stands in the place of another one: a fork was made with it.

    ``origin`` is the result that the call had: its turn's id, "/", and its place there, from 0. ``digest`` is the
    chain digest of that result, in hexadecimal. The result that follows is no copy of it.
    """

    call_id: str
    tool: str
    origin: str
    digest: str


class StateChange(Body, frozen=True, tag="state_change"):
    """The agent's state: keys that were set, each to a JSON value, and keys that were removed.

    ``call_id`` is the call that made the change; None if no call did, or an earlier program wrote the event.
    """

    set: tuple[tuple[str, JsonText], ...] = ()
    removed: tuple[str, ...] = ()
    call_id: str | None = None


class SkillActivated(Body, frozen=True, tag="skill_activated"):
    name: str
    content: str
    source: str | None = None


class SettingsChanged(Body, frozen=True, tag="settings_changed"):
    settings: JsonText
    reason: str | None = None


class ManifestChanged(Body, frozen=True, tag="manifest_changed"):
    """What stands before the history in a prompt is another from here on."""

    hash: str
    manifest: JsonText
    reason: str | None = None


class Condensation(Body, frozen=True, tag="condensation"):
    """The path before ordinal ``kept_from`` is shown to models as ``summary``; the events stay readable."""

    summary: str
    kept_from: int


class HookRun(Body, frozen=True, tag="hook_run"):
    """A hook has run. ``context`` is what the model is told. One with a reason that has not ``blocked`` has failed."""

    hook: str
    moment: str  # before_tool, after_tool, user_message, turn_start, turn_end
    command: str | None = None
    exit_code: int | None = None
    output: str = ""
    blocked: bool = False
    reason: str | None = None
    call_id: str | None = None
    context: str | None = None


class ApprovalAsked(Body, frozen=True, tag="approval_asked"):
    call_id: str
    tool: str
    reason: str | None = None


class ApprovalGiven(Body, frozen=True, tag="approval_given"):
    """Somebody lets a call run. ``arguments`` are those that it runs with, if somebody changed them: the exact text.

    ``standing`` is the id of the standing approval that allowed the call, if nobody was asked; ``always`` the id of the
    standing approval that was given with it. ``allows`` says what that standing approval allows.
    """

    call_id: str
    tool: str
    by: str | None = None
    arguments: str | None = None
    standing: str | None = None
    always: str | None = None
    allows: str | None = None

    def as_approved(self, call: ToolCall) -> ToolCall:
        """The call as it runs: with the arguments that were approved."""
        return call if self.arguments is None else msgspec.structs.replace(call, arguments=self.arguments)


class ApprovalDenied(Body, frozen=True, tag="approval_denied"):
    call_id: str
    tool: str
    by: str | None = None
    reason: str | None = None


class SubAgentSpawned(Body, frozen=True, tag="sub_agent_spawned"):
    """A sub-agent was given a task, or another message: ``turn`` is its turn for that.

    ``call_id`` is the call that asked for it; None if nobody's call did. ``replaces`` is the sub-agent of another
    branch that this one was forked from, and stands for from here on.
    """

    call_id: str | None
    conversation: str
    task: str
    nickname: str | None = None
    agent_role: str | None = None
    path: str | None = None
    turn: str | None = None
    replaces: str | None = None


class SubAgentFinished(Body, frozen=True, tag="sub_agent_finished"):
    """How a sub-agent's turn ended, as its parent heard it. ``closed``: the parent is done with it.

    ``spent`` is what that turn used, for whoever reads; it counts where it was spent, in the sub-agent.
    """

    call_id: str | None
    conversation: str
    outcome: str
    turn: str | None = None
    spent: "Usage | None" = None


class ModelCalled(Body, frozen=True, tag="model_called"):
    """A model was asked, as the provider counted it: so that "why did this miss the cache?" has an answer.

    ``key`` is what was sent as the prompt-cache key, ``prefix`` the chained digest of all blocks of the prompt,
    ``manifest`` the hash of what stood before the history.
    """

    model: str
    provider: str
    usage: "Usage"
    finish: str | None = None  # stop, tool_calls, length, filter; None if the call failed
    error: str | None = None  # the code of the error it failed with
    key: str | None = None
    prefix: str | None = None
    manifest: str | None = None
    blocks: int = 0
    attempts: int = 1
    first_token: float | None = None  # seconds
    duration: float = 0.0  # seconds
    response_id: str | None = None  # the provider's name for the response


class TurnStopped(Body, frozen=True, tag="turn_stopped"):
    """The turn has reached a limit, and ends here without an answer, as its agent says. It is committed all the same.

    ``what`` and ``limit`` are those of `LimitReached`: "steps" and "100".
    """

    what: str
    limit: str


class Imported(Body, frozen=True, tag="imported"):
    """The events that follow in this commit came from elsewhere."""

    source: str
    count: int


class Brought(Body, frozen=True, tag="brought"):
    """The events that follow in this commit were brought from another conversation of the family.

    - ``what``: ``answer`` and ``summary`` are one message that was made of the origins; ``turns`` are copies of them.
    - ``origins``: events of the other conversation, each as its turn's id, "/", and its place there, from 0.
    - ``digests``: their chain digests, in hexadecimal, in the same order.
    - ``left_out``: how many exchanges were not brought: they were not whole, or stand here already.
    """

    conversation: str
    what: BroughtAs
    count: int  # how many events follow
    origins: tuple[str, ...]
    digests: tuple[str, ...]
    left_out: int = 0


class Erased(Body, frozen=True, tag="erased"):
    """The payloads of these events were erased, and why."""

    positions: tuple[str, ...]
    reason: str


class Opaque(Struct, frozen=True):
    """An event of a kind, or in a form, that only a newer version knows: kept exactly, never interpreted."""

    kind: str
    payload: JsonText


class Gone(Struct, frozen=True, omit_defaults=True):
    """The content was erased; the envelope and the digests remain.

    ``kept_from`` is that of a condensation: what it hid stays hidden, though its summary is gone.
    """

    kept_from: int | None = None


AnyBody: TypeAlias = (
    UserMessage
    | AssistantMessage
    | SystemMessage
    | Reasoning
    | ToolCall
    | ToolResult
    | ResultSubstituted
    | StateChange
    | SkillActivated
    | SettingsChanged
    | ManifestChanged
    | Condensation
    | HookRun
    | ApprovalAsked
    | ApprovalGiven
    | ApprovalDenied
    | SubAgentSpawned
    | SubAgentFinished
    | ModelCalled
    | TurnStopped
    | Imported
    | Brought
    | Erased
)
"""A body whose kind this version knows."""

Content: TypeAlias = AnyBody | Opaque | Gone


# Events.


class Envelope(Struct, frozen=True, gc=False, omit_defaults=True):
    """What stays known of an event even when its content is erased."""

    kind: str
    time: int  # microseconds since 1970, UTC
    role: Role | None = None
    call_id: str | None = None
    tool: str | None = None
    client: bool = False
    parts: tuple[str, ...] = ()  # the types of the parts, in order
    response: int | None = None  # which model response of its turn it belongs to; None if no model wrote it
    origin: str | None = None  # the event that this is a copy of: its turn's id, "/", and its place there, from 0
    kept_from: int | None = None  # of a condensation, as in its body
    steer: str | None = None  # of a user's message that came while its turn was open: the id of the steer


class NewEvent(Struct, frozen=True):
    """An event that somebody wants to commit. ``time`` is filled in by the store if it is None."""

    body: AnyBody | Opaque
    response: int | None = None
    origin: str | None = None
    time: int | None = None
    steer: str | None = None


class StagedEvent(Struct, frozen=True):
    """An event of a turn that is not committed: it has no position yet, and may never get one."""

    envelope: Envelope
    body: Content

    @property
    def kind(self) -> str:
        return self.envelope.kind

    @property
    def time(self) -> datetime:
        """When it happened, in UTC. ``envelope.time`` has the same in microseconds."""
        return _moment(self.envelope.time)

    @property
    def text(self) -> str:
        """The words of a message, of a call's result or of a thought; "" if the event has none."""
        return text_of(self.body)


class Event(Struct, frozen=True, gc=False):
    """A committed event. Its id is its position."""

    id: Position
    turn: str
    envelope: Envelope
    body: Content

    @property
    def kind(self) -> str:
        return self.envelope.kind

    @property
    def time(self) -> datetime:
        """When it happened, in UTC. ``envelope.time`` has the same in microseconds."""
        return _moment(self.envelope.time)

    @property
    def text(self) -> str:
        """The words of a message, of a call's result or of a thought; "" if the event has none."""
        return text_of(self.body)


class Usage(Struct, frozen=True, omit_defaults=True):
    """What models reported as used, and what it cost.

    A call whose price is not known counts in ``unpriced``; its cost is unknown, never zero.
    """

    calls: int = 0
    input: int = 0  # all prompt tokens, cached and written ones included
    cached: int = 0
    written: int = 0
    output: int = 0
    reasoning: int = 0
    nanodollars: int = 0
    unpriced: int = 0

    @property
    def dollars(self) -> float | None:
        """What was paid; None if the price of a call is not known, for that is not nothing."""
        return None if self.unpriced else self.nanodollars / 1e9

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.sub, astuple(self), astuple(other)))

    def __bool__(self) -> bool:
        return any(astuple(self))


def text_of(body: Content) -> str:
    """The words of a message, of a call's result or of a thought; "" if the event has none, or was erased.

    The parts of a model's message are pieces of one text. In all others each part begins on a line of its own.
    """
    match body:
        case AssistantMessage(parts=parts):
            return "".join(part.text for part in parts if isinstance(part, Text))
        case UserMessage(parts=parts) | SystemMessage(parts=parts) | ToolResult(parts=parts):
            return "\n".join(part.text for part in parts if isinstance(part, Text))
        case Reasoning(text=text):
            return text or ""
        case _:
            return ""


def _moment(time: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time)


# Between these and the bytes on disk.


def seal(new: NewEvent, now: int) -> Envelope:
    """The envelope of an event that is about to be stored."""
    body = new.body
    parts = getattr(body, "parts", ())
    return Envelope(
        kind=kind_of(body),
        time=now if new.time is None else new.time,
        role=getattr(body, "role", None),
        call_id=getattr(body, "call_id", None),
        tool=getattr(body, "tool", None),
        client=getattr(body, "client", False),
        parts=tuple(part_type(part) for part in parts),
        response=new.response,
        origin=new.origin,
        kept_from=getattr(body, "kept_from", None),
        steer=new.steer,
    )


def kind_of(body: AnyBody | Opaque) -> str:
    """The kind of an event with this body."""
    if isinstance(body, Opaque):
        return body.kind
    return str(body.__struct_config__.tag)


def part_type(part: Part) -> str:
    return str(part.__struct_config__.tag)


def encode_body(body: AnyBody | Opaque) -> JsonText:
    """The payload of a body. Raises `NotWhole` for text that is not valid Unicode."""
    if isinstance(body, Opaque):
        return body.payload
    try:
        return msgspec.json.encode(body).decode()
    except UnicodeEncodeError as error:
        raise NotWhole(kind_of(body), f"its text is not valid Unicode ({error.reason})") from None


def decode_body(payload: str | bytes | None) -> Content:
    """The body of a payload: `Gone` if it was erased, `Opaque` if only a newer version knows its form.

    Raises ``msgspec.DecodeError`` for a payload that is not JSON, which no version ever wrote.
    """
    if payload is None:
        return GONE
    try:
        payload = payload if isinstance(payload, str) else payload.decode()
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from None
    try:
        return _decode_known(payload)
    except msgspec.ValidationError:
        kind = _decode_tag(payload).kind
        return Opaque(kind, payload)


def body_of(envelope: Envelope, payload: str | bytes | None) -> Content:
    """The body of a stored event. What an erased event still says stands in its envelope."""
    if payload is None and envelope.kept_from is not None:
        return Gone(envelope.kept_from)
    return decode_body(payload)


def encode_envelope(envelope: Envelope) -> JsonText:
    """Raises `NotWhole` for text that is not valid Unicode."""
    try:
        return msgspec.json.encode(envelope).decode()
    except UnicodeEncodeError as error:
        raise NotWhole("envelope", f"its text is not valid Unicode ({error.reason})") from None


class _Tag(Struct, frozen=True):
    kind: str = ""


GONE = Gone()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_decode_known: Callable[[str | bytes], AnyBody] = msgspec.json.Decoder(AnyBody).decode
_decode_tag = msgspec.json.Decoder(_Tag).decode
decode_envelope = msgspec.json.Decoder(Envelope).decode

"""How a server behaves: one typed object, with a default for everything."""

import re
import typing
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from forkpoint.errors import BadArgument

MB = 1024 * 1024

History: TypeAlias = Literal["latest", "full"]
"""How a client's list of messages is read: only its newest message counts, or the whole list does."""

SideClient: TypeAlias = Literal["librechat", "open-webui", "opencode"]
"""A client whose requests beside a conversation are known by their form: server/wires/chat/side_rules.toml."""

Orphans: TypeAlias = Literal["all", "async", "none"]
"""Which turns of processes that are gone a server goes on with: all, those that it promised to go on, or none."""

_YEAR = 365 * 86_400
_Count: TypeAlias = Annotated[int, Meta(ge=1)]
_Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=_YEAR)]  # neither infinity nor a NaN is within the bounds
_Kept: TypeAlias = Annotated[float, Meta(ge=0, le=100 * _YEAR)]
_Pause: TypeAlias = Annotated[float, Meta(ge=0.001, le=_YEAR)]
_Lease: TypeAlias = Annotated[float, Meta(ge=1, le=86_400)]
_Text: TypeAlias = Annotated[str, Meta(min_length=1)]

_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$%&'*+.^_`|~-]{0,127}")  # as HTTP allows; not "*", which means all
_TAKEN = re.compile(
    r"(accept|access-control|content|if|proxy|sec|x-forwarded|x-stainless)-.+"
    r"|x-(accel-buffering|api-key|conversation-(branch|create|history|side|status)|fork-from|ignored-fields|request-id"
    r"|should-retry|turn-id)"
    r"|accept|age|allow|authorization|baggage|cache-control|connection|cookie2?|date|etag|expect|expires|forwarded|from"
    r"|host|idempotency-key|keep-alive|last-event-id|last-modified|link|location|max-forwards"
    r"|openai-(organization|project)|origin|pragma|prefer|preference-applied|range|referer|retry-after|server"
    r"|set-cookie2?|te|trailer|transfer-encoding|traceparent|tracestate|upgrade|user-agent|vary|via|warning"
    r"|www-authenticate",
    re.IGNORECASE,
)


class ConversationHeader(Struct, frozen=True):
    """A header that names the conversation of a chat completion, and how the lists of clients that send it are read.

    The answer has the conversation's name under the same header, so the header must mean nothing else there either.
    """

    name: str
    history: History | None = None  # None: as the caller's key says, or else latest

    def __post_init__(self) -> None:
        why = None
        if not _HEADER.fullmatch(self.name):
            why = "it is not the name of an HTTP header, such as X-Chat-Id"
        elif _TAKEN.fullmatch(self.name):
            why = "this header has another meaning already"
        if why is not None:
            raise BadArgument("ConversationHeader()", repr(self.name[:200]), why)

    @classmethod
    def from_text(cls, text: str) -> "ConversationHeader":
        """The header that ``NAME``, ``NAME=full`` or ``NAME=latest`` means. Raises `BadArgument`."""
        name, equals, history = text.partition("=")
        known: dict[str, History | None] = {"": None, "=full": "full", "=latest": "latest"}
        if equals + history not in known:
            why = "it is not of the form NAME, NAME=full or NAME=latest"
            raise BadArgument("ConversationHeader.from_text()", repr(text[:200]), why)
        return cls(name, known[equals + history])


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Limits and habits of a server. Times are in seconds, sizes in bytes. Raises `BadArgument` for a wrong value.

    Each of them is a field of ``[server]`` in the server's file: docs/operations.md.
    """

    max_body: Annotated[int, Meta(ge=1024)] = 32 * MB  # of a request
    max_import: Annotated[int, Meta(ge=1024)] = 1024 * MB  # of an export that is imported
    max_messages: _Count = 100  # of one turn
    max_turns: _Count = 1000  # that run at once
    max_turns_per_tenant: _Count | None = None  # None: a quarter of max_turns if there are keys
    max_streams: _Count = 20_000  # that are open at once
    max_streams_per_tenant: _Count | None = None  # None: a quarter of max_streams if there are keys
    max_waiting: _Count = 1000  # operations, of reads and of writes, that wait for the store at once
    grace: _Seconds = 30.0  # how long turns may go on after a signal to stop
    heartbeat: _Pause = 15.0  # after which the server writes a comment into a silent stream
    buffer: _Count = 1024  # frames that a slow reader may lag behind before it gets a gap
    poll: _Pause = 0.5  # how often the server looks for other processes' commits while somebody watches
    cors_origins: tuple[str, ...] = ()  # origins whose web pages may call; "*" is all of them
    hosts: tuple[str, ...] = ()  # names that clients may call the server by, besides loopback, while it has no keys
    metrics: Literal["loopback", "public", "off"] = "loopback"  # who may read /metrics
    request_timeout: _Pause | None = None  # after which every turn has failed, whatever limits its agent has
    allow_trust: bool = False  # whether clients may decide that a workspace's project is trusted, or untrusted
    trust: tuple[str, ...] = ()  # folders whose projects are trusted here
    collect_every: _Pause = 300.0  # how often the server removes what was deleted; soon after a deletion it also does
    lease: _Lease = 60.0  # how long the server keeps its turns without a sign of life; then others may take them over
    resume_orphans: Orphans = "async"  # which turns of servers that are gone this one goes on with by itself
    resume_orphans_every: _Pause = 10.0  # how often the server looks for them
    keep_drafts: _Kept = 86_400.0  # how long a conversation without a committed turn is kept
    keep_keys: _Kept = 7 * 86_400.0  # how long an idempotency key is known
    keep_tries: _Kept = 30 * 86_400.0  # how long the content of a failed or cancelled try is kept
    keep_responses: _Kept = 30 * 86_400.0  # how long a response is kept whose conversation nobody named or used

    # Anchors of the whole store, for witnesses.
    anchor_log: _Text | None = None  # the file that gets a line for each anchor
    anchor_command: _Text | None = None  # the shell command that gets each anchor on its standard input
    anchor_interval: _Pause = 3600.0  # how often there is an anchor, if anything is new

    # Chat completions.
    conversation_headers: tuple[ConversationHeader, ...] = (ConversationHeader("X-Conversation-Id"),)
    side_rules: tuple[SideClient, ...] = ("librechat", "open-webui", "opencode")  # whose requests for titles are known
    conversations_max: _Count = 10_000  # that are kept in memory
    conversation_ttl: _Seconds = 1800.0  # how long a conversation that nobody uses is kept there
    on_disconnect: Literal["cancel", "finish"] = "cancel"  # what becomes of a turn whose client goes
    system: Literal["first", "follow"] = "first"  # which system messages hold if only the newest message counts
    strict: bool = False  # whether the server refuses fields that it does not know
    reasoning: Literal["reasoning_content", "off"] = "reasoning_content"  # how thoughts are shown

    def __post_init__(self) -> None:
        for name, kind in SETTINGS.items():
            try:
                msgspec.convert(getattr(self, name), kind)
            except msgspec.ValidationError as error:
                raise BadArgument("ServerSettings()", f"{name}={getattr(self, name)}", str(error)) from None
        names = [header.name.lower() for header in self.conversation_headers]
        for name in names:
            if names.count(name) > 1:
                raise BadArgument("ServerSettings()", f"the conversation header {name}", "it is there twice")


SETTINGS: dict[str, Any] = typing.get_type_hints(ServerSettings, include_extras=True)
"""The settings of a server by name, and what each must be."""

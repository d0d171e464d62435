"""How a server behaves: one typed object, with a default for everything."""

import math
import re
from typing import Literal, TypeAlias

from msgspec import Struct

from forkpoint.errors import BadArgument

MB = 1024 * 1024

History: TypeAlias = Literal["latest", "full"]
"""What a client's list of messages says: only its newest message is news, or all of it is the client's truth."""

_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$%&'*+.^_`|~-]{0,127}")  # what HTTP allows; none is "*", which means all
_TAKEN = re.compile(
    r"(accept|access-control|content|if|proxy|sec|x-forwarded|x-stainless)-.+"
    r"|x-(accel-buffering|api-key|conversation-(create|history|status)|fork-from|ignored-fields|request-id"
    r"|should-retry|turn-id)"
    r"|accept|age|allow|authorization|baggage|cache-control|connection|cookie2?|date|etag|expect|expires|forwarded|from"
    r"|host|idempotency-key|keep-alive|last-event-id|last-modified|link|location|max-forwards"
    r"|openai-(organization|project)|origin|pragma|prefer|preference-applied|range|referer|retry-after|server"
    r"|set-cookie2?|te|trailer|transfer-encoding|traceparent|tracestate|upgrade|user-agent|vary|via|warning"
    r"|www-authenticate",
    re.IGNORECASE,
)


class ConversationHeader(Struct, frozen=True):
    """A header that names the conversation of a chat completion, and what the lists of those who send it say.

    The answer says the name under the same header, so it must have no meaning of its own there either.
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


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Limits and habits of a server. Times are in seconds, sizes in bytes."""

    max_body: int = 32 * MB  # of a request
    max_messages: int = 100  # of one turn
    max_turns: int = 1000  # that run at once
    max_turns_per_tenant: int | None = None
    max_streams: int = 20_000  # that are open at once
    max_streams_per_tenant: int | None = None
    grace: float = 30.0  # how long turns may go on when the server is told to stop
    heartbeat: float = 15.0  # after which a silent stream says that it is alive
    buffer: int = 1024  # frames that a slow reader may lag behind before it is told of a gap
    poll: float = 0.5  # how often other processes' commits are looked for while somebody watches
    cors: tuple[str, ...] = ()  # origins that web pages may call from; "*" is all of them
    hosts: tuple[str, ...] = ()  # names that it may be called by, besides loopback, while it has no keys
    metrics: str = "loopback"  # who may read /metrics: loopback, public or off
    request_timeout: float | None = None  # after which every turn has failed, whatever its agent says
    allow_trust: bool = False  # whether clients may say that a workspace's project is trusted, or untrusted
    trust: tuple[str, ...] = ()  # folders whose projects are trusted here

    # Chat completions.
    conversation_headers: tuple[ConversationHeader, ...] = (ConversationHeader("X-Conversation-Id"),)
    conversations_max: int = 10_000  # that are kept in memory
    conversation_ttl: float = 1800.0  # how long one that nobody uses is kept there
    on_disconnect: Literal["cancel", "finish"] = "cancel"  # what becomes of a turn whose client goes
    system: Literal["first", "follow"] = "first"  # whose system messages hold where only the newest message counts
    strict: bool = False  # whether fields that nobody knows are refused
    reasoning: Literal["reasoning_content", "off"] = "reasoning_content"  # how thoughts are shown

    def __post_init__(self) -> None:
        for name, least in (("request_timeout", 0.001), ("conversations_max", 1), ("conversation_ttl", 0)):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise BadArgument("ServerSettings()", f"{name}={value}", f"it must be a number from {least} on")
        names = [header.name.lower() for header in self.conversation_headers]
        for name in names:
            if names.count(name) > 1:
                raise BadArgument("ServerSettings()", f"the conversation header {name}", "it is there twice")

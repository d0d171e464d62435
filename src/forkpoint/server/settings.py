"""How a server behaves: one typed object, with a default for everything."""

from msgspec import Struct

MB = 1024 * 1024


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

"""Headers that a request may have only once.

Of a header that comes twice each program on the way may read another value: a proxy the last one, this server the first
one. So the server refuses the request if the header means something here. Headers that are lists (Accept, Forwarded,
Via) may come in several lines. Tests: tests/server/test_headers.py.
"""

from collections.abc import Iterable

from forkpoint.errors import BadRequest

SINGLE = {
    name.lower().encode(): name
    for name in (
        *("Authorization", "Host", "Origin"),
        *("Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding"),
        *("Idempotency-Key", "If-Match", "Last-Event-ID", "Prefer"),
        *("X-Fork-From", "X-OpenWebUI-Task", "X-Stainless-Retry-Count"),
    )
}
"""Headers that the server reads, and of which it takes one value."""

_OURS = b"x-conversation-"  # all headers that begin like this are about one conversation


class SingleHeaders:
    """The headers that a server takes once: its own, and those that name a conversation for its clients."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._names = SINGLE | {name.lower().encode(): name for name in named}

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `BadRequest`, which names the header, if one of them comes twice. Names must be in lower case."""
        seen: set[bytes] = set()
        for name, _ in headers:
            if name in seen and (name in self._names or name.startswith(_OURS)):
                shown = self._names.get(name) or name.decode("latin-1").title()
                raise BadRequest(
                    f"it has the header {shown} more than once, and only one value can count; send it once"
                )
            seen.add(name)

"""What all responses of a server share: the marks on conversations, and the streams that can be taken up again.

A conversation that this API made by itself has a tag that says so. Whoever names it, gives it a title, takes the tag
away, uses it by `conversation`, or runs a turn of another API in it makes it a conversation of their own: responses are
forked from it from then on, and it does not go by retention.
Tests: tests/server/responses/test_places.py, test_background.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol, TypeAlias

from forkpoint.backend.messages import echo_of
from forkpoint.engine import Engine, info_of
from forkpoint.errors import Invalid, Stale, TooLarge, TooMany
from forkpoint.lru import Lru
from forkpoint.server.live.feed import Feed
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.responses.stream import ResponseStream, is_open
from forkpoint.store import StoredConversation, StoredTurn

MADE_BY = "responses"
"""The tag of conversations that this API made by itself."""

UNNAMED = "unnamed"
"""Its value."""

_HIDDEN = "responses.deleted"  # the tags with the turns whose responses were deleted: this one, and with a number
_EACH = 24  # turns in one tag
_MOST = 20  # such tags
STREAMS = 256
"""How many streams of background responses are kept for clients that come back."""

STREAMED = 64 * 1024 * 1024
"""So many bytes they may take together. A stream whose response still runs is kept all the same."""

REFUSED = 4096
"""How many refused requests are remembered, so that no retry takes an equal request's turn for its own."""

Running: TypeAlias = tuple[ResponseStream, Feed]


class OpenSocket(Protocol):
    """A WebSocket on which responses are asked for."""

    tenant: str

    def stop(self) -> None:
        """Lets what runs there end, and closes it."""
        ...


class ResponsesService:
    """The marks on conversations, and the streams of background responses."""

    def __init__(self, streamed: int = STREAMED) -> None:
        self._streamed = streamed
        self.streams: Lru[tuple[str, str], Running] = Lru(STREAMS)  # by tenant and turn
        # By tenant, place and digest: requests that did not begin, and that their clients will send again.
        self.refused: Lru[tuple[str, str, str], bool] = Lru(REFUSED)
        self._sockets: dict[OpenSocket, str] = {}  # with their tenants

    def keep(self, tenant: str, turn: str, running: Running) -> None:
        """Keeps the stream of a background response that has begun. Streams that have ended make room for it."""
        self.streams.put((tenant, turn), running)
        size = sum(stream.events.size for _, (stream, _) in self.streams.items())
        for place, (stream, feed) in self.streams.items():
            if size <= self._streamed:
                return
            if feed.ended.is_set():
                self.streams.pop(place)
                size -= stream.events.size

    def stream(self, tenant: str, turn: str) -> Running | None:
        """The stream that tells a background response here to its end, or None."""
        running = self.streams.get((tenant, turn))
        return None if running is None or is_open(running[1]) else running

    @contextmanager
    def opened(self, socket: "OpenSocket", settings: ServerSettings) -> Iterator[None]:
        """Within the block a WebSocket is open. Raises `TooMany`: the limits of streams hold for these too."""
        most, each = settings.max_streams, settings.max_streams_per_tenant
        if len(self._sockets) >= most:
            raise TooMany("connections", most, retry_after=10)
        if each is not None and list(self._sockets.values()).count(socket.tenant) >= each:
            raise TooMany("connections of yours", each, retry_after=10)
        self._sockets[socket] = socket.tenant
        try:
            yield
        finally:
            del self._sockets[socket]

    def stop(self) -> None:
        """Closes all WebSockets, each after the response that runs there."""
        for socket in self._sockets:
            socket.stop()

    def is_hidden(self, record: StoredConversation, turn: str) -> bool:
        """Whether the response of a turn was deleted, though its turn is still part of a history."""
        return any(_plain(turn) in value.split() for name, value in record.tags if name.startswith(_HIDDEN))

    async def adopt(self, backend: Engine, record: StoredConversation) -> None:
        """Takes the mark away, if there is one: somebody uses the conversation by its id now."""
        while is_unnamed(record):
            tags = {name: value for name, value in record.tags if name != MADE_BY}
            with suppress(Stale):
                await backend.describe(record.id, tags=tags, if_info=info_of(record))
                return
            record = await backend.placement.by_name(record.id) or record

    async def hide(self, backend: Engine, record: StoredConversation, turn: str) -> None:
        """Marks the response of a turn as deleted. Raises `Stale`, and `TooLarge` if a conversation has too many."""
        if self.is_hidden(record, turn):
            return
        tags = dict(record.tags)
        for number in range(_MOST):
            name = _HIDDEN if not number else f"{_HIDDEN}.{number}"
            turns = tags.get(name, "").split()
            if len(turns) < _EACH:
                tags[name] = " ".join((*turns, _plain(turn)))
                await backend.describe(record.id, tags=tags, if_info=info_of(record))
                return
        raise TooLarge("list of deleted responses", _EACH * _MOST + 1, _EACH * _MOST, "responses")


def is_unnamed(record: StoredConversation) -> bool:
    """Whether this API made a conversation by itself, and nobody has made it their own since."""
    is_marked = dict(record.tags).get(MADE_BY) == UNNAMED
    return is_marked and record.name == record.id and record.title is None and not record.draft


def is_its_end(record: StoredConversation, turn: StoredTurn) -> bool:
    """Whether a turn is the head of a conversation that is nobody's own, and a response: turns of other APIs keep
    nothing that answers repeat of a request."""
    return is_unnamed(record) and record.head.turn == turn.id and echo_of(turn.input) is not None


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises `Invalid` if a client's metadata has a tag that this API sets itself."""
    if (taken := next((name for name in metadata if _is_mark(name)), None)) is not None:
        raise Invalid("metadata", f"the key {taken} is the server's own; choose another")


def metadata_of(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of a conversation without those that this API sets itself."""
    return {name: value for name, value in tags.items() if not _is_mark(name)}


def with_metadata(record: StoredConversation, metadata: Mapping[str, str]) -> dict[str, str]:
    """All tags of a conversation whose metadata is to be this."""
    own = {name: value for name, value in record.tags if name not in metadata_of(dict(record.tags))}
    return own | dict(metadata)


def _is_mark(tag: str) -> bool:
    return tag == MADE_BY or tag.startswith(_HIDDEN)


def _plain(turn: str) -> str:
    return turn.replace("-", "")

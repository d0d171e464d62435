"""Readers of event streams: over real sockets, frame by frame, as slowly or as carelessly as a test wants."""

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from forkpoint.sse import FrameReader

PATIENCE = 20
"""Seconds until a test that hangs is a failed one; none waits for it."""


class Told(Struct, frozen=True):
    """A frame of a stream, with its data decoded."""

    event: str
    data: Any
    id: str | None


class Reader:
    """One reader of one stream."""

    def __init__(
        self, url: str, path: str, *, last: str | None = None, key: str | None = None, small: bool = False, **query: str
    ) -> None:
        address = urlsplit(url)
        self._http = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        if small:
            self._http._create_connection = _with_little_room  # type: ignore[attr-defined]
        self._http.connect()
        self.socket = self._http.sock
        headers = {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._http.request("GET", f"{path}?{urlencode(query)}" if query else path, headers=headers)
        self.answer = self._http.getresponse()
        self.status = self.answer.status
        self.raw = b""  # all that came
        self._heard = time.monotonic()  # when there was a frame
        self._reader = FrameReader()
        self.waiting: list[Told] = []  # frames that came and were not taken

    @classmethod
    def of(cls, url: str, conversation: str, **options: Any) -> Self:
        """A reader of a conversation's stream of events."""
        return cls(url, f"/api/conversations/{conversation}/events/stream", **options)

    def next(self) -> Told | None:
        """The next frame; None at the end of the stream."""
        while not self.waiting:
            if not self.more():
                return None
        return self.waiting.pop(0)

    def soon(self) -> Told | None:
        """The next frame; None if there is none before the next heartbeat."""
        beats = self.raw.count(b": heartbeat")
        while not self.waiting and self.raw.count(b": heartbeat") == beats:
            assert self.more(), "the stream ended"
        return self.waiting.pop(0) if self.waiting else None

    def more(self) -> bool:
        """Waits for more bytes. False at the end of the stream."""
        some = self.answer.read1(65536)
        self.raw += some
        assert time.monotonic() < self._heard + PATIENCE, "there is nothing but heartbeats"
        for frame in self._reader.feed(some):
            self._heard = time.monotonic()
            self.waiting.append(Told(frame.event, json.loads(frame.data), frame.id))
        return bool(some)

    def until(self, wanted: str | Callable[[Told], bool]) -> list[Told]:
        """All frames up to the first that is wanted, which is the last of them."""
        frames: list[Told] = []
        while (frame := self.next()) is not None:
            frames.append(frame)
            if frame.event == wanted if isinstance(wanted, str) else wanted(frame):
                return frames
        raise AssertionError(f"the stream ended before {wanted} came: {frames}")

    def rest(self) -> list[Told]:
        """All frames to the end of the stream."""
        frames = []
        while (frame := self.next()) is not None:
            frames.append(frame)
        return frames

    def close(self) -> None:
        self.answer.close()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _with_little_room(address: tuple[str, int], *_: object) -> socket.socket:
    """A connection whose system buffers little of what is not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    connection.connect(address)
    return connection


class Copy:
    """What a client has of a conversation that does no more than apply events and `rewound`."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.cursor: str | None = None
        self.rewinds: list[str] = []

    def apply(self, told: Told) -> None:
        if told.event == "event":
            ordinal = int(told.data["id"].partition("-")[2])
            assert ordinal == len(self.events) + 1, f"{told.data['id']} comes after {self.ids[-3:]}"
            assert told.id == told.data["id"]
            self.events.append(told.data)
        elif told.event == "rewound":
            assert told.id is not None
            keep = 0 if told.id == "0" else int(told.id.partition("-")[2])
            assert told.data == {"at": None if told.id == "0" else told.id}
            assert keep < len(self.events), "a rewind that takes nothing back is none"
            assert told.id == "0" or self.ids[keep - 1] == told.id, "it names a position that the reader has"
            del self.events[keep:]
            self.rewinds.append(told.id)
        else:
            assert told.id is None, f"{told.event} is no place to go on from"
        self.cursor = told.id or self.cursor

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.events]

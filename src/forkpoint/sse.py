"""Server-sent events, read: bytes as they come in, frames as they are complete.

Bytes may be cut anywhere. A frame that is not complete when the stream ends is no frame. Comments, which servers send
so that a connection is not taken for dead, are no frames either.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from msgspec import Struct

_MARK = b"\xef\xbb\xbf"  # that some put before UTF-8


class Frame(Struct, frozen=True):
    """One event of a stream."""

    event: str = "message"
    data: str = ""
    id: str | None = None  # the place in the stream, for one who comes back; None if this frame has none


class FrameReader:
    """Makes frames of bytes. ``last_id`` is what to send as ``Last-Event-ID`` after a lost connection."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self._begun = False
        self._cut: list[bytes] = []  # of a line that is not complete
        self._half = False  # whether the last byte was the first half of a line's end, maybe
        self._event = ""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, some: bytes) -> Iterator[Frame]:
        """The frames that these bytes complete."""
        if not some:
            return
        if not self._begun:
            some, self._begun = some.removeprefix(_MARK), True
        if self._half:
            some, self._half = some.removeprefix(b"\n"), False
        for line in some.splitlines(keepends=True):
            if not line.endswith((b"\n", b"\r")):
                self._cut.append(line)
                break
            whole = b"".join((*self._cut, line)).rstrip(b"\r\n")
            self._cut.clear()
            if (frame := self._line(whole.decode(errors="replace"))) is not None:
                yield frame
        self._half = some.endswith(b"\r")

    def _line(self, line: str) -> Frame | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = self.last_id = value
            case _:
                pass  # a comment, or a field that means nothing here
        return None

    def _complete(self) -> Frame | None:
        frame = Frame(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        self._event, self._id = "", None
        self._data.clear()
        return frame


async def frames(chunks: AsyncGenerator[bytes, None], reader: FrameReader | None = None) -> AsyncGenerator[Frame, None]:
    """The frames of a stream, each as soon as it is complete. Closing this closes the stream."""
    reader = reader or FrameReader()
    async with aclosing(chunks):
        async for chunk in chunks:
            for frame in reader.feed(chunk):
                yield frame

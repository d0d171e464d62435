"""`LiveText`: a text that arrives in pieces, shown live. Tests: tests/conversation/test_markdown.py."""

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from forkpoint.conversation.terminal.live_region import LiveRegion
from forkpoint.conversation.terminal.markdown import closed_until, markdown_rows, newest_lines, wrapped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_SHARE = 5  # of the time, a fifth at most is for drawing
_LATEST = 0.2  # seconds after which a piece is shown at the latest


class TextFormat(Protocol):
    """How a text is shown, and which part of it is as it will stay."""

    def closed_until(self, text: str, /) -> int:
        """How many of its first characters can be written for good."""

    def rows(self, text: str, width: int, console: "Console", /) -> "list[Text]":
        """The rows in which it is shown."""

    def newest(self, text: str, most: int, /) -> str:
        """A text of which at least so many of its last rows are shown as those of this one."""


class MarkdownFormat(Struct, frozen=True):
    """An answer."""

    def closed_until(self, text: str, /) -> int:
        return closed_until(text)

    def rows(self, text: str, width: int, console: "Console", /) -> "list[Text]":
        return markdown_rows(text, width, console)

    def newest(self, text: str, most: int, /) -> str:
        return newest_lines(text, most)


class ThoughtFormat(Struct, frozen=True):
    """What a model thinks: words, one paragraph after another."""

    style: str = "dim italic"

    def closed_until(self, text: str, /) -> int:
        return text.rfind("\n\n") + 1

    def rows(self, text: str, width: int, console: "Console", /) -> "list[Text]":
        from rich.text import Text

        lines = text.strip("\n").split("\n") if text.strip() else []
        return [row for line in lines for row in wrapped(Text(line, self.style), width)]

    def newest(self, text: str, most: int, /) -> str:
        return text


class LiveText:
    """Writes what is closed for good, and shows the rest live. ``lock`` is held by whoever calls it."""

    def __init__(self, region: LiveRegion, console: "Console", format: TextFormat, lock: threading.RLock) -> None:
        self._region = region
        self._console = console
        self._format = format
        self._lock = lock
        self._open = ""
        self._begun = False  # whether a block was written for good
        self._next = 0.0  # when it may be drawn again
        self._timer: threading.Timer | None = None

    def feed(self, text: str) -> None:
        """Takes a piece."""
        self._open += text
        if "\n" in text and (closed := self._format.closed_until(self._open)):
            self._settle(self._open[:closed])
            self._open = self._open[closed:]
            self._next = 0.0
        if (wait := self._next - time.monotonic()) <= 0:
            self._draw()
        elif self._timer is None:  # if no further piece comes, it is shown nevertheless
            self._timer = threading.Timer(wait, self._draw_late)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Writes all of it for good."""
        self._settle(self._open)
        self._open = ""

    def _settle(self, text: str) -> None:
        rows = self._rows(text)
        self._begun = self._begun or bool(rows)
        self._region.settle(rows)

    def _draw(self) -> None:
        began = time.monotonic()
        self._region.show(self._rows(self._format.newest(self._open, self._region.height)))
        now = time.monotonic()
        self._next = now + min(_SHARE * (now - began), _LATEST)

    def _draw_late(self) -> None:
        with self._lock, suppress(BrokenPipeError):  # whoever shows the next piece meets it too
            self._timer = None
            if self._open:
                self._draw()

    def _rows(self, text: str) -> "list[Text]":
        from rich.text import Text

        rows = self._format.rows(text, self._region.room, self._console) if text.strip() else []
        return [Text(), *rows] if rows and self._begun else rows

"""`LiveRegion`: the last rows of a terminal, which are written anew in place.
Tests: tests/conversation/test_live_region.py."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forkpoint.conversation.screen_text import screen_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class LiveRegion:
    """Rows at the bottom of a console that may still change, and below them perhaps a footer.

    Rows that `settle` writes stay for good. All else is only ever as high as the screen: what has left the screen at
    its top cannot be written again, and would stand there twice. The cursor stands at the end of the last row.
    """

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._open: Sequence[Text] = ()  # what is to be shown
        self._footer: Sequence[Text] = ()
        self._drawn: list[tuple[str, str]] = []  # what is shown: each row as it was written, and its text
        self._width = 0  # of the screen on which it is shown

    @property
    def room(self) -> int:
        """Columns for what is shown."""
        return min(self._console.width, self._size()[0])

    @property
    def height(self) -> int:
        """Rows of the screen."""
        return self._size()[1]

    def show(self, rows: "Sequence[Text]") -> None:
        """Shows these rows in the place of those before."""
        self._open = rows
        self._draw()

    def set_footer(self, rows: "Sequence[Text]") -> None:
        """Shows these rows below all others, until they are replaced."""
        self._footer = rows
        self._draw()

    def settle(self, rows: "Sequence[Text]") -> None:
        """Writes rows for good, in the place of those that are shown. The footer stays below them."""
        self._open = ()
        self._draw(settled=rows)

    def hide(self) -> None:
        """Removes everything from the screen, so that other code can print there. The next call shows it again."""
        self._write(self._back_to(0) + "\x1b[J" if self._drawn else "")
        self._drawn = []

    def show_again(self) -> None:
        """Shows what `hide` has removed."""
        self._draw()

    # Drawing.

    def _draw(self, settled: "Sequence[Text]" = ()) -> None:
        """Writes all rows from the first one on that is another than before."""
        width, height = self._size()
        most = max(height - 1, 1)
        footer = _last(self._footer, most // 2, width)
        shown = _last(self._open, most - _rows(footer, width), width)
        lasting = [(self._ansi(row), row.plain) for row in settled]
        rows = [*lasting, *((self._ansi(row), row.plain) for row in (*shown, *footer))]
        same = 0
        if width == self._width:
            while same < min(len(rows), len(self._drawn)) and rows[same] == self._drawn[same]:
                same += 1
        if same == len(rows) == len(self._drawn):
            self._forget(rows, len(lasting))
            return
        if same == len(self._drawn):
            out = "\r\n" if same else ""
        elif same == len(rows) and rows:  # there are only fewer rows
            same -= 1
            out = self._back_to(same) + "\x1b[J"
        else:
            out = self._back_to(same) + "\x1b[J"
        self._write(out + "\r\n".join(row for row, _ in rows[same:]))
        self._width = width
        self._forget(rows, len(lasting))

    def _forget(self, rows: list[tuple[str, str]], lasting: int) -> None:
        """Leaves rows as they are from now on. If nothing is below them, the cursor goes to a row of its own."""
        self._drawn = rows[lasting:]
        if lasting and not self._drawn:
            self._write("\r\n")

    def _back_to(self, row: int) -> str:
        """What moves the cursor to the start of a row that is shown.

        A screen that has become narrower has broken rows into several: as many as it takes now.
        """
        width, height = self._size()
        up = min(sum(screen_rows(plain, width) for _, plain in self._drawn[row:]), height) - 1
        return "\r" + (f"\x1b[{up}A" if up > 0 else "")

    def _ansi(self, row: "Text") -> str:
        """A row with the codes for its colours. Tabs stay tabs."""
        from rich.segment import Segment, Segments

        styled = Segment.apply_style(row.render(self._console), self._console.get_style(row.style))
        with self._console.capture() as captured:
            self._console.print(Segments(styled), soft_wrap=True, end="")
        return captured.get()

    def _write(self, text: str) -> None:
        if text and not self._console.quiet:
            self._console.file.write(text)
            self._console.file.flush()

    def _size(self) -> tuple[int, int]:
        """Columns and rows of the terminal itself: what COLUMNS says may be another screen's."""
        try:
            width, height = os.get_terminal_size(self._console.file.fileno())
        except (OSError, ValueError, AttributeError):
            width, height = 0, 0
        return width or self._console.width, height or self._console.height


def can_be_live(console: "Console") -> bool:
    """Whether a console is a terminal on which rows can be written anew, in colours, and in all characters."""
    plain = console.is_dumb_terminal or console.no_color or console.color_system is None
    unusual = console.is_jupyter or console.legacy_windows or not console.encoding.lower().startswith("utf")
    return console.is_terminal and not plain and not unusual


def _last(rows: "Sequence[Text]", most: int, width: int) -> "list[Text]":
    """The last rows, as many as fit into so many rows of a screen."""
    left = most
    taken: list[Text] = []
    for row in reversed(rows):
        left -= screen_rows(row.plain, width)
        if left < 0:
            if not taken:  # one row that is larger than the screen
                taken.append(row[-(most * width // 2) :])
            break
        taken.append(row)
    return taken[::-1]


def _rows(rows: "Sequence[Text]", width: int) -> int:
    return sum(screen_rows(row.plain, width) for row in rows)

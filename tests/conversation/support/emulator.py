"""A terminal in memory: what stands on its screen and above it, for whoever looks at it after all was written."""

import io

import pyte
from pyte.modes import LNM
from rich.console import Console


class Emulator:
    """A console whose output goes to an emulated terminal."""

    def __init__(self, width: int = 40, height: int = 10) -> None:
        self._screen = pyte.HistoryScreen(width, height, history=10_000)
        self._screen.set_mode(LNM)  # as a terminal driver makes a line feed of a program one with a carriage return
        self._stream = pyte.Stream(self._screen)
        self.raw = ""
        self.console = Console(
            file=_File(self), width=width, height=height, force_terminal=True, color_system="standard", highlight=False
        )

    def write(self, text: str) -> None:
        self.raw += text
        self._stream.feed(text)

    @property
    def screen(self) -> list[str]:
        """The rows of the screen, without those below the last that has something."""
        return _trimmed([line.rstrip() for line in self._screen.display])

    @property
    def lines(self) -> list[str]:
        """All rows: those that have left the screen, and those that are on it."""
        width = self._screen.columns
        gone = ["".join(row[column].data for column in range(width)).rstrip() for row in self._screen.history.top]
        return _trimmed([*gone, *(line.rstrip() for line in self._screen.display)])

    def style(self, text: str) -> tuple[str, bool, bool, bool]:
        """The colour of the first place on the screen where this stands, and whether it is bold, italic, underlined."""
        for number, line in enumerate(self._screen.display):
            if text in line:
                char = self._screen.buffer[number][line.index(text)]
                return char.fg, char.bold, char.italics, char.underscore
        raise AssertionError(f"{text!r} is not on the screen: {self.screen}")


class _File(io.StringIO):
    encoding = "utf-8"

    def __init__(self, emulator: Emulator) -> None:
        super().__init__()
        self._emulator = emulator

    def write(self, text: str) -> int:
        self._emulator.write(text)
        return len(text)


def _trimmed(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    return lines

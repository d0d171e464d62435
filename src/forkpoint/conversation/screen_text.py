"""Text of somebody else, made safe to show on a screen.
Tests: tests/conversation/test_call_view.py, tests/conversation/test_visualizer.py.

`clean` is for text that somebody reads, `visible` for text that somebody decides on: it leaves no character out, and
shows a character that cannot be seen by its number.
"""

import re


def clean(text: str) -> str:
    """The text with visible signs in the place of characters that would control a terminal."""
    return _CONTROL.sub(_seen, text.replace("\r\n", "\n"))


def visible(text: str) -> str:
    """The text with a visible sign for each character that cannot be seen, or that would control a terminal.

    Blanks, tabs and line feeds stay as they are. A character that has no picture, or that of a blank, is shown by its
    number, as <U+202E>.
    """
    text = _UNSEEN.sub(_numbered, text)
    if text.isprintable():
        return text
    # It is also false for what Unicode has not assigned, or leaves to fonts: who knows what a screen makes of that.
    return "".join(char if char.isprintable() or char in "\t\n" else _number(char) for char in text)


def visible_line(text: str) -> str:
    """The same on one line: no blank is left out, and a line break and a tab have a picture."""
    return visible(text).replace("\n", "\u240a").replace("\t", "\u2409")


def in_a_row(text: str) -> str:
    """The text on one line, with runs of blanks as one blank."""
    return " ".join(clean(text).split())


def cut(text: str, room: int) -> str:
    """A line, cut to ``room`` columns of a screen. If some of it is left out, it says how many characters."""
    from rich.cells import cell_len

    shown = text[:room]
    if len(shown) == len(text) and cell_len(shown) <= room:
        return text
    while True:
        note = f"… [{len(text) - len(shown):,} more characters]"
        if not shown or cell_len(shown) + len(note) <= room:
            return shown + note
        shown = shown[:-1]


def screen_rows(line: str, width: int) -> int:
    """How many rows of a screen a line takes that the terminal itself breaks at the right edge."""
    from rich.cells import cell_len

    rows, column = 1, 0
    for character in line:
        if character == "\t":  # a terminal does not break a line for a tab
            column = max(column, min(column // 8 * 8 + 8, width - 1))
            continue
        cells = cell_len(character)
        if column + cells > width:
            rows, column = rows + 1, 0
        column += cells
    return rows


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but tab and line feed
    "\u2028\u2029"  # line and paragraph separators
    "\u202a-\u202e\u2066-\u2069"  # what turns the direction of a text round
    "\ud800-\udfff]"  # halves of a character
)

_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc\U00016fe4\U0001d159"
    "\U000e0100-\U000e01ef]"
)
"""What has no picture, or that of a blank, although Python calls it printable."""


def _seen(found: "re.Match[str]") -> str:
    code = ord(found[0])
    return _picture(code) if code < 0x80 else "\ufffd"


def _numbered(found: "re.Match[str]") -> str:
    return _number(found[0])


def _number(char: str) -> str:
    code = ord(char)
    return _picture(code) if code < 0x80 else f"<U+{code:04X}>"


def _picture(code: int) -> str:
    """The picture of a control character."""
    return "\u2421" if code == 0x7F else chr(0x2400 + code)

"""`WordFlow`: words that come in pieces, put into lines of a screen. Tests: tests/conversation/test_visualizer.py."""

import re


class WordFlow:
    """Words that come in pieces, put into lines as long as a screen is wide; without a width, lines are left alone.

    Blank lines before the first word and after the last one are left out. Code between fences is not touched.
    """

    def __init__(self, width: int | None) -> None:
        from rich.cells import cell_len

        self.begun = False
        self._cells = cell_len
        self._width = width
        self._column = 0
        self._gap = ""  # what stands before the next word
        self._word = ""  # as much of it as has come
        self._fenced = False

    def feed(self, text: str) -> str:
        """What can be written now."""
        out = []
        for token in TOKENS.findall(text):
            if token[0] in " \t\n":
                out.append(self.rest())
                self._gap += token
            elif _WIDE.match(token):  # such scripts have no blanks, and a line may end anywhere
                out += [self.rest(), self._placed(token, breakable=True)]
            else:
                self._word += token
        if self._width is None or len(self._word) > _LONG:
            out.append(self.rest())
        return "".join(out)

    def rest(self) -> str:
        """What was held back."""
        word, self._word = self._word, ""
        return self._placed(word) if word else ""

    def _placed(self, word: str, *, breakable: bool = False) -> str:
        gap, self._gap = self._gap, ""
        if not self.begun:
            gap = gap.rpartition("\n")[2]
            self.begun = True
        if "\n" in gap:
            self._column = 0
        if self._width is None:
            return gap + word
        if self._column == 0 and word.startswith("```"):
            self._fenced = not self._fenced
        gap = _BLANKS.sub("\n", gap.expandtabs(4))
        blanks = gap.rpartition("\n")[2]
        wide = self._cells(blanks + word)
        if self._column and self._column + wide > self._width and (blanks or breakable) and not self._fenced:
            self._column = self._cells(word)
            return "\n" + word
        self._column += wide
        if self._column > self._width:  # the terminal has broken it
            self._column %= self._width
        return gap + word


_BLANKS = re.compile(r" +\n")
_LONG = 24  # characters of a word that are not waited for any longer
_WIDE = re.compile("[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]")
TOKENS = re.compile(rf"\n|[ \t]+|{_WIDE.pattern}|(?:(?!{_WIDE.pattern})[^ \t\n])+")
"""Line feeds, blanks, and words; a character of a script without blanks is a word."""

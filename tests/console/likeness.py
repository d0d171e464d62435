"""Whether two lines say the same, though they are of two runs: ids, times and sizes are never twice the same.

Times, durations, sizes and versions are compared by their shape. An id is compared by its place: what is one id in the
page is one id in the run, on every line of the page.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_NAMES = {  # the same thing has the same one everywhere
    "uuid": r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    "plain": r"\b(?:resp|conv|msg|fc|rs)_[0-9a-f]{32}",  # of a response, a conversation or an item
    "short": r"\b[0-9a-f]{8}-[0-9a-f]{4}\b",
    "key": r"\bfp_[0-9a-z]{8}_[\w-]{43}(?![\w-])",
    "cache": r"\bfp_[0-9a-f]{40}\b",
    "digest": r"\b(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{12})\b",
    "label": r"\b(?=[a-z]*\d)(?=\d*[a-z])[0-9a-z]{8}\b",  # of a key
}
_VALUES = {  # every run has its own
    "cursor": r"(?<=id: )[\w-]{8}\d+-\d+(?:\.[\w-]{8}\d+-\d+)*",  # of a family's stream
    "age": r"\bjust now\b|\b\d+ (?:s|min|h|d|days?) ago\b",
    "date": r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?|\b\d{8}T\d{6}Z",
    "moment": r"\b1[6-9]\d{8}(?:\d{6})?\b",
    "duration": r"\b\d+(?:\.\d+)? (?:ms|s|min|h)\b",
    "size": r"\b\d+(?:\.\d+)? (?:kB|MB|GB)\b",
    "version": r"(?<![\d.])(?!127\.)\d+\.\d+\.\d+(?:\.\w+)?(?![\d.])|\b(?<=format )\d+\b",
}
_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in (_NAMES | _VALUES).items()))
_PATTERNS = _NAMES | _VALUES | {"label": r"\b[0-9a-z]{8}\b"}  # one in a page has a digit, so that it is no word
_WORD = re.compile(r"(?<![\w-])[\w-]{4,}(?![\w-])")
_ANYTHING = "..."
_FIXED = re.compile(
    r" · |\S {2,}\S|^(?:conversation|error|  |[❯✓✗○●├└│])"
)  # lines that are not of a model, in a turn's output
_COUNTED = re.compile(r"\d[\d,]*(?= (?:tokens|out\b|%))|\b\d+ calls?\b")


@dataclass
class Likeness:
    """Compares lines of a page with lines of a run, and remembers which id of the page is which of the run."""

    ids: dict[str, str] = field(default_factory=dict)

    def matches(self, shown: Sequence[str], real: Sequence[str], *, loose: bool = False) -> bool:
        """Whether a page shows what there was. A line ``...`` stands for any number of lines.

        ``loose`` leaves open what a model says, and how many tokens that is.
        """
        ids = _match(_loosely(shown), [_uncounted(line) for line in real], self.ids) if loose else None
        ids = ids or _match([*shown], [*real], self.ids)
        if ids is not None:
            self.ids = ids
        return ids is not None

    def matches_line(self, shown: str, real: str) -> bool:
        return _match_line(shown, real, self.ids) is not None

    def real(self, text: str) -> str:
        """A text of the page with the ids of the run, in place of ids and the beginnings of ids."""
        return _WORD.sub(lambda word: self._beginning(word[0]), _replace(text, self.ids))

    def shown(self, text: str) -> str:
        """A text of the run with the ids of the page."""
        return _replace(text, {real: shown for shown, real in self.ids.items()})

    def rewritten(self, shown: Sequence[str], real: Sequence[str]) -> list[str]:
        """What a page should show: its own lines where they are right, and what there was elsewhere.

        Lines that the page leaves out stay left out.
        """
        lines: list[str] = []
        page = run = 0
        for of_page, of_run in self._pairs(shown, real):
            lines += self._gap(shown[page:of_page], real[run:of_run])
            lines.append(self._kept(shown[of_page], real[of_run]))
            page, run = of_page + 1, of_run + 1
        return lines + self._gap(shown[page:], real[run:])

    def _kept(self, shown: str, real: str) -> str:
        """A line that is right, but for the widths of its columns."""
        self.ids = _match_line(shown, real, self.ids) or self.ids
        said = self.shown(real)
        return shown if _ANYTHING in shown or _columns(shown) == _columns(said) else said

    def _gap(self, shown: Sequence[str], real: Sequence[str]) -> list[str]:
        said = [self.shown(line) for line in real]
        if _ANYTHING not in shown:
            return said
        before, after = shown.index(_ANYTHING), len(shown) - 1 - shown.index(_ANYTHING)
        return [*said[:before], _ANYTHING, *said[len(said) - after :]] if len(said) > before + after else said

    def _beginning(self, word: str) -> str:
        """What a word is in the run, if it is the beginning of an id."""
        found = (real[: len(word)] for shown, real in self.ids.items() if shown.startswith(word))
        return next(found, word)

    def _pairs(self, shown: Sequence[str], real: Sequence[str]) -> list[tuple[int, int]]:
        """The longest way to pair lines of the page with lines of the run, in their order."""
        best: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for page in range(len(shown), -1, -1):
            for run in range(len(real), -1, -1):
                if page == len(shown) or run == len(real):
                    best[page, run] = []
                    continue
                found = max(best[page + 1, run], best[page, run + 1], key=len)
                pair = shown[page] != _ANYTHING and self.matches_line(shown[page], real[run])
                best[page, run] = [(page, run), *best[page + 1, run + 1]] if pair else found
        return best[0, 0]


def _loosely(shown: Sequence[str]) -> list[str]:
    """The same lines, with any lines in place of what a model says."""
    lines: list[str] = []
    for line in shown:
        fixed = _uncounted(line) if _FIXED.search(line) else _ANYTHING
        lines += [] if lines[-1:] == [fixed] == [_ANYTHING] else [fixed]
    return lines


def _uncounted(line: str) -> str:
    return _COUNTED.sub("#", line)


def _match(shown: list[str], real: list[str], ids: Mapping[str, str]) -> dict[str, str] | None:
    """The ids that are known afterwards; None if it does not match."""
    if not shown:
        return None if real else dict(ids)
    if shown[0] == _ANYTHING:
        found = (_match(shown[1:], real[skipped:], ids) for skipped in range(len(real) + 1))
        return next((known for known in found if known is not None), None)
    known = _match_line(shown[0], real[0], ids) if real else None
    return None if known is None else _match(shown[1:], real[1:], known)


def _match_line(shown: str, real: str, ids: Mapping[str, str]) -> dict[str, str] | None:
    shown = _evenly(shown.removesuffix(" ^D"))  # a key that no terminal shows
    pattern, names, place = "", [], 0
    for token in _TOKEN.finditer(shown):
        kind = token.lastgroup
        assert kind is not None
        pattern += _literally(shown[place : token.start()]) + f"({_PATTERNS[kind]})"
        names.append(token[0] if kind in _NAMES else None)
        place = token.end()
    found = re.fullmatch(pattern + _literally(shown[place:]), _evenly(real))
    return _bound(names, found.groups(), ids) if found else None


def _bound(names: Sequence[str | None], values: Sequence[str], ids: Mapping[str, str]) -> dict[str, str] | None:
    known = dict(ids)
    for name, value in zip(names, values, strict=True):
        if name is not None and not _bind(name, value, known):
            return None
    return known


def _bind(name: str, value: str, known: dict[str, str]) -> bool:
    """Remembers that a name of the page is this value in the run. False if one of them is something else already."""
    if name in known:
        return known[name] == value
    if longer := {real[: len(value)] for shown, real in known.items() if shown.startswith(name)}:
        return value in longer
    if value in known.values():
        return False
    known[name] = value
    if name.startswith("fp_") and name.count("_") > 1:  # a key has its label in it
        known.setdefault(name.split("_")[1], value.split("_")[1])
    return True


def _literally(text: str) -> str:
    return ".*?".join(re.escape(part) for part in text.split(_ANYTHING))


def _evenly(line: str) -> str:
    """A line without the widths of its columns, which depend on what stands in them."""
    indent = len(line) - len(line.lstrip())
    return line[:indent] + re.sub("─+", "─", re.sub(" {2,}", "  ", line[indent:].rstrip()))


def _columns(line: str) -> list[int]:
    return [gap.end() for gap in re.finditer(r"\S {2,}", line)]


def _replace(text: str, names: Mapping[str, str]) -> str:
    if not names:
        return text
    longest = sorted(names, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest)), lambda found: names[found[0]], text)

"""Values that nobody may read, masked in whatever text they come back in.

Programs print a value in many spellings: quoted for a shell, escaped for JSON, HTML, CSV or an address, folded into
lines. So texts are not searched for spellings but compared by what all spellings share: a text is **reduced** to its
ASCII letters and digits, after escapes (`\\u003c`, `&lt;`, `%3C`) are resolved, and so is the value. Quotes, blanks,
backslashes and line breaks are gone then. Of hex and base64 the reduced form is searched for as well, also of base64
in base64, and the bytes that a dump (`xxd`, `hexdump -C`) shows are read. A value with fewer than eight letters and
digits would be found everywhere in that way, and is looked for in a list of spellings instead.

A **gap** of `GAP` signs between two letters ends a value. Without that bound a stream could never let go of a letter
that may begin a value: dots after it decide nothing, and each further piece would be held, and read again, with all of
them.

Each step is a pass over the text, so the cost grows with its length alone, and with the number of values. What masking
can and cannot do is said in docs/secrets.md. Tests: tests/agent/test_secrets.py, tests/agent/test_masking.py.
"""

import base64
import functools
import html
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar
from urllib.parse import quote, quote_plus

import msgspec

from forkpoint.events import File, Image, JsonText, Part, StateChange, Text

S = TypeVar("S", str, bytes)

STARS = "***"
"""What stands where a value stood."""

SHORTEST = 4
"""Characters of the shortest value that is masked: a shorter one would be found everywhere."""

GAP = 256
"""Signs between two letters of a text from which on they do not belong to one value. No program indents so far."""

_LINE = 16  # characters of a line of a longer value from which it is found on its own
_ENCODED = 8  # characters of an encoded form from which it is found: shorter ones are in many words
_REDUCED = 8  # letters and digits of a value from which they are enough to find it
_ROW = 16  # bytes that a line of a dump shows

_SIGN, _GAP_SIGN = b" ", b"\n"  # what stands for any sign, and for one of a gap, where a text is reduced
_SIGNS = bytes(code if chr(code).isalnum() else _SIGN[0] for code in range(128)).ljust(256, _SIGN)
_ESCAPE = re.compile(
    r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-3][0-7]{2}|[nrtbfv])"
    r"|%(?:25)*[0-9a-fA-F]{2}"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});"
)
_HALF_ESCAPE = re.compile(
    r"(?:\\(?:u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|x[0-9a-fA-F]?|[0-3][0-7]?)?"
    r"|%(?:25)*[0-9a-fA-F]?"
    r"|&(?:#[0-9]{0,7}|#[xX][0-9a-fA-F]{0,6}|[a-zA-Z]{0,8}))$"
)
_LONGEST_ESCAPE = 32
_DUMP = re.compile(
    r"[ \t]{0,64}0[0-9a-fA-F]{3,15}:?[ \t]+((?:[0-9a-fA-F]{2,8}[ \t]{1,2}){0,15}[0-9a-fA-F]{2,8})(?![^ \t\n])"
)
_DUMP_LINE = re.compile(rf"^{_DUMP.pattern}.*$", re.MULTILINE)
_HALF_DUMP = re.compile(r"[ \t]{0,64}(?:0[0-9a-fA-F]{0,15}:?(?:[ \t].{0,120})?)?")


class Masking:
    """Hides values in texts. Share it freely; it is never shown, and never written."""

    __slots__ = ("_data", "_exact", "_hex", "_reduced")

    def __init__(self, values: Iterable[str] = ()) -> None:
        spellings = [_Spellings(value) for value in values]
        self._exact = _Needles(one for each in spellings for one in each.exact)
        self._reduced = _Needles(one for each in spellings for one in each.reduced)
        self._hex = _Needles(one for each in spellings for one in each.hex)
        self._data = _Needles(one for each in spellings for one in each.data)

    def __bool__(self) -> bool:
        return bool(self._exact)

    def __repr__(self) -> str:
        return "Masking(...)"

    def __reduce__(self) -> Any:
        raise TypeError("values of secrets are never written")

    def __or__(self, other: "Masking") -> "Masking":
        """What hides the values of both."""
        if not self or not other:
            return self or other
        if other._exact.all <= self._exact.all:
            return self
        made = Masking()
        for name in self.__slots__:
            setattr(made, name, _Needles(getattr(self, name).all | getattr(other, name).all))
        return made

    def text(self, text: str) -> str:
        """The same with stars for each place where a value stands. Values that overlap are one place."""
        spans = self.spans(text)
        return _starred(text, spans) if spans else text

    def parts(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """The same parts of a result. A picture or a file that has a value in it is left out, and that is said."""
        return tuple(self._part(part) for part in parts) if self else tuple(parts)

    def json(self, text: JsonText) -> JsonText:
        """JSON with the values in its texts and names masked; the very same text if there are none."""
        if not self:
            return text
        value = msgspec.json.decode(text)
        masked = self.value(value)
        return text if masked == value else msgspec.json.encode(masked).decode()

    def value(self, value: Any) -> Any:
        """A JSON value with the values in its texts and names masked."""
        match value:
            case str():
                return self.text(value)
            case list() | tuple():
                return [self.value(one) for one in value]
            case dict():
                return {self.value(name): self.value(one) for name, one in value.items()}
            case int() | float() if not isinstance(value, bool) and self.spans(str(value)):  # a value of digits
                return self.text(str(value))
            case _:
                return value

    def change(self, change: StateChange) -> StateChange:
        """The same change of an agent's state. What was a value is kept as stars."""
        if not self:
            return change
        kept = {self.text(name): self.json(value) for name, value in change.set}
        return StateChange(tuple(sorted(kept.items())), change.removed)

    def stream(self) -> "MaskedStream":
        """What masks a text that comes in pieces."""
        return MaskedStream(self)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where values stand, from and to, in order; those that overlap are one."""
        return self.look(text, begins_line=True, is_end=True)[0]

    def look(self, text: str, *, begins_line: bool, is_end: bool) -> tuple[list[tuple[int, int]], int]:
        """The places of values, and the index from which on the text may be the beginning of one: more text decides.

        ``begins_line`` is whether the text begins a line, ``is_end`` whether nothing follows: then all is decided.
        """
        if not self or not text:
            return [], len(text)
        reduced = _Reduced(text) if self._reduced or self._hex else None
        found = list(self._exact.spans(text))
        if reduced is not None:
            letters = [*self._reduced.spans(reduced.data), *self._hex.spans(reduced.data.lower())]
            found += reduced.places(_merged(sorted(letters)))
        dumped = self._data and ("0000" in text or not begins_line)
        if dumped:
            found += self._dumped(text, begins_line)
        spans = _merged(sorted(found))
        if is_end:
            return spans, len(text)
        undecided = self._exact.undecided(text)
        if reduced is not None:
            undecided = min(undecided, self._undecided(reduced))
        return spans, min(undecided, self._undecided_dump(text, begins_line))

    def _undecided(self, reduced: "_Reduced") -> int:
        """From where on letters may be the beginning of a value. An escape at the end may be half of one."""
        text, data = reduced.text, reduced.data
        half = _HALF_ESCAPE.search(text, max(0, len(text) - _LONGEST_ESCAPE))
        earliest = half.start() if half is not None else len(text)
        ends = [data]
        if half is not None:
            ends.append(_Reduced(text[: half.start()]).data)
        for end in ends:
            for needles, letters in ((self._reduced, end), (self._hex, end.lower())):
                if (at := needles.undecided(letters)) < len(letters):
                    earliest = min(earliest, reduced.place(at)[0])
        return earliest

    def _dumped(self, text: str, begins_line: bool) -> Iterator[tuple[int, int]]:
        """Lines of a dump that show a byte of a value: all of such a line, but for where it is in the dump."""
        first = 0 if begins_line else text.find("\n") + 1
        if not begins_line and not first:
            return
        run: list[re.Match[str]] = []
        for line in _DUMP_LINE.finditer(text, first):
            if run and run[-1].end() + 1 != line.start():
                yield from self._in_dump(run)
                run = []
            run.append(line)
        yield from self._in_dump(run)

    def _in_dump(self, run: "list[re.Match[str]]") -> Iterator[tuple[int, int]]:
        for swapped in (False, True):
            rows = [_row(line[1], swapped) for line in run]
            starts = [0]
            for row in rows:
                starts.append(starts[-1] + len(row))
            for start, end in self._data.spans(b"".join(rows)):
                for line in run[bisect_right(starts, start) - 1 : bisect_right(starts, end - 1)]:
                    yield line.start(1), line.end()

    def _undecided_dump(self, text: str, begins_line: bool) -> int:
        """From where on a text ends in lines of a dump that may show the beginning of a value."""
        if not self._data:
            return len(text)
        last = text.rfind("\n") + 1
        if not last and not begins_line:
            return len(text)
        earliest = len(text)
        if last < len(text) and _HALF_DUMP.fullmatch(text, last):
            earliest = last
        elif last < len(text):
            return earliest  # a line of something else
        rows: list[tuple[int, re.Match[str]]] = []
        while last > 0 and len(rows) <= self._data.longest // _ROW + 1:
            start = text.rfind("\n", 0, last - 1) + 1
            line = _DUMP.match(text, start, last) if start or begins_line else None
            if line is None:
                break
            rows.insert(0, (start, line))
            last = start
        for swapped in (False, True):
            shown = [_row(line[1], swapped) for _, line in rows]
            at = self._data.undecided(b"".join(shown))
            for (start, _), row in zip(rows, shown, strict=True):
                if at < len(row):
                    earliest = min(earliest, start)
                    break
                at -= len(row)
        return earliest

    def _part(self, part: Part) -> Part:
        match part:
            case Text(text=text):
                return Text(self.text(text))
            case Image() | File():
                data = part.data or ""
                if self.spans(data) or self.spans(_content(data)):
                    return Text(f"[{part.media_type} left out: a secret is in it]")
                url = None if part.url is None else self.text(part.url)
                if isinstance(part, Image):
                    return Image(self.text(part.media_type), part.data, url)
                return File(self.text(part.name), self.text(part.media_type), part.data, url)


class MaskedStream:
    """A text that comes in pieces, masked. What may be the beginning of a value waits for the next piece.

    All that it gives, joined, is what `Masking.text` makes of all that it was fed, joined.
    """

    def __init__(self, masking: Masking) -> None:
        self._masking = masking
        self._held = ""
        self._starred = 0  # how much of what is held stands under stars that were given already
        self._begins_line = True

    def feed(self, piece: str) -> str:
        """What can be shown by now."""
        return self._shown(self._held + piece, is_end=False)

    def end(self) -> str:
        """What is left."""
        return self._shown(self._held, is_end=True)

    def _shown(self, text: str, *, is_end: bool) -> str:
        spans, cut = self._masking.look(text, begins_line=self._begins_line, is_end=is_end)
        given, at = self._starred, 0
        if given:
            spans = _merged(sorted([(0, given), *spans]))
        shown: list[str] = []
        starred = 0
        for start, end in spans:
            is_given = given > 0 and start == 0  # its stars were given with an earlier piece
            if start >= cut and not is_given:
                break
            shown.append(text[at:start])
            if not is_given:
                shown.append(STARS)
            at = end
            starred = max(0, end - cut)
        shown.append(text[at:cut])
        if cut:
            self._begins_line = text[cut - 1] == "\n"
        self._held, self._starred = text[cut:], starred
        return "".join(shown)


class _Needles(Generic[S]):
    """Texts, or bytes, that are searched for."""

    def __init__(self, needles: Iterable[S]) -> None:
        self.all: frozenset[S] = frozenset(needles)
        self.longest = max(map(len, self.all), default=0)
        self._heads: dict[S, list[S]] = {}  # by how they begin
        for needle in self.all:
            self._heads.setdefault(needle[:SHORTEST], []).append(needle)

    def __bool__(self) -> bool:
        return bool(self.all)

    def spans(self, text: S) -> Iterator[tuple[int, int]]:
        """Where they stand, from and to."""
        for needle in self.all:
            start = text.find(needle)
            while start >= 0:
                yield start, start + len(needle)
                start = text.find(needle, start + 1)

    def undecided(self, text: S) -> int:
        """From where on a text may be the beginning of one of them; its length if nowhere."""
        low, earliest = max(0, len(text) - self.longest + 1), len(text)
        for head, needles in self._heads.items():
            start = text.find(head, low, earliest + SHORTEST - 1)
            while start >= 0:
                rest = text[start:]
                if any(len(needle) > len(rest) and needle.startswith(rest) for needle in needles):
                    earliest = start
                    break
                start = text.find(head, start + 1, earliest + SHORTEST - 1)
        for start in range(max(0, len(text) - SHORTEST + 1), earliest):
            if any(head.startswith(text[start:]) for head in self._heads):
                return start
        return earliest


class _Reduced:
    """The ASCII letters and digits of a text, its escapes resolved, and where in the text each of them stands.

    Each gap among them is a line break, or several: no value has one, so none is found, or begins, across a gap.
    """

    _BLOCK = 4096

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts: list[int] = []  # of escapes, in the resolved text
        self._ends: list[int] = []  # the same, behind what they mean
        self._escapes: list[tuple[int, int]] = []  # of escapes, in the text
        has_escapes = "\\" in text or "%" in text or "&" in text
        self._resolved = _with_gaps(self._resolve(text) if has_escapes else text)
        self.data = _without_signs(self._resolved)
        self._blocks: list[int] | None = None  # how many letters there are before each block
        self._block: tuple[int, list[int]] = (-1, [])  # the block that was looked at last: where its letters are

    def places(self, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Where in the text letters stand, from and to."""
        for start, end in spans:
            yield self.place(start)[0], self.place(end - 1)[1]

    def place(self, number: int) -> tuple[int, int]:
        """Where in the text a letter stands: one character, or an escape."""
        at = self._resolved_place(number)
        before = bisect_right(self._ends, at) - 1  # the last escape that ends before it
        if before + 1 < len(self._starts) and self._starts[before + 1] <= at:
            return self._escapes[before + 1]
        moved = self._escapes[before][1] - self._ends[before] if before >= 0 else 0
        return at + moved, at + moved + 1

    def _resolve(self, text: str) -> str:
        parts: list[str] = []
        at = length = 0
        for escape in _ESCAPE.finditer(text):
            meant = _meaning(escape[0])
            parts += (text[at : escape.start()], meant)
            length += escape.start() - at
            self._starts.append(length)
            length += len(meant)
            self._ends.append(length)
            self._escapes.append(escape.span())
            at = escape.end()
        return "".join([*parts, text[at:]])

    def _resolved_place(self, number: int) -> int:
        size = self._BLOCK
        if self._blocks is None:
            self._blocks = [0]
            for start in range(0, len(self._resolved), size):
                self._blocks.append(self._blocks[-1] + len(_without_signs(self._resolved[start : start + size])))
        block = bisect_right(self._blocks, number) - 1
        if self._block[0] != block:
            start = block * size
            letters = [start + i for i, one in enumerate(self._resolved[start : start + size]) if one != _SIGN[0]]
            self._block = block, letters
        return self._block[1][number - self._blocks[block]]


class _Spellings:
    """What stands for a value."""

    def __init__(self, value: str) -> None:
        if len(value.strip()) < SHORTEST:
            raise ValueError(f"a value of fewer than {SHORTEST} characters cannot be masked")
        self.exact: set[str] = set()
        self.reduced: set[bytes] = set()
        self.hex: set[bytes] = set()
        self.data: set[bytes] = set()
        for plain in _plain(value):
            self._add(plain, is_whole=True)
        for line in _lines(value):
            self._add(line, is_whole=False)

    def _add(self, plain: str, *, is_whole: bool) -> None:
        data = plain.encode(errors="surrogateescape")
        self.exact |= {plain, json.dumps(plain)[1:-1]}  # the second has the signs at its ends, too
        self.data.add(data)
        if len(letters := _Reduced(plain).data.replace(_GAP_SIGN, b"")) >= _REDUCED:
            self.reduced.add(letters)
        else:
            self.exact.update(_escaped(plain))
        if len(data.hex()) >= _ENCODED:
            self.hex.add(data.hex().encode())
        for encoded in _in_base64(data):
            self._add_base64(encoded)
            if is_whole:
                for twice in _in_base64(encoded):
                    self._add_base64(twice)

    def _add_base64(self, encoded: bytes) -> None:
        if len(letters := _letters(encoded.decode())) >= _ENCODED:
            self.reduced.add(letters)
        else:
            self.exact.update((encoded.decode(), encoded.decode().replace("+", "-").replace("/", "_")))


def _letters(text: str) -> bytes:
    return _without_signs(_only_signs_and_letters(text))


def _only_signs_and_letters(text: str) -> bytes:
    """The text as ASCII, a byte for each character: letters and digits as they are, and all else as one sign."""
    return text.encode("ascii", "replace").translate(_SIGNS)


def _with_gaps(text: str) -> bytes:
    return _only_signs_and_letters(text).replace(_SIGN * GAP, _GAP_SIGN + _SIGN * (GAP - 1))


def _without_signs(data: bytes) -> bytes:
    return data.translate(None, _SIGN)


@functools.lru_cache(maxsize=4096)
def _meaning(escape: str) -> str:
    """The letter or digit that an escape stands for; a blank if it is another character, to count in a gap."""
    match escape[0], escape[1]:
        case "\\", "u" | "U" | "x":
            meant = int.from_bytes(bytes.fromhex(escape[2:]))
        case "\\", digit if digit.isdigit():
            meant = int(escape[1:], 8)
        case "\\", _:
            return " "
        case "%", _:
            meant = int(escape[-2:], 16)
        case _:
            one = html.unescape(escape)
            meant = ord(one) if len(one) == 1 else 0
    return chr(meant) if meant < 128 and chr(meant).isalnum() else " "


def _row(groups: str, swapped: bool) -> bytes:
    """The bytes that a line of a dump shows; ``swapped`` if it shows words whose second byte comes first."""
    shown = bytearray()
    for group in groups.split():
        if len(group) % 2 or len(shown) >= _ROW:
            break
        data = bytes.fromhex(group)
        shown += data[::-1] if swapped else data
    return bytes(shown[:_ROW])


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _starred(text: str, spans: Iterable[tuple[int, int]]) -> str:
    shown: list[str] = []
    at = 0
    for start, end in spans:
        shown += [text[at:start], STARS]
        at = end
    return "".join([*shown, text[at:]])


def _plain(value: str) -> Iterator[str]:
    """A value with each kind of line break, and without blanks around it."""
    lines = value.splitlines()
    for one in dict.fromkeys((value, value.strip(), "\n".join(lines), "\r\n".join(lines))):
        if len(one.strip()) >= SHORTEST:
            yield one


def _lines(value: str) -> Iterator[str]:
    """Each long line of a value of several lines, for programs indent and number lines."""
    lines = value.splitlines()
    if len(lines) > 1:
        # The first and the last line of a key say what it is, and nothing else.
        yield from (line.strip() for line in lines if len(line.strip()) >= _LINE and not line.startswith("-----"))


def _escaped(plain: str) -> Iterator[str]:
    """The spellings of a value that has few letters."""
    for ascii in (True, False):
        escaped = json.dumps(plain, ensure_ascii=ascii)[1:-1]
        yield from (escaped, escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1])
        for one, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):  # as Go writes them
            escaped = escaped.replace(one, code)
        yield escaped
    yield from (repr(plain)[1:-1], html.escape(plain, quote=False), html.escape(plain))
    yield from (plain.replace("'", "''"), plain.replace('"', '""'))
    yield from (plain.replace("'", "'\\''"), plain.replace("'", "'\"'\"'"))
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", plain)  # as a shell's printf %q does
    for address in (quote(plain, safe=""), quote(plain), quote_plus(plain)):
        yield from (address, _lower(address))


def _in_base64(data: bytes) -> Iterator[bytes]:
    """What base64 makes of data wherever it begins within a group of three bytes: the letters that are its alone."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data)
        first = (before * 8 + 5) // 6
        sure = encoded[first : (before + len(data)) * 8 // 6]
        if len(sure) >= _ENCODED:
            yield sure
    yield base64.b64encode(data).rstrip(b"=")


def _lower(address: str) -> str:
    """An address with its escapes in small letters."""
    head, *escapes = address.split("%")
    return head + "".join(f"%{escape[:2].lower()}{escape[2:]}" for escape in escapes)


def _content(data: str) -> str:
    """What a picture or a file has in it, as far as it is text."""
    try:
        return base64.b64decode(data).decode(errors="replace")
    except ValueError:
        return ""

"""Values that nobody may read, masked in whatever text they come back in.

A value is found as it is, and in the forms that programs print it in: escaped for JSON, Python or HTML, encoded for an
address, in hex, and in base64, also in the middle of something longer, as in a header of basic authentication. Of a
value with several lines each long line is found on its own, for programs indent and number lines.

This is a net for accidents. It does not stop a program that wants to tell: one that prints a value backwards, or
letter by letter, is not heard. Tests: tests/agent/test_secrets.py.
"""

import base64
import html
import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from forkpoint.events import File, Image, JsonText, Part, StateChange, Text

STARS = "***"
"""What stands where a value stood."""

SHORTEST = 4
"""Characters of the shortest value that is masked: a shorter one would be found everywhere."""

_LINE = 16  # characters of a line of a longer value from which it is found on its own
_ENCODED = 8  # characters of an encoded form from which it is found: shorter ones are in many words


class Masking:
    """Hides values in texts. Share it freely; it is never shown, and never written."""

    __slots__ = ("_forms", "_heads", "_longest")

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._know({form for value in values for form in _forms(value)})

    def _know(self, forms: Iterable[str]) -> None:
        self._forms = tuple(forms)
        self._longest = max(map(len, self._forms), default=0)
        self._heads: dict[str, list[str]] = {}  # by how they begin
        for form in self._forms:
            self._heads.setdefault(form[:SHORTEST], []).append(form)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __repr__(self) -> str:
        return "Masking(...)"

    def __reduce__(self) -> Any:
        raise TypeError("values of secrets are never written")

    def __or__(self, other: "Masking") -> "Masking":
        """What hides the values of both."""
        if set(other._forms) <= set(self._forms):
            return self
        made = Masking()
        made._know({*self._forms, *other._forms})
        return made

    def text(self, text: str) -> str:
        """The same with stars for each place where a value stands. Values that overlap are one place."""
        spans = self.spans(text)
        return _starred(text, spans) if spans else text

    def parts(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """The same parts of a result. A picture or a file that has a value in it is left out, and that is said."""
        return tuple(self._part(part) for part in parts) if self._forms else tuple(parts)

    def json(self, text: JsonText) -> JsonText:
        """JSON with the values in its texts and names masked; the very same text if there are none."""
        if not self._forms:
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
        if not self._forms:
            return change
        kept = {self.text(name): self.json(value) for name, value in change.set}
        return StateChange(tuple(sorted(kept.items())), change.removed)

    def stream(self) -> "MaskedStream":
        """What masks a text that comes in pieces."""
        return MaskedStream(self)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where values stand, from and to, in order; those that overlap are one."""
        found: list[tuple[int, int]] = []
        for form in self._forms:
            start = text.find(form)
            while start >= 0:
                found.append((start, start + len(form)))
                start = text.find(form, start + 1)
        return _merged(sorted(found))

    def undecided(self, text: str) -> int:
        """From where on a text may be the beginning of a value, which what follows decides; its length if nowhere."""
        low, earliest = max(0, len(text) - self._longest + 1), len(text)
        for head, forms in self._heads.items():
            start = text.find(head, low, earliest + SHORTEST - 1)
            while start >= 0:
                rest = text[start:]
                if any(len(form) > len(rest) and form.startswith(rest) for form in forms):
                    earliest = start
                    break
                start = text.find(head, start + 1, earliest + SHORTEST - 1)
        for start in range(max(0, len(text) - SHORTEST + 1), earliest):
            if any(head.startswith(text[start:]) for head in self._heads):
                return start
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

    def feed(self, piece: str) -> str:
        """What can be shown by now."""
        return self._shown(self._held + piece, is_end=False)

    def end(self) -> str:
        """What is left."""
        return self._shown(self._held, is_end=True)

    def _shown(self, text: str, *, is_end: bool) -> str:
        cut = len(text) if is_end else self._masking.undecided(text)
        spans = self._masking.spans(text)
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
        self._held, self._starred = text[cut:], starred
        return "".join(shown)


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


def _forms(value: str) -> Iterator[str]:
    """All texts that stand for a value."""
    if len(value.strip()) < SHORTEST:
        raise ValueError(f"a value of fewer than {SHORTEST} characters cannot be masked")
    for plain in _plain(value):
        yield plain
        for ascii in (True, False):
            escaped = json.dumps(plain, ensure_ascii=ascii)[1:-1]
            yield from (escaped, escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1])
        yield repr(plain)[1:-1]
        yield from (html.escape(plain, quote=False), html.escape(plain))
        for address in (quote(plain, safe=""), quote(plain), quote_plus(plain)):
            yield from (address, _lower(address))
        data = plain.encode()
        if len(data.hex()) >= _ENCODED:
            yield from (data.hex(), data.hex().upper())
        yield from _in_base64(data)


def _plain(value: str) -> Iterator[str]:
    """A value with each kind of line break, without blanks around it, and each long line of it."""
    lines = value.splitlines()
    for one in dict.fromkeys((value, value.strip(), "\n".join(lines), "\r\n".join(lines))):
        if len(one.strip()) >= SHORTEST:
            yield one
    if len(lines) > 1:
        # The first and the last line of a key say what it is, and nothing else.
        yield from (line.strip() for line in lines if len(line.strip()) >= _LINE and not line.startswith("-----"))


def _in_base64(data: bytes) -> Iterator[str]:
    """What base64 makes of data wherever it begins within a group of three bytes: the letters that are its alone."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        first = (before * 8 + 5) // 6
        sure = encoded[first : (before + len(data)) * 8 // 6]
        if len(sure) >= _ENCODED:
            yield from (sure, sure.replace("+", "-").replace("/", "_"))
    whole = base64.b64encode(data).decode()
    yield from (whole, whole.replace("+", "-").replace("/", "_"))


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

"""The fields of a request's body, taken one by one: what is left over is what nobody knows.

Each field is decoded as what it must be, and a complaint names the place in OpenAI's way (`messages[2].content`). It
never repeats what stood there.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from forkpoint.errors import BadRequest, ForkpointError, Invalid
from forkpoint.events import JsonText

T = TypeVar("T")

_NO_TEXT = "its text is not valid Unicode"
_SHOWN = 20  # how many fields that nobody knows are named
_LONGEST = 64  # and how much of a name
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.\-]")  # names go into a header, where a line break would be another header
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a pair of surrogates, as JSON writes it
_SMALL = 256 * 1024  # bytes of a body in which it is looked for
_decode = Decoder(dict[str, Raw]).decode


class Fields:
    """A body's fields, by name. Null means absent."""

    def __init__(self, body: bytes) -> None:
        """Raises `BadRequest` for what is no JSON object, and `Invalid` for text that is not valid Unicode."""
        try:
            self._raw = _decode(body)
        except msgspec.ValidationError:
            raise BadRequest("its body is JSON, but not an object") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _not_json(body) from None

    def take(self, name: str, decode: Callable[[Raw], T]) -> T | None:
        """A field's value; None if it is absent. Raises `Invalid` if it is of another form."""
        raw = self.take_raw(name)
        if raw is None:
            return None
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            raise _invalid(name, str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Invalid(name, _NO_TEXT) from None
        except RecursionError:
            raise Invalid(name, "it is nested too deep") from None

    def take_raw(self, name: str) -> Raw | None:
        """A field's value as the exact text that was sent; None if it is absent."""
        raw = self.peek(name)
        self._raw.pop(name, None)
        return raw

    def peek(self, name: str) -> Raw | None:
        """The same, and it stays there to be taken."""
        raw = self._raw.get(name)
        return None if raw is None or is_null(raw) else raw

    @property
    def left(self) -> tuple[str, ...]:
        """The names of those that nobody took, in order, fit for a header. Not all of them, if they are very many."""
        names = [name for name, raw in self._raw.items() if not is_null(raw)]
        shown = [_UNPRINTABLE.sub("?", name[:_LONGEST]) or "?" for name in names[:_SHOWN]]
        return (*shown, "...") if len(names) > _SHOWN else tuple(shown)


def is_null(raw: Raw) -> bool:
    """Whether this is JSON's null."""
    return bytes(memoryview(raw)[:5]) == b"null"


def text_of(raw: Raw, place: str) -> JsonText:
    """The exact text of a value. Raises `Invalid`, with its place, if it is none."""
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:
        raise Invalid(place, _NO_TEXT) from None


def _invalid(name: str, said: str) -> Invalid:
    """What msgspec says of a field, without what stood there: it names the place and the form that was expected."""
    why, _, place = said.partition(" - at ")
    if why.startswith("Invalid"):
        why = "its value is not one of those that are possible"
    place = "" if place.startswith("`key`") else place  # of an object: msgspec says no more of it
    return Invalid(f"{name}{place.strip('`').removeprefix('$')}"[:200], why[:1].lower() + why[1:200])


def _not_json(body: bytes) -> ForkpointError:
    """Why a body cannot be read. Half a surrogate pair is JSON, and yet no text: then the place is told."""
    if len(body) <= _SMALL and _HALF.search(body):  # it takes a while to find the place
        try:
            place = next(_halves(json.loads(body), ""), None)
        except (ValueError, RecursionError):
            place = None
        if place is not None:
            return Invalid(place[:200] or "body", f"{_NO_TEXT}: it has half of a surrogate pair")
    return BadRequest("its body is not JSON in UTF-8")


def _halves(value: Any, place: str) -> Iterator[str]:
    """The places of texts that cannot be written."""
    match value:
        case str() if not is_unicode(value):
            yield place
        case list():
            for index, item in enumerate(value):
                yield from _halves(item, f"{place}[{index}]")
        case dict():
            for name, item in value.items():
                if not is_unicode(name):
                    yield place
                else:
                    yield from _halves(item, f"{place}.{name}" if place else name)
        case _:
            pass


def is_unicode(text: str) -> bool:
    """Whether a text can be written in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

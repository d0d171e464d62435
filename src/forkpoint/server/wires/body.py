"""The body of a request in OpenAI's form, from bytes to fields; and what is wrong with a field, in words.

A complaint names the place in OpenAI's way (`messages[2].content`) and never repeats the value that stood there.
Tests: tests/server/chat/test_request.py.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from forkpoint.errors import BadRequest, Invalid
from forkpoint.events import JsonText
from forkpoint.server.api.bad_json import NO_TEXT, TOO_DEEP, UNREADABLE, fault_of

LONGEST_MODEL_NAME = 256
"""Characters of a model's name: the answer says it again."""

MISSING = "it is missing"

_SHOWN = 20  # how many fields that nobody knows are named
_LONGEST = 64  # and how much of a name
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.\-]")  # names go into a header, where a line break would be another header
_decode = Decoder(dict[str, Raw]).decode
_any: Callable[[Raw], Any] = Decoder(Any).decode

T = TypeVar("T")


def digest_of(body: bytes) -> bytes:
    """A digest that tells one body from another: two bodies with the same digest ask for the same."""
    return hashlib.sha256(body).digest()


def fields_of(body: bytes) -> dict[str, Raw]:
    """The fields of a body, each as the text that it is. Raises `BadRequest`."""
    try:
        return _decode(body)
    except msgspec.ValidationError:
        raise BadRequest("its body is JSON, but not an object") from None
    except UNREADABLE as error:
        raise fault_of(body, error) from None


def decoded(decode: Callable[[Raw], T], raw: Raw, place: str) -> T:
    """A value of a body, as one of msgspec's decoders reads it. Raises `Invalid`, whatever is wrong with the value."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        why, where, _ = complaint(place, str(error))
        raise Invalid(where, why[:1].lower() + why[1:200]) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Invalid(place, NO_TEXT) from None
    except RecursionError:
        raise Invalid(place, TOO_DEEP) from None


def object_of(raw: Raw, place: str) -> dict[str, Raw]:
    """The fields of a value that must be an object. Raises `Invalid`."""
    return decoded(_decode, raw, place)


def value_of(raw: Raw, place: str) -> Any:
    """A value of any form. Raises `Invalid`."""
    return decoded(_any, raw, place)


def check_model(model: str) -> None:
    """Raises `Invalid` if this cannot be the name of a model."""
    if not model.strip():
        raise Invalid("model", "it is missing; GET /v1/models lists those that there are")
    if len(model) > LONGEST_MODEL_NAME:
        raise Invalid("model", f"no name has more than {LONGEST_MODEL_NAME} characters")


def is_null(raw: Raw) -> bool:
    """Whether a value is null, which means that the field is absent."""
    return bytes(memoryview(raw)[:5]) == b"null"


def text_of(raw: Raw, place: str) -> JsonText | None:
    """The exact text of a value, or None if it is null. Raises `Invalid` if it is not valid Unicode."""
    try:
        return None if is_null(raw) else bytes(raw).decode()
    except UnicodeDecodeError:
        raise Invalid(place, NO_TEXT) from None


def shown_names(names: list[str]) -> tuple[str, ...]:
    """Names of fields, fit for a header. Not all of them, if they are very many."""
    shown = [_UNPRINTABLE.sub("?", name[:_LONGEST]) or "?" for name in names[:_SHOWN]]
    return (*shown, "...") if len(names) > _SHOWN else tuple(shown)


# Why a field was refused. msgspec names the place and the form that it expected; it also repeats the value.

_AT = re.compile(r"(.*) - at `\$([^`]*)`", re.DOTALL)
_VALUE = re.compile(r"Invalid (?:enum )?value '?(.*?)'?", re.DOTALL)
_ABSENT = re.compile(r"Object missing required field `(\w+)`")


def complaint(name: str, said: str) -> tuple[str, str, str | None]:
    """Why a field was refused, where in it, and the value of a wrong choice, if it is one. ``said`` is msgspec's."""
    found = _AT.fullmatch(said)
    why, place = (found[1], f"{name}{found[2]}") if found else (said.partition(" - at `key` in ")[0], name)
    value = found[1] if (found := _VALUE.fullmatch(why)) else None
    if (absent := _ABSENT.fullmatch(why)) is not None:
        place, why = f"{place}.{absent[1]}", MISSING
    elif place != name and place[-1] != "]" and why.endswith(("got `null`", "of length >= 1")):
        why = MISSING
    elif value is not None:
        why = "its value is not one of those that are possible"
    return why.replace(" | null", "") if place == name else why, place, value

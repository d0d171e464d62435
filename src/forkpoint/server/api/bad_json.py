"""A body that cannot be read as JSON: what is wrong with it, in words that its sender can act on.

Nothing of the body is repeated, except the names of fields. Tests: tests/server/test_bodies.py.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from forkpoint.errors import BadRequest, ForkpointError, Invalid
from forkpoint.llm.prompt.manifest import is_text

NO_TEXT = "its text is not valid Unicode"
TOO_DEEP = "it is nested too deep"

_GZIP = b"\x1f\x8b"  # how such a file begins
_SMALL = 256 * 1024  # bytes of a body in which the place is looked for: that takes a while


def fault_of(body: bytes, error: Exception) -> ForkpointError:
    """The error for a body that msgspec could not decode, and why: not JSON, not UTF-8, too deep, or compressed."""
    if isinstance(error, RecursionError):
        return BadRequest("its body is nested too deep; send fewer lists and objects within each other")
    if body.startswith(_GZIP):
        return BadRequest.encoded_body("gzip")
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return BadRequest(f"its body is not UTF-8, from byte {wrong.start} on")
    if len(body) <= _SMALL and (found := _found(body)) is not None:
        return found
    said = str(error).removeprefix("JSON is malformed: ")
    return BadRequest(f"its body is not JSON: {said[:1].lower() + said[1:200]}")


def _found(body: bytes) -> ForkpointError | None:
    """What Python's own reader takes and JSON does not have: the first place of it."""
    try:
        read = json.loads(body, parse_int=len)  # how large an integer is does not matter here
    except (ValueError, RecursionError):
        return None
    if (place := next(_places(read, _is_half, ""), None)) is not None:
        return Invalid(place[:200] or "body", f"{NO_TEXT}: it has half of a surrogate pair")
    if (place := next(_places(read, _is_no_number, ""), None)) is not None:
        return Invalid(place[:200] or "body", "it must be a finite number, and JSON has no other")
    return None


def _is_half(value: Any) -> bool:
    return isinstance(value, str) and not is_text(value)


def _is_no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _places(value: Any, test: Callable[[Any], bool], place: str) -> Iterator[str]:
    """The places of the values, and of the objects with names, that a test finds."""
    if test(value):
        yield place
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _places(item, test, f"{place}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            if test(name):
                yield place
            else:
                yield from _places(item, test, f"{place}.{name}" if place else name)


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for such a body."""

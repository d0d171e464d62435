"""Documents that are stored with a conversation, read back. Tests: tests/llm/test_model.py."""

from typing import TypeVar

import msgspec

from forkpoint.errors import BadSetting
from forkpoint.events import JsonText

T = TypeVar("T")


def read_document(kind: type[T], text: JsonText | bytes, *, of: str, what: str) -> T:
    """What a document says. Raises `BadSetting` for one that cannot be read."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadSetting.bad_document(of, what, str(error)) from None

"""Keys: a literal key stays in memory, and no key is ever shown. Tests: tests/llm/test_keys.py."""

import re
from typing import NoReturn

from forkpoint.masking import masked

_WORD = 8  # characters from which a key is found within a longer word: a shorter key is a part of many words
_CUT = 8  # characters of a key's beginning that are hidden where a text was cut


class Key:
    """A provider's key. It is never shown, and never written: no encoder takes it.

    Whoever sends it calls `reveal` where it is sent and keeps the text in no variable: a traceback may show each one.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value.strip()

    def reveal(self) -> str:
        return self._value

    @property
    def is_blank(self) -> bool:
        return not self._value

    @property
    def is_sendable(self) -> bool:
        """Whether it can stand in a header."""
        return self._value.isascii() and self._value.isprintable() and " " not in self._value

    def hide(self, text: str) -> str:
        """The text with three stars for this key, and for whatever else looks like a key: some servers repeat it.

        A key of a few letters (`key`, `none`) is hidden only where it is a word of its own. The beginning of a longer
        key is hidden at the end of the text too, for whoever wrote the text may have cut it there.
        """
        if self.is_blank:
            return masked(text)
        if len(self._value) < _WORD:
            return masked(re.sub(rf"(?<!\w){re.escape(self._value)}(?!\w)", "***", text))
        return masked(self._without_beginning(text.replace(self._value, "***")))

    def _without_beginning(self, text: str) -> str:
        end = len(text.rstrip(".\u2026"))
        for length in range(min(len(self._value) - 1, end), _CUT - 1, -1):
            if text.startswith(self._value[:length], end - length):
                return f"{text[: end - length]}***{text[end:]}"
        return text

    def __repr__(self) -> str:
        return "Key(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a literal key is never written; name an environment variable with api_key_env")

    def __copy__(self) -> "Key":
        return self

    def __deepcopy__(self, memo: object) -> "Key":
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Key, self._value))


NO_KEY = Key("")
"""The key for a server that needs none."""

"""Keys: a literal one stays in memory, and none is ever shown. Tests: tests/llm/test_model.py."""

from typing import Any, NoReturn


class Key:
    """A literal key. It is never shown, and never written: no encoder takes it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value.strip()

    def reveal(self) -> str:
        return self._value

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


def is_sendable(key: str) -> bool:
    """Whether a key can stand in a header."""
    return key.isascii() and key.isprintable() and " " not in key


def masked(value: Any, key: str | None) -> Any:
    """The same text or JSON value with three stars for each place where the key stood: some servers repeat it."""
    if not key:
        return value
    match value:
        case str():
            return value.replace(key, "***")
        case list():
            return [masked(item, key) for item in value]
        case dict():
            return {name: masked(item, key) for name, item in value.items()}
        case _:
            return value

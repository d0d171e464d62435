"""A literal key, which stays in memory."""

from typing import NoReturn


class Key:
    """A literal key. It is never shown, and never written: no encoder takes it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

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

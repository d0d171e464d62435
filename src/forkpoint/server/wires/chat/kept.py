"""Things that are kept because somebody may want them again soon, up to a weight in all."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values by their keys. What was used longest ago goes first; what alone is too heavy is not kept at all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, if it is there; that counts as a use."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keeps a value, in the place of the one that had its key."""
        self.forget(key)
        if weight > self._most:
            return
        self._values[key] = (value, weight)
        self._weight += weight
        while self._weight > self._most:
            self._weight -= self._values.popitem(last=False)[1][1]

    def forget(self, key: K) -> None:
        if (found := self._values.pop(key, None)) is not None:
            self._weight -= found[1]

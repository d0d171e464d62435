"""A cache with bounds: the entry that was used longest ago goes first."""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Values by their keys, at most ``most`` of them; None sets no bound on their number.

    ``most_weight`` bounds the sum of the weights that `put` gets. With several bounds, each entry has as many weights.
    An entry that alone exceeds a bound is not kept, unless ``keeps_newest``: then the newest entry always stays.
    Iteration begins with the entry that was used longest ago, and counts as no use. Threads may share a cache.
    """

    def __init__(self, most: int | None = None, *most_weight: int, keeps_newest: bool = False) -> None:
        self._bounds = (most, *most_weight)
        self._sums = [0] * len(self._bounds)
        self._least = 1 if keeps_newest else 0
        self._entries: OrderedDict[K, tuple[V, tuple[int, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter([*self._entries])

    def items(self) -> Iterator[tuple[K, V]]:
        """The keys with their values."""
        with self._lock:
            return iter([(key, value) for key, (value, _) in self._entries.items()])

    def get(self, key: K) -> V | None:
        """The value of a key, or None if there is no entry. This is a use of the entry."""
        with self._lock:
            if (found := self._entries.get(key)) is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, *weights: int) -> None:
        """Keeps a value under a key, as the newest entry. It takes the place of the value that the key had."""
        if len(weights) != len(self._bounds) - 1:
            raise TypeError(f"an entry needs {len(self._bounds) - 1} weights, and has {len(weights)}")
        counts = (1, *weights)
        with self._lock:
            self._pop(key)
            if not self._least and _exceeds(counts, self._bounds):
                return
            self._entries[key] = (value, counts)
            self._count(counts, 1)
            while len(self._entries) > self._least and _exceeds(self._sums, self._bounds):
                self._count(self._entries.popitem(last=False)[1][1], -1)

    def demote(self, key: K) -> None:
        """Makes an entry the next one to go, as if it had been used longest ago."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key, last=False)

    def pop(self, key: K) -> V | None:
        """Removes an entry. Returns its value, or None if there is no entry."""
        with self._lock:
            return self._pop(key)

    def _pop(self, key: K) -> V | None:
        if (found := self._entries.pop(key, None)) is None:
            return None
        self._count(found[1], -1)
        return found[0]

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._sums = [0] * len(self._bounds)

    def _count(self, counts: tuple[int, ...], sign: int) -> None:
        self._sums = [sum + sign * count for sum, count in zip(self._sums, counts, strict=True)]


def _exceeds(counts: tuple[int, ...] | list[int], bounds: tuple[int | None, ...]) -> bool:
    return any(bound is not None and count > bound for count, bound in zip(counts, bounds, strict=True))

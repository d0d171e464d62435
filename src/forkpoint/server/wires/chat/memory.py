"""What a server keeps in memory for chat completions: the hot set of conversations, and caches bounded by weight."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeightedCache(Generic[K, V]):
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


Key: TypeAlias = tuple[str, str]
"""A tenant, and a conversation's name there."""


class Entry:
    """What is in memory of one conversation."""

    __slots__ = ("expected", "id", "used")

    def __init__(self, id: str) -> None:
        self.id = id
        self.used = 0.0  # when it was last used, by the clock of the set that it is in
        self.expected: tuple[bytes, int] | None = None  # a head, and the list that a client will send next from there


class HotSet:
    """The conversations in memory: at most ``most``, each until nobody has used it for ``ttl`` seconds.

    There may be more while all are in use. ``dropped`` is told of each that goes, when it is gone already.
    """

    def __init__(
        self,
        most: int,
        ttl: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        dropped: Callable[[Key, Entry], None] = lambda key, entry: None,
    ) -> None:
        self._most = most
        self._ttl = ttl
        self._clock = clock
        self._dropped = dropped
        self._idle: OrderedDict[Key, Entry] = OrderedDict()  # the one that was used longest ago stands first
        self._held: dict[Key, Entry] = {}  # those in use
        self._users: dict[Key, int] = {}  # how many use a name, whether there is an entry for it or not

    def __len__(self) -> int:
        return len(self._idle) + len(self._held)

    def get(self, key: Key) -> Entry | None:
        """What is in memory under a name; that counts as a use. None if there is nothing, or if its time ran out."""
        entry = self._held.get(key)
        if entry is not None:
            return entry
        entry = self._idle.get(key)
        if entry is None:
            return None
        now = self._clock()
        if self._ran_out(entry, now):
            self._drop(key)
            return None
        self._touch(key, entry, now)
        return entry

    def put(self, key: Key, entry: Entry) -> None:
        """Keeps this under a name. Another conversation that was there goes; the same one is just replaced.

        What is put is not dropped before somebody else comes, even if all others are in use.
        """
        before = self._held.pop(key, None) or self._idle.pop(key, None)
        if key in self._users:
            self._held[key] = entry
        else:
            self._touch(key, entry, self._clock())
        if before is not None and before.id != entry.id:
            self._dropped(key, before)
        self._trim(spared=key)

    @contextmanager
    def busy(self, key: Key) -> Iterator[None]:
        """While the block runs, what is or comes under this name stays in memory. What ran out before does not."""
        if key in self._idle and self._ran_out(self._idle[key], self._clock()):
            self._drop(key)
        self._users[key] = self._users.get(key, 0) + 1
        if (entry := self._idle.pop(key, None)) is not None:
            self._held[key] = entry
        try:
            yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                if (entry := self._held.pop(key, None)) is not None:
                    self._touch(key, entry, self._clock())
                self._trim()

    def forget(self, key: Key) -> None:
        """Drops what is under a name, in use or not."""
        self._drop(key)

    def sweep(self) -> float | None:
        """Drops what ran out. Gives the seconds until the next one does; None if nothing waits for that."""
        now = self._clock()
        while self._idle:
            key, entry = next(iter(self._idle.items()))
            if not self._ran_out(entry, now):
                left = self._ttl - (now - entry.used)
                return left if left < math.inf else None
            self._drop(key)
        return None

    def _ran_out(self, entry: Entry, now: float) -> bool:
        return now - entry.used >= self._ttl

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        entry.used = now
        self._idle[key] = entry
        self._idle.move_to_end(key)

    def _trim(self, spared: Key | None = None) -> None:
        while len(self) > self._most and self._idle:
            key = next(iter(self._idle))
            if key == spared:  # the newest is the only one left that is idle
                return
            self._drop(key)

    def _drop(self, key: Key) -> None:
        entry = self._held.pop(key, None) or self._idle.pop(key, None)
        if entry is not None:
            self._dropped(key, entry)

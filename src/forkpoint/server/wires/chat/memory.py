"""The hot set: the conversations that a server keeps in memory for chat completions, bounded by number and by time.

The hot set drops memory and no more: the store still has the conversation, if the store is durable. A conversation in
use is never dropped; its idle time begins when its use ends.
"""

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Key: TypeAlias = tuple[str, str]
"""A tenant, and a conversation's name there."""


class Entry:
    """What is in memory of one conversation."""

    __slots__ = ("expected", "id", "used")

    def __init__(self, id: str) -> None:
        self.id = id
        self.used = 0.0  # when it was last used, by the clock of the set that it is in
        self.expected: tuple[bytes, int] | None = None  # a head, and the list that a client will send next from there


class Aside:
    """The branch beside a conversation that answers one request."""

    __slots__ = ("ended", "id", "is_decided", "revision", "turn")

    def __init__(self, id: str, revision: int) -> None:
        self.id = id
        self.revision = revision  # of the conversation, when the request came
        self.is_decided = asyncio.Event()  # the turn there has begun, or was refused
        self.turn: str | None = None  # once it has begun
        self.ended = -math.inf  # when the turn ended, by `time.monotonic`


class HotSet:
    """The conversations in memory: at most ``most``, each until nobody has used it for ``ttl`` seconds.

    There may be more while all are in use. The set calls ``dropped`` for each entry after it has gone.
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
        self._entries: OrderedDict[Key, Entry] = OrderedDict()  # the entry that was used longest ago stands first
        self._users: Counter[Key] = Counter()  # how many use a name, whether there is an entry for it or not

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """What is in memory under a name, or None. This counts as a use. An entry whose time ran out is dropped."""
        self._drop_if_ran_out(key)
        if (entry := self._entries.get(key)) is not None:
            self._touch(key, entry)
        return entry

    def put(self, key: Key, entry: Entry) -> None:
        """Keeps this under a name. Another conversation that was there goes; the same one is just replaced.

        The new entry is not dropped before somebody else comes, even if all others are in use.
        """
        before = self._entries.get(key)
        self._touch(key, entry)
        if before is not None and before.id != entry.id:
            self._dropped(key, before)
        self._trim(spared=key)

    @contextmanager
    def busy(self, key: Key) -> Iterator[None]:
        """While the block runs, what is or comes under this name stays in memory. What ran out before does not."""
        self._drop_if_ran_out(key)
        self._users[key] += 1
        try:
            yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                if (entry := self._entries.get(key)) is not None:
                    self._touch(key, entry)
                self._trim()

    def move(self, old: Key, new: Key) -> None:
        """Keeps what is under a name under another one: its conversation was renamed."""
        if old != new and (entry := self._entries.pop(old, None)) is not None:
            self.put(new, entry)

    def forget(self, key: Key) -> None:
        """Drops what is under a name, in use or not."""
        if (entry := self._entries.pop(key, None)) is not None:
            self._dropped(key, entry)

    def sweep(self) -> float | None:
        """Drops what ran out. Returns the seconds until the next entry does; None if no entry waits for that."""
        while (key := next(self._idle(), None)) is not None:
            self._drop_if_ran_out(key)
            if (entry := self._entries.get(key)) is not None:
                left = self._ttl - (self._clock() - entry.used)
                return left if left < math.inf else None
        return None

    def _idle(self) -> Iterator[Key]:
        return (key for key in self._entries if key not in self._users)

    def _drop_if_ran_out(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None and key not in self._users and self._clock() - entry.used >= self._ttl:
            self.forget(key)

    def _touch(self, key: Key, entry: Entry) -> None:
        entry.used = self._clock()
        self._entries[key] = entry
        self._entries.move_to_end(key)

    def _trim(self, spared: Key | None = None) -> None:
        while len(self) > self._most:
            key = next(self._idle(), spared)
            if key is None or key == spared:  # all others are in use
                return
            self.forget(key)

"""A provider's prompt cache, simulated: how much of each prompt would have been cached, and how much written.

Two kinds of cache exist, and the wire tells which one a request meets.

- **OpenAI** (``chat``, ``responses``, and models in this process): the start of the prompt and `prompt_cache_key`
  choose a shard. There the longest known prefix counts, in whole steps of ``granularity`` tokens. The same prompt with
  another key lands on another shard and misses.
- **Anthropic** (``messages``): there is no key, only bytes count. A prefix is written where a block carries
  `cache_control`, and nowhere else; a mark looks at no more than ``lookback`` blocks, itself among them, for an earlier
  write.

Both forget a prefix that was not used for ``ttl`` seconds, and neither keeps a prompt under ``minimum`` tokens. Tokens
are estimated: four bytes are one.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Protocol

from forkpoint.events import Usage
from forkpoint.testing.prompts import BYTES_IN_A_TOKEN, Prompt, prompt_of, tokens_of

_ROUTED_BY = 256  # tokens at the start of a prompt that OpenAI routes by
_LONG = "1h"  # the ttl of a mark that is kept twelve times as long


class RecordedRequest(Protocol):
    """What `SimulatedCache.count` takes of a request that a server recorded."""

    @property
    def prompt(self) -> Prompt: ...
    @property
    def key(self) -> str | None: ...
    @property
    def wire(self) -> str | None: ...


class SimulatedCache:
    """Counts cached and written tokens as a provider's cache would. Safe to share between threads.

    ``clock`` gives seconds. Routes take the shards in turn, so as many keys as there are shards never share one by
    accident.
    """

    def __init__(
        self,
        *,
        shards: int = 8,
        minimum: int = 1024,
        ttl: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        granularity: int = 128,
        lookback: int = 20,
    ) -> None:
        self._shards: list[dict[bytes, float]] = [{} for _ in range(shards)]  # prefix to the time when it is forgotten
        self._routes: dict[bytes, int] = {}
        self._written: dict[bytes, tuple[float, float]] = {}  # prefix to (forgotten at, kept for)
        self._minimum = minimum
        self._ttl = ttl
        self._clock = clock
        self._step = granularity
        self._lookback = lookback
        self._lock = threading.Lock()

    def count(
        self,
        request: RecordedRequest | Sequence[bytes],
        *,
        key: str | None = None,
        wire: str | None = None,
        marks: Sequence[int] = (),
    ) -> Usage:
        """The usage of a recorded request, or of blocks, whose prompt is in the cache from now on.

        Key, wire (``chat`` by default) and marks are those of the request; with bare blocks they are given.
        """
        if isinstance(request, Sequence):
            prompt = Prompt(tuple(request), tuple(marks), ("5m",) * len(marks))
            return self._count(prompt, key, wire or "chat")
        return self._count(request.prompt, request.key, request.wire or "chat")

    def of_body(self, body: Any, *, wire: str, key: str | None) -> Usage:
        """The usage of a request with this JSON, whose prompt is in the cache from now on."""
        return self._count(prompt_of(body, wire), key, wire)

    def forget(self) -> None:
        """Empties the cache, as a provider does when it restarts."""
        with self._lock:
            self._routes.clear()
            self._written.clear()
            for shard in self._shards:
                shard.clear()

    def _count(self, prompt: Prompt, key: str | None, wire: str) -> Usage:
        with self._lock:
            cached, known = self._at_marks(prompt) if wire == "messages" else self._in_shard(prompt, key)
        return Usage(calls=1, input=prompt.tokens, cached=cached, written=known - cached)

    # Both give how many tokens were known, and how many are known now.

    def _in_shard(self, prompt: Prompt, key: str | None) -> tuple[int, int]:
        total = prompt.tokens
        if total < self._minimum:
            return 0, 0
        stream = b"".join(map(_padded, prompt.blocks))
        shard = self._shards[self._route(prompt.head + stream[: self._routing_bytes], key)]
        now = self._clock()
        prefixes = list(_steps(prompt.head, stream, self._step * BYTES_IN_A_TOKEN))
        hits = sum(1 for _ in takewhile(lambda prefix: shard.get(prefix, now) > now, prefixes))
        shard.update(dict.fromkeys(prefixes, now + self._ttl))
        cached = hits * self._step
        return (cached if cached >= self._minimum else 0), len(prefixes) * self._step

    @property
    def _routing_bytes(self) -> int:
        # Never more than the shortest prompt that is cached: a prompt that grows must stay on its shard.
        return min(_ROUTED_BY, self._minimum) * BYTES_IN_A_TOKEN

    def _route(self, start: bytes, key: str | None) -> int:
        route = _hash(_hash(start), (key or "").encode())
        return self._routes.setdefault(route, len(self._routes) % len(self._shards))

    def _at_marks(self, prompt: Prompt) -> tuple[int, int]:
        now = self._clock()
        prefixes, tokens = _prefixes(prompt)
        cached, used = 0, b""
        for mark in prompt.marks:
            for place in range(mark, max(mark - self._lookback, -1), -1):
                if self._written.get(prefixes[place], (now, 0.0))[0] > now:
                    if tokens[place] > cached:
                        cached, used = tokens[place], prefixes[place]
                    break
        if used:
            kept = self._written[used][1]
            self._written[used] = (now + kept, kept)
        known = cached
        for mark, ttl in zip(prompt.marks, prompt.ttls, strict=True):
            if tokens[mark] >= self._minimum:
                kept = self._ttl * 12 if ttl == _LONG else self._ttl
                self._written[prefixes[mark]] = (now + kept, kept)
                known = max(known, tokens[mark])
        return cached, known


def _prefixes(prompt: Prompt) -> tuple[list[bytes], list[int]]:
    """For each block, what identifies the prompt up to its end, and how many tokens that is."""
    prefixes, tokens = [], []
    prefix, total = _hash(b"", prompt.head), 0
    for place, block in enumerate(prompt.blocks):
        if place == prompt.first_message:
            prefix = _hash(prefix, prompt.turn)
        prefix = _hash(prefix, block)
        total += tokens_of(block)
        prefixes.append(prefix)
        tokens.append(total)
    return prefixes, tokens


def _steps(head: bytes, stream: bytes, step: int) -> Iterator[bytes]:
    """What identifies the first step of a prompt, the first two, and so on. A step that is not full has none."""
    prefix = _hash(b"", head)
    for start in range(0, len(stream) - step + 1, step):
        prefix = _hash(prefix, stream[start : start + step])
        yield prefix


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()


def _padded(block: bytes) -> bytes:
    return block + b"\0" * (-len(block) % BYTES_IN_A_TOKEN)  # a block starts with a token of its own

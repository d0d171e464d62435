"""Slots: which call runs where, so that a prompt that was read once is not read again.

llama.cpp keeps what it has read in slots, one for each call under way. When a call starts, it also copies what idle
slots hold into a cache in memory, and it may fill the call's slot from there; but what it takes from the cache is gone
from it. Left to itself it loses much of that to forks: a fork's call overwrites the end of its source's slot, so the
two take turns at reading their ends again; and while the source's call runs, its slot is nobody else's, so the fork
reads everything from the start.

So calls are placed here, by what their prompts have in common:

- **A conversation goes on in a copy** of its slot, if there is a slot to spare. The original stays, for forks that come
  meanwhile. To spare is a slot that holds nothing, or nothing that another does not hold as well.
- **A fork goes on in the very slot** of its source, whose own state is put into the cache before.
- **A conversation whose slot another took** is filled from the cache, where its own state is.

A slot is *washed* by reading a few tokens into it that no prompt begins with. That makes llama.cpp put all idle slots
into the cache, and fill the washed slot from there when the next call starts in it.
"""

import hashlib
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.threads.wakeup import result_of

WORTH = 400
"""Characters that are worth looking for. Fewer are read again in a moment."""

PARKED = 64
"""How many prompts are remembered to be in llama.cpp's cache. If it has dropped one, the call just reads more."""


class PromptLink(Struct, frozen=True):
    """A message of a prompt. Two prompts with equal digests are the same up to here."""

    digest: bytes
    size: int  # characters up to here


Chain: TypeAlias = tuple[PromptLink, ...]


class SlotPlace(Struct, frozen=True):
    """Where a call runs, and which slot is to be washed before: its own, another, or none."""

    slot: int
    wash: int | None


def chain_of(body: Mapping[str, Any]) -> Chain:
    """The prompt in the body of a chat request, message by message. A template puts the tools into the first."""
    links: list[PromptLink] = []
    digest, size = b"", 0
    for number, message in enumerate(body.get("messages") or ()):
        text = msgspec.json.encode((body.get("tools"), message) if number == 0 else message)
        digest = hashlib.blake2b(digest + text, digest_size=16).digest()
        size += len(text)
        links.append(PromptLink(digest, size))
    return tuple(links)


class Slots:
    """All slots of an engine. Whoever finds none idle waits in line. Callers may be in any thread and any loop."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, Chain] = dict.fromkeys(range(count), ())  # of a busy slot: what it will hold
        self._idle = list(range(count))  # the one that was idle longest stands first
        self._fresh: set[int] = set()  # idle slots that are not in the cache yet
        self._parked: list[Chain] = []  # what is in the cache and in no slot, the oldest first
        self._washing: set[int] = set()
        self._line: deque[tuple[Chain, Future[SlotPlace]]] = deque()

    async def take(self, chain: Chain) -> SlotPlace:
        """A slot for a prompt, to be given back. Cancelled while it waits, the caller has taken none."""
        waiting: Future[SlotPlace] = Future()
        with self._lock:
            self._line.append((chain, waiting))
            self._serve()
        try:
            return await result_of(waiting)
        except BaseException:
            if not waiting.cancel():  # it was handed over just now
                self.give_back(waiting.result())
            raise

    def washed(self, place: SlotPlace) -> None:
        """The washing is done, so that a slot which was only washed is free again."""
        with self._lock:
            if place.wash is not None and place.wash in self._washing:
                self._washing.remove(place.wash)
                self._idle.insert(0, place.wash)
                self._serve()

    def give_back(self, place: SlotPlace) -> None:
        """The call has ended."""
        self.washed(place)
        with self._lock:
            self._fresh.add(place.slot)
            self._idle.append(place.slot)
            self._serve()

    @property
    def idle(self) -> int:
        """How many slots nobody uses."""
        return len(self._idle)

    @property
    def waiting(self) -> int:
        """How many callers stand in line."""
        return sum(not waiting.cancelled() for _, waiting in list(self._line))

    def _serve(self) -> None:
        while self._idle and self._line:
            chain, waiting = self._line.popleft()
            if waiting.set_running_or_notify_cancel():  # from here on it cannot be cancelled
                waiting.set_result(self._place(chain))

    def _place(self, chain: Chain) -> SlotPlace:
        place = self._choose(chain)
        washing = {place.wash} if place.wash is not None else set()
        for slot in washing | {place.slot}:
            self._idle.remove(slot)
            self._park(self._held[slot])
            self._held[slot] = ()
        self._washing |= washing - {place.slot}
        self._held[place.slot] = chain
        self._parked = [parked for parked in self._parked if not _is_within(parked, chain)]
        self._fresh.clear()  # a call that starts puts all idle slots into the cache
        return place

    def _choose(self, chain: Chain) -> SlotPlace:
        best = max(self._idle, key=lambda slot: (shared(self._held[slot], chain), -len(self._held[slot])))
        found = shared(self._held[best], chain)
        parked = max((shared(parked, chain) for parked in self._parked), default=0)
        others = [slot for slot in self._idle if slot != best]
        spare = next((slot for slot in others if self._is_spare(slot)), None)
        if parked > found and parked >= WORTH:
            slot = spare if spare is not None else self._idle[0]
            return SlotPlace(slot, wash=slot)
        if found < WORTH:
            slot = next((slot for slot in self._idle if self._is_spare(slot)), self._idle[0])
            return SlotPlace(slot, wash=None)
        if spare is not None and _is_within(self._held[best], chain):
            return SlotPlace(spare, wash=spare)
        if best in self._fresh and others:
            return SlotPlace(best, wash=spare if spare is not None else others[0])
        return SlotPlace(best, wash=None)

    def _is_spare(self, slot: int) -> bool:
        others: Iterable[Chain] = (*(held for other, held in self._held.items() if other != slot), *self._parked)
        held = self._held[slot]
        return not held or any(_is_within(held, other) and len(held) < len(other) for other in others)

    def _park(self, chain: Chain) -> None:
        if chain and not any(_is_within(chain, parked) for parked in self._parked):
            self._parked = [*self._parked, chain][-PARKED:]


def shared(one: Chain, other: Chain) -> int:
    """How many characters two prompts have in common at their start."""
    common = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours.digest != theirs.digest:
            break
        common = ours.size
    return common


def _is_within(one: Chain, other: Chain) -> bool:
    """Whether the one prompt is the other's beginning."""
    return len(one) <= len(other) and (not one or one[-1].digest == other[len(one) - 1].digest)

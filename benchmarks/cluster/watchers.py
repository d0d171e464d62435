"""Watchers: each follows the stream of one conversation, on any node, and hears every event once and in order."""

import threading
import time

import httpx2

from benchmarks.cluster.caller import Caller, frames
from benchmarks.cluster.ledger import Ledger, Talk


class Watcher:
    """Follows a conversation, and reconnects with the last id that it heard."""

    def __init__(self, talk: Talk, caller: Caller, ledger: Ledger) -> None:
        self.talk = talk
        self.heard: list[str] = []
        self._caller = caller
        self._ledger = ledger

    async def work(self, stopped: threading.Event) -> None:
        tries = 0
        while not stopped.is_set():
            try:
                await self._follow(stopped)
                tries = 0
            except httpx2.TransportError as error:
                self._ledger.count(f"a watcher reconnected after {type(error).__name__}")
            await self._caller.pause(min(tries, 2))
            tries += 1

    async def catch_up(self, head: str, seconds: float) -> None:
        """Follows until it has heard an event, or the time is up."""
        until = time.monotonic() + seconds
        while (not self.heard or self.heard[-1] != head) and time.monotonic() < until:
            try:
                await self._follow(threading.Event(), head)
            except httpx2.TransportError:
                await self._caller.pause(0)

    def use(self, caller: Caller) -> None:
        """Asks by another caller from now on: one belongs to one event loop."""
        self._caller = caller

    async def close(self) -> None:
        await self._caller.close()

    async def _follow(self, stopped: threading.Event, head: str | None = None) -> None:
        last = {"Last-Event-ID": self.heard[-1]} if self.heard else {}
        path = f"{self.talk.path}/events/stream"
        async with self._caller.stream("GET", path, headers=last) as answer:
            if answer.status_code != 200:
                self._ledger.count(f"a watcher was refused with {answer.status_code}")
                return
            async for name, id, data in frames(answer):
                if name == "event":
                    self.heard.append(id)
                elif name == "rewound":
                    self._ledger.found("lost", f"a stream of {self.talk.id} was rewound: {data}")
                if stopped.is_set() or (head is not None and id == head):
                    return

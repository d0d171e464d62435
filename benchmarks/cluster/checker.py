"""The checker: when all is quiet again, everything that was acknowledged is there, once and whole, and nothing else."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.cluster import workload
from benchmarks.cluster.caller import Caller
from benchmarks.cluster.ledger import Ledger, Talk
from benchmarks.cluster.watchers import Watcher

_AT_ONCE = 8
_SPOKEN = ("user_message", "assistant_message")
_CATCH_UP = 30.0


class Checked(Struct):
    """How much was looked at."""

    conversations: int = 0
    turns: int = 0
    tries: int = 0
    streams: int = 0
    anchors: int = 0
    verified: str = "not done"
    tools: int = 0


class Checker:
    """Compares what the nodes have with the ledger. Each conversation is read from any node."""

    def __init__(self, caller: Caller, ledger: Ledger, notes: Path) -> None:
        self._caller = caller
        self._ledger = ledger
        self._notes = notes
        self._ids: set[str] = set()  # of all tries
        self.tries: Counter[str] = Counter()  # by key: how often a turn with this message was begun
        self.checked = Checked()

    async def check(self, watchers: Sequence[Watcher]) -> Checked:
        many = asyncio.Semaphore(_AT_ONCE)

        async def one(talk: Talk) -> None:
            async with many:
                await self._talk(talk)

        await asyncio.gather(*(one(talk) for talk in self._ledger.talks))
        for turn, (conversation, text) in self._ledger.accepted.items():
            if turn not in self._ids:
                self._ledger.found("lost", f"turn {turn} of {conversation} ({text!r}) was accepted, and is not there")
        self.compare_tools()
        for watcher in watchers:
            await self._watcher(watcher)
        await self._verify()
        await self._caller.close()
        return self.checked

    async def _talk(self, talk: Talk) -> None:
        self.checked.conversations += 1
        answer = await self._caller.ask("GET", talk.path)
        if answer.status != 200:
            self._ledger.found("lost", f"conversation {talk.id} is answered with {answer.status} {answer.code}")
            return
        info = answer.body
        if info["status"] != "idle" or info["open_turn"] is not None:
            self._ledger.found("stuck", f"conversation {talk.id} is {info['status']}, open turn {info['open_turn']}")
        if talk.title is not None and info["title"] != talk.title:
            self._ledger.found("lost", f"conversation {talk.id} has the title {info['title']!r}, not {talk.title!r}")
        events = await self._all(f"{talk.path}/events")
        self.compare(talk, events)
        for turn in await self._all(f"{talk.path}/turns"):
            self.checked.tries += 1
            self._ids.add(turn["id"])
            text = _words(turn["input"][0]["parts"]) if turn.get("input") else ""
            if text.startswith("tool "):
                self.tries[text.split(" ", 2)[2]] += 1

    def compare(self, talk: Talk, events: Sequence[Any]) -> None:
        """Whether the events are those of the acknowledged turns, each whole."""
        turns: dict[str, list[Any]] = {}
        for event in events:
            turns.setdefault(event["turn"], []).append(event)
        there: list[str] = []
        for id, of_turn in turns.items():
            spoken = [event for event in of_turn if event["kind"] in _SPOKEN]
            asked = [_words(event["body"]["parts"]) for event in spoken if event["kind"] == "user_message"]
            last = spoken[-1] if spoken else None
            if len(asked) != 1 or last is None or _words(last["body"]["parts"]) != workload.answer_to(asked[0]):
                self._ledger.found("half", f"turn {id} of {talk.id}: {[event['kind'] for event in of_turn]}, {asked}")
            there += asked
            told = talk.turns.get(asked[0]) if asked else None
            if told not in {None, id}:
                self._ledger.found("doubled", f"{asked[0]!r} was acknowledged as turn {told}, and is turn {id}")
        self.checked.turns += len(there)
        times = Counter(there)
        for text, number in times.items():
            if number > 1:
                self._ledger.found("doubled", f"{talk.id} has {text!r} {number} times")
        for text in talk.texts:
            if not times[text]:
                self._ledger.found("lost", f"{text!r}, turn {talk.turns.get(text)}, is not in {talk.id}")
        known = set(talk.texts)
        for text in there:
            if text not in known:
                self._ledger.found("made up", f"{talk.id} has {text!r}, of which nobody was told")
        if not talk.shared and sorted(there) == sorted(talk.texts) and there != talk.texts:
            self._ledger.found("made up", f"the turns of {talk.id} are in another order than they were acknowledged")

    def compare_tools(self) -> None:
        """No call ran more often than its turn was begun: a turn that goes on elsewhere runs no finished call again."""
        lines = self._notes.read_text(encoding="utf-8").splitlines() if self._notes.exists() else []
        self.checked.tools = len(lines)
        for line, times in Counter(lines).items():
            tries = self.tries[line.rpartition("-")[0]]
            if times > tries:
                self._ledger.found("doubled", f"the tool that notes {line!r} ran {times} times in {tries} tries")

    async def _watcher(self, watcher: Watcher) -> None:
        self.checked.streams += 1
        ids = [event["id"] for event in await self._all(f"{watcher.talk.path}/events")]
        if ids:
            await watcher.catch_up(ids[-1], _CATCH_UP)
        await watcher.close()
        if watcher.heard != ids:
            lost, more = [id for id in ids if id not in watcher.heard], len(watcher.heard) - len(set(watcher.heard))
            self._ledger.found("lost", f"the stream of {watcher.talk.id} missed {lost[:5]} and repeated {more} events")

    async def _verify(self) -> None:
        anchors = self._ledger.anchors
        self.checked.anchors = len(anchors)
        if not anchors:
            self._ledger.count("no anchor was taken")
        answer = await self._caller.ask("POST", "/api/verify", body={"anchors": anchors} if anchors else {})
        said = answer.body
        if answer.status != 200 or not said["ok"]:
            self._ledger.found("not verified", f"{answer.status}: {str(said)[:1500]}")
            self.checked.verified = "NO"
        else:
            counts = [f"{said[name]:,} {name}" for name in ("conversations", "events", "records", "seals")]
            self.checked.verified = ", ".join(counts)

    async def _all(self, path: str) -> list[Any]:
        """All items of a list, page by page."""
        items: list[Any] = []
        query: dict[str, Any] = {"limit": 1000}
        while True:
            answer = await self._caller.ask("GET", path, query=query)
            if answer.status != 200:
                raise AssertionError(f"{path} is answered with {answer.status}: {str(answer.body)[:300]}")
            items += answer.body["items"]
            if answer.body["next"] is None:
                return items
            query["after" if path.endswith("/events") else "cursor"] = answer.body["next"]


def _words(parts: Sequence[Any]) -> str:
    return "".join(part.get("text", "") for part in parts)

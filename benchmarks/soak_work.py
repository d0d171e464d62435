"""What users do to a server in the soak: everything, mixed, and written down, so that it can be checked in the end."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import count
from typing import Any

import httpx2
import msgspec

from forkpoint import AsyncConversation
from forkpoint.testing import Fault, Heard, Reply, ScriptedCall

MOST_TURNS = 12
"""Of a conversation; then another one is begun, so that the last is like the first."""

AGENTS = """\
import os

from forkpoint import LLM, Agent, tool


@tool(risky=True)
def look(at: str) -> str:
    \"\"\"Looks at something.\"\"\"
    return f"nothing unusual at {at}"


CAREFUL = Agent(
    LLM("openai/scripted", api="chat", base_url=os.environ["SOAK_MODEL"], api_key_env="SCRIPTED_MODEL_KEY"),
    tools=[look],
    approval="risky",
)
"""


def reply(heard: Heard) -> Reply:
    """What the model says: the first word of the newest message says how it goes."""
    newest = heard.body["messages"][-1]
    word = heard.text.partition(" ")[0]
    if newest["role"] == "tool":
        return Reply(f"Done: {heard.text}")
    match word:
        case "fail":
            return Reply(fault=Fault("bad_request"))
        case "break":
            return Reply("It is all " * 8, fault=Fault("refused", after=2))
        case "slow":
            return Reply(f"At length: {heard.text}", delay=0.2, pace=0.05)
        case "tool":
            return Reply(calls=(ScriptedCall("look", '{"at": "log"}'),))
        case _:
            return Reply(f"You said: {heard.text}")


class Conversation:
    """One conversation on the server, and what must be in its history: the texts, in order, each once."""

    def __init__(self, id: str, agent: str, texts: list[str] | None = None, turns: list[str] | None = None) -> None:
        self.id = id
        self.agent = agent
        self.texts: list[str] = texts or []
        self.turns: list[str] = turns or []

    @property
    def path(self) -> str:
        return f"/api/conversations/{self.id}"

    def committed(self, text: str, turn: str) -> None:
        self.texts.append(text)
        self.turns.append(turn)


class Broken(Exception):
    """The server did not do what it promised."""


class Ledger:
    """What everybody did, and what must come of it."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.conversations: list[Conversation] = []
        self.problems: list[str] = []
        self.numbers: Iterator[int] = count(1)

    def text(self, word: str) -> str:
        """A message that nobody says twice."""
        return f"{word} number {next(self.numbers)} " + "and some more words " * 5


class User:
    """One user: a conversation at a time, and one action after another, drawn by chance."""

    def __init__(self, url: str, ledger: Ledger, seed: int) -> None:
        self._url = url
        self._ledger = ledger
        self._chance = random.Random(seed)
        self._plain: Conversation | None = None
        self._careful: Conversation | None = None
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=2)
        self._http = httpx2.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False)

    async def work(self, stopped: asyncio.Event) -> None:
        """Works until it is told to stop, and leaves nothing open behind."""
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self._json),
            (6, self._sse),
            (3, self._asynchronous),
            (3, self._repeated),
            (2, self._failing),
            (2, self._disconnected),
            (2, self._cancelled),
            (2, self._approved),
            (1, self._forked),
            (1, self._rewound),
            (3, self._watched),
            (2, self._remote),
        ]
        weights, choices = zip(*actions, strict=True)
        async with self._http:
            while not stopped.is_set():
                action = self._chance.choices(choices, weights)[0]
                name = action.__name__.strip("_")
                try:
                    await action()
                    self._ledger.done[name] = self._ledger.done.get(name, 0) + 1
                except Exception as error:  # whatever it is, it is the finding
                    self._ledger.problems.append(f"{name}: {type(error).__name__}: {error}")
                    self._plain = self._careful = None
                await asyncio.sleep(self._chance.uniform(0.02, 0.12))

    # What they do.

    async def _json(self) -> None:
        it, text = await self._current(), self._ledger.text("say")
        it.committed(text, (await self._turn(it, text))["id"])

    async def _sse(self) -> None:
        it, text = await self._current(), self._ledger.text("say")
        frames = [frame async for frame in self._frames(f"{it.path}/turns", {"message": text})]
        _check(frames[0][0] == "turn_started", f"a stream began with {frames[0]}")
        event, turn = frames[-1]
        _check(event == "turn" and turn["outcome"] == "committed", f"a stream ended with {frames[-1]}")
        it.committed(text, turn["id"])

    async def _asynchronous(self) -> None:
        it, text = await self._current(), self._ledger.text("slow")
        turn = await self._turn(it, text, status=202, headers={"Prefer": "respond-async"})
        ended = await self._ended(it, turn["id"])
        _check(ended["outcome"] == "committed", f"it ended as {ended['outcome']}")
        it.committed(text, turn["id"])

    async def _repeated(self) -> None:
        it, text = await self._current(), self._ledger.text("slow")
        headers = {"Idempotency-Key": f"key-{self._chance.getrandbits(64):x}"}
        both = await asyncio.gather(self._turn(it, text, headers=headers), self._turn(it, text, headers=headers))
        again = await self._turn(it, text, headers=headers)
        ids = {turn["id"] for turn in (*both, again)}
        _check(len(ids) == 1, f"one key made {len(ids)} turns")
        it.committed(text, again["id"])

    async def _failing(self) -> None:
        it, text = await self._current(), self._ledger.text(self._chance.choice(["fail", "break"]))
        answer = await self._http.post(f"{it.path}/turns", json={"message": text})
        _check(answer.status_code >= 400, f"a failing model gave {answer.status_code}")
        turn = answer.json().get("turn") or {}
        _check(turn.get("outcome") == "failed", f"a failing model gave {answer.text[:300]}")

    async def _disconnected(self) -> None:
        it, text = await self._current(), self._ledger.text("slow")
        stops = self._chance.random() < 0.5
        body = {"message": text, "cancel_on_disconnect": stops}
        turn = ""
        async with aclosing(self._frames(f"{it.path}/turns", body)) as frames:
            async for event, data in frames:
                if event == "turn_started":
                    turn = data["id"]
                if event == "text":
                    break
        ended = await self._ended(it, turn)
        outcomes = {"committed", "cancelled"} if stops else {"committed"}
        _check(ended["outcome"] in outcomes, f"after its client had gone it ended as {ended['outcome']}")
        if ended["outcome"] == "committed":
            it.committed(text, turn)

    async def _cancelled(self) -> None:
        it, text = await self._current(), self._ledger.text("slow")
        turn = await self._turn(it, text, status=202, headers={"Prefer": "respond-async"})
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        answer = await self._http.post(f"{it.path}/turns/{turn['id']}/cancel")
        outcome = answer.json().get("outcome")
        _check(outcome in {"cancelled", "committed"}, f"a cancelled turn is {answer.text[:300]}")
        if outcome == "committed":
            it.committed(text, turn["id"])

    async def _approved(self) -> None:
        it, text = await self._current(careful=True), self._ledger.text("tool")
        turn = await self._turn(it, text, outcome="awaiting_approval")
        verb = self._chance.choice(["approve", "deny", "discard"])
        answer = await self._http.post(f"{it.path}/turns/{turn['id']}/{verb}", json={})
        wanted = "cancelled" if verb == "discard" else "committed"
        _check(answer.json().get("outcome") == wanted, f"{verb} gave {answer.text[:300]}")
        if wanted == "committed":
            it.committed(text, turn["id"])

    async def _forked(self) -> None:
        it = await self._current()
        answer = await self._http.post(f"{it.path}/fork", json={"cache": self._chance.choice(["own", "inherit"])})
        _check(answer.status_code == 201, f"a fork gave {answer.text[:300]}")
        fork = Conversation(answer.json()["id"], it.agent, [*it.texts], [*it.turns])
        text = self._ledger.text("say")
        fork.committed(text, (await self._turn(fork, text))["id"])
        if self._chance.random() < 0.5:
            answer = await self._http.delete(fork.path)
            _check(answer.status_code == 204, f"a deletion gave {answer.text[:300]}")
        else:
            self._ledger.conversations.append(fork)

    async def _rewound(self) -> None:
        it = await self._current()
        if not it.turns:
            return
        answer = await self._http.post(f"{it.path}/rewind", json={"before": it.turns[-1]})
        _check(answer.status_code == 200, f"a rewind gave {answer.text[:300]}")
        aside = answer.json()["aside"]
        self._ledger.conversations.append(Conversation(aside["id"], it.agent, [*it.texts], [*it.turns]))
        it.texts.pop()
        it.turns.pop()

    async def _watched(self) -> None:
        """A stream that comes, hears of two turns, and goes; often in the middle of one."""
        it = await self._current()
        heard: list[str] = []
        opened = asyncio.Event()

        async def listen() -> None:
            path = f"{it.path}/events/stream?after=head"
            async with self._http.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
                opened.set()
                async for event, data in _events(answer):
                    if event == "event" and data["kind"] == "user_message":
                        heard.append(data["turn"])

        listening = asyncio.create_task(listen())
        try:
            await opened.wait()
            for _ in range(2):
                text = self._ledger.text("say")
                it.committed(text, (await self._turn(it, text))["id"])
            for _ in range(200):
                if len(heard) == 2:
                    break
                await asyncio.sleep(0.02)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        _check(heard == it.turns[-2:], f"a stream told of {heard}, and not of {it.turns[-2:]}")

    async def _remote(self) -> None:
        """The Python API from afar."""
        it = await self._current()
        async with await AsyncConversation.open(it.id, store=self._url) as conversation:
            text = self._ledger.text("say")
            turn = await conversation.run(text)
            it.committed(text, turn.id)
            _check(turn.text == f"You said: {text}", f"the answer was {turn.text!r}")

    # How they do it.

    async def _current(self, *, careful: bool = False) -> Conversation:
        it = self._careful if careful else self._plain
        if it is None or len(it.texts) >= MOST_TURNS:
            agent = "careful" if careful else "plain"
            answer = await self._http.post("/api/conversations", json={"agent": agent})
            _check(answer.status_code == 201, f"a new conversation gave {answer.text[:300]}")
            it = Conversation(answer.json()["id"], agent)
            self._ledger.conversations.append(it)
            if careful:
                self._careful = it
            else:
                self._plain = it
        return it

    async def _turn(
        self,
        it: Conversation,
        text: str,
        *,
        status: int = 200,
        outcome: str = "committed",
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        answer = await self._http.post(f"{it.path}/turns", json={"message": text}, headers=headers)
        turn: dict[str, Any] = answer.json()
        _check(answer.status_code == status, f"a turn gave {answer.status_code}, not {status}: {answer.text[:300]}")
        _check(status != 200 or turn["outcome"] == outcome, f"a turn is {turn.get('outcome')}, not {outcome}")
        return turn

    async def _ended(self, it: Conversation, turn: str) -> dict[str, Any]:
        for _ in range(5):
            answer = await self._http.get(f"{it.path}/turns/{turn}", params={"wait": 10})
            found: dict[str, Any] = answer.json()
            if found.get("outcome") != "running":
                return found
        raise Broken(f"turn {turn} still runs")

    async def _frames(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Accept": "text/event-stream"}
        async with self._http.stream("POST", path, json=body, headers=headers) as answer:
            _check(answer.status_code == 200, f"a stream gave {answer.status_code}")
            async for frame in _events(answer):
                yield frame


async def _events(answer: httpx2.Response) -> Any:
    """The events of a stream, each with its name and its data."""
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, msgspec.json.decode(line.removeprefix("data: "))


def _check(holds: bool, else_: str) -> None:
    if not holds:
        raise Broken(else_)

"""The clients: each goes on with a few conversations of its own and with some that all share, by any node.

A client asks until it has an answer. A request that takes long, since a dead node still holds its turn, goes on in
the background, and the client turns to another conversation, as people do.
"""

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from benchmarks.cluster import workload
from benchmarks.cluster.caller import Answer, Caller, Stuck, frames
from benchmarks.cluster.ledger import Ledger, Talk

MOST_TURNS = 20
"""Of a conversation that is a client's own; then it begins another one."""

_OPEN = ("running", "interrupted")
_PATIENT = 4.0  # seconds, then an action goes on in the background
_BACKGROUND = 4  # actions of a client at most


class Client:
    """One client. Its actions are drawn by chance, and each is repeated until it is answered."""

    def __init__(
        self,
        name: str,
        caller: Caller,
        ledger: Ledger,
        shared: list[Talk],
        chance: random.Random,
        *,
        adoption: float,
        place: str,
    ) -> None:
        self._name = name
        self._place = place
        self._caller = caller
        self._ledger = ledger
        self._shared = shared
        self._chance = chance
        self._adoption = adoption  # seconds within which another node has gone on with an accepted turn
        self._own: list[Talk] = []
        self._number = 0

    async def work(self, stopped: threading.Event) -> None:
        """Works until it is told to stop, and then until nothing of its own is open."""
        background: set[asyncio.Task[None]] = set()
        while not stopped.is_set():
            if len(background) >= _BACKGROUND:
                _, background = await asyncio.wait(background, return_when=asyncio.FIRST_COMPLETED)
                continue
            task = asyncio.create_task(self._act())
            done, _ = await asyncio.wait([task], timeout=_PATIENT)
            if not done:
                background.add(task)
            background = {task for task in background if not task.done()}
        if background:
            await asyncio.wait(background)
        await self._caller.close()

    async def _act(self) -> None:
        action = self._choose()
        self._ledger.asked += 1
        try:
            await action()
        except Stuck as stuck:
            self._ledger.found("stuck", f"{self._name}: {stuck}")
        except Exception as error:  # whatever it is, it is the finding
            self._ledger.found("crashed", f"{self._name}: {type(error).__name__}: {error}")
        finally:
            self._ledger.answered += 1

    def _choose(self) -> Callable[[], Awaitable[None]]:
        free = [talk for talk in self._own if not talk.taken and len(talk.texts) - talk.inherited < MOST_TURNS]
        chance = self._chance.random()
        if not free or chance < 0.04:
            return self._create
        if chance < 0.2 and self._shared:
            talk = self._chance.choice(self._shared)
            return lambda: self._turn(talk)
        talk = self._chance.choice(free[-4:])
        talk.taken = True
        if chance < 0.28:
            return lambda: self._freeing(talk, self._fork)
        if chance < 0.34:
            return lambda: self._freeing(talk, self._rename)
        return lambda: self._freeing(talk, self._turn)

    async def _freeing(self, talk: Talk, action: Callable[[Talk], Awaitable[None]]) -> None:
        await action(talk)
        talk.taken = False  # not after an error: then nobody knows what is there

    # What they do.

    async def _create(self) -> None:
        answer = await self._caller.ask("POST", "/api/conversations", body={}, key=self._fresh())
        self._expect(answer, 201)
        self._ledger.acknowledged("new conversation", conversation=answer.body["id"])
        self._made(Talk(answer.body["id"]))

    async def _fork(self, talk: Talk) -> None:
        texts = list(talk.texts)
        answer = await self._caller.ask("POST", f"{talk.path}/fork", body={}, key=self._fresh())
        self._expect(answer, 201)
        self._ledger.acknowledged("fork", conversation=answer.body["id"], source=talk.id)
        self._made(Talk(answer.body["id"], texts=texts))

    async def _rename(self, talk: Talk) -> None:
        title = self._fresh()
        answer = await self._caller.ask("PATCH", talk.path, body={"title": title})
        self._expect(answer, 200)
        talk.title = title
        self._ledger.acknowledged("title", conversation=talk.id, title=title)

    async def _turn(self, talk: Talk) -> None:
        key = self._fresh()
        kind = self._chance.random()
        if kind < 0.25:
            text = workload.use_tool(key, self._chance.randint(1, 3))
        else:
            text = workload.slow(key) if kind < 0.4 else workload.say(key)
        how = self._chance.choice(["json", "json", "stream", "accepted"])
        if how == "stream":
            await self._streamed(talk, text, key)  # what counts is what the repeated request says
        turn = await self._committed(talk, text, key, accepted=how == "accepted")
        said = turn["text"]
        if said != workload.answer_to(text):
            self._ledger.found("half", f"turn {turn['id']} of {talk.id} was answered with {said!r} to {text!r}")
        self._ledger.committed(talk, text, turn["id"], how, self._place)

    async def _streamed(self, talk: Talk, text: str, key: str) -> None:
        """One try to run a turn as a stream. Its end is looked at by asking again with the same key."""
        body, headers = {"message": text}, {"Idempotency-Key": key}
        try:
            async with self._caller.stream("POST", f"{talk.path}/turns", body=body, headers=headers) as answer:
                if answer.status_code != 200:
                    self._ledger.count(f"a stream was refused with {answer.status_code}")
                    return
                async for name, _, _ in frames(answer):
                    if name in {"turn", "error"}:
                        self._ledger.count(f"a stream ended with {name}")
                        return
            self._ledger.count("a stream broke off")
        except httpx2.TransportError as error:
            self._ledger.count(f"a stream broke off: {type(error).__name__}")

    async def _committed(self, talk: Talk, text: str, key: str, *, accepted: bool) -> dict[str, Any]:
        """The turn, once it has committed: asked for again and again with the same key."""
        headers = {"Prefer": "respond-async"} if accepted else {}
        body = {"message": text}
        for number in range(1000):
            answer = await self._caller.ask("POST", f"{talk.path}/turns", body=body, key=key, headers=headers)
            match answer.status, answer.code:
                case 200, _:
                    turn: dict[str, Any] = answer.body
                    return turn
                case 202, _:
                    id = answer.body["id"]
                    if id not in self._ledger.accepted:
                        self._ledger.accepted[id] = talk.id, text
                        self._ledger.acknowledged("accepted (202)", conversation=talk.id, turn=id)
                    await self._ended(talk, id)
                    headers = {}
                case 409, "turn_open":
                    await self._go_on(talk, answer.body["error"]["details"]["turn"])
                case 409, code:  # busy: somebody else's turn runs, or nobody knows yet that its node is dead
                    self._ledger.count(f"waited: {code}")
                    await self._caller.pause(min(number, 3))
                case _:
                    raise AssertionError(f"a turn was answered with {answer.status}: {str(answer.body)[:500]}")
        raise Stuck(f"{talk.path} did not run turn {key} in {number} tries")

    async def _ended(self, talk: Talk, turn: str) -> None:
        """Waits for the end of a turn that was accepted. Another node must go on with it if its own dies."""
        until: float | None = None
        while True:
            answer = await self._caller.ask("GET", f"{talk.path}/turns/{turn}", query={"wait": 5})
            if answer.status == 404:
                self._ledger.found("lost", f"turn {turn} of {talk.id} was accepted, and is not there")
                return
            self._expect(answer, 200)
            outcome = answer.body["outcome"]
            if outcome not in _OPEN:
                if outcome != "committed":
                    self._ledger.count(f"an accepted turn ended as {outcome}")
                return
            if outcome == "interrupted":
                now = time.monotonic()
                until = until or now + self._adoption
                if now > until:
                    self._ledger.count("an accepted turn was not taken over, and resumed by its client")
                    await self._go_on(talk, turn)
                    return
                await asyncio.sleep(0.5)

    async def _go_on(self, talk: Talk, turn: str) -> None:
        """Resumes a turn that its node has left, or gives it up."""
        act = "resume" if self._chance.random() < 0.8 else "discard"
        answer = await self._caller.ask("POST", f"{talk.path}/turns/{turn}/{act}", body={})
        self._ledger.count(f"interrupted: {act} was answered with {answer.status} {answer.code}".rstrip())

    # Helpers.

    def _made(self, talk: Talk) -> None:
        self._own.append(talk)
        self._ledger.add(talk)

    def _expect(self, answer: Answer, status: int) -> None:
        if answer.status != status:
            raise AssertionError(f"{answer.status} instead of {status}: {str(answer.body)[:500]}")

    def _fresh(self) -> str:
        self._number += 1
        return f"{self._name}-{self._number}"

"""Kills a server during turns, again and again, and checks after each restart that nothing acknowledged is lost.

    ./run python -m benchmarks.server_kills --kills 50

Several clients create conversations, fork them and run turns: as JSON, as a stream, asynchronously; with tools, with a
model that never answers. The server is killed (SIGKILL) at a random moment and started again on the same file. Then
each client looks for everything that it was answered, and repeats what it had no answer to, with the same idempotency
key: it is there once, or it was never begun, or its turn is `interrupted` and is resumed, discarded or superseded.
History must be exactly what was committed; no finished tool has run again; `verify` finds no flaw.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
from msgspec import Struct
from tests.server.support.doing import logged, start, steps
from tests.server.support.turning import Api

from benchmarks.progress import Progress

CLIENTS = 6
KEPT = 4  # conversations of a client that it goes on with, and looks at after each kill
LONGEST = 2.0  # seconds until a kill, also if all clients wait for models that never answer


class Lost(Exception):
    """Something is not as it was acknowledged."""


class Request(Struct):
    """Something that a client has asked for and not been answered yet."""

    act: str  # create, fork, run
    key: str
    conversation: str = ""
    message: str = ""
    hangs: bool = False
    turn: str | None = None  # once it was acknowledged


class Acknowledged:
    """How much all clients were answered, so that a kill comes in the middle of it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    def add(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait_for_more(self, more: int) -> None:
        """Returns when so many more were answered, or nobody was for too long."""
        with self._condition:
            wanted = self._count + more
            self._condition.wait_for(lambda: self._count >= wanted, LONGEST)


class Client:
    """Asks for one thing after the other, and keeps a diary of what it was answered."""

    def __init__(self, name: str, chance: random.Random, acknowledged: Acknowledged, seen: Counter[str]) -> None:
        self._name = name
        self._chance = chance
        self._acknowledged = acknowledged
        self._seen = seen
        self._number = 0
        self._paths: dict[str, list[str]] = {}  # the messages of each conversation, as they were committed
        self._asked: Request | None = None
        self.tries: Counter[str] = Counter()  # by what tools note down: how often a turn may have run it

    def work(self, url: str) -> None:
        """Asks until nobody answers any more."""
        api = Api(url)
        with suppress(httpx2.TransportError):
            while True:
                self._ask(api)
        api.close()

    def _ask(self, api: Api) -> None:
        known = list(self._paths)[-KEPT:]
        if not known or self._chance.random() < 0.1:
            self._make(api, Request("create", self._fresh()))
        elif self._chance.random() < 0.15:
            self._make(api, Request("fork", self._fresh(), self._chance.choice(known)))
        else:
            self._run(api, self._chance.choice(known))

    def _make(self, api: Api, request: Request) -> None:
        self._asked = request
        path = "" if request.act == "create" else f"/{request.conversation}/fork"
        made = api.http.post(f"/api/conversations{path}", headers={"Idempotency-Key": request.key})
        _expect(made, 201)
        self._paths[made.json()["id"]] = list(self._paths.get(request.conversation, ()))
        self._answered(request.act)

    def _run(self, api: Api, conversation: str) -> None:
        key = self._fresh()
        notes = [["note", {"line": f"{key}-{n}"}] for n in range(2)]
        hangs = self._chance.random() < 0.15
        message = self._chance.choice([key, steps(notes[:1]), steps(notes[:1], notes[1:]), steps(notes)])
        if hangs:
            message = self._chance.choice([steps("hang"), steps(notes[:1], "hang")])
        request = self._asked = Request("run", key, conversation, message, hangs)
        self.tries[key] = 1
        how = self._chance.choice(["json", "stream", "async"])
        if how == "stream":
            with api.stream(conversation, message, key=key) as stream:
                for kind, data in stream:
                    if kind == "turn_started":
                        request.turn = data["id"]
                    elif kind == "turn":
                        return self._committed(request, how)
                    elif kind == "error":
                        raise Lost(f"a turn failed: {data}")
            raise httpx2.ReadError("the stream ended in the middle")
        answer = api.run(conversation, message, key=key, prefer="respond-async" if how == "async" else None)
        if answer.status_code == 202:
            request.turn = answer.json()["id"]
            self._seen["acknowledged as running"] += 1
            self._acknowledged.add()
            while (turn := api.turn(conversation, request.turn, wait=30))["outcome"] == "running":
                pass
            if turn["outcome"] != "committed":
                raise Lost(f"a turn ended as {turn['outcome']}: {turn}")
        else:
            _expect(answer, 200)
        return self._committed(request, how)

    def _committed(self, request: Request, how: str) -> None:
        self._paths[request.conversation].append(request.message)
        self._answered(f"turn, {how}")

    def _answered(self, what: str) -> None:
        self._asked = None
        self._seen[f"answered: {what}"] += 1
        self._acknowledged.add()

    # After the kill.

    def recover(self, api: Api) -> None:
        """Finds out what became of what it had no answer to."""
        match self._asked:
            case None:
                return
            case Request(act="run") as request:
                self._recover_turn(api, request)
            case Request() as request:
                self._make(api, request)
        self._asked = None

    def _recover_turn(self, api: Api, request: Request) -> None:
        id = request.conversation
        there = api.get(id)
        if request.turn is not None:
            outcome = api.turn(id, request.turn)["outcome"]
            if outcome not in {"committed", "interrupted"}:
                raise Lost(f"turn {request.turn} was acknowledged, and is {outcome}")
        if there["status"] == "running":
            raise Lost(f"conversation {id} says that a turn runs, and nobody runs it")
        if there["open_turn"] is None and request.hangs:
            if request.turn is not None:
                raise Lost(f"turn {request.turn} was acknowledged and never ended, and is not open")
            self._seen["unanswered: not begun"] += 1
            return
        answer = api.run(id, request.message, key=request.key) if not request.hangs else None
        if answer is not None and answer.status_code == 200:
            self._seen["unanswered: there, or run now"] += 1
            self._paths[id].append(request.message)
            return
        turn = there["open_turn"]
        if answer is not None:
            said = answer.json()["error"]
            if (answer.status_code, said["code"], said["details"]["turn"]) != (409, "turn_open", turn):
                raise Lost(f"a repeated request was answered with {answer.text}")
        self._go_on(api, request, turn)

    def _go_on(self, api: Api, request: Request, turn: str) -> None:
        """An interrupted turn is resumed, discarded, or superseded by another."""
        id = request.conversation
        how = self._chance.choice(["discard", "supersede"] if request.hangs else ["resume", "discard", "supersede"])
        self._seen[f"interrupted: {how}"] += 1
        if how == "resume":
            resumed = api.post(f"{id}/turns/{turn}/resume")
            _expect(resumed, 200)
            self._paths[id].append(request.message)
            return
        if how == "discard":
            _expect(api.post(f"{id}/turns/{turn}/discard"), 200)
            if request.hangs:
                return
        self.tries[request.key] += 1
        message = request.message if how == "discard" else f"instead of {request.key}"
        _expect(api.run(id, message, supersede=how == "supersede"), 200)
        self._paths[id].append(message)

    def check(self, api: Api, *, all: bool) -> None:
        """Looks whether history is what was committed, no more and no less."""
        for id in list(self._paths) if all else list(self._paths)[-KEPT:]:
            found = api.get(f"{id}/events", limit=1000, kind=["user_message", "assistant_message"])["items"]
            said = ["".join(part["text"] for part in event["body"]["parts"]) for event in found]
            asked = [text for event, text in zip(found, said, strict=True) if event["role"] == "user"]
            if asked != self._paths[id]:
                raise Lost(f"conversation {id} should have {self._paths[id]}, and has {asked}")
            turns = [event["turn"] for event in found if event["role"] == "user"]
            if len(set(turns)) != len(turns):
                raise Lost(f"conversation {id} has a turn twice: {turns}")
            if api.get(id)["status"] != "idle":
                raise Lost(f"conversation {id} is not idle: {api.get(id)}")

    def _fresh(self) -> str:
        self._number += 1
        return f"{self._name}-{self._number}"


def _expect(answer: Any, status: int) -> None:
    if answer.status_code != status:
        raise Lost(f"{answer.request.method} {answer.request.url} was answered with {answer.text}")


def check_tools(folder: Path, clients: list[Client]) -> None:
    """No tool has run more often than its turn was begun: a resumed turn runs no finished one again."""
    tries: Counter[str] = sum((client.tries for client in clients), Counter())
    for line, times in Counter(logged(folder)).items():
        if times > tries[line.rpartition("-")[0]]:
            raise Lost(f"the tool that notes {line!r} ran {times} times")


def run(kills: int, seed: int, folder: Path, progress: Progress) -> Counter[str]:
    """Kills so often, with one file. Returns how often what was seen; raises `Lost`."""
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    acknowledged = Acknowledged()
    clients = [Client(f"client{n}", random.Random(chance.random()), acknowledged, seen) for n in range(CLIENTS)]
    for kill in range(kills + 1):
        last = kill == kills
        try:
            with start(folder) as server:
                api = Api(server.url)
                for client in clients:
                    client.recover(api)
                for client in clients:
                    client.check(api, all=last)
                check_tools(folder, clients)
                verified = api.http.post("/api/verify").json()
                if not verified["ok"]:
                    raise Lost(f"verify found flaws: {verified['flaws']}")
                api.close()
                if last:
                    if (status := server.terminate()) != 0:
                        raise Lost(f"it stopped with status {status}")
                    return seen
                _let_work(clients, server.url, acknowledged, chance, server.kill)
        except Exception as error:
            error.add_note(f"That was after kill {kill} with --seed {seed}.")
            raise
        progress.part("kills", kill + 1, kills)
    return seen


def _let_work(clients: list[Client], url: str, acknowledged: Acknowledged, chance: random.Random, kill: Any) -> None:
    """Lets all clients work, and kills their server at some moment of it."""
    failures: list[Exception] = []

    def work(client: Client) -> None:
        try:
            client.work(url)
        except Exception as error:
            failures.append(error)
            acknowledged.add()

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        acknowledged.wait_for_more(chance.randint(1, chance.choice([3, 10, 40])))
        time.sleep(chance.random() * 0.01)  # the kill is to come at any moment of what goes on now
    finally:
        kill()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server_kills", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="how often to kill (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="what is asked for, and roughly when it is killed")
    parser.add_argument("--folder", type=Path, default=None, help="where (default: one that goes when all is well)")
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="forkpoint-server-kills-"))
    progress = Progress(quiet=given.quiet)
    progress.say(f"{given.kills:,} kills, --seed {seed}, in {folder}")
    try:
        seen = run(given.kills, seed, folder, progress)
    except (Lost, AssertionError) as error:
        what = f"{type(error).__name__}: {error}"
        print(what, *error.__notes__, f"All of it is kept in {folder}.", sep="\n", file=sys.stderr)
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    print(f"{given.kills:,} kills, and nothing that was acknowledged was lost, doubled or made up. Seen:")
    for what, times in sorted(seen.items()):
        print(f"  {times:7,}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

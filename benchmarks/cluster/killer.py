"""The killer: does one bad thing after the other to nodes and to the database, drawn by chance."""

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from benchmarks.cluster.ledger import Ledger
from benchmarks.cluster.nodes import Node, Nodes


class Kill(Struct, frozen=True):
    """One kind of trouble: how often it is drawn, and what makes it. That says what it did."""

    weight: int
    act: Callable[[random.Random], str]


class Blow(Struct):
    """One kill that was made, and how long no client was answered because of it."""

    kind: str
    what: str
    began: float  # seconds since the run began
    silence: float | None = None  # the longest time without any answer, from its beginning to the first answer after it


class NodeKills:
    """What is done to nodes. Nodes may be down or stopped together."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def kills(self) -> Mapping[str, Kill]:
        return {"kill": Kill(4, self.kill), "stop": Kill(2, self.stop), "term": Kill(1, self.term)}

    def kill(self, chance: random.Random) -> str:
        node = self._take(chance)
        down = chance.choice([0.0, 0.5, 3.0])
        try:
            node.signal(signal.SIGKILL)
            node.wait(10)
            time.sleep(down)
            node.start()
        finally:
            self._nodes.give(node)
        return f"{node.name} killed, and started again after {down:.1f} s"

    def stop(self, chance: random.Random) -> str:
        node = self._take(chance)
        seconds = chance.choice([0.3, 2.0, 8.0, 20.0])
        try:
            node.signal(signal.SIGSTOP)
            time.sleep(seconds)
            node.signal(signal.SIGCONT)
        finally:
            self._nodes.give(node)
        return f"{node.name} stopped for {seconds:.1f} s"

    def term(self, chance: random.Random) -> str:
        node = self._take(chance)
        try:
            began = time.monotonic()
            node.signal(signal.SIGTERM)
            try:
                node.wait(60)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"{node.name} did not end within 60 s after SIGTERM") from None
            took = time.monotonic() - began
            node.start()
        finally:
            self._nodes.give(node)
        return f"{node.name} rolled: it ended in {took:.1f} s"

    def _take(self, chance: random.Random) -> Node:
        while True:
            node = chance.choice(self._nodes.all)
            if self._nodes.take(node):
                return node
            time.sleep(0.1)


class Killer:
    """A thread that kills, one thing after the other, until it is told to stop."""

    def __init__(
        self, kills: Mapping[str, Kill], chance: random.Random, ledger: Ledger, say: Callable[[str], Any]
    ) -> None:
        self.blows: list[Blow] = []
        self._kills = kills
        self._chance = chance
        self._ledger = ledger
        self._say = say
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="killer", daemon=True)

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Returns when what it was doing is done."""
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        if not self._kills:
            return
        names, kills = list(self._kills), list(self._kills.values())
        due = list(names)  # each kind once, then by chance
        self._chance.shuffle(due)
        while not self._stopped.wait(self._chance.uniform(1.0, 5.0)):
            name = due.pop() if due else self._chance.choices(names, [kill.weight for kill in kills])[0]
            began = time.monotonic()
            blow = Blow(name, "", began - self._began)
            self.blows.append(blow)
            try:
                blow.what = self._kills[name].act(self._chance)
            except Exception as error:
                blow.what = f"FAILED: {type(error).__name__}: {error}"
                self._ledger.found("crashed", f"{name}: {type(error).__name__}: {error}")
            self._say(f"  {name}: {blow.what}")
            before = self._ledger.turns
            while self._ledger.turns == before and not self._stopped.is_set() and time.monotonic() - began < 120:
                time.sleep(0.02)
            blow.silence = self._ledger.silence(began, time.monotonic())

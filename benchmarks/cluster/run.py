"""One run: nodes, clients and killer at work for some minutes, then quiet, then the check and the report."""

import asyncio
import os
import platform
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from msgspec import Struct

from benchmarks.cluster.caller import Caller
from benchmarks.cluster.checker import Checked, Checker
from benchmarks.cluster.clients import Client
from benchmarks.cluster.killer import Kill, Killer
from benchmarks.cluster.ledger import Ledger, Talk
from benchmarks.cluster.nodes import Nodes, wait_ready
from benchmarks.cluster.report import Facts, written
from benchmarks.cluster.watchers import Watcher
from benchmarks.progress import Progress

SHARED = 4  # conversations that all clients talk to
LEASE = 60.0  # seconds until a silent node may lose its turns: on SQLite; on PostgreSQL it is half of it
PATIENCE = 6 * LEASE  # of a client with one request
ADOPTION = 4 * LEASE  # within which another node goes on with an accepted turn

_EVERY = 10.0  # seconds between two lines of progress
_ANCHORS = 10.0  # seconds between two anchors
_QUIET = 8 * LEASE  # within which everything comes to an end after the last kill


class Place(Struct, frozen=True):
    """Where some of the clients are: a thread, which may enter a network namespace."""

    name: str
    clients: int
    urls: tuple[str, ...]  # of the nodes that they ask
    enter: Callable[[], Any] = lambda: None


class Plan(Struct, frozen=True):
    """What a form of the cluster brings to a run."""

    form: str
    command: str
    minutes: float
    seed: int
    folder: Path
    places: tuple[Place, ...]
    heal: Callable[[], Any] = lambda: None
    check: Callable[[], str] = lambda: ""
    size: Callable[[], int | None] = lambda: None
    remarks: Callable[[], Sequence[str]] = lambda: ()
    key: str | None = None  # what nodes want to see
    stale: bool = False  # whether a node may for a while look at a server that was replaced


class Run:
    """The run itself."""

    def __init__(self, plan: Plan, ledger: Ledger, nodes: Nodes, kills: Mapping[str, Kill], progress: Progress) -> None:
        self._plan = plan
        self._ledger = ledger
        self._nodes = nodes
        self._progress = progress
        self._chance = random.Random(plan.seed)
        self._killer = Killer(kills, random.Random(plan.seed + 1), ledger, progress.say)
        self._stopped = threading.Event()
        self._shared: list[Talk] = []
        self._watched: list[Watcher] = []

    def run(self) -> bool:
        """Whether all was good. The report is in the folder, and on standard output."""
        self._begin()
        began = self._ledger.begin()
        threads = [threading.Thread(target=self._work, args=(place,), daemon=True) for place in self._plan.places]
        threads.append(threading.Thread(target=self._witness, daemon=True))
        for thread in threads:
            thread.start()
        self._killer.start()
        try:
            self._wait(lambda: time.monotonic() - began >= self._plan.minutes * 60)
        finally:
            self._killer.stop()
        self._plan.heal()
        seconds = time.monotonic() - began
        self._progress.say("no more kills; clients finish what they have asked for")
        self._stopped.set()
        self._wait(lambda: not any(thread.is_alive() for thread in threads), _QUIET)
        if any(thread.is_alive() for thread in threads):
            self._ledger.found("stuck", f"clients were not done {_QUIET:.0f} s after the last kill")
        if late := wait_ready(self._nodes, 30):
            self._ledger.found("stuck", f"not ready in the end: {', '.join(late)}")
        self._progress.say("comparing")
        checked = asyncio.run(self._check())
        if said := self._plan.check():
            self._ledger.found("not verified", f"the database: {said}")
        return self._report(seconds, checked)

    def _begin(self) -> None:
        if late := wait_ready(self._nodes, 180):
            logs = "\n".join(node.log.read_text(encoding="utf-8")[-1500:] for node in self._nodes.all)
            raise RuntimeError(f"nodes do not start: {', '.join(late)}\n{logs}")
        with httpx2.Client(
            base_url=self._nodes.all[0].url, headers=self._headers(), timeout=30, trust_env=False
        ) as http:
            for number in range(SHARED):
                made = http.post("/api/conversations", json={"id": f"shared-{number}"})
                assert made.status_code == 201, made.text
                self._shared.append(Talk(made.json()["id"], shared=True))
        for talk in self._shared:
            self._ledger.add(talk)

    def _work(self, place: Place) -> None:
        place.enter()
        asyncio.run(self._clients(place))

    async def _clients(self, place: Place) -> None:
        clients = []
        for number in range(place.clients):
            chance = random.Random(f"{self._plan.seed} {place.name} {number}")
            client = Client(
                f"{place.name}-{number}",
                self._caller(place.urls, chance),
                self._ledger,
                self._shared,
                chance,
                adoption=ADOPTION,
                place=place.name,
            )
            clients.append(client)
        watchers: list[Watcher] = []
        if place is self._plan.places[0]:
            callers = [self._caller(place.urls, random.Random(talk.id)) for talk in self._shared]
            watchers = [Watcher(*pair, self._ledger) for pair in zip(self._shared, callers, strict=True)]
        self._watched += watchers
        watching = [asyncio.create_task(watcher.work(self._stopped)) for watcher in watchers]
        await asyncio.gather(*(client.work(self._stopped) for client in clients))
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    def _witness(self) -> None:
        """Takes anchors all along, and keeps them."""
        with httpx2.Client(headers=self._headers(), timeout=10, trust_env=False) as http:
            while not self._stopped.wait(_ANCHORS):
                try:
                    answer = http.get(f"{self._chance.choice(self._nodes.urls)}/api/anchor")
                except httpx2.TransportError:
                    continue
                if answer.status_code == 200:
                    self._ledger.anchors.append(answer.json())

    async def _check(self) -> Checked:
        urls = self._nodes.urls
        checker = Checker(self._caller(urls, self._chance, stale=False), self._ledger, self._plan.folder / "notes")
        # The streams are followed to their end by callers of this loop.
        for watcher in self._watched:
            watcher.use(self._caller(urls, random.Random(0)))
        return await checker.check(self._watched)

    def _caller(self, urls: Sequence[str], chance: random.Random, *, stale: bool | None = None) -> Caller:
        stale = self._plan.stale if stale is None else stale
        return Caller(urls, chance, self._ledger, PATIENCE, key=self._plan.key, stale=stale)

    def _headers(self) -> dict[str, str]:
        return {} if self._plan.key is None else {"Authorization": f"Bearer {self._plan.key}"}

    def _wait(self, done: Callable[[], bool], seconds: float = float("inf")) -> None:
        until, said = time.monotonic() + seconds, time.monotonic()
        while not done() and time.monotonic() < until:
            time.sleep(0.1)
            if time.monotonic() - said >= _EVERY:
                said = time.monotonic()
                self._say()

    def _say(self) -> None:
        ledger = self._ledger
        again = sum(times for what, times in ledger.counts.items() if what.startswith("asked again"))
        self._progress.say(
            f"{ledger.turns:,} turns acknowledged, {ledger.asked - ledger.answered} actions under way, "
            f"{len(self._killer.blows):,} kills, {again:,} repeated requests, {len(ledger.findings)} findings"
        )

    def _report(self, seconds: float, checked: Checked) -> bool:
        machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
        plan = self._plan
        facts = Facts(plan.command, plan.form, seconds, machine, plan.size(), tuple(plan.remarks()))
        text = written(facts, self._ledger, self._killer.blows, checked)
        (plan.folder / "report.md").write_text(text, encoding="utf-8")
        print(text)
        self._ledger.close()
        return not self._ledger.findings

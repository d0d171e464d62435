"""The soak: a real server under mixed load for minutes, and then nothing is lost, doubled, open or leaking.

``./run --group benchmarks python -m benchmarks.soak [--minutes 5]``. It says how it stands every 30 seconds, and in
the end what was checked; its exit status is 1 if anything did not hold. Everything is on loopback, in a temporary
folder, and bounded: a dozen users, one action at a time each.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from benchmarks.server import cpu_of, forkpoint_serving
from benchmarks.soak_work import AGENTS, Conversation, Ledger, User, reply
from forkpoint.testing import ModelServer, Script

USERS = 12
WARM_UP = 10.0  # seconds of load before files are counted
GROWTH = 1.1  # of memory, from minute 1 to the end
MORE_FILES = 2
MORE_CONNECTIONS = 10  # to models, which are kept for a while
_EVERY = 30.0
_FOUND = 10  # problems that are shown


class Server:
    """The process under load, as the system sees it."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid

    def memory(self) -> float:
        """Resident, in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def open(self) -> tuple[int, int]:
        """How many files it has open, and how many connections."""
        targets = []
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                targets.append(os.readlink(f"/proc/{self.pid}/fd/{name}"))
            except FileNotFoundError:  # closed since it was listed
                continue
        connections = sum(target.startswith("socket:") for target in targets)
        return len(targets) - connections, connections

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))


class Soak:
    """One run."""

    def __init__(self, server: Server, minutes: float) -> None:
        self._server = server
        self._seconds = minutes * 60
        self._ledger = Ledger()
        self._http = httpx2.AsyncClient(base_url=server.url, timeout=120, trust_env=False)
        self._early = min(60.0, self._seconds / 5)  # when memory is first taken
        self._memory: float | None = None

    async def run(self) -> list[str]:
        """What did not hold."""
        async with self._http:
            await self._load(WARM_UP, seed=1000)
            await self._quiet()
            files, connections = self._server.open()
            print(f"after warm-up: {files} files, {connections} connections, {self._server.threads()} threads")
            await self._load(self._seconds, seed=0)
            quiet = await self._quiet()
            memory = self._server.memory()
            problems = [*self._ledger.problems]
            if quiet is not None:
                problems.append(quiet)
            problems += self._leaks(memory, files, connections)
            problems += await self._history()
            return problems

    async def _load(self, seconds: float, seed: int) -> None:
        stopped = asyncio.Event()
        users = [User(self._server.url, self._ledger, seed + number) for number in range(USERS)]
        working = [asyncio.create_task(user.work(stopped)) for user in users]
        started = said = time.monotonic()
        while (passed := time.monotonic() - started) < seconds:
            await asyncio.sleep(1)
            if seed == 0 and self._memory is None and passed >= self._early:
                self._memory = self._server.memory()
            if time.monotonic() - said >= _EVERY:
                said = time.monotonic()
                self._say(passed)
        stopped.set()
        await asyncio.gather(*working)
        if seed == 0:
            self._say(time.monotonic() - started)

    def _say(self, passed: float) -> None:
        files, connections = self._server.open()
        done, turns = sum(self._ledger.done.values()), sum(len(it.turns) for it in self._ledger.conversations)
        print(
            f"{passed:5.0f} s: {done:,} actions, {turns:,} turns in {len(self._ledger.conversations):,} conversations, "
            f"{len(self._ledger.problems)} problems; {self._server.memory():.1f} MB, {files} files, "
            f"{connections} connections, {cpu_of(self._server.pid):.0f} s CPU",
            flush=True,
        )

    async def _quiet(self) -> str | None:
        """Waits until nothing runs and nobody listens. Says what does not end, if something does not."""
        found: dict[str, float] = {}
        for _ in range(100):
            text = (await self._http.get("/metrics")).text
            found = {
                name: float(value)
                for name, _, value in (line.rpartition(" ") for line in text.splitlines())
                if name in {"forkpoint_turns_running", "forkpoint_streams_open"}
            }
            if len(found) == 2 and not any(found.values()):
                await asyncio.sleep(1)  # connections that their clients have closed are closed here too
                return None
            await asyncio.sleep(0.2)
        return f"the server does not come to rest: {found}"

    def _leaks(self, memory: float, files_before: int, connections_before: int) -> list[str]:
        problems = []
        files, connections = self._server.open()
        early = self._memory or memory
        print(f"memory: {early:.1f} MB after {self._early:.0f} s, {memory:.1f} MB at the end ({memory / early:.3f}x)")
        print(f"at rest: {files} files, {connections} connections, {self._server.threads()} threads")
        if memory > early * GROWTH:
            problems.append(f"memory grew from {early:.1f} MB to {memory:.1f} MB, more than {GROWTH:g} times")
        if files > files_before + MORE_FILES:
            problems.append(f"{files} files are open, {files_before} were after warm-up")
        if connections > connections_before + MORE_CONNECTIONS:
            problems.append(f"{connections} connections are open, {connections_before} were after warm-up")
        return problems

    async def _history(self) -> list[str]:
        """Whether every acknowledged turn is there exactly once, and nothing else."""
        problems: list[str] = []
        for it in self._ledger.conversations:
            problems += await self._conversation(it)
        said: Any = (await self._http.post("/api/verify", json={})).json()
        if not said.get("ok"):
            problems.append(f"verify: {str(said)[:500]}")
        turns = sum(len(it.turns) for it in self._ledger.conversations)
        print(
            f"checked: {turns:,} turns in {len(self._ledger.conversations):,} conversations, {len(problems)} problems; "
            f"verify: {said.get('ok')} ({said.get('events')} events)"
        )
        return problems

    async def _conversation(self, it: Conversation) -> list[str]:
        info: Any = (await self._http.get(it.path)).json()
        if info.get("status") != "idle" or info.get("open_turn") is not None:
            return [f"{it.id} is {info.get('status')}, its open turn {info.get('open_turn')}: {str(info)[:200]}"]
        events: list[Any] = []
        after: str | None = "0"
        while after is not None:
            query = {"after": after, "limit": "1000", "kind": "user_message"}
            page: Any = (await self._http.get(f"{it.path}/events", params=query)).json()
            events += page["items"]
            after = page["next"]
        texts = ["".join(part.get("text", "") for part in event["body"]["parts"]) for event in events]
        turns = [event["turn"] for event in events]
        if texts != it.texts or turns != it.turns:
            lost, more = [text for text in it.texts if text not in texts], [one for one in texts if one not in it.texts]
            doubled = [text for text, times in Counter(texts).items() if times > 1]
            return [f"{it.id} has {len(texts)} turns of {len(it.texts)}: {lost=}, {more=}, {doubled=}"]
        return []


def log_problems(log: Path) -> list[str]:
    """What the server's log has that nobody foresaw."""
    levels: Counter[str] = Counter()
    problems = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            said: Any = msgspec.json.decode(line)
        except msgspec.DecodeError:
            problems.append(f"the log has a line that is no JSON: {line[:300]}")
            continue
        levels[said["level"]] += 1
        if said["level"] in {"error", "critical"} or "exception" in said:
            stack = said.get("stack", "")[-600:]
            problems.append(f"the log says: {said['message']} ({said.get('exception')}) {stack}")
    print(f"log: {', '.join(f'{number:,} {level}' for level, number in levels.items())}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, metavar="N", help="how long (default: 5)")
    minutes: float = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="forkpoint-soak-") as name, ModelServer(Script(reply), keep=False) as model:
        folder = Path(name)
        (folder / "soak_agents.py").write_text(AGENTS, encoding="utf-8")
        (folder / "server.toml").write_text(
            'default = "plain"\n\n[agents.plain]\nmodel = "openai/scripted"\napi = "chat"\n'
            f'base_url = "{model.url}"\napi_key_env = "SCRIPTED_MODEL_KEY"\n\n'
            '[agents.careful]\nagent = "soak_agents:CAREFUL"\n\n[server]\nlog_format = "json"\n',
            encoding="utf-8",
        )
        os.environ["SOAK_MODEL"] = model.url
        store = ("--store", f"sqlite:///{folder / 'store.db'}", "--config", "server.toml")
        log = folder / "log"
        with forkpoint_serving(folder, *store, log=log) as (url, pid):
            problems = asyncio.run(Soak(Server(url, pid), minutes).run())
        problems += log_problems(log)
    for problem, times in Counter(problems).most_common(_FOUND):
        print(f"PROBLEM{f' ({times} times)' if times > 1 else ''}: {problem}")
    print("NOT GOOD" if problems else "GOOD: nothing lost, doubled, open or leaking.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

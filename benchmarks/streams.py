"""Opens thousands of event streams at a server, and measures what they cost it while nothing happens in them.

    ./run --group benchmarks python -m benchmarks.streams

The server is a process of its own (`forkpoint serve`, with SQLite and a scripted model). Turns are run in conversations
that nobody watches, one after another, in phases that take turns: without streams and with them. Memory is what the
server's process holds (RSS) with all streams open, heartbeats included, against just before they were opened the first
time. Times depend on the machine: read the ratios.
"""

import argparse
import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from benchmarks.progress import Progress
from benchmarks.report import table_text
from benchmarks.results import Table
from benchmarks.tables import factor, milliseconds

MEMORY = 150.0  # MB that 5,000 streams may take
SLOWDOWN = 1.2  # how many times the p99 of a turn without streams
SPARE = 200  # files that both sides need besides the streams
TOGETHER = 100  # streams that are opened at once
MB = 1024 * 1024


class Plan(Struct, frozen=True):
    streams: int
    conversations: int
    turns: int  # in each phase
    rounds: int


class Found(Struct, frozen=True):
    """What was measured. Times are in seconds, memory is in bytes."""

    without: list[float]
    within: list[float]
    watched: list[float]  # turns in conversations that are watched
    before: int
    after: int
    opened: float  # how many streams a second


class Server:
    """A server, from outside."""

    def __init__(self, url: str, pid: int) -> None:
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)
        self._pid = pid
        self._http = http.client.HTTPConnection(self.host, self.port, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._http.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._http.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path} was answered with {answer.status}: {said.decode()}")
        return json.loads(said) if said else None

    def turns(self, conversations: Sequence[str], count: int) -> list[float]:
        """Runs turns one after another. Gives the seconds that each took."""
        self._http.close()  # the server closes connections that were silent for long
        seconds = []
        for number in range(count):
            path = f"/api/conversations/{conversations[number % len(conversations)]}/turns"
            start = time.perf_counter()
            self.ask("POST", path, {"message": "What does the log say?"})
            seconds.append(time.perf_counter() - start)
        return seconds

    @property
    def memory(self) -> int:
        """What its process holds in memory, in bytes."""
        command = ["ps", "-o", "rss=", "-p", str(self._pid)]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout) * 1024

    @contextmanager
    def streams(self, conversations: Sequence[str], count: int) -> Iterator[None]:
        """So many streams, spread over conversations; each has heard all that there is when they are open."""
        with ExitStack() as opened:
            for first in range(0, count, TOGETHER):
                batch = [
                    opened.enter_context(self._stream(conversations[number % len(conversations)]))
                    for number in range(first, min(first + TOGETHER, count))
                ]
                for stream in batch:
                    _hear(stream)
            yield

    def _stream(self, conversation: str) -> socket.socket:
        stream = socket.create_connection((self.host, self.port), timeout=60)
        path = f"/api/conversations/{conversation}/events/stream"
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\nAccept: text/event-stream\r\n\r\n".encode())
        return stream


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server on loopback, stopped at the end."""
    command = [sys.executable, "-m", "forkpoint", "serve", "--port", "0", "--json", "--log-level", "warning"]
    command += ["--store", f"sqlite:///{folder / 'streams.db'}", "--model", "scripted/echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=folder) as process:
        try:
            assert process.stdout is not None
            said = b""
            while not said.rstrip().endswith(b"}"):
                line = process.stdout.readline()
                if not line:
                    raise SystemExit("the server did not start")
                said += line
            yield Server(json.loads(said)["url"], process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


def measure(plan: Plan, folder: Path, progress: Progress) -> Found:
    """Runs all phases."""
    with serving(folder) as server:
        progress.say(f"{plan.conversations:,} conversations to watch")
        watched = [server.ask("POST", "/api/conversations")["id"] for _ in range(plan.conversations)]
        others = [server.ask("POST", "/api/conversations")["id"] for _ in range(20)]
        server.turns(watched, len(watched))
        server.turns(others, 200)
        before = server.memory
        without: list[float] = []
        within: list[float] = []
        beside: list[float] = []
        after, opened = 0, 0.0
        for number in range(plan.rounds):
            progress.say(f"round {number + 1} of {plan.rounds}: {plan.turns:,} turns without streams")
            without += server.turns(others, plan.turns)
            progress.say(f"  opening {plan.streams:,} streams")
            start = time.perf_counter()
            with server.streams(watched, plan.streams):
                opened = max(opened, plan.streams / (time.perf_counter() - start))
                progress.say(f"  {plan.turns:,} turns with them")
                within += server.turns(others, plan.turns)
                after = max(after, server.memory)
                if number == plan.rounds - 1:
                    progress.say("  waiting for heartbeats")
                    _wait_for_heartbeats(server, watched)
                    after = max(after, server.memory)
                    beside = server.turns(watched, plan.turns)
            _until_closed(server)
        return Found(without, within, beside, before, after, opened)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=5000, help="how many at once (default: %(default)s)")
    parser.add_argument("--conversations", type=int, default=500, help="that they watch (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=1000, help="in each phase (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of both phases (default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="say only what was found")
    given = parser.parse_args()
    plan = Plan(given.streams, given.conversations, given.turns, given.rounds)
    progress = Progress(quiet=given.quiet)
    allowed = _files(plan.streams + SPARE)
    if allowed < plan.streams + SPARE:
        plan = Plan(max(allowed - SPARE, 1), plan.conversations, plan.turns, plan.rounds)
        print(f"Only {allowed:,} files may be open here, so {plan.streams:,} streams are opened.", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="forkpoint-streams-") as folder:
        found = measure(plan, Path(folder), progress)
    more = (found.after - found.before) / MB
    budget = MEMORY * plan.streams / 5000
    slower = _at(found.within, 0.99) / _at(found.without, 0.99)
    print(table_text(_memory_table(plan, found)), end="\n\n")
    print(table_text(_turn_table(found)), end="\n\n")
    print(f"Memory: {more:.0f} MB more, of {budget:.0f} MB at most: {'met' if more <= budget else 'NOT MET'}.")
    met = "met" if slower <= SLOWDOWN else "NOT MET"
    print(f"p99 of a turn: {factor(slower)} of that without streams, {SLOWDOWN}x at most: {met}.")
    return 0 if more <= budget and slower <= SLOWDOWN else 1


def _memory_table(plan: Plan, found: Found) -> Table:
    more = found.after - found.before
    row = (
        f"{plan.streams:,}",
        f"{found.before / MB:.0f} MB",
        f"{found.after / MB:.0f} MB",
        f"{more / MB:.0f} MB",
        f"{more / plan.streams / 1024:.1f} KB",
        f"{found.opened:,.0f}",
    )
    return Table("Memory", ("streams", "before", "with them", "more", "each", "opened a second"), (row,))


def _turn_table(found: Found) -> Table:
    rows = []
    phases = [("without streams", found.without), ("with them", found.within), ("in a watched one", found.watched)]
    for name, seconds in phases:
        cells = [name, f"{len(seconds):,}"]
        for part in (0.5, 0.9, 0.99):
            time, base = _at(seconds, part), _at(found.without, part)
            cells.append(f"{milliseconds(time)} ({factor(time / base)})")
        rows.append(tuple(cells))
    return Table("Turns", ("a turn", "turns", "p50", "p90", "p99"), tuple(rows))


def _at(seconds: list[float], part: float) -> float:
    """The time that this part of all was faster than."""
    return median(seconds) if part == 0.5 else sorted(seconds)[int(len(seconds) * part)]


def _hear(stream: socket.socket) -> None:
    """Reads a stream until it has heard what was committed: the answer of the conversation's turn, at least."""
    said = b""
    while b"You said" not in said:
        some = stream.recv(65536)
        if not some:
            raise SystemExit(f"a stream ended: {said.decode(errors='replace')}")
        said += some


def _wait_for_heartbeats(server: Server, watched: Sequence[str]) -> None:
    """Opens one more stream, and waits until it was alone with its heartbeats: by then all others had one too."""
    with server._stream(watched[0]) as stream:
        _hear(stream)
        said = b""
        while b": heartbeat" not in said:
            said += stream.recv(65536)


def _until_closed(server: Server) -> None:
    """Waits until the server has let go of all streams."""
    deadline = time.monotonic() + 60
    while (count := _open_streams(server)) > 0:
        if time.monotonic() > deadline:
            raise SystemExit(f"{count:,} streams are still open a minute after their readers went")
        time.sleep(0.05)


def _open_streams(server: Server) -> int:
    server._http.request("GET", "/metrics")
    text = server._http.getresponse().read().decode()
    found = [line for line in text.splitlines() if line.startswith("forkpoint_streams_open ")]
    return int(float(found[0].split()[1]))


def _files(wanted: int) -> int:
    """How many files this process and its children may open, raised to what is wanted if that is allowed."""
    try:
        import resource
    except ImportError:  # no such limit on this system
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return wanted if soft == resource.RLIM_INFINITY else soft


if __name__ == "__main__":
    sys.exit(main())

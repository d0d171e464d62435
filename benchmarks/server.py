"""Hundreds of conversations at once on one server process: turns per second, and what a turn costs the server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import get_args

import anyio
from msgspec import Struct

from benchmarks import server_model
from benchmarks.bench import Bench
from benchmarks.results import Section, Table
from benchmarks.server_load import FORKPOINT, Form, Load, Report, Task, loading
from benchmarks.server_model import PIECES, SLOWLY
from benchmarks.tables import factor, figure, milliseconds

AT_ONCE = 300
SECONDS = 15.0  # that the slow model takes
STEADY = "at a steady pace"

_TURNS = 4  # of each conversation, so that prompts have up to a dozen messages
_FEWEST = 150  # turns in a round, for one client alone
_SLOW_TURNS = 2
_ROUNDS = 3  # where there are few clients; with many, one round has turns enough
_ROOT = Path(__file__).parents[1]
_ADDRESS = re.compile(r"http://[\w.:]+")

TEXT = f"""\
One worker process of `forkpoint serve` on a SQLite file, as it is started by default, and beside it a bare FastAPI
app on the same uvicorn with the same loop (uvloop) and parser (httptools), which passes each request on to the same
model, and stores, checks, counts and logs nothing: once with OpenAI's client, as most would write it, and once with
a bare HTTP client that hands on the bytes. Its clients send the whole history each time, those of Forkpoint a
message. The model runs in a process of its own, streams {PIECES + 1} pieces, and has no part in the figures: it
says in its answer how long it had the request, and *own cost* is the time that the client saw, from the request's
first byte to the answer's last, less that. It also says how many messages it was sent, and no turn passes that did
not send all. Forkpoint has answers streamed whichever way its own client wants them; the proxies have them streamed
for SSE and whole for JSON, which saves them the work for the pieces. *CPU* is the time that the server's process
used for each turn, by the system's count: on a machine where load, model and server share the cores, that is the
server's cost, and times also have waiting in them. First each client begins its next turn when the last one has
ended and the model answers at once, so that the server is always busy: then the own cost of a turn among many is
mostly waiting for the others, and turns per second are what counts. Then {AT_ONCE} conversations at once ask a
model that takes {SECONDS:g} s for an answer, piece by piece, as real ones do: about {AT_ONCE / SECONDS:.0f} turns
per second, and own cost is what people feel. A conversation has {_TURNS} turns (there: {_SLOW_TURNS}) and is made
before the clock runs. The load uses bare sockets, one connection for each client."""


class Server(Struct, frozen=True):
    """Something to ask."""

    name: str
    url: str
    path: str
    pid: int


class Cell(Struct, frozen=True):
    """What one server came to, in one form with so many clients. Times are in seconds."""

    rate: float  # turns per second
    half: float  # own cost of a turn, the median
    most: float  # own cost of all but one turn of a hundred
    cpu: float  # of the server, for a turn
    load: float  # of the load, for a turn
    model: float  # of the model, for a turn
    failed: float  # turns; only a peer may have any


async def measure(bench: Bench) -> Section:
    with ExitStack() as exits:
        model_url, model = exits.enter_context(server_model.serving())
        servers = _servers(exits, bench, model_url)
        stand = _Stand(exits.enter_context(loading()), model)
        sizes = (1, 16) if bench.plan.quick else (1, 16, 64, AT_ONCE)
        busy: dict[tuple[str, Form, int], Cell] = {}
        for clients in sizes:
            for form in get_args(Form):
                bench.progress.say(f"  {clients} clients, {form}")
                rounds = 1 if bench.plan.quick or clients == AT_ONCE else _ROUNDS
                found = await anyio.to_thread.run_sync(stand.busy, servers, form, clients, rounds)
                busy |= {(name, form, clients): cell for name, cell in found.items()}
        slow: dict[tuple[str, Form], Cell] = {}
        at_once, seconds = (30, 1.0) if bench.plan.quick else (AT_ONCE, SECONDS)
        for form in get_args(Form):
            bench.progress.say(f"  {at_once} clients {STEADY}, {form}")
            found = await anyio.to_thread.run_sync(stand.steady, servers, form, at_once, seconds)
            slow |= {(name, form): cell for name, cell in found.items()}
    names = [server.name for server in servers]
    tables = [_busy_table(names, form, sizes, busy) for form in get_args(Form)]
    tables += [_cpu_table(names, form, sizes, busy) for form in get_args(Form)]
    tables.append(_steady_table(names, at_once, slow))
    return Section("Conversations on a server", TEXT, tuple(tables))


class _Stand:
    """Lets servers take turns with a load."""

    def __init__(self, load: Load, model: int) -> None:
        self._load = load
        self._model = model

    def busy(self, servers: Sequence[Server], form: Form, clients: int, rounds: int) -> dict[str, Cell]:
        """Every client asks as fast as it is answered."""
        conversations = max(1, _FEWEST // (clients * _TURNS))
        task = Task("", "", form, clients, conversations, _TURNS)
        self._run(servers, Task("", "", form, min(clients, 16), 1, 2))  # connections are made, statements prepared
        found: dict[str, list[Cell]] = {server.name: [] for server in servers}
        for number in range(rounds):
            for server in servers if number % 2 == 0 else servers[::-1]:
                found[server.name].append(self._run([server], task)[server.name])
        return {name: _middle(cells) for name, cells in found.items()}

    def steady(self, servers: Sequence[Server], form: Form, clients: int, seconds: float) -> dict[str, Cell]:
        """Every client asks a slow model, and they do not begin all at once."""
        return self._run(servers, Task("", "", form, clients, 1, _SLOW_TURNS, f"{SLOWLY}{seconds:g}", seconds))

    def _run(self, servers: Sequence[Server], task: Task) -> dict[str, Cell]:
        found = {}
        for server in servers:
            own, model = cpu_of(server.pid), cpu_of(self._model)
            asked = Task(server.url, server.path, *(getattr(task, name) for name in Task.__struct_fields__[2:]))
            report = self._load.run(asked)
            turns = len(report.own)
            failed = task.clients * task.conversations * task.turns - turns
            if failed and (server.path == FORKPOINT or not turns):
                raise RuntimeError(f"{server.name}: {failed} turns failed: {report.failures}")
            own, model = cpu_of(server.pid) - own, cpu_of(self._model) - model
            found[server.name] = _cell(report, own / turns, model / turns, failed)
        return found


def _cell(report: Report, cpu: float, model: float, failed: int) -> Cell:
    turns, own = len(report.own), sorted(report.own)
    most = own[min(turns - 1, turns * 99 // 100)]
    return Cell(turns / report.seconds, median(own), most, cpu, report.cpu / turns, model, failed)


def _middle(cells: Sequence[Cell]) -> Cell:
    return Cell(*(median(getattr(cell, name) for cell in cells) for name in Cell.__struct_fields__))


# The servers.


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used, in all its threads. Only Linux says."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def forkpoint_serving(folder: Path, *arguments: str, log: Path, key: str = "any") -> Iterator[tuple[str, int]]:
    """A real ``forkpoint serve`` for as long as the block lasts; gives its address and its process id."""
    command = [sys.executable, "-m", "forkpoint", "serve", "--port", "0", "--json", *arguments]
    environment = os.environ | {"SCRIPTED_MODEL_KEY": key}
    with (
        log.open("w", encoding="utf-8") as said,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=folder, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            while (found := _ADDRESS.search(line := process.stdout.readline())) is None:
                assert line, f"the server did not start: {log.read_text(encoding='utf-8')[-2000:]}"
            yield found[0], process.pid
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def model_arguments(url: str) -> tuple[str, ...]:
    """The options that make a server's agent the model at an address."""
    name = f"openai/{server_model.MODEL}"
    return "--model", name, "--api", "chat", "--base-url", url, "--api-key-env", "SCRIPTED_MODEL_KEY"


def _servers(exits: ExitStack, bench: Bench, model_url: str) -> list[Server]:
    path = bench.new_file()
    ours, our_pid = exits.enter_context(
        forkpoint_serving(
            path.parent,
            *("--store", f"sqlite:///{path}", "--instructions", "Be short."),
            *model_arguments(model_url),
            log=path.parent / "log",
        )
    )
    theirs, their_pid = exits.enter_context(proxy(model_url))
    return [
        Server("Forkpoint", ours, FORKPOINT, our_pid),
        Server("bare FastAPI, OpenAI's client", theirs, "/openai", their_pid),
        Server("bare FastAPI, the bytes handed on", theirs, "/bytes", their_pid),
    ]


@contextmanager
def proxy(model_url: str, module: str = "benchmarks.server_proxy") -> Iterator[tuple[str, int]]:
    """A bare proxy to a model for as long as the block lasts; gives its address and its process id."""
    command = [sys.executable, "-m", module, model_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:  # closing it ends the process, and so does our death
            url = process.stdout.readline().strip()
            assert url, "the proxy did not start"
            yield url, process.pid


# The tables.


def _busy_table(
    names: Sequence[str], form: Form, sizes: Sequence[int], found: dict[tuple[str, Form, int], Cell]
) -> Table:
    def cell(name: str, clients: int) -> str:
        it, ours = found[name, form, clients], found[names[0], form, clients]
        failed = f", {it.failed:.0f} failed" if it.failed else ""
        shown = f"{figure(it.rate)} ({figure(it.half * 1000)}, {milliseconds(it.most)}{failed})"
        return shown if name == names[0] else f"{factor(it.rate / ours.rate)}: {shown}"

    header = (f"{form.upper()}: turns per second (own cost: p50, p99)", *(_column(clients) for clients in sizes))
    rows = tuple((name, *(cell(name, clients) for clients in sizes)) for name in names)
    return Table(f"Turns per second, {form}", header, rows)


def _cpu_table(
    names: Sequence[str], form: Form, sizes: Sequence[int], found: dict[tuple[str, Form, int], Cell]
) -> Table:
    header = (f"{form.upper()}: CPU for a turn", *(_column(clients) for clients in sizes))
    rows = [(name, *(_cost(found, names, name, form, clients) for clients in sizes)) for name in names]
    for row, field in (("the load, for a turn", "load"), ("the model, for a turn", "model")):
        used = [max(getattr(found[name, form, clients], field) for name in names) for clients in sizes]
        rows.append((row, *(f"at most {milliseconds(seconds)}" for seconds in used)))
    return Table(f"CPU for a turn, {form}", header, tuple(rows))


def _cost(found: dict[tuple[str, Form, int], Cell], names: Sequence[str], name: str, form: Form, clients: int) -> str:
    it, ours = found[name, form, clients].cpu, found[names[0], form, clients].cpu
    return milliseconds(it) if name == names[0] else f"{milliseconds(it)} ({factor(it / ours)})"


def _steady_table(names: Sequence[str], clients: int, found: dict[tuple[str, Form], Cell]) -> Table:
    forms: tuple[Form, ...] = get_args(Form)
    columns = [f"{form.upper()}, {what}" for form in forms for what in ("turns/s", "own p50", "own p99", "CPU")]
    rows = []
    for name in names:
        line = [name]
        for form in forms:
            it, ours = found[name, form], found[names[0], form]
            line.append(figure(it.rate) + (f" ({it.failed:.0f} failed)" if it.failed else ""))
            for field in ("half", "most", "cpu"):
                value, one = getattr(it, field), getattr(ours, field)
                line.append(
                    milliseconds(value) if name == names[0] else f"{milliseconds(value)} ({factor(value / one)})"
                )
        rows.append(tuple(line))
    return Table(STEADY, (f"{clients} clients {STEADY}", *columns), tuple(rows))


def _column(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"

"""Chat completions: what a request costs the server, beside bare proxies to the same model."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import TypeAlias, get_args

import anyio
from msgspec import Struct

from benchmarks import server_model
from benchmarks.bench import Bench
from benchmarks.chat_load import PATH, Build, Load, Report, Task, Way, loading
from benchmarks.chat_proxy import BYTES, CLIENT
from benchmarks.results import Budget, Ratio, Section, Table, worst
from benchmarks.server import forkpoint_serving, model_arguments, proxy
from benchmarks.server_load import Form
from benchmarks.server_model import PIECES
from benchmarks.tables import factor, figure, milliseconds

CLIENTS = (1, 16, 64)
STORED = (10, 1_000)
LIMIT = 2.0  # the design's budget

_REQUESTS = 64  # in a round, or two of each client
_ROUNDS = 2  # where there are few clients; with many, one round has requests enough
_TURNS = 4  # of each conversation, so that it does not become much longer
_SECONDS = 2.0  # after which a round begins no more requests, however few there were
_LONG = 100  # turns, from which on OpenAI's client has one client only

TEXT = f"""\
One worker process of `forkpoint serve` on a SQLite file, asked for chat completions with `X-Conversation-Id`, and
beside it a bare FastAPI app on the same uvicorn with the same loop (uvloop) and parser (httptools), which passes
each request on to the same model, and stores, checks, counts and logs nothing: once with a bare HTTP client
(httpx2) that hands on the bytes, and once with OpenAI's client, as most would write it. The model must be sent the
whole history each time, whoever keeps it. A proxy keeps nothing, so its clients send it the whole list, system
message and all. So do those of Forkpoint in `full`, where the list is then matched with what is stored; in `latest`
they send the newest message, and Forkpoint has the rest. Every request of Forkpoint is a turn that is on disk
before the answer ends. It has answers streamed whichever way its own client wants them; the proxies have them
streamed for SSE and whole for JSON, which saves them the work for the {PIECES + 1} pieces. Before the clock runs, a
conversation has so many turns of about 700 characters, made one by one and then forked for each conversation, and
one more that is not counted; then come {_TURNS} at most that are. *CPU* is the time that the server's process used
for each request, by the system's count; in parentheses how many times that of the bytes and that of OpenAI's client
it is, which is what the budget is about. *Own time* is what the client saw, from the request's first byte to the
answer's last, less the time that the model had the request, by its own word: p50 and p99. With many clients on few
cores that is mostly waiting for the others. The model says also how many messages it was sent, and no answer passes
that was not given to all of them. OpenAI's client looks at every message of a list before it sends it, which takes
a third of a second for 2,000 of them: so where histories are long it has one client only, and what is measured
there counts for all. Model, load and servers are processes of their own; the load uses bare sockets, one connection
for each client, and a client's next request begins when its last one has ended."""

Place: TypeAlias = tuple[str, Form, int, int]  # contender, form, stored turns, clients


class Contender(Struct, frozen=True):
    """Something to ask, and how."""

    name: str
    url: str
    path: str
    pid: int
    way: Way


class Cell(Struct, frozen=True):
    """What a contender came to in one round. Times are in seconds."""

    cpu: float  # of the server, for a request
    half: float  # own time of a request, the median
    most: float  # own time of all but one request of a hundred
    load: float  # CPU of the load, for a request
    model: float  # CPU of the model, for a request


OURS = ("Forkpoint, `latest`", "Forkpoint, `full`")
FLOORS = ("bare FastAPI, the bytes handed on", "bare FastAPI, OpenAI's client")


async def measure(bench: Bench) -> Section:
    quick = bench.plan.quick
    stored = (10, 100) if quick else STORED
    sizes = CLIENTS[:2] if quick else CLIENTS
    requests, rounds = (24, 1) if quick else (_REQUESTS, _ROUNDS)
    with ExitStack() as exits:
        model_url, model = exits.enter_context(server_model.serving())
        contenders = _contenders(exits, bench, model_url)
        load = exits.enter_context(loading())
        for turns in stored:
            bench.progress.say(f"  a history of {turns:,} turns")
            await anyio.to_thread.run_sync(load.build, Build(contenders[0].url, turns))
        for form in get_args(Form):  # connections are made, statements prepared; it counts nowhere
            first = Task("", "", "bare", form, 8, 1, _TURNS, stored[0], _SECONDS)
            await anyio.to_thread.run_sync(_rounds, load, model, contenders, first, 1, {})
        found: dict[Place, list[Cell]] = {}
        for turns in stored:
            for clients in sizes:
                for form in get_args(Form):
                    bench.progress.say(f"  {turns:,} turns, {_column(clients)}, {form}")
                    each, times = max(2, requests // clients), rounds if requests > clients else 1
                    talks, more = max(1, each // _TURNS), min(each, _TURNS)
                    task = Task("", "", "bare", form, clients, talks, more, turns, _SECONDS)
                    await anyio.to_thread.run_sync(_rounds, load, model, contenders, task, times, found)
    tables = [table(form, stored, sizes, found) for table in (_cpu_table, _time_table) for form in get_args(Form)]
    budgets = [_budget(ours, form, floor, found) for floor in FLOORS for ours in OURS for form in get_args(Form)]
    return Section("Chat completions", TEXT, tuple(tables), tuple(budgets))


def _rounds(
    load: Load, model: int, contenders: Sequence[Contender], task: Task, rounds: int, found: dict[Place, list[Cell]]
) -> None:
    """Lets the contenders take turns."""
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            place = contender.name, task.form, task.stored, task.clients
            if place == _counts_for(place):
                found.setdefault(place, []).append(measured_cell(load, model, contender, task))


def _counts_for(place: Place) -> Place:
    """Where it is measured what a contender's request costs there."""
    name, form, stored, clients = place
    return (name, form, stored, 1 if name == FLOORS[1] and stored >= _LONG else clients)


def measured_cell(load: Load, model: int, contender: Contender, task: Task) -> Cell:
    """What one round of a contender comes to. Raises `RuntimeError` if a request failed."""
    numbers = task.form, task.clients, task.conversations, task.turns, task.stored, task.seconds
    load.prepare(Task(contender.url, contender.path, contender.way, *numbers))
    own, models = cpu_of(contender.pid), cpu_of(model)
    report: Report = load.run()
    own, models = cpu_of(contender.pid) - own, cpu_of(model) - models
    if report.failures or not report.own:
        raise RuntimeError(f"{contender.name}: {report.failures}")
    requests, times = len(report.own), sorted(report.own)
    most = times[min(requests - 1, requests * 99 // 100)]
    return Cell(own / requests, median(times), most, report.cpu / requests, models / requests)


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used, in all its threads, to the nanosecond. Linux only.

    What `/proc` says of it is counted in hundredths of a second: too few for a round of some dozen requests.
    """
    return time.clock_gettime((~pid << 3) | 2)


def _contenders(exits: ExitStack, bench: Bench, model_url: str) -> list[Contender]:
    path = bench.new_file()
    ours, our_pid = exits.enter_context(
        forkpoint_serving(
            path.parent,
            *("--store", f"sqlite:///{path}", "--instructions", "Be short."),
            *model_arguments(model_url),
            log=path.parent / "log",
        )
    )
    theirs, their_pid = exits.enter_context(proxy(model_url, "benchmarks.chat_proxy"))
    return [
        Contender(OURS[0], ours, PATH, our_pid, "latest"),
        Contender(OURS[1], ours, PATH, our_pid, "full"),
        Contender(FLOORS[0], theirs, BYTES, their_pid, "bare"),
        Contender(FLOORS[1], theirs, CLIENT, their_pid, "bare"),
    ]


# The tables.


def _cpu_table(form: Form, stored: Sequence[int], sizes: Sequence[int], found: dict[Place, list[Cell]]) -> Table:
    def cell(name: str, turns: int, clients: int) -> str:
        place = name, form, turns, clients
        cpu = _middle(found, place, "cpu")
        if name in FLOORS:
            return milliseconds(cpu) if place in found else ""
        times = [cpu / _middle(found, (floor, form, turns, clients), "cpu") for floor in FLOORS]
        return f"{milliseconds(cpu)} ({', '.join(map(factor, times))})"

    places = [(turns, clients) for turns in stored for clients in sizes]
    rows = [(name, *(cell(name, *place) for place in places)) for name in (*OURS, *FLOORS)]
    for row, field in (("the load, for a request", "load"), ("the model, for a request", "model")):
        used = [max(_middle(found, (name, form, *place), field) for name in (*OURS, *FLOORS)) for place in places]
        rows.append((row, *(f"at most {milliseconds(seconds)}" for seconds in used)))
    return Table(f"CPU for a request, {form}", (f"{form.upper()}: CPU for a request", *_columns(places)), tuple(rows))


def _time_table(form: Form, stored: Sequence[int], sizes: Sequence[int], found: dict[Place, list[Cell]]) -> Table:
    def cell(name: str, turns: int, clients: int) -> str:
        place = name, form, turns, clients
        half, most = (_middle(found, place, field) for field in ("half", "most"))
        return f"{figure(half * 1000)}, {milliseconds(most)}" if place in found else ""

    places = [(turns, clients) for turns in stored for clients in sizes]
    rows = tuple((name, *(cell(name, *place) for place in places)) for name in (*OURS, *FLOORS))
    return Table(f"Own time, {form}", (f"{form.upper()}: own time (p50, p99)", *_columns(places)), rows)


def _budget(ours: str, form: Form, floor: str, found: dict[Place, list[Cell]]) -> Budget:
    ratios = []
    for name, of, turns, clients in found:
        if (name, of) == (ours, form):
            places = (name, form, turns, clients), (floor, form, turns, clients)
            own, theirs = (_middle(found, place, "cpu") for place in places)
            ratios.append(Ratio(f"{turns:,} turns, {_column(clients)}", own / theirs, _best(found, places)))
    way = ours.partition(", ")[2]
    return worst(f"chat completion, {way}, {form.upper()}: CPU against {floor}", LIMIT, ratios)


def _best(found: dict[Place, list[Cell]], places: tuple[Place, Place]) -> float:
    ours, theirs = (min(cell.cpu for cell in found[_counts_for(place)]) for place in places)
    return ours / theirs


def _middle(found: dict[Place, list[Cell]], place: Place, field: str) -> float:
    return float(median(getattr(cell, field) for cell in found[_counts_for(place)]))


def _columns(places: Sequence[tuple[int, int]]) -> list[str]:
    return [f"{turns:,} turns, {_column(clients)}" for turns, clients in places]


def _column(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"

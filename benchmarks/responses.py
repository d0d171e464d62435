"""Responses: what one costs the server, beside a chat completion of the same turn."""

from contextlib import ExitStack
from statistics import median
from typing import TypeAlias, get_args

import anyio
from msgspec.structs import replace

from benchmarks import server_model
from benchmarks.bench import Bench
from benchmarks.chat import Cell, Contender, measured_cell
from benchmarks.chat_load import PATH, Build, Load, Task, loading
from benchmarks.results import Budget, Ratio, Section, Table, worst
from benchmarks.server import forkpoint_serving, model_arguments
from benchmarks.server_load import Form
from benchmarks.server_model import PIECES
from benchmarks.tables import factor, milliseconds

CLIENTS = (1, 16)
STORED = 10
LIMIT = 1.2

_REQUESTS = 128  # in a round
_ROUNDS = 8
_TURNS = 4  # of each conversation, so that it does not become much longer
_SECONDS = 10.0

CHAT, RESPONSE = "chat completion", "response"

TEXT = f"""\
One worker process of `forkpoint serve` on a SQLite file is asked for the same turns by both APIs: one message to a
conversation of {STORED} turns or a few more that `X-Conversation-Id` names, answered in {PIECES + 1} pieces. Both
APIs take turns, {_ROUNDS} rounds each. *CPU* is the time that the server's process used for each request, by the
system's count: the median of the rounds, and in parentheses how many times that of a chat completion it is. A response
is the larger document: it repeats its request three times in a stream, and its text four times."""

Place: TypeAlias = tuple[str, Form, int]  # contender, form, clients


async def measure(bench: Bench) -> Section:
    sizes = CLIENTS[:1] if bench.plan.quick else CLIENTS
    requests, rounds = (32, 2) if bench.plan.quick else (_REQUESTS, _ROUNDS)
    with ExitStack() as exits:
        model_url, model = exits.enter_context(server_model.serving())
        path = bench.new_file()
        url, pid = exits.enter_context(
            forkpoint_serving(
                path.parent,
                *("--store", f"sqlite:///{path}", "--instructions", "Be short."),
                *model_arguments(model_url),
                log=path.parent / "log",
            )
        )
        contenders = [
            Contender(CHAT, url, PATH, pid, "latest"),
            Contender(RESPONSE, url, "/v1/responses", pid, "response"),
        ]
        load = exits.enter_context(loading())
        await anyio.to_thread.run_sync(load.build, Build(url, STORED))
        found: dict[Place, list[Cell]] = {}
        for form in get_args(Form):  # what is done once counts nowhere
            first = Task("", "", "bare", form, 8, 1, _TURNS, STORED, _SECONDS)
            await anyio.to_thread.run_sync(_rounds, load, model, contenders, first, 1, {})
        for clients in sizes:
            for form in get_args(Form):
                bench.progress.say(f"  {clients} clients, {form}")
                talks = max(1, requests // clients // _TURNS)
                task = Task("", "", "bare", form, clients, talks, _TURNS, STORED, _SECONDS)
                await anyio.to_thread.run_sync(_rounds, load, model, contenders, task, rounds, found)
    return Section("Responses", TEXT, (_table(sizes, found),), tuple(_budget(form, sizes, found) for form in _FORMS))


_FORMS: tuple[Form, ...] = get_args(Form)


def _rounds(
    load: Load, model: int, contenders: list[Contender], task: Task, rounds: int, found: dict[Place, list[Cell]]
) -> None:
    """Lets both take turns."""
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            cell = measured_cell(load, model, contender, replace(task, way=contender.way))
            found.setdefault((contender.name, task.form, task.clients), []).append(cell)


def _table(sizes: tuple[int, ...], found: dict[Place, list[Cell]]) -> Table:
    places = [(form, clients) for form in _FORMS for clients in sizes]

    def cell(name: str, form: Form, clients: int) -> str:
        used = _middle(found[name, form, clients])
        if name == CHAT:
            return milliseconds(used)
        return f"{milliseconds(used)} ({factor(used / _middle(found[CHAT, form, clients]))})"

    columns = [f"{form.upper()}, {clients} client{'s' if clients > 1 else ''}" for form, clients in places]
    rows = tuple((name, *(cell(name, *place) for place in places)) for name in (CHAT, RESPONSE))
    return Table("CPU for a request", ("CPU for a request", *columns), rows)


def _budget(form: Form, sizes: tuple[int, ...], found: dict[Place, list[Cell]]) -> Budget:
    ratios = []
    for clients in sizes:
        ours, theirs = found[RESPONSE, form, clients], found[CHAT, form, clients]
        best = min(cell.cpu for cell in ours) / min(cell.cpu for cell in theirs)
        ratios.append(Ratio(f"{clients} client{'s' if clients > 1 else ''}", _middle(ours) / _middle(theirs), best))
    return worst(f"response, {form.upper()}: CPU against a chat completion of the same turn", LIMIT, ratios)


def _middle(cells: list[Cell]) -> float:
    return float(median(cell.cpu for cell in cells))

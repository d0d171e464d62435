"""The real small model, in this process. Its package and llama.cpp belong to the tests' environment."""

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from forkpoint.errors import ContextTooLong, NoWeights, RequestRefused
from forkpoint.events import Envelope, StagedEvent, Text, UserMessage
from forkpoint.llm import (
    LLM,
    CallContext,
    Complete,
    Failed,
    Models,
    Options,
    Piece,
    Rendering,
    TextPiece,
    manifest_of,
    own_identity,
    render,
)
from forkpoint.llm.local.engine import Llama, engine_for
from forkpoint.llm.local.weights import find
from forkpoint.llm.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

TOKENS = 1024
SMALL = LLM("local/smollm2", context_tokens=TOKENS, temperature=0.0, max_tokens=12)
CONTEXT = CallContext(own_identity("a conversation"))
RULES = "You are a helpful assistant for " + ", ".join(  # long words: many characters that are few tokens to read
    f"{what} {whom}"
    for what in ("international", "environmental", "educational", "technological", "professional")
    for whom in ("organizations", "communication", "responsibilities")
)
PATIENCE = 10.0  # seconds after which a test gives up on something that should come at once
TOO_LITTLE = "so little of it was cached: "


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    provider = LocalProvider()
    yield provider
    anyio.run(provider.aclose)


@pytest.fixture
def models(provider: LocalProvider) -> Models:
    return Models({"local": provider})


@pytest.fixture
def engine(provider: LocalProvider) -> Llama:
    """The one engine that all these tests share, and the models too."""
    return engine_for(find("smollm2"), provider, model=SMALL.model, context_tokens=TOKENS)


@pytest.fixture(params=["asyncio, a cancel scope", "asyncio, task.cancel()", "trio, a cancel scope"])
def way(request: pytest.FixtureRequest) -> str:
    """The loop, and how a call is cancelled there."""
    return str(request.param)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str:
    if "way" in request.fixturenames:
        return str(request.getfixturevalue("way")).partition(",")[0]
    return "asyncio"


def asks(words: str, before: Rendering | None = None) -> Rendering:
    start = before or render(manifest_of(SMALL, instructions=RULES))
    return start.then([StagedEvent(Envelope("user_message", 0), UserMessage((Text(words),)))])


def body(*words: str, tokens: int = 12) -> dict[str, Any]:
    """A chat request in which user and assistant take turns."""
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": RULES}]
    messages += [{"role": roles[number % 2], "content": said} for number, said in enumerate(words)]
    options = {"include_usage": True}
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True, "stream_options": options}


class Heard:
    """What one call told."""

    def __init__(self) -> None:
        self.text = ""
        self.read = 0  # tokens of the prompt that were read or cached, as far as was told
        self.prompt = 0
        self.cached = 0
        self.error: Any = None
        self.spoke = anyio.Event()
        self.reading = anyio.Event()

    def __call__(self, chunk: Any) -> None:
        self.error = chunk.get("error", self.error)
        if progress := chunk.get("prompt_progress"):
            self.read = progress["processed"]
            if 0 < self.read < progress["total"]:
                self.reading.set()
        for choice in chunk.get("choices") or ():
            if said := choice["delta"].get("content"):
                self.text += said
                self.spoke.set()
        if usage := chunk.get("usage"):
            self.prompt = usage["prompt_tokens"]
            self.cached = usage["prompt_tokens_details"]["cached_tokens"]


async def ask(engine: Llama, *words: str, tokens: int = 12) -> Heard:
    heard = Heard()
    await engine.chat(body(*words, tokens=tokens), heard)
    assert heard.error is None
    return heard


async def cancel_when(way: str, engine: Llama, request: dict[str, Any], heard: Heard, event: anyio.Event) -> None:
    """Asks, and cancels the call, in one of the ways, as soon as something has come."""
    if "task.cancel()" in way:
        task = asyncio.ensure_future(engine.chat(request, heard))
        await event.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.chat, request, heard)
        await event.wait()
        tasks.cancel_scope.cancel()


def threads_at_work() -> list[str]:
    """Threads that are still in a call. One that has just ended is given the moment that it needs to be gone."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("forkpoint local")]
    for thread in ours:
        thread.join(PATIENCE)
    return [thread.name for thread in ours if thread.is_alive()]


async def test_a_real_answer_streams_in_pieces(models: Models) -> None:
    pieces: list[Piece] = []
    outcome = await models.call(SMALL, asks("What is the capital of France?"), CONTEXT, heard=pieces.append)
    assert isinstance(outcome, Complete)
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == outcome.answer.text
    assert "Paris" in outcome.answer.text
    assert outcome.usage.input > 50
    assert outcome.usage.output > 1
    assert outcome.called.first_token is not None


async def test_the_second_turn_finds_the_first_in_the_cache(models: Models) -> None:
    first = asks("Tell me of a cat.")
    outcome = await models.call(SMALL, first, CONTEXT)
    assert isinstance(outcome, Complete)
    said = [StagedEvent(Envelope("assistant_message", 0), body) for body in outcome.answer.said]
    again = await models.call(SMALL, asks("And then?", first.then(said)), CONTEXT)
    assert isinstance(again, Complete)
    assert again.usage.cached >= 0.95 * outcome.usage.input, f"{TOO_LITTLE}{again.usage}"


async def test_a_fork_finds_its_source_in_the_cache_while_the_source_goes_on(engine: Llama) -> None:
    base = await ask(engine, "Tell me of a dog.")
    source, fork = Heard(), Heard()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.chat, body("Tell me of a dog.", base.text, "At length!", tokens=100), source)
        await source.spoke.wait()
        await engine.chat(body("Tell me of a dog.", base.text, "A cat instead."), fork)
    assert fork.cached >= 0.95 * base.prompt, f"{TOO_LITTLE}{fork.cached} of {base.prompt}"
    assert source.cached >= 0.95 * base.prompt, f"{TOO_LITTLE}{source.cached} of {base.prompt}"


async def test_forks_that_take_turns_keep_each_its_own_end_in_the_cache(engine: Llama) -> None:
    trunk = await ask(engine, "Tell me of a bird.")
    branches = {name: ["Tell me of a bird.", trunk.text, f"{name}! {'indeed ' * 20}"] for name in ("Red", "Blue")}
    before = dict.fromkeys(branches, trunk.prompt)
    for _ in range(2):
        for name, words in branches.items():
            heard = await ask(engine, *words)
            assert heard.cached >= 0.95 * before[name], f"{TOO_LITTLE}{heard.cached} of {before[name]}"
            before[name] = heard.prompt
            words += [heard.text, "Go on."]


async def test_a_fork_from_an_early_turn_of_a_long_conversation_finds_that_turn(engine: Llama) -> None:
    early = await ask(engine, "Tell me of a fish.")
    await ask(engine, "Tell me of a fish.", early.text, "word " * 300, tokens=2)
    fork = await ask(engine, "Tell me of a fish.", early.text, "Is it big? " * 5)
    assert fork.cached >= 0.95 * early.prompt, f"{TOO_LITTLE}{fork.cached} of {early.prompt}"


async def test_a_call_that_is_cancelled_while_its_prompt_is_read_reads_no_further(way: str, engine: Llama) -> None:
    words = f"{way} " + "word " * 700
    heard = Heard()
    await cancel_when(way, engine, body(words), heard, heard.reading)
    assert threads_at_work() == []
    assert engine.slots is not None
    assert engine.slots.idle == 4
    assert heard.read < 700, "the whole prompt was read although the call was cancelled"
    assert heard.text == ""
    assert (await ask(engine, "Hello")).text


async def test_a_call_that_is_cancelled_while_the_model_speaks_has_ended(way: str, engine: Llama) -> None:
    heard = Heard()
    await cancel_when(way, engine, body("Write a long story.", tokens=700), heard, heard.spoke)
    assert threads_at_work() == []
    assert engine.slots is not None
    assert engine.slots.idle == 4
    assert (await ask(engine, "Hello")).text


async def test_two_calls_are_answered_at_once(engine: Llama) -> None:
    one, other = Heard(), Heard()
    order: list[str] = []

    def noting(name: str, heard: Heard) -> Callable[[Any], None]:
        def note(chunk: Any) -> None:
            order.append(name)
            heard(chunk)

        return note

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.chat, body("Count to twenty.", tokens=40), noting("one", one))
        await one.spoke.wait()
        await engine.chat(body("Name three colours.", tokens=5), noting("other", other))
    assert one.text
    assert other.text
    assert order.index("other") < len(order) - 1 - order[::-1].index("one"), "the second waited for the first to end"


async def test_more_calls_than_slots_are_all_answered(engine: Llama) -> None:
    heard = [Heard() for _ in range(6)]
    async with anyio.create_task_group() as tasks:
        for number, each in enumerate(heard):
            tasks.start_soon(engine.chat, body(f"Say {number}.", tokens=3), each)
    assert all(each.text for each in heard)


async def test_calls_from_two_loops_share_the_engine(engine: Llama) -> None:
    def elsewhere() -> str:
        return anyio.run(ask, engine, "Hello from trio", backend="trio").text

    here = Heard()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.chat, body("Hello from asyncio"), here)
        there = await anyio.to_thread.run_sync(elsewhere)
    assert here.text
    assert there


async def test_a_prompt_that_is_too_long_is_a_typed_failure(models: Models) -> None:
    outcome = await models.call(SMALL, asks("word " * 2 * TOKENS), CONTEXT)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, ContextTooLong)
    assert str(TOKENS) in outcome.error.detail


async def test_an_answer_that_reaches_its_limit_says_so(models: Models) -> None:
    outcome = await models.call(SMALL, asks("Write a long story."), CONTEXT, Options(max_tokens=3))
    assert isinstance(outcome, Complete)
    assert outcome.answer.finish == "length"
    assert outcome.usage.output == 3


async def test_a_request_that_llama_cpp_refuses_is_a_typed_failure(engine: Llama) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(RequestRefused):
        await engine.chat({"messages": [{"role": "user", "content": [picture]}], "stream": True}, Heard())
    assert engine.slots is not None
    assert engine.slots.idle == 4


async def test_what_a_listener_raises_ends_the_call(engine: Llama) -> None:
    def refuse(chunk: Any) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        await engine.chat(body("Write a long story.", tokens=700), refuse)
    assert threads_at_work() == []


async def test_many_who_ask_at_once_load_the_model_once_and_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    engine = Llama(find("smollm2"), context_tokens=256, slots=2, progress=lines.append)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(engine.load)
    await ask_shortly(engine)
    assert [line.split()[0] for line in lines] == ["loading", "loaded"]
    assert "98 MB" in lines[0]
    await engine.aclose()
    assert engine.slots is None
    await ask_shortly(engine)  # it is loaded again
    assert len(lines) == 4
    await engine.aclose()
    assert capfd.readouterr() == ("", "")


def address_of(engine: Llama) -> str:
    assert engine._loading is not None
    return str(engine._loading.result()._server.listening_address)


async def test_nobody_else_can_use_the_port_that_llama_cpp_opens(engine: Llama) -> None:
    await engine.load()
    address = address_of(engine)
    assert address.startswith("http://127.0.0.1:")
    request = urllib.request.Request(f"{address}/v1/chat/completions", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        await anyio.to_thread.run_sync(urllib.request.urlopen, request)
    refused.value.close()


async def test_a_closed_engine_is_freed_when_its_last_call_has_ended() -> None:
    engine = Llama(find("smollm2"), context_tokens=512, slots=1)
    heard = Heard()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.chat, body("Write a long story.", tokens=300), heard)
        await heard.spoke.wait()
        address = address_of(engine)
        await engine.aclose()
        before = len(heard.text)
        while len(heard.text) == before:
            await checkpoint()  # the call goes on
        tasks.cancel_scope.cancel()
    for thread in threading.enumerate():
        if thread.name == "forkpoint frees a model":
            thread.join(PATIENCE)
    with pytest.raises(urllib.error.URLError, match="refused"):
        await anyio.to_thread.run_sync(urllib.request.urlopen, address)


async def test_a_file_that_is_no_model_is_named_in_the_error(tmp_path: Path, models: Models) -> None:
    path = tmp_path / "picture.gguf"
    path.write_bytes(b"not a model")
    llm = LLM(f"local/{path}")
    with pytest.raises(NoWeights, match=r"picture\.gguf is not a GGUF file"):
        await models.call(llm, render(manifest_of(llm)), CONTEXT)


async def test_a_model_that_llama_cpp_cannot_load_is_an_error_for_all_who_wait_and_may_be_tried_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    engine = Llama(path)
    for _ in range(2):
        with pytest.raises(NoWeights, match="cannot load"):
            await engine.load()


async def ask_shortly(engine: Llama) -> None:
    heard = Heard()
    await engine.chat({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "stream": True}, heard)
    assert heard.text
    await checkpoint()

"""No conversation's cache key ever shows up in another's request, whatever they share.

The bug that this must never be: one `LLM` or agent object is used by a conversation and its fork, the fork's key is
written on it, and from then on the source sends the fork's key too.
"""

import random
import re
import threading
from collections.abc import Iterator

import anyio
import msgspec
import pytest

from forkpoint.events import Event, NewEvent, Position, Text, Usage, UserMessage, seal
from forkpoint.llm import (
    LLM,
    CacheIdentity,
    CallContext,
    Complete,
    Models,
    Rendering,
    ToolSchema,
    fork_identity,
    manifest_of,
    own_identity,
    render,
)
from forkpoint.llm.scripts import Heard, Reply, Script
from forkpoint.testing.model_server import ModelServer
from forkpoint.testing.simulated_cache import SimulatedCache

pytestmark = pytest.mark.anyio

WIRES = ("chat", "responses", "messages")
each_wire = pytest.mark.parametrize("wire", WIRES)
LONG = "You answer questions about a build that failed. " * 60


def echo(heard: Heard) -> Reply:
    return Reply(f"You said: {heard.text}")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(Script(echo), cache=SimulatedCache(minimum=64, granularity=16)) as server:
        yield server


class Branch:
    """A conversation as the model layer sees one: an id, an identity, a path. It shares its LLM with everybody."""

    def __init__(
        self,
        id: str,
        llm: LLM,
        *,
        identity: CacheIdentity | None = None,
        rendering: Rendering | None = None,
        base: int | None = None,
    ) -> None:
        self.id = id
        self.llm = llm
        self.identity = identity or own_identity(id)
        self.rendering = rendering or render(manifest_of(llm, instructions=LONG, tools=[ToolSchema("look")]))
        self.base = base

    def fork(self, id: str, cache: str, llm: LLM | None = None) -> "Branch":
        """A fork with the same history, and with another model if one is given."""
        rendering = self.rendering
        if llm is not None and llm != self.llm:
            rendering = render(manifest_of(llm, instructions="Something else. " * 100))
        identity = fork_identity(
            self.identity,
            self.id,
            id,
            cache,  # type: ignore[arg-type]
            manifest=rendering.manifest.hash,
            source_manifest=self.rendering.manifest.hash,
        )
        return Branch(id, llm or self.llm, identity=identity, rendering=rendering, base=self.rendering.events)

    async def ask(self, models: Models, text: str) -> Usage:
        """One turn."""
        self._say(NewEvent(UserMessage((Text(f"[{self.id}] {text}"),))))
        context = CallContext(self.identity, "tenant", self.base)
        outcome = await models.call(self.llm, self.rendering, context)
        assert isinstance(outcome, Complete), f"the call failed: {outcome.error}"
        for body in outcome.answer.said:
            self._say(NewEvent(body, response=1))
        return outcome.usage

    def _say(self, new: NewEvent) -> None:
        place = Position(1, self.rendering.events + 1)
        self.rendering = self.rendering.then([Event(place, f"turn-{place}", seal(new, 0), new.body)])


def llm_at(server: ModelServer, wire: str) -> LLM:
    if wire == "messages":
        return LLM("anthropic/a-model", base_url=server.root)
    return LLM("openai/a-model", api=wire, base_url=server.url)  # type: ignore[arg-type]


def spoken_by(server: ModelServer) -> dict[str, set[tuple[str | None, str | None]]]:
    """Which keys and sessions each conversation has shown the server."""
    shown: dict[str, set[tuple[str | None, str | None]]] = {}
    for request in server.requests:
        id = re.findall(r"\[(c\d+)\]", request.body.decode())[-1]
        shown.setdefault(id, set()).add((request.key, request.header("x-session-id")))
    return shown


@each_wire
async def test_one_llm_shared_by_a_conversation_and_its_forks_shows_each_its_own_key(
    server: ModelServer, wire: str
) -> None:
    llm = llm_at(server, wire)
    before = msgspec.structs.asdict(llm)
    async with Models() as models:
        source = Branch("c0", llm)
        await source.ask(models, "Why did it fail?")
        fork = source.fork("c1", "own")
        await fork.ask(models, "What if?")
        await source.ask(models, "Go on.")
        await source.fork("c2", "own", llm=fork.llm).ask(models, "And so?")
    shown = spoken_by(server)
    assert set(shown) == {"c0", "c1", "c2"}
    for id, pairs in shown.items():
        own = own_identity(id)
        assert pairs == {(None if wire == "messages" else own.key, own.session)}
    assert msgspec.structs.asdict(llm) == before, "a call changed an attribute of the LLM that all share"


@each_wire
async def test_a_fork_that_inherits_shows_its_sources_key_and_keeps_the_source_as_it_is(
    server: ModelServer, wire: str
) -> None:
    llm = llm_at(server, wire)
    async with Models() as models:
        source = Branch("c0", llm)
        await source.ask(models, "Why did it fail?")
        identity = source.identity
        fork = source.fork("c1", "inherit")
        await fork.ask(models, "What if?")
        await source.ask(models, "Go on.")
    assert source.identity == identity
    assert fork.identity.inherited_from == "c0"
    assert len({request.header("x-session-id") for request in server.requests}) == 1
    assert len({request.key for request in server.requests}) == 1


async def test_a_fork_with_another_manifest_does_not_inherit_and_says_why(server: ModelServer) -> None:
    llm = llm_at(server, "chat")
    other = LLM("openai/another-model", base_url=server.url)
    async with Models() as models:
        source = Branch("c0", llm)
        await source.ask(models, "Why did it fail?")
        fork = source.fork("c1", "inherit", llm=other)
        await fork.ask(models, "What if?")
    assert server.last.key == own_identity("c1").key
    assert fork.identity.dropped is not None
    assert "c0" in fork.identity.dropped
    assert fork.identity.inherited_from is None


@each_wire
async def test_conversations_and_forks_in_many_tasks_never_show_each_others_keys(
    server: ModelServer, wire: str
) -> None:
    llm = llm_at(server, wire)
    async with Models() as models:
        source = Branch("c0", llm)
        await source.ask(models, "Start.")

        async def follow(number: int) -> None:
            branch = source.fork(f"c{number}", "own") if number % 2 else Branch(f"c{number}", llm)
            for turn in range(3):
                await branch.ask(models, f"turn {turn}")

        async with anyio.create_task_group() as tasks:
            for number in range(1, 25):
                tasks.start_soon(follow, number)
    _each_shows_only_its_own(server, wire)


@each_wire
def test_conversations_in_many_threads_never_show_each_others_keys(server: ModelServer, wire: str) -> None:
    llm = llm_at(server, wire)
    models = Models()

    async def follow(numbers: list[int]) -> None:
        branches = [Branch(f"c{number}", llm) for number in numbers]
        for _ in range(3):
            for branch in random.sample(branches, len(branches)):
                await branch.ask(models, "go on")
        await models.aclose()

    threads = [threading.Thread(target=anyio.run, args=(follow, list(range(n, 24, 6)))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _each_shows_only_its_own(server, wire)


def _each_shows_only_its_own(server: ModelServer, wire: str) -> None:
    shown = spoken_by(server)
    assert len(shown) >= 24
    for id, pairs in shown.items():
        own = own_identity(id)
        expected = {(None if wire == "messages" else own.key, own.session)}
        assert pairs == expected, f"{id} showed a key that is not its own"


# What it is worth, on a provider's cache as it is described.


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_fork_that_inherits_finds_its_sources_prompt_in_the_cache_and_one_with_its_own_key_does_not(
    server: ModelServer, wire: str
) -> None:
    llm = llm_at(server, wire)
    async with Models() as models:
        source = Branch("c0", llm)
        await source.ask(models, "Why did it fail?")
        again = await source.ask(models, "Go on.")
        warm = await source.fork("c1", "inherit").ask(models, "What if?")
        cold = await source.fork("c2", "own").ask(models, "What if?")
    assert again.cached / again.input > 0.9
    assert warm.cached / warm.input > 0.9
    assert cold.cached == 0


async def test_on_a_wire_without_keys_any_fork_finds_the_prompt_by_its_marks(server: ModelServer) -> None:
    async with Models() as models:
        source = Branch("c0", llm_at(server, "messages"))
        for turn in range(4):
            await source.ask(models, f"turn {turn}")
        fork = source.fork("c1", "own")
        first = await fork.ask(models, "What if?")
        later = await source.ask(models, "Go on.")
    assert first.cached / first.input > 0.9
    assert later.cached / later.input > 0.9
    assert max(len(request.marks) for request in server.requests) <= 4


async def test_a_turn_of_many_blocks_does_not_lose_the_cache_on_a_wire_that_looks_back_twenty(
    server: ModelServer,
) -> None:
    async with Models() as models:
        source = Branch("c0", llm_at(server, "messages"))
        await source.ask(models, "Start.")
        for number in range(30):
            source._say(NewEvent(UserMessage((Text(f"a further remark, number {number}"),))))
        after = await source.ask(models, "Go on.")
    assert after.cached / after.input > 0.5, "the place where the last request ended has to be marked again"

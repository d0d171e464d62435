"""Whose cache key is whose: what a server received over HTTP, byte by byte.

The bug that this must never be: a conversation and its fork share an agent or an `LLM`, the fork's key is written on
it, and from then on the source sends the fork's key too.
"""

import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.conversation.support.homes import Home

from forkpoint import LLM, Agent, AsyncConversation, Tool, TurnFailed, tool
from forkpoint.events import ManifestChanged
from forkpoint.llm import CacheIdentity, own_identity
from forkpoint.llm.model import Retries
from forkpoint.testing import Fault, Heard, ModelServer, Recorded, Reply, Script, ScriptedCall, SimulatedCache

pytestmark = pytest.mark.anyio

WIRES = ("chat", "responses", "messages")
each_wire = pytest.mark.parametrize("wire", WIRES)
_ITEM = re.compile(rb'"id":"(rs|fc)_[^"]*",')
_MARK = re.compile(rb',"cache_control":\{[^}]*\}')


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is there"


def answer(heard: Heard) -> Reply:
    """Looks once if it is asked to, and thinks before it speaks."""
    items = heard.body.get("messages") or heard.body.get("input")
    if heard.text.startswith("look") and b"is there" not in msgspec.json.encode(items[-1]):
        return Reply(reasoning="Let me see.", calls=(ScriptedCall("look", '{"at": "it"}', "call_0123456789"),))
    return Reply(f"You said: {heard.text}", reasoning="That is simple.")


@pytest.fixture
def server(places: None) -> Iterator[ModelServer]:
    with ModelServer(Script(answer)) as server:
        yield server


def llm_at(server: ModelServer, wire: str, **settings: Any) -> LLM:
    if wire == "messages":
        return LLM("anthropic/a-model", base_url=server.root, **settings)
    return LLM("openai/a-model", api=wire, base_url=server.url, **settings)  # type: ignore[arg-type]


def agent_at(server: ModelServer, wire: str = "chat", **settings: Any) -> Agent:
    return Agent(llm_at(server, wire), instructions="Be brief.", tools=[look], **settings)


@pytest.fixture
async def memory() -> AsyncIterator[str]:
    """An address that all conversations of a test share; it is open as long as the test."""
    async with await AsyncConversation.open("anchor", create=Agent("scripted/echo"), store="memory:"):
        yield "memory:"


def shown(request: Recorded) -> tuple[str | None, str | None]:
    """What a request shows of its conversation: the key and the session."""
    assert request.header("session_id") == request.header("x-session-id")
    return request.key, request.header("x-session-id")


def shows(identity: CacheIdentity, wire: str = "chat") -> tuple[str | None, str]:
    """What a request with this identity is to show. The messages wire has no key."""
    return (None if wire == "messages" else identity.key), identity.session


def history_of(request: Recorded) -> bytes:
    """The messages of a request as they were sent, without marks and without what closes the list."""
    fields = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
    text = _MARK.sub(b"", bytes(fields.get("messages") or fields["input"]))
    return text.removesuffix(b"]}]" if request.wire == "messages" else b"]")


def unmarked(request: Recorded) -> bytes:
    return _MARK.sub(b"", request.body)


# A fork's key.


@each_wire
async def test_a_fork_shows_its_own_key_or_inherits_and_the_source_always_its_own(
    server: ModelServer, home: Home, wire: str
) -> None:
    source = AsyncConversation(home.agent(agent_at(server, wire)), store=home.store)
    await source.run("look")
    cold, warm = await source.fork(), await source.fork(cache="inherit")
    for conversation in (cold, source, warm, source):
        count = len(server.requests)
        await conversation.run("look")
        own = own_identity(cold.id if conversation is cold else source.id)
        assert [shown(request) for request in server.requests[count:]] == [shows(own, wire)] * 2
    assert await cold.cache() == own_identity(cold.id)
    assert await source.cache() == own_identity(source.id)
    inherited = await warm.cache()
    assert (inherited.key, inherited.inherited_from) == (own_identity(source.id).key, source.id)


async def test_a_key_says_nothing_of_the_id_or_the_name(server: ModelServer, home: Home) -> None:
    source = AsyncConversation(home.agent(agent_at(server)), conversation_id="ada-at-example.org", store=home.store)
    await source.run("one")
    fork = await source.fork(conversation_id="follow-up")
    await fork.run("two")
    for request, conversation in zip(server.requests, (source, fork), strict=True):
        sent = request.body + repr(request.headers).encode()
        for name in (conversation.id, conversation.name):
            assert name.encode() not in sent
        assert request.key is not None
        assert len(request.key) <= 64


async def test_each_call_records_the_key_that_was_sent(server: ModelServer, home: Home) -> None:
    source = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    await source.run("look")
    fork = await source.fork()
    await fork.run("look")
    recorded = [step.key for turn in (await fork.turns()).items for step in turn.steps]
    assert recorded == [request.key for request in server.requests]
    assert len(set(recorded)) == 2


# A fork's bytes.


@each_wire
@pytest.mark.parametrize("cache", ["own", "inherit"])
async def test_a_forks_first_request_starts_with_exactly_what_its_source_had_sent(
    server: ModelServer, home: Home, wire: str, cache: Any
) -> None:
    source = AsyncConversation(home.agent(agent_at(server, wire)), store=home.store)
    first = await source.run("look")
    earlier = server.last
    await source.run("look again")
    last = server.last
    for fork, before in ((await source.fork(cache=cache), last), (await source.fork(at=first, cache=cache), earlier)):
        await fork.run("and now?")
        request = server.last
        assert history_of(request).startswith(history_of(before))
        assert len(history_of(request)) > len(history_of(before))
        assert request.blocks[: len(before.blocks)] == before.blocks
        head = request.body.split(b'"messages":' if b'"messages":' in request.body else b'"input":')[0]
        assert _MARK.sub(b"", before.body).startswith(_MARK.sub(b"", head)), "tools and instructions are others"


@each_wire
async def test_source_and_fork_asked_the_same_send_the_same_but_for_whose_it_is(
    server: ModelServer, home: Home, wire: str
) -> None:
    source = AsyncConversation(home.agent(agent_at(server, wire)), store=home.store)
    await source.run("look")
    warm, cold = await source.fork(cache="inherit"), await source.fork()
    for conversation in (source, warm, cold):
        await conversation.run("and now?")
    theirs, inherited, own = server.requests[-3:]
    assert unmarked(inherited) == unmarked(theirs)
    assert shown(inherited) == shown(theirs)
    keys = own_identity(cold.id).key.encode(), own_identity(source.id).key.encode()
    assert unmarked(own).replace(*keys) == unmarked(theirs)
    assert shown(own) != shown(theirs)


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_fork_that_inherits_finds_its_prompt_in_the_cache_and_one_with_its_own_key_does_not(
    server: ModelServer, home: Home, wire: str
) -> None:
    server.cache = SimulatedCache(minimum=64, granularity=16)
    agent = Agent(llm_at(server, wire), instructions="You answer questions about a build that failed. " * 200)
    source = AsyncConversation(home.agent(agent), store=home.store)
    await source.run("Why did it fail?")
    warm, cold = await source.fork(cache="inherit"), await source.fork()
    for fork in (warm, cold):
        await fork.run("What if?")
    assert ((await warm.stats()).cached_share or 0.0) > 0.9
    assert (await cold.stats()).cached_share == 0.0


# An inherited key is dropped with another manifest, for good and with the reason.


async def test_a_fork_with_another_agent_inherits_nothing_and_says_why(server: ModelServer, home: Home) -> None:
    source = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    await source.run("one")
    other = Agent(llm_at(server, "chat"), instructions="Be long.", tools=[look])
    fork = await source.fork(agent=home.agent(other), cache="inherit")
    identity = await fork.cache()
    assert (identity.key, identity.inherited_from) == (own_identity(fork.id).key, None)
    assert identity.dropped is not None
    assert source.id in identity.dropped
    await fork.run("two")
    await source.run("three")
    assert [shown(request) for request in server.requests[-2:]] == [shows(identity), shows(own_identity(source.id))]
    assert await source.cache() == own_identity(source.id)


async def test_a_fork_with_an_agent_of_the_same_manifest_inherits(server: ModelServer, home: Home) -> None:
    source = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    await source.run("one")
    careful = agent_at(server, approval="always", name="careful")
    fork = await source.fork(agent=home.agent(careful), cache="inherit")
    await fork.run("two")
    assert shown(server.last) == shows(own_identity(source.id))


async def test_a_fork_that_changes_its_agent_later_drops_the_key_and_says_why(server: ModelServer, home: Home) -> None:
    original = agent_at(server)
    source = AsyncConversation(home.agent(original), store=home.store)
    await source.run("one")
    fork = await source.fork(cache="inherit")
    await fork.run("two")
    assert shown(server.last) == shows(own_identity(source.id))
    await fork.change_agent(home.agent(Agent(original.llm, instructions="Be long.")))
    await fork.run("three")
    assert shown(server.last) == shows(own_identity(fork.id))
    identity = await fork.cache()
    assert identity.dropped is not None
    assert source.id in identity.dropped
    noted = (await fork.events(kinds=["manifest_changed"]))[-1].body
    assert isinstance(noted, ManifestChanged)
    assert f"inherited from {source.id}, dropped" in (noted.reason or "")
    await fork.change_agent(home.agent(original))
    await fork.run("four")
    assert shown(server.last) == shows(own_identity(fork.id)), "what was dropped is dropped for good"
    await source.run("five")
    assert shown(server.last) == shows(own_identity(source.id))
    assert await source.cache() == own_identity(source.id)


async def test_a_source_that_changes_its_agent_keeps_its_own_key(server: ModelServer, home: Home) -> None:
    source = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    await source.run("one")
    await source.change_agent(home.agent(Agent(llm_at(server, "chat"), instructions="Be long.")))
    await source.run("two")
    assert {shown(request) for request in server.requests} == {shows(own_identity(source.id))}
    assert (await source.cache()).dropped is None


def described(description: str) -> Tool:
    @tool(name="look", description=description)
    def another_look(at: str) -> str:
        return f"{at} is there"

    return another_look


async def test_a_key_that_a_tools_new_words_have_dropped_is_dropped_for_good(server: ModelServer, memory: str) -> None:
    """The conversation says so, a fork of it does not inherit what it lost, and the old words do not bring it back."""
    llm = llm_at(server, "chat")
    old, new = (Agent(llm, tools=[described(words)]) for words in ("Looks.", "Looks closely."))
    source = AsyncConversation(old, store=memory)
    await source.run("one")
    fork = await source.fork(cache="inherit")
    again = await AsyncConversation.open(fork.id, agent=new, store=memory)
    await again.run("two")
    own = own_identity(fork.id)
    assert shown(server.last) == shows(own)
    noted = (await again.events(kinds=["manifest_changed"]))[-1].body
    assert isinstance(noted, ManifestChanged)
    assert "tool look changed" in (noted.reason or "")
    assert f"inherited from {source.id}, dropped" in (noted.reason or "")
    identity = await again.cache()
    assert (identity.key, identity.inherited_from) == (own.key, None), "it says that it shows a key that it does not"
    assert identity.dropped is not None
    back = await AsyncConversation.open(fork.id, agent=old, store=memory)
    await back.run("three")
    assert shown(server.last) == shows(own), "what was dropped is dropped for good"


async def test_a_fork_of_one_that_dropped_its_key_inherits_what_that_shows_now(server: ModelServer, home: Home) -> None:
    source = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    await source.run("one")
    fork = await source.fork(cache="inherit")
    await fork.change_agent(home.agent(Agent(llm_at(server, "chat"), instructions="Be long.")))
    await fork.run("two")
    own, warm = await fork.fork(), await fork.fork(cache="inherit")
    assert await own.cache() == own_identity(own.id), "a key of its own was never dropped"
    inherited = await warm.cache()
    assert (inherited.key, inherited.inherited_from, inherited.dropped) == (own_identity(fork.id).key, fork.id, None)
    await warm.run("three")
    assert shown(server.last) == shows(own_identity(fork.id))


async def test_a_fork_inherits_from_a_conversation_that_has_not_begun(server: ModelServer, home: Home) -> None:
    source = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    fork = await source.fork(cache="inherit")
    await fork.run("one")
    assert shown(server.last) == shows(own_identity(source.id)), (
        "its prompt starts as the source's, and it asked for it"
    )
    assert (await fork.cache()).dropped is None
    other = await source.fork(agent=home.agent(Agent(llm_at(server, "chat"), instructions="Be long.")), cache="inherit")
    await other.run("one")
    assert shown(server.last) == shows(own_identity(other.id)), "its prompt starts otherwise"


async def test_a_fork_inherits_from_one_that_was_given_another_agent_and_has_not_run_yet(
    server: ModelServer, home: Home
) -> None:
    """What counts is the manifest that the source's next prompt begins with, not the one of its last."""
    root = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    await root.run("one")
    source = await root.fork(agent=home.agent(Agent(llm_at(server, "chat"), instructions="Be long.")))
    fork = await source.fork(cache="inherit")
    await fork.run("two")
    await source.run("two")
    theirs, ours = server.requests[-1], server.requests[-2]
    assert ours.blocks == theirs.blocks
    assert shown(ours) == shown(theirs) == shows(own_identity(source.id))


async def test_a_fork_inherits_also_where_the_functions_of_the_source_are_not_at_hand(
    server: ModelServer, memory: str
) -> None:
    """Another process has given the source an agent whose tools cannot be had here: forking needs none of them."""
    source = AsyncConversation(Agent(llm_at(server, "chat")), store=memory)
    await source.run("one")
    elsewhere = await AsyncConversation.open(source.id, store=memory)
    only_there = Agent(llm_at(server, "chat"), tools=[described("Looks, there.")])
    await elsewhere.change_agent(only_there)
    unbound = await AsyncConversation.open(source.id, bind=False, store=memory)
    for here in (source, unbound):
        fork = await here.fork(cache="inherit")
        again = await AsyncConversation.open(fork.id, agent=only_there, store=memory)
        await again.run("two")
        assert shown(server.last) == shows(own_identity(source.id))
        assert (await again.cache()).dropped is None


# Opened again.


async def test_a_conversation_that_is_opened_again_keeps_the_key_it_has_whatever_its_source_has_now(
    server: ModelServer, home: Home
) -> None:
    agent = agent_at(server)
    root = AsyncConversation(home.agent(agent), store=home.store)
    await root.run("one")
    parent = await root.fork(cache="inherit")
    child = await parent.fork(cache="inherit")
    await parent.change_agent(home.agent(Agent(agent.llm, instructions="Be long.")))
    await parent.run("two")
    assert shown(server.last) == shows(own_identity(parent.id))
    await parent.delete()
    again = await AsyncConversation.open(child.id, agent=home.agent(agent), store=home.store)
    assert await again.cache() == await child.cache()
    await again.run("three")
    assert shown(server.last) == shows(own_identity(root.id))
    assert (await again.cache()).inherited_from == parent.id


PROCESS = """
import sys
from forkpoint import Agent, Conversation, LLM
import shelf

store, url, *asked = sys.argv[1:]
if asked == ["begin"]:
    agent = Agent(LLM("openai/a-model", base_url=url), tools=[shelf.look])
    with Conversation(agent, conversation_id="source", store=store) as source:
        source.run("one")
        source.fork(conversation_id="fork", cache="inherit").run("two")
for name in asked[1:] if asked[0] == "run" else []:
    with Conversation.open(name, store=store) as conversation:
        conversation.run("on")
"""

SHELF = '''
from forkpoint import tool

@tool
def look(at: str) -> str:
    """{words}"""
    return f"{{at}} is there"
'''


async def test_a_tool_whose_words_change_between_two_processes_costs_the_fork_its_inherited_key(
    server: ModelServer, tmp_path: Path
) -> None:
    address = f"sqlite:///{tmp_path / 'forkpoint.db'}"

    async def process(words: str, *asked: str) -> None:
        (tmp_path / "shelf.py").write_text(textwrap.dedent(SHELF.format(words=words)))
        command = [sys.executable, "-B", "-c", PROCESS, address, server.url, *asked]
        done = await anyio.to_thread.run_sync(
            lambda: subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        )
        assert done.returncode == 0, done.stderr

    await process("Looks.", "begin")
    await process("Looks closely.", "run", "fork", "source")
    async with (
        await AsyncConversation.open("source", bind=False, store=address) as source,
        await AsyncConversation.open("fork", bind=False, store=address) as fork,
    ):
        theirs, own = shows(own_identity(source.id)), shows(own_identity(fork.id))
        noted = (await fork.events(kinds=["manifest_changed"]))[-1].body
        assert await source.cache() == own_identity(source.id)
    assert [shown(request) for request in server.requests] == [theirs, theirs, own, theirs]
    assert isinstance(noted, ManifestChanged)
    assert f"inherited from {source.id}, dropped" in (noted.reason or "")


# Never mixed.


@each_wire
async def test_conversations_that_share_an_agent_and_run_at_once_never_mix_their_keys(
    server: ModelServer, home: Home, wire: str
) -> None:
    agent = agent_at(server, wire)
    source = AsyncConversation(home.agent(agent), store=home.store)
    await source.run("source: start")
    expected = {"source": own_identity(source.id)}

    async def follow(number: int) -> None:
        name = f"number{number}"
        match number % 4:
            case 0:
                conversation = await source.fork()
            case 1:
                conversation = await source.fork(agent=home.agent(agent))
            case 2:
                conversation = await source.fork(cache="inherit")
            case _:
                conversation = AsyncConversation(home.agent(agent), store=home.store)
        expected[name] = own_identity(source.id if number % 4 == 2 else conversation.id)
        for turn in range(3):
            await conversation.run(f"look, {name}: turn {turn}")

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(follow, number)
        for turn in range(3):
            await source.run(f"look, source: turn {turn}")
    seen: dict[str, set[tuple[str | None, str | None]]] = {}
    for request in server.requests:
        said = re.findall(r"(number\d+|source): ", request.body.decode())
        seen.setdefault(said[-1], set()).add(shown(request))
    assert seen == {name: {shows(identity, wire)} for name, identity in expected.items()}
    assert len(seen) == 21


# Tried again.


@each_wire
async def test_a_retry_sends_the_same_bytes_as_the_try_that_failed(server: ModelServer, home: Home, wire: str) -> None:
    call = Reply(reasoning="Let me see.", calls=(ScriptedCall("look", '{"at": "it"}', "call_0123456789"),))
    broken = Reply("", fault=Fault("overloaded"))
    server.script = Script([Reply("Hello."), call, broken, broken, call, Reply("Done.")])
    agent = Agent(llm_at(server, wire, retries=Retries(attempts=1)), tools=[look])
    source = AsyncConversation(home.agent(agent), store=home.store)
    await source.run("one")
    with pytest.raises(TurnFailed):
        await source.run("two")
    with pytest.raises(TurnFailed):
        await source.retry()
    assert (await source.retry()).text == "Done."
    _, first, second, again, once_more, last = server.requests
    assert again.body == first.body
    assert once_more.body == first.body
    assert _ITEM.sub(b"", last.body) == _ITEM.sub(b"", second.body), "but for what the provider calls its items"
    assert shown(first) == shown(second) == shown(once_more) == shown(last) == shows(own_identity(source.id), wire)


@each_wire
async def test_a_turn_that_is_resumed_sends_again_what_was_not_answered(
    server: ModelServer, home: Home, wire: str
) -> None:
    call = Reply(calls=(ScriptedCall("look", '{"at": "it"}', "call_0123456789"),))
    server.script = Script([Reply("Hello."), call, Reply("", fault=Fault("overloaded")), Reply("Done.")])
    agent = Agent(llm_at(server, wire, retries=Retries(attempts=1)), tools=[look])
    source = AsyncConversation(home.agent(agent), store=home.store)
    await source.run("one")
    with pytest.raises(TurnFailed):
        await source.run("two")
    assert (await source.resume()).text == "Done."
    assert server.requests[-1].body == server.requests[-2].body
    assert shown(server.requests[-1]) == shown(server.requests[-2])


async def test_a_rewound_conversation_keeps_its_key_and_the_branch_set_aside_has_its_own(
    server: ModelServer, home: Home
) -> None:
    source = AsyncConversation(home.agent(agent_at(server)), store=home.store)
    first = await source.run("one")
    second = await source.run("two")
    aside = await source.rewind(at=first)
    assert aside is not None
    await source.run(second.input[0])
    assert server.requests[-1].body == server.requests[-2].body, "regenerating sends what was sent before"
    await aside.run("three")
    assert shown(server.requests[-1]) == shows(own_identity(aside.id))
    assert shown(server.requests[-2]) == shows(own_identity(source.id))

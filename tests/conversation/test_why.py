"""`why`: each reason why a prompt is not in the cache, on three wires, against a server with a simulated cache."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from tests.conversation.support.homes import Home
from tests.conversation.support.team import lead, orders, spawn, wait
from tests.engine.turns.test_path import Counting

from forkpoint import LLM, Agent, AsyncConversation, Conversation, Tool, TurnFailed, Window, tool
from forkpoint.engine.questions.cache_reports import CacheReports
from forkpoint.engine.resources import EngineOptions, Resources
from forkpoint.errors import NoSuchTurn, NotFound
from forkpoint.events import NewEvent, Text, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm import Models
from forkpoint.llm.model import Retries
from forkpoint.llm.prompt.misses import CacheReport, CallCache, MissCode
from forkpoint.store.protocol import Store
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script, ScriptedCall, SimulatedCache
from forkpoint.testing.clock import ManualClock

pytestmark = pytest.mark.anyio

WIRES = ("chat", "responses", "messages")
LONG = "You answer questions about a build that failed, and say what to do about it. " * 100
MODELS = {"chat": "openai/gpt-5", "responses": "openai/gpt-5", "messages": "anthropic/claude-sonnet-5"}


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is there"


@tool
def search(words: str) -> str:
    """Searches for words."""
    return f"{words} was found"


def answer(heard: Heard) -> Reply:
    if heard.text.endswith("break") and "is there" in str(heard.body)[-400:]:
        return Reply(fault=Fault("overloaded"))
    if heard.text.startswith("look") and "is there" not in str(heard.body)[-400:]:
        return Reply(calls=(ScriptedCall("look", '{"at": "it"}', "call_0123456789abcdefghij"),))
    if heard.text.startswith("fail"):
        return Reply(fault=Fault("overloaded"))
    return Reply(f"You said: {heard.text}")


class World(NamedTuple):
    """A provider with a cache, a store, and one clock for both."""

    server: ModelServer
    cache: SimulatedCache
    clock: ManualClock
    store: Store
    wire: str

    def llm(self, model: str | None = None, **settings: Any) -> LLM:
        name = model or MODELS[self.wire]
        if self.wire == "messages":
            return LLM(name, base_url=self.server.root, **{"provider": "anthropic"} | settings)
        return LLM(name, api=self.wire, base_url=self.server.url, **{"provider": "openai"} | settings)  # type: ignore[arg-type]

    def agent(self, *tools: Tool, instructions: str = LONG, llm: LLM | None = None, **settings: Any) -> Agent:
        return Agent(llm or self.llm(), instructions=instructions, tools=tools or [look], **settings)

    def talk(self, agent: Agent | None = None) -> AsyncConversation:
        return AsyncConversation(agent or self.agent(), store=self.store)


@pytest.fixture(params=WIRES)
async def world(request: pytest.FixtureRequest, places: None) -> AsyncIterator[World]:
    clock = ManualClock()
    cache = SimulatedCache(clock=lambda: clock() / 1e6)
    store = await SqliteStore.open(None, clock=clock)
    with ModelServer(Script(answer), cache=cache) as server:
        yield World(server, cache, clock, store, request.param)
    await store.close()


async def after_a_turn(world: World, agent: Agent | None = None) -> AsyncConversation:
    conversation = world.talk(agent)
    await conversation.run("Why did it fail?")
    return conversation


async def changed(world: World, agent: Agent, *, before: Agent | None = None) -> AsyncConversation:
    conversation = await after_a_turn(world, before)
    await conversation.change_agent(agent)
    await conversation.run("And now?")
    return conversation


# The scenarios. Each gives a conversation whose newest turn is explained.


async def first(world: World) -> AsyncConversation:
    return await after_a_turn(world)


async def goes_on(world: World) -> AsyncConversation:
    conversation = await after_a_turn(world)
    await conversation.run("look again")
    return conversation


async def tool_added(world: World) -> AsyncConversation:
    return await changed(world, world.agent(look, search))


async def tool_removed(world: World) -> AsyncConversation:
    return await changed(world, world.agent(look), before=world.agent(look, search))


async def tool_described_otherwise(world: World) -> AsyncConversation:
    return await changed(world, world.agent(_described("Looks twice.")))


async def tool_with_a_date(world: World) -> AsyncConversation:
    one, other = _described("Looks. Today is 2026-10-20."), _described("Looks. Today is 2026-10-21.")
    return await changed(world, world.agent(other), before=world.agent(one))


async def other_instructions(world: World) -> AsyncConversation:
    return await changed(world, world.agent(instructions=f"Be brief. {LONG}"))


async def time_of_day(world: World) -> AsyncConversation:
    before = world.agent(instructions=f"It is 10:41:07. {LONG}")
    return await changed(world, world.agent(instructions=f"It is 10:43:59. {LONG}"), before=before)


async def uuid_and_path(world: World) -> AsyncConversation:
    ids = "6f9619ff-8b86-4011-b42d-00cf4fc964ff", "0c7f3a52-1d6e-4a41-9d57-30e1a5a7a0aa"
    one, other = (f"Session {id}, in /home/ann/{n}. {LONG}" for n, id in enumerate(ids))
    return await changed(world, world.agent(instructions=other), before=world.agent(instructions=one))


async def another_model(world: World) -> AsyncConversation:
    name = "anthropic/claude-opus-5" if world.wire == "messages" else "openai/gpt-5-mini"
    return await changed(world, world.agent(llm=world.llm(name)))


async def another_effort(world: World) -> AsyncConversation:
    return await changed(world, world.agent(llm=world.llm(reasoning_effort="high")))


async def idle(world: World) -> AsyncConversation:
    conversation = await after_a_turn(world)
    world.clock.pass_by(41 * 60)
    await conversation.run("And now?")
    return conversation


async def fork_with_its_own_key(world: World) -> AsyncConversation:
    fork = await (await after_a_turn(world)).fork()
    await fork.run("And now?")
    return fork


async def fork_that_inherits(world: World) -> AsyncConversation:
    fork = await (await after_a_turn(world)).fork(cache="inherit")
    await fork.run("And now?")
    return fork


async def fork_that_drops_its_key(world: World) -> AsyncConversation:
    fork = await (await after_a_turn(world)).fork(cache="inherit")
    await fork.change_agent(world.agent(look, search))
    await fork.run("And now?")
    return fork


async def condensed(world: World) -> AsyncConversation:
    conversation = await after_a_turn(world, world.agent(condenser=Window(events=1000)))
    for n in range(4):
        await conversation.run(f"{n}: {LONG}")
    assert await conversation.condense() is not None
    await conversation.run("And now?")
    return conversation


async def rewound(world: World) -> AsyncConversation:
    conversation = await after_a_turn(world)
    first = (await conversation.turns()).items[0]
    await conversation.run("One way.")
    await conversation.rewind(at=first)
    world.cache.forget()
    await conversation.run("Another way.")
    return conversation


async def kept(world: World) -> AsyncConversation:
    conversation = await after_a_turn(world)
    branch = await conversation.fork()
    await conversation.run("One way.")
    world.cache.forget()
    await branch.run("Another way.")
    assert await conversation.keep(branch) is not None
    return conversation


async def erased(world: World) -> AsyncConversation:
    conversation = await after_a_turn(world)
    events = await conversation.events(kinds=("user_message",))
    await conversation.erase(event=events[0], reason="it had a name in it")
    world.cache.forget()
    await conversation.run("And now?")
    return conversation


async def too_short(world: World) -> AsyncConversation:
    conversation = await after_a_turn(world, world.agent(instructions="Be brief."))
    await conversation.run("And now?")
    return conversation


async def forgotten(world: World) -> AsyncConversation:
    conversation = await after_a_turn(world)
    world.cache.forget()
    await conversation.run("And now?")
    return conversation


async def unknown_server(world: World) -> AsyncConversation:
    world.server.cache = None
    conversation = await after_a_turn(world, world.agent(llm=world.llm(provider="somebody")))
    await conversation.run("And now?")
    return conversation


def _described(description: str) -> Tool:
    def look(at: str) -> str:
        return f"{at} is there"

    look.__doc__ = description
    return tool(look)


Scenario = Callable[[World], Awaitable[AsyncConversation]]
KEYED = ("chat", "responses")
TABLE: dict[Scenario, tuple[tuple[str, ...], list[tuple[MissCode, str]]]] = {
    first: (WIRES, [("first_request", "the first request of this conversation")]),
    goes_on: (WIRES, []),
    tool_added: (WIRES, [("tool_added", "tool `search` was added")]),
    tool_removed: (WIRES, [("tool_removed", "tool `search` was removed")]),
    tool_described_otherwise: (WIRES, [("tool_changed", "the description of tool `look` changed")]),
    tool_with_a_date: (WIRES, [("tool_changed", "the description of tool `look` changed: it has a date in it")]),
    other_instructions: (WIRES, [("instructions_changed", "the instructions changed")]),
    time_of_day: (WIRES, [("instructions_changed", "the instructions changed: they have the time of day in them")]),
    uuid_and_path: (WIRES, [("instructions_changed", "the instructions changed: they have a UUID and a path in them")]),
    another_effort: (("messages",), [("reasoning_changed", "the effort of reasoning changed: high, it was None")]),
    fork_with_its_own_key: (
        KEYED,
        [("fork_with_own_key", "a fork with a key of its own: its source's cache is found only by bytes")],
    ),
    fork_that_inherits: (WIRES, []),
    condensed: (WIRES, [("condensed", "the history was condensed here: the prompt begins with a summary instead")]),
    too_short: (
        WIRES,
        [("prompt_too_short", "the prompt is shorter than the smallest that this provider caches (1,024 tokens)")],
    ),
    unknown_server: (
        WIRES,
        [("not_reported", "the provider reports no cached tokens: it does not cache, or does not say so")],
    ),
}


def told(call: CallCache) -> list[tuple[str, str]]:
    return [(reason.code, reason.words) for reason in call.reasons]


async def reasons_of(conversation: AsyncConversation) -> list[tuple[str, str]]:
    report = await conversation.why()
    assert not any(call.unknown for call in report.calls), report
    return told(report.calls[0])


@pytest.mark.parametrize("scenario", TABLE, ids=lambda one: one.__name__)
async def test_each_reason_is_named(world: World, scenario: Scenario) -> None:
    wires, expected = TABLE[scenario]
    if world.wire not in wires:
        pytest.skip("the wire has no such thing")
    assert await reasons_of(await scenario(world)) == expected


async def test_another_model_shares_no_cache(world: World) -> None:
    found = await reasons_of(await another_model(world))
    was, now = ("claude-sonnet-5", "claude-opus-5") if world.wire == "messages" else ("gpt-5", "gpt-5-mini")
    assert found[0] == ("another_model", f"another model: {now}, it was {was}")


async def test_an_idle_time_is_compared_with_the_providers(world: World) -> None:
    found = await reasons_of(await idle(world))
    certain = "idle for 41 minutes: the provider's time to live (5 minutes) had passed"
    least = "idle for 41 minutes: the provider keeps a prompt for 5 minutes, and forgets it some time after that"
    assert found == [("idle", certain if world.wire == "messages" else least)]


async def test_a_call_in_time_by_a_longer_time_to_live_is_not_idle(world: World) -> None:
    conversation = await after_a_turn(
        world, world.agent(llm=world.llm(cache_ttl="1h" if world.wire == "messages" else "30m"))
    )
    world.clock.pass_by(20 * 60)
    world.cache.forget()
    await conversation.run("And now?")
    assert [code for code, _ in await reasons_of(conversation)] == ["unexplained"]


async def test_a_fork_whose_inherited_key_was_dropped_says_why(world: World) -> None:
    found = await reasons_of(await fork_that_drops_its_key(world))
    assert found[0] == ("tool_added", "tool `search` was added")
    if world.wire != "messages":
        assert found[1][0] == "another_key"
        assert "dropped: its manifest" in found[1][1]


async def test_on_a_wire_without_keys_a_fork_misses_nothing(world: World) -> None:
    if world.wire != "messages":
        pytest.skip("this is about the wire that finds prompts by bytes alone")
    assert await reasons_of(await fork_with_its_own_key(world)) == []


async def test_a_rewind_is_named_and_what_else_may_be(world: World) -> None:
    found = await reasons_of(await rewound(world))
    assert found[0][0] == "rewound"


async def test_a_turn_of_a_branch_that_was_kept_is_not_said_to_follow_a_rewind(world: World) -> None:
    found = await reasons_of(await kept(world))
    assert found, "it missed the cache, so that there is something to explain"
    assert "rewound" not in [code for code, _ in found]


async def test_an_erasure_since_the_request_before_is_named(world: World) -> None:
    report = await (await erased(world)).why()
    (call,) = report.calls
    assert [reason.code for reason in call.reasons] == ["erased"]
    assert call.possible_estimated
    assert call.possible is not None
    assert 0 < call.possible < call.input


async def test_what_nothing_explains_is_said_to_be_unexplained(world: World) -> None:
    found = await reasons_of(await forgotten(world))
    assert found[0][0] == "unexplained"
    assert "It may have dropped the prompt early" in found[0][1]


# What a report has.


async def test_a_report_has_what_was_cached_and_what_could_have_been(world: World) -> None:
    conversation = await goes_on(world)
    turns = (await conversation.turns()).items
    report = await conversation.why()
    assert (report.conversation, report.turn, report.outcome) == (conversation.id, turns[-1].id, "committed")
    assert [call.call for call in report.calls] == [1, 2]
    for call, step in zip(report.calls, turns[-1].steps, strict=True):
        assert (call.input, call.cached, call.written) == (step.usage.input, step.usage.cached, step.usage.written)
        assert call.cached + call.written + call.fresh == call.input
        assert call.shared is not None
        assert call.shared < call.blocks == step.blocks
        assert call.key == step.key
    before, middle = turns[0].steps[-1].usage, turns[-1].steps[0].usage
    assert [call.possible for call in report.calls] == [before.input, middle.input]
    assert [call.before for call in report.calls] == [turns[0].id, turns[-1].id]
    assert report.calls[1].cached > 0.9 * middle.input


async def test_a_turn_can_be_named_also_one_that_failed(world: World) -> None:
    agent = world.agent(llm=world.llm(retries=Retries(attempts=1)))
    conversation = await after_a_turn(world, agent)
    with pytest.raises(TurnFailed) as failed:
        await conversation.run("fail now")
    first, tried = (await conversation.turns()).items
    assert (await conversation.why()).turn == first.id, "a failed try is not history"
    report = await conversation.why(tried)
    assert (report.turn, report.outcome) == (failed.value.id, "failed")
    (call,) = report.calls
    assert call.error is not None
    assert call.unknown == ("what was cached: the call failed before the provider counted its prompt",)
    assert (await conversation.why(first.id)).turn == first.id


async def test_a_try_whose_place_was_left_says_what_is_not_known(world: World) -> None:
    """Its tokens stay known. Its prompt cannot be made again, and nothing is guessed."""
    agent = world.agent(llm=world.llm(retries=Retries(attempts=1)))
    conversation = await after_a_turn(world, agent)
    turn = (await conversation.turns()).items[0]
    await conversation.run("More.")
    with pytest.raises(TurnFailed):
        await conversation.run("look and break")
    tried = (await conversation.turns()).items[-1]
    await conversation.rewind(at=turn)
    first, second = (await conversation.why(tried)).calls
    assert first.input > 0
    assert (first.reasons, first.possible, first.before) == ((), None, None)
    assert first.unknown == ("the prompts: the conversation has left the place at which this turn was tried",)
    assert second.error is not None


async def test_the_record_of_a_call_that_was_erased_is_said_to_be_gone(world: World) -> None:
    conversation = await goes_on(world)
    turn = (await conversation.turns()).items[-1]
    await conversation.erase(turn=turn, reason="it had a name in it")
    report = await conversation.why(turn.id)
    assert [call.unknown for call in report.calls] == [("what was cached: the record of this call was erased",)] * 2
    assert [call.input for call in report.calls] == [0, 0]


async def test_a_fork_in_the_middle_of_a_turn_is_compared_with_its_sources_last_call_there(world: World) -> None:
    source = await goes_on(world)
    result = (await source.events(kinds=("tool_result",)))[0]
    fork = await source.fork(at=result)
    await fork.run("And now?")
    (call,) = (await fork.why()).calls
    turn = (await source.turns()).items[-1]
    assert (call.before, call.possible) == (turn.id, turn.steps[0].usage.input)
    half = await fork.why(turn.id)
    assert [one.call for one in half.calls] == [1], "of the source's turn the fork has only this call"


# Where it works.


async def test_it_is_the_same_in_both_homes_and_without_the_functions(home: Home, places: None) -> None:
    agent = Agent("scripted/echo", instructions="Be brief.", tools=[look])
    conversation = AsyncConversation(home.agent(agent), store=home.store)
    with pytest.raises(NoSuchTurn):
        await conversation.why()
    await conversation.run("One.")
    await conversation.run("Two.")
    report = await conversation.why()
    assert told(report.calls[0]) == TABLE[unknown_server][1]
    opened = await AsyncConversation.open(conversation.id, store=home.store, bind=False)
    assert await opened.why() == report
    assert await opened.why(report.turn) == report
    first = (await conversation.turns()).items[0]
    assert [reason.code for reason in (await conversation.why(first)).calls[0].reasons] == ["first_request"]
    note = (await (await home.opened()).turns(conversation.id)).items
    assert all(turn.kind == "turn" for turn in note)
    for unknown in ("newest", "01a1e2ba-4084-7591-a930-4814fe7695df"):
        with pytest.raises(NotFound):
            await conversation.why(unknown)
    other = AsyncConversation(home.agent(agent), store=home.store)
    await other.run("Else.")
    with pytest.raises(NoSuchTurn):
        await other.why(report.turn)


async def test_a_sub_agent_with_its_parents_history_is_compared_with_its_parents_request(places: None) -> None:
    agent = lead(instructions=LONG)
    async with AsyncConversation(agent, store="memory:") as parent:
        await parent.run("Hello.")
        turn = await parent.run(orders([spawn("Look around.", fork="all")], [wait()], say="Done."))
        (member,) = await parent.list_agents()
        async with await AsyncConversation.open(member.conversation, store="memory:", agent=agent) as child:
            report = await child.why()
            (call,) = report.calls
            assert call.shared is not None
            assert call.shared >= turn.steps[0].blocks
            assert call.possible_estimated, "what the parent's call took is the parent's, so it is estimated"
            assert told(call) == TABLE[unknown_server][1]


def test_it_works_without_a_loop_and_before_anything_was_run() -> None:
    with Conversation(Agent("scripted/echo"), store="memory:") as conversation:
        with pytest.raises(NoSuchTurn):
            conversation.why()
        turn = conversation.run("Hi.")
        report = conversation.why(turn)
        assert isinstance(report, CacheReport)
        assert report.calls[0].possible == 0


async def test_of_a_condensed_path_no_more_is_read_than_its_prompts_show(places: None) -> None:
    store = await SqliteStore.open(None)
    conversation = AsyncConversation(Agent("scripted/echo", condenser=Window(events=10_000)), store=store)
    await conversation.run("Hello.")
    await store.note(conversation.id, new_id(), [NewEvent(UserMessage((Text(f"{n}"),))) for n in range(1500)])
    await conversation.run("And now?")
    assert await conversation.condense() is not None
    await conversation.run("And then?")
    counting = Counting(store)
    report = await CacheReports(Resources(counting, Models(), EngineOptions())).of(conversation.id, None)
    assert report == await conversation.why()
    assert [reason.code for reason in report.calls[0].reasons] == ["condensed"]
    assert counting.count < 300

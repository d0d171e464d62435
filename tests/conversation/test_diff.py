"""`diff()`: where two conversations part, and what each has since. The same in both homes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.conversation.support.agents import agent_of, asks, call, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.team import obedient, orders, spawn, wait

from forkpoint import (
    LLM,
    Agent,
    AsyncConversation,
    AsyncConversations,
    Conversation,
    Limits,
    ToolContext,
    TurnFailed,
    tool,
)
from forkpoint.conversation import Diff, TextDiff
from forkpoint.errors import BadArgument, NotFound
from forkpoint.events import Usage
from forkpoint.llm.model import Price
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio


@tool
def look(ctx: ToolContext, at: str) -> str:
    """Looks at something."""
    ctx.state["seen"] = at
    return f"{at} is full"


def looks(heard: Heard) -> Reply:
    """Looks at what it is told to, and then says what it saw."""
    if heard.text.startswith("look ") and heard.body["messages"][-1]["role"] == "user":
        return asks(call("look", f"call_{heard.number:024}", at=heard.text[5:]), text="Let me see.")
    return Reply(f"{heard.text}: answer {heard.number}.")


def looking(**settings: Any) -> Agent:
    return Agent(scripted(looks, price=Price(1.0, 2.0)), tools=[look], **settings)


@pytest.fixture
async def talk(home: Home, places: None) -> AsyncIterator[AsyncConversation]:
    """A conversation with one turn, which others share."""
    async with AsyncConversation(home.agent(looking()), conversation_id="talk", store=home.store) as talk:
        await talk.run("hello")
        yield talk


def marked(text: TextDiff | None) -> str:
    assert text is not None
    signs = {"both": "{}", "a": "[-{}-]", "b": "{{+{}+}}"}
    return "".join(signs[piece.side].format(piece.text) for piece in text.pieces)


def asked(diff: Diff) -> list[tuple[str | None, str | None]]:
    """What was asked on both sides of each pair."""
    return [(None if pair.a is None else pair.a.input, None if pair.b is None else pair.b.input) for pair in diff.pairs]


def mirrored(diff: Diff) -> Diff:
    """The sides the other way round, as far as that does not change how words are compared."""
    return replace(diff, a=diff.b, b=diff.a, pairs=(), state=(), settings=())


# What is compared.


async def test_two_branches_differ_in_what_each_has_since_their_common_ancestor(talk: AsyncConversation) -> None:
    shared = (await talk.events())[-1]
    fork = await talk.fork(title="Try")
    await talk.run("look disk")
    await fork.run("look net")
    await fork.run("and then?")
    found = await talk.diff(fork)
    assert (found.ancestor, found.shared, found.related, found.same) == (str(shared.id), shared.id.ordinal, True, False)
    assert (found.a.name, found.a.turns, found.a.notes, found.a.kind) == ("talk", 1, 0, "root")
    assert (found.b.title, found.b.turns, found.b.notes, found.b.kind) == ("Try", 2, 0, "fork")
    assert (found.a.head, found.b.head) == ((await talk.info()).head, (await fork.info()).head)
    first, second = found.pairs
    assert marked(first.input) == "look [-disk-]{+net+}"
    assert marked(first.text) == "Let me see.\n\nlook [-disk-]{+net+}: answer [-2-]{+4+}."
    (pair,) = first.calls
    assert not pair.same
    assert marked(pair.arguments) == '{"at": "[-disk-]{+net+}"}'
    assert marked(pair.result) == "[-disk-]{+net+} is full"
    assert first.a is not None
    assert first.b is not None
    assert [(one.tool, one.status, one.result) for one in first.b.calls] == [("look", "done", "net is full")]
    assert second.a is None
    assert second.b is not None
    assert (second.b.input, second.b.text, second.b.partial) == ("and then?", "and then?: answer 5.", False)
    assert [(one.key, one.before, one.a, one.b) for one in found.state] == [("seen", None, '"disk"', '"net"')]
    assert found.settings == ()
    assert mirrored(found) == replace(await fork.diff(talk), pairs=(), state=())


async def test_cost_tokens_and_time_are_those_since_the_common_ancestor(talk: AsyncConversation) -> None:
    before = (await talk.stats()).spent
    fork = await talk.fork()
    await talk.run("one")
    await talk.update_state({"x": 1})
    turns = [await fork.run("one"), await fork.run("look two")]
    found = await talk.diff(fork.id)
    assert found.a.usage == (await talk.stats()).spent - before
    assert found.b.usage == (await fork.stats()).spent == turns[0].usage + turns[1].usage
    assert found.b.cost == (await fork.stats()).cost
    assert found.b.seconds == pytest.approx(sum((turn.ended or 0) - turn.started for turn in turns) / 1e6)
    assert [pair.b.usage for pair in found.pairs if pair.b] == [turn.usage for turn in turns]
    assert [(pair.b.id, pair.b.started, pair.b.ended) for pair in found.pairs if pair.b] == [
        (turn.id, turn.started, turn.ended) for turn in turns
    ]
    (note,) = [pair.a for pair in found.pairs if pair.a is not None and pair.a.kind == "note"]
    assert (note.did, note.usage) == (("state: x = 1",), Usage())


async def test_a_turn_stands_beside_the_one_that_was_asked_the_same(talk: AsyncConversation) -> None:
    fork = await talk.fork()
    for question in ("zero", "same", "end"):
        await talk.run(question)
    for question in ("same", "extra", "end"):
        await fork.run(question)
    found = asked(await talk.diff(fork))
    assert found == [("zero", None), ("same", "same"), (None, "extra"), ("end", "end")]


async def test_branches_that_were_asked_other_things_stand_turn_beside_turn(talk: AsyncConversation) -> None:
    fork = await talk.fork()
    for question in ("a", "b", "c"):
        await talk.run(question)
    await fork.run("x")
    await fork.run("y")
    assert asked(await talk.diff(fork)) == [("a", "x"), ("b", "y"), ("c", None)]


async def test_settings_that_differ_are_told_in_words(home: Home, talk: AsyncConversation) -> None:
    @tool
    def search(what: str) -> str:
        """Searches."""
        return what

    other = Agent(
        LLM("scripted/echo", reasoning_effort="high"),
        instructions="Be thorough.",
        tools=[search],
        approval="risky",
        limits=Limits(steps=7),
    )
    fork = await talk.fork(agent=home.agent(replace_instructions(looking(), "Be brief.")))
    another = await talk.fork(agent=home.agent(other))
    found = {one.name: one for one in (await fork.diff(another)).settings}
    names = {"model", "reasoning effort", "instructions", "tools", "approval", "limits"}
    assert names <= set(found)
    assert (found["tools"].a, found["tools"].b) == ("look", "search")
    assert (found["approval"].a, found["approval"].b) == (None, "risky") or found["approval"].b == "risky"
    assert found["limits"].b == "steps 7"
    assert (found["reasoning effort"].a, found["reasoning effort"].b) == (None, "high")
    assert marked(found["instructions"].text) == "Be [-brief-]{+thorough+}."
    assert (await talk.diff(await talk.fork())).settings == ()


def replace_instructions(agent: Agent, text: str) -> Agent:
    return agent.replace(instructions=text)


async def test_tries_that_did_not_commit_are_not_compared(home: Home) -> None:
    agent = home.agent(agent_of(["one", Reply("never", fault=Fault("overloaded")), "two"]))
    async with AsyncConversation(agent, store=home.store) as talk:
        await talk.run("first")
        fork = await talk.fork()
        with pytest.raises(TurnFailed):
            await talk.run("fails")
        found = await talk.diff(fork)
        assert (found.pairs, found.a.turns, found.a.usage, found.same) == ((), 0, Usage(), True)


# Where they part.


async def test_equal_heads_differ_in_nothing(talk: AsyncConversation) -> None:
    fork = await talk.fork()
    for found in (await talk.diff(fork), await talk.diff(talk)):
        assert (found.pairs, found.state, found.same) == ((), (), True)
        assert found.ancestor == (await talk.info()).head


async def test_a_branch_that_is_ahead_has_all_of_the_difference(talk: AsyncConversation) -> None:
    fork = await talk.fork()
    await fork.run("on")
    found = await talk.diff(fork)
    assert (found.a.turns, found.a.events, found.b.turns) == (0, 0, 1)
    assert asked(found) == [(None, "on")]


async def test_a_rewind_and_what_it_set_aside_differ_from_where_it_went_back_to(talk: AsyncConversation) -> None:
    second = await talk.run("why?")
    aside = await talk.rewind(before=second)
    assert aside is not None
    await talk.run("why not?")
    found = await aside.diff(talk)
    assert (found.a.kind, asked(found), marked(found.pairs[0].input)) == (
        "aside",
        [("why?", "why not?")],
        "why{+ not+}?",
    )


async def test_forks_of_forks_part_where_their_sources_did(talk: AsyncConversation) -> None:
    left, right = await talk.fork(), await talk.fork()
    await left.run("left")
    await right.run("right")
    far_left, far_right = await left.fork(), await right.fork()
    await far_left.run("further")
    found = await far_left.diff(far_right)
    assert (found.ancestor, asked(found)) == ((await talk.info()).head, [("left", "right"), ("further", None)])


async def test_branches_that_part_in_the_middle_of_a_turn_have_the_rest_of_it(talk: AsyncConversation) -> None:
    turn = await talk.run("look disk")
    result = next(event for event in turn.events if event.envelope.kind == "tool_result")
    fork = await talk.fork(at=result)  # type: ignore[arg-type]
    await fork.run("instead")
    found = await talk.diff(fork)
    rest, other = found.pairs[0].a, found.pairs[0].b
    assert rest is not None
    assert other is not None
    assert (found.ancestor, rest.id, rest.partial, rest.input) == (str(result.id), turn.id, True, "")  # type: ignore[union-attr]
    assert (other.input, other.partial) == ("instead", False)
    begun = turn.steps[0].usage  # which both have paid, or inherited
    assert (found.a.usage, rest.usage) == (turn.usage - begun, turn.usage - begun)
    assert found.b.usage == other.usage == (await fork.stats()).spent
    elsewhere = await talk.fork(before=turn)  # parts before the turn that the fork has half of
    half = (await fork.diff(elsewhere)).pairs[0].a
    assert half is not None
    assert (half.id, half.input, half.partial, half.usage) == (turn.id, "look disk", True, Usage())
    earlier = await talk.fork(at=next(event for event in turn.events if event.envelope.kind == "user_message"))  # type: ignore[arg-type]
    await earlier.run("at once")
    both = await fork.diff(earlier)
    assert both.ancestor == str((await earlier.info()).lineage.at)
    assert (both.a.usage, both.b.usage) == ((await fork.stats()).spent, (await earlier.stats()).spent)


async def test_branches_may_part_in_the_middle_of_the_first_turn(home: Home, places: None) -> None:
    async with AsyncConversation(home.agent(looking()), store=home.store) as talk:
        turn = await talk.run("look disk")
        fork = await talk.fork(at=next(event for event in turn.events if event.envelope.kind == "tool_result"))  # type: ignore[arg-type]
        went = await fork.go_on()
        found = await talk.diff(fork)
        rest = found.pairs[0].a
        assert rest is not None
        assert (rest.partial, rest.usage, found.a.usage) == (True, turn.steps[1].usage, turn.steps[1].usage)
        assert found.b.usage == went.usage


async def test_a_fork_with_another_result_is_compared_with_its_source(talk: AsyncConversation) -> None:
    turn = await talk.run("look disk")
    fork = await talk.fork(at=turn.calls[0], results={turn.calls[0].id: "empty"}, state={"why": 1})
    went = await fork.go_on()
    found = await talk.diff(fork)
    assert (found.ancestor, found.shared) == (str(turn.calls[0].event), turn.calls[0].event.ordinal)  # type: ignore[union-attr]
    rest = next(pair.a for pair in found.pairs if pair.a is not None)
    assert (rest.id, rest.partial, rest.usage, rest.text) == (turn.id, True, turn.steps[1].usage, turn.text)
    others = [pair.b for pair in found.pairs if pair.b is not None]
    assert [(one.kind, one.partial, one.usage) for one in others] == [
        ("note", False, Usage()),
        ("turn", False, went.usage),
    ]
    id = turn.calls[0].id
    assert rest.did == ('state: seen = "disk"', f"result of look {id}: done, disk is full")
    assert others[0].did == (f"another result for look {id}", f"result of look {id}: done, empty", "state: why = 1")
    assert (found.a.usage, found.b.usage) == (rest.usage, went.usage)
    assert [(one.key, one.before, one.a, one.b) for one in found.state] == [
        ("seen", None, '"disk"', None),
        ("why", None, None, "1"),
    ]


async def test_a_side_has_used_what_its_turns_have_wherever_a_part_of_one_stands(talk: AsyncConversation) -> None:
    elsewhere = await talk.fork()
    first, cut = await talk.run("why?"), await talk.run("look disk")
    fork = await talk.fork(at=next(event for event in cut.events if event.envelope.kind == "tool_result"))  # type: ignore[arg-type]
    went = await fork.go_on()
    for limit in (1, 2, 50):
        found = await fork.diff(elsewhere, limit=limit)
        assert (found.a.turns, found.a.left_out) == (3, max(3 - limit, 0))
        assert found.a.usage == first.usage + went.usage, "the part has no cost of its own"


async def test_conversations_of_different_families_have_no_common_ancestor(home: Home, talk: AsyncConversation) -> None:
    async with AsyncConversation(home.agent("scripted/echo"), store=home.store) as other:
        await other.run("hello")
        found = await talk.diff(other)
        assert (found.ancestor, found.shared, found.related, found.same) == (None, 0, False, False)
        assert asked(found) == [("hello", "hello")]
        assert (found.a.usage, found.b.usage) == ((await talk.stats()).spent, (await other.stats()).spent)


async def test_a_sub_agent_differs_from_its_parent(home: Home) -> None:
    agent = home.agent(Agent(scripted(obedient), sub_agents=True))
    async with AsyncConversation(agent, store=home.store) as parent:
        await parent.run(orders([spawn("find it", "c1")], [wait("c2")], say="It is done."))
        (member,) = await parent.list_agents()
        found = await parent.diff(member.conversation)
        assert (found.related, found.ancestor, found.b.kind, found.b.turns) == (True, None, "sub_agent", 1)


# How much.


async def test_a_long_difference_is_cut_and_says_how_much_is_left_out(talk: AsyncConversation) -> None:
    fork = await talk.fork()
    for number in range(4):
        await fork.run(str(number))
    await fork.update_state({"x": 1})
    found = await talk.diff(fork, limit=2)
    assert asked(found) == [(None, "0"), (None, "1")]
    assert (found.b.turns, found.b.notes, found.b.left_out) == (4, 1, 3)
    assert found.b.usage == (await fork.stats()).spent
    whole = await talk.diff(fork)
    assert whole.b.left_out == 0
    assert whole.b.seconds == pytest.approx(found.b.seconds)
    for limit in (0, 1001, True, "2"):
        with pytest.raises(BadArgument):
            await talk.diff(fork, limit=limit)  # type: ignore[arg-type]


async def test_what_was_erased_is_said_to_be(talk: AsyncConversation) -> None:
    fork = await talk.fork()
    turn = await fork.run("my name")
    await fork.erase(turn=turn, reason="a request")
    (pair,) = (await talk.diff(fork)).pairs
    assert pair.b is not None
    assert (pair.b.input, pair.b.text) == ("[erased]", "[erased]")


# Who asks, and how.


async def test_the_other_one_is_a_conversation_its_id_or_its_name(home: Home, talk: AsyncConversation) -> None:
    fork = await talk.fork(conversation_id="other")
    await fork.run("on")
    expected = await talk.diff(fork)
    assert expected == await talk.diff(fork.id) == await talk.diff("other") == await talk.diff(await fork.info())
    async with AsyncConversations(home.store) as them:
        assert await them.diff("talk", "other") == expected == await them.diff(talk, fork)
    for missing in ("nobody", "01890000-0000-7000-8000-000000000000"):
        with pytest.raises(NotFound):
            await talk.diff(missing)
    with pytest.raises(BadArgument, match="a conversation"):
        await talk.diff(5)  # type: ignore[arg-type]


async def test_a_conversation_that_nothing_was_said_in_cannot_be_compared(home: Home, talk: AsyncConversation) -> None:
    async with AsyncConversation(home.agent("scripted/echo"), store=home.store) as draft:
        with pytest.raises(NotFound):
            await draft.diff(talk)
        with pytest.raises(NotFound):
            await talk.diff(draft)


def test_a_program_that_is_not_async_compares_its_own_conversations(home: Home) -> None:
    with Conversation(home.agent("scripted/echo"), store=home.store) as talk:
        talk.run("hello")
        with talk.fork() as fork:
            fork.run("on")
            assert asked(talk.diff(fork)) == [(None, "on")]

"""`fork(results=..., state=...)`: a branch in which a call had another result, or the state was another."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import agent_of, asks, call, kinds, messages_of, results
from tests.conversation.support.homes import Home, LocalHome

from forkpoint import Agent, AsyncConversation, AsyncConversations, Hook, ToolContext, tool
from forkpoint.conversation import Turn
from forkpoint.errors import BadArgument, BadPosition, KeyReused, NotFound, Stale
from forkpoint.events import Event, Gone, ResultSubstituted, StateChange, Text, ToolResult
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.testing import Heard, Reply

pytestmark = pytest.mark.anyio

BROWSE = ToolSchema("browse", "Opens a page.", '{"type":"object","properties":{}}')


@tool
def look(ctx: ToolContext, at: str) -> str:
    """Looks at something."""
    ctx.state[at] = "seen"
    return f"the {at} is full"


def looking(**more: Any) -> Agent:
    """An agent that looks at two things at once, and then says what it was told."""

    def reply(heard: Heard) -> Reply:
        told = [str(one["content"]) for one in messages_of(heard) if one["role"] == "tool"]
        if not told:
            return asks(call("look", "call_disk", at="disk"), call("look", "call_net", at="net"), text="I look.")
        return Reply(" and ".join(told))

    return agent_of(reply, tools=[look], **more)


async def looked(home: Home, agent: Agent | None = None) -> tuple[AsyncConversation, Turn]:
    source = AsyncConversation(home.agent(agent or looking()), store=home.store)
    return source, await source.run("Why did it fail?")


def of_call(turn: Turn, kind: str, id: str) -> Event:
    found = next(event for event in turn.events if event.envelope.kind == kind and event.envelope.call_id == id)
    assert isinstance(found, Event)
    return found


@pytest.mark.parametrize("place", ["call", "event", "its id", "result", "turn", "turn's id"])
async def test_another_result_stands_in_a_calls_place_and_the_model_goes_on_from_it(
    home: Home, places: None, place: str
) -> None:
    source, turn = await looked(home)
    before = await source.events()
    at = {
        "call": turn.calls[1],
        "event": of_call(turn, "tool_call", "call_net"),
        "its id": str(of_call(turn, "tool_call", "call_net").id),
        "result": of_call(turn, "tool_result", "call_net"),
        "turn": turn,
        "turn's id": turn.id,
    }[place]
    fork = await source.fork(at=at, results={"call_net": "the net is fine"})  # type: ignore[arg-type]
    went = await fork.go_on()
    assert went.text == "the disk is full and the net is fine"
    assert await fork.agent_state() == {"disk": "seen"}, "what the call had changed is left out"
    assert (await source.events(), turn.text) == (before, "the disk is full and the net is full")
    assert (await fork.verify()).ok


async def test_what_was_substituted_is_recorded_with_its_origin(home: Home, places: None) -> None:
    source, turn = await looked(home)
    fork = await source.fork(at=turn.calls[1], results={"call_net": "fine"})
    events = await fork.events()
    shared = of_call(turn, "tool_call", "call_net").id.ordinal
    assert events[:shared] == (await source.events())[:shared]
    assert sorted(kinds(events[shared:-2])) == ["state_change", "tool_result"], "in the order in which tools ended"
    assert kinds(events[-2:]) == ["result_substituted", "tool_result"]
    original = of_call(turn, "tool_result", "call_net")
    substituted = events[-2].body
    assert isinstance(substituted, ResultSubstituted)
    assert substituted.origin == f"{turn.id}/{original.id.ordinal - 1}"
    assert [event.envelope.origin is None for event in events[shared:]] == [False, False, True, True]
    assert len(bytes.fromhex(substituted.digest)) == 32
    (half,) = (await fork.turns()).items
    assert [(one.id, one.status, one.result) for one in half.calls] == [
        ("call_disk", "done", "the disk is full"),
        ("call_net", "done", "fine"),
    ]


async def test_results_may_be_parts_or_failures_and_all_calls_may_have_others(home: Home, places: None) -> None:
    source, turn = await looked(home)
    failed = ToolResult("", "", (Text("no route"),), "failed")
    fork = await source.fork(at=turn, results={"call_net": failed, "call_disk": [Text("empty")]})
    assert [(one.tool, one.status) for one in results(await fork.events())] == [("look", "done"), ("look", "failed")]
    assert await fork.agent_state() == {}
    assert (await fork.go_on()).text.startswith("empty and")


async def test_a_fork_may_begin_with_another_state(home: Home, places: None) -> None:
    source, turn = await looked(home)
    fork = await source.fork(state={"net": None, "more": [1, {"a": True}]})
    assert await fork.agent_state() == {"disk": "seen", "net": None, "more": [1, {"a": True}]}
    assert await source.agent_state() == {"disk": "seen", "net": "seen"}
    both = await source.fork(at=turn.calls[0], results={"call_disk": "empty"}, state={"disk": "guessed"})
    assert await both.agent_state() == {"disk": "guessed", "net": "seen"}
    assert (await both.go_on()).text == "empty and the net is full"
    empty = await source.fork(before=turn, state={"a": 1})
    assert (await empty.agent_state(), kinds(await empty.events())) == ({"a": 1}, ["state_change"])


async def test_a_fork_of_such_a_fork_may_have_others_again(home: Home, places: None) -> None:
    source, turn = await looked(home)
    fork = await source.fork(at=turn.calls[1], results={"call_net": "fine"})
    shown = (await fork.turns()).items[0]
    again = await fork.fork(at=shown.calls[0], results={"call_disk": "empty"})
    assert (await again.go_on()).text == "empty and fine"
    result = next(event for event in await fork.events() if event.kind == "tool_result")
    third = await fork.fork(at=result, results={"call_net": "slow"})
    assert (await third.go_on()).text == "the disk is full and slow"
    assert (await third.verify()).ok


async def test_the_original_and_what_stands_in_its_place_are_erased_apart(home: Home, places: None) -> None:
    source, turn = await looked(home)
    fork = await source.fork(at=turn.calls[1], results={"call_net": "fine"})
    await source.erase(event=of_call(turn, "tool_result", "call_net"), reason="a request")
    assert [one.parts for one in results(await fork.events())] == [(Text("the disk is full"),), (Text("fine"),)]
    await source.erase(event=of_call(turn, "tool_result", "call_disk"), reason="a request")
    assert [one.parts for one in results(await fork.events())] == [(Text("fine"),)], "a copy goes with its origin"
    second = await source.fork(at=turn.calls[1], results={"call_net": "fine", "call_disk": "empty"})
    await second.erase(event=(await second.events())[-1], reason="a request")
    assert [isinstance(event.body, Gone) for event in await second.events()][-4:] == [False, False, False, True]
    assert (await fork.go_on()).text.endswith("and fine")
    for one in (source, fork, second):
        assert (await one.verify()).ok


async def test_hooks_run_for_no_result_that_somebody_made_up(home: Home, places: None) -> None:
    seen: list[str] = []

    def after(context: Any) -> str:
        seen.append(context.call_id)
        return "Checked."

    source, turn = await looked(home, looking(hooks=[Hook("after_tool", function=after)]))
    assert sorted(seen) == ["call_disk", "call_net"]
    fork = await source.fork(at=turn.calls[1], results={"call_net": "fine"})
    await fork.go_on()
    assert sorted(seen) == ["call_disk", "call_net"], "the hook of the other call has run, and is copied"


# Once, and whole.


async def test_a_key_makes_one_such_fork(home: Home, places: None) -> None:
    source, turn = await looked(home)
    options: dict[str, Any] = {"at": turn.calls[1], "results": {"call_net": "fine"}, "state": {"a": 1}, "key": "k"}
    fork = await source.fork(**options)
    await fork.go_on()
    assert (await source.fork(**options)).id == fork.id
    for other in ({"results": {"call_net": "slow"}}, {"state": {"a": 2}}, {"state": None}):
        with pytest.raises(KeyReused):
            await source.fork(**options | other)
    revision = (await source.info()).revision
    await source.update_state({"z": 1})
    with pytest.raises(Stale):
        await source.fork(**options | {"key": None, "if_revision": revision})


async def test_a_plain_fork_is_still_one_row_and_these_are_one_transaction(tmp_path: Path, places: None) -> None:
    home = LocalHome(tmp_path)
    source, turn = await looked(home)

    def rows(*tables: str) -> list[int]:
        with closing(sqlite3.connect(home.file)) as db:
            return [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]

    tables = ("conversation", "segment", "turn", "event", "record")
    before = rows(*tables)
    await source.fork(at=turn)
    assert [now - was for now, was in zip(rows(*tables), before, strict=True)] == [1, 0, 0, 0, 0]
    before = rows(*tables)
    await source.fork(at=turn.calls[1], results={"call_net": "fine"})
    assert [now - was for now, was in zip(rows(*tables), before, strict=True)] == [1, 1, 1, 4, 1]


async def test_an_export_brings_such_a_fork_to_another_store_as_it_is(tmp_path: Path, places: None) -> None:
    source, turn = await looked(LocalHome(tmp_path))
    fork = await source.fork(at=turn.calls[1], results={"call_net": "fine"}, conversation_id="other")
    await fork.go_on()
    file = tmp_path / "family.jsonl"
    await source.export(file, family=True)
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    async with AsyncConversations(store=elsewhere) as them:
        await them.import_(file)
        assert (await them.verify()).ok
        there = await them.open("other", bind=False)
        assert [event.body for event in await there.events()] == [event.body for event in await fork.events()]
        assert (await there.stats()).inherited == (await fork.stats()).inherited == turn.steps[0].usage
        assert [one.partial for one in (await there.turns()).items] == [True, False]


async def test_deleting_and_collecting_the_source_leaves_such_a_fork_whole(tmp_path: Path, places: None) -> None:
    home = LocalHome(tmp_path)
    source, turn = await looked(home)
    fork = await source.fork(at=turn.calls[1], results={"call_net": "fine"})
    await source.delete()
    async with AsyncConversations(store=home.store) as them:
        assert (await them.collect()).events > 0
        assert (await them.verify()).ok
    assert (await fork.go_on()).text == "the disk is full and fine"
    with pytest.raises(BadPosition):
        await fork.fork(at=str(turn.calls[1].event))
    assert (await fork.verify()).ok


async def test_many_at_once_do_not_disturb_each_other(home: Home, places: None) -> None:
    source, turn = await looked(home)
    texts: list[str] = []

    async def tried(n: int) -> None:
        fork = await source.fork(at=turn.calls[0], results={"call_disk": f"disk {n}"}, cache="inherit")
        texts.append((await fork.go_on()).text)

    async with anyio.create_task_group() as group:
        for n in range(4):
            group.start_soon(tried, n)
    assert sorted(texts) == [f"disk {n} and the net is full" for n in range(4)]


# Refused.


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"nobody": "x"}, "'nobody' is not in that response"),
        ({"call_net": "x", "nobody": "y"}, "'nobody' is not in that response"),
    ],
)
async def test_ids_that_are_not_in_the_response_are_named(
    home: Home, places: None, results: dict[str, str], words: str
) -> None:
    source, turn = await looked(home)
    with pytest.raises(BadArgument, match=words):
        await source.fork(at=turn.calls[1], results=results)
    with pytest.raises(BadArgument, match="'nobody' is not in turn"):
        await source.fork(at=turn, results=results)
    assert len((await source.tree())[0].branches) == 0


async def test_places_that_say_nothing_about_a_call_are_refused(home: Home, places: None) -> None:
    source, turn = await looked(home)
    other, _ = await looked(home)
    given = {"call_net": "x"}
    for options in ({}, {"before": turn}, {"before": turn.calls[1]}):
        with pytest.raises(BadArgument, match="`at` must say"):
            await source.fork(results=given, **options)
    with pytest.raises(BadArgument, match="neither a call nor the result"):
        await source.fork(at=turn.events[1], results=given)  # type: ignore[arg-type]
    for at in (turn.calls[1], turn, turn.id):
        with pytest.raises((BadPosition, NotFound)):
            await other.fork(at=at, results=given)
    with pytest.raises(BadPosition):
        await source.fork(at="x" * 36, results=given)
    with pytest.raises(BadArgument, match="it is a mapping"):
        await source.fork(state=[1])  # type: ignore[arg-type]


async def test_results_of_two_responses_or_of_an_id_that_stands_twice_are_refused(home: Home, places: None) -> None:
    ids = ("one", "two", "one", "three")
    asking = [asks(call("look", id, at=f"place {n}")) for n, id in enumerate(ids)]
    source, turn = await looked(home, agent_of([*asking, "Done.", "Other."], tools=[look]))
    with pytest.raises(BadArgument, match="several responses"):
        await source.fork(at=turn, results={"two": "x", "three": "y"})
    with pytest.raises(BadArgument, match="2 calls with the id 'one'"):
        await source.fork(at=turn, results={"one": "x"})
    fork = await source.fork(at=turn.calls[2], results={"one": "x"})
    assert (await fork.go_on()).text == "Other."


async def test_a_call_that_waits_for_its_client_is_refused_and_one_that_was_answered_is_not(
    home: Home, places: None
) -> None:
    agent = agent_of([asks(call("browse", "c1")), "Read.", "Else."], client_tools=[BROWSE])
    source = AsyncConversation(home.agent(agent), store=home.store)
    turn = await source.run("Why?")
    with pytest.raises(BadArgument, match="waits for its client"):
        await source.fork(at=turn.calls[0], results={"c1": "x"})
    await source.run("And?", results={"c1": "a page"})
    fork = await source.fork(at=turn.calls[0], results={"c1": "another page"})
    assert [one.parts for one in results(await fork.events())] == [(Text("another page"),)]
    assert (await fork.go_on()).text == "Else."
    assert (await fork.verify()).ok


async def test_a_state_without_a_json_form_is_refused(tmp_path: Path, places: None) -> None:
    source, _ = await looked(LocalHome(tmp_path))
    for state in ({"a": object()}, {"a": float("nan")}, {1: "a"}):
        with pytest.raises(BadArgument, match="state"):
            await source.fork(state=state)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="results="):
        await source.fork(at=(await source.turns()).items[0], results={"call_net": 5})  # type: ignore[dict-item]


async def test_a_call_of_a_turn_that_is_not_committed_is_no_place(home: Home, places: None) -> None:
    @tool(risky=True)
    def remove() -> str:
        """Removes."""
        return "gone"

    source = AsyncConversation(
        home.agent(agent_of([asks(call("remove", "c1"))], tools=[remove], approval="risky")), store=home.store
    )
    waits = await source.run("Remove it.")
    assert waits.calls[0].event is None
    with pytest.raises(BadPosition, match="not committed"):
        await source.fork(at=waits.calls[0], results={"c1": "x"})


def test_a_change_names_the_call_that_made_it() -> None:
    assert StateChange((("a", "1"),)).call_id is None

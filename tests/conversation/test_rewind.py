"""`rewind()`: the head goes back, and what stood after it is kept as a branch set aside. Nothing is lost."""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import Signal
from tests.conversation.support.homes import Home

from forkpoint import LLM, Agent, AsyncConversation, Conversation, ToolContext, TurnFailed, tool
from forkpoint.backend.callbacks import Update
from forkpoint.backend.results import Branch
from forkpoint.errors import BadPosition, Busy, NoSuchTurn, NotFound, NotResumable, TurnOpen
from forkpoint.events import ManifestChanged, NewEvent, Text, Usage, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm import own_identity
from forkpoint.llm.model import Price, Retries
from forkpoint.store.protocol import Store
from forkpoint.testing import Fault, Reply, Script, ScriptedCall

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo")
PROMPT = 20.0  # seconds that something which does not wait may take on a busy machine


@tool
def count(ctx: ToolContext) -> str:
    """Counts how often it was called."""
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    return str(ctx.state["count"])


def counting(name: str) -> Agent:
    """An agent that calls its tool once in each turn, and says another thing each time."""
    replies = [
        reply
        for n in range(1, 9)
        for reply in (Reply(reasoning="Hm.", calls=(ScriptedCall("count"),)), Reply(f"Answer {n}."))
    ]
    return Agent(LLM(Script(replies).register(name), price=Price(1.0, 2.0)), tools=[count])


@pytest.fixture
async def store(home: Home, places: None) -> AsyncIterator[Store]:
    """What stands behind the home, for whoever looks at what is stored."""
    async with await home.opened() as store:
        yield store


@pytest.fixture
async def source(home: Home, store: Store, request: pytest.FixtureRequest) -> AsyncIterator[AsyncConversation]:
    """Three committed turns, each with a call that changes the state."""
    async with AsyncConversation(home.agent(counting(request.node.name)), store=home.store) as source:
        for question in ("one", "two", "three"):
            await source.run(question)
        yield source


async def turns_of(conversation: AsyncConversation) -> list[str]:
    return [turn.id for turn in (await conversation.turns()).items]


async def asked(conversation: AsyncConversation) -> list[str]:
    """What users have said, along the path."""
    bodies = [event.body for event in await conversation.events(kinds=["user_message"])]
    parts = [part for body in bodies if isinstance(body, UserMessage) for part in body.parts]
    return [part.text for part in parts if isinstance(part, Text)]


async def answered(conversation: AsyncConversation) -> list[str]:
    return [turn.text for turn in (await conversation.turns()).items]


async def rewound(conversation: AsyncConversation, **place: Any) -> AsyncConversation:
    """Rewinds, and gives the branch set aside, which must be there."""
    aside = await conversation.rewind(**place)
    assert aside is not None
    return aside


def rows(file: Path) -> Counter[tuple[Any, ...]]:
    """Every row of the database but the signs of life of its processes, and the keys that make requests happen once."""
    found: Counter[tuple[Any, ...]] = Counter()
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table not in {"holder", "idempotency"}:
                found.update((table, *row) for row in db.execute(f"SELECT * FROM {table}"))
    return found


# Back, and what is kept.


@pytest.mark.parametrize(
    "place", ["a turn", "its id", "its last event", "that event's id", "before", "before an event"]
)
async def test_a_rewind_goes_back_to_a_turn_or_an_event_and_keeps_what_stood_after_it(
    store: Store, source: AsyncConversation, place: str
) -> None:
    events, digest = await source.events(), (await source.info()).digest
    first, second, _ = [await source.turn(id) for id in await turns_of(source)]
    last = first.events[-1]
    places: dict[str, dict[str, Any]] = {
        "a turn": {"at": first},
        "its id": {"at": first.id},
        "its last event": {"at": last},
        "that event's id": {"at": str(last.id)},  # type: ignore[union-attr]
        "before": {"before": second},
        "before an event": {"before": second.events[0]},
    }
    aside = await rewound(source, **places[place])
    assert (await source.events(), await source.agent_state()) == (list(first.events), {"count": 1})
    assert (await aside.events(), await aside.agent_state()) == (events, {"count": 3})
    assert ((await aside.info()).digest, await aside.status()) == (digest, "idle")
    lineage = (await aside.info()).lineage
    assert (lineage.kind, lineage.source, lineage.at) == ("aside", source.id, last.id)  # type: ignore[union-attr]
    assert (await store.verify()).ok


async def test_a_rewind_to_an_event_in_the_middle_of_a_turn_has_the_state_of_that_event(
    store: Store, source: AsyncConversation
) -> None:
    second = await source.turn((await turns_of(source))[1])
    result = next(event for event in second.events if event.envelope.kind == "tool_result")
    question = next(event for event in second.events if event.envelope.kind == "user_message")
    await rewound(source, at=result)
    assert ((await source.events())[-1], await source.agent_state()) == (result, {"count": 2})
    await rewound(source, at=question)
    assert ((await source.events())[-1], await source.agent_state()) == (question, {"count": 1})
    assert (await source.run("on")).outcome == "committed"
    assert (await source.agent_state(), (await store.verify()).ok) == ({"count": 2}, True)


async def test_a_rewind_to_the_start_leaves_an_empty_conversation(store: Store, source: AsyncConversation) -> None:
    aside = await rewound(source, before=(await turns_of(source))[0])
    assert (await source.events(), await source.agent_state(), (await source.info()).head) == ([], {}, None)
    assert await asked(aside) == ["one", "two", "three"]
    await source.run("another one")
    assert (await asked(source), await source.agent_state()) == (["another one"], {"count": 1})
    assert (await store.verify()).ok


async def test_a_branch_set_aside_is_in_the_tree_and_goes_on_like_any_other(
    home: Home, source: AsyncConversation
) -> None:
    fork = await source.fork()
    aside = await rewound(source, at=(await turns_of(source))[0])
    again = await rewound(aside, at=(await turns_of(aside))[1])
    (root,) = await source.tree()
    assert kinds(root) == ("root", source.id, {("fork", fork.id, ()), ("aside", aside.id, (again.id,))})
    listed = {info.id for info in (await AsyncConversation.list(store=home.store)).items}
    assert {source.id, fork.id, aside.id, again.id} <= listed
    assert await asked(aside) == ["one", "two"]
    await aside.run("on")
    assert (await asked(aside), await asked(again), await asked(source)) == (
        ["one", "two", "on"],
        ["one", "two", "three"],
        ["one"],
    )
    assert await asked(await aside.fork()) == ["one", "two", "on"]


async def test_a_rewind_keeps_what_the_conversation_is_called_and_run_with(
    home: Home, store: Store, source: AsyncConversation, tmp_path: Path
) -> None:
    first = (await turns_of(source))[0]
    strict = Agent("scripted/echo", tools=[count], approval="always")
    await source.change_agent(home.agent(strict))
    await source.describe(title="The source", tags={"kind": "ci"})
    before = await store.read(source.id)
    aside = await rewound(source, at=first)
    after = await store.read(source.id)
    for field in ("id", "name", "title", "tags", "settings", "cache", "family", "lineage", "created", "status"):
        assert getattr(after, field) == getattr(before, field), f"a rewind has changed the {field}"
    assert after.revision == before.revision + 1
    assert source.agent is home.at_hand(strict), "the policy of today, although the turn is of yesterday"
    kept = await store.read(aside.id)
    assert (kept.settings, kept.title, kept.tags) == (before.settings, None, ())
    assert await aside.cache() == own_identity(aside.id)


async def test_those_who_listen_to_a_conversation_hear_nothing_of_what_was_set_aside(home: Home, places: None) -> None:
    told: list[Update] = []
    source = AsyncConversation(home.agent(ECHO), store=home.store, callbacks=[told.append])
    first = await source.run("one")
    await source.run("two")
    aside = await rewound(source, at=first)
    before = len(told)
    await aside.run("three")
    assert len(told) == before > 0


async def test_a_rewind_writes_a_branch_and_a_record_and_moves_a_row(source: AsyncConversation, tmp_path: Path) -> None:
    before = rows(tmp_path / "forkpoint.db")
    await rewound(source, at=(await turns_of(source))[0])
    after = rows(tmp_path / "forkpoint.db")
    assert [row[0] for row in (before - after).elements()] == ["conversation"]
    assert sorted(row[0] for row in (after - before).elements()) == ["conversation", "conversation", "record"]


async def test_another_object_for_the_same_conversation_sees_the_rewind(home: Home, source: AsyncConversation) -> None:
    other = await AsyncConversation.open(source.id, agent=source.agent, store=home.store)
    assert (await other.run("four")).text == "Answer 4."
    await rewound(source, at=(await turns_of(source))[0])
    assert await asked(other) == ["one"]
    await other.run("two, again")
    await source.run("three, again")
    assert await asked(other) == await asked(source) == ["one", "two, again", "three, again"]
    assert await other.agent_state() == {"count": 3}


# Regenerated and edited.


async def test_a_rewind_and_the_same_turn_is_another_answer_to_the_same_question(
    store: Store, source: AsyncConversation
) -> None:
    last = await source.turn((await turns_of(source))[-1])
    aside = await rewound(source, before=last)
    source.send_message(last.input[0])
    again = await source.run()
    assert (again.input, again.text, last.text) == (last.input, "Answer 4.", "Answer 3.")
    assert await answered(source) == ["Answer 1.", "Answer 2.", "Answer 4."]
    assert await answered(aside) == ["Answer 1.", "Answer 2.", "Answer 3."]
    assert await asked(source) == await asked(aside) == ["one", "two", "three"], "no question stands there twice"
    assert (await store.verify()).ok


async def test_a_rewind_and_another_turn_is_an_edited_message(store: Store, source: AsyncConversation) -> None:
    second = (await turns_of(source))[1]
    aside = await rewound(source, before=second)
    await source.run("two, but better")
    assert await asked(source) == ["one", "two, but better"]
    assert await asked(aside) == ["one", "two", "three"]
    assert (await source.agent_state(), await aside.agent_state()) == ({"count": 2}, {"count": 3})
    shared = (await source.turn((await turns_of(source))[0])).events
    assert (await source.events())[: len(shared)] == (await aside.events())[: len(shared)] == list(shared)
    assert (await store.verify()).ok


# What was spent.


async def test_what_was_set_aside_is_counted_there_and_each_token_once(source: AsyncConversation) -> None:
    turns = [await source.turn(id) for id in await turns_of(source)]
    spent = sum((turn.usage for turn in turns), Usage())
    aside = await rewound(source, at=turns[0])
    here, there = await source.stats(), await aside.stats()
    assert (here.spent, here.inherited) == (turns[0].usage, Usage())
    assert (there.spent, there.inherited) == (turns[1].usage + turns[2].usage, turns[0].usage)
    assert here.family == there.family == spent
    for conversation in (source, aside):
        spent += (await conversation.run("on")).usage
    assert (await source.stats()).family == spent
    assert (await source.stats()).spent + (await aside.stats()).spent == spent


async def test_a_fork_rewound_to_before_it_began_counts_nothing_of_its_source(source: AsyncConversation) -> None:
    first = await source.turn((await turns_of(source))[0])
    spent = (await source.stats()).spent
    fork = await source.fork(reset_metrics=False)
    own = (await fork.run("in the fork")).usage
    aside = await rewound(fork, at=first)
    again = (await fork.run("in the fork, again")).usage
    assert (await source.stats()).spent == spent
    assert (await aside.stats()).spent == own
    ours = await fork.stats()
    assert (ours.spent, ours.inherited, ours.total) == (again, first.usage, first.usage + again)
    assert ours.family == spent + own + again
    assert await asked(source) == ["one", "two", "three"]


async def test_a_rewind_into_a_turn_divides_its_cost_where_the_paths_part(source: AsyncConversation) -> None:
    first, second, third = [await source.turn(id) for id in await turns_of(source)]
    result = next(event for event in second.events if event.envelope.kind == "tool_result")
    aside = await rewound(source, at=result)
    half = second.steps[0].usage
    assert (await source.stats()).spent == first.usage + half
    assert [turn.usage for turn in (await source.turns()).items] == [first.usage, half]
    assert (await aside.stats()).spent == second.usage + third.usage - half
    assert (await aside.stats()).inherited == first.usage + half
    assert (await source.stats()).family == first.usage + second.usage + third.usage


# Refused.


async def test_a_rewind_to_the_head_changes_nothing_and_sets_nothing_aside(
    source: AsyncConversation, tmp_path: Path
) -> None:
    before = rows(tmp_path / "forkpoint.db")
    last = await source.turn((await turns_of(source))[-1])
    assert await source.rewind(at=last) is None
    assert await source.rewind(at=last.events[-1]) is None  # type: ignore[arg-type]
    assert rows(tmp_path / "forkpoint.db") == before


async def test_a_rewind_without_a_place_or_with_two_is_refused(source: AsyncConversation, tmp_path: Path) -> None:
    before = rows(tmp_path / "forkpoint.db")
    first, second, _ = await turns_of(source)
    with pytest.raises(BadPosition, match="at= or before="):
        await source.rewind()
    with pytest.raises(BadPosition, match="both given"):
        await source.rewind(at=first, before=second)
    assert rows(tmp_path / "forkpoint.db") == before


async def test_a_rewind_into_a_tool_exchange_or_off_the_path_is_refused_with_safe_places(
    source: AsyncConversation, tmp_path: Path
) -> None:
    fork = await source.fork()
    elsewhere = await fork.run("in the fork")
    call = next(event for event in await source.events() if event.kind == "tool_call")
    before = rows(tmp_path / "forkpoint.db")
    with pytest.raises(BadPosition, match="inside a tool exchange") as refused:
        await source.rewind(at=call)
    for place in (elsewhere, elsewhere.id, elsewhere.events[-1], "9-999"):
        with pytest.raises(BadPosition):
            await source.rewind(at=place)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await source.rewind(at=new_id())
    assert rows(tmp_path / "forkpoint.db") == before
    below, above = refused.value.nearest
    await rewound(source, at=above)
    await rewound(source, at=below)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_rewind_is_refused_while_a_turn_runs_and_the_turn_goes_on(
    home: Home, places: None, anyio_backend: str
) -> None:
    started, go_on = Signal(), Signal()

    @tool
    async def wait() -> str:
        """Waits until it is told to go on."""
        started.set()
        await go_on.wait()
        return "waited"

    replies = [Reply("Hello."), Reply(calls=(ScriptedCall("wait"),)), Reply("Done.")]
    source = AsyncConversation(
        home.agent(Agent(Script(replies).register(f"rewind-running-{anyio_backend}"), tools=[wait])), store=home.store
    )
    first = await source.run("one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.run, "two")
        with anyio.fail_after(PROMPT):
            await started.wait()
            with pytest.raises(Busy):
                await source.rewind(before=first)
        go_on.set()
    assert await answered(source) == ["Hello.", "Done."]
    assert len((await AsyncConversation.list(store=home.store)).items) == 1
    assert await asked(await rewound(source, before=first)) == ["one", "two"]


async def test_a_rewind_is_refused_while_a_turn_waits_for_approval(home: Home, places: None) -> None:
    replies = [Reply("Hello."), Reply(calls=(ScriptedCall("count"),)), Reply("Done.")]
    agent = Agent(Script(replies).register("rewind-waiting"), tools=[count], approval="always")
    source = AsyncConversation(home.agent(agent), store=home.store)
    first = await source.run("one")
    assert (await source.run("two")).outcome == "awaiting_approval"
    with pytest.raises(TurnOpen):
        await source.rewind(before=first)
    assert (await source.approve()).text == "Done."


# Tries that failed.


async def test_a_try_that_failed_on_what_was_set_aside_is_neither_retried_nor_resumed(home: Home, places: None) -> None:
    replies = [Reply("One."), Reply("Two."), Reply("", fault=Fault("overloaded")), Reply("Two, again.")]
    model = LLM(Script(replies).register("rewind-after-failure"), retries=Retries(attempts=1))
    source = AsyncConversation(home.agent(Agent(model)), store=home.store)
    first = await source.run("one")
    await source.run("two")
    with pytest.raises(TurnFailed) as failed:
        await source.run("three")
    await rewound(source, at=first)
    with pytest.raises(NoSuchTurn):
        await source.retry()
    with pytest.raises((NoSuchTurn, NotResumable)):
        await source.resume(failed.value.id)
    assert (await source.run("two")).text == "Two, again."
    assert await asked(source) == ["one", "two"]


async def test_a_rewind_past_a_note_takes_back_what_the_note_set(store: Store, source: AsyncConversation) -> None:
    last = (await turns_of(source))[-1]
    await source.update_state({"count": 100, "other": True})
    await store.note(source.id, new_id(), [NewEvent(UserMessage((Text("a remark"),)))])
    aside = await rewound(source, at=last)
    assert (await source.agent_state(), await aside.agent_state()) == ({"count": 3}, {"count": 100, "other": True})


async def test_a_rewind_past_a_change_of_the_agent_leaves_the_agent_of_today(home: Home, places: None) -> None:
    source = AsyncConversation(home.agent(ECHO), store=home.store)
    first = await source.run("one")
    await source.change_agent(home.agent(Agent(Script([Reply("Two."), Reply("Two, again.")]).register("rewind-agent"))))
    await source.run("two")
    await rewound(source, at=first)
    assert (await source.run("two")).text == "Two, again."
    reasons = [event.body.reason for event in await source.events() if isinstance(event.body, ManifestChanged)]
    assert reasons == ["the first", "changed: model echo to rewind-agent"], "each change is recorded, once on each path"


# Nobody can rewrite history.


async def test_a_rewind_is_no_way_to_rewrite_history_unseen(source: AsyncConversation) -> None:
    digest = (await source.info()).digest
    first = (await turns_of(source))[0]
    aside = await rewound(source, at=first)
    await source.run("two, but better")
    assert (await source.verify()).ok
    assert (await aside.verify(head_digest=digest)).ok, "what stood there is kept, and can be shown to be it"
    assert not (await source.verify(head_digest=digest)).ok, "the conversation went another way since"


def test_the_plain_api_rewinds_in_the_same_words(home: Home) -> None:
    with Conversation(home.agent(ECHO), store=home.store) as source:
        first = source.run("one")
        second = source.run("two")
        assert source.rewind(at=second) is None
        with source.rewind(before=second) or pytest.fail("nothing was set aside") as aside:
            assert [turn.text for turn in aside.turns().items] == ["You said: one", "You said: two"]
            source.run("two, but better")
            assert [turn.text for turn in source.turns().items] == ["You said: one", "You said: two, but better"]
            assert aside.info().lineage.at == first.events[-1].id  # type: ignore[union-attr]


def kinds(root: Branch) -> tuple[str, str, set[tuple[str, str, tuple[str, ...]]]]:
    """A tree of three levels, without its order."""
    branches: set[tuple[str, str, tuple[str, ...]]] = {
        (branch.info.lineage.kind, branch.info.id, tuple(deeper.info.id for deeper in branch.branches))
        for branch in root.branches
    }
    return root.info.lineage.kind, root.info.id, branches

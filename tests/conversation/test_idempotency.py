"""One key, one effect: a repeat gives the same turn, joins one that runs, and a failed one frees its key."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support import tools as shared
from tests.conversation.support.agents import PATIENCE, Signal, Watcher, agent_of, asks, call, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.other_process import heard as heard_of
from tests.conversation.support.other_process import start
from tests.conversation.support.short_lease import engine_on

from forkpoint import Agent, AsyncConversation, TurnCancelled, TurnFailed, tool
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import How, NewTurn
from forkpoint.backend.settings import Settings
from forkpoint.conversation import Turn, TurnJoined, TurnStarted
from forkpoint.engine import Engine
from forkpoint.errors import Busy, KeyReused, NotResumable, TurnLost
from forkpoint.llm import TextPiece
from forkpoint.store.sqlite import SqliteSettings
from forkpoint.store.values import Onto
from forkpoint.testing import Fault, Reply

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

OVERLOADED = Reply("x", fault=Fault("overloaded"))
HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))


async def test_the_same_key_and_message_give_the_stored_turn_and_ask_nobody(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["once", "other"])), store=home.store) as conversation:
        turn = await conversation.run("hello", key="k")
        assert await conversation.run("hello", key="k") == turn
        async with await AsyncConversation.open(conversation.id, store=home.store) as other:
            assert await other.run("hello", key="k") == turn
        assert len((await conversation.turns()).items) == 1
        assert (await conversation.run("hello", key="l")).text == "other"
        assert await conversation.run("hello", key="k") == turn, "also after the conversation went on"


async def test_a_key_that_was_used_for_something_else_is_refused_and_nothing_happens(home: Home) -> None:
    agent = agent_of(["once", "twice"])
    async with (
        AsyncConversation(home.agent(agent), store=home.store) as conversation,
        AsyncConversation(home.agent(agent), store=home.store) as other,
    ):
        await conversation.run("hello", key="k")
        with pytest.raises(KeyReused):
            await conversation.run("something else", key="k")
        with pytest.raises(KeyReused):
            await other.run("hello", key="k")
        conversation.send_message("first")
        with pytest.raises(KeyReused):
            await conversation.run("hello", key="k")
        assert len(conversation.pending) == 1
        assert len(await conversation.events()) == 4
        assert (await other.run("hello")).text == "twice"


async def test_messages_that_a_stored_turn_had_are_not_pending_any_more(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["once", "next"])), store=home.store) as conversation:
        conversation.send_message("a")
        turn = await conversation.run("b", key="k")
        conversation.send_message("a")
        assert await conversation.run("b", key="k") == turn
        assert conversation.pending == ()


@both
async def test_a_repeat_joins_the_turn_that_runs(home: Home) -> None:
    started, release = Signal(), Signal()
    ran: list[str] = []

    @tool
    async def work() -> str:
        """Works."""
        ran.append("work")
        started.set()
        await release.wait()
        return "worked"

    found: list[Turn] = []
    agent = agent_of([asks(call("work")), "done"], tools=[work])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:

        async def run(one: AsyncConversation) -> None:
            found.append(await one.run("go", key="k"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, conversation)
            await started.wait()
            other = await AsyncConversation.open(conversation.id, agent=home.agent(agent), store=home.store)
            tasks.start_soon(run, conversation)
            tasks.start_soon(run, other)
            with pytest.raises(Busy):
                await conversation.run("go")
            release.set()
        await other.close()
        assert found[0] == found[1] == found[2]
        assert ran == ["work"]


async def test_whoever_joined_a_turn_that_fails_hears_that_too(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS, "again"])
    heard: list[Any] = []
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:

        async def run() -> None:
            try:
                await conversation.run("go", key="k")
            except TurnFailed as error:
                heard.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await watcher.until(TextPiece)
            tasks.start_soon(run)
            await watcher.until(TurnJoined)
            await conversation.cancel()
        assert [type(error) for error in heard] == [TurnCancelled] * 2
        assert heard[0].turn == heard[1].turn
        assert (await conversation.run("go", key="k")).text == "again", "and the key is free"


async def test_giving_up_on_a_turn_that_one_has_joined_does_not_stop_it(home: Home) -> None:
    started, release = Signal(), Signal()

    @tool
    async def work() -> str:
        """Works."""
        started.set()
        await release.wait()
        return "worked"

    watcher = Watcher()
    agent = agent_of([asks(call("work")), "done"], tools=[work])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        running = asyncio.create_task(conversation.run("go", key="k"))
        await started.wait()
        joined = asyncio.create_task(conversation.run("go", key="k"))
        await watcher.until(TurnJoined)
        joined.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joined
        release.set()
        assert (await running).text == "done"


@pytest.mark.parametrize("how", ["failed", "cancelled", "discarded"])
async def test_a_turn_that_did_not_commit_frees_its_key(home: Home, how: str) -> None:
    watcher = Watcher()

    @tool
    def look() -> str:
        """Looks."""
        return "seen"

    first = {"failed": OVERLOADED, "cancelled": HANGS, "discarded": asks(call("look"))}[how]
    approval = "always" if how == "discarded" else "never"
    agent = agent_of([first, "second"], tools=[look], approval=approval)
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        match how:
            case "failed":
                with pytest.raises(TurnFailed):
                    await conversation.run("go", key="k")
            case "cancelled":
                running = asyncio.create_task(conversation.run("go", key="k"))
                await watcher.until(TextPiece)
                await conversation.cancel()
                with pytest.raises(TurnCancelled):
                    await running
            case _:
                waiting = await conversation.run("go", key="k")
                assert await conversation.run("go", key="k") == waiting, "one that waits is not over"
                await conversation.discard()
        turn = await conversation.run("something else", key="k")
        assert turn.text == "second"


async def test_a_resumed_turn_has_its_key_again(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([OVERLOADED, "resumed"])), store=home.store) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("go", key="k")
        turn = await conversation.resume()
        assert await conversation.run("go", key="k") == turn


async def test_a_turn_whose_key_was_used_meanwhile_is_not_resumed(home: Home) -> None:
    agent = agent_of([OVERLOADED, "other"])
    async with (
        AsyncConversation(home.agent(agent), store=home.store) as conversation,
        AsyncConversation(home.agent(agent), store=home.store) as other,
    ):
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("go", key="k")
        await other.run("go", key="k")
        with pytest.raises(NotResumable):
            await conversation.resume(failed.value.id)


async def test_a_retry_may_have_a_key(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([OVERLOADED, "retried"])), store=home.store) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("go")
        turn = await conversation.retry(key="r")
        assert await conversation.retry(failed.value.id, key="r") == turn
        assert len((await conversation.turns()).items) == 2


async def test_a_retry_that_names_no_turn_is_repeated_with_its_key(home: Home) -> None:
    agent = agent_of([OVERLOADED, "retried", "other"])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("go")
        turn = await conversation.retry(key="r")
        assert await conversation.retry(key="r") == turn
        await conversation.run("more")
        assert await conversation.retry(key="r") == turn, "also after the conversation went on"
        assert len((await conversation.turns()).items) == 3


async def test_a_killed_retry_is_resumed_by_the_same_retry_and_runs_no_finished_tool_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    asked = shared.steps([("write", {"line": "once"})], [("wait", {})], [("write", {"line": "after"})])
    for verb, given, key in (("run", [asked], "k"), ("retry", [], "r")):
        with start(store, "killed", verb, *given, workspace=tmp_path, key=key) as process:
            assert process.stdout.readline() == "waits\n"
            process.kill()
    async with await AsyncConversation.open("killed", store=store) as conversation:
        before = (await conversation.turns()).items[-1]
        turn = await conversation.retry(key="r")
        assert (turn.id, turn.outcome) == (before.id, "committed"), "the retry's own turn goes on"
        assert shared.logged(tmp_path) == ["once", "waits", "once", "waits", "after"]


async def test_a_retry_takes_over_the_key_of_its_turn(home: Home) -> None:
    agent = agent_of([OVERLOADED, "retried", "other"])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("go", key="k")
        turn = await conversation.retry()
        assert await conversation.run("go", key="k") == turn
        with pytest.raises(KeyReused):
            await conversation.run("something else", key="k")


async def test_a_retry_that_is_resumed_has_the_key_of_its_turn_again(home: Home) -> None:
    agent = agent_of([OVERLOADED, OVERLOADED, "resumed", "other"])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        for attempt in (conversation.run("go", key="k"), conversation.retry()):
            with pytest.raises(TurnFailed):
                await attempt
        turn = await conversation.resume()
        assert await conversation.run("go", key="k") == turn


async def test_a_retry_leaves_a_key_to_whoever_has_used_it_since(home: Home) -> None:
    agent = agent_of([OVERLOADED, "sent again", "retried"])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("go", key="k")
        again = await conversation.run("go", key="k")
        assert (await conversation.retry(failed.value.id)).text == "retried"
        assert await conversation.run("go", key="k") == again


async def test_a_first_run_that_is_repeated_with_its_key_is_not_refused_as_taken(home: Home) -> None:
    agent = Agent(scripted(["once"]))
    async with AsyncConversation(home.agent(agent), conversation_id="mine", store=home.store) as conversation:
        turn = await conversation.run("go", key="k")
        async with await AsyncConversation.open("mine", create=home.agent(agent), store=home.store) as again:
            assert await again.run("go", key="k") == turn


async def test_a_repeat_joins_a_turn_that_another_process_runs(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    asked = shared.steps([("wait", {})])
    process = start(store, "joined", "run", asked, workspace=tmp_path, key="k")
    assert process.stdout.readline() == "waits\n"
    async with await AsyncConversation.open("joined", store=store) as conversation:
        with pytest.raises(Busy):
            await conversation.run(asked)
        found: list[Turn] = []

        async def join() -> None:
            found.append(await conversation.run(asked, key="k"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(join)
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                assert found == []
                told = heard_of_after(process, "go")
        assert (found[0].id, found[0].text) == (told["turn"], told["text"])
        assert found[0].outcome == "committed"
        assert shared.logged(tmp_path) == ["waits"]


async def test_a_repeat_goes_on_with_a_turn_whose_process_was_killed_and_others_join_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    asked = shared.steps([("write", {"line": "first"})], [("wait", {})], [("write", {"line": "last"})])
    with start(store, "killed", "run", asked, workspace=tmp_path, key="k") as process:
        assert process.stdout.readline() == "waits\n"
        process.kill()
    watcher, found = Watcher(), []

    async def repeat(conversation: AsyncConversation) -> None:
        found.append(await conversation.run(asked, key="k"))

    async with (
        await AsyncConversation.open("killed", store=store, callbacks=[watcher]) as conversation,
        AsyncConversation(shared.agent(), conversation_id="killed", store=store, workspace=tmp_path) as made_again,
    ):
        (interrupted,) = (await conversation.turns()).items
        assert interrupted.outcome == "interrupted"
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for one in (conversation, conversation, made_again):
                    tasks.start_soon(repeat, one)
        assert {(turn.id, turn.outcome) for turn in found} == {(interrupted.id, "committed")}
        assert [one.status for one in found[0].calls] == ["done", "unknown", "done"]
        assert shared.logged(tmp_path) == ["first", "waits", "last"], "what was done is not done again"
        assert await conversation.run(asked, key="k") == found[0]
        assert len((await conversation.turns()).items) == 1
        assert len(watcher.of(TurnJoined)) + len(watcher.of(TurnStarted)) == 3


async def test_a_repeat_of_a_turn_that_waits_gives_the_turn_that_waits(home: Home) -> None:
    @tool(risky=True)
    def erase() -> str:
        """Erases something."""
        return "erased"

    agent = home.agent(agent_of([asks(call("erase")), "done"], tools=[erase], approval="risky"))
    async with AsyncConversation(agent, store=home.store) as conversation:
        waits = await conversation.run("go", key="k")
        again = await conversation.run("go", key="k")
        assert (again.id, again.outcome, again.waiting) == (waits.id, "awaiting_approval", waits.waiting)
        assert (await conversation.approve()).id == (await conversation.run("go", key="k")).id == waits.id


class Crashed:
    """A turn of an engine that hangs in a tool, and that others take for dead."""

    def __init__(self) -> None:
        self.reached, self.runs = Signal(), 0

        @tool
        async def hang() -> str:
            """Never returns."""
            self.runs += 1
            self.reached.set()
            await anyio.sleep_forever()
            return ""

        self.tools = [hang]

    async def run(self, engine: Engine, id: str, agent: Agent, new: NewTurn) -> None:
        with suppress(TurnLost, TurnCancelled):
            await engine.turns.run(id, agent, new, lambda update: None)


DEAD = SqliteSettings(expiry=-1)  # whoever else is there counts as dead


async def test_a_repeat_of_an_interrupted_turn_at_another_place_than_the_head_is_run_anew_once(tmp_path: Path) -> None:
    crashed = Crashed()
    answers: list[Reply | str] = ["one", "two", asks(call("hang")), "anew", "after that"]
    agent = agent_of(answers, tools=crashed.tools)
    async with (
        engine_on(tmp_path / "a.db", SqliteSettings()) as engine,
        engine_on(tmp_path / "a.db", DEAD) as other,
        AsyncConversation(agent, store=f"sqlite:///{tmp_path / 'a.db'}") as conversation,
    ):
        await conversation.run("1")
        *_, last = await conversation.events()
        await conversation.run("2")
        place = Onto(conversation.id, last.id)
        new = NewTurn(given=(as_message("instead"),), key="k", how=How(onto=place))
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crashed.run, engine, conversation.id, agent, new)
                await crashed.reached.wait()
                found: list[Turn] = []

                async def repeat() -> None:
                    found.append(await other.turns.run(conversation.id, agent, new, lambda update: None))

                async with anyio.create_task_group() as repeats:
                    repeats.start_soon(repeat)
                    repeats.start_soon(repeat)
        assert [(turn.text, turn.outcome) for turn in found] == [("anew", "committed")] * 2
        assert found[0].id == found[1].id
        (left,) = [one for one in (await other.turns.list(conversation.id)).items if one.outcome != "committed"]
        assert left.outcome == "cancelled"
        assert found[0].retry_of in (left.id, None), "None: the other repeat began before the one that discarded it"
        assert crashed.runs == 1


async def test_a_repeat_of_an_interrupted_turn_goes_on_with_the_settings_that_it_had_begun_with(tmp_path: Path) -> None:
    """A server's agent was changed between the crash and the repeat of a chat completion."""
    crashed = Crashed()
    before = agent_of([asks(call("hang")), "gone on"], tools=crashed.tools, instructions="Before.")
    after = replace(before, instructions="After.")
    async with (
        engine_on(tmp_path / "a.db", SqliteSettings()) as engine,
        engine_on(tmp_path / "a.db", DEAD) as other,
        AsyncConversation(agent_of(["one"]), store=f"sqlite:///{tmp_path / 'a.db'}") as conversation,
    ):
        await conversation.run("1")

        def new(agent: Agent) -> NewTurn:
            how = How(settings=Settings.of(agent, None), request="00" * 32)
            return NewTurn(given=(as_message("2"),), key="k", how=how)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crashed.run, engine, conversation.id, before, new(before))
                await crashed.reached.wait()
                turn = await other.turns.run(conversation.id, after, new(after), lambda update: None)
        assert (turn.text, [one.status for one in turn.calls]) == ("gone on", ["unknown"])
        assert (await other.find(conversation.id))[1].to_json() == Settings.of(before, None).to_json()


def heard_of_after(process: Any, line: str) -> dict[str, Any]:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return heard_of(process)

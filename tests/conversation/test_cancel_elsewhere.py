"""A turn that another process runs: anybody can cancel it, and a process that stands still loses it in the end."""

import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support import other_process, short_lease
from tests.conversation.support import tools as shared
from tests.conversation.support.agents import PATIENCE, Signal, agent_of, asks, call
from tests.conversation.support.other_process import heard
from tests.conversation.support.short_lease import engine_on, over

from forkpoint import AsyncConversation, ForkpointError, TurnCancelled, tool
from forkpoint.backend.options import ConversationFilter, Draft
from forkpoint.backend.settings import Settings
from forkpoint.conversation import Turn
from forkpoint.engine import Engine
from forkpoint.engine.turns import journal
from forkpoint.engine.turns.journal import Steps
from forkpoint.errors import Busy, NoSuchTurn, TurnLost, TurnOpen
from forkpoint.events import NewEvent
from forkpoint.ids import new_id
from forkpoint.polling import pauses
from forkpoint.store.sqlite import SqliteSettings, SqliteStore
from forkpoint.store.values import NewConversation, OpenTurn
from forkpoint.testing import Heard, Reply
from forkpoint.testing.samples import says

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped by a signal")

WAITS = shared.steps([("wait", {})], [("write", {"line": "after"})])


@contextmanager
def running(folder: Path, name: str, asked: str = WAITS) -> Iterator[tuple[Any, str]]:
    """Another process in the midst of a tool; with it, where its conversation is."""
    store = f"sqlite:///{folder / 'a.db'}"
    process = other_process.start(store, name, "run", asked, workspace=folder, key="k")
    with process:
        try:
            assert process.stdout.readline() == "waits\n"
            yield process, store
        finally:
            process.kill()


class Hanging:
    """A turn of this process that hangs in a tool, and what it ended with."""

    def __init__(self) -> None:
        self.reached = Signal()
        self.errors: list[Exception] = []

    def conversation(self, folder: Path) -> AsyncConversation:
        @tool
        async def hang() -> str:
            """Never returns."""
            self.reached.set()
            await anyio.sleep_forever()
            return ""

        agent = agent_of([asks(call("hang")), "at last"], tools=[hang])
        return AsyncConversation(agent, store=f"sqlite:///{folder / 'a.db'}")

    async def run(self, conversation: AsyncConversation) -> None:
        try:
            await conversation.run("go")
        except ForkpointError as error:
            self.errors.append(error)


async def until(is_so: Callable[[], Awaitable[Any]]) -> None:
    """Looks until something is so."""
    with anyio.fail_after(PATIENCE):
        for wait in pauses(0.01, 0.05):
            if await is_so():
                return
            await anyio.sleep(wait)


# Cancel from anywhere.


async def test_a_turn_that_another_process_runs_is_cancelled_there_and_all_hear_the_same_end(tmp_path: Path) -> None:
    with running(tmp_path, "far") as (process, store):
        async with await AsyncConversation.open("far", store=store) as conversation:
            ended: list[Turn] = []

            async def cancel() -> None:
                ended.append(await conversation.cancel())

            async def join() -> None:
                with pytest.raises(TurnCancelled):
                    await conversation.run(WAITS, key="k")

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    for do in (cancel, cancel, join):
                        tasks.start_soon(do)
            (turn, again) = ended
            assert (turn.outcome, [one.status for one in turn.calls]) == ("cancelled", ["unknown"])
            assert again == turn
            with pytest.raises(NoSuchTurn, match="none is running"):
                await conversation.cancel()
            told = heard(process)
            assert told["error"] == "turn_cancelled"
            assert turn.id in told["message"]
            assert shared.logged(tmp_path) == ["waits"], "nothing was begun after that"
            assert (await conversation.run(shared.steps(), key="k")).outcome == "committed", "its key is free"


@both
async def test_another_engine_on_the_same_file_cancels_a_turn_within_a_second(tmp_path: Path) -> None:
    hanging = Hanging()
    async with hanging.conversation(tmp_path) as conversation, engine_on(tmp_path / "a.db", SqliteSettings()) as far:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hanging.run, conversation)
                await hanging.reached.wait()
                with anyio.fail_after(1 + PATIENCE / 10):  # a second, and what a busy machine needs
                    turn = await far.turns.cancel(conversation.id)
        assert turn.outcome == "cancelled"
        assert [type(error) for error in hanging.errors] == [TurnCancelled]
        assert (await conversation.run("again")).text == "at last"


async def test_a_cancel_that_comes_too_late_says_committed(tmp_path: Path) -> None:
    """The turn's process hears of it only when it looks next, and commits before."""
    store = await SqliteStore.open(tmp_path / "a.db")
    async with store, engine_on(tmp_path / "a.db", SqliteSettings()) as engine:
        id = new_id()
        await store.create(NewConversation(id=id))
        turn = await store.begin(id, new_id())  # of a process that does not look
        assert isinstance(turn, OpenTurn)
        ended: list[Turn] = []

        async def cancel() -> None:
            ended.append(await engine.turns.cancel(id))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                await until(lambda: store.stops([turn]))
                await store.commit(turn, [says("hi")])
        assert ended[0].outcome == "committed"


async def test_a_turn_that_somebody_resumes_after_it_was_cancelled_is_not_cancelled_again(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    async with store, engine_on(tmp_path / "a.db", SqliteSettings()) as engine:
        id = new_id()
        await store.create(NewConversation(id=id))
        turn = await store.begin(id, new_id())
        assert isinstance(turn, OpenTurn)

        async def cancel() -> None:
            with suppress(Busy):  # it says so if it finds the turn resumed
                assert (await engine.turns.cancel(id)).outcome == "cancelled"

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                await until(lambda: store.stops([turn]))
                await store.cancel(turn)  # the wish is fulfilled, and then somebody goes on
                resumed = await store.resume(turn.id)
        assert await store.stops([resumed]) == {}
        await store.commit(resumed, [says("hi")])


async def test_a_turn_whose_process_was_killed_is_cancelled_at_once(tmp_path: Path) -> None:
    with running(tmp_path, "far") as (process, store):
        process.kill()
        process.wait()
        async with await AsyncConversation.open("far", store=store) as conversation:
            turn = await conversation.cancel()
            assert (turn.outcome, [one.status for one in turn.calls]) == ("cancelled", ["unknown"])
            assert (await conversation.resume(turn)).text.endswith("| wrote after"), "nothing of it is lost"


async def test_a_turn_whose_process_dies_after_it_was_asked_is_cancelled_by_whoever_asked(tmp_path: Path) -> None:
    with running(tmp_path, "far") as (process, store):
        os.kill(process.pid, signal.SIGSTOP)  # so that it never sees the wish
        async with await AsyncConversation.open("far", store=store) as conversation:
            ended: list[Turn] = []

            async def cancel() -> None:
                ended.append(await conversation.cancel())

            async def is_asked() -> bool:
                with closing(sqlite3.connect(tmp_path / "a.db")) as db:
                    return bool(db.execute("SELECT 1 FROM turn WHERE cancel_asked IS NOT NULL").fetchall())

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cancel)
                    await until(is_asked)
                    assert ended == []
                    process.kill()
                    process.wait()
        assert ended[0].outcome == "cancelled"


async def test_a_turn_that_waits_for_an_approval_is_not_cancelled_but_discarded(tmp_path: Path) -> None:
    async with AsyncConversation(
        shared.agent(approval="risky"), store=f"sqlite:///{tmp_path / 'a.db'}", workspace=tmp_path
    ) as conversation:
        waits = await conversation.run(shared.steps([("erase", {})]))
        with pytest.raises(NoSuchTurn, match=f"turn {waits.id} waits for an approval and does not run; discard it"):
            await conversation.cancel()
        assert (await conversation.discard()).outcome == "cancelled"


async def test_a_sub_agents_turn_is_cancelled_from_elsewhere_and_its_parent_goes_on(tmp_path: Path) -> None:
    reached = Signal()

    @tool
    async def hang() -> str:
        """Never returns."""
        reached.set()
        await anyio.sleep_forever()
        return ""

    def answers(heard: Heard) -> Reply:
        if heard.text == "the task":
            return asks(call("hang"))
        done = sum(message["role"] == "tool" for message in heard.body["messages"])
        spawns, waits = call("spawn_agent", task="the task", nickname="scout"), call("wait_agent")
        return Reply("went on") if done == 2 else asks(waits if done else spawns)

    agent = agent_of(answers, tools=[hang], sub_agents=True)
    store = f"sqlite:///{tmp_path / 'a.db'}"
    async with AsyncConversation(agent, store=store) as lead, engine_on(tmp_path / "a.db", SqliteSettings()) as far:
        turns: list[Turn] = []

        async def run() -> None:
            turns.append(await lead.run("go"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await reached.wait()
                wanted = ConversationFilter(sub_agents=True, status="running")
                running = (await far.conversations(wanted=wanted)).items
                (child,) = [one for one in running if one.lineage.kind == "sub_agent"]
                ended = await far.turns.cancel(child.id)
        assert (ended.outcome, ended.conversation) == ("cancelled", child.id)
        assert (turns[0].outcome, turns[0].text) == ("committed", "went on")


# A process that stands still.


@asynccontextmanager
async def stopped(folder: Path, count: int) -> AsyncIterator[tuple[Any, list[str], Engine]]:
    """A process that was stopped while it ran ``count`` turns, their conversations, and an engine that sees them."""
    file, ids = folder / "a.db", [new_id() for _ in range(count)]
    async with engine_on(file) as engine:
        for id in ids:
            settings = Settings.of(shared.agent(), str(folder))
            await engine.create(Draft(id=id, name=None, settings=settings))
        process = short_lease.start(file, WAITS, *ids)
        with process:
            try:
                waiting = 0
                while waiting < count:  # several threads may say so on one line
                    line = process.stdout.readline()
                    assert line.replace("waits", "") == "\n", f"another end than expected: {line}"
                    waiting += line.count("waits")
                os.kill(process.pid, signal.SIGSTOP)
                yield process, ids, engine
            finally:
                process.kill()


def woken(process: Any, count: int) -> dict[str, dict[str, str]]:
    """What a stopped process says of its turns when it goes on, and its tools return."""
    os.kill(process.pid, signal.SIGCONT)
    told, _ = process.communicate("go\n" * count, timeout=PATIENCE)
    said = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    return {one.pop("id"): one for one in said}


@needs_posix
async def test_a_stopped_process_keeps_its_turns_for_its_lease_and_then_loses_them_for_good(tmp_path: Path) -> None:
    verbs = ("resume", "discard", "supersede", "cancel", "repeat", "none")
    async with stopped(tmp_path, len(verbs)) as (process, ids, engine):
        its = dict(zip(verbs, ids, strict=True))
        turns = {verb: (await engine.find(id))[0].open_turn or "" for verb, id in its.items()}

        # Before its lease has run out nobody overrules it, and whoever is refused hears where it is.
        async with engine_on(tmp_path / "a.db", SqliteSettings()) as patient:
            this = await over(patient, its["resume"])
            refused: list[Callable[[], Awaitable[object]]] = [
                lambda: this.resume(turns["resume"]),
                lambda: this.discard(turns["resume"]),
                lambda: this.run(shared.steps(), supersede=True),
            ]
            for do in refused:
                with pytest.raises(Busy) as busy:
                    await do()
                assert busy.value.process == process.pid
                assert f"It is being run by process {process.pid} on host " in str(busy.value)

        async def is_interrupted() -> bool:
            return (await engine.find(its["none"]))[0].status == "interrupted"

        await until(is_interrupted)

        # Then all of these work.
        there = {verb: await over(engine, id) for verb, id in its.items()}
        with pytest.raises(TurnOpen):
            await there["none"].run("something else")
        assert (await there["resume"].resume(turns["resume"])).outcome == "committed"
        assert (await there["discard"].discard(turns["discard"])).outcome == "cancelled"
        assert (await there["supersede"].run(shared.steps(), supersede=True)).outcome == "committed"
        assert (await there["cancel"].cancel()).outcome == "cancelled"
        repeated = await there["repeat"].run(WAITS, key=f"k-{its['repeat']}")
        assert (repeated.id, repeated.outcome) == (turns["repeat"], "committed")
        assert sorted(shared.logged(tmp_path)) == ["after"] * 2 + ["waits"] * len(ids)

        # The old process is refused, and starts no other tool; what nobody took from it is still its own.
        heads = {verb: (await one.info()).digest for verb, one in there.items() if verb != "none"}
        told = woken(process, len(ids))
        assert {verb: told[id] for verb, id in its.items()} == {
            "resume": {"error": "turn_lost"},
            "discard": {"error": "turn_lost"},
            "supersede": {"error": "turn_lost"},
            "cancel": {"error": "turn_lost"},
            "repeat": {"error": "turn_lost"},
            "none": {"outcome": "committed"},
        }
        assert sorted(shared.logged(tmp_path)) == ["after"] * 3 + ["waits"] * len(ids)
        assert {verb: (await one.info()).digest for verb, one in there.items() if verb != "none"} == heads
        assert (await engine.verify(None, head_digest=None)).ok


@both
async def test_a_process_that_has_lost_its_turn_notices_while_its_tool_still_runs(tmp_path: Path) -> None:
    hanging, ahead = Hanging(), SqliteSettings(expiry=-1)  # whoever else is there counts as dead
    async with (
        hanging.conversation(tmp_path) as conversation,
        await SqliteStore.open(tmp_path / "a.db", settings=ahead) as other,
    ):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hanging.run, conversation)
                await hanging.reached.wait()
                open_turn = (await other.read(conversation.id)).open_turn
                assert open_turn is not None
                taken = await other.resume(open_turn)
        assert [type(error) for error in hanging.errors] == [TurnLost], "it goes on elsewhere, and was stopped here"
        assert await other.stops([taken]) == {}


async def test_no_tool_starts_in_a_turn_that_was_lost_long_after_its_last_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a process was stopped between the write that allows a tool and the tool: in a hook, for example."""
    async with (
        await SqliteStore.open(tmp_path / "a.db") as store,
        await SqliteStore.open(tmp_path / "a.db", settings=SqliteSettings(expiry=-1)) as other,
    ):
        made = await store.create(NewConversation(id=new_id()))
        turn = await store.begin(made.id, new_id())
        assert isinstance(turn, OpenTurn)
        steps = Steps(store, turn)
        steps.add([NewEvent(says("hi").body)])
        await steps.flush()
        await steps.flush()  # nothing is pending
        monkeypatch.setattr(journal, "SURE", -1)
        await steps.flush()  # it is looked up, and all is well
        assert len(steps.so_far) == 1
        await other.discard(turn.id)
        with pytest.raises(TurnLost):
            await steps.flush()

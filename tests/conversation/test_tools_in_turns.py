"""Tools in a turn: what they see, what is recorded of them, and that a finished one is never run again."""

import asyncio
import concurrent.futures
import io
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from tests.conversation.support import tools as shared
from tests.conversation.support.agents import (
    PATIENCE,
    Answers,
    Signal,
    Watcher,
    agent_of,
    asks,
    call,
    kinds,
    messages_of,
    results,
    said,
)
from tests.conversation.support.homes import Home
from tests.conversation.support.other_process import start

from forkpoint import Agent, AsyncConversation, Conversation, ToolContext, TurnCancelled, TurnFailed, tool
from forkpoint.agent.loop import MAY_HAVE_RUN
from forkpoint.conversation import Turn, TurnStarted, Update
from forkpoint.errors import Busy, NotResumable, NotWhole
from forkpoint.events import Image, Text
from forkpoint.testing import Fault, Heard, Reply, ScriptedCall
from forkpoint.updates import CallEnded, CallProgress

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

OVERLOADED = Reply("never heard", fault=Fault("overloaded"))


async def failing(running: Any) -> Turn:
    """The turn of a run that fails."""
    with pytest.raises(TurnFailed) as failed:
        await running
    assert isinstance(failed.value.turn, Turn)
    return failed.value.turn


# What a tool does.


@both
async def test_plain_and_async_tools_run_and_the_model_is_shown_what_they_return(home: Home) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @tool
    async def picture() -> list[Text | Image]:
        """Draws."""
        await checkpoint()
        return [Text("here:"), Image("image/png", data="AAAA")]

    shown: list[Any] = []

    def answer(heard: Heard) -> Reply:
        shown.append(messages_of(heard))
        return asks(call("add", "a", a=1, b=2), call("picture", "p")) if heard.number == 0 else Reply("Fine.")

    async with AsyncConversation(home.agent(agent_of(answer, tools=[add, picture])), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert turn.text == "Fine."
        assert [result.parts for result in results(turn.events)] == [
            (Text("3"),),
            (Text("here:"), Image("image/png", data="AAAA")),
        ]
        told = [message for message in shown[1] if message["role"] == "tool"]
        assert [message["tool_call_id"] for message in told] == ["a", "p"]
        assert told[0]["content"] == "3"


async def test_a_plain_tool_does_not_run_in_the_thread_of_the_loop(home: Home) -> None:
    threads: list[int] = []

    @tool
    def where() -> None:
        """Says where it runs."""
        threads.append(threading.get_ident())

    async with AsyncConversation(
        home.agent(agent_of([asks(call("where")), "x"], tools=[where])), store=home.store
    ) as conversation:
        await conversation.run("go")
        assert threads
        assert threads != [threading.get_ident()]


@both
async def test_async_calls_of_one_response_run_at_the_same_time(home: Home) -> None:
    here, there = Signal(), Signal()

    @tool
    async def left() -> str:
        """Waits for the right one."""
        here.set()
        await there.wait()
        return "left"

    @tool
    async def right() -> str:
        """Waits for the left one."""
        there.set()
        await here.wait()
        return "right"

    agent = agent_of([asks(call("left"), call("right")), "done"], tools=[left, right])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        with anyio.fail_after(PATIENCE):
            turn = await conversation.run("go")
        assert [made.result for made in turn.calls] == ["left", "right"]


@both
async def test_plain_calls_of_one_response_run_at_the_same_time(home: Home) -> None:
    meet = threading.Barrier(3)

    @tool
    def meets(n: int) -> str:
        """Waits for the others."""
        meet.wait(PATIENCE)
        return str(n)

    agent = agent_of([asks(*(call("meets", n=n) for n in range(3))), "done"], tools=[meets])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert [made.result for made in turn.calls] == ["0", "1", "2"]


@both
async def test_results_are_recorded_in_the_order_of_their_calls_whichever_ends_first(home: Home) -> None:
    ended: list[int] = []
    turns = [Signal() for _ in range(3)]
    turns[2].set()

    @tool
    async def number(n: int) -> str:
        """Ends after the one behind it."""
        await turns[n].wait()
        ended.append(n)
        if n:
            turns[n - 1].set()
        return f"result {n}"

    shown: list[list[str]] = []

    def answer(heard: Heard) -> Reply:
        shown.append([message["content"] for message in messages_of(heard) if message["role"] == "tool"])
        return Reply("done") if heard.number else asks(*(call("number", f"c{n}", n=n) for n in range(3)))

    watcher = Watcher()
    agent = agent_of(answer, tools=[number])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        turn = await conversation.run("go")
        assert ended == [2, 1, 0]
        assert [update.result.call_id for update in watcher.of(CallEnded)] == ["c2", "c1", "c0"], "told as it comes"
        assert [result.call_id for result in results(turn.events)] == ["c0", "c1", "c2"], "recorded in order"
        assert shown[1] == ["result 0", "result 1", "result 2"], "and the model sees what history has"
        await conversation.run("and now?")
        assert shown[2] == shown[1]


# What a tool sees.


async def test_a_tool_knows_its_call_and_its_folder(home: Home, tmp_path: Path) -> None:
    seen: list[Any] = []

    @tool
    def knows(ctx: ToolContext) -> None:
        """Looks around."""
        seen.append((ctx.call_id, ctx.workspace, ctx.cancelled, ctx.key))

    agent = agent_of([asks(call("knows", "c1")), asks(call("knows", "c1")), "x"], tools=[knows])
    async with AsyncConversation(home.agent(agent), store=home.store, workspace=tmp_path) as conversation:
        await conversation.run("go")
        (first, second) = seen
        assert first[:3] == second[:3] == ("c1", tmp_path, False)
        assert first[3] != second[3], "an id that a model used twice names two calls in the world"


async def test_a_conversation_without_a_folder_gives_its_tools_none(home: Home) -> None:
    seen: list[Any] = []

    @tool
    def knows(ctx: ToolContext) -> None:
        """Looks around."""
        seen.append(ctx.workspace)

    async with AsyncConversation(
        home.agent(agent_of([asks(call("knows")), "x"], tools=[knows])), store=home.store
    ) as conversation:
        await conversation.run("go")
        assert seen == [None]


# State.


@tool
def count(ctx: ToolContext) -> int:
    """Counts its calls."""
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    return int(ctx.state["count"])


@both
async def test_state_is_seen_by_the_next_call_and_becomes_true_with_the_commit(home: Home) -> None:
    during: list[Any] = []

    @tool
    async def committed() -> str:
        """Reads what is committed, from outside."""
        async with await AsyncConversation.open(conversation.id, bind=False, store=home.store) as reader:
            during.append(await reader.agent_state())
        return "read"

    agent = agent_of(
        [asks(call("count")), asks(call("count")), asks(call("committed")), "x", asks(call("count")), "y"],
        tools=[count, committed],
    )
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert [made.result for made in turn.calls] == ["1", "2", "read"]
        assert during == [{}], "nobody else sees it before the commit"
        assert await conversation.agent_state() == {"count": 2}
        assert (await conversation.run("again")).calls[0].result == "3"
        assert await conversation.agent_state() == {"count": 3}


async def test_state_of_a_turn_that_fails_is_gone_and_a_resumed_one_has_it_again(home: Home) -> None:
    asked = asks(call("count"))
    answers: Answers = [asked, OVERLOADED, asked, OVERLOADED, asked, "done"]
    async with AsyncConversation(home.agent(agent_of(answers, tools=[count])), store=home.store) as conversation:
        await failing(conversation.run("go"))
        assert await conversation.agent_state() == {}
        retried = await failing(conversation.retry())
        assert [made.result for made in retried.calls] == ["1"], "a retry begins with the state of the last good turn"
        turn = await conversation.resume()
        assert [made.result for made in turn.calls] == ["1", "2"], "and a resumed one goes on with its own"
        assert await conversation.agent_state() == {"count": 2}


async def test_what_a_failing_tool_set_in_the_state_is_dropped(home: Home) -> None:
    @tool
    def sets(ctx: ToolContext) -> None:
        """Sets something, and fails."""
        ctx.state["half"] = "done"
        raise ValueError("no")

    async with AsyncConversation(
        home.agent(agent_of([asks(call("sets")), "x"], tools=[sets])), store=home.store
    ) as conversation:
        turn = await conversation.run("go")
        assert await conversation.agent_state() == {}
        assert "state_change" not in kinds(turn.events)


async def test_state_that_a_tool_changes_in_place_counts_and_is_dropped_if_the_call_fails(home: Home) -> None:
    @tool
    def note(ctx: ToolContext, fact: str) -> int:
        """Notes a fact. It fails for the fact "no"."""
        ctx.state.setdefault("notes", {"facts": []})["facts"].append(fact)
        if fact == "no":
            raise ValueError("no")
        return len(ctx.state["notes"]["facts"])

    answers: Answers = [*(asks(call("note", fact=fact)) for fact in ("one", "no", "two")), "x"]
    async with AsyncConversation(home.agent(agent_of(answers, tools=[note])), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert [made.status for made in turn.calls] == ["done", "failed", "done"]
        assert turn.calls[2].result == "2"
        assert await conversation.agent_state() == {"notes": {"facts": ["one", "two"]}}


async def test_of_parallel_calls_that_change_the_same_value_in_place_one_is_told_to_try_again(home: Home) -> None:
    meet = threading.Barrier(2)

    @tool
    def note(ctx: ToolContext, fact: str) -> None:
        """Notes a fact, while the other does the same."""
        ctx.state.setdefault("facts", []).append(fact)
        meet.wait(PATIENCE)

    answers: Answers = [asks(call("note", "a", fact="a"), call("note", "b", fact="b")), "x"]
    async with AsyncConversation(home.agent(agent_of(answers, tools=[note])), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert sorted(made.status for made in turn.calls) == ["done", "failed"]
        (kept,) = (made.id for made in turn.calls if made.status == "done")
        assert await conversation.agent_state() == {"facts": [kept]}


async def test_what_a_tool_changed_in_place_to_what_json_cannot_say_fails_the_call_by_its_key(home: Home) -> None:
    @tool
    def sets(ctx: ToolContext) -> None:
        """Puts nonsense into a list."""
        ctx.state.setdefault("facts", []).append(object())

    agent = agent_of([asks(call("sets")), "x"], tools=[sets])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert turn.calls[0].status == "failed"
        assert "the value of 'facts' has no JSON form" in (turn.calls[0].result or "")
        assert await conversation.agent_state() == {}


async def test_parallel_calls_that_set_different_keys_both_count(home: Home) -> None:
    meet = threading.Barrier(2)

    @tool
    def sets(ctx: ToolContext, key: str) -> None:
        """Sets a key while the other sets another."""
        meet.wait(PATIENCE)
        ctx.state[key] = True
        meet.wait(PATIENCE)

    answers: Answers = [asks(call("sets", key="a"), call("sets", key="b")), "x"]
    async with AsyncConversation(home.agent(agent_of(answers, tools=[sets])), store=home.store) as conversation:
        await conversation.run("go")
        assert await conversation.agent_state() == {"a": True, "b": True}


async def test_of_parallel_calls_that_change_what_both_have_read_one_is_told_to_try_again(home: Home) -> None:
    meet = threading.Barrier(2)

    @tool
    def add(ctx: ToolContext) -> int:
        """Counts one more, while the other does the same."""
        count = ctx.state.get("count", 0) + 1
        if not ctx.state.get("met"):
            meet.wait(PATIENCE)
        ctx.state["count"] = count
        return int(count)

    @tool
    def met(ctx: ToolContext) -> None:
        """Says that nobody is to wait any more."""
        ctx.state["met"] = True

    answers: Answers = [asks(call("add", "a"), call("add", "b")), asks(call("met")), asks(call("add", "c")), "x"]
    async with AsyncConversation(home.agent(agent_of(answers, tools=[add, met])), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert sorted(made.status for made in turn.calls[:2]) == ["done", "failed"]
        (refused,) = (made for made in turn.calls[:2] if made.status == "failed")
        assert "'count'" in (refused.result or "")
        assert turn.calls[3].result == "2", "no count was lost: the one that was refused can be made again"
        assert (await conversation.agent_state())["count"] == 2


# Progress.


@both
@pytest.mark.parametrize("where", ["thread", "async", "thread of its own"])
async def test_a_tool_tells_how_far_it_is_from_wherever_it_runs(home: Home, where: str) -> None:
    @tool
    def works(ctx: ToolContext) -> str:
        """Works."""
        if where == "thread":
            ctx.progress("half")
        else:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                pool.submit(ctx.progress, "half").result(PATIENCE)
        return "ok"

    @tool
    async def works_async(ctx: ToolContext) -> str:
        """Works."""
        ctx.progress("half")
        await checkpoint()
        return "ok"

    watcher = Watcher()
    threads: set[int] = set()
    name = "works_async" if where == "async" else "works"
    agent = agent_of([asks(call(name, "c1")), "x"], tools=[works, works_async])

    def notes_the_thread(_: Update) -> None:
        threads.add(threading.get_ident())

    async with AsyncConversation(
        home.agent(agent), store=home.store, callbacks=[watcher, notes_the_thread]
    ) as conversation:
        turn = await conversation.run("go")
        assert turn.calls[0].result == "ok"
        assert watcher.of(CallProgress) == [CallProgress("c1", name, "half")]
        names = watcher.names
        assert names.index("CallStarted") < names.index("CallProgress") < names.index("CallEnded")
        assert threads == {threading.get_ident()}, "everything is told in the thread of the loop"
        assert "call_progress" not in kinds(turn.events), "and nothing of it is kept"


async def test_a_thread_that_was_left_behind_tells_nothing_any_more(home: Home) -> None:
    release, ended = threading.Event(), threading.Event()
    after: list[str] = []

    @tool(timeout=0.01)
    def slow(ctx: ToolContext) -> None:
        """Does not end in time."""
        try:
            release.wait(PATIENCE)
            try:
                ctx.progress("too late")
                ctx.state["late"] = True
            except BaseException as error:
                after.append(type(error).__name__)
                raise
        finally:
            ended.set()

    watcher = Watcher()
    agent = agent_of([asks(call("slow")), "x", "y"], tools=[slow])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        await conversation.run("go")
        told = len(watcher.told)
        release.set()
        await anyio.to_thread.run_sync(ended.wait, PATIENCE)
        for _ in range(3):
            await checkpoint()
        assert len(watcher.told) == told, "the turn was the last that was told"
        assert await conversation.agent_state() == {}
        assert (await conversation.run("more")).text == "y"


# A call always comes to a result that the model is told, and the turn goes on.


@tool(timeout=0.01)
async def never() -> None:
    """Never ends."""
    await anyio.sleep_forever()


@tool(output_limit=100)
def much() -> str:
    """Says a lot."""
    return "x" * 1000


@tool
def raises() -> None:
    """Raises."""
    raise LookupError("no such thing")


@tool
def typed(n: int) -> None:
    """Wants a number."""


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (call("never"), "failed", "did not end within 0.01 s"),
        (call("much"), "done", "characters left out"),
        (call("raises"), "failed", "LookupError: no such thing"),
        (call("typed", n="many"), "failed", "do not fit"),
        (call("unknown"), "failed", "There is no tool 'unknown'"),
    ],
    ids=["timeout", "output limit", "raises", "bad arguments", "unknown tool"],
)
async def test_whatever_becomes_of_a_call_the_model_is_told_and_goes_on(
    home: Home, asked: Any, status: str, words: str
) -> None:
    shown: list[str] = []

    def answer(heard: Heard) -> Reply:
        shown.extend(message["content"] for message in messages_of(heard) if message["role"] == "tool")
        return Reply("I see.") if heard.number else asks(asked)

    agent = agent_of(answer, tools=[never, much, raises, typed])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert (turn.outcome, turn.text) == ("committed", "I see.")
        (made,) = turn.calls
        assert made.status == status
        assert words in (made.result or "")
        assert len(shown) == 1
        assert words in shown[0]


async def test_arguments_are_kept_as_the_model_wrote_them(home: Home) -> None:
    written = '{ "n" : 1.0e0,"n":2 '
    agent = agent_of([asks(ScriptedCall("typed", written)), "x"], tools=[typed])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert turn.calls[0].arguments == written


async def test_a_tool_that_runs_its_own_conversation_of_the_same_store_is_fine(home: Home) -> None:
    inner = agent_of(["from inside"])

    @tool
    async def asks_another() -> str:
        """Asks somebody else."""
        async with AsyncConversation(home.agent(inner), store=home.store) as other:
            return (await other.run("hello")).text

    agent = agent_of([asks(call("asks_another")), "x"], tools=[asks_another])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        assert (await conversation.run("go")).calls[0].result == "from inside"


# Cancelling while tools run.


@both
async def test_cancelling_a_turn_tells_its_tools_and_what_they_may_have_done_is_unknown(home: Home) -> None:
    started, begun, release, seen = Signal(), threading.Event(), threading.Event(), threading.Event()
    cancelled: list[str] = []

    @tool
    def plain(ctx: ToolContext) -> None:
        """Looks now and then whether somebody asked to stop."""
        begun.set()
        while not ctx.cancelled and not release.wait(0.005):
            pass
        if ctx.cancelled:
            cancelled.append("plain")
        seen.set()

    @tool
    async def later() -> None:
        """Is cancelled."""
        started.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append("async")
            raise

    @tool
    async def quick() -> str:
        """Ends at once."""
        return "quick"

    agent = agent_of(
        [asks(call("plain", "p"), call("later", "l"), call("quick", "q")), "never"], tools=[plain, later, quick]
    )
    watcher = Watcher()
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:

        async def run() -> None:
            with pytest.raises(TurnCancelled, match=r"unknown: plain, later"):
                await conversation.run("go")

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await started.wait()
                await watcher.until(CallEnded)
                await anyio.to_thread.run_sync(begun.wait, PATIENCE)
                turn = await conversation.cancel()
            await anyio.to_thread.run_sync(seen.wait, PATIENCE)
        finally:
            release.set()
        assert sorted(cancelled) == ["async", "plain"]
        assert {made.id: made.status for made in turn.calls} == {"p": "unknown", "l": "unknown", "q": "done"}
        assert await conversation.events() == []


# Going on after a failure.


async def test_a_turn_that_failed_at_step_31_goes_on_there_and_runs_no_finished_tool_again(home: Home) -> None:
    ran: list[int] = []
    sent: list[Any] = []

    @tool
    def work(n: int) -> str:
        """Works."""
        ran.append(n)
        return f"did {n}"

    def answer(heard: Heard) -> Reply:
        sent.append(heard.body)
        if heard.number < 30:
            return asks(call("work", f"c{heard.number}", n=heard.number))
        return OVERLOADED if heard.number == 30 else Reply("All done.")

    async with AsyncConversation(home.agent(agent_of(answer, tools=[work])), store=home.store) as conversation:
        failed = await failing(conversation.run("work"))
        assert len(failed.calls) == 30
        assert failed.usage.calls == 31
        turn = await conversation.resume()
        assert (turn.id, turn.outcome, turn.text) == (failed.id, "committed", "All done.")
        assert ran == list(range(30))
        assert sent[31] == sent[30], "the step that failed is asked again, exactly"
        assert turn.usage.calls == 32, "each call that was paid for is counted, once"
        assert (await conversation.stats()).spent == turn.usage
        assert [result.call_id for result in results(await conversation.events())] == [f"c{n}" for n in range(30)]
        assert [one.outcome for one in (await conversation.turns()).items] == ["committed"]


async def test_a_turn_can_fail_and_go_on_any_number_of_times(home: Home) -> None:
    asked = asks(call("count"))
    answers: Answers = [asked, OVERLOADED, OVERLOADED, asked, OVERLOADED, "done"]
    async with AsyncConversation(home.agent(agent_of(answers, tools=[count])), store=home.store) as conversation:
        first = await failing(conversation.run("go"))
        for _ in range(2):
            assert (await failing(conversation.resume())).id == first.id
        turn = await conversation.resume()
        assert (turn.text, [made.result for made in turn.calls]) == ("done", ["1", "2"])
        assert said(turn.events).count(("user", "go")) == 1


async def interrupted(conversation: AsyncConversation, started: Signal, message: str = "go") -> None:
    """Runs a turn and cancels it when its tool has started."""

    async def run() -> None:
        with pytest.raises(TurnCancelled):
            await conversation.run(message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(PATIENCE):
            await started.wait()
        await conversation.cancel()


@pytest.mark.parametrize("how", ["unknown", "repeatable", "rerun"])
async def test_a_call_that_was_started_and_never_answered_is_run_again_only_if_somebody_says_so(
    home: Home, how: str
) -> None:
    started = Signal()
    ran: list[Any] = []
    shown: list[str] = []

    @tool(repeatable=how == "repeatable")
    async def pay(ctx: ToolContext) -> str:
        """Pays."""
        ran.append((ctx.call_id, ctx.key))
        if len(ran) == 1:
            started.set()
            await anyio.sleep_forever()
        return "paid"

    def answer(heard: Heard) -> Reply:
        shown.extend(message["content"] for message in messages_of(heard) if message["role"] == "tool")
        return asks(call("pay", "c1")) if heard.number == 0 else Reply("ok")

    async with AsyncConversation(home.agent(agent_of(answer, tools=[pay])), store=home.store) as conversation:
        await interrupted(conversation, started)
        turn = await conversation.resume(rerun=["c1"] if how == "rerun" else ())
        (made,) = turn.calls
        if how == "unknown":
            assert len(ran) == 1
            assert (made.status, made.result) == ("unknown", MAY_HAVE_RUN)
            assert len(shown) == 1
            assert MAY_HAVE_RUN in shown[0], "the model is told"
        else:
            assert ran == [ran[0]] * 2, "with the same id and key, so that the world can tell"
            assert (made.status, made.result) == ("done", "paid")


async def test_of_two_parallel_calls_the_finished_one_keeps_its_result(home: Home) -> None:
    started = Signal()
    ran: list[str] = []

    @tool
    async def quick() -> str:
        """Ends."""
        ran.append("quick")
        return "quick"

    @tool
    async def slow() -> str:
        """Does not end."""
        ran.append("slow")
        await watcher.until(CallEnded)
        started.set()
        await anyio.sleep_forever()
        return "never"

    watcher = Watcher()
    agent = agent_of([asks(call("slow", "s"), call("quick", "q")), "ok"], tools=[quick, slow])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        await interrupted(conversation, started)
        turn = await conversation.resume()
        assert sorted(ran) == ["quick", "slow"]
        assert [(made.id, made.status) for made in turn.calls] == [("s", "unknown"), ("q", "done")]
        assert [result.call_id for result in results(turn.events)] == ["s", "q"]


async def test_a_turn_is_not_resumed_once_the_conversation_has_gone_on(home: Home) -> None:
    async with AsyncConversation(
        home.agent(agent_of([OVERLOADED, "other", "retried"])), store=home.store
    ) as conversation:
        failed = await failing(conversation.run("one"))
        committed = await conversation.run("two")
        events = await conversation.events()
        with pytest.raises(NotResumable):
            await conversation.resume(failed.id)
        with pytest.raises(NotResumable):
            await conversation.resume(committed.id)
        assert await conversation.events() == events
        assert (await conversation.retry(failed.id)).text == "retried"


async def test_a_note_is_a_step_forward_too_and_a_turn_before_it_is_not_resumed(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["first", OVERLOADED])), store=home.store) as conversation:
        await conversation.run("one")
        failed = await failing(conversation.run("two"))
        await conversation.update_state({"a": 1})
        with pytest.raises(NotResumable):
            await conversation.resume(failed.id)


async def test_a_turn_that_runs_is_not_resumed_retried_or_discarded(home: Home) -> None:
    started = Signal()

    @tool
    async def waits() -> None:
        """Waits."""
        started.set()
        await anyio.sleep_forever()

    agent, watcher = agent_of([asks(call("waits"))], tools=[waits]), Watcher()
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        running = asyncio.create_task(conversation.run("go"))
        await started.wait()
        await watcher.until(TurnStarted)  # a server may run the tool before its client has heard of the turn
        for act in (conversation.resume, conversation.retry, conversation.discard):
            with pytest.raises(Busy):
                await act()
        assert (await conversation.cancel()).outcome == "cancelled"
        with pytest.raises(TurnCancelled):
            await running


async def test_a_tool_cannot_set_what_has_no_json_form_and_says_so_to_the_model(home: Home) -> None:
    @tool
    def sets(ctx: ToolContext) -> None:
        """Sets nonsense."""
        ctx.state["x"] = object()

    async with AsyncConversation(
        home.agent(agent_of([asks(call("sets")), "x"], tools=[sets])), store=home.store
    ) as conversation:
        turn = await conversation.run("go")
        assert NotWhole.__name__ in (turn.calls[0].result or "")


# In another process, after a kill.


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("how", ["unknown", "repeatable", "rerun", "discard", "retry", "supersede"])
def test_a_turn_whose_process_was_killed_goes_on_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    waits = "wait_again" if how == "repeatable" else "wait"
    asked = shared.steps([("write", {"line": "first"})], [("write", {"line": "second"})], [(waits, {})])
    process = start(store, "killed", "run", asked, workspace=tmp_path)
    try:
        assert process.stdout.readline() == "waits\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)

    with Conversation.open("killed", store=store) as conversation:
        assert conversation.status() == "interrupted"
        (open_turn,) = conversation.turns().items
        assert open_turn.outcome == "interrupted"
        ran = shared.logged(tmp_path)
        assert ran[:2] == ["first", "second"]
        match how:
            case "discard":
                assert conversation.discard().outcome == "cancelled"
                assert conversation.run("hello").text == "Done: "
            case "supersede":
                assert conversation.run("hello", supersede=True).text == "Done: "
                assert [turn.outcome for turn in conversation.turns().items] == ["cancelled", "committed"]
            case "retry":
                monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
                assert conversation.retry().retry_of == open_turn.id
                assert shared.logged(tmp_path).count("first") == 2, "a retry begins anew"
            case "unknown":
                turn = conversation.resume()
                assert [(made.tool, made.status) for made in turn.calls] == [
                    ("write", "done"),
                    ("write", "done"),
                    ("wait", "unknown"),
                ]
                assert shared.logged(tmp_path) == ran, "nothing was run again"
                assert MAY_HAVE_RUN in turn.text
            case "repeatable":
                turn = conversation.resume()
                assert turn.calls[2].result == "ran"
                again = [line for line in shared.logged(tmp_path) if line.startswith("waits again")]
                assert len(again) == 2
                assert again[0] == again[1], "the call has the same id and key in the other process"
                assert shared.logged(tmp_path).count("first") == 1
            case "rerun":
                monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
                turn = conversation.resume(rerun=[open_turn.calls[2].id])
                assert turn.calls[2].status == "done"
                assert shared.logged(tmp_path).count("waits") == 2
                assert shared.logged(tmp_path).count("first") == 1
        assert conversation.status() == "idle"
        assert conversation.verify().ok


def test_an_agent_in_these_tests_is_found_again_by_the_import_paths_of_its_tools() -> None:
    """The ground under the tests with another process."""
    assert all(one.path for one in shared.agent().tools)
    assert isinstance(shared.agent(), Agent)

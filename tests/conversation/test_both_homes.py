"""A conversation is the same one wherever it is looked at from: in its store, on its server, or in both at once.

Most other files here run in both homes too, by the fixture ``home``. Here are the tests that compare the two.
"""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import (
    PATIENCE,
    Answers,
    Signal,
    Watcher,
    agent_of,
    asks,
    call,
    kinds,
    script_of,
    served,
)
from tests.conversation.support.homes import Home, LocalHome, RemoteHome, home_of

from forkpoint import Agent, AsyncConversation, Conversation, Limits, TurnCancelled, TurnFailed, tool
from forkpoint.conversation import Turn, TurnStarted
from forkpoint.errors import BadAgent, ForkpointError, NoSuchTurn, NotFound, ServerError
from forkpoint.llm import TextPiece, own_identity
from forkpoint.testing import Fault, ModelServer, Reply

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo")
HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))
OVERLOADED = Reply("never heard", fault=Fault("overloaded"))
ROOT = Path(__file__).parents[2]


@dataclass
class Verdict:
    verdict: str


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is fine"


@pytest.fixture
def server(tmp_path: Path) -> Any:
    """A server; its file can be opened as a store beside it."""
    with home_of("remote", tmp_path) as home:
        yield home


async def everything(conversation: AsyncConversation) -> tuple[Any, ...]:
    """All that callers can read of a conversation."""
    return (
        await conversation.info(),
        await conversation.events(),
        await conversation.turns(),
        await conversation.stats(),
        await conversation.cache(),
        await conversation.agent_state(),
        await conversation.tree(),
        await conversation.verify(),
    )


# Events.


async def test_what_is_told_while_a_turn_runs_is_never_among_the_events(home: Home) -> None:
    watcher = Watcher()
    answers = [asks(call("look", at="disk"), text="Let me see."), Reply("It is fine.", piece=2, reasoning="Well.")]
    async with AsyncConversation(
        home.agent(agent_of(answers, tools=[look])), store=home.store, callbacks=[watcher]
    ) as conversation:
        turn = await conversation.run("And the disk?")
        events = await conversation.events()
        assert len(watcher.told) > 10, "there were deltas"
        assert list(turn.events) == events
        assert sorted(kinds(events)) == [
            "assistant_message",
            "assistant_message",
            "manifest_changed",
            "model_called",
            "model_called",
            "reasoning",
            "tool_call",
            "tool_result",
            "user_message",
        ]
        assert len(events) == (await conversation.info()).events == (await conversation.stats()).events


async def test_the_number_of_events_is_that_of_the_source_at_the_fork_point(home: Home) -> None:
    async with AsyncConversation(home.agent(ECHO), store=home.store) as source:
        lengths = []
        turns = []
        for word in ("one", "two", "three"):
            turns.append(await source.run(word))
            lengths.append(len(await source.events()))
        for turn, length in zip(turns, lengths, strict=True):
            async with await source.fork(at=turn) as fork:
                assert len(await fork.events()) == length
                assert await fork.events() == (await source.events())[:length]
                assert (await fork.info()).inherited_events == length
        async with await source.fork() as fork:
            await fork.run("four")
            assert len(await source.events()) == lengths[-1], "the source is as it was"
            assert len(await fork.events()) > lengths[-1]


async def test_the_same_run_gives_the_same_events_in_both_homes(tmp_path: Path) -> None:
    seen = []
    for kind in ("local", "remote"):
        (folder := tmp_path / kind).mkdir()
        seeing = asks(call("look", "c1", at="disk"), text="Let me see.")
        answers: Answers = [seeing, "It is fine.", OVERLOADED, "Again."]
        with home_of(kind, folder) as home:
            agent = agent_of(answers, tools=[look], name="looker", instructions="Be brief.")
            async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
                await conversation.run("And the disk?")
                with pytest.raises(TurnFailed) as failed:
                    await conversation.run("more")
                await conversation.retry()
                events = await conversation.events()
                seen.append(
                    (
                        [(event.id.ordinal, event.kind, event.envelope.role) for event in events],
                        [turn.outcome for turn in (await conversation.turns()).items],
                        [turn.usage for turn in (await conversation.turns()).items],
                        await conversation.stats(),
                        str(failed.value).replace(failed.value.id, "ID").replace(agent.llm.model, "MODEL"),
                        str(failed.value.cause).replace(agent.llm.model, "MODEL"),
                        type(failed.value.cause),
                    )
                )
    assert seen[0] == seen[1]


# One file, seen through its server and without it.


async def test_what_is_made_on_a_server_is_the_same_when_its_file_is_opened(server: RemoteHome) -> None:
    with ModelServer(script_of(lambda heard: Reply(f"You said: {heard.text}"))) as model:
        agent = Agent(served(model), tools=[look], name="looker")
        async with AsyncConversation(server.agent(agent), store=server.store, title="The source") as source:
            first = await source.run("one")
            await source.update_state({"a": [1, None]})
            await source.run("two")
            made = {
                "source": source,
                "fork": await source.fork(title="The fork", tags={"kind": "debug"}),
                "warm": await source.fork(cache="inherit", reset_metrics=False),
                "earlier": await source.fork(at=first),
                "other": await source.fork(agent=ECHO, cache="inherit"),
            }
            aside = await made["fork"].rewind(at=first)
            assert aside is not None
            made["aside"] = aside
            for name, there in made.items():
                async with await AsyncConversation.open(there.id, bind=False, store=server.file) as here:
                    assert await everything(here) == await everything(there), name
            async with await AsyncConversation.open(made["warm"].id, agent=agent, store=server.file) as warm:
                await warm.run("from its file")
                assert model.last.key == own_identity(source.id).key
            await made["warm"].run("from its server")
            assert model.last.key == own_identity(source.id).key
            for conversation in made.values():
                if conversation is not source:
                    await conversation.close()


async def test_what_is_made_in_a_file_is_the_same_on_a_server_of_it(server: RemoteHome) -> None:
    local = LocalHome(server.file.parent)
    async with AsyncConversation(ECHO, store=local.store, tags={"a": "b"}) as source:
        first = await source.run("one")
        await source.run("two")
        fork = await source.fork(cache="inherit", title="The fork")
        aside = await source.rewind(at=first)
        assert aside is not None
        for here in (source, fork, aside):
            async with await AsyncConversation.open(here.id, store=server.store) as there:
                assert await everything(there) == await everything(here)
                turn = await there.run("and on")
                assert turn.text == "You said: and on"
                assert await here.turn(turn.id) == turn
                assert await everything(there) == await everything(here)
        await fork.close()
        await aside.close()


# Two who stand for one conversation.


async def test_two_objects_stand_for_one_conversation(home: Home) -> None:
    async with (
        AsyncConversation(home.agent(ECHO), conversation_id="shared", store=home.store) as one,
        AsyncConversation(home.agent(ECHO), store=home.store) as keeps_it_open,
    ):
        await keeps_it_open.run("x")
        await one.run("one")
        async with await AsyncConversation.open("shared", store=home.store) as other:
            other.send_message("queued")
            assert one.pending == (), "what was sent and not run lives in one object"
            await other.run()
            assert await one.events() == await other.events()
            await one.rewind(before=(await one.turns()).items[-1])
            assert len((await other.turns()).items) == 1
            await one.delete()
            with pytest.raises(NotFound):
                await other.events()


async def test_another_object_sees_a_turn_that_runs_and_can_cancel_it(home: Home) -> None:
    watcher = Watcher()
    heard: list[TurnCancelled] = []
    async with AsyncConversation(
        home.agent(agent_of(["first", HANGS, "again"])), store=home.store, callbacks=[watcher]
    ) as one:

        async def run() -> None:
            with pytest.raises(TurnCancelled) as cancelled:
                await one.run("two")
            heard.append(cancelled.value)

        await one.run("one")
        before = await one.events()
        watcher.told.clear()
        async with await AsyncConversation.open(one.id, store=home.store) as other:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await watcher.until(TextPiece)
                assert (await other.info()).open_turn == watcher.of(TurnStarted)[0].id
                assert await other.events() == before, "what is not committed is no event"
                turn = await other.cancel()
            assert turn.outcome == "cancelled"
            assert heard[0].turn == turn == await other.turn(turn.id)
            assert (heard[0].id, heard[0].cause) == (turn.id, None)
            with pytest.raises(NoSuchTurn):
                await other.cancel()
            assert (await other.retry()).text == "again"


# What is sent as data, and what is not.


async def test_an_agent_without_functions_is_sent_whole(server: RemoteHome) -> None:
    agent = Agent(
        agent_of(['{"verdict":"fine"}'] * 2).llm,
        instructions="You judge builds.",
        output=Verdict,
        limits=Limits(steps=3, tokens=5000, dollars=1.5, seconds=60),
        approval="always",
        name="judge",
    )
    async with AsyncConversation(agent, store=server.store) as conversation:
        turn = await conversation.run("And?")
        assert turn.output == Verdict("fine")
        assert conversation.agent is agent
        assert (await conversation.info()).agent == "judge"
        shown = await conversation.request("And now?")
        assert "You judge builds." in str(shown.body)
        fork = await conversation.fork(agent=Agent(agent.llm, instructions="Be long.", output=Verdict))
        assert (await fork.run("And?")).output == Verdict("fine")
        await fork.close()
        async with await AsyncConversation.open(conversation.id, store=server.store) as unknown:
            assert (await unknown.turn(turn.id)).output is None, "a type is never imported because a server says so"
        async with await AsyncConversation.open(conversation.id, agent=agent, store=server.store) as known:
            assert (await known.turn(turn.id)).output == Verdict("fine")


@pytest.mark.parametrize("policy", ["never", "risky", "always"])
async def test_an_approval_policy_is_the_same_in_both_homes(home: Home, policy: Any) -> None:
    @tool(risky=True)
    def restart() -> str:
        """Restarts."""
        return "restarted"

    answers: Answers = [asks(call("look", "free", at="disk"), call("restart", "risky")), "Done."]
    agent = agent_of(answers, tools=[look, restart], approval=policy)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        waiting = {"never": [], "risky": ["risky"], "always": ["free", "risky"]}[policy]
        assert [one.id for one in turn.waiting] == waiting
        if waiting:
            turn = await conversation.approve(*turn.waiting, by="ann")
        assert (turn.outcome, [one.result for one in turn.calls]) == ("committed", ["disk is fine", "restarted"])


async def test_functions_are_refused_before_anything_is_sent(server: RemoteHome) -> None:
    with_tools = agent_of(["never"], tools=[look])
    with_policy = agent_of(["never"], approval=lambda call: True)
    with pytest.raises(BadAgent, match=r"Python tools \(look\).*name an agent"):
        AsyncConversation(with_tools, store=server.store)
    with pytest.raises(BadAgent, match="a function"):
        AsyncConversation(with_policy, store=server.store)
    with pytest.raises(BadAgent, match="Python tools"):
        Conversation(with_tools, store=server.store)
    with pytest.raises(BadAgent, match="Python tools"):
        await AsyncConversation.open("new", create=with_tools, store=server.store)
    async with AsyncConversation(ECHO, store=server.store) as conversation:
        await conversation.run("one")
        before = await everything(conversation)
        with pytest.raises(BadAgent, match="Python tools"):
            await conversation.fork(agent=with_tools)
        with pytest.raises(BadAgent, match="Python tools"):
            await conversation.change_agent(with_tools)
        with pytest.raises(BadAgent, match="not offered"):
            await conversation.change_agent("openai/gpt-5.6")
        with pytest.raises(NotFound, match="nobody"):
            await conversation.fork(agent="nobody")
        assert await everything(conversation) == before
        assert conversation.agent is ECHO


async def test_what_nobody_foresaw_has_no_text_outside_of_the_server(server: RemoteHome) -> None:
    def breaks(heard: Any) -> Reply:
        raise ZeroDivisionError("a secret of the server")

    async with AsyncConversation(server.agent(agent_of(breaks)), store=server.store) as conversation:
        with pytest.raises(ForkpointError) as raised:
            await conversation.run("go")
        cause = raised.value.cause if isinstance(raised.value, TurnFailed) else raised.value
        assert "secret" not in f"{raised.value}{cause}{raised.value!r}"
        assert cause is None or isinstance(cause, ServerError)
        tries = (await conversation.turns()).items
        assert "secret" not in repr(tries)
        assert await conversation.events() == []


# Without await, and Ctrl-C.

WAITS = """
    import sys
    from forkpoint import Conversation
    from forkpoint.llm import TextPiece

    def told(update):
        if isinstance(update, TextPiece):
            print("ready", flush=True)

    with Conversation.open("theirs", create=sys.argv[2], store=sys.argv[1], callbacks=[told]) as conversation:
        try:
            conversation.run("hello")
        except KeyboardInterrupt:
            print("interrupted", [turn.outcome for turn in conversation.turns().items], conversation.status())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_ctrl_c_cancels_a_turn_on_a_server_and_waits_for_its_outcome(server: RemoteHome) -> None:
    name = server.agent(agent_of([HANGS], approval=lambda call: False))
    assert isinstance(name, str)
    command = [sys.executable, "-c", textwrap.dedent(WAITS), server.store, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            os.kill(process.pid, signal.SIGINT)
            told, wrong = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, wrong, told) == (0, "", "interrupted ['cancelled'] idle\n")
    with Conversation.open("theirs", bind=False, store=server.file) as conversation:
        assert (conversation.events(), conversation.status()) == ([], "idle")


async def test_a_program_that_goes_away_leaves_its_turn_to_the_server(server: RemoteHome) -> None:
    """A crash is no cancellation: the turn goes on, and whoever comes next has it."""
    started, release = Signal(), Signal()

    @tool
    async def work() -> str:
        """Works."""
        started.set()
        await release.wait()
        return "worked"

    name = server.agent(agent_of([asks(call("work")), "done"], tools=[work]))
    assert isinstance(name, str)
    command = [sys.executable, "-c", textwrap.dedent(WAITS), server.store, name]
    async with await anyio.open_process(command, cwd=ROOT) as process:
        try:
            await started.wait()
        finally:
            with suppress(ProcessLookupError):  # it has ended by itself, and says why
                process.kill()
    async with await AsyncConversation.open("theirs", store=server.store) as conversation:
        turn = (await conversation.turns()).items
        assert await conversation.status() == "running"
        release.set()
        with anyio.fail_after(PATIENCE):
            while await conversation.status() == "running":  # noqa: ASYNC110 - another process would ask so too
                await anyio.sleep(0.01)
        (ended,) = (await conversation.turns()).items
        assert isinstance(ended, Turn)
        assert (ended.outcome, ended.text, ended.id) == ("committed", "done", turn[0].id)

"""`go_on()`: a turn without a message, from the middle of what a model was doing."""

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.conversation.support.agents import PATIENCE, Signal, agent_of, asks, call, kinds, scripted
from tests.conversation.support.homes import Home, LocalHome

from forkpoint import LLM, Agent, AsyncConversation, Conversation, Hook, Limits, Skill, TurnFailed, tool
from forkpoint.conversation import Turn
from forkpoint.errors import Busy, ForkpointError, KeyReused, NotFound, NothingToRun, Stale, TurnOpen
from forkpoint.events import Event, HookRun, SkillActivated, Usage
from forkpoint.llm import TextPiece
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.store import open_store
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script, ScriptedCall

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
ECHO = Agent("scripted/echo")
BROWSE = ToolSchema("browse", "Opens a page.", '{"type":"object","properties":{}}')
SQL = Skill("sql", "Mind the indexes.", files=("*.sql",))


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is full"


@tool(risky=True)
def remove(what: str) -> str:
    """Removes something."""
    return f"{what} is gone"


def looking(*later: Reply | str, **more: Any) -> Agent:
    """An agent that looks once in its first turn, and then says these things, one after the other."""
    replies = [asks(call("look", at="the disk")), *(Reply(one) if isinstance(one, str) else one for one in later)]
    return agent_of(replies, tools=[look, remove], **more)


def first_of(turn: Turn, kind: str) -> Event:
    found = next(event for event in turn.events if event.envelope.kind == kind)
    assert isinstance(found, Event)
    return found


async def halved(home: Home, agent: Agent, **options: Any) -> tuple[AsyncConversation, AsyncConversation, Turn]:
    """A conversation with one turn that has looked, a fork that ends after the tool's result, and that turn."""
    source = AsyncConversation(home.agent(agent), store=home.store)
    turn = await source.run("Why did it fail?")
    return source, await source.fork(at=first_of(turn, "tool_result"), **options), turn


# Where it runs.


async def test_a_fork_into_a_turn_goes_on_from_the_results_that_it_shares(home: Home, places: None) -> None:
    source, fork, turn = await halved(home, looking("It is full.", "Too full."))
    went = await fork.go_on()
    assert (went.text, went.input, went.given, went.go_on, went.partial) == ("Too full.", (), (), True, False)
    assert kinds(went.events) == ["model_called", "assistant_message"]
    assert [(one.id, one.partial, one.text) for one in (await fork.turns()).items] == [
        (turn.id, True, ""),
        (went.id, False, "Too full."),
    ]
    assert (await source.turn(turn.id), (await fork.turn(turn.id)).partial) == (turn, True)
    assert (await fork.turn(turn.id)).events == turn.events[:5]
    assert (await fork.verify()).ok


async def test_a_rewind_into_a_turn_goes_on_in_the_same_conversation(home: Home, places: None) -> None:
    async with AsyncConversation(home.agent(looking("One.", "Two.")), store=home.store) as conversation:
        turn = await conversation.run("Why did it fail?")
        await conversation.rewind(at=first_of(turn, "user_message"))
        went = await conversation.go_on()
        assert (went.text, [one.partial for one in (await conversation.turns()).items]) == ("Two.", [True, False])
        family = (await conversation.stats()).family
        assert family == turn.usage + went.usage
        assert (await conversation.stats()).spent == went.usage, "the message had cost nothing"


async def test_a_turn_that_stopped_at_a_limit_goes_on(home: Home, places: None) -> None:
    agent = looking("At last.", limits=Limits(steps=1, at_limit="stop"))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        assert (await conversation.run("Why?")).stopped == "1 steps"
        assert (await conversation.go_on()).text == "At last."


async def test_notes_behind_the_place_do_not_matter_however_many_there_are(tmp_path: Path, places: None) -> None:
    _, fork, _ = await halved(LocalHome(tmp_path), looking("One.", "Two."))
    for n in range(80):
        await fork.update_state({"n": n})
    assert (await fork.go_on()).text == "Two."
    for n in range(80):
        await fork.update_state({"n": -n})
    with pytest.raises(NothingToRun, match="ends in a finished answer"):
        await fork.go_on()


@pytest.mark.parametrize("where", ["a draft", "empty", "answered", "handed"])
async def test_elsewhere_there_is_nothing_to_run(home: Home, places: None, where: str) -> None:
    agent = agent_of([asks(call("browse", "c1")), "Done."], client_tools=[BROWSE]) if where == "handed" else ECHO
    conversation = AsyncConversation(home.agent(agent), store=home.store)
    match where:
        case "empty":
            turn = await conversation.run("Hello.")
            conversation = await conversation.fork(before=turn)
        case "answered" | "handed":
            await conversation.run("Hello.")
        case _:
            pass
    words = {"handed": "wait for their results", "answered": "ends in a finished answer"}
    with pytest.raises(NothingToRun, match=words.get(where, "nothing was said in it yet")) as refused:
        await conversation.go_on()
    assert refused.value.code == "nothing_to_run"
    async with conversation.go_on_stream() as stream:
        with pytest.raises(NothingToRun):
            await anext(stream)
    if where == "handed":
        assert (await conversation.run(results={"c1": "yes"})).text == "Done."


async def test_pending_messages_wait_for_the_next_turn(home: Home, places: None) -> None:
    _, fork, _ = await halved(home, looking("One.", "Two.", "Three."))
    fork.send_message("And then?")
    assert (await fork.go_on()).input == ()
    assert len(fork.pending) == 1
    assert (await fork.run()).text == "Three."


async def test_updates_are_streamed(home: Home, places: None) -> None:
    _, fork, _ = await halved(home, looking("One.", Reply("Too full.", piece=2)))
    async with fork.go_on_stream() as stream:
        told = [update async for update in stream]
    assert "".join(one.text for one in told if isinstance(one, TextPiece)) == "Too full."
    assert isinstance(told[-1], Turn)
    assert told[-1].go_on


def test_a_program_that_is_not_async_goes_on_too() -> None:
    with Conversation(looking("One.", "Two.", "Three."), store="memory:") as source:
        result = first_of(source.run("Why?"), "tool_result")
        with source.fork(at=result) as fork:
            assert fork.go_on().text == "Two."
        with source.fork(at=result) as fork, fork.go_on_stream() as stream:
            *_, last = stream
            assert isinstance(last, Turn)


# What it costs.


@pytest.mark.parametrize("reset_metrics", [True, False])
async def test_each_token_is_counted_once_and_what_the_part_had_cost_is_inherited(
    home: Home, places: None, reset_metrics: bool
) -> None:
    source, fork, turn = await halved(home, looking("One.", "Two."), reset_metrics=reset_metrics)
    half = turn.steps[0].usage
    assert (await fork.turns()).items[0].usage == Usage(), "it cost the fork nothing"
    went = await fork.go_on()
    stats = await fork.stats()
    assert (stats.inherited, stats.spent) == (half, went.usage)
    assert stats.total == (went.usage if reset_metrics else half + went.usage)
    assert stats.family == (await source.stats()).family == turn.usage + went.usage


async def test_best_of_n_from_one_step_needs_no_message(home: Home, places: None) -> None:
    source, _, turn = await halved(home, looking(*(f"Answer {n}." for n in range(9))))
    place = first_of(turn, "tool_result")
    branches = [await source.fork(at=place, cache="inherit") for _ in range(3)]
    turns: list[Turn] = []

    async def went(branch: AsyncConversation) -> None:
        turns.append(await branch.go_on())

    async with anyio.create_task_group() as group:
        for branch in branches:
            group.start_soon(went, branch)
    assert len({one.text for one in turns}) == 3
    assert (await source.stats()).family == sum((one.usage for one in turns), turn.usage)


# What is sent.

WIRES = ("chat", "responses", "messages")
_MARK = re.compile(rb',"cache_control":\{[^}]*\}')


def llm_at(server: ModelServer, wire: str) -> LLM:
    if wire == "messages":
        return LLM("anthropic/a-model", base_url=server.root)
    return LLM("openai/a-model", api=wire, base_url=server.url)  # type: ignore[arg-type]


def answer(heard: Heard) -> Reply:
    """Looks twice in each turn, and thinks before it speaks."""
    items = msgspec.json.encode(heard.body.get("messages") or heard.body.get("input"))
    seen = items.count(b"is full")
    if seen < 2:
        return Reply(reasoning="Let me see.", calls=(ScriptedCall("look", f'{{"at": "disk {seen}"}}', f"call_{seen}"),))
    return Reply("It is full.", reasoning="That is simple.")


@pytest.mark.parametrize("wire", WIRES)
async def test_the_request_of_a_go_on_is_byte_for_byte_that_of_the_original_step(
    home: Home, places: None, wire: str
) -> None:
    with ModelServer(Script(answer)) as server:
        agent = Agent(llm_at(server, wire), instructions="Be brief.", tools=[look])
        source = AsyncConversation(home.agent(agent), store=home.store)
        turn = await source.run("Why did it fail?")
        original, asked = server.requests, 3
        assert len(original) == asked
        steps = [event for event in turn.events if event.envelope.kind in ("user_message", "tool_result")]
        for step, place in enumerate(steps):
            assert isinstance(place, Event)
            fork = await source.fork(at=place, cache="inherit")
            await fork.go_on()
            first = server.requests[asked]
            asked = len(server.requests)
            assert _MARK.sub(b"", first.body) == _MARK.sub(b"", original[step].body)
            assert first.blocks == original[step].blocks


async def test_the_same_results_are_shown_to_another_model(home: Home, places: None) -> None:
    heard: list[Heard] = []

    def other(one: Heard) -> Reply:
        heard.append(one)
        return Reply("I see it otherwise.")

    agent = looking("One.")
    source = AsyncConversation(home.agent(agent), store=home.store)
    turn = await source.run("Why did it fail?")
    fork = await source.fork(
        at=first_of(turn, "tool_result"), agent=home.agent(Agent(scripted(other), tools=[look, remove]))
    )
    assert (await fork.go_on()).text == "I see it otherwise."
    roles = [message["role"] for message in heard[0].body["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert heard[0].body["messages"][-1]["content"] == "the disk is full"


async def test_skills_and_hooks_that_the_results_call_for_come_before_the_model_is_asked() -> None:
    bodies: list[str] = []

    @tool
    def read(path: str) -> str:
        """Reads."""
        return "select 1"

    def reply(heard: Heard) -> Reply:
        bodies.append(msgspec.json.encode(heard.body["messages"]).decode())
        return asks(call("read", "c1", path="a.sql")) if len(bodies) == 1 else Reply("ok")

    told: list[str] = []

    def after(context: Any) -> str:
        told.append(context.call_id)
        return "Checked."

    agent = agent_of(reply, tools=[read], skills=[SQL], hooks=[Hook("after_tool", function=after)])
    async with AsyncConversation(agent, store="memory:") as source:
        turn = await source.run("look")
        result = first_of(turn, "tool_result")
        fork = await source.fork(at=result)
        went = await fork.go_on()
        assert bodies[2] == bodies[1], "the prompt that the original had"
        assert [type(event.body) for event in went.events][:2] == [HookRun, SkillActivated]
        assert told == ["c1", "c1"]
        later = await source.fork(at=first_of(turn, "skill_activated"))
        went = await later.go_on()
        assert bodies[3] == bodies[1]
        assert (kinds(went.events), told) == (["model_called", "assistant_message"], ["c1", "c1"])


# Keys and revisions.


async def test_a_key_gives_the_same_turn_after_the_commit_too(home: Home, places: None) -> None:
    _, fork, _ = await halved(home, looking("One.", "Two.", "Three."))
    went = await fork.go_on(key="k")
    assert (await fork.go_on(key="k")).id == went.id
    await fork.run("And then?")
    assert (await fork.go_on(key="k")).id == went.id
    with pytest.raises(KeyReused):
        await fork.run("Why?", key="k")


async def test_a_key_of_a_run_or_of_another_manifest_is_refused(home: Home, places: None) -> None:
    _, fork, _ = await halved(home, looking("One.", "Two.", "Three.", "Four."))
    await fork.run("Well?", key="of a run")
    with pytest.raises(KeyReused):
        await fork.go_on(key="of a run")
    _, other, _ = await halved(home, looking("One.", "Two.", "Three."))
    await other.go_on(key="k")
    await other.change_agent(home.agent(Agent("scripted/echo", instructions="Be another.")))
    with pytest.raises(KeyReused):
        await other.go_on(key="k")


async def test_a_go_on_that_runs_is_joined_by_its_key_and_refused_without(home: Home, places: None) -> None:
    begun, may_end = Signal(), Signal()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await may_end.wait()
        return "waited"

    agent = agent_of([asks(call("look", at="x")), "One.", asks(call("wait")), "Two."], tools=[look, wait])
    _, fork, _ = await halved(home, agent)
    turns: list[str] = []

    async def went() -> None:
        turns.append((await fork.go_on(key="k")).id)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(went)
            await begun.wait()
            with pytest.raises(Busy):
                await fork.go_on()
            group.start_soon(went)
            await anyio.lowlevel.checkpoint()
            may_end.set()
    assert len(set(turns)) == 1


async def test_a_go_on_decided_on_an_old_revision_is_refused(home: Home, places: None) -> None:
    _, fork, _ = await halved(home, looking("One.", "Two."))
    revision = (await fork.info()).revision
    await fork.update_state({"a": 1})
    with pytest.raises(Stale):
        await fork.go_on(if_revision=revision)
    assert (await fork.go_on(if_revision=revision + 1)).text == "Two."


# When it does not commit.


async def test_a_retry_of_a_failed_go_on_goes_on_again_and_has_its_key(home: Home, places: None) -> None:
    overloaded = Reply("x", fault=Fault("overloaded"))
    _, fork, _ = await halved(home, looking("One.", overloaded, "Two.", "Three."))
    with pytest.raises(TurnFailed):
        await fork.go_on(key="k")
    with pytest.raises(NothingToRun):
        await fork.run()
    again = await fork.retry()
    assert (again.text, again.go_on, again.input) == ("Two.", True, ())
    assert again.retry_of is not None
    assert (await fork.go_on(key="k")).id == again.id


async def test_a_retry_goes_on_from_where_the_path_ends_by_then(home: Home, places: None) -> None:
    overloaded = Reply("x", fault=Fault("overloaded"))
    _, fork, _ = await halved(home, looking("One.", overloaded, "Two."))
    with pytest.raises(TurnFailed) as failed:
        await fork.go_on(key="k")
    await fork.update_state({"a": 1})
    again = await fork.retry(failed.value.id)
    assert again.text == "Two."
    assert (await fork.go_on(key="k")).id == again.id, "the retry has taken over the key"


async def test_a_failed_go_on_is_resumed_after_its_last_finished_step(home: Home, places: None) -> None:
    overloaded = Reply("x", fault=Fault("overloaded"))
    _, fork, _ = await halved(home, looking("One.", asks(call("look", at="the net")), overloaded, "Two."))
    with pytest.raises(TurnFailed):
        await fork.go_on()
    resumed = await fork.resume()
    assert (resumed.text, [one.status for one in resumed.calls]) == ("Two.", ["done"])


async def test_a_go_on_waits_for_an_approval_like_any_turn(home: Home, places: None) -> None:
    asking = asks(call("remove", "c7", what="the log"))
    _, fork, _ = await halved(home, looking("One.", asking, "Two.", approval="risky"))
    waits = await fork.go_on(key="k")
    assert (waits.outcome, [one.id for one in waits.waiting]) == ("awaiting_approval", ["c7"])
    with pytest.raises(TurnOpen):
        await fork.go_on()
    assert (await fork.go_on(key="k")).id == waits.id
    done = await fork.approve()
    assert (done.text, done.go_on, done.calls[0].result) == ("Two.", True, "the log is gone")


def test_a_go_on_whose_process_was_killed_is_resumed_by_its_key(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, signal, sys
            from forkpoint import Agent, Conversation, tool
            from forkpoint.testing import Reply, Script, ScriptedCall

            FIRST = sys.argv[1] == "first"

            @tool
            def look(at: str) -> str:
                "Looks."
                if at == "two" and FIRST:
                    os.kill(os.getpid(), signal.SIGKILL)
                return f"{at} is full"

            def reply(heard):
                seen = sum(one["role"] == "tool" for one in heard.body["messages"])
                if seen == 0 or (seen == 1 and not os.environ.get("ANSWERS")):
                    return Reply(calls=(ScriptedCall("look", '{"at": "%s"}' % ["one", "two"][seen], f"call_{seen}"),))
                return Reply("Done.")

            agent = Agent(Script(reply).register("killed"), tools=[look])
            if FIRST:
                os.environ["ANSWERS"] = "1"
                source = Conversation(agent, conversation_id="source", store=sys.argv[2])
                turn = source.run("Why?")
                del os.environ["ANSWERS"]
                result = next(event for event in turn.events if event.envelope.kind == "tool_result")
                source.fork(at=result, conversation_id="fork").go_on(key="k")
            else:
                with Conversation.open("fork", agent=agent, store=sys.argv[2]) as fork:
                    turn = fork.go_on(key="k")
                    again = fork.go_on(key="k")
                    statuses = [call.status for call in turn.calls]
                    print(turn.text, turn.go_on, statuses, again.id == turn.id, fork.verify().ok)
            """
        )
    )
    command = [sys.executable, str(program)]
    store = f"sqlite:///{tmp_path / 'store.db'}"
    killed = subprocess.run([*command, "first", store], capture_output=True, text=True, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run([*command, "second", store], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split("\n")[0] == "Done. True ['unknown'] True True", done.stderr


# Whose it is.


async def test_another_tenant_finds_nothing_to_go_on_with(home: Home, places: None) -> None:
    _, fork, _ = await halved(home, looking("One.", "Two."))
    async with await open_store(f"sqlite:///{home.file}") as store:
        other = store.within("other")
        with pytest.raises(ForkpointError) as refused:
            await AsyncConversation.open(fork.id, store=other)
        assert isinstance(refused.value, NotFound)


async def test_a_fork_of_a_go_on_and_a_rewind_after_it_count_each_token_once(home: Home, places: None) -> None:
    source, fork, turn = await halved(home, looking("One.", asks(call("look", at="net")), "Two.", "Three.", "Four."))
    went = await fork.go_on()
    place = first_of(went, "tool_result")
    second = await fork.fork(at=place)
    third = await second.go_on()
    aside = await fork.rewind(at=place)
    assert aside is not None
    fourth = await fork.go_on()
    spent = turn.usage + went.usage + third.usage + fourth.usage
    everybody = (source, fork, second, aside)
    assert {(await one.stats()).family for one in everybody} == {spent}
    assert sum([(await one.stats()).spent for one in everybody], Usage()) == spent
    assert [one.partial for one in (await second.turns()).items] == [True, True, False]
    for one in everybody:
        assert (await one.verify()).ok

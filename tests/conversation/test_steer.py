"""A message for a turn that runs: it comes with the next tool results, and no turn ends without having heard it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from tests.conversation.support import other_process
from tests.conversation.support import tools as shared
from tests.conversation.support.agents import (
    PATIENCE,
    Signal,
    Watcher,
    agent_of,
    asks,
    call,
    messages_of,
    results,
    said,
    script_of,
    served,
)
from tests.conversation.support.homes import Home
from tests.conversation.support.other_process import heard

from forkpoint import Agent, AsyncConversation, Conversation, Hook, Limits, Skill, Steered, SubAgents, TurnFailed, tool
from forkpoint.agent.hooks.hook import Block, HookContext
from forkpoint.conversation import Turn, acting_as
from forkpoint.errors import ForkpointError, KeyReused, LimitReached, NoSuchTurn, NotFound, NotWhole
from forkpoint.events import HookRun, Image, Text, TurnStopped, UserMessage
from forkpoint.llm import LLM
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.testing import Fault, Heard, ModelServer, Reply

pytestmark = pytest.mark.anyio

BROWSE = ToolSchema("browse", "Opens a page.", '{"type":"object","properties":{"page":{"type":"string"}}}')
OVERLOADED = Reply("never heard", fault=Fault("overloaded"))
LOOKS = asks(call("look", "c1", at="disk"), text="Let me see.")


@dataclass
class Count:
    disks: int


class Looking:
    """A tool that says when it runs, and goes on when it is told to."""

    def __init__(self) -> None:
        self.runs, self.goes_on = Signal(), Signal()

    @property
    def tool(self) -> Any:
        @tool
        async def look(at: str) -> str:
            """Looks at something."""
            self.runs.set()
            await self.goes_on.wait()
            return f"{at} is fine"

        return look


@asynccontextmanager
async def meanwhile(
    conversation: AsyncConversation, looking: Looking, message: str = "And the disk?"
) -> AsyncIterator[list[Turn]]:
    """Runs a turn beside the block, which begins in the turn's tool. After the block the list has the turn."""
    ended: list[Turn] = []

    async def run() -> None:
        try:
            ended.append(await conversation.run(message))
        except TurnFailed as failed:
            ended.append(cast("Turn", failed.turn))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await looking.runs.wait()
            yield ended
            looking.goes_on.set()


def steps(turn: Turn) -> list[tuple[str, str]]:
    return said(turn.events)


# Delivery.


async def test_messages_come_after_the_results_in_order_and_are_history(home: Home) -> None:
    looking, watcher = Looking(), Watcher()
    shown: list[list[dict[str, Any]]] = []

    def answers(heard: Heard) -> Reply:
        shown.append(messages_of(heard))
        return [LOOKS, Reply("It is fine."), Reply("You are welcome.")][len(shown) - 1]

    agent = home.agent(agent_of(answers, tools=[looking.tool]))
    async with AsyncConversation(agent, store=home.store, callbacks=[watcher]) as conversation:
        async with meanwhile(conversation, looking) as ended:  # noqa: SIM117 - the other one is closed before the turn ends
            async with await AsyncConversation.open(conversation.id, store=home.store, bind=False) as other:
                sent = [
                    await other.steer("Be brief."),
                    await conversation.steer([Text("In English."), Text("Please.")]),
                ]
        (turn,) = ended
        assert {one.turn for one in sent} == {turn.id}
        assert [(one.conversation, one.outcome, one.delivered) for one in sent] == 2 * [
            (turn.conversation, "running", False)
        ]
        assert steps(turn) == [
            ("user", "And the disk?"),
            ("assistant", "Let me see."),
            ("tool", "disk is fine"),
            ("user", "Be brief."),
            ("user", "In English.Please."),
            ("assistant", "It is fine."),
        ]
        assert [one["role"] for one in shown[1]] == ["user", "assistant", "tool", "user", "user"]
        assert shown[1][: len(shown[0])] == shown[0]
        assert [(one.id, one.delivered) for one in turn.steered] == [(one.id, True) for one in sent]
        assert turn.steered[0].message == UserMessage((Text("Be brief."),))
        assert turn.input == (UserMessage((Text("And the disk?"),)),), "what it was asked is what it began with"
        told = watcher.of(Steered)
        assert [(one.id, one.message) for one in told] == [(one.id, one.message) for one in turn.steered]
        assert watcher.names.index("Steered") > watcher.names.index("CallEnded")
        assert await conversation.turn(turn.id) == turn
        assert list(turn.events) == await conversation.events()
        await conversation.run("Thanks.")
        assert shown[2][: len(shown[1])] == shown[1], "the next prompt begins with all that this one had"
        assert (await conversation.verify()).ok


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_the_prompt_goes_on_with_the_message_on_every_wire(tmp_path: Path, wire: Any) -> None:
    looking = Looking()
    with ModelServer(script_of([LOOKS, "It is fine.", "Bye."])) as server:
        llm = LLM("anthropic/test", base_url=server.root) if wire == "messages" else served(server, api=wire)
        async with AsyncConversation(
            Agent(llm, tools=[looking.tool]), store=f"sqlite:///{tmp_path}/a.db"
        ) as conversation:
            async with meanwhile(conversation, looking):
                await conversation.steer("Be brief.")
            await conversation.run("Thanks.")
        first, second, third = server.requests
        for before, after in ((first, second), (second, third)):
            assert after.blocks[: len(before.blocks)] == before.blocks
        body = second.body.decode()
        assert body.index("disk is fine") < body.index("Be brief.")
        assert body.count("Be brief.") == 1
        if wire == "messages":  # roles alternate there: it stands beside the results, after them
            last = second.json["messages"][-1]
            assert [part["type"] for part in last["content"]] == ["tool_result", "text"]


async def test_a_turn_with_its_answer_goes_on_if_a_message_came_before_its_commit(home: Home) -> None:
    with ModelServer(script_of(["Fine.", "Brief: fine."])) as server:
        async with AsyncConversation(home.agent(Agent(served(server))), store=home.store) as conversation:
            ended: list[Turn] = []

            async def run() -> None:
                ended.append(await conversation.run("And the disk?"))

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    with server.holding():
                        tasks.start_soon(run)
                        await server.heard(1)
                        await conversation.steer("Be brief.")
            (turn,) = ended
            assert (turn.outcome, turn.text) == ("committed", "Brief: fine.")
            assert steps(turn) == [
                ("user", "And the disk?"),
                ("assistant", "Fine."),
                ("user", "Be brief."),
                ("assistant", "Brief: fine."),
            ]
            assert server.requests[1].blocks[: len(server.requests[0].blocks)] == server.requests[0].blocks
            assert (turn.usage.calls, (await conversation.stats()).spent.calls) == (2, 2)
            assert (await conversation.verify()).ok


async def test_a_message_has_parts_as_any_other(home: Home) -> None:
    looking, picture = Looking(), Image("image/png", data="aGk=")
    async with AsyncConversation(
        home.agent(agent_of([LOOKS, "I see."], tools=[looking.tool])), store=home.store
    ) as conversation:
        async with meanwhile(conversation, looking) as ended:
            await conversation.steer([Text("Like this:"), picture])
            with pytest.raises(NotWhole):
                await conversation.steer("  ")
        assert ended[0].steered[0].message == UserMessage((Text("Like this:"), picture))


async def test_who_sent_it_is_kept(tmp_path: Path) -> None:
    looking, watcher = Looking(), Watcher()
    agent = agent_of([LOOKS, "Fine."], tools=[looking.tool])
    async with AsyncConversation(agent, store=f"sqlite:///{tmp_path}/a.db", callbacks=[watcher]) as conversation:
        async with meanwhile(conversation, looking) as ended:
            with acting_as("ann"):
                await conversation.steer("Be brief.")
        assert [one.by for one in ended[0].steered] == ["ann"]
        assert [one.by for one in watcher.of(Steered)] == ["ann"]
        records = (await conversation.records()).items
        assert [(one.kind, one.by) for one in records if one.kind in {"steered", "committed"}] == [
            ("steered", "ann"),
            ("committed", None),
        ]


async def test_sent_twice_with_its_key_it_is_delivered_once(home: Home) -> None:
    looking = Looking()
    async with AsyncConversation(
        home.agent(agent_of([LOOKS, "Fine.", "Bye."], tools=[looking.tool])), store=home.store
    ) as conversation:
        async with meanwhile(conversation, looking) as ended:
            sent = await conversation.steer("Be brief.", key="k1")
            assert await conversation.steer("Be brief.", key="k1") == sent
            with pytest.raises(KeyReused):
                await conversation.steer("Be long.", key="k1")
        assert [one.id for one in ended[0].steered] == [sent.id]
        again = await conversation.steer("Be brief.", key="k1")
        assert (again.id, again.turn, again.outcome, again.delivered) == (sent.id, sent.turn, "committed", True)
        with pytest.raises(NoSuchTurn):
            await conversation.steer("Be brief.", key="k2")


# Refusals.


async def test_without_an_open_turn_nothing_is_sent_and_the_error_says_what_to_do(home: Home) -> None:
    async with AsyncConversation(home.agent(Agent("scripted/echo")), store=home.store) as conversation:
        with pytest.raises(NoSuchTurn, match="nothing was run yet"):
            await conversation.steer("Be brief.")
        turn = await conversation.run("Hello.")
        with pytest.raises(NoSuchTurn, match="none is open; send the message as the next turn"):
            await conversation.steer("Be brief.")
        with pytest.raises(NoSuchTurn, match="committed"):
            await conversation.steer("Be brief.", turn=turn)
        with pytest.raises(NotFound):
            await conversation.steer("Be brief.", turn="0197b1f2-7a10-7000-8000-000000000000")
        assert (await conversation.turn(turn.id)).steered == ()


def test_a_program_that_is_not_async_can_steer_from_another_thread(tmp_path: Path) -> None:
    looking = Looking()
    conversation = Conversation(agent_of([LOOKS, "Fine."], tools=[looking.tool]), store=f"sqlite:///{tmp_path}/a.db")
    with conversation, conversation.run_stream("And the disk?") as stream:
        for update in stream:
            if type(update).__name__ == "CallStarted":
                conversation.steer("Be brief.")
                looking.goes_on.set()
        assert stream.turn is not None
        assert [one.delivered for one in stream.turn.steered] == [True]


# Turns that do not commit.


async def test_what_a_failed_turn_did_not_deliver_stays_with_it_and_resuming_delivers_it(home: Home) -> None:
    looking = Looking()
    with ModelServer(script_of([LOOKS, OVERLOADED, "Fine."])) as server:
        agent = Agent(served(server), tools=[looking.tool])
        async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:

                    async def run() -> None:
                        with pytest.raises(TurnFailed, match="What was steered to it is no part of a retry"):
                            await conversation.run("And the disk?")

                    tasks.start_soon(run)
                    await looking.runs.wait()
                    with server.holding():
                        await conversation.steer("Be brief.")
                        looking.goes_on.set()
                        await server.heard(2)
                        await conversation.steer("In English.")
            (failed,) = (await conversation.turns()).items
            assert [one.delivered for one in failed.steered] == [True, False]
            assert failed.steered[1].message == UserMessage((Text("In English."),))
            turn = await conversation.resume()
            assert steps(turn)[-3:] == [("user", "Be brief."), ("user", "In English."), ("assistant", "Fine.")]
            assert [one.delivered for one in turn.steered] == [True, True]
            assert (await conversation.verify()).ok


async def test_a_retry_begins_without_it(home: Home) -> None:
    looking = Looking()
    with ModelServer(script_of([LOOKS, OVERLOADED, "Fine."])) as server:
        async with AsyncConversation(
            home.agent(Agent(served(server), tools=[looking.tool])), store=home.store
        ) as conversation:
            async with meanwhile(conversation, looking) as ended:
                await conversation.steer("Be brief.")
            turn = await conversation.retry()
            assert (steps(turn), turn.steered) == ([("user", "And the disk?"), ("assistant", "Fine.")], ())
            first, _, again = server.requests
            assert again.blocks == first.blocks, "block for block the same prefix as the failed try"
            assert [one.delivered for one in (await conversation.turn(ended[0].id)).steered] == [True]


async def test_a_turn_that_waits_for_an_approval_hears_it_when_it_goes_on(home: Home) -> None:
    @tool(risky=True)
    def erase(what: str) -> str:
        """Erases something."""
        return f"{what} is gone"

    answers: list[Reply | str] = [asks(call("erase", "c1", what="a")), asks(call("erase", "c2", what="b")), "Done."]
    async with AsyncConversation(
        home.agent(agent_of(answers, tools=[erase], approval="risky")), store=home.store
    ) as conversation:
        await conversation.run("Clean up.")
        sent = await conversation.steer("But keep c.")
        assert sent.outcome == "awaiting_approval"
        open = await conversation.open_turn()
        assert open is not None
        assert [one.delivered for one in open.steered] == [False]
        turn = await conversation.approve()
        assert turn.outcome == "awaiting_approval"
        assert steps(turn)[-1] == ("user", "But keep c.")
        turn = await conversation.approve()
        assert steps(turn)[1:] == [
            ("tool", "a is gone"),
            ("user", "But keep c."),
            ("tool", "b is gone"),
            ("assistant", "Done."),
        ]
        assert (await conversation.verify()).ok


async def test_a_discarded_turn_still_shows_what_was_steered_to_it(home: Home) -> None:
    @tool(risky=True)
    def erase() -> str:
        """Erases."""
        return "gone"

    async with AsyncConversation(
        home.agent(agent_of([asks(call("erase")), "Hi."], tools=[erase], approval="risky")), store=home.store
    ) as conversation:
        await conversation.run("Clean up.")
        await conversation.steer("Or not.")
        turn = await conversation.discard()
        assert [(one.delivered, one.message) for one in turn.steered] == [(False, UserMessage((Text("Or not."),)))]
        assert (await conversation.run("Hello.")).steered == ()


# Limits, the client's tools, output, hooks, skills.


async def test_a_turn_that_stops_at_a_limit_keeps_the_message_for_the_next_turn_to_read(home: Home) -> None:
    looking = Looking()
    shown: list[list[dict[str, Any]]] = []

    def answers(heard: Heard) -> Reply:
        shown.append(messages_of(heard))
        return [LOOKS, Reply("I have read it.")][len(shown) - 1]

    limits = Limits(steps=1, at_limit="stop")
    async with AsyncConversation(
        home.agent(agent_of(answers, tools=[looking.tool], limits=limits)), store=home.store
    ) as conversation:
        async with meanwhile(conversation, looking) as ended:
            await conversation.steer("Be brief.")
        (turn,) = ended
        assert (turn.outcome, turn.stopped) == ("committed", "1 steps")
        assert steps(turn)[-1] == ("user", "Be brief.")
        assert len([event for event in turn.events if isinstance(event.body, TurnStopped)]) == 1
        assert [one.delivered for one in turn.steered] == [True]
        await conversation.run("Well?")
        asked = [one["content"] for one in shown[1] if one["role"] == "user"]
        assert (asked.index("Be brief."), asked[-1]) == (1, "Well?")


async def test_a_turn_that_fails_at_a_limit_keeps_its_answer_and_the_message_and_can_be_resumed(tmp_path: Path) -> None:
    with ModelServer(script_of(["Fine.", "Brief: fine."])) as server:
        agent = Agent(served(server), limits=Limits(steps=1))
        async with AsyncConversation(agent, store=f"sqlite:///{tmp_path}/a.db") as conversation:
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:

                    async def run() -> None:
                        with pytest.raises(TurnFailed) as failed:
                            await conversation.run("And the disk?")
                        assert isinstance(failed.value.cause, LimitReached)

                    with server.holding():
                        tasks.start_soon(run)
                        await server.heard(1)
                        await conversation.steer("Be brief.")
            turn = await conversation.resume(limits=Limits(steps=2))
            assert steps(turn)[1:] == [("assistant", "Fine."), ("user", "Be brief."), ("assistant", "Brief: fine.")]


async def test_calls_of_the_client_s_tools_are_taken_back_before_anybody_ran_them(home: Home) -> None:
    with ModelServer(script_of([asks(call("browse", "b1", page="x")), "I will not."])) as server:
        agent = Agent(served(server), client_tools=[BROWSE])
        async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
            ended: list[Turn] = []

            async def run() -> None:
                ended.append(await conversation.run("Read it."))

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    with server.holding():
                        tasks.start_soon(run)
                        await server.heard(1)
                        await conversation.steer("Open no pages.")
            (turn,) = ended
            assert (turn.text, turn.handed) == ("I will not.", ())
            assert [(one.status, one.call_id) for one in results(turn.events)] == [("not_run", "b1")]
            assert steps(turn)[-2:] == [("user", "Open no pages."), ("assistant", "I will not.")]
            assert (await conversation.verify()).ok


async def test_an_answer_that_has_the_form_is_judged_again_after_a_message(tmp_path: Path) -> None:
    """The answer before the message counts no more, whatever its form; the one after it is told if it is wrong."""
    with ModelServer(script_of(['{"disks":1}', "many", '{"disks":7}'])) as server:
        async with AsyncConversation(
            Agent(served(server), output=Count), store=f"sqlite:///{tmp_path}/a.db"
        ) as conversation:
            ended: list[Turn] = []

            async def run() -> None:
                ended.append(await conversation.run("How many?"))

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    with server.holding():
                        tasks.start_soon(run)
                        await server.heard(1)
                        await conversation.steer("Count those in the cellar too.")
            assert ended[0].output == Count(7)
            assert [role for role, _ in steps(ended[0])] == [
                "user",
                "assistant",
                "user",
                "assistant",
                "system",
                "assistant",
            ]


async def test_a_hook_of_what_the_user_says_runs_for_it_and_can_keep_it_out(tmp_path: Path) -> None:
    looking, seen = Looking(), []

    def guard(context: HookContext) -> Block | str | None:
        seen.append(context.message)
        return Block("not that") if "secret" in context.message else f"noted: {context.message}"

    agent = agent_of([LOOKS, "Fine.", "Bye."], tools=[looking.tool], hooks=[Hook("user_message", function=guard)])
    async with AsyncConversation(agent, store=f"sqlite:///{tmp_path}/a.db") as conversation:
        async with meanwhile(conversation, looking) as ended:
            await conversation.steer("Tell the secret.")
            await conversation.steer("Be brief.")
        (turn,) = ended
        assert seen == ["And the disk?", "Tell the secret.", "Be brief."], "each once"
        assert turn.outcome == "committed"
        assert [(one.delivered) for one in turn.steered] == [False, True]
        assert ("user", "Tell the secret.") not in steps(turn)
        runs = [event.body for event in turn.events if isinstance(event.body, HookRun)]
        assert [(one.blocked, one.context) for one in runs] == [
            (False, "noted: And the disk?"),
            (True, None),
            (False, "noted: Be brief."),
        ]
        assert (await conversation.verify()).ok


async def test_skills_that_a_message_calls_for_come_with_it(tmp_path: Path) -> None:
    looking = Looking()
    skill = Skill(name="brevity", description="Short answers.", content="Use few words.", words=("brief",))
    agent = agent_of([LOOKS, "Fine."], tools=[looking.tool], skills=[skill])
    async with AsyncConversation(agent, store=f"sqlite:///{tmp_path}/a.db") as conversation:
        async with meanwhile(conversation, looking) as ended:
            await conversation.steer("Be brief.")
            await conversation.steer("Really brief.")
        order = [
            event.envelope.kind
            for event in ended[0].events
            if event.envelope.kind in {"skill_activated", "user_message"}
        ]
        assert order == ["user_message", "skill_activated", "user_message", "user_message"]


# Other processes, sub-agents.


async def test_a_turn_that_another_process_runs_hears_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    with other_process.start(store, "far", "run", shared.steps([("wait", {})]), workspace=tmp_path) as process:
        assert process.stdout.readline() == "waits\n"
        async with await AsyncConversation.open("far", store=store) as conversation:
            sent = await conversation.steer("Be brief.")
            process.stdin.write("go on\n")
            process.stdin.flush()
            told = heard(process)
            assert (told["turn"], told["outcome"]) == (sent.turn, "committed")
            turn = await conversation.turn(sent.turn)
            assert steps(turn)[1:] == [("tool", "was told go on"), ("user", "Be brief."), ("assistant", "Done: ")]


async def test_whoever_takes_over_a_killed_process_s_turn_delivers_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    with other_process.start(store, "far", "run", shared.steps([("wait", {})]), workspace=tmp_path) as process:
        assert process.stdout.readline() == "waits\n"
        async with await AsyncConversation.open("far", store=store) as conversation:
            await conversation.steer("Be brief.")
            process.kill()
            process.wait()
            late = await conversation.steer("In English.")
            assert late.outcome == "interrupted"
            turn = await conversation.resume()
            assert [text for role, text in steps(turn) if role == "user"][1:] == ["Be brief.", "In English."]
            assert [one.delivered for one in turn.steered] == [True, True]
            assert (await conversation.verify()).ok


async def test_a_parent_and_its_sub_agent_are_steered_each_by_its_own_conversation(tmp_path: Path) -> None:
    looking = Looking()

    def answers(heard: Heard) -> Reply:
        messages = messages_of(heard)
        is_child = messages[0]["role"] == "user" and "the task" in str(messages[0]["content"])
        done = any(message["role"] == "tool" for message in messages)
        if is_child:
            return Reply("The child heard.") if done else LOOKS
        if not done:
            return asks(call("spawn_agent", "s1", task="the task"), call("wait_agent", "w1"))
        return Reply("The parent heard.")

    agent = agent_of(answers, tools=[looking.tool], sub_agents=SubAgents())
    async with AsyncConversation(agent, store=f"sqlite:///{tmp_path}/a.db") as conversation:
        async with meanwhile(conversation, looking, "Ask somebody.") as ended:
            await conversation.steer("For the parent.")
            (member,) = await conversation.list_agents()
            async with await AsyncConversation.open(
                member.conversation, store=f"sqlite:///{tmp_path}/a.db", bind=False
            ) as child:
                await child.steer("For the child.")
        (turn,) = ended
        assert steps(turn)[-2:] == [("user", "For the parent."), ("assistant", "The parent heard.")]
        async with await AsyncConversation.open(
            member.conversation, store=f"sqlite:///{tmp_path}/a.db", bind=False
        ) as child:
            (task,) = (await child.turns()).items
            assert steps(task)[-2:] == [("user", "For the child."), ("assistant", "The child heard.")]
        assert (await conversation.verify()).ok


# What is sent while a turn runs, and is no steer.


async def test_messages_that_are_sent_while_a_turn_runs_are_the_next_turn(home: Home) -> None:
    looking = Looking()
    async with AsyncConversation(
        home.agent(agent_of([LOOKS, "Fine.", "Both."], tools=[looking.tool])), store=home.store
    ) as conversation:
        async with meanwhile(conversation, looking) as ended:
            conversation.send_message("And the net?")
            conversation.send_message("And the screen?")
        assert steps(ended[0])[-1] == ("assistant", "Fine.")
        turn = await conversation.run()
        assert steps(turn) == [("user", "And the net?"), ("user", "And the screen?"), ("assistant", "Both.")]


# Branches and copies.


async def test_a_fork_inside_the_turn_has_the_message_or_not_as_its_point_says(home: Home) -> None:
    looking = Looking()
    async with AsyncConversation(
        home.agent(agent_of([LOOKS, "Fine.", "a", "b"], tools=[looking.tool])), store=home.store
    ) as conversation:
        async with meanwhile(conversation, looking):
            await conversation.steer("Be brief.")
        place = next(event for event in await conversation.events() if event.envelope.steer)
        async with await conversation.fork(at=place.id) as with_it, await conversation.fork(before=place.id) as without:
            assert said(await with_it.events())[-1] == ("user", "Be brief.")
            assert said(await without.events())[-1] == ("tool", "disk is fine")
            for fork in (with_it, without):
                assert (await fork.verify()).ok
        await conversation.rewind(before=place.id)
        assert said(await conversation.events())[-1] == ("tool", "disk is fine")
        assert (await conversation.verify()).ok


async def test_erasing_the_turn_takes_the_words_and_who_is_refused_hears_why(home: Home) -> None:
    looking = Looking()
    async with AsyncConversation(
        home.agent(agent_of([LOOKS, "Fine."], tools=[looking.tool])), store=home.store
    ) as conversation:
        async with meanwhile(conversation, looking) as ended:
            await conversation.steer("Be brief.")
            with pytest.raises(ForkpointError) as refused:
                await conversation.erase(everything=True, reason="asked for")
            assert refused.value.code == "busy"
        await conversation.erase(turn=ended[0], reason="asked for")
        turn = await conversation.turn(ended[0].id)
        assert (turn.steered, steps(turn)) == ((), [])
        assert (await conversation.verify()).ok

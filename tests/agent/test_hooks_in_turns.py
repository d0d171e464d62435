"""Hooks in turns: what they block and what they add is in the conversation, and a resumed turn does not ask twice."""

from typing import Any

import pytest
from tests.conversation.support.agents import agent_of, asks, call

from forkpoint import AsyncConversation, tool
from forkpoint.agent import Limits
from forkpoint.agent.hooks.hook import Block, Hook, HookContext
from forkpoint.errors import HookBlocked, TurnFailed
from forkpoint.testing import Heard, Reply

pytestmark = pytest.mark.anyio

RAN: list[int] = []


@tool(risky=True)
def work(x: int) -> str:
    """Works."""
    RAN.append(x)
    return f"worked {x}"


def hook(moment: Any, function: Any, **settings: Any) -> Hook:
    return Hook(moment, function=function, name=moment, **settings)


def conversation(*answers: Any, **settings: Any) -> AsyncConversation:
    return AsyncConversation(agent_of(answers, tools=[work], **settings), store="memory:")


def hooks_in(turn: Any) -> list[tuple[str, bool]]:
    return [(e.body.moment, e.body.blocked) for e in turn.events if e.envelope.kind == "hook_run"]


async def test_a_blocked_call_is_denied_and_nobody_is_asked_about_it() -> None:
    RAN.clear()
    odd = hook("before_tool", lambda c: Block("odd") if c.decoded["x"] % 2 else None)
    talk = conversation(asks(call("work", "a", x=1), call("work", "b", x=2)), "done", hooks=[odd], approval="risky")
    turn = await talk.run("go")
    assert turn.outcome == "awaiting_approval"
    assert [one.id for one in turn.waiting] == ["b"]
    turn = await talk.approve()
    assert (turn.text, RAN) == ("done", [2])
    assert [(one.status, one.result) for one in turn.calls] == [
        ("denied", "This call was not run: odd"),
        ("done", "worked 2"),
    ]
    assert sorted(hooks_in(turn)) == [("before_tool", False), ("before_tool", True)]


async def test_context_is_told_to_the_model_in_its_place_and_stays_there() -> None:
    heard: list[str] = []

    def answer(one: Heard) -> Reply:
        heard.append(str(one.body))
        return asks(call("work", "a", x=2)) if len(heard) == 1 else Reply(f"answer {len(heard)}")

    hooks = [
        hook(moment, lambda c: f"context of {c.moment}")
        for moment in ("turn_start", "user_message", "before_tool", "after_tool", "turn_end")
    ]
    talk = AsyncConversation(agent_of(answer, tools=[work], hooks=hooks), store="memory:")
    turn = await talk.run("go")
    assert [one for one, _ in hooks_in(turn)] == ["turn_start", "user_message", "before_tool", "after_tool", "turn_end"]
    assert "context of user_message" in heard[0]
    assert "context of after_tool" not in heard[0]
    assert (
        heard[1].index("worked 2") < heard[1].index("context of before_tool") < heard[1].index("context of after_tool")
    )
    assert "context of turn_end" not in heard[1]
    await talk.run("more")
    assert heard[2].index("answer 2") < heard[2].index("context of turn_end") < heard[2].index("more")


async def test_a_message_that_is_blocked_fails_the_turn_and_nothing_has_moved() -> None:
    talk = conversation("never", hooks=[hook("user_message", lambda c: Block("no secrets, please"))])
    with pytest.raises(TurnFailed) as failed:
        await talk.run("the password is x")
    assert isinstance(failed.value.cause, HookBlocked)
    assert hooks_in(failed.value.turn) == [("user_message", True)]
    assert list(await talk.events()) == []


async def test_an_answer_that_is_objected_to_is_said_again_and_only_so_often() -> None:
    left = [2]

    def tests(c: HookContext) -> Block | None:
        left[0] -= 1
        return Block(f"{c.answer} is wrong") if left[0] >= 0 else None

    talk = conversation("one", "two", "three", hooks=[hook("turn_end", tests)])
    turn = await talk.run("go")
    assert turn.text == "three"
    assert hooks_in(turn) == [("turn_end", True), ("turn_end", True), ("turn_end", False)]
    left[0] = 100
    talk = conversation("1", "2", "3", "4", "5", "6", hooks=[hook("turn_end", tests)])
    with pytest.raises(TurnFailed, match="4 is wrong"):
        await talk.run("go")
    left[0] = 0
    assert (await talk.resume()).text == "5"


async def test_an_objection_after_a_tool_leaves_its_result_and_is_told() -> None:
    heard: list[str] = []

    def answer(one: Heard) -> Reply:
        heard.append(str(one.body))
        return asks(call("work", "a", x=2)) if len(heard) == 1 else Reply("done")

    talk = AsyncConversation(
        agent_of(answer, tools=[work], hooks=[hook("after_tool", lambda c: Block("not formatted"))]), store="memory:"
    )
    turn = await talk.run("go")
    assert [one.status for one in turn.calls] == ["done"]
    assert "not formatted" in heard[1]


async def test_a_resumed_turn_does_not_run_its_hooks_again() -> None:
    seen: list[str] = []
    hooks = [
        hook(moment, lambda c: seen.append(c.moment))
        for moment in ("turn_start", "user_message", "before_tool", "after_tool", "turn_end")
    ]

    talk = conversation(
        asks(call("work", "a", x=2)), asks(call("work", "b", x=4)), "done", hooks=hooks, limits=Limits(steps=2)
    )
    with pytest.raises(TurnFailed):
        await talk.run("go")
    assert seen == ["turn_start", "user_message", "before_tool", "after_tool", "before_tool", "after_tool"]
    turn = await talk.resume(limits=Limits(steps=5))
    assert seen[6:] == ["turn_end"]
    assert turn.text == "done"

"""Nobody can be asked while a response runs: a call that needs an approval follows the agent's rule for that."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from tests.server.responses.responding import Place, function, problem, responding, result, text_of
from tests.server.support.turning import left_nothing

from forkpoint.agent import tool
from forkpoint.server.wires.responses.items.ids import conversation_id
from forkpoint.testing import Heard, Reply, Script, ScriptedCall

erased: list[str] = []


@tool(risky=True)
def erase(file: str) -> str:
    """Erases something."""
    erased.append(file)
    return f"erased {file}"


def answers(heard: Heard) -> Reply:
    """Calls the tool that it is told to, and then says what came of it."""
    last = heard.body["messages"][-1]
    if last["role"] == "tool":
        return Reply(f"It said: {last['content']}")
    if last["content"] in ("erase", "time"):
        arguments = '{"file":"a"}' if last["content"] == "erase" else "{}"
        return Reply(calls=(ScriptedCall(last["content"], arguments, f"call-{heard.number}"),))
    return Reply("Fine")


@pytest.fixture(params=["deny", "run"])
def rule(request: pytest.FixtureRequest) -> Literal["deny", "run"]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def place(rule: Literal["deny", "run"]) -> Iterator[Place]:
    del erased[:]
    with responding(tools=[erase], approval="risky", unattended=rule) as place:
        place.models.script = Script(answers)
        yield place
        left_nothing(place.server)


@pytest.mark.parametrize("how", ["whole", "stream", "background", "not stored"])
def test_a_risky_call_follows_the_rule_and_leaves_nothing_waiting(place: Place, rule: str, how: str) -> None:
    fields: dict[str, Any] = {"include": ["server_tool_calls"]}
    if how == "stream":
        made = place.stream("erase", **fields)[-1]["response"]
    elif how == "background":
        begun = place.ask("erase", background=True, **fields)
        left_nothing(place.server)
        made = place.get(begun["id"], **{"include[]": "server_tool_calls"})
    else:
        made = place.ask("erase", store=how != "not stored", **fields)
    assert made["status"] == "completed"
    call, answered, said = made["output"]
    assert (call["type"], call["name"]) == ("function_call", "erase")
    assert answered["status"] == ("completed" if rule == "run" else "incomplete")
    assert ("erased a" if rule == "run" else "nobody can be asked") in said["content"][0]["text"]
    assert erased == (["a"] if rule == "run" else [])
    if how != "not stored":
        on = place.ask("On", previous_response_id=made["id"])
        assert text_of(on) == "Fine", "nothing waits for an approval"


def test_the_clients_own_tools_need_no_approval(place: Place) -> None:
    asked = place.ask("time", tools=[function("time")])
    (call,) = asked["output"]
    assert (call["type"], call["name"]) == ("function_call", "time")
    done = place.ask([result(call["call_id"], "noon")], previous_response_id=asked["id"])
    assert text_of(done) == "It said: noon"


def test_a_turn_that_waits_for_an_approval_is_left_to_those_who_give_it(place: Place) -> None:
    id = place.api.create(agent="helper")
    waiting = place.api.run(id, "erase").json()
    assert waiting["outcome"] == "awaiting_approval"
    assert problem(place.post("Forget it", conversation=conversation_id(id)))[1] == "turn_open"
    turn = waiting["id"]
    allowed = place.api.post(f"{id}/turns/{turn}/approve", calls=place.api.seen(id, turn))
    assert allowed.json()["outcome"] == "committed", allowed.text
    assert erased == ["a"]

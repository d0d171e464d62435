"""Tools of the client: their calls are handed over in a committed turn, and the next one begins with their results."""

import json
from collections.abc import Callable, Iterator

import httpx2
import pytest
from tests.server.chat.chatting import agents_at
from tests.server.chat.lists_of_messages import (
    Chat,
    Message,
    answer,
    assistant,
    function,
    lines,
    look,
    obedient,
    put_together,
    refused,
    result,
    user,
)
from tests.server.support.serving import served

from forkpoint.agent import Agent, tool
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import ModelServer, Script

WEATHER, TIME = function("weather", city="string"), function("time")
TOOLS = [WEATHER, TIME]
ROME, OSLO = 'weather {"city":"Rome"}', 'weather {"city":"Oslo"}'

erased: list[str] = []


@tool(risky=True)
def erase(file: str) -> str:
    """Erases something."""
    erased.append(file)
    return f"erased {file}"


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer(Script(obedient)) as running:
        yield running


@pytest.fixture(scope="module")
def chat(models: ModelServer) -> Iterator[Chat]:
    """A client whose agents ask their model over HTTP."""
    agents = agents_at(models, instructions="Be kind.", tools=[look])
    llm = agents.named("helper").llm
    others = {
        "careful": Agent(llm, tools=[look, erase], approval="risky"),
        "careless": Agent(llm, tools=[look, erase], approval="risky", unattended="run"),
        "strict": Agent(llm, tools=[look], approval="always"),
        "locating": Agent(llm, client_tools=[ToolSchema("locate", "Where the client is.")]),
        "bare": Agent(llm),
    }
    with served(agents=Catalog({"helper": agents.named("helper"), **others})) as server:
        running = Chat(server)
        yield running
        running.verify()
        running.close()


@pytest.fixture
def heard(models: ModelServer) -> Callable[[], list[str]]:
    """What the model was asked last, but for its thoughts and instructions."""
    return lambda: [line for line in lines(models.last.json) if not line.startswith(("thought", "system"))]


def handed(response: httpx2.Response) -> list[Message]:
    """The calls that an answer hands over."""
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls", response.text
    calls: list[Message] = answer(response)["tool_calls"]
    return calls


# One call.


def test_a_call_is_handed_over_and_its_result_goes_on(chat: Chat, heard: Callable[[], list[str]]) -> None:
    response = chat.post([user(f"use {ROME}")], "one-call", tools=TOOLS)
    (call,) = handed(response)
    assert call == {
        "id": call["id"],
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
    }
    assert answer(response)["content"] == "On it."
    second = chat.post([user("x"), answer(response), result(call["id"], "sun")], "one-call", tools=TOOLS)
    assert (answer(second)["content"], "tool_calls" in answer(second)) == ("Done: sun", False)
    assert second.json()["choices"][0]["finish_reason"] == "stop"
    assert heard() == [f"user: use {ROME}", "assistant: On it.", f"call: {ROME}", "result: sun"]
    assert [turn["outcome"] for turn in chat.get("/one-call/turns")["items"]] == ["committed", "committed"]


def test_only_the_result_need_be_sent(chat: Chat, heard: Callable[[], list[str]]) -> None:
    (call,) = handed(chat.post([user(f"use {ROME}")], "only-result", tools=TOOLS))
    assert chat.say([result(call["id"], "sun")], "only-result", tools=TOOLS) == "Done: sun"
    assert heard()[-1] == "result: sun"


def test_the_model_is_told_of_the_clients_tools_and_of_ours(chat: Chat, models: ModelServer) -> None:
    chat.say([user("one")], "told", tools=TOOLS)
    tools = {one["function"]["name"]: one["function"] for one in models.last.json["tools"]}
    assert list(tools) == ["look", "time", "weather"]
    assert tools["weather"]["description"] == "It can weather."
    assert tools["weather"]["parameters"] == WEATHER["function"]["parameters"]


def test_an_empty_result_is_a_result(chat: Chat, heard: Callable[[], list[str]]) -> None:
    (call,) = handed(chat.post([user("use time")], "empty-result", tools=TOOLS))
    chat.say([result(call["id"], "")], "empty-result", tools=TOOLS)
    assert [event.get("status", "ok") for event in chat.events("empty-result", "tool_result")] == ["ok"]


# Several calls.


def test_parallel_calls_are_answered_all_at_once_in_any_order(chat: Chat, heard: Callable[[], list[str]]) -> None:
    calls = handed(chat.post([user(f"use {ROME}; {OSLO}; time")], "parallel", tools=TOOLS))
    assert [call["function"]["name"] for call in calls] == ["weather", "weather", "time"]
    assert len({call["id"] for call in calls}) == 3
    words = dict(zip([call["id"] for call in calls], ["sun", "rain", "noon"], strict=True))
    results = [result(id, text) for id, text in reversed(words.items())]
    chat.say(results, "parallel", tools=TOOLS)
    assert [line for line in heard() if line.startswith("call")] == [f"call: {ROME}", f"call: {OSLO}", "call: time {}"]
    sent = {event["call_id"]: event["parts"][0]["text"] for event in chat.events("parallel", "tool_result")}
    assert sent == words


def test_missing_results_are_recorded_as_not_answered(
    chat: Chat, models: ModelServer, heard: Callable[[], list[str]]
) -> None:
    calls = handed(chat.post([user(f"use {ROME}; {OSLO}; time; time")], "half", tools=TOOLS))
    given = [result(calls[1]["id"], "rain"), result(calls[3]["id"], "noon")]
    chat.say(given, "half", tools=TOOLS)
    statuses = {event["call_id"]: event.get("status", "ok") for event in chat.events("half", "tool_result")}
    expected = ["not_answered", "ok", "not_answered", "ok"]
    assert [statuses[call["id"]] for call in calls] == expected
    results = {one["tool_call_id"]: one["content"] for one in models.last.json["messages"] if one["role"] == "tool"}
    assert set(results) == {call["id"] for call in calls}, "no model takes a call without a result"
    assert (results[calls[1]["id"]], results[calls[3]["id"]]) == ("rain", "noon")
    refused(chat.post([result(calls[0]["id"], "late")], "half", tools=TOOLS), 400, "call_not_open")


def test_a_new_message_instead_of_results_is_answered(chat: Chat, heard: Callable[[], list[str]]) -> None:
    handed(chat.post([user(f"use {ROME}; time")], "instead", tools=TOOLS))
    assert chat.say([user("Never mind")], "instead", tools=TOOLS).startswith("Answer")
    assert heard()[-1] == "user: Never mind"
    assert [event["status"] for event in chat.events("instead", "tool_result")] == ["not_answered"] * 2


def test_results_and_a_message_go_together(chat: Chat, heard: Callable[[], list[str]]) -> None:
    (call,) = handed(chat.post([user(f"use {ROME}")], "together", tools=TOOLS))
    chat.say([result(call["id"], "sun"), user("In Celsius")], "together", tools=TOOLS)
    assert heard()[-2:] == ["result: sun", "user: In Celsius"]
    assert len(chat.get("/together/turns")["items"]) == 2


def test_calls_may_follow_each_other(chat: Chat, heard: Callable[[], list[str]]) -> None:
    (call,) = handed(chat.post([user(f"use {ROME}")], "rounds", tools=TOOLS))
    (call,) = handed(chat.post([result(call["id"], "sun"), user(f"use {OSLO}")], "rounds", tools=TOOLS))
    assert chat.say([result(call["id"], "rain")], "rounds", tools=TOOLS) == "Done: rain"
    assert [line for line in heard() if line.startswith("result")] == ["result: sun", "result: rain"]


# Results that nobody waits for.


def test_results_are_taken_once(chat: Chat) -> None:
    (call,) = handed(chat.post([user(f"use {ROME}")], "twice", tools=TOOLS))
    chat.say([result(call["id"], "sun")], "twice", tools=TOOLS)
    before = chat.standing("twice")
    response = chat.post([result(call["id"], "sun")], "twice", tools=TOOLS)
    refused(response, 400, "call_not_open")
    assert response.headers["x-should-retry"] == "false"
    assert chat.standing("twice") == before


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("a stranger's", [result("c9", "sun")]),
        ("one of ours", [user(f"use {ROME}"), assistant(None, ("c9", "look", "{}")), result("c9", "sun")]),
        ("with a message", [result("c9", "sun"), user("So?")]),
    ],
)
def test_a_result_of_a_call_that_is_not_open_is_400(chat: Chat, name: str, messages: list[Message]) -> None:
    name = name.replace(" ", "-").replace("'", "")
    (call,) = handed(chat.post([user(f"use {ROME}")], name, tools=TOOLS))
    before = chat.standing(name)
    refused(chat.post(messages, name, tools=TOOLS), 400, "call_not_open")
    assert chat.standing(name) == before
    assert chat.say([result(call["id"], "sun")], name, tools=TOOLS) == "Done: sun", "the call is open still"


def test_the_same_result_twice_in_one_list_is_400(chat: Chat) -> None:
    (call,) = handed(chat.post([user(f"use {ROME}")], "doubled", tools=TOOLS))
    before = chat.standing("doubled")
    response = chat.post([result(call["id"], "sun"), result(call["id"], "rain")], "doubled", tools=TOOLS)
    assert response.status_code == 400, response.text
    assert chat.standing("doubled") == before


def test_a_result_in_a_first_request_needs_its_call_in_the_list(chat: Chat, heard: Callable[[], list[str]]) -> None:
    refused(chat.post([user("x"), result("c1", "sun")], "first-result", tools=TOOLS), 400, "call_not_open")
    assert "first-result" not in chat.names()
    before = [user("Weather?"), assistant(None, ("c1", "weather", "{}"))]
    chat.say([*before, result("c1", "sun")], "first-result", tools=TOOLS)
    assert heard() == ["user: Weather?", "call: weather {}", "result: sun"]


def test_a_failed_turn_leaves_the_calls_open(chat: Chat) -> None:
    (call,) = handed(chat.post([user(f"use {ROME}")], "still-open", tools=TOOLS))
    before = chat.standing("still-open")
    assert chat.post([result(call["id"], "sun"), user("fail")], "still-open", tools=TOOLS).status_code == 502
    assert chat.standing("still-open") == before
    assert chat.say([result(call["id"], "sun")], "still-open", tools=TOOLS) == "Done: sun"


# Both kinds.


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_step_with_both_kinds_ours_run_first_and_only_the_clients_are_seen(
    chat: Chat, heard: Callable[[], list[str]], stream: bool
) -> None:
    name = f"both-{stream}"
    asked = [user(f'use look {{"what":"a"}}; {ROME}; look {{"what":"b"}}')]
    if stream:
        message, finish = put_together(chat.stream(asked, name, tools=TOOLS))
        assert finish == "tool_calls"
    else:
        message = answer(chat.post(asked, name, tools=TOOLS))
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "weather"
    done = sorted(event["parts"][0]["text"] for event in chat.events(name, "tool_result"))
    assert done == ["saw a", "saw b"], "ours have run before the client hears of its own"
    chat.say([result(call["id"], "sun")], name, tools=TOOLS)
    assert sorted(line for line in heard() if line.startswith("result")) == [
        "result: saw a",
        "result: saw b",
        "result: sun",
    ]


def test_our_tools_are_never_seen(chat: Chat) -> None:
    message = answer(chat.post([user('use look {"what":"it"}')], "ours", tools=TOOLS))
    assert "tool_calls" not in message
    chunks = chat.stream([user('use look {"what":"it"}')], "ours-streamed", tools=TOOLS)
    assert "look" not in json.dumps(chunks)
    assert put_together(chunks)[1] == "stop"


# Streams.


def test_a_stream_has_the_same_calls_in_pieces(chat: Chat) -> None:
    asked = [user(f"use {ROME}; time; {OSLO}")]
    whole = answer(chat.post(asked, "whole", tools=TOOLS))
    chunks = chat.stream(asked, "pieces", tools=TOOLS)
    message, finish = put_together(chunks)
    assert finish == "tool_calls"
    functions = [[call["function"] for call in one["tool_calls"]] for one in (whole, message)]
    assert functions[0] == functions[1]
    assert message["content"] == whole["content"]
    pieces = [
        piece for chunk in chunks for choice in chunk["choices"] for piece in choice["delta"].get("tool_calls", ())
    ]
    assert [piece["index"] for piece in pieces if "id" in piece] == [0, 1, 2]
    assert len([piece for piece in pieces if piece["index"] == 0]) > 2, "arguments come as they are written"
    stored = [event["call_id"] for event in chat.events("pieces", "tool_call")]
    assert [call["id"] for call in message["tool_calls"]] == stored


def test_results_are_answered_as_a_stream(chat: Chat) -> None:
    message, _ = put_together(chat.stream([user(f"use {ROME}")], "streamed", tools=TOOLS))
    chunks = chat.stream([result(message["tool_calls"][0]["id"], "sun")], "streamed", tools=TOOLS)
    assert put_together(chunks)[0]["content"] == "Done: sun"


# What a client asks about its tools.


def test_a_tool_that_must_be_used_goes_upstream_for_the_first_call_only(chat: Chat, models: ModelServer) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    before = len(models.requests)
    asked = [user('use look {"what":"it"}')]
    chat.say(asked, "chosen", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    bodies = [one.json for one in models.requests[before:]]
    assert [body.get("tool_choice", "auto") for body in bodies] == [choice, "auto"]
    assert [body.get("parallel_tool_calls") for body in bodies] == [False, False]


def test_a_name_that_one_of_our_tools_has_is_400(chat: Chat) -> None:
    response = chat.post([user("one")], "clash", tools=[function("look")])
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error"), response.text
    assert "look" in response.json()["error"]["message"]
    assert "clash" not in chat.names()


def test_tools_that_change_are_a_recorded_change(chat: Chat, models: ModelServer) -> None:
    chat.say([user("one")], "changing", tools=TOOLS)
    chat.say([user("two")], "changing", tools=[TIME, WEATHER])
    assert len(chat.events("changing", "manifest_changed")) == 1, "their order is no difference"
    chat.say([user("three")], "changing")
    assert [one["function"]["name"] for one in models.last.json["tools"]] == ["look"]
    assert len(chat.events("changing", "manifest_changed")) == 2


# Approval.


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_ours_that_needs_approval_is_denied_and_the_reason_is_kept(
    chat: Chat, heard: Callable[[], list[str]], stream: bool
) -> None:
    del erased[:]
    name = f"denied-{stream}"
    asked = [user('use erase {"file":"f"}; look {"what":"it"}; time')]
    if stream:
        message, finish = put_together(chat.stream(asked, name, model="careful", tools=TOOLS))
    else:
        response = chat.post(asked, name, model="careful", tools=TOOLS)
        message, finish = answer(response), response.json()["choices"][0]["finish_reason"]
    assert ([call["function"]["name"] for call in message["tool_calls"]], finish) == (["time"], "tool_calls")
    assert erased == []
    (denied,) = chat.events(name, "approval_denied")
    assert denied["reason"]
    results = {event["tool"]: event.get("status", "ok") for event in chat.events(name, "tool_result")}
    assert results == {"erase": "denied", "look": "ok"}
    chat.say([result(message["tool_calls"][0]["id"], "noon")], name, model="careful", tools=TOOLS)
    assert any(denied["reason"] in line for line in heard() if line.startswith("result")), "the model is told"


@pytest.mark.parametrize("name", [None, "runs"])
def test_a_call_that_needs_approval_runs_where_the_agent_says_so(chat: Chat, name: str | None) -> None:
    del erased[:]
    asked = [user('use erase {"file":"f"}')]
    assert chat.say(asked, name, model="careless") == "On it.\n\nDone: erased f"
    assert erased == ["f"]
    assert name is None or chat.events(name, "approval_denied") == []


def test_without_a_conversation_it_is_denied_too(chat: Chat, heard: Callable[[], list[str]]) -> None:
    del erased[:]
    assert "nobody can be asked" in chat.say([user('use erase {"file":"f"}')], model="careful")
    assert erased == []


def test_the_clients_own_tools_need_no_approval(chat: Chat) -> None:
    (call,) = handed(chat.post([user("use time")], "own", model="strict", tools=TOOLS))
    assert chat.say([result(call["id"], "noon")], "own", model="strict", tools=TOOLS) == "Done: noon"
    assert chat.events("own", "approval_asked") == []


# Tools of other agents.


def test_tools_that_an_agent_has_for_its_clients_are_handed_over_too(chat: Chat) -> None:
    (call,) = handed(chat.post([user("use locate")], "brought", model="locating"))
    assert chat.say([result(call["id"], "Rome")], "brought", model="locating") == "Done: Rome"


def test_an_agent_without_tools_can_be_given_some(chat: Chat) -> None:
    (call,) = handed(chat.post([user("use time")], "bare", model="bare", tools=TOOLS))
    assert chat.say([result(call["id"], "noon")], "bare", model="bare", tools=TOOLS) == "Done: noon"

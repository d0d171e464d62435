"""A stream says what is stored, under ids that do not change, and always ends in one of three events."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.server.responses.responding import Place, function, kinds, problem, responding, text_of
from tests.server.support.turning import left_nothing

from forkpoint.agent import tool
from forkpoint.agent.hooks.hook import Block, Hook, HookContext
from forkpoint.llm.scripts import FaultKind
from forkpoint.testing import Fault, Reply, Script, ScriptedCall

CUSTOM = {"type": "custom", "name": "shell", "description": "Runs a line."}


@tool
def look(what: str) -> str:
    """Looks."""
    return f"{what} is there"


def odd(context: HookContext) -> Block | None:
    """Objects to bad words."""
    return Block("say it better") if "Bad" in str(context.answer) else None


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    with responding(tools=[look], llm={"api": "responses", "reasoning_effort": "low"}) as place:
        yield place
        left_nothing(place.server)


@pytest.fixture(scope="module")
def places(shared: Place) -> Iterator[Mapping[str, Place]]:
    """Servers by what their models speak."""
    with responding(tools=[look], llm={"api": "chat"}) as chat:
        yield {"responses": shared, "chat": chat}
        left_nothing(chat.server)


@pytest.fixture
def place(shared: Place) -> Place:
    return shared


def ids(events: list[dict[str, Any]]) -> list[str]:
    return [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]


TEXT = ["output_item.added", "content_part.added", "output_text.delta", "output_text.delta"]
ENDS = ["output_text.done", "content_part.done", "output_item.done", "completed"]


def test_words_come_as_they_are_said_and_the_end_after_the_commit(place: Place) -> None:
    place.script(Reply("Hello there", piece=6))
    events = place.stream("Hi")
    assert kinds(events) == ["created", "in_progress", *TEXT, *ENDS]
    final = events[-1]["response"]
    assert place.get(final["id"]) == final
    assert ids(events) == [item["id"] for item in final["output"]]
    assert "".join(event["delta"] for event in events if event["type"].endswith(".delta")) == "Hello there"


@pytest.mark.parametrize(
    "reply",
    [
        Reply("Fine", reasoning="Let me think"),
        Reply("Words", calls=(ScriptedCall("mine", '{"at":"sea"}', "a"), ScriptedCall("mine", '{"at":"lake"}', "b"))),
        Reply(calls=(ScriptedCall("shell", '{"input":"ls -l"}', "s"),), piece=3),
        Reply(calls=(ScriptedCall("mine", "", "empty"),)),
        Reply("\n\nAfter a blank", piece=1),
    ],
    ids=["thoughts", "calls", "custom", "no arguments", "blank"],
)
def test_what_is_streamed_is_what_is_stored(place: Place, reply: Reply) -> None:
    place.script(reply)
    events = place.stream("Hi", tools=[function("mine"), CUSTOM])
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    assert sorted(ids(events)) == sorted(item["id"] for item in final["output"])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(done, key=lambda item: item["id"]) == sorted(final["output"], key=lambda item: item["id"])
    assert place.get(final["id"])["output"] == final["output"]
    for item in final["output"]:
        if item["type"] == "custom_tool_call":
            assert item["input"] == "ls -l"


def test_calls_of_the_agents_own_tools_are_shown_only_if_they_are_wanted(place: Place) -> None:
    looks = Reply("Let me look", calls=(ScriptedCall("look", '{"what":"it"}', "l1"),))
    place.script(looks, Reply("Found"))
    hidden = place.stream("Where?")[-1]["response"]
    assert [item["type"] for item in hidden["output"]] == ["message", "message"]
    place.script(looks, Reply("Found"))
    shown = place.stream("Where?", include=["server_tool_calls"])[-1]["response"]
    kinds_shown = ["message", "function_call", "function_call_output", "message"]
    assert [item["type"] for item in shown["output"]] == kinds_shown
    assert shown["output"][2]["output"] == "it is there"
    assert place.get(hidden["id"], **{"include[]": "server_tool_calls"})["output"][1]["name"] == "look"


CALLS = tuple(ScriptedCall("mine", '{"at":"sea"}', id) for id in ("a", "b", "a", "c"))
LOOKS = tuple(ScriptedCall("look", f'{{"what":"{what}"}}', what) for what in ("sea", "lake"))


@pytest.mark.parametrize(
    "replies",
    [
        [Reply("Words", reasoning=("One", "Two"), calls=CALLS[:2])],
        [Reply("\n\n", calls=CALLS[:2])],
        [Reply("Words", calls=CALLS)],
        [Reply("Let me look", calls=LOOKS), Reply("Found", reasoning="So it is")],
        [Reply("Words", calls=(LOOKS[0], CALLS[1], LOOKS[1]))],
        [Reply(calls=(*LOOKS, LOOKS[0])), Reply("Found")],
    ],
    ids=["thoughts", "blank", "one id twice", "ours", "ours beside the client's", "ours with one id"],
)
@pytest.mark.parametrize("include", [[], ["server_tool_calls"]], ids=["hidden", "included"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_each_item_is_told_at_the_place_that_it_has_in_the_output(
    places: Mapping[str, Place], api: str, include: list[str], replies: list[Reply]
) -> None:
    place = places[api]
    place.script(*replies)
    events = place.stream("Hi", tools=[function("mine")], include=include)
    told = {event["item"]["id"]: event["output_index"] for event in events if event["type"].endswith("item.added")}
    final = events[-1]["response"]
    assert told == {item["id"]: index for index, item in enumerate(final["output"])}
    assert place.get(final["id"], **{"include[]": include})["output"] == final["output"]
    assert sorted(ids(events)) == sorted(told)


def test_thoughts_go_back_to_their_provider_untouched(place: Place) -> None:
    place.script(Reply("Fine", reasoning="Let me think"), Reply("Next"), Reply("Again"))
    first = place.ask("Hi", include=["reasoning.encrypted_content"])
    thought = first["output"][0]
    assert thought["encrypted_content"]
    place.ask("More", previous_response_id=first["id"])
    stored = place.models.last.json["input"]
    place.ask([{"role": "user", "content": "Hi"}, *first["output"], {"role": "user", "content": "More"}], store=False)
    sent = place.models.last.json["input"]
    assert sent[1] == stored[1]
    assert sent[1]["encrypted_content"] == thought["encrypted_content"]


def test_a_cut_answer_is_incomplete_and_can_be_gone_on_from(place: Place) -> None:
    place.script(Reply("Half of", finish="length"), Reply("it"))
    events = place.stream("Hi")
    cut = events[-1]["response"]
    assert (events[-1]["type"], cut["status"]) == ("response.incomplete", "incomplete")
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert text_of(place.ask("Go on", previous_response_id=cut["id"])) == "it"


def test_a_form_is_told_once_it_is_right(place: Place) -> None:
    place.script(Reply("no json"), Reply('```json\n{"a":1}\n```'))
    format = {
        "type": "json_schema",
        "name": "a",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
    final = place.stream("Hi", text={"format": format})[-1]["response"]
    assert json.loads(text_of(final)) == {"a": 1}


def test_an_answer_that_a_hook_sends_back_is_never_told() -> None:
    with responding(Reply("Bad words"), Reply("Good words", piece=4), hooks=[Hook("turn_end", function=odd)]) as place:
        events = place.stream("Hi")
        assert "".join(event["delta"] for event in events if event["type"].endswith(".delta")) == "Good words"
        assert ids(events) == [item["id"] for item in events[-1]["response"]["output"]]
        assert [event["type"] for event in events].count("response.output_item.added") == 1
        left_nothing(place.server)


@pytest.mark.parametrize("kind", ["cut", "malformed", "unfinished", "overloaded"])
def test_a_stream_that_breaks_in_the_middle_ends_as_failed(place: Place, kind: FaultKind) -> None:
    place.script(Reply("Half of the answer", piece=4, fault=Fault(kind, after=2)))
    before = place.api.http.get("/api/conversations").json()["items"]
    events = place.stream("Hi")
    failed = events[-1]["response"]
    assert (events[-1]["type"], failed["status"], failed["output"]) == ("response.failed", "failed", [])
    assert failed["error"]["message"]
    assert place.get(failed["id"])["status"] == "failed"
    assert place.api.http.get("/api/conversations").json()["items"] == before
    assert problem(place.post("More", previous_response_id=failed["id"]))[1] == "previous_response_not_found"


def test_what_fails_before_the_model_speaks_has_a_status_of_its_own(place: Place) -> None:
    place.models.script = Script([])
    answer = place.post("Hi", stream=True)
    assert problem(answer)[0] >= 400


def test_each_of_several_thoughts_is_told_under_its_own_item(place: Place) -> None:
    place.script(Reply("Fine", reasoning=("First I look", "Then I count"), piece=4))
    events = place.stream("Hi")
    said: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.reasoning_summary_text.delta":
            said[event["item_id"]] = said.get(event["item_id"], "") + event["delta"]
    thoughts = [item for item in events[-1]["response"]["output"] if item["type"] == "reasoning"]
    assert [said[item["id"]] for item in thoughts] == ["First I look", "Then I count"]
    assert [item["summary"][0]["text"] for item in thoughts] == ["First I look", "Then I count"]


@pytest.mark.parametrize("after", [0, 2], ids=["at once", "after a thought"])
def test_a_refusal_is_told_as_one_and_leaves_nothing(place: Place, after: int) -> None:
    place.script(Reply("No", reasoning="Let me", piece=3, fault=Fault("refused", after=after)))
    before = place.api.http.get("/api/conversations").json()["items"]
    events = place.stream("Hi")
    refused = ["output_item.added", "content_part.added", "refusal.delta", "refusal.done", "content_part.done"]
    assert kinds(events)[-7:] == [*refused, "output_item.done", "failed"]
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_prompt")
    (item,) = failed["output"]
    assert item == events[-2]["item"]
    assert item["content"] == [{"type": "refusal", "refusal": events[-5]["delta"]}]
    found = place.get(failed["id"])
    assert (found["status"], found["error"]["code"], found["output"]) == ("failed", "invalid_prompt", [item])
    assert place.api.http.get("/api/conversations").json()["items"] == before


def test_a_refusal_without_a_stream_has_a_status_of_its_own(place: Place) -> None:
    place.script(Reply("No", fault=Fault("refused")))
    assert problem(place.post("Hi"))[:2] == (400, "content_filter")


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_thought_is_shown_whatever_its_provider_speaks(api: str) -> None:
    with responding(Reply("Fine", reasoning="Let me think", piece=4), llm={"api": api}) as place:
        events = place.stream("Hi")
        thought, said = events[-1]["response"]["output"]
        assert (thought["type"], thought["summary"]) == (
            "reasoning",
            [{"type": "summary_text", "text": "Let me think"}],
        )
        assert ids(events) == [thought["id"], said["id"]]
        left_nothing(place.server)

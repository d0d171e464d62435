"""Changing the provider in the middle: what cannot be carried over is named, and coming back costs nothing."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from tests.llm.paths import CONTEXT, MODELS, Commit, commit, common, histories, manifest_for, path_of, told
from tests.llm.provider_rules import broken_rules

from forkpoint.events import AnyBody, AssistantMessage, Event, Image, Reasoning, Text, ToolCall, ToolResult, UserMessage
from forkpoint.llm.prompt.blocks import common_prefix
from forkpoint.llm.prompt.manifest import manifest_note
from forkpoint.llm.prompt.rendering import Rendering, render

few = settings(common, max_examples=25)


def user(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def result(call_id: str, text: str) -> ToolResult:
    return ToolResult(call_id, "look", (Text(text),))


# As OpenAI's Responses made it: an encrypted thought, two calls at once, a message; each an item with an id.
THOUGHT_ITEM = (
    '{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"Two places."}],'
    '"encrypted_content":"gAAA=="}'
)
CALL_ITEMS = [
    f'{{"id":"fc_{n}","type":"function_call","status":"completed","arguments":"{{\\"at\\": \\"{place}\\"}}",'
    f'"call_id":"call_oai_{n}_abcdefghijkl","name":"look"}}'
    for n, place in enumerate(["here", "thére"], start=1)
]
MESSAGE_ITEM = (
    '{"id":"msg_1","type":"message","status":"completed","content":[{"type":"output_text","annotations":[],'
    '"logprobs":[],"text":"Nothing."}],"role":"assistant"}'
)
OPENAI = "openai/responses"
ON_OPENAI: list[AnyBody] = [
    user("What is there?"),
    Reasoning("Two places.", provider=OPENAI, item=THOUGHT_ITEM),
    ToolCall("call_oai_1_abcdefghijkl", "look", '{"at": "here"}', provider=OPENAI, item=CALL_ITEMS[0]),
    ToolCall("call_oai_2_abcdefghijkl", "look", '{"at": "thére"}', provider=OPENAI, item=CALL_ITEMS[1]),
    result("call_oai_1_abcdefghijkl", "a wall"),
    result("call_oai_2_abcdefghijkl", "a door"),
    AssistantMessage((Text("Nothing."),), provider=OPENAI, item=MESSAGE_ITEM),
]

# As Anthropic's Messages made it: a signed thought, a hidden one, a call, a message.
ANTHROPIC = "anthropic/messages"
ON_ANTHROPIC: list[AnyBody] = [
    user("Look again."),
    Reasoning("I look again.", "c2lnbmVk", provider=ANTHROPIC),
    Reasoning(encrypted="cmVkYWN0ZWQ=", provider=ANTHROPIC),
    AssistantMessage((Text("I look."),), provider=ANTHROPIC),
    ToolCall("toolu_01abcdefghijklmnopqrst", "look", '{"at": "behind",  "n": 1.50}', provider=ANTHROPIC),
    result("toolu_01abcdefghijklmnopqrst", "a lake"),
    AssistantMessage((Text("A lake."),), provider=ANTHROPIC),
]
ONE = commit("t1", *ON_OPENAI)
TWO = commit("t2", *ON_ANTHROPIC, after=len(ONE))
ASK = commit("t3", user("Sure?"), after=len(ONE) + len(TWO))


def request_of(wire: str, path: list[Event]) -> Any:
    body = render(manifest_for(wire), path).body(MODELS[wire], CONTEXT)
    assert not broken_rules(wire, body), f"{wire} would refuse this: {body.decode()}"
    return json.loads(body)


def plain(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if name != "cache_control"} for block in blocks]


def note(old: str, new: str, rendering: Rendering) -> str:
    return manifest_note(manifest_for(old), manifest_for(new), rendering.losses).reason or ""


def test_from_responses_to_messages_words_calls_and_results_are_carried_over() -> None:
    request = request_of("messages", ONE + ASK)
    first, calls, results, last = (plain(message["content"]) for message in request["messages"][:4])
    assert first == [{"type": "text", "text": "What is there?"}]
    assert calls == [
        {"type": "tool_use", "id": "call_oai_1_abcdefghijkl", "name": "look", "input": {"at": "here"}},
        {"type": "tool_use", "id": "call_oai_2_abcdefghijkl", "name": "look", "input": {"at": "thére"}},
    ]
    assert [block["tool_use_id"] for block in results] == ["call_oai_1_abcdefghijkl", "call_oai_2_abcdefghijkl"]
    assert last == [{"type": "text", "text": "Nothing."}]


def test_from_responses_to_messages_nothing_of_the_first_provider_s_own_is_shown_to_the_second() -> None:
    body = render(manifest_for("messages"), ONE + ASK).body(MODELS["messages"], CONTEXT)
    for secret in (b"gAAA", b"rs_1", b"fc_1", b"msg_1", b"Two places", b"encrypted"):
        assert secret not in body, f"{secret!r} of OpenAI's is in Anthropic's request"


def test_what_is_lost_on_the_way_is_named_and_the_note_says_it() -> None:
    there = render(manifest_for("messages"), ONE)
    assert there.losses == ("reasoning of openai/responses",)
    said = note("responses", "messages", there)
    assert "wire responses to messages" in said
    assert "model gpt-x to claude-x" in said
    assert said.endswith(". Not carried over: reasoning of openai/responses")


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_from_messages_to_openai_both_kinds_of_thought_are_lost_and_counted(wire: str) -> None:
    path = commit("t2", *ON_ANTHROPIC)
    there = render(manifest_for(wire), path)
    assert there.losses == ("2 times reasoning of anthropic/messages",)
    assert "Not carried over: 2 times reasoning of anthropic/messages" in note("messages", wire, there)
    body = there.body(MODELS[wire], CONTEXT)
    for secret in (b"c2lnbmVk", b"cmVkYWN0ZWQ", b"I look again", b"thinking"):
        assert secret not in body, f"{secret!r} of Anthropic's is in OpenAI's request"


def test_from_messages_to_chat_one_message_has_the_words_and_the_call() -> None:
    messages = request_of("chat", commit("t2", *ON_ANTHROPIC))["messages"]
    assert messages[2] == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "toolu_01abcdefghijklmnopqrst",
                "type": "function",
                "function": {"name": "look", "arguments": '{"at": "behind",  "n": 1.50}'},
            }
        ],
    }
    assert messages[3] == {"role": "tool", "tool_call_id": "toolu_01abcdefghijklmnopqrst", "content": "a lake"}
    assert messages[4] == {"role": "assistant", "content": "A lake."}


def test_from_messages_to_responses_items_have_no_ids_of_anybody() -> None:
    items = request_of("responses", commit("t2", *ON_ANTHROPIC))["input"]
    assert items[1:3] == [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {
            "type": "function_call",
            "call_id": "toolu_01abcdefghijklmnopqrst",
            "name": "look",
            "arguments": '{"at": "behind",  "n": 1.50}',
        },
    ]


@pytest.mark.parametrize(
    ("home", "other"), [("responses", "messages"), ("messages", "responses"), ("messages", "chat")]
)
def test_back_home_its_own_items_are_verbatim_and_the_prompt_starts_as_it_did(home: str, other: str) -> None:
    ours, theirs = (ON_OPENAI, ON_ANTHROPIC) if home == "responses" else (ON_ANTHROPIC, ON_OPENAI)
    one = commit("t1", *ours)
    two = commit("t2", *theirs, after=len(one))
    first = render(manifest_for(home), one)
    away = render(manifest_for(other), one + two)
    back = render(manifest_for(home), one + two + commit("t3", user("Sure?"), after=len(one) + len(two)))
    assert not first.losses
    assert away.losses
    assert common_prefix(first.blocks, back.blocks) == len(first.blocks), f"{home} does not find its cache again"
    texts = [block.text for block in back.blocks]
    if home == "responses":
        for item in (THOUGHT_ITEM, *CALL_ITEMS, MESSAGE_ITEM):
            assert item.encode() in texts, f"OpenAI does not get its item back as it was: {item}"
        assert back.losses == ("2 times reasoning of anthropic/messages",)
    else:
        for block in (
            {"type": "thinking", "thinking": "I look again.", "signature": "c2lnbmVk"},
            {"type": "redacted_thinking", "data": "cmVkYWN0ZWQ="},
        ):
            assert msgspec.json.encode(block) in texts, f"Anthropic does not get its thought back as it was: {block}"
        assert back.losses == ("reasoning of openai/responses",)
    assert not broken_rules(home, back.body(MODELS[home], CONTEXT))


def test_both_wires_of_one_provider_are_two_origins() -> None:
    """A chat server cannot read an item of Responses, whoever runs both."""
    rendering = render(manifest_for("chat"), ONE)
    assert rendering.losses == ("reasoning of openai/responses",)
    assert b"rs_1" not in rendering.body(MODELS["chat"], CONTEXT)


def test_a_picture_that_a_model_made_is_named_as_lost() -> None:
    picture = AssistantMessage((Text("see"), Image("image/png", data="aGk=")))
    for wire in MODELS:
        rendering = render(manifest_for(wire), commit("t", user("draw"), picture))
        assert rendering.losses == ("a picture or file made by a model",)
        assert "Not carried over: a picture or file made by a model" in note("chat", wire, rendering)


def test_a_note_names_each_loss_once_in_any_order_given() -> None:
    old, new = manifest_for("responses"), manifest_for("messages")
    assert manifest_note(old, new, ["b", "a", "b"]) == manifest_note(old, new, ["a", "b"])
    assert manifest_note(None, new).reason == "the first"
    assert manifest_note(old, new).hash == new.hash


@pytest.mark.parametrize("home", list(MODELS))
@few
@given(commits=histories(condensations=False, damage=False))
def test_every_thought_is_either_sent_back_or_counted_as_lost(home: str, commits: list[Commit]) -> None:
    path = path_of(commits)
    manifest = manifest_for(home)
    rendering = render(manifest, path)
    foreign: dict[str, int] = {}
    for event in path:
        if isinstance(thought := event.body, Reasoning) and thought.provider != manifest.origin:
            name = f"reasoning of {thought.provider or 'an unknown model'}"
            foreign[name] = foreign.get(name, 0) + 1
    assert dict(rendering.lost) == foreign, f"{home} lost other things than it says:\n{told(path)}"


@few
@given(commits=histories(condensations=False, damage=False))
def test_whatever_was_said_elsewhere_in_between_a_provider_finds_its_own_prefix_again(commits: list[Commit]) -> None:
    """The prompt of a wire is a function of the path alone, not of the way through other providers."""
    for wire in MODELS:
        rendering = render(manifest_for(wire))
        for number, events in enumerate(commits):
            render(manifest_for("messages" if number % 2 else "chat"), path_of(commits[:number]))
            longer = rendering.then(events)
            assert common_prefix(rendering.blocks, longer.blocks) == len(rendering.blocks)
            rendering = longer

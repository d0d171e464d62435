"""Rendering: what a model is shown of each kind of event, and the exact bytes that version 1 makes of it for ever."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.llm.paths import (
    ALL_MODELS,
    CONTEXT,
    MODELS,
    commit,
    erased,
    manifest_for,
    said_call,
    said_thought,
    said_words,
)
from tests.llm.provider_rules import broken_rules

from forkpoint.errors import BadSetting
from forkpoint.events import (
    AnyBody,
    ApprovalAsked,
    ApprovalGiven,
    AssistantMessage,
    Condensation,
    Event,
    File,
    HookRun,
    Image,
    ManifestChanged,
    ModelCalled,
    Opaque,
    Reasoning,
    SettingsChanged,
    SkillActivated,
    StateChange,
    SubAgentFinished,
    SubAgentSpawned,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.manifest import Manifest, ToolSchema, manifest_of
from forkpoint.llm.prompt.rendering import render
from forkpoint.llm.wires.wording import ERASED, STARTS_HERE

wires = pytest.mark.parametrize("wire", list(MODELS))
HELLO = UserMessage((Text("hello"),))
DONE = AssistantMessage((Text("done"),))
PICTURE = Image("image/png", data="aGk=")


def request_of(wire: str, path: Sequence[Event]) -> Any:
    body = render(manifest_for(wire), path).body(MODELS[wire], CONTEXT)
    assert not broken_rules(wire, body), f"{wire} would refuse this: {body.decode()}"
    return json.loads(body)


def history_of(wire: str, path: Sequence[Event]) -> list[Any]:
    history = request_of(wire, path)["input" if wire == "responses" else "messages"]
    return list(history[1:] if wire == "chat" else history)  # chat has its instructions there


def texts_in(value: Any) -> list[str]:
    """All texts in a piece of JSON, in order."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inside for text in texts_in(one)]


# Exact bytes.

GOLDEN = Path(__file__).parent / "golden"


def golden_path(origin: str) -> list[Event]:
    """One of everything, as a model of this origin would have made it, with one turn of another's."""
    look, run = "call_bW9kZWwxMjM0NTY3ODkwYWJj", "call_bW9kZWwxMjM0NTY3ODkwZGVm"
    path = commit(
        "t1",
        SystemMessage((Text("The user is called Ada."),)),
        UserMessage((Text("What is in this picture? “Quote” \\ /"), PICTURE)),
        said_thought(origin, "first", 1),
        said_words(origin, "I look closer — both ways.", "first", 1),
        said_call(origin, look, "look", '{ "at": "0,0",\n  "zoom": 1.50 }', "look", 0, client=False),
        said_call(origin, run, "run", '{"not": json', "run", 0, client=False),
        ApprovalAsked(run, "run"),
        SkillActivated("pictures", "Describe <colours> & forms."),
        ToolResult(look, "look", (Text("a tree"), Image("image/jpeg", url="https://pictures.example/tree.jpg"))),
        ToolResult(run, "run", (Text("exit 1"),), "failed"),
        StateChange((("seen", "true"),)),
        said_thought(origin, "second", 2),
        said_words(origin, "A tree 🌳.", "second", 3),
    )
    path += commit(
        "t2",
        UserMessage((Text("And in this paper?"), File("paper.pdf", "application/pdf", data="JVBERi0="))),
        Reasoning("hm", "c2lnbmVk", provider="somebody/else"),
        AssistantMessage((Text("Nothing new."),), provider="somebody/else"),
        SystemMessage((Text("Answer in French."),)),
        UserMessage((Text("Why?"),)),
        after=len(path),
    )
    return path


@wires
@pytest.mark.parametrize("variant", ["plain", "condensed"])
def test_the_bytes_of_version_1_are_what_they_always_were(wire: str, variant: str) -> None:
    llm = LLM(MODELS[wire].model, api=MODELS[wire].api, max_tokens=1000, temperature=0.5)
    tools = [
        ToolSchema("run", "Runs a command.", strict=True),
        ToolSchema("look", "Looks.", '{"type": "object", "properties": {"at": {"type": "string"}}}'),
    ]
    path = golden_path(f"{llm.served_by}/{wire}")
    if variant == "condensed":
        path += commit("n", Condensation("Ada showed a tree.", 14), after=len(path))
        path += commit("t3", UserMessage((Text("Go on."),)), after=len(path))
    rendering = render(manifest_of(llm, instructions="Be brief.", tools=tools, renderer=1), path)
    context = CallContext(own_identity("c-1"), fork_base=13)
    body = rendering.body(llm, context, Options(parallel_calls=True), key="fp_key")
    assert not broken_rules(wire, body)
    file = GOLDEN / f"{wire}-{variant}.json"
    if not file.exists() and os.environ.get("FORKPOINT_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(body + b"\n")
    assert file.exists(), f"{file} is missing. If it was never released, FORKPOINT_WRITE_GOLDEN=1 writes it"
    assert body + b"\n" == file.read_bytes(), (
        "The bytes of renderer version 1 must never change: providers hold the prompts of stored conversations in "
        f"their caches under exactly these bytes ({file.name}). Put the old rendering back; "
        "a better one gets the next number in RENDERERS."
    )


# What each kind of event becomes.


@wires
def test_what_is_no_message_is_not_shown(wire: str) -> None:
    beside: list[AnyBody] = [
        StateChange((("key", '"secret"'),)),
        HookRun("secret", "before_tool", output="secret", call_id="call_1"),
        ApprovalAsked("call_1", "secret", "secret"),
        ApprovalGiven("call_1", "secret", "secret"),
        ModelCalled("secret", "secret", Usage(1), response_id="secret"),
        SubAgentSpawned("call_1", "secret", "secret"),
        SubAgentFinished("call_1", "secret", "secret"),
        SettingsChanged('{"secret": 1}', "secret"),
        ManifestChanged("secret", "{}", "secret"),
    ]
    bare = render(manifest_for(wire), commit("t", HELLO, DONE))
    full = render(manifest_for(wire), commit("t", *beside, HELLO, *beside, DONE, *beside))
    assert [block.text for block in full.blocks] == [block.text for block in bare.blocks]
    assert full.prefix == bare.prefix
    unknown = commit("t", HELLO, DONE)
    unknown[1:1] = [Event(unknown[0].id, "t", unknown[0].envelope, Opaque("from_the_future", '{"kind": "secret"}'))]
    assert b"secret" not in render(manifest_for(wire), unknown).body(MODELS[wire], CONTEXT)


@wires
def test_a_skill_and_a_tool_s_picture_are_shown_behind_the_last_result(wire: str) -> None:
    path = commit(
        "t",
        HELLO,
        ToolCall("call_a", "look", "{}"),
        ToolCall("call_b", "look", "{}"),
        SkillActivated("swim", "Use your arms."),
        ToolResult("call_a", "look", (Text("wet"), PICTURE)),
        ToolResult("call_b", "look", (Text("dry"),)),
        DONE,
    )
    texts = texts_in(history_of(wire, path))
    places = [
        next(n for n, text in enumerate(texts) if word in text) for word in ("wet", "dry", "Use your arms.", "done")
    ]
    assert places == sorted(places), f"{wire} shows them as {texts}"
    assert sum("aGk=" in text for text in texts) == 1, "the picture is not there once"


@wires
def test_a_skill_without_an_open_call_is_shown_at_once(wire: str) -> None:
    rendering = render(manifest_for(wire), commit("t", HELLO, SkillActivated("swim", "Use your arms.")))
    assert not rendering.held
    assert b"Use your arms." in [*rendering.blocks][-1].text


@wires
def test_what_is_held_back_waits_for_the_client_s_results_over_turns(wire: str) -> None:
    asked = commit("t", HELLO, ToolCall("call_a", "look", "{}", True), SkillActivated("swim", "Use your arms."))
    waiting = render(manifest_for(wire), asked)
    assert waiting.open == ("call_a",)
    assert waiting.held
    answered = waiting.then(commit("u", ToolResult("call_a", "look", (Text("wet"),)), after=3))
    assert not answered.open
    assert not answered.held
    texts = [block.text for block in answered.blocks][-2:]
    assert [b"wet" in texts[0], b"Use your arms." in texts[1]] == [True, True]


@wires
def test_erased_words_leave_a_word_in_their_place(wire: str) -> None:
    path = [
        erased(event)
        for event in commit("t", HELLO, ToolCall("call_a", "look", '{"a": 1}'), ToolResult("call_a", "look"), DONE)
    ]
    texts = texts_in(history_of(wire, path))
    assert texts.count(ERASED) == 3, f"{wire} shows {texts}"
    assert not any('"a"' in text for text in texts), "the arguments of an erased call are still there"


@wires
def test_thoughts_stay_here_if_the_model_is_told_to_send_none_back(wire: str) -> None:
    llm = LLM(MODELS[wire].model, api=MODELS[wire].api, reasoning_back=False)
    manifest = manifest_of(llm)
    origin = manifest.origin
    path = commit("t", HELLO, said_thought(origin, "~secret~", 1), said_words(origin, "so", "word", 1), HELLO)
    rendering = render(manifest, path)
    assert b"~secret~" not in rendering.body(llm, CONTEXT)
    assert b"so" in rendering.body(llm, CONTEXT)
    assert not rendering.losses, "what is left out on purpose is not lost"


def test_a_history_that_starts_with_the_model_s_words_gets_a_user_s_before_it() -> None:
    first, second = history_of("messages", commit("t", DONE))
    assert first == {"role": "user", "content": [{"type": "text", "text": STARTS_HERE}]}
    assert second["role"] == "assistant"


def test_a_system_message_stands_where_the_wire_has_a_place_for_it() -> None:
    path = commit("t", SystemMessage((Text("first rule"),)), HELLO, DONE, SystemMessage((Text("second rule"),)), HELLO)
    chat = request_of("chat", path)["messages"]
    assert [one["role"] for one in chat] == ["system", "system", "user", "assistant", "system", "user"]
    items = request_of("responses", path)["input"]
    assert [one["role"] for one in items] == ["system", "user", "assistant", "system", "user"]
    messages = request_of("messages", path)
    assert [block["text"] for block in messages["system"]] == ["Be brief.", "first rule"]
    assert [one["role"] for one in messages["messages"]] == ["user", "assistant", "user"]
    assert texts_in(messages["messages"][2])[2] == "<system>\nsecond rule\n</system>"


@wires
def test_a_message_of_several_parts_keeps_their_order(wire: str) -> None:
    parts = (Text("one"), PICTURE, Text("two"), Image("image/png", url="https://pictures.example/a.png"), Text("three"))
    texts = texts_in(history_of(wire, commit("t", UserMessage(parts))))
    shown = [text for text in texts if text in {"one", "two", "three"} or "aGk=" in text or "pictures.example" in text]
    assert len(shown) == 5
    assert [shown[0], shown[2], shown[4]] == ["one", "two", "three"]


@pytest.mark.parametrize("wire", ["local", "scripted"])
def test_models_of_this_process_have_the_blocks_of_chat(wire: str) -> None:
    path = golden_path("somebody/else")
    blocks = render(manifest_for(wire), path).blocks
    assert list(blocks) == list(render(manifest_for("chat"), path).blocks)


@wires
def test_what_the_last_request_had_is_all_before_the_newest_response(wire: str) -> None:
    asked = render(manifest_for(wire), commit("t", HELLO))
    assert asked.asked == 0
    answered = asked.then(commit("t", ToolCall("call_a", "look", "{}"), ToolResult("call_a", "look"), after=1))
    assert answered.asked == len(asked.blocks)
    again = answered.then(commit("t", DONE, HELLO, after=3))
    assert again.asked == len(answered.blocks)


def test_a_version_that_this_program_does_not_have_is_refused_with_both_numbers() -> None:
    manifest = manifest_of(ALL_MODELS["chat"], renderer=99)
    with pytest.raises(BadSetting, check=BadSetting.unknown_renderer.made, match="99"):
        render(manifest)


# Manifests.


def test_a_manifest_comes_back_from_its_document_with_the_same_hash() -> None:
    for wire in ALL_MODELS:
        manifest = manifest_for(wire)
        again = Manifest.from_json(manifest.to_json())
        assert again == manifest
        assert again.hash == manifest.hash
        assert '"renderer":1' in manifest.to_json(), "a later default must not be taken for an earlier one"


@wires
def test_a_schema_is_sent_as_the_text_that_it_is(wire: str) -> None:
    schema = '{ "type":"object",\n "properties": {"z": {"const": 1.50}, "a": {"const": "\\u00e9"}} }'
    body = render(manifest_for(wire, tools=[ToolSchema("look", "é", schema)])).body(MODELS[wire], CONTEXT)
    assert schema.encode() in body


@wires
@pytest.mark.parametrize("choice", ["auto", "none", "required", "look"])
def test_what_a_single_call_asks_for_changes_no_block(wire: str, choice: str) -> None:
    rendering = render(manifest_for(wire), commit("t", HELLO))
    plain = rendering.body(MODELS[wire], CONTEXT)
    asked = rendering.body(MODELS[wire], CONTEXT, Options(tool_choice=choice, parallel_calls=False, max_tokens=7))
    end = plain.index(b"]", plain.index(b"hello"))
    assert asked[:end] == plain[:end]
    assert b"7" in asked[end:]

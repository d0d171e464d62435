"""Items say what events say; what a provider wants back untouched keeps its exact text."""

import json
from typing import Any

import pytest
from msgspec import Raw

from forkpoint.errors import Invalid
from forkpoint.events import (
    AssistantMessage,
    File,
    Image,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.server.wires.responses.items.ids import message_id, turn_of_item, turn_of_response
from forkpoint.server.wires.responses.items.input import ItemReference, read_input

TURN = "01a8f6e0-6c32-7e5a-8b23-4dbf807c6e9d"
PNG = "data:image/png;base64,aGk="
FILE = {"type": "input_file"}


def read(*items: Any) -> list[Any]:
    return [item.body for item in read_input([Raw(json.dumps(item).encode()) for item in items])]


def test_a_text_is_a_message_and_a_blank_one_is_nothing() -> None:
    assert [item.body for item in read_input("Hi")] == [UserMessage((Text("Hi"),))]
    assert read_input("  ") == ()
    assert read({"role": "user", "content": " "}) == []


def test_messages_have_a_role_and_parts() -> None:
    picture = {"type": "input_image", "image_url": PNG}
    paper = {"type": "input_file", "filename": "a.txt", "file_data": "aGk="}
    (said,) = read({"role": "user", "content": [{"type": "input_text", "text": "Look"}, picture, paper]})
    assert said == UserMessage((Text("Look"), Image("image/png", "aGk="), File("a.txt", "text/plain", "aGk=")))
    (said,) = read({"role": "user", "content": [FILE | {"file_url": "https://a.example/b.pdf"}]})
    assert said == UserMessage((File("file", "application/octet-stream", url="https://a.example/b.pdf"),))
    first, second = read({"role": "system", "content": "A"}, {"type": "message", "role": "developer", "content": "B"})
    assert (first, second) == (SystemMessage((Text("A"),)), SystemMessage((Text("B"),)))
    (spoken,) = read({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})
    assert isinstance(spoken, AssistantMessage)
    assert spoken.parts == (Text("No."),)


def test_calls_and_results_belong_together() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{ "a":1}'}
    called, answered = read(call, {"type": "function_call_output", "call_id": "c1", "output": "there"})
    assert isinstance(called, ToolCall)
    assert (called.arguments, called.client) == ('{ "a":1}', True)
    assert answered == ToolResult("c1", "look", (Text("there"),))
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "shell", "input": "ls"}
    called, answered = read(custom, {"type": "custom_tool_call_output", "call_id": "c2", "output": "a b"})
    assert isinstance(called, ToolCall)
    assert json.loads(called.arguments) == {"input": "ls"}
    assert answered == ToolResult("c2", "shell", (Text("a b"),))


def test_a_thought_keeps_its_exact_text_but_for_an_id_of_this_server() -> None:
    raw = b'{"type":"reasoning", "id":"rs_abc","summary":[],"encrypted_content":"x","number":1.50}'
    (thought,) = read_input([Raw(raw)])
    assert isinstance(thought.body, Reasoning)
    assert thought.body.item is not None
    assert '"number":1.50' in thought.body.item
    assert json.loads(thought.body.item)["id"] == "rs_abc"
    (ours,) = read_input([Raw(raw.replace(b"rs_abc", f"rs_{TURN.replace('-', '')}_r1_0".encode()))])
    assert isinstance(ours.body, Reasoning)
    assert "id" not in json.loads(ours.body.item or "{}")
    assert turn_of_item(ours.id or "") == TURN


def test_a_reference_is_kept_as_one() -> None:
    id = message_id(TURN, 1)
    assert read({"type": "item_reference", "id": id}) == [ItemReference(id, "input[0]")]
    assert turn_of_response(f"resp_{TURN.replace('-', '')}") == TURN


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (5, "input[0]"),
        ({}, "input[0].type"),
        ({"type": "shell_call"}, "input[0].type"),
        ({"type": "message", "content": "Hi"}, "input[0].role"),
        ({"role": "robot", "content": "Hi"}, "input[0].role"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input[0].content[0].file_id"),
        ({"role": "user", "content": [FILE | {"file_url": "file:///etc/passwd"}]}, "input[0].content[0].file_url"),
        ({"role": "user", "content": [FILE | {"file_url": 5}]}, "input[0].content[0].file_url"),
        ({"role": "user", "content": [FILE]}, "input[0].content[0].file_data"),
        ({"role": "system", "content": [{"type": "input_image", "image_url": PNG}]}, "input[0].content[0].type"),
        ({"type": "function_call", "name": "look"}, "input[0].call_id"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "reasoning", "summary": 5}, "input[0].summary"),
        ({"type": "reasoning", "summary": [], "content": True}, "input[0].content"),
    ],
    ids=str,
)
def test_what_is_no_item_is_refused_where_it_stands(item: Any, param: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(item)
    assert refused.value.param == param

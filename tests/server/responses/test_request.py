"""A body is read field by field: what cannot be done is refused by name, and what is not known passes."""

import json
from typing import Any

import pytest
from tests.server.responses.responding import function

from forkpoint.errors import BadRequest, Invalid
from forkpoint.server.wires.responses.request import Echo, read_request


def read(strict: bool = False, **fields: Any) -> Any:
    return read_request(json.dumps({"model": "helper", "input": "Hi"} | fields).encode(), strict=strict)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"input": 5}, "input"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1", "store": False}, "store"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"moderation": {}}, "moderation"),
        ({"context_management": []}, "context_management"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [function("a"), function("a")]}, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "a", "parameters": 5}]}, "tools[0].parameters"),
        ({"tools": ["a"]}, "tools[0]"),
        ({"tools": [{"name": "a"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.web_search"),
        ({"tool_choice": {"type": "function", "name": "b"}, "tools": [function("a")]}, "tool_choice.name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a b"}}}, "text.format.name"),
        ({"reasoning": {"effort": "HIGH"}}, "reasoning.effort"),
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": "x" * 513}}, "metadata[...]"),
        ({"truncation": "some"}, "truncation"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize("value", [b'"\xff"', b'{"type":"\xff"}', b"[1e999]", b"1e999"])
@pytest.mark.parametrize(
    ("field", "param"),
    [
        (b'"tool_choice":%s', "tool_choice"),
        (b'"tools":[%s]', "tools"),
        (b'"text":{"format":%s}', "text"),
        (b'"metadata":{"a":%s}', "metadata"),
        (b'"input":[%s]', "input"),
        (b'"instructions":%s', "instructions"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_where_it_stands(field: bytes, param: str, value: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        read_request(b'{"model":"helper","input":"Hi",' + field % value + b"}", strict=False)
    assert str(refused.value.param).startswith(param)


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(BadRequest):
        read_request(b"[]", strict=False)


def test_unknown_fields_and_hosted_tools_pass_and_are_named() -> None:
    asked = read(client_metadata={"a": 1}, tools=[function("a"), {"type": "web_search"}], include=["web.sources"])
    assert asked.ignored == ("client_metadata", "include.web.sources", "tools.web_search")
    assert ([tool.name for tool in asked.tools], asked.echo.left_out) == (["a"], ("web_search",))
    with pytest.raises(Invalid):
        read(strict=True, client_metadata={})


def test_null_means_absent() -> None:
    assert read(tools=None, stream=None, metadata=None, prompt=None).ignored == ()


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    asked = read(tools=[{"type": "custom", "name": "shell"}])
    assert json.loads(asked.tools[0].parameters)["required"] == ["input"]
    assert asked.echo.custom == ("shell",)


def test_what_is_repeated_survives_being_stored() -> None:
    echo = read(
        instructions="Be brief.",
        tools=[function("a")],
        tool_choice="auto",
        reasoning={"effort": "low"},
        text={"format": {"type": "json_object"}, "verbosity": "low"},
        metadata={"a": "b"},
    ).echo
    again = Echo.from_json(echo.to_json())
    assert again.to_json() == echo.to_json()
    assert (again.instructions, again.has_form, again.metadata) == ("Be brief.", True, {"a": "b"})
    assert not Echo.from_json(None).has_form


@pytest.mark.parametrize("choice", ["auto", "none", {"type": "function", "name": "a"}], ids=str)
def test_a_choice_of_tools_is_a_word_or_an_object(choice: Any) -> None:
    """Codex always sends the word ``auto``."""
    request = read(tools=[function("a"), {"type": "web_search"}], tool_choice=choice)
    assert json.loads(bytes(request.echo.tool_choice)) == choice

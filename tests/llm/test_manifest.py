"""A manifest has one hash for one meaning, another for every change, and says in words what changed."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import BadSetting, BadTool, ForkpointError
from forkpoint.events import decode_body, encode_body
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import Manifest, ToolSchema, differences, manifest_note, manifest_of
from forkpoint.llm.prompt.rendering import render

many = settings(max_examples=100, deadline=None, database=None)

READ = ToolSchema("read", "Reads a file.", '{"type":"object","properties":{"path":{"type":"string"}}}', strict=True)
LIST = ToolSchema("list", "Lists files.")
EXAMPLE = manifest_of(
    LLM("anthropic/claude-sonnet-4-5", reasoning_tokens=2048),
    instructions="Be brief.\nSay é.",
    tools=[READ, LIST],
    output='{"type": "object"}',
)

# A change of every field: a field that is added to a manifest or a tool must be added here, and to differences().
CHANGES: dict[str, Any] = {
    "model": "other",
    "wire": "chat",
    "provider": "other",
    "instructions": "Be long.",
    "tools": (LIST,),
    "reasoning_effort": "high",
    "reasoning_tokens": 4096,
    "reasoning_back": False,
    "output": None,
    "renderer": 2,
}
TOOL_CHANGES: dict[str, Any] = {
    "name": "write",
    "description": "Reads.",
    "parameters": '{"type":"object"}',
    "strict": False,
}

tools_ = st.builds(
    ToolSchema,
    name=st.text("abcXYZ019_-", min_size=1, max_size=5),
    description=st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    parameters=st.sampled_from(["{}", '{"type": "object"}', '{"b":1,"a":{"é":null}}']),
    strict=st.booleans(),
)
manifests = st.builds(
    Manifest,
    model=st.text("ab/", max_size=3),
    wire=st.sampled_from(["chat", "responses", "messages", "local", "scripted"]),
    provider=st.text("ab", max_size=2),
    instructions=st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    tools=st.lists(tools_, max_size=3, unique_by=lambda tool: tool.name).map(
        lambda tools: tuple(sorted(tools, key=lambda tool: tool.name))
    ),
    reasoning_effort=st.sampled_from([None, "low", "high"]),
    reasoning_tokens=st.sampled_from([None, 1024]),
    reasoning_back=st.booleans(),
    output=st.sampled_from([None, "{}"]),
    renderer=st.integers(1, 3),
)


# The hash.


def test_the_hash_of_a_manifest_never_changes() -> None:
    """The literals stand in databases. If this fails, every conversation would lose its cache with an upgrade."""
    assert EXAMPLE.to_json() == (
        '{"model":"claude-sonnet-4-5","wire":"messages","provider":"anthropic",'
        '"instructions":"Be brief.\\nSay é.",'
        '"tools":[{"name":"list","description":"Lists files."}'
        ',{"name":"read","description":"Reads a file.",'
        '"parameters":"{\\"type\\":\\"object\\",\\"properties\\":{\\"path\\":{\\"type\\":\\"string\\"}}}","strict":true}],'
        '"reasoning_tokens":2048,"output":"{\\"type\\": \\"object\\"}","renderer":1}'
    )
    assert EXAMPLE.hash == "70b19abf64c2768ddc25953c92ea7d6be8487eba1689a6e46ec4b5222505f11c"
    assert manifest_of(LLM("openai/gpt-5")).hash == "bdfa45dcaf0841dea5ef8d7cfb7b35df34279f6621ab901c0427fa291468519a"


def test_tools_in_any_order_give_one_hash() -> None:
    tools = [READ, LIST, ToolSchema("a"), ToolSchema("Z")]
    hashes = {manifest_of(LLM("openai/x"), tools=order).hash for order in itertools.permutations(tools)}
    assert len(hashes) == 1
    assert [tool.name for tool in manifest_of(LLM("openai/x"), tools=iter(tools)).tools] == ["Z", "a", "list", "read"]


def test_the_table_of_changes_knows_every_field() -> None:
    assert CHANGES.keys() == {field.name for field in msgspec.structs.fields(Manifest)}
    assert TOOL_CHANGES.keys() == {field.name for field in msgspec.structs.fields(ToolSchema)}


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_any_field_is_another_hash_and_is_named(field: str) -> None:
    changed = msgspec.structs.replace(EXAMPLE, **{field: CHANGES[field]})
    assert changed != EXAMPLE
    assert changed.hash != EXAMPLE.hash
    assert len(differences(EXAMPLE, changed)) == 1, f"a change of {field} is not told, or told twice"


@pytest.mark.parametrize("field", TOOL_CHANGES)
def test_a_change_of_any_field_of_a_tool_is_another_hash_and_is_named(field: str) -> None:
    tool = msgspec.structs.replace(READ, **{field: TOOL_CHANGES[field]})
    changed = msgspec.structs.replace(EXAMPLE, tools=(LIST, tool))
    assert changed.hash != EXAMPLE.hash
    assert any("read" in said for said in differences(EXAMPLE, changed))


@many
@given(one=manifests, other=manifests)
def test_two_manifests_have_one_hash_exactly_if_they_are_equal_and_differ_in_nothing(
    one: Manifest, other: Manifest
) -> None:
    assert (one.hash == other.hash) == (one == other) == (differences(one, other) == ())
    assert one.hash == msgspec.structs.replace(one).hash


def test_a_schema_has_one_hash_however_its_text_was_made() -> None:
    plain = ToolSchema("list")
    spelled = ToolSchema("list", parameters="".join(plain.parameters))
    again = ToolSchema("list", parameters=plain.parameters.encode().decode())
    llm = LLM("scripted/echo")
    assert len({manifest_of(llm, tools=[tool]).hash for tool in (plain, spelled, again)}) == 1


@many
@given(manifest=manifests)
def test_a_manifest_comes_back_from_its_document_with_its_hash(manifest: Manifest) -> None:
    again = Manifest.from_json(manifest.to_json())
    assert again == manifest
    assert again.hash == manifest.hash
    assert again.to_json() == manifest.to_json()
    assert Manifest.from_json(manifest.to_json().encode()) == manifest
    assert json.loads(manifest.to_json())["renderer"] == manifest.renderer, "the renderer must always be said"


def test_what_does_not_stand_before_the_history_does_not_change_the_hash() -> None:
    plain = manifest_of(LLM("openai/x", api="chat"))
    other = LLM(
        "openai/x", api="chat", temperature=0.5, max_tokens=5, cache_ttl="1h", api_key="a", headers=(("a", "b"),)
    )
    assert manifest_of(other).hash == plain.hash
    assert (
        manifest_of(LLM("openai/x", base_url="http://h:1/v1")).hash
        == manifest_of(LLM("openai/x", base_url="http://h:2/v1")).hash
    )


@pytest.mark.parametrize(
    "llm",
    [
        LLM("openai/y"),
        LLM("openai/x", api="chat"),
        LLM("openai/x", base_url="http://h/v1"),
        LLM("openai/x", provider="mine"),
        LLM("openai/x", reasoning_effort="high"),
        LLM("openai/x", reasoning_back=False),
    ],
    ids=lambda llm: llm.to_json(),
)
def test_what_changes_the_prompt_in_an_llm_changes_the_hash(llm: LLM) -> None:
    assert manifest_of(llm).hash != manifest_of(LLM("openai/x")).hash


def test_an_origin_is_who_serves_over_which_wire() -> None:
    assert EXAMPLE.origin == "anthropic/messages"
    assert manifest_of(LLM("openai/x", base_url="http://h:1/v1")).origin == "h/chat"


# What changed, in words.


def test_every_kind_of_change_is_said_in_words() -> None:
    old = manifest_of(LLM("openai/x", reasoning_effort="low"), instructions="a", tools=[READ, LIST], output="{}")
    new = manifest_of(
        LLM("anthropic/y", reasoning_tokens=1024, reasoning_back=False),
        instructions="b",
        tools=[ToolSchema("read"), ToolSchema("write")],
    )
    assert differences(old, new) == (
        "model x to y",
        "wire responses to messages",
        "provider openai to anthropic",
        "reasoning_effort low to None",
        "reasoning_tokens None to 1024",
        "reasoning_back True to False",
        "instructions",
        "tool write added",
        "tool list removed",
        "tool read changed",
        "form of the answer",
    )


def test_the_note_of_a_change_has_the_document_the_hash_and_the_reason() -> None:
    first = manifest_note(None, EXAMPLE)
    assert (first.hash, first.manifest, first.reason) == (EXAMPLE.hash, EXAMPLE.to_json(), "the first")
    changed = msgspec.structs.replace(EXAMPLE, model="other")
    note = manifest_note(EXAMPLE, changed, lost=["b", "a", "b"])
    assert note.reason == "changed: model claude-sonnet-4-5 to other. Not carried over: a; b"
    assert decode_body(encode_body(note)) == note


def test_instructions_are_not_repeated_in_a_reason() -> None:
    secret = "the whole of the instructions"
    reason = manifest_note(EXAMPLE, msgspec.structs.replace(EXAMPLE, instructions=secret)).reason
    assert secret not in (reason or "")


# What is refused.


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "a/b", "é", "a" * 65, "a\n", "\ud800", "a:b"], ids=ascii)
def test_a_tool_s_name_that_a_provider_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(BadTool, match="name"):
        ToolSchema(name)


@pytest.mark.parametrize(
    "schema", ["", "[]", "null", "1", '"a"', "{", '{"a":1} ,', "{'a':1}", '{"a":"\ud800"}'], ids=ascii
)
def test_a_schema_that_is_no_json_object_is_refused(schema: str) -> None:
    with pytest.raises(BadTool, match="schema is not a JSON object"):
        ToolSchema("t", parameters=schema)
    with pytest.raises(BadSetting, match="output"):
        manifest_of(LLM("openai/x"), output=schema)


def test_two_tools_with_one_name_are_refused() -> None:
    with pytest.raises(BadTool, match="two tools") as refused:
        manifest_of(LLM("openai/x"), tools=[READ, LIST, ToolSchema("read", "Another.")])
    assert refused.value.name == "read"


@pytest.mark.parametrize(
    "make",
    [
        lambda: manifest_of(LLM("openai/x"), instructions="a\ud800"),
        lambda: manifest_of(LLM("openai/x"), tools=[ToolSchema("t", "a\ud800")]),
    ],
    ids=["instructions", "description"],
)
def test_text_that_is_not_valid_unicode_is_refused_before_it_is_hashed(make: Any) -> None:
    with pytest.raises(ForkpointError):
        make().hash  # noqa: B018


# Documents that this version did not write.


@pytest.mark.parametrize(
    "document",
    [
        *("", "{", "null", "[]", "{}", "\ud800", '{"model":"x"}'),
        '{"model":"x","wire":"soap","provider":"p"}',
        '{"model":1,"wire":"chat","provider":"p"}',
        b'{"model":"\xff","wire":"chat","provider":"p"}',
    ],
    ids=ascii,
)
def test_a_document_that_is_no_manifest_is_refused_in_our_words(document: str | bytes) -> None:
    with pytest.raises(BadSetting, match="manifest"):
        Manifest.from_json(document)


def test_a_document_with_a_bad_tool_is_refused() -> None:
    with pytest.raises(BadTool):
        Manifest.from_json('{"model":"x","wire":"chat","provider":"p","tools":[{"name":"a b"}],"renderer":1}')


def test_a_manifest_of_a_newer_renderer_can_be_read_and_not_rendered() -> None:
    newer = Manifest.from_json(msgspec.structs.replace(EXAMPLE, renderer=99).to_json())
    assert newer.renderer == 99
    with pytest.raises(BadSetting, check=BadSetting.unknown_renderer.made, match="99"):
        render(newer)


@pytest.mark.parametrize("place", ["manifest", "tool"])
def test_a_field_that_only_a_newer_version_knows_is_never_dropped_in_silence(place: str) -> None:
    """Without it the prompt is another one, and so is the hash: the cache is lost and nobody is told."""
    document = json.loads(EXAMPLE.to_json())
    (document if place == "manifest" else document["tools"][0])["added_later"] = "high"
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    try:
        read = Manifest.from_json(text)
    except ForkpointError:
        return
    assert "added_later" in read.to_json(), "the field is gone, and the manifest has another hash than is recorded"


def test_a_manifest_and_a_tool_are_frozen_and_hashable() -> None:
    for frozen in (EXAMPLE, READ):
        hash(frozen)
        for field in msgspec.structs.fields(frozen):
            with pytest.raises(AttributeError):
                setattr(frozen, field.name, getattr(frozen, field.name))


def test_a_manifest_of_a_newer_version_says_that_it_is_newer() -> None:
    with pytest.raises(BadSetting, check=BadSetting.unknown_renderer.made, match="version 2"):
        Manifest.from_json('{"model":"m","wire":"chat","provider":"p","renderer":2,"from_the_future":1}')

"""Looking at requests: what two of them share, what ended it, and what is different."""

import json

import pytest
from tests.llm.paths import MODELS, TOOLS, commit, erased, manifest_for, next_turn

from forkpoint.events import AssistantMessage, Condensation, Text, Usage, UserMessage
from forkpoint.llm.call import Models
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.blocks import common_prefix
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.inspection import inspect_request
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.llm.prompt.rendering import Rendering, render
from forkpoint.llm.request import Request

wires = pytest.mark.parametrize("wire", list(MODELS))
PATH = commit("t", UserMessage((Text("hello"),)), AssistantMessage((Text("hi"),)))
ASK = commit("u", UserMessage((Text("and now?"),)), after=2)


def request(rendering: Rendering, wire: str, *, conversation: str = "c-1", llm: LLM | None = None) -> Request:
    context = CallContext(own_identity(conversation))
    return Models().request(llm or MODELS[wire], rendering, context)


@wires
def test_a_request_without_one_before_it_shares_nothing_and_says_why(wire: str) -> None:
    rendering = render(manifest_for(wire), PATH + ASK)
    found = inspect_request(request(rendering, wire))
    assert found.why == "there is no request before it"
    assert found.shared == found.shared_bytes == 0
    assert found.blocks == len(rendering.blocks) == len(found.lines)
    assert {line.change for line in found.lines} == {"added"}
    assert found.cached is None
    assert found.prefix == rendering.prefix
    assert found.manifest == rendering.manifest.hash


@wires
def test_a_request_that_continues_shares_all_of_the_one_before(wire: str) -> None:
    first = render(manifest_for(wire), PATH[:1])
    second = render(manifest_for(wire), PATH + ASK)
    found = inspect_request(request(second, wire), request(first, wire), Usage(1, input=200, cached=150))
    assert found.why == "it continues the request before it"
    assert found.shared == len(first.blocks)
    assert found.shared_bytes == sum(len(block.text) for block in first.blocks)
    assert found.cached == 0.75
    assert found.diff().splitlines()[0].split() == [str(found.shared), "blocks", "in", "common"]
    assert [line[0] for line in found.diff().splitlines()[1:]] == ["+", "+"]
    assert "hi" in found.diff().splitlines()[1]


@wires
def test_two_forks_part_where_their_histories_do(wire: str) -> None:
    base = render(manifest_for(wire), PATH)
    one, other = base.then(next_turn(PATH, "left")[:1]), base.then(next_turn(PATH, "right")[:1])
    found = inspect_request(request(one, wire, conversation="c-1"), request(other, wire, conversation="c-1"))
    assert found.shared == len(base.blocks) == common_prefix(one.blocks, other.blocks)
    assert found.why.startswith(f"the history parts at block {found.shared}: a fork")
    kept, added, removed = found.diff().splitlines()
    assert kept.strip() == f"{found.shared} blocks in common"
    assert added.startswith("+")
    assert "left" in added
    assert removed.startswith("-")
    assert "right" in removed


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_another_key_is_named_with_both_keys(wire: str) -> None:
    first, second = render(manifest_for(wire), PATH[:1]), render(manifest_for(wire), PATH + ASK)
    now, before = request(second, wire, conversation="c-2"), request(first, wire, conversation="c-1")
    found = inspect_request(now, before)
    assert f"the cache key is {now.key}, it was {before.key}" in found.why
    assert "the headers that requests are routed by are others" in found.why
    assert found.shared == len(first.blocks), "the prompt is the same, whatever the key"


def test_a_key_that_is_not_sent_any_more_is_named() -> None:
    rendering = render(manifest_for("chat"), PATH[:1])
    silent = LLM("openai/gpt-x", api="chat", cache_key="never")
    found = inspect_request(request(rendering, "chat", llm=silent), request(rendering, "chat"))
    assert "the cache key is not sent, it was fp_" in found.why


@wires
@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([*TOOLS[:2], ToolSchema("client_tool", "Another description.")], "tool client_tool changed"),
        (TOOLS[1:], "tool look removed"),
        ([*TOOLS, ToolSchema("a_new_one")], "tool a_new_one added"),
    ],
    ids=["changed", "removed", "added"],
)
def test_a_tool_that_changed_is_named(wire: str, tools: list[ToolSchema], says: str) -> None:
    before = render(manifest_for(wire), PATH[:1])
    now = render(manifest_for(wire, tools=tools), PATH + ASK)
    found = inspect_request(request(now, wire), request(before, wire))
    assert found.why == f"the manifest changed: {says}"
    assert found.shared < len(TOOLS)
    assert found.manifest != before.manifest.hash


@wires
def test_other_instructions_leave_the_tools_shared(wire: str) -> None:
    before = render(manifest_for(wire), PATH[:1])
    now = render(manifest_for(wire, instructions="Be long."), PATH[:1])
    found = inspect_request(request(now, wire), request(before, wire))
    assert found.why == "the manifest changed: instructions"
    assert found.shared == len(TOOLS)


@wires
def test_a_rewind_a_condensation_and_an_erasure_end_what_is_shared(wire: str) -> None:
    whole = render(manifest_for(wire), PATH + ASK)
    rewound = render(manifest_for(wire), PATH[:1])
    condensed = render(manifest_for(wire), PATH + ASK + commit("n", Condensation("in short", 3), after=3))
    without = render(manifest_for(wire), [erased(PATH[0]), *PATH[1:], *ASK])
    head = whole.head
    for now, shared in ((rewound, head + 1), (condensed, head), (without, head)):
        found = inspect_request(request(now, wire), request(whole, wire))
        assert found.shared == shared
        assert found.why.startswith(f"the history parts at block {shared}: ")


def test_another_server_is_named() -> None:
    rendering = render(manifest_for("chat"), PATH[:1])
    there = LLM("openai/gpt-x", api="chat", base_url="http://127.0.0.1:1/v1", provider="openai")
    found = inspect_request(request(rendering, "chat", llm=there), request(rendering, "chat"))
    assert "another server is asked" in found.why


@wires
def test_the_body_and_the_headers_are_those_that_are_sent(wire: str) -> None:
    sent = request(render(manifest_for(wire), PATH + ASK), wire)
    found = inspect_request(sent)
    assert found.body.encode() == sent.body
    assert json.loads(found.body)["model"] == MODELS[wire].name
    assert found.headers == sent.headers
    assert found.key == sent.key


def test_a_call_that_reported_no_input_has_no_cached_share() -> None:
    sent = request(render(manifest_for("chat"), PATH + ASK), "chat")
    assert inspect_request(sent, None, Usage(1)).cached is None
    assert inspect_request(sent, None, Usage(1, input=10)).cached == 0.0

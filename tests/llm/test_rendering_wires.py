"""Bodies: whatever a path has in it, its provider takes the request, and gets its own items back untouched."""

import itertools
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.llm.paths import (
    ALL_MODELS,
    CONTEXT,
    MESSAGES,
    MODELS,
    SAID,
    STATUSES,
    TOOLS,
    Commit,
    commit,
    common,
    erased,
    histories,
    manifest_for,
    mark_in,
    next_turn,
    path_of,
    told,
    unreadable,
)
from tests.llm.provider_rules import broken_rules, flat_blocks

from forkpoint.events import (
    AssistantMessage,
    Event,
    File,
    Gone,
    Image,
    Opaque,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.rendering import Rendering, render

quick = settings(common, max_examples=30)
few = settings(common, max_examples=20)

wires = pytest.mark.parametrize("wire", list(MODELS))
all_wires = pytest.mark.parametrize("wire", list(ALL_MODELS))
HELLO = UserMessage((Text("hello"),))


def body_of(wire: str, path: Sequence[Event], context: CallContext = CONTEXT) -> bytes:
    return render(manifest_for(wire), path).body(ALL_MODELS[wire], context)


def check(wire: str, path: Sequence[Event]) -> Any:
    """The request of a path, if its provider takes it."""
    body = body_of(wire, path)
    wrong = broken_rules(wire, body)
    assert not wrong, f"{wire} would refuse this:\n" + "\n".join(wrong) + f"\n{body.decode()}\nmade of\n{told(path)}"
    return json.loads(body)


# Any path.


@wires
@quick
@given(commits=histories())
def test_a_provider_takes_the_request_of_any_path(wire: str, commits: list[Commit]) -> None:
    for end in range(1, len(commits) + 1):
        path = path_of(commits[:end])
        if not render(manifest_for(wire), path).open:
            check(wire, path)
    path = path_of(commits)
    check(wire, path + next_turn(path, "and now?"))


@pytest.mark.parametrize("wire", ["local", "scripted"])
@few
@given(commits=histories())
def test_models_of_this_process_read_what_chat_renders(wire: str, commits: list[Commit]) -> None:
    path = path_of(commits)
    path += next_turn(path, "and now?")
    check(wire, path)


@wires
@few
@given(commits=histories(condensations=False))
def test_results_stand_in_the_order_of_history(wire: str, commits: list[Commit]) -> None:
    path = path_of(commits)
    path += next_turn(path, "and now?")
    answered: dict[str, list[str]] = {}
    request = check(wire, path)
    found = {
        "chat": lambda: [one["tool_call_id"] for one in request["messages"] if one["role"] == "tool"],
        "responses": lambda: [one["call_id"] for one in request["input"] if one["type"] == "function_call_output"],
        "messages": lambda: [one["tool_use_id"] for one in flat_blocks(request) if one.get("type") == "tool_result"],
    }[wire]()
    results = [event for event in path if event.kind == "tool_result"]
    assert len(found) == len(results), f"{len(results)} results became {len(found)}:\n{told(path)}"
    for event, id in zip(results, found, strict=True):
        answered.setdefault(str(event.envelope.call_id), []).append(id)
    assert all(len(set(ids)) == 1 for ids in answered.values()), "one call has two ids on the wire"
    assert len({ids[0] for ids in answered.values()}) == len(answered), "two calls have one id on the wire"


@cache
def shape_of(wire: str) -> Any:
    """The provider's own description of a history, from its SDK."""
    from anthropic.types import MessageParam
    from openai.types.chat import ChatCompletionMessageParam
    from openai.types.responses import ResponseInputParam
    from pydantic import TypeAdapter

    kinds = {"chat": list[ChatCompletionMessageParam], "messages": list[MessageParam], "responses": ResponseInputParam}
    return TypeAdapter[Any](kinds[wire])


def exhausted(value: Any) -> None:
    """Reads lazy iterables to their end, since they are validated only then."""
    if isinstance(value, dict):
        for one in value.values():
            exhausted(one)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for one in value:
            exhausted(one)


@wires
@few
@given(commits=histories(damage=False))
def test_the_sdk_s_own_types_describe_the_history(wire: str, commits: list[Commit]) -> None:
    path = path_of(commits)
    request = check(wire, path + next_turn(path, "and now?"))
    history = request["input" if wire == "responses" else "messages"]
    for one in history:
        if one.get("type") == "message" and one["role"] == "assistant" and "id" not in one:
            # OpenAI takes an assistant's words without these; its types describe only what it sends itself.
            one |= {"id": "msg_1", "status": "completed"}
            one["content"] = [{"annotations": [], **part} for part in one["content"]]
    exhausted(shape_of(wire).validate_python(history))


# Verbatim.


def responses_of(path: Sequence[Event]) -> list[list[Event]]:
    """What each response said, erased events included."""
    messages = [event for event in path if event.kind in MESSAGES]
    groups = itertools.groupby(messages, lambda one: (one.turn, one.kind in SAID, one.envelope.response))
    return [list(group) for (_, said, _), group in groups if said]


def is_whole(response: Sequence[Event]) -> bool:
    return not any(isinstance(event.body, Gone | Opaque) for event in response)


def owned(wire: str, body: Reasoning | AssistantMessage | ToolCall) -> list[bytes]:
    """What must be in the body of a request, byte for byte, if the response goes back to where it came from."""
    compact = msgspec.json.encode
    match wire, body:
        case "responses", _ if body.item is not None:
            return [body.item.encode()]
        case "messages", Reasoning(encrypted=str(data)):
            return [compact({"type": "redacted_thinking", "data": data})]
        case "messages", Reasoning():
            return [compact({"type": "thinking", "thinking": body.text or "", "signature": body.signature})]
        case "messages", AssistantMessage(item=str(item)):
            return [item.encode()[:-1]]  # a cache mark may stand at its end
        case "chat", Reasoning(item='{"in":"reasoning_content"}'):
            return [b'"reasoning_content":' + compact(body.text)]
        case ("chat", Reasoning(item=str(item)) | ToolCall(item=str(item))) | ("messages", ToolCall(item=str(item))):
            name, value = next(iter(msgspec.json.decode(item, type=dict[str, msgspec.Raw]).items()))
            return [compact(name) + b":" + bytes(value)]
        case _:
            return []


@wires
@quick
@given(commits=histories(condensations=False))
def test_items_go_back_to_their_origin_byte_for_byte_and_nowhere_else(wire: str, commits: list[Commit]) -> None:
    path = path_of(commits)
    path += next_turn(path, "and now?")
    body = body_of(wire, path)
    origin = manifest_for(wire).origin
    for response in responses_of(path):
        for event in response:
            said = event.body
            if not isinstance(said, Reasoning | AssistantMessage | ToolCall):
                continue
            if said.provider == origin and is_whole(response):
                for needed in owned(wire, said):
                    assert needed in body, f"{wire} does not get its item back as it was: {needed.decode()}"
                continue
            hidden = [said.signature, said.encrypted, said.text] if isinstance(said, Reasoning) else []
            if said.item and "~" in said.item:
                hidden += [
                    f"{what}{mark_in(said.item)}" for what in ("rs_", "fc_", "msg_", "caller ", "sig ", "cited ")
                ]
            for text in filter(None, hidden):
                assert text.encode() not in body, (
                    f"{wire} is shown {text!r} of {said.provider} or of a damaged response"
                )


@wires
@quick
@given(commits=histories(condensations=False, damage=False))
def test_a_call_s_arguments_are_sent_byte_for_byte(wire: str, commits: list[Commit]) -> None:
    path = path_of(commits)
    body = body_of(wire, path + next_turn(path, "and now?"))
    for event in path:
        if not isinstance(call := event.body, ToolCall):
            continue
        sent = msgspec.json.encode(call.arguments)
        if wire == "messages" and call.arguments.startswith("{") and call.arguments.endswith("}"):
            sent = b'"input":' + call.arguments.encode()
        elif wire == "messages" and not call.arguments:
            sent = b'"input":{}'
        elif wire == "responses" and call.provider == manifest_for(wire).origin and call.item:
            sent = call.item.encode()
        assert sent in body, f"{wire} is not shown the arguments {call.arguments!r}: {body.decode()}"


# Cache marks.


def marked(request: Any) -> list[int]:
    return [n for n, block in enumerate(flat_blocks(request)) if "cache_control" in block]


def markable(rendering: Rendering, end: int) -> set[int]:
    """The place of a mark for the first ``end`` blocks: the last of them, but never a thought."""
    texts = [block.text for block in rendering.blocks][:end]
    while texts and (b'"type":"thinking"' in texts[-1][:20] or b'"type":"redacted_thinking"' in texts[-1][:30]):
        texts.pop()
    return {len(texts) - 1} if texts else set()


@quick
@given(commits=histories(condensations=False, damage=False, min_turns=2), data=st.data())
def test_marks_stand_where_head_fork_last_request_and_this_one_end(commits: list[Commit], data: st.DataObject) -> None:
    fork = data.draw(st.integers(0, len(commits)))
    path = path_of(commits)
    path += next_turn(path, "and now?")[:-1]  # as it is when the model is asked
    base = len(path_of(commits[:fork]))
    manifest = manifest_for("messages")
    rendering = render(manifest, path)
    request = json.loads(rendering.body(MODELS["messages"], CallContext(own_identity("c-1"), fork_base=base or None)))
    last = responses_of(path)[-1]
    before = [event for event in path if event.id.ordinal < last[0].id.ordinal]
    ends = {
        "the head's end": len(request["tools"]) + len(request["system"]),
        "the fork's base": len(render(manifest, path[:base]).blocks) if base else 0,
        "the last request's end": len(render(manifest, before).blocks),
        "this request's end": len(rendering.blocks),
    }
    expected = set().union(*(markable(rendering, end) for end in ends.values()))
    assert marked(request) == sorted(expected), f"the marks should stand at {ends}:\n{told(path)}"


@pytest.mark.parametrize("calls", [3, 12, 40])
def test_the_last_request_s_end_is_marked_however_many_blocks_followed_it(calls: int) -> None:
    """A provider looks for what it keeps at most 20 blocks before a mark."""
    asked = [ToolCall(f"call_{n}", "look", "{}") for n in range(calls)]
    path = commit("t", HELLO, *asked, *(ToolResult(f"call_{n}", "look", (Text("seen"),)) for n in range(calls)))
    first = render(manifest_for("messages"), path[:1]).body(MODELS["messages"], CONTEXT)
    second = render(manifest_for("messages"), path).body(MODELS["messages"], CONTEXT)
    end = len(flat_blocks(json.loads(first))) - 1
    assert end in marked(json.loads(first))
    assert end in marked(json.loads(second)), f"what the last request wrote cannot be found over {2 * calls} blocks"


def test_a_mark_never_stands_on_a_thought() -> None:
    origin = manifest_for("messages").origin
    thought = Reasoning("hm", "signed", provider=origin)
    said = AssistantMessage((Text("so"),), provider=origin)
    path = commit("t", HELLO, thought, said)
    request = json.loads(body_of("messages", path, CallContext(own_identity("c"), fork_base=2)))
    assert not [block for block in flat_blocks(request) if block.get("type") == "thinking" and "cache_control" in block]


def test_with_no_instructions_and_no_tools_marks_stand_only_in_the_history() -> None:
    manifest = manifest_for("messages", instructions="", tools=())
    request = json.loads(render(manifest, commit("t", HELLO)).body(MODELS["messages"], CONTEXT))
    assert marked(request) == [0]
    assert "system" not in request
    assert "tools" not in request


def test_a_mark_carries_the_time_that_the_model_is_to_be_kept_for() -> None:
    llm = LLM("anthropic/claude-x", cache_ttl="1h")
    request = json.loads(render(manifest_for("messages"), commit("t", HELLO)).body(llm, CONTEXT))
    marks = [block["cache_control"] for block in flat_blocks(request) if "cache_control" in block]
    assert marks == [{"type": "ephemeral", "ttl": "1h"}] * 2


def test_a_mark_on_an_item_that_ends_in_white_space_leaves_valid_json() -> None:
    said = AssistantMessage((Text("so"),), provider="anthropic/messages", item='{"type": "text", "text": "so"}\n')
    check("messages", commit("t", HELLO, said))


# Single cases, each of which a provider has refused or would refuse for good.


def exchange_of(call: ToolCall, result: ToolResult | None = None) -> Commit:
    result = result or ToolResult(call.call_id, call.tool, (Text("seen"),))
    return commit("t", HELLO, call, result, AssistantMessage((Text("done"),), provider=call.provider))


@wires
@pytest.mark.parametrize("kind", ["tool_call", "tool_result", "user_message", "assistant_message"])
@pytest.mark.parametrize("damaged", [erased, unreadable], ids=["erased", "unreadable"])
def test_what_cannot_be_shown_any_more_leaves_calls_paired(wire: str, kind: str, damaged: Any) -> None:
    """An event that a newer version wrote may have a known kind and a body that only that version reads."""
    path = [
        damaged(event) if event.kind == kind else event for event in exchange_of(ToolCall("call_1", "look", '{"a": 1}'))
    ]
    request = check(wire, path)
    whole = check(wire, exchange_of(ToolCall("call_1", "look", '{"a": 1}')))
    key = "input" if wire == "responses" else "messages"
    assert len(request[key]) == len(whole[key]), f"a {kind} is gone without a trace from the {wire} prompt"


@wires
@pytest.mark.parametrize("id", ["functions.look:0", "é b", "x" * 65], ids=["functions.look:0", "é b", "65 letters"])
def test_a_call_and_its_result_have_the_same_id_however_strange_it_is(wire: str, id: str) -> None:
    """Kimi, for one, names its calls ``functions.look:0``, over whichever wire it is served."""
    origin = manifest_for(wire).origin
    item = json.dumps({"type": "function_call", "id": "fc_1", "call_id": id, "name": "look", "arguments": "{}"})
    own = ToolCall(id, "look", "{}", provider=origin, item=item if wire == "responses" else None)
    check(wire, exchange_of(ToolCall(id, "look", "{}", provider="elsewhere.example/chat")))
    request = json.loads(body_of(wire, exchange_of(own)))
    ids = {
        "chat": lambda: (request["messages"][2]["tool_calls"][0]["id"], request["messages"][3]["tool_call_id"]),
        "responses": lambda: (request["input"][1]["call_id"], request["input"][2]["call_id"]),
        "messages": lambda: (
            request["messages"][1]["content"][0]["id"],
            request["messages"][2]["content"][0]["tool_use_id"],
        ),
    }[wire]()
    assert ids[0] == ids[1], f"the call is {ids[0]!r} and its result answers {ids[1]!r}: {wire} refuses it for good"


def test_an_id_that_is_used_again_in_a_later_response_is_unique_where_the_provider_wants_it() -> None:
    """Some servers count calls from ``call_0`` in each response. Anthropic: "`tool_use` ids must be unique"."""
    call, result = ToolCall("call_0", "look", "{}"), ToolResult("call_0", "look", (Text("seen"),))
    check("messages", commit("t", HELLO, call, result, call, result))


@wires
@pytest.mark.parametrize("name", ["functions.look", "é b", "x" * 129], ids=["functions.look", "é b", "129 letters"])
def test_a_tool_s_name_that_a_model_made_up_does_not_end_the_conversation(wire: str, name: str) -> None:
    """A model may ask for any name. Sent back as it is, it would be refused in every later request."""
    check(wire, exchange_of(ToolCall("call_1", name, "{}", provider="elsewhere.example/chat")))


@pytest.mark.parametrize("wire", ["responses", "messages"])
def test_a_thought_that_nothing_follows_is_not_sent(wire: str) -> None:
    """A response that reached its limit while thinking again ends so. Both providers refuse it in a history."""
    origin = manifest_for(wire).origin
    item = '{"type":"reasoning","id":"rs_%d","summary":[],"encrypted_content":"enc"}'
    if wire == "responses":
        thoughts = [Reasoning(provider=origin, item=item % n) for n in (1, 2)]
    else:
        thoughts = [Reasoning("hm", "signed", provider=origin) for _ in (1, 2)]
    said = AssistantMessage((Text("so far"),), provider=origin)
    path = commit("t", HELLO, thoughts[0], said, thoughts[1])
    check(wire, path + next_turn(path, "go on"))


@wires
@pytest.mark.parametrize("opening", ['{"a":', "["], ids=["objects", "lists"])
def test_arguments_that_are_nested_too_deep_to_be_read_are_sent_all_the_same(wire: str, opening: str) -> None:
    closing = "}" if opening.startswith("{") else "]"
    arguments = opening * 5000 + "1" + closing * 5000
    try:
        body = body_of(wire, exchange_of(ToolCall("call_1", "look", arguments)))
    except RecursionError:
        pytest.fail(f"a call with 5,000 brackets makes every later {wire} request of its conversation fail")
    assert body


@wires
@pytest.mark.parametrize(
    "arguments", ["", " ", "{}", "null", "[1]", '"text"', "1", "{'a': 1}", '{"a": NaN}', '{"a": "\t"}']
)
def test_any_arguments_make_a_valid_request(wire: str, arguments: str) -> None:
    check(wire, exchange_of(ToolCall("call_1", "look", arguments)))


@wires
@pytest.mark.parametrize(
    "parts",
    [(), (Text("42"),), (Text("42"), Image("image/png", data="aGk=")), (Image("image/png", data="aGk="),)],
    ids=["nothing", "text", "text and picture", "picture"],
)
def test_a_result_that_is_not_done_never_looks_like_one_that_is(wire: str, parts: tuple[Part, ...]) -> None:
    """`ToolResult`: anything but ``done`` is shown to the model as an error."""

    def shown(status: Any) -> str:
        path = exchange_of(ToolCall("call_1", "look", "{}"), ToolResult("call_1", "look", parts, status))
        return render(manifest_for(wire), path).prefix

    alike = [status for status in dict.fromkeys(STATUSES) if status != "done" and shown(status) == shown("done")]
    assert not alike, f"on {wire} a model cannot tell these from a result that is done: {alike}"


@wires
def test_a_result_of_nothing_but_white_space_is_not_sent_as_such(wire: str) -> None:
    """A command that prints an empty line. Anthropic: "text content blocks must contain non-whitespace text"."""
    check(wire, exchange_of(ToolCall("call_1", "look", "{}"), ToolResult("call_1", "look", (Text("\n"),))))


FILES = {
    "a file by its address": File("paper.pdf", "application/pdf", url="https://files.example/paper.pdf"),
    "a plain text": File("notes.txt", "text/plain", data="aGVsbG8="),
    "a table": File("table.csv", "text/csv", data="YSxi"),
    "a drawing": Image("image/svg+xml", data="PHN2Zy8+"),
    "data beside an empty address": Image("image/png", data="aGk=", url=""),
}


@wires
@pytest.mark.parametrize("part", FILES.values(), ids=list(FILES))
def test_a_part_that_a_wire_cannot_carry_as_it_is_does_not_end_the_conversation(wire: str, part: Part) -> None:
    check(wire, commit("t", UserMessage((Text("see"), part))))
    check(wire, exchange_of(ToolCall("c", "look", "{}"), ToolResult("c", "look", (part,))))


@pytest.mark.parametrize("wire", ["chat", "messages"])
@pytest.mark.parametrize("leading", [True, False], ids=["leading", "in the middle"])
def test_a_picture_in_a_system_message_is_no_reason_to_be_refused(wire: str, leading: bool) -> None:
    system = SystemMessage((Text("look"), Image("image/png", data="aGk=")))
    path = commit("t", *([] if leading else [HELLO]), system, HELLO)
    check(wire, path)
    rendering = render(manifest_for(wire), path)
    assert rendering.losses, f"a picture in a system message is dropped on {wire}, and nothing says so"


@all_wires
def test_every_body_says_its_model_and_its_tools(wire: str) -> None:
    request = json.loads(body_of(wire, commit("t", HELLO)))
    names = [tool.get("name") or tool["function"]["name"] for tool in request["tools"]]
    assert request["model"] == ALL_MODELS[wire].name
    assert names == sorted(tool.name for tool in TOOLS)

"""Lists of messages from elsewhere: what they say as history, what is refused and where, and history as such a list."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import BadArgument, BadMessages, TooLarge
from forkpoint.events import (
    AssistantMessage,
    Event,
    File,
    Image,
    Imported,
    Position,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
    seal,
)
from forkpoint.history.pairing import NO_CALLS
from forkpoint.history.wholeness import check_whole
from forkpoint.wire.message_lists import MOST, read_list, write_list

DATA = "iVBORw0KGgo="
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
ODD = {"type": "server_tool_use"}
Messages = list[dict[str, Any]]


def path_of(messages: Any, format: str | None = None) -> list[Event]:
    """The path of a conversation that begins with a list."""
    new = read_list(messages, format).as_history()
    for event in new:
        check_whole(event)
    envelopes = [seal(event, n) for n, event in enumerate(new)]
    assert not NO_CALLS.after(envelopes), "every call has its result, in order"
    bodies = zip(envelopes, new, strict=True)
    return [Event(Position(1, n), "note", envelope, event.body) for n, (envelope, event) in enumerate(bodies, 1)]


def again(messages: Any, format: str) -> Messages:
    return write_list(format, path_of(messages))


def refused(messages: Any, format: str | None = None) -> tuple[str, int, str]:
    with pytest.raises(BadMessages) as error:
        read_list(messages, format)
    return error.value.place, error.value.index, error.value.why


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def called(*ids: str) -> list[dict[str, Any]]:
    return [{"id": id, "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}} for id in ids]


def result(id: str, text: str = "seen") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def used(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": {"at": "x"}}


def answered(id: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": list(parts or [text("seen")]), **more}


OPENAI: Messages = [
    {"role": "system", "content": "Be kind."},
    user("What is this?"),
    assistant("Let me look.", tool_calls=called("call_1", "call_2")),
    result("call_1"),
    result("call_2", "a tree"),
    assistant("A tree."),
    user([text("And this?"), {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}]),
    assistant(None, tool_calls=called("call_1")),
    result("call_1"),
    assistant("A house."),
    user("Thanks."),
]
ANTHROPIC: Messages = [
    user(
        [
            text("What is this?"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        ]
    ),
    assistant(
        [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "eA=="},
            text("Let me look."),
            text("Twice."),
            used("toolu_1"),
            used("toolu_2"),
        ]
    ),
    user([answered("toolu_1"), answered("toolu_2", text("broken"), is_error=True), text("Well?")]),
    assistant([used("toolu_3")]),
    user(
        [
            answered("toolu_3", {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
                "title": "report.pdf",
            },
        ]
    ),
    assistant([text("A tree.")]),
]


def test_a_list_of_chat_completions_says_what_its_messages_say() -> None:
    first, *rest = (event.body for event in path_of(OPENAI))
    assert first == Imported("openai messages", len(rest))
    assert rest[:6] == [
        SystemMessage((Text("Be kind."),)),
        UserMessage((Text("What is this?"),)),
        AssistantMessage((Text("Let me look."),), "openai/chat"),
        ToolCall("call_1", "look", '{"at":"x"}', provider="openai/chat"),
        ToolCall("call_2", "look", '{"at":"x"}', provider="openai/chat"),
        ToolResult("call_1", "look", (Text("seen"),)),
    ]
    assert rest[8] == UserMessage((Text("And this?"), Image("image/png", data=DATA)))


def test_a_list_in_anthropic_s_form_says_what_its_messages_say() -> None:
    first, *rest = (event.body for event in path_of(ANTHROPIC))
    assert first == Imported("anthropic messages", len(rest))
    by = "anthropic/messages"
    assert rest[1:6] == [
        Reasoning("Hm.", "c2ln", provider=by),
        Reasoning(encrypted="eA==", provider=by),
        AssistantMessage((Text("Let me look."), Text("Twice.")), by),
        ToolCall("toolu_1", "look", '{"at":"x"}', provider=by),
        ToolCall("toolu_2", "look", '{"at":"x"}', provider=by),
    ]
    assert rest[7:9] == [ToolResult("toolu_2", "look", (Text("broken"),), "failed"), UserMessage((Text("Well?"),))]
    assert rest[11] == UserMessage((File("report.pdf", "application/pdf", data="JVBERi0="),))


def test_a_list_comes_back_as_it_was() -> None:
    assert again(OPENAI, "openai") == OPENAI
    assert again(ANTHROPIC, "anthropic") == ANTHROPIC
    assert write_list("openai", []) == write_list("anthropic", []) == []


def test_a_list_in_the_other_form_says_the_same() -> None:
    crossed = again(ANTHROPIC, "openai")
    roles = ["user", "assistant", "tool", "tool", "user", "assistant", "tool", "user", "user", "assistant"]
    assert [one["role"] for one in crossed] == roles, "a picture that a tool returned is shown by the user there"
    assert crossed[1]["content"] == [text("Let me look."), text("Twice.")]
    assert crossed[3]["content"] == "Error: broken"
    other = again(OPENAI, "anthropic")
    assert [one["role"] for one in other] == [*["user", "assistant"] * 4, "user"]
    assert other[0]["content"] == [text("<system>\nBe kind.\n</system>"), text("What is this?")]
    calls = [block["id"] for one in other for block in one["content"] if block["type"] == "tool_use"]
    results = [block["tool_use_id"] for one in other for block in one["content"] if block["type"] == "tool_result"]
    assert calls == results
    assert len(set(calls)) == 3, "an id that came twice is told apart there"


def test_results_in_another_order_become_history_in_the_order_of_their_calls() -> None:
    swapped = [OPENAI[1], OPENAI[2], OPENAI[4], OPENAI[3]]
    assert again(swapped, "openai") == [OPENAI[1], OPENAI[2], OPENAI[3], OPENAI[4]]


def test_objects_of_an_sdk_are_messages_too() -> None:
    from anthropic.types import TextBlock
    from openai.types.chat import ChatCompletionMessage

    said = ChatCompletionMessage.model_validate(assistant(None, tool_calls=called("call_1")))
    assert again([user("Look."), said, result("call_1")], "openai")[1] == assistant(None, tool_calls=called("call_1"))
    blocks = [TextBlock(type="text", text="Hello.")]
    assert again([user("Hi"), assistant(blocks)], "anthropic")[1] == assistant([text("Hello.")])


REFUSED: dict[str, tuple[Any, str, str]] = {
    "no dict": ([user("a"), "b"], "messages[1]", "no object"),
    "no role": ([{"content": "a"}], "messages[0]", "role"),
    "an odd role": ([user("a"), {"role": "robot", "content": "a"}], "messages[1].role", "robot"),
    "a number": ([user(5)], "messages[0].content", "int"),
    "an odd part": ([user([text("a"), {"type": "video"}])], "messages[0].content[1].type", "video"),
    "blank": ([user("a"), assistant(" ")], "messages[1]", "blank"),
    "no object": ([user(object())], "messages[0]", "JSON"),
    "no text": ([user("\ud800")], "messages[0]", "JSON"),
    "a function call": ([user("a"), assistant(None, function_call={"name": "f"})], "messages[1].function_call", ""),
    "bad base64": (
        [user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}])],
        "messages[0].content[0].image_url.url",
        "base64",
    ),
    "a file's path": (
        [user([{"type": "image_url", "image_url": {"url": "/etc/passwd"}}])],
        "messages[0].content[0].image_url.url",
        "http",
    ),
    "a result too many": ([user("a"), result("call_1")], "messages[1]", "'call_1'"),
    "two results": (
        [user("a"), assistant(None, tool_calls=called("c")), result("c"), result("c")],
        "messages[3]",
        "no such call is open",
    ),
    "no result": (
        [user("a"), assistant(None, tool_calls=called("c", "d")), result("c"), user("b")],
        "messages[1]",
        "'d'",
    ),
    "open at the end": ([user("a"), assistant(None, tool_calls=called("c"))], "messages[1]", "'c' has no result"),
    "one id twice": ([assistant(None, tool_calls=called("c", "c"))], "messages[0].tool_calls[1].id", "same message"),
    "both forms": ([user([answered("a")]), result("a")], "messages[1]", "messages[0] is in the format anthropic"),
    "words before a result": (
        [user("a"), assistant([used("c")]), user([text("b"), answered("c")])],
        "messages[2].content[1]",
        "before everything else",
    ),
    "a blank block": ([user([text(" "), answered("c")])], "messages[0].content[0].text", "blank"),
    "a thought alone": (
        [user("a"), assistant([{"type": "thinking", "thinking": "a", "signature": "b"}])],
        "messages[1]",
        "thought",
    ),
    "an odd block": (
        [user("a"), assistant([used("c"), {"type": "server_tool_use"}])],
        "messages[1].content[1].type",
        "",
    ),
    "bad data": (
        [user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "!"}}])],
        "messages[0].content[0].source.data",
        "base64",
    ),
    "an address of a file": (
        [user([{"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}])],
        "messages[0].content[0].source.url",
        "https://",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_history_is_refused_by_its_place(what: str) -> None:
    messages, place, why = REFUSED[what]
    found = refused(messages)
    assert found[0] == place
    assert found[1] == int(place.partition("[")[2].partition("]")[0])
    assert why in found[2]


def test_what_is_no_list_of_a_known_form_is_refused() -> None:
    wrong: Any
    for wrong in ("messages", 5, None, {"role": "user", "content": "a"}, []):
        with pytest.raises(BadArgument, match="messages"):
            read_list(wrong)
    with pytest.raises(BadArgument, match="openai and anthropic"):
        read_list([user("a")], "gemini")
    with pytest.raises(BadArgument, match="openai and anthropic"):
        write_list("gemini", [])
    with pytest.raises(TooLarge):
        read_list([user("a")] * (MOST + 1))


def test_the_form_that_is_named_is_held_to() -> None:
    assert refused(ANTHROPIC, "openai")[0] == "messages[0].content[1].type"
    assert refused(OPENAI, "anthropic")[0] == "messages[0].role"
    assert read_list([user("a")]).format == "openai"
    assert read_list([user("a")], "anthropic").format == "anthropic"


words = st.text("ab ä\n", min_size=1, max_size=6).filter(str.strip)
pictures = st.just({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}})
contents = words | st.tuples(words.map(text), pictures).map(list)
ids = st.lists(st.text("abc123", min_size=1, max_size=3), min_size=1, max_size=3, unique=True)


@st.composite
def chats(draw: st.DrawFn) -> Messages:
    """A list of chat completions, as somebody who wrote it by the book would have it."""
    made: Messages = []
    for _ in range(draw(st.integers(1, 4))):
        made.append(user(draw(contents)))
        if draw(st.booleans()):
            chosen = draw(ids)
            made.append(assistant(draw(st.none() | words), tool_calls=called(*chosen)))
            made += [result(id, draw(words)) for id in chosen]
        made.append(assistant(draw(words)))
    return made


@st.composite
def blocks(draw: st.DrawFn) -> Messages:
    """The same in Anthropic's form: the roles take turns, and a result is in the next message."""
    made: Messages = []
    due: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        said = [text(one) for one in draw(st.lists(words, min_size=0 if due else 1, max_size=2))]
        made.append(user([*(answered(id) for id in due), *said]))
        due = draw(st.just([]) | ids)
        thought = [{"type": "thinking", "thinking": "t", "signature": "s"}] if draw(st.booleans()) else []
        spoken = [text(one) for one in draw(st.lists(words, min_size=0 if due else 1, max_size=2))]
        made.append(assistant([*thought, *spoken, *map(used, due)]))
    return [*made, user([answered(id) for id in due])] if due else made


@settings(max_examples=60, deadline=None, database=None)
@given(messages=chats())
def test_any_list_of_chat_completions_comes_back_and_crosses_over(messages: Messages) -> None:
    assert again(messages, "openai") == messages
    other = again(messages, "anthropic")
    back = again(other, "openai")
    assert _said(back) == _said(messages), "whatever was said is said there too"
    json.dumps(other)


@settings(max_examples=60, deadline=None, database=None)
@given(messages=blocks())
def test_any_list_in_anthropic_s_form_comes_back(messages: Messages) -> None:
    assert again([*messages], "anthropic") == messages or read_list(messages).format == "openai"
    assert write_list("anthropic", path_of(messages, "anthropic")) == messages


def _said(messages: Messages) -> list[Any]:
    """The words of a list, by role, without the ids of calls and without how they are divided into messages."""
    found: list[Any] = []
    for one in messages:
        content = one["content"]
        parts = content if isinstance(content, list) else [text(content)] if content else []
        found += [(one["role"], part.get("text", "picture")) for part in parts]
        found += [call["function"] for call in one.get("tool_calls", ())]
    return found

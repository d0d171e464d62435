"""Answers are what OpenAI's own clients read, byte for byte; and a client sees of a turn what it may."""

import json
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from forkpoint.events import (
    GONE,
    AnyBody,
    AssistantMessage,
    Imported,
    ModelCalled,
    NewEvent,
    Reasoning,
    StagedEvent,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    TurnStopped,
    Usage,
    UserMessage,
    seal,
)
from forkpoint.server.wires.chat.answer import (
    DONE,
    KEEP_ALIVE,
    Chunks,
    FinishedAnswer,
    completion,
    error_frame,
    finish_of,
    handed,
    visible,
)

USAGE = Usage(calls=2, input=100, cached=60, output=20, reasoning=5)
COUNTED = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 60},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
CALL = ToolCall("c1", "weather", '{"city": "Kyiv"}', client=True)


def said(**fields: Any) -> FinishedAnswer:
    given: dict[str, Any] = {"text": "Yes.", "usage": USAGE} | fields
    return FinishedAnswer(id="chatcmpl-1", model="m", created=7, **given)


def read(body: bytes) -> dict[str, Any]:
    """A completion, once OpenAI's own types have taken it as it is."""
    document: dict[str, Any] = json.loads(body)
    ChatCompletion.model_validate(document, strict=True)
    return document


def chunk(frame: bytes) -> dict[str, Any]:
    """What a frame says, once OpenAI's own types have taken it as it is."""
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    document: dict[str, Any] = json.loads(frame.removeprefix(b"data: "))
    ChatCompletionChunk.model_validate(document, strict=True)
    return document


def events(*bodies: AnyBody | tuple[int, AnyBody]) -> list[StagedEvent]:
    """Bodies as a turn's events; those that a model said come with the number of the response."""
    made = [NewEvent(body[1], body[0]) if isinstance(body, tuple) else NewEvent(body) for body in bodies]
    return [StagedEvent(seal(new, 0), new.body) for new in made]


def words(text: str) -> AssistantMessage:
    return AssistantMessage((Text(text),))


# Whole answers.


def test_an_answer_is_a_chat_completion() -> None:
    assert read(completion(said(), reasoning_field=True)) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Yes.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": COUNTED,
    }


def test_calls_for_the_client_stand_in_the_message() -> None:
    document = read(completion(said(text="", calls=(CALL,), finish="tool_calls"), reasoning_field=True))
    (choice,) = document["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Kyiv"}'}}
        ],
    }
    with_words = read(completion(said(calls=(CALL,)), reasoning_field=True))
    assert with_words["choices"][0]["message"]["content"] == "Yes."


@pytest.mark.parametrize(("shown", "expected"), [(True, "Hm."), (False, None)])
def test_thoughts_are_shown_if_they_are_to_be(shown: bool, expected: str | None) -> None:
    document = read(completion(said(reasoning="Hm."), reasoning_field=shown))
    assert document["choices"][0]["message"].get("reasoning_content") == expected


# Chunks.


def test_chunks_are_what_openai_sends() -> None:
    chunks = Chunks("chatcmpl-1", "m", 7, include_usage=False, reasoning=True)
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    frames = {
        chunks.role(): {"role": "assistant", "content": "", "refusal": None},
        chunks.text('Say "hi"\n\u2028'): {"content": 'Say "hi"\n\u2028'},
        chunks.reasoning("Hm."): {"reasoning_content": "Hm."},
        chunks.call(0, "c1", "weather", '{"a'): {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a'}}
            ]
        },
        chunks.arguments(1, '": 1}'): {"tool_calls": [{"index": 1, "function": {"arguments": '": 1}'}}]},
    }
    for frame, delta in frames.items():
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        assert chunk(frame) == common | {"choices": [choice]}
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert chunk(chunks.finish("length")) == common | {"choices": [end]}
    assert chunk(chunks.usage(USAGE)) == common | {"choices": [], "usage": COUNTED}


def test_openais_own_client_puts_the_chunks_together_to_the_whole_answer() -> None:
    chunks = Chunks("chatcmpl-1", "m", 7, include_usage=True, reasoning=True)
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for frame in (
        chunks.role(),
        chunks.text("Ye"),
        chunks.text("s."),
        chunks.call(0, "c1", "weather"),
        chunks.arguments(0, '{"city":'),
        chunks.call(1, "c2", "clock", "{}"),
        chunks.arguments(0, ' "Kyiv"}'),
        chunks.finish("tool_calls"),
        chunks.usage(USAGE),
    ):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk(frame)))
    calls = (CALL, ToolCall("c2", "clock", "{}", client=True))
    whole = ChatCompletion.model_validate(read(completion(said(calls=calls, finish="tool_calls"), True)))
    together = state.get_final_completion()
    assert together.usage == whole.usage
    assert together.choices[0].finish_reason == whole.choices[0].finish_reason
    message, expected = together.choices[0].message, whole.choices[0].message
    assert (message.role, message.content) == (expected.role, expected.content)
    asked = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    assert asked == [(call.call_id, call.tool, call.arguments) for call in calls]


def test_where_usage_is_asked_for_all_other_chunks_say_that_there_is_none_yet() -> None:
    chunks = Chunks("chatcmpl-1", "m", 7, include_usage=True, reasoning=True)
    for frame in (
        chunks.role(),
        chunks.text("a"),
        chunks.reasoning("b"),
        chunks.call(0, "c", "f"),
        chunks.finish("stop"),
    ):
        assert chunk(frame)["usage"] is None
        assert "usage" in chunk(frame)
    assert chunk(chunks.usage(USAGE))["usage"] == COUNTED


def test_thoughts_that_are_not_to_be_shown_are_no_chunk() -> None:
    assert Chunks("c", "m", 7, include_usage=False, reasoning=False).reasoning("Hm.") == b""


def test_a_name_that_needs_quoting_breaks_no_chunk() -> None:
    assert chunk(Chunks("c", 'a"b\n', 7, include_usage=False, reasoning=True).role())["model"] == 'a"b\n'


def test_a_stream_ends_lives_and_fails_in_lines_of_their_own() -> None:
    assert DONE == b"data: [DONE]\n\n"
    assert KEEP_ALIVE == b": keep-alive\n\n"
    assert error_frame({"error": {"message": "a\nb"}}) == b'data: {"error":{"message":"a\\nb"}}\n\n'


# What a client sees of a turn.


def test_the_words_of_all_responses_are_seen_with_a_blank_line_between() -> None:
    turn = events(
        UserMessage((Text("Rain?"),)),
        (1, Reasoning("Let me ")),
        (1, Reasoning("look.")),
        (1, words("I ")),
        (1, words("look.")),
        (1, ToolCall("o1", "ours", "{}")),
        ToolResult("o1", "ours", (Text("dry"),)),
        (2, ToolCall("o2", "ours", "{}")),
        ToolResult("o2", "ours"),
        (3, Reasoning("So.")),
        (3, AssistantMessage((Text("No"), Text(".")))),
    )
    assert visible(turn, only_last=False) == ("I look.\n\nNo.", "Let me look.\n\nSo.")
    assert visible(turn, only_last=True)[0] == "No."


def test_a_last_response_without_words_says_nothing() -> None:
    turn = events((1, words("I look.")), (1, ToolCall("o1", "ours", "{}")), ToolResult("o1", "ours"), (2, CALL))
    assert visible(turn, only_last=True) == ("", None)
    assert visible(turn, only_last=False) == ("I look.", None)


def test_a_correction_voids_what_was_said_before() -> None:
    turn = events(
        SystemMessage((Text("Be brief."),)),
        (1, Reasoning("Hm.")),
        (1, words("rain")),
        SystemMessage((Text("Answer again."),)),
        (2, words('{"rain": true}')),
    )
    assert visible(turn, only_last=False) == ('{"rain": true}', None)
    assert visible(turn[:4], only_last=True) == ("", None)


def test_what_a_client_brought_along_is_no_answer() -> None:
    turn = events(
        Imported("chat", 3),
        UserMessage((Text("1"),)),
        words("old"),
        SystemMessage((Text("Be kind."),)),
        UserMessage((Text("2"),)),
        (1, words("new")),
    )
    assert visible(turn, only_last=False) == ("new", None)


def test_what_was_erased_is_not_seen() -> None:
    (event,) = events((1, words("gone")))
    assert visible([StagedEvent(event.envelope, GONE)], only_last=False) == ("", None)


def test_the_clients_calls_are_handed_over_until_they_are_answered() -> None:
    other = ToolCall("c2", "clock", "{}", client=True)
    turn = events(
        ToolResult("c1", "weather", (Text("of the turn before"),)),
        (1, CALL),
        (1, ToolCall("o1", "ours", "{}")),
        (1, other),
        ToolResult("o1", "ours"),
    )
    assert handed(turn) == (CALL, other)
    assert handed([*turn, *events(ToolResult("c1", "weather"))]) == (other,)
    assert finish_of(turn) == "tool_calls"


def test_an_answer_that_was_cut_by_its_limit_says_so() -> None:
    cut, whole = (ModelCalled("m", "p", USAGE, finish=why) for why in ("length", "stop"))
    assert finish_of(events(whole, (1, words("a")), cut, (2, words("b")))) == "length"
    assert finish_of(events(cut, (1, words("a")), whole, (2, words("b")))) == "stop"
    assert finish_of([]) == "stop"
    filtered = ModelCalled("m", "p", USAGE, finish="filter")
    assert finish_of(events(filtered, (1, words("a")))) == "content_filter"


def test_a_turn_that_was_stopped_at_a_limit_ends_like_an_answer_that_was_cut_off() -> None:
    asked = ModelCalled("m", "p", USAGE, finish="tool_calls")
    assert finish_of(events(asked, (1, ToolCall("o1", "ours", "{}")), TurnStopped("steps", "1"))) == "length"

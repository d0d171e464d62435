"""From a provider's stream to an answer: the same answer however it is cut, and no answer that was not given whole."""

import asyncio
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.llm.test_scripts import ask

from forkpoint.errors import (
    AnswerMalformed,
    ContextTooLong,
    ErrorKind,
    ModelError,
    ModelUnavailable,
    RateLimited,
    RequestRefused,
)
from forkpoint.events import AssistantMessage, NewEvent, Reasoning, Text, ToolCall, Usage, encode_body, seal
from forkpoint.llm.answers import Answer
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.streams.chat import ChatStream
from forkpoint.llm.streams.messages import MessagesStream
from forkpoint.llm.streams.parts import mended
from forkpoint.llm.streams.responses import ResponsesStream
from forkpoint.testing import Reply, ScriptedCall
from forkpoint.updates import CallPiece, Piece, ReasoningPiece, TextPiece

few = settings(max_examples=40, deadline=None, database=None)
many = settings(max_examples=150, deadline=None, database=None)

STREAMS: dict[str, Any] = {"chat": ChatStream, "responses": ResponsesStream, "messages": MessagesStream}
MODEL = "openai/some-model"
ORIGIN = "host/wire"

Events = Sequence[Any]


runners: list[asyncio.Runner] = []


@pytest.fixture(scope="module", autouse=True)
def one_loop() -> Iterator[None]:
    """A loop for all: a `Hearing` needs one, and making one for each example would take most of the time."""
    with asyncio.Runner() as runner:
        runners.append(runner)
        yield
    runners.clear()


class Told:
    """What one stream came to: an answer or an error, and what was heard on the way."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.answer: Answer | None = None
        self.error: ModelError | None = None
        self.usage = Usage()
        self.response_id: str | None = None

    def pieces_of(self, kind: type[TextPiece] | type[ReasoningPiece]) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, kind))

    def calls(self) -> list[tuple[str, str, str]]:
        """Each call as its pieces tell it: id, tool, arguments."""
        told: dict[int, tuple[str, str, str]] = {}
        for piece in self.pieces:
            if isinstance(piece, CallPiece):
                call_id, tool, arguments = told.get(piece.index, ("", "", ""))
                told[piece.index] = (piece.call_id or call_id, piece.tool or tool, arguments + piece.arguments)
        return [told[index] for index in sorted(told)]


def tell(wire: str, events: Iterable[Any]) -> Told:
    """Feeds a stream, as a provider does it. Only a `ModelError` is an error that a stream may raise."""

    async def listen() -> Told:
        told = Told()
        hearing = Hearing(told.pieces.append)
        stream = STREAMS[wire](origin=ORIGIN, model=MODEL, hearing=hearing)
        try:
            for event in events:
                stream.feed(event)
            told.answer = stream.answer()
        except ModelError as error:
            told.error = error
        told.usage, told.response_id = hearing.usage, hearing.response_id
        return told

    return runners[0].run(listen())


def answered(wire: str, events: Iterable[Any]) -> Answer:
    told = tell(wire, events)
    assert told.answer is not None, f"a whole answer was refused: {told.error}"
    return told.answer


def failed(wire: str, events: Iterable[Any]) -> ModelError:
    told = tell(wire, events)
    assert told.error is not None, f"this is no answer, and was taken for one: {told.answer}"
    return told.error


# How each wire says things.


def chunk(delta: Any = None, finish: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {} if delta is None else delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "some-model"}
    return {**head, "choices": [choice], **more}


def call_delta(index: int, arguments: str | None = None, *, id: str | None = None, name: str | None = None) -> Any:
    delta: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if id is not None:
        delta |= {"id": id, "type": "function"}
    if name is not None:
        delta["function"]["name"] = name
    return delta


CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0, "cache_write_tokens": 30},
    "completion_tokens_details": {"reasoning_tokens": 7, "audio_tokens": 0},
}
CHAT_END = {**chunk(), "choices": [], "usage": CHAT_USAGE}

RESPONSES_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 7},
    "total_tokens": 120,
}


def response(status: str = "completed", **more: Any) -> dict[str, Any]:
    head = {"id": "resp_1", "object": "response", "status": status, "error": None, "incomplete_details": None}
    return {**head, "output": [], "usage": RESPONSES_USAGE, **more}


def created() -> dict[str, Any]:
    return {"type": "response.created", "sequence_number": 0, "response": response("in_progress", usage=None)}


def completed(**more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": response(**more)}


def incomplete(reason: str, **more: Any) -> dict[str, Any]:
    details = {"reason": reason}
    return {"type": "response.incomplete", "response": response("incomplete", incomplete_details=details, **more)}


def added(place: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": place, "item": item}


def done(place: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def message_item(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": content, **more}


def call_item(call_id: str, tool: str, arguments: Any, **more: Any) -> dict[str, Any]:
    head = {"id": f"fc_{call_id}", "type": "function_call", "status": "completed"}
    return {**head, "call_id": call_id, "name": tool, "arguments": arguments, **more}


MESSAGES_START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "usage": {
            "input_tokens": 6,
            "cache_read_input_tokens": 64,
            "cache_creation_input_tokens": 30,
            "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 1,
        },
    },
}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    opened = {"type": "content_block_start", "index": index, "content_block": start}
    filled = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [opened, *filled, {"type": "content_block_stop", "index": index}]


def text_block(index: int, *texts: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": text} for text in texts))


def tool_block(index: int, id: str, name: str, *arguments: str) -> list[dict[str, Any]]:
    start = {"type": "tool_use", "id": id, "name": name, "input": {}}
    return block(index, start, *({"type": "input_json_delta", "partial_json": part} for part in arguments))


def message_end(stop: str = "end_turn", **usage: Any) -> list[dict[str, Any]]:
    usage = usage or {"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 7}}
    delta = {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}
    return [delta, {"type": "message_stop"}]


# Whole conversations with each wire, as they really go, and exactly what they come to.

THOUGHT_ITEM = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "First"}, {"type": "summary_text", "text": "then"}],
    "encrypted_content": "gAAAA==",
}
SPENT = Usage(calls=1, input=100, cached=64, written=30, output=20, reasoning=7)

REAL: dict[str, tuple[str, list[Any], Answer]] = {
    "chat: text": (
        "chat",
        [
            chunk({"role": "assistant", "content": "", "refusal": None}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo."}),
            chunk({}, "stop"),
            CHAT_END,
        ],
        Answer((AssistantMessage((Text("Hello."),), provider=ORIGIN),), "stop", "chatcmpl-1"),
    ),
    "chat: thoughts, text and two calls": (
        "chat",
        [
            chunk({"role": "assistant", "content": None, "reasoning_content": "Hm"}),
            chunk({"reasoning_content": "m."}),
            chunk({"content": "I look."}),
            chunk({"tool_calls": [call_delta(0, "", id="call_a", name="read")]}),
            chunk({"tool_calls": [call_delta(0, '{"path": ')]}),
            chunk({"tool_calls": [call_delta(0, '"a"}')]}),
            chunk({"tool_calls": [call_delta(1, "", id="call_b", name="list")]}),
            chunk({"tool_calls": [call_delta(1, "{}")]}),
            chunk({}, "tool_calls"),
            CHAT_END,
        ],
        Answer(
            (
                Reasoning("Hmm.", provider=ORIGIN, item='{"in":"reasoning_content"}'),
                AssistantMessage((Text("I look."),), provider=ORIGIN),
                ToolCall("call_a", "read", '{"path": "a"}', provider=ORIGIN),
                ToolCall("call_b", "list", "{}", provider=ORIGIN),
            ),
            "tool_calls",
            "chatcmpl-1",
        ),
    ),
    "responses: thoughts, text and a call": (
        "responses",
        [
            created(),
            {"type": "response.in_progress", "response": response("in_progress", usage=None)},
            added(0, {**THOUGHT_ITEM, "summary": [], "encrypted_content": "gA"}),
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "First"},
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 1, "delta": "then"},
            done(0, THOUGHT_ITEM),
            added(1, message_item("", status="in_progress", content=[])),
            {"type": "response.content_part.added", "output_index": 1, "content_index": 0, "part": {}},
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "Hel"},
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "lo."},
            {"type": "response.output_text.done", "output_index": 1, "content_index": 0, "text": "Hello."},
            done(1, message_item("Hello.")),
            added(2, call_item("call_a", "read", "", status="in_progress")),
            {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"path": '},
            {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '"a"}'},
            {"type": "response.function_call_arguments.done", "output_index": 2, "arguments": '{"path": "a"}'},
            done(2, call_item("call_a", "read", '{"path": "a"}')),
            completed(),
        ],
        Answer(
            (
                Reasoning("First\n\nthen", provider=ORIGIN, item=json.dumps(THOUGHT_ITEM, separators=(",", ":"))),
                AssistantMessage(
                    (Text("Hello."),), provider=ORIGIN, item=json.dumps(message_item("Hello."), separators=(",", ":"))
                ),
                ToolCall(
                    "call_a",
                    "read",
                    '{"path": "a"}',
                    provider=ORIGIN,
                    item=json.dumps(call_item("call_a", "read", '{"path": "a"}'), separators=(",", ":")),
                ),
            ),
            "tool_calls",
            "resp_1",
        ),
    ),
    "messages: thoughts, text and two calls": (
        "messages",
        [
            MESSAGES_START,
            *block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "Hm"},
                {"type": "thinking_delta", "thinking": "m."},
                {"type": "signature_delta", "signature": "sig=="},
            ),
            {"type": "ping"},
            *text_block(1, "I ", "look."),
            *tool_block(2, "toolu_a", "read", "", '{"path": ', '"a"}'),
            *tool_block(3, "toolu_b", "list"),
            *message_end("tool_use"),
        ],
        Answer(
            (
                Reasoning("Hmm.", "sig==", provider=ORIGIN),
                AssistantMessage((Text("I look."),), provider=ORIGIN),
                ToolCall("toolu_a", "read", '{"path": "a"}', provider=ORIGIN),
                ToolCall("toolu_b", "list", "{}", provider=ORIGIN),
            ),
            "tool_calls",
            "msg_1",
        ),
    ),
}

each_real = pytest.mark.parametrize("name", REAL)


@each_real
def test_a_real_stream_gives_exactly_its_answer_and_its_usage(name: str) -> None:
    wire, events, expected = REAL[name]
    told = tell(wire, events)
    assert told.answer == expected
    assert told.usage == SPENT, "what was spent is not what the provider reported"
    assert told.response_id == expected.response_id


@each_real
def test_the_pieces_of_a_real_stream_say_what_its_answer_says(name: str) -> None:
    wire, events, expected = REAL[name]
    told = tell(wire, events)
    thoughts = "".join(body.text or "" for body in expected.said if isinstance(body, Reasoning))
    assert told.pieces_of(TextPiece) == expected.text
    assert told.pieces_of(ReasoningPiece) == thoughts.replace("\n\n", "")
    assert [(id, tool, arguments or "{}") for id, tool, arguments in told.calls()] == [
        (call.call_id, call.tool, call.arguments) for call in expected.calls
    ]


@each_real
def test_every_part_of_an_answer_can_be_stored(name: str) -> None:
    wire, events, _ = REAL[name]
    for body in answered(wire, events).said:
        encode_body(body)
        seal(NewEvent(body), 1)


@each_real
def test_a_stream_that_ends_anywhere_before_its_last_word_is_no_answer(name: str) -> None:
    wire, events, _ = REAL[name]
    terminal = {"chat": len(events) - 1, "responses": len(events), "messages": len(events)}[wire]
    for length in range(terminal):
        error = failed(wire, events[:length])
        assert isinstance(error, AnswerMalformed), f"after {length} events it is {error!r}"
        assert error.passing, "a stream that was cut may well succeed the next time"


def test_a_chat_that_said_why_it_ended_is_whole_even_if_its_usage_never_comes() -> None:
    wire, events, expected = REAL["chat: text"]
    told = tell(wire, events[:-1])
    assert told.answer == expected
    assert told.usage == Usage()


def test_what_was_spent_is_known_even_if_the_stream_is_cut_afterwards() -> None:
    messages = REAL["messages: thoughts, text and two calls"][1]
    assert tell("messages", messages[:1]).usage == Usage(calls=1, input=100, cached=64, written=30, output=1)
    assert tell("messages", messages[:-1]).usage == SPENT
    broken = [{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}]
    assert tell("messages", [*messages[:-1], *broken]).usage == SPENT
    assert tell("chat", [chunk({"content": "a"}), CHAT_END, {"error": {"message": "x"}}]).usage == SPENT
    failure = {"type": "response.failed", "response": response("failed", error={"code": "server_error"})}
    assert tell("responses", [created(), failure]).usage == SPENT
    assert tell("responses", [created(), incomplete("content_filter")]).usage == SPENT


def test_usage_that_a_chat_repeats_in_every_chunk_is_counted_once() -> None:
    growing = [{**chunk({"content": "a"}), "usage": {**CHAT_USAGE, "completion_tokens": n}} for n in (1, 10, 20)]
    assert tell("chat", [*growing, chunk({}, "stop"), CHAT_END]).usage == SPENT


def test_the_last_word_of_a_messages_server_on_its_usage_counts() -> None:
    last = message_end("end_turn", input_tokens=8, cache_read_input_tokens=64, output_tokens=5)
    told = tell("messages", [MESSAGES_START, *text_block(0, "a"), *last])
    assert told.usage == Usage(calls=1, input=8 + 64 + 30, cached=64, written=30, output=5)


def test_usage_with_nothing_known_of_caches_is_usage() -> None:
    plain = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": None}
    assert tell("chat", [{**CHAT_END, "usage": plain}]).usage == Usage(calls=1, input=5, output=2)
    deepseek = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 3, "prompt_cache_miss_tokens": 2}
    assert tell("chat", [{**CHAT_END, "usage": deepseek}]).usage == Usage(calls=1, input=5, cached=3, output=2)
    sparse = {"type": "response.completed", "response": {"usage": {"input_tokens": 5, "output_tokens": 2}}}
    assert tell("responses", [sparse]).usage == Usage(calls=1, input=5, output=2)


# However it is cut, it is one answer.

words_ = st.text(st.characters(exclude_categories=["Cs"]), max_size=24)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in arbitrary parts, empty ones among them."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def saying(draw: st.DrawFn) -> tuple[str, str, list[tuple[str, str, str]]]:
    """A thought, a text, and calls with their ids."""
    calls = draw(st.lists(st.tuples(st.sampled_from(["read", "list"]), words_), max_size=3))
    return draw(words_), draw(words_), [(f"call_{n}", tool, args) for n, (tool, args) in enumerate(calls)]


def check_said(told: Told, thought: str, text: str, calls: list[tuple[str, str, str]]) -> None:
    if not text.strip() and not calls:
        assert AnswerMalformed.model_empty.made(told.error)
        return
    assert told.answer is not None, f"a whole answer was refused: {told.error}"
    assert told.answer.text == (text if text.strip() else ""), "the text is not what was said"
    thoughts = [body.text for body in told.answer.said if isinstance(body, Reasoning)]
    assert thoughts == ([thought] if thought else [])
    given = [(call.call_id, call.tool, call.arguments) for call in told.answer.calls]
    assert given == [(id, tool, arguments or "{}") for id, tool, arguments in calls], "a call is not what was asked"
    assert told.answer.finish == ("tool_calls" if calls else "stop")
    assert told.pieces_of(TextPiece) == text
    assert told.pieces_of(ReasoningPiece) == thought
    assert told.calls() == calls
    for body in told.answer.said:
        encode_body(body)


@many
@given(data=st.data(), said=saying())
def test_a_chat_cut_into_arbitrary_deltas_is_the_same_answer(
    data: st.DataObject, said: tuple[str, str, list[tuple[str, str, str]]]
) -> None:
    thought, text, calls = said
    lanes = [[chunk({"reasoning": part}) for part in data.draw(cut(thought))]]
    lanes += [[chunk({"content": part}) for part in data.draw(cut(text))]]
    for index, (id, tool, arguments) in enumerate(calls):
        first = chunk({"tool_calls": [call_delta(index, "", id=id, name=tool)]})
        parts = [chunk({"tool_calls": [call_delta(index, part)]}) for part in data.draw(cut(arguments))]
        lanes.append([first, *parts])
    order = data.draw(st.permutations([n for n, lane in enumerate(lanes) for _ in lane]))
    feeds = [iter(lane) for lane in lanes]
    events = [next(feeds[n]) for n in order]
    check_said(tell("chat", [*events, chunk({}, "tool_calls" if calls else "stop"), CHAT_END]), thought, text, calls)


@many
@given(data=st.data(), said=saying())
def test_a_message_cut_into_arbitrary_deltas_is_the_same_answer(
    data: st.DataObject, said: tuple[str, str, list[tuple[str, str, str]]]
) -> None:
    thought, text, calls = said
    thinking = [{"type": "thinking_delta", "thinking": part} for part in data.draw(cut(thought))]
    lanes = [block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thinking)]
    lanes += [text_block(1, *data.draw(cut(text)))]
    lanes += [tool_block(n, id, tool, *data.draw(cut(args))) for n, (id, tool, args) in enumerate(calls, 2)]
    order = data.draw(st.permutations([n for n, lane in enumerate(lanes) for _ in lane]))
    feeds = [iter(lane) for lane in lanes]
    events = [next(feeds[n]) for n in order]
    end = message_end("tool_use" if calls else "end_turn")
    check_said(tell("messages", [MESSAGES_START, *events, *end]), thought, text, calls)


@many
@given(data=st.data(), said=saying())
def test_a_response_cut_into_arbitrary_deltas_is_the_same_answer(
    data: st.DataObject, said: tuple[str, str, list[tuple[str, str, str]]]
) -> None:
    thought, text, calls = said
    lanes: list[list[Any]] = []
    if thought:
        item = {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]}
        kind = "response.reasoning_summary_text.delta"
        parts = [{"type": kind, "output_index": 0, "delta": part} for part in data.draw(cut(thought))]
        lanes.append([added(0, {**item, "summary": []}), *parts, done(0, item)])
    kind = "response.output_text.delta"
    parts = [{"type": kind, "output_index": 1, "delta": part} for part in data.draw(cut(text))]
    lanes.append([added(1, message_item("")), *parts, done(1, message_item(text))])
    kind = "response.function_call_arguments.delta"
    for place, (id, tool, args) in enumerate(calls, 2):
        parts = [{"type": kind, "output_index": place, "delta": part} for part in data.draw(cut(args))]
        lanes.append([added(place, call_item(id, tool, "")), *parts, done(place, call_item(id, tool, args))])
    order = data.draw(st.permutations([n for n, lane in enumerate(lanes) for _ in lane]))
    feeds = [iter(lane) for lane in lanes]
    events = [next(feeds[n]) for n in order]
    check_said(tell("responses", [created(), *events, completed()]), thought, text, calls)


HALVES = ("\ud83d", "\ude00")


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        ("chat", [*(chunk({"content": half}) for half in HALVES), chunk({}, "stop")]),
        ("messages", [MESSAGES_START, *text_block(0, *HALVES), *message_end()]),
        ("responses", [done(0, message_item("".join(HALVES))), completed()]),
    ],
)
def test_a_character_that_is_split_over_two_pieces_is_one_character(wire: str, events: Events) -> None:
    answer = answered(wire, events)
    assert answer.text == "😀"
    for body in answer.said:
        encode_body(body)


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        ("chat", [*(chunk({"content": half}) for half in HALVES), chunk({}, "stop")]),
        ("messages", [MESSAGES_START, *text_block(0, *HALVES), *message_end()]),
        (
            "responses",
            [
                *({"type": "response.output_text.delta", "output_index": 0, "delta": half} for half in HALVES),
                done(0, message_item("😀")),
                completed(),
            ],
        ),
    ],
)
def test_every_piece_can_be_printed_even_if_a_character_was_split(wire: str, events: Events) -> None:
    told = tell(wire, events)
    assert mended(told.pieces_of(TextPiece)) == "😀"
    for piece in told.pieces:
        assert isinstance(piece, TextPiece)
        try:
            piece.text.encode()
        except UnicodeEncodeError:
            pytest.fail(f"print() and every JSON encoder raise on the piece {piece!r}")


def test_arguments_that_are_split_within_a_character_are_kept_as_one() -> None:
    parts = ('{"a": "', *HALVES, '"}')
    deltas = [chunk({"tool_calls": [call_delta(0, part)]}) for part in parts]
    first = chunk({"tool_calls": [call_delta(0, "", id="c", name="t")]})
    assert answered("chat", [first, *deltas, chunk({}, "tool_calls")]).calls[0].arguments == '{"a": "😀"}'
    events = [MESSAGES_START, *tool_block(0, "c", "t", *parts), *message_end("tool_use")]
    assert answered("messages", events).calls[0].arguments == '{"a": "😀"}'


def test_half_a_character_is_replaced_so_that_the_answer_can_be_stored() -> None:
    for wire, events in (
        ("chat", [chunk({"content": "a\ud83d"}), chunk({}, "stop")]),
        ("messages", [MESSAGES_START, *text_block(0, "a\ud83d"), *message_end()]),
        ("responses", [done(0, message_item("a\ud83d")), completed()]),
    ):
        for body in answered(wire, events).said:
            encode_body(body)


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\u00a0\t"])
def test_blank_text_beside_a_call_is_dropped(text: str) -> None:
    call = chunk({"content": text, "tool_calls": [call_delta(0, "{}", id="c", name="t")]})
    assert len(answered("chat", [call, chunk({}, "tool_calls")]).said) == 1
    blocks = [*text_block(0, text), *tool_block(1, "c", "t", "{}")]
    assert len(answered("messages", [MESSAGES_START, *blocks, *message_end("tool_use")]).said) == 1
    items = [done(0, message_item(text)), done(1, call_item("c", "t", "{}"))]
    assert len(answered("responses", [*items, completed()]).said) == 1


# Tool calls.

ODD_ARGUMENTS = ['{"b": 1, "a": 1.0}', ' {"a" :1}\n', '{"half": "cut o', "not JSON", '{"a":1,"a":2}', "[]", '"\\u00e9"']


@pytest.mark.parametrize("arguments", ODD_ARGUMENTS)
def test_arguments_are_kept_as_the_model_wrote_them_valid_or_not(arguments: str) -> None:
    call = chunk({"tool_calls": [call_delta(0, arguments, id="c", name="t")]})
    assert answered("chat", [call, chunk({}, "tool_calls")]).calls[0].arguments == arguments
    events = [MESSAGES_START, *tool_block(0, "c", "t", arguments), *message_end("tool_use")]
    assert answered("messages", events).calls[0].arguments == arguments
    events = [done(0, call_item("c", "t", arguments)), completed()]
    assert answered("responses", events).calls[0].arguments == arguments


def test_calls_without_an_index_are_told_apart() -> None:
    whole = [{"id": f"call_{n}", "function": {"name": "t", "arguments": f'{{"n":{n}}}'}} for n in range(3)]
    expected = [("call_0", '{"n":0}'), ("call_1", '{"n":1}'), ("call_2", '{"n":2}')]
    together = answered("chat", [chunk({"tool_calls": whole}), chunk({}, "tool_calls")])
    assert [(call.call_id, call.arguments) for call in together.calls] == expected
    apart = answered("chat", [*(chunk({"tool_calls": [call]}) for call in whole), chunk({}, "tool_calls")])
    assert [(call.call_id, call.arguments) for call in apart.calls] == expected


def test_a_call_without_an_index_goes_on_in_later_deltas_without_an_id() -> None:
    deltas: list[Any] = [
        {"id": "c", "function": {"name": "t", "arguments": '{"a":'}},
        {"function": {"arguments": "1}"}},
    ]
    answer = answered("chat", [*(chunk({"tool_calls": [delta]}) for delta in deltas), chunk({}, "tool_calls")])
    assert [(call.call_id, call.arguments) for call in answer.calls] == [("c", '{"a":1}')]


def test_whole_calls_that_all_have_the_index_zero_are_told_apart_by_their_ids() -> None:
    """Gateways to Gemini send parallel calls like this, one chunk for each."""
    whole = [call_delta(0, f'{{"n":{n}}}', id=f"call_{n}", name="t") for n in range(2)]
    answer = answered("chat", [*(chunk({"tool_calls": [call]}) for call in whole), chunk({}, "tool_calls")])
    assert [(call.call_id, call.arguments) for call in answer.calls] == [("call_0", '{"n":0}'), ("call_1", '{"n":1}')]


def test_an_id_and_a_name_that_are_repeated_with_every_delta_are_one_call() -> None:
    deltas = [call_delta(0, part, id="c", name="t") for part in ('{"a"', ":1}")]
    answer = answered("chat", [*(chunk({"tool_calls": [delta]}) for delta in deltas), chunk({}, "tool_calls")])
    assert [(call.call_id, call.arguments) for call in answer.calls] == [("c", '{"a":1}')]


def test_a_call_without_an_id_gets_one_and_of_two_equal_ids_one_is_changed() -> None:
    for wire, events in (
        (
            "chat",
            [
                chunk({"tool_calls": [call_delta(n, "{}", id=id, name="t")]})
                for n, id in enumerate(["same", "same", "", "other"])
            ]
            + [chunk({}, "tool_calls")],
        ),
        (
            "messages",
            [
                MESSAGES_START,
                *(e for n, id in enumerate(["same", "same", "", "other"]) for e in tool_block(n, id, "t", "{}")),
                *message_end("tool_use"),
            ],
        ),
        (
            "responses",
            [*(done(n, call_item(id, "t", "{}")) for n, id in enumerate(["same", "same", "", "other"])), completed()],
        ),
    ):
        ids = [call.call_id for call in answered(wire, events).calls]
        assert len(ids) == 4, f"{wire} lost a call"
        assert len(set(ids)) == 4, f"{wire} has two calls with one id: {ids}"
        assert all(ids)
        assert (ids[0], ids[3]) == ("same", "other"), "an id that was good was changed"


def test_arguments_that_came_as_an_object_are_kept_as_its_text() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "t", "arguments": {"a": 1}}}
    assert answered("chat", [chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]).calls[0].arguments == '{"a":1}'
    start = {"type": "tool_use", "id": "c", "name": "t", "input": {"a": 1}}
    events = [MESSAGES_START, *block(0, start), *message_end("tool_use")]
    assert answered("messages", events).calls[0].arguments == '{"a":1}'


def test_arguments_that_came_as_an_object_in_a_response_are_not_lost() -> None:
    told = tell("responses", [done(0, call_item("c", "t", {"a": 1})), completed()])
    if told.answer is not None:
        assert told.answer.calls[0].arguments == '{"a":1}', "the tool would run without what the model asked for"


def test_what_a_provider_wants_back_with_a_call_is_kept() -> None:
    call = call_delta(0, "{}", id="c", name="t") | {"extra_content": {"google": {"thought_signature": "s=="}}}
    answer = answered("chat", [chunk({"tool_calls": [call]}), chunk({}, "tool_calls")])
    assert answer.calls[0].item == '{"extra_content":{"google":{"thought_signature":"s=="}}}'
    start = {"type": "tool_use", "id": "c", "name": "t", "input": {}, "caller": {"type": "direct"}}
    answer = answered("messages", [MESSAGES_START, *block(0, start), *message_end("tool_use")])
    assert answer.calls[0].item == '{"caller":{"type":"direct"}}'


def test_a_call_that_names_no_tool_is_malformed() -> None:
    assert isinstance(
        failed("chat", [chunk({"tool_calls": [call_delta(0, "{}", id="c")]}), chunk({}, "tool_calls")]), AnswerMalformed
    )
    events = [MESSAGES_START, *tool_block(0, "c", "", "{}"), *message_end("tool_use")]
    assert isinstance(failed("messages", events), AnswerMalformed)
    assert isinstance(failed("responses", [done(0, call_item("c", "", "{}")), completed()]), AnswerMalformed)


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        ("chat", [chunk({"content": "a"}), chunk({}, "tool_calls")]),
        ("messages", [MESSAGES_START, *text_block(0, "a"), *message_end("tool_use")]),
    ],
)
def test_an_answer_without_calls_never_waits_for_tools(wire: str, events: Events) -> None:
    told = tell(wire, events)
    assert told.answer is None or told.answer.finish == "stop", "no tool will ever answer, so nobody must wait for one"


def test_an_answer_with_calls_waits_for_them_whatever_its_server_says() -> None:
    call = chunk({"tool_calls": [call_delta(0, "{}", id="c", name="t")]})
    assert answered("chat", [call, chunk({}, "stop")]).finish == "tool_calls"
    events = [MESSAGES_START, *tool_block(0, "c", "t", "{}"), *message_end("end_turn")]
    assert answered("messages", events).finish == "tool_calls"


# Thoughts.


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_chat_s_thoughts_remember_where_they_stood(name: str) -> None:
    answer = answered("chat", [chunk({name: "Hm."}), chunk({"content": "a"}), chunk({}, "stop")])
    assert answer.said[0] == Reasoning("Hm.", provider=ORIGIN, item=json.dumps({"in": name}, separators=(",", ":")))


def test_a_thought_that_is_sent_under_both_names_is_heard_once() -> None:
    both = chunk({"reasoning_content": "Hm.", "reasoning": "Hm."})
    told = tell("chat", [both, chunk({"content": "a"}), chunk({}, "stop")])
    assert told.answer is not None
    assert isinstance(told.answer.said[0], Reasoning)
    assert told.answer.said[0].text == "Hm."
    assert told.pieces_of(ReasoningPiece) == "Hm."


def test_reasoning_details_are_kept_to_be_sent_back() -> None:
    detail = {"type": "reasoning.encrypted", "data": "x==", "id": "r1", "format": "openai-responses-v1", "index": 0}
    events = [chunk({"reasoning": "Hm.", "reasoning_details": [detail]}), chunk({"content": "a"}), chunk({}, "stop")]
    thought = answered("chat", events).said[0]
    assert isinstance(thought, Reasoning)
    assert (thought.text, json.loads(thought.item or "")) == ("Hm.", {"reasoning_details": [detail]})


def test_a_reasoning_detail_that_comes_in_pieces_is_sent_back_as_one_with_its_signature() -> None:
    """A thought of Claude's, as OpenRouter streams it: a part without its signature would be refused."""
    head = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    pieces = [{**head, "text": "Hm"}, {**head, "text": "m."}, {**head, "signature": "s=="}]
    events = [chunk({"reasoning_details": [piece]}) for piece in pieces]
    thought = answered("chat", [*events, chunk({"content": "a"}), chunk({}, "stop")]).said[0]
    assert isinstance(thought, Reasoning)
    assert json.loads(thought.item or "") == {"reasoning_details": [{**head, "text": "Hmm.", "signature": "s=="}]}


def test_encrypted_thoughts_without_a_summary_are_kept() -> None:
    item = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gA=="}
    thought = answered("responses", [done(0, item), done(1, message_item("a")), completed()]).said[0]
    assert thought == Reasoning(provider=ORIGIN, item=json.dumps(item, separators=(",", ":")))


def test_what_came_with_the_finished_item_counts_and_not_what_it_began_with() -> None:
    begun = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "part"}
    whole = {**begun, "encrypted_content": "whole"}
    thought = answered(
        "responses", [added(0, begun), done(0, whole), done(1, message_item("a")), completed(output=[begun])]
    ).said[0]
    assert json.loads(thought.item or "") == whole


REDACTED = {"type": "redacted_thinking", "data": "x=="}


def test_redacted_thoughts_and_thoughts_whose_text_is_left_out_are_kept() -> None:
    redacted = block(0, REDACTED)
    silent = block(
        1,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "signature_delta", "signature": "s="},
        {"type": "signature_delta", "signature": "="},
    )
    empty = block(2, {"type": "thinking", "thinking": "", "signature": ""})
    events = [MESSAGES_START, *redacted, *silent, *empty, *text_block(3, "a"), *message_end()]
    assert answered("messages", events).said == (
        Reasoning(encrypted="x==", provider=ORIGIN),
        Reasoning(None, "s==", provider=ORIGIN),
        AssistantMessage((Text("a"),), provider=ORIGIN),
    )


WORDLESS = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gA=="}
SAYS_IT = [
    added(1, message_item("")),
    *({"type": "response.output_text.delta", "output_index": 1, "delta": text} for text in "ab"),
    done(1, message_item("ab")),
]
SILENT = {"type": "thinking", "thinking": "", "signature": "s=="}
DETAIL = {"type": "reasoning.encrypted", "data": "x==", "index": 0}


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        ("responses", [added(0, WORDLESS), done(0, WORDLESS), *SAYS_IT, completed()]),
        ("messages", [MESSAGES_START, *block(0, SILENT), *text_block(1, "a", "b"), *message_end()]),
        ("messages", [MESSAGES_START, *block(0, REDACTED), *text_block(1, "a", "b"), *message_end()]),
        ("chat", [chunk({"reasoning_details": [DETAIL]}), chunk({"content": "a"}), chunk({"content": "b"}, "stop")]),
    ],
)
def test_a_thought_without_a_word_is_told_once_before_what_follows_it(wire: str, events: Events) -> None:
    assert tell(wire, events).pieces == [ReasoningPiece(""), TextPiece("a"), TextPiece("b")]


def test_thoughts_between_calls_stay_where_they_stood() -> None:
    def thinking(index: int, text: str) -> list[Any]:
        start = {"type": "thinking", "thinking": text, "signature": f"{text}=="}
        return block(index, start)

    blocks = [*thinking(0, "one"), *tool_block(1, "c", "t", "{}"), *thinking(2, "two"), *tool_block(3, "d", "t", "{}")]
    answer = answered("messages", [MESSAGES_START, *blocks, *message_end("tool_use")])
    assert [type(body) for body in answer.said] == [Reasoning, ToolCall, Reasoning, ToolCall]


def test_items_of_a_response_stand_in_the_order_of_their_places() -> None:
    events = [done(2, call_item("b", "t", "{}")), done(0, THOUGHT_ITEM), done(1, call_item("a", "t", "{}"))]
    answer = answered("responses", [*events, completed()])
    assert [type(body) for body in answer.said] == [Reasoning, ToolCall, ToolCall]
    assert [call.call_id for call in answer.calls] == ["a", "b"]


def test_citations_are_kept_with_their_text() -> None:
    citation = {"type": "char_location", "cited_text": "x", "document_index": 0, "start_char_index": 0}
    deltas: list[Any] = [{"type": "text_delta", "text": "a"}, {"type": "citations_delta", "citation": citation}]
    answer = answered("messages", [MESSAGES_START, *block(0, {"type": "text", "text": ""}, *deltas), *message_end()])
    message = answer.said[0]
    assert isinstance(message, AssistantMessage)
    assert json.loads(message.item or "") == {"type": "text", "text": "a", "citations": [citation]}


def test_annotations_of_a_response_s_text_are_kept_with_it() -> None:
    part = {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation", "url": "u"}]}
    message = answered("responses", [done(0, message_item("", content=[part])), completed()]).said[0]
    assert json.loads(message.item or "")["content"] == [part]


def test_the_work_of_a_provider_s_own_tool_is_kept_whole() -> None:
    start = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    asked = block(0, start, {"type": "input_json_delta", "partial_json": '{"query": "a"}'})
    found = block(1, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []})
    answer = answered("messages", [MESSAGES_START, *asked, *found, *text_block(2, "a"), *message_end()])
    kept = [json.loads(body.item or "") for body in answer.said if isinstance(body, Reasoning)]
    assert [item["type"] for item in kept] == ["server_tool_use", "web_search_tool_result"]
    assert kept[0]["input"] == {"query": "a"}, "what the tool was asked came in deltas, and is lost"


def test_an_item_of_a_kind_that_nobody_knows_is_kept_verbatim() -> None:
    item = {"type": "from_the_future", "id": "x", "a": [1, None]}
    thought = answered("responses", [done(0, item), done(1, message_item("a")), completed()]).said[0]
    assert thought == Reasoning(provider=ORIGIN, item=json.dumps(item, separators=(",", ":")))


# What is no answer.


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        ("chat", [chunk({"role": "assistant", "content": ""}), chunk({}, "stop"), CHAT_END]),
        ("chat", [chunk({"content": " \n"}), chunk({}, "stop")]),
        ("chat", [chunk({"reasoning_content": "Hm."}), chunk({}, "stop")]),
        ("chat", [chunk({"reasoning": "Hm."}), chunk({}, "length")]),
        ("chat", [chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}), chunk({}, "stop")]),
        ("messages", [MESSAGES_START, *message_end()]),
        ("messages", [MESSAGES_START, *text_block(0, " "), *message_end()]),
        ("messages", [MESSAGES_START, *block(0, {"type": "thinking", "thinking": "Hm."}), *message_end()]),
        ("messages", [MESSAGES_START, *block(0, {"type": "redacted_thinking", "data": "x"}), *message_end()]),
        ("responses", [created(), completed()]),
        ("responses", [created(), done(0, message_item("")), completed()]),
        ("responses", [created(), done(0, THOUGHT_ITEM), completed()]),
        ("responses", [created(), done(0, THOUGHT_ITEM), incomplete("max_output_tokens")]),
    ],
)
def test_nothing_and_nothing_but_thoughts_is_an_empty_answer(wire: str, events: Events) -> None:
    assert AnswerMalformed.model_empty.made(failed(wire, events))


def test_an_answer_whose_tokens_all_went_into_thoughts_says_so() -> None:
    assert "thoughts" in failed("chat", [chunk({"reasoning": "Hm."}), chunk({}, "length")]).detail


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        ("chat", [chunk({"content": "Hel"}), chunk({}, "length")]),
        ("messages", [MESSAGES_START, *text_block(0, "Hel"), *message_end("max_tokens")]),
        ("messages", [MESSAGES_START, *text_block(0, "Hel"), *message_end("model_context_window_exceeded")]),
        ("responses", [done(0, message_item("Hel", status="incomplete")), incomplete("max_output_tokens")]),
    ],
)
def test_text_that_reached_the_limit_is_an_answer_that_says_so(wire: str, events: Events) -> None:
    answer = answered(wire, events)
    assert (answer.text, answer.finish) == ("Hel", "length")


CUT_CALLS = ["", "{", '{"path": "a', '{"path": "a"']


@pytest.mark.parametrize("arguments", CUT_CALLS)
@pytest.mark.parametrize("wire", STREAMS)
def test_a_call_that_was_cut_off_by_the_limit_is_never_run(wire: str, arguments: str) -> None:
    events: dict[str, list[Any]] = {
        "chat": [chunk({"tool_calls": [call_delta(0, arguments, id="c", name="t")]}), chunk({}, "length")],
        "messages": [MESSAGES_START, *tool_block(0, "c", "t", arguments), *message_end("max_tokens")],
        "responses": [done(0, call_item("c", "t", arguments, status="incomplete")), incomplete("max_output_tokens")],
    }
    error = failed(wire, events[wire])
    assert isinstance(error, AnswerMalformed), f"the call is cut after {arguments!r}, and this is {error!r}"


def test_a_whole_call_before_the_limit_is_an_answer() -> None:
    call = chunk({"tool_calls": [call_delta(0, '{"a":1}', id="c", name="t")]})
    assert answered("chat", [call, chunk({}, "length")]).calls[0].arguments == '{"a":1}'


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        ("chat", [chunk({"refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop")]),
        ("chat", [chunk({"reasoning": "Hm."}), chunk({}, "content_filter")]),
        ("messages", [MESSAGES_START, *text_block(0, "Hel"), *message_end("refusal")]),
        ("responses", [done(0, message_item("", content=[{"type": "refusal", "refusal": "I cannot."}])), completed()]),
        ("responses", [done(0, THOUGHT_ITEM), incomplete("content_filter")]),
    ],
)
def test_a_refusal_is_no_answer(wire: str, events: Events) -> None:
    error = failed(wire, events)
    assert RequestRefused.model_refused.made(error)
    assert not error.passing, "asking again would only cost again"


def test_a_refusal_says_what_the_model_said() -> None:
    chat = [chunk({"refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop")]
    assert failed("chat", chat).detail == "I cannot."


def test_a_refusal_says_why_if_its_provider_does() -> None:
    delta = {"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "It could do harm."}}
    events = [MESSAGES_START, {"type": "message_delta", "delta": delta}, {"type": "message_stop"}]
    assert failed("messages", events).detail == "It could do harm."


# The table of docs/failed-turns.md: what becomes of an answer, by how its provider ended it and by what it has.

PAGE = Path(__file__).parents[2] / "docs" / "failed-turns.md"
HAS = ("text", "only thoughts", "text, then thoughts", "whole calls", "a call that is cut", "nothing")
WAYS = ("at its end", "at a limit of tokens", "by a filter", "by a refusal", "for another reason", "not at all")
ENDINGS: dict[str, dict[str, list[str]]] = {
    "chat": {
        "at its end": ["stop", "tool_calls"],
        "at a limit of tokens": ["length", "max_tokens"],
        "by a filter": ["content_filter"],
        "by a refusal": ["stop"],
        "for another reason": ["abort"],
        "not at all": [""],
    },
    "responses": {
        "at its end": ["completed"],
        "at a limit of tokens": ["max_output_tokens"],
        "by a filter": ["content_filter"],
        "by a refusal": ["completed"],
        "for another reason": ["from_the_future"],
        "not at all": [""],
    },
    "messages": {
        "at its end": ["end_turn", "tool_use", "stop_sequence"],
        "at a limit of tokens": ["max_tokens", "model_context_window_exceeded"],
        "by a filter": [],  # this wire knows a refusal alone
        "by a refusal": ["refusal"],
        "for another reason": ["pause_turn"],
        "not at all": [""],
    },
    "scripted": {"at its end": [""], "at a limit of tokens": ["length"], "by a filter": ["filter"]},
}
CASES = [
    (wire, end, word, has)
    for wire, ends in ENDINGS.items()
    for end, written in ends.items()
    for word in written
    for has in HAS
    if not (wire == "scripted" and has == "text, then thoughts")  # a script always thinks first
]


def in_chat(end: str, word: str, has: str) -> list[Any]:
    said: dict[str, list[Any]] = {
        "text": [{"content": "Hel"}],
        "only thoughts": [{"reasoning": "Hm."}],
        "text, then thoughts": [{"content": "Hel"}, {"reasoning": "Hm."}],
        "whole calls": [{"tool_calls": [call_delta(0, '{"a":1}', id="c", name="t")]}],
        "a call that is cut": [{"tool_calls": [call_delta(0, '{"a', id="c", name="t")]}],
        "nothing": [],
    }
    refusal = [chunk({"refusal": "No."})] if end == "by a refusal" else []
    return [*map(chunk, said[has]), *refusal, *([chunk({}, word)] if word else [])]


def in_responses(end: str, word: str, has: str) -> list[Any]:
    status = "completed" if word == "completed" else "incomplete"
    items: dict[str, list[Any]] = {
        "text": [message_item("Hel", status=status)],
        "only thoughts": [THOUGHT_ITEM],
        "text, then thoughts": [message_item("Hel"), THOUGHT_ITEM],
        "whole calls": [call_item("c", "t", '{"a":1}')],
        "a call that is cut": [call_item("c", "t", '{"a', status=status)],
        "nothing": [],
    }
    refusal = [message_item("", content=[{"type": "refusal", "refusal": "No."}])] if end == "by a refusal" else []
    last = {"completed": [completed()], "": []}.get(word, [incomplete(word)])
    return [created(), *(done(place, item) for place, item in enumerate([*items[has], *refusal])), *last]


def in_messages(end: str, word: str, has: str) -> list[Any]:
    thought = {"type": "thinking", "thinking": "Hm."}
    blocks: dict[str, list[Any]] = {
        "text": text_block(0, "Hel"),
        "only thoughts": block(0, thought),
        "text, then thoughts": [*text_block(0, "Hel"), *block(1, thought)],
        "whole calls": tool_block(0, "c", "t", '{"a":1}'),
        "a call that is cut": tool_block(0, "c", "t", '{"a'),
        "nothing": [],
    }
    return [MESSAGES_START, *blocks[has], *(message_end(word) if word else [])]


def scripted(word: str, has: str) -> tuple[Answer | None, ModelError | None]:
    said: dict[str, Reply] = {
        "text": Reply("Hel"),
        "only thoughts": Reply(reasoning="Hm."),
        "whole calls": Reply(calls=(ScriptedCall("t", '{"a":1}'),)),
        "a call that is cut": Reply(calls=(ScriptedCall("t", '{"a'),)),
        "nothing": Reply(),
    }
    asked = ask(replace(said[has], finish=word or None))
    return asked.answer, asked.error


def table() -> dict[str, dict[str, str]]:
    """What the page says, by the end and by what an answer has."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    start = next(n for n, row in enumerate(rows) if tuple(row[1:]) == HAS)
    return {row[0]: dict(zip(HAS, (cell.strip("`") for cell in row[1:]), strict=True)) for row in rows[start + 1 :][:6]}


@pytest.mark.parametrize(("wire", "end", "word", "has"), CASES)
def test_what_becomes_of_an_answer_is_as_the_page_says(wire: str, end: str, word: str, has: str) -> None:
    if wire == "scripted":
        answer, error = scripted(word, has)
    else:
        made = {"chat": in_chat, "responses": in_responses, "messages": in_messages}[wire](end, word, has)
        told = tell(wire, made)
        answer, error = told.answer, told.error
    came = answer.finish if answer is not None else error.code if error is not None else ""
    assert came == table()[end][has]
    if error is not None and end == "at a limit of tokens":
        assert error.lasting, "asked again it would be cut again, and cost again"


def test_the_page_has_a_row_for_each_way_in_which_an_answer_ends() -> None:
    assert tuple(table()) == WAYS


@pytest.mark.parametrize("reason", ["insufficient_system_resource", "abort", "error", "recitation"])
def test_a_chat_that_stopped_for_a_reason_that_is_no_end_is_no_answer(reason: str) -> None:
    """DeepSeek's servers stop like this when they run out of room, vLLM's and SGLang's when a request is aborted."""
    told = tell("chat", [chunk({"content": "Hel"}), chunk({}, reason)])
    assert told.answer is None, f"an answer that was broken off by {reason!r} counts as {told.answer}"


@pytest.mark.parametrize("reason", ["pause_turn", "compaction", "from_the_future"])
def test_a_message_that_stopped_for_a_reason_that_is_no_end_is_no_answer(reason: str) -> None:
    error = failed("messages", [MESSAGES_START, *text_block(0, "Hel"), *message_end(reason)])
    assert isinstance(error, AnswerMalformed)
    assert reason in error.detail


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress", "queued"])
def test_a_response_that_says_it_is_not_completed_is_no_answer(status: str) -> None:
    told = tell("responses", [done(0, message_item("a")), {"type": "response.completed", "response": response(status)}])
    assert told.answer is None, f"a response whose status is {status!r} was taken for an answer"


def test_a_response_whose_last_event_says_incomplete_is_incomplete_even_if_its_status_is_left_out() -> None:
    end = {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}}
    assert answered("responses", [done(0, message_item("Hel")), end]).finish == "length"
    end = {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "content_filter"}}}
    assert answered("responses", [done(0, message_item("Hel")), end]).finish == "filter"


def test_an_item_that_was_begun_and_never_finished_is_not_left_out_in_silence() -> None:
    events = [done(0, message_item("I look.")), added(1, call_item("c", "t", "", status="in_progress"))]
    told = tell("responses", [*events, completed()])
    assert told.answer is None, f"a call was begun, and the answer is without it: {told.answer}"


def test_items_that_only_the_last_event_has_are_part_of_the_answer() -> None:
    items = [message_item("I look."), call_item("c", "t", "{}")]
    assert len(answered("responses", [created(), completed(output=items)]).said) == 2
    told = tell("responses", [created(), done(0, items[0]), completed(output=items)])
    assert told.answer is None or len(told.answer.said) == 2, "the last event has a call that the answer lacks"


def test_a_block_that_was_never_closed_is_no_answer() -> None:
    events = [MESSAGES_START, *text_block(0, "a"), *tool_block(1, "c", "t", "{}")[:-1], *message_end("tool_use")]
    assert isinstance(failed("messages", events), AnswerMalformed)


def test_a_block_that_goes_on_before_it_begins_is_malformed() -> None:
    events = [MESSAGES_START, *text_block(0, "a")[1:], *message_end()]
    assert isinstance(failed("messages", events), AnswerMalformed)


def test_blocks_without_an_index_do_not_replace_each_other() -> None:
    blocks = [*text_block(0, "I look."), *tool_block(1, "c", "t", "{}")]
    bare = [{name: value for name, value in event.items() if name != "index"} for event in blocks]
    told = tell("messages", [MESSAGES_START, *bare, *message_end("tool_use")])
    assert told.answer is None or told.answer.text == "I look.", "the text gave way to the call, and nobody is told"


# Errors within a stream.

ERRORS: list[tuple[str, Any, ErrorKind]] = [
    ("chat", {"error": {"message": "m", "type": "server_error", "code": None}}, ModelUnavailable),
    ("chat", {"error": {"code": 429, "message": "m", "metadata": {"provider_name": "x"}}}, RateLimited),
    ("chat", {"error": {"code": 502, "message": "Provider returned error"}}, ModelUnavailable),
    ("chat", {"id": "gen-1", "choices": [], "error": {"code": "server_error", "message": "m"}}, ModelUnavailable),
    ("chat", {"error": {"code": 400, "message": "m", "type": "exceed_context_size_error"}}, ContextTooLong),
    ("chat", {"error": {"code": 402, "message": "m"}}, RequestRefused.model_quota),
    ("chat", {"error": "something broke"}, ModelUnavailable),
    ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, ModelUnavailable),
    ("messages", {"type": "error", "error": {"type": "api_error", "message": "m"}}, ModelUnavailable),
    ("messages", {"type": "error", "error": {"type": "rate_limit_error", "message": "m"}}, RateLimited),
    ("messages", {"type": "error", "error": {"type": "timeout_error", "message": "m"}}, ModelUnavailable.model_timeout),
    (
        "messages",
        {"type": "error", "error": {"type": "authentication_error", "message": "m"}},
        RequestRefused.model_authentication,
    ),
    ("messages", {"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}, RequestRefused),
    ("messages", {"type": "error"}, ModelUnavailable),
    ("responses", {"type": "error", "code": "server_error", "message": "m", "param": None}, ModelUnavailable),
    ("responses", {"type": "error", "code": "rate_limit_exceeded", "message": "m"}, RateLimited),
    (
        "responses",
        {"type": "error", "error": {"code": "insufficient_quota", "message": "m"}},
        RequestRefused.model_quota,
    ),
    ("responses", {"type": "error", "code": None, "message": "m"}, ModelUnavailable),
    *(
        ("responses", {"type": "response.failed", "response": response("failed", error={"code": c, "message": "m"})}, e)
        for c, e in (
            ("server_error", ModelUnavailable),
            ("rate_limit_exceeded", RateLimited),
            ("invalid_prompt", RequestRefused.model_refused),
            ("context_length_exceeded", ContextTooLong),
            ("bio_policy", RequestRefused.model_refused),
            ("misalignment_policy_violation", RequestRefused.model_refused),
            ("invalid_image", RequestRefused),
            ("image_content_policy_violation", RequestRefused.model_refused),
        )
    ),
]


@pytest.mark.parametrize(("wire", "event", "expected"), ERRORS, ids=lambda value: json.dumps(value, default=str)[:90])
def test_an_error_within_a_stream_is_the_error_that_it_names(wire: str, event: Any, expected: ErrorKind) -> None:
    begun = {"chat": [chunk({"content": "Hel"})], "messages": [MESSAGES_START, *text_block(0, "Hel")]}
    error = failed(wire, [*begun.get(wire, [created()]), event])
    assert error.code == expected.code, f"{event} became {error!r}"
    assert error.model == MODEL


# Whatever comes, a stream says so in our words or not at all.

odd_texts = st.text(max_size=6) | st.sampled_from(["\ud83d", "\ude00", "stop", "{}", "tool_use", "length"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | odd_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_texts, inner, max_size=3),
    max_leaves=6,
)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object in which any field may be missing or be anything."""
    return st.fixed_dictionaries({}, optional={name: value | values for name, value in fields.items()})


def one_of(*texts: str | None) -> st.SearchStrategy[Any]:
    return st.sampled_from(texts)


function = maybe(name=one_of("t"), arguments=one_of("{}", "{", "") | values)
chat_events = maybe(
    id=odd_texts,
    usage=maybe(prompt_tokens=values, prompt_tokens_details=maybe(cached_tokens=values), completion_tokens=values),
    choices=st.lists(
        maybe(
            delta=maybe(
                content=odd_texts,
                refusal=odd_texts,
                reasoning=odd_texts,
                reasoning_details=st.lists(values, max_size=2),
                tool_calls=st.lists(maybe(index=st.integers(0, 2), id=odd_texts, function=function), max_size=2),
            ),
            finish_reason=one_of("stop", "length", "tool_calls", None),
        ),
        max_size=1,
    ),
)
parts = st.lists(maybe(type=one_of("output_text", "refusal", "summary_text"), text=odd_texts), max_size=2)
items = maybe(
    type=one_of("message", "function_call", "reasoning", "other"),
    call_id=odd_texts,
    name=one_of("t"),
    arguments=values,
    status=one_of("completed", "incomplete"),
    summary=parts,
    content=parts,
)
responses_events = maybe(
    type=one_of(
        "response.output_item.done",
        "response.output_item.added",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.reasoning_text.delta",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    ),
    output_index=st.integers(0, 2),
    item=items,
    delta=odd_texts,
    response=maybe(
        id=odd_texts,
        status=one_of("completed", "incomplete"),
        incomplete_details=maybe(reason=one_of("max_output_tokens")),
        output=st.lists(items, max_size=2),
        usage=maybe(input_tokens=values, input_tokens_details=values),
        error=values,
    ),
)
messages_events = maybe(
    type=one_of(
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ),
    index=st.integers(0, 2),
    message=maybe(id=odd_texts, usage=maybe(input_tokens=values, output_tokens_details=values)),
    content_block=maybe(
        type=one_of("text", "thinking", "tool_use", "redacted_thinking", "other"),
        text=odd_texts,
        thinking=odd_texts,
        signature=odd_texts,
        data=odd_texts,
        id=odd_texts,
        name=one_of("t"),
        input=values,
    ),
    delta=maybe(
        type=one_of("text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta"),
        text=odd_texts,
        thinking=odd_texts,
        partial_json=odd_texts,
        signature=odd_texts,
        citation=values,
        stop_reason=one_of("end_turn", "tool_use", "max_tokens", "refusal"),
    ),
    usage=maybe(output_tokens=values, cache_read_input_tokens=values),
)
ANY_EVENTS = {"chat": chat_events, "responses": responses_events, "messages": messages_events}
ENDS: dict[str, list[Any]] = {
    "chat": [chunk({}, "stop")],
    "responses": [{"type": "response.completed", "response": {}}],
    "messages": message_end(),
}


@pytest.mark.parametrize("wire", STREAMS)
@settings(max_examples=250, deadline=None, database=None)
@given(data=st.data())
def test_whatever_comes_is_an_answer_that_can_be_stored_or_an_error_of_ours(wire: str, data: st.DataObject) -> None:
    events = data.draw(st.lists(ANY_EVENTS[wire] | values, max_size=6))
    told = tell(wire, [*events, *(ENDS[wire] if data.draw(st.booleans()) else [])])
    if told.answer is not None:
        assert told.answer.text.strip() or told.answer.calls, "an empty answer"
        assert all(call.tool and call.call_id for call in told.answer.calls)
        for body in told.answer.said:
            encode_body(body)
            seal(NewEvent(body), 1)
    assert all(number >= 0 for number in (told.usage.input, told.usage.output, told.usage.cached))


# The smallest of what that found, each with a name.

CHAT_CALL = functools.partial(call_delta, 0, "{}", id="c", name="t")
MINIMAL: dict[str, tuple[str, Callable[[], list[Any]]]] = {
    "chat: tool_calls is a number": ("chat", lambda: [chunk({"content": "a", "tool_calls": 1}), chunk({}, "stop")]),
    "chat: tool_calls is a text": ("chat", lambda: [chunk({"content": "a", "tool_calls": "x"}), chunk({}, "stop")]),
    "chat: a call is a text": ("chat", lambda: [chunk({"content": "a", "tool_calls": ["x"]}), chunk({}, "stop")]),
    "chat: a call is null": ("chat", lambda: [chunk({"content": "a", "tool_calls": [None]}), chunk({}, "stop")]),
    "chat: half a character in a detail": (
        "chat",
        lambda: [chunk({"content": "a", "reasoning_details": [{"text": "\ud83d"}]}), chunk({}, "stop")],
    ),
    "chat: half a character in arguments that are an object": (
        "chat",
        lambda: [
            chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "t", "arguments": {"a": "\ud83d"}}}]}),
            chunk({}, "stop"),
        ],
    ),
    "chat: half a character in what goes back with a call": (
        "chat",
        lambda: [chunk({"tool_calls": [CHAT_CALL() | {"extra_content": "\ud83d"}]}), chunk({}, "tool_calls")],
    ),
    "chat: half a character in a call's id": (
        "chat",
        lambda: [chunk({"tool_calls": [call_delta(0, "{}", id="\ud83d", name="t")]}), chunk({}, "tool_calls")],
    ),
    "chat: half a character in a tool's name": (
        "chat",
        lambda: [chunk({"tool_calls": [call_delta(0, "{}", id="c", name="\ud83d")]}), chunk({}, "tool_calls")],
    ),
    "responses: content is a number": ("responses", lambda: [done(0, message_item("", content=1)), completed()]),
    "responses: summary is a number": (
        "responses",
        lambda: [done(0, {**THOUGHT_ITEM, "summary": 1}), done(1, message_item("a")), completed()],
    ),
    "responses: half a character in an item": (
        "responses",
        lambda: [done(0, {"type": "other", "a": "\ud83d"}), done(1, message_item("a")), completed()],
    ),
    "messages: half a character in a signature": (
        "messages",
        lambda: [
            MESSAGES_START,
            *block(0, {"type": "thinking", "thinking": "a", "signature": "\ud83d"}),
            *text_block(1, "a"),
            *message_end(),
        ],
    ),
    "messages: half a character in a citation": (
        "messages",
        lambda: [
            MESSAGES_START,
            *block(0, {"type": "text", "text": "a"}, {"type": "citations_delta", "citation": {"cited_text": "\ud83d"}}),
            *message_end(),
        ],
    ),
    "messages: half a character in redacted thoughts": (
        "messages",
        lambda: [
            MESSAGES_START,
            *block(0, {"type": "redacted_thinking", "data": "\ud83d"}),
            *text_block(1, "a"),
            *message_end(),
        ],
    ),
    "messages: half a character in an input": (
        "messages",
        lambda: [
            MESSAGES_START,
            *block(0, {"type": "tool_use", "id": "c", "name": "t", "input": {"a": "\ud83d"}}),
            *message_end("tool_use"),
        ],
    ),
}


@pytest.mark.parametrize("name", MINIMAL)
def test_an_odd_answer_is_stored_or_refused_but_nothing_breaks(name: str) -> None:
    wire, events = MINIMAL[name]
    told = tell(wire, events())
    for body in told.answer.said if told.answer is not None else ():
        encode_body(body)


def test_pieces_say_which_thought_of_the_answer_they_belong_to() -> None:
    def thinking(index: int, text: str) -> list[Any]:
        delta = {"type": "thinking_delta", "thinking": text}
        return block(index, {"type": "thinking", "thinking": "", "signature": "s"}, delta)

    def thought(place: int, text: str) -> list[Any]:
        item = {"id": f"rs_{place}", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
        delta = {"type": "response.reasoning_summary_text.delta", "output_index": place, "delta": text}
        return [added(place, item), delta, done(place, item)]

    redacted, message = block(0, {"type": "redacted_thinking", "data": "gA"}), message_item("Hello")
    said = text_block(2, "Hello")
    blocks = [MESSAGES_START, *redacted, *thinking(1, "One"), *said, *thinking(3, "Two"), *message_end()]
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    items = [added(0, searched), done(0, searched), *thought(1, "One"), added(2, message), done(2, message)]
    one_and_two = [("One", "One"), ("Two", "Two")]
    for wire, events, expected in [
        ("messages", blocks, [("", None), *one_and_two]),
        ("responses", [*items, *thought(3, "Two"), completed()], one_and_two),
    ]:
        told = tell(wire, events)
        assert told.answer is not None
        thoughts = [body.text for body in told.answer.said if isinstance(body, Reasoning)]
        pieces = [piece for piece in told.pieces if isinstance(piece, ReasoningPiece)]
        assert [(piece.text, thoughts[piece.index]) for piece in pieces] == expected

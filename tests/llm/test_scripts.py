"""Scripts: each call takes exactly one reply, and each fault goes wrong exactly where it says."""

import json
import threading
from pathlib import Path
from typing import Any, get_args

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import (
    AnswerMalformed,
    BadModel,
    ContextTooLong,
    ErrorKind,
    ModelError,
    ModelUnavailable,
    RateLimited,
    RequestRefused,
)
from forkpoint.events import (
    AssistantMessage,
    NewEvent,
    Reasoning,
    StagedEvent,
    Text,
    ToolCall,
    Usage,
    UserMessage,
    seal,
)
from forkpoint.llm import scripts
from forkpoint.llm.answers import Answer
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.manifest import manifest_of
from forkpoint.llm.prompt.rendering import render
from forkpoint.llm.providers.scripted import ScriptedProvider
from forkpoint.llm.request import Request
from forkpoint.llm.scripts import Fault, FaultKind, Heard, Reply, Script, ScriptedCall, last_words, script_named
from forkpoint.updates import CallPiece, Piece, ReasoningPiece, TextPiece

few = settings(max_examples=60, deadline=None, database=None)


@pytest.fixture(autouse=True)
def only_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers, no other test finds."""
    monkeypatch.setattr(scripts, "_SCRIPTS", {"echo": scripts._SCRIPTS["echo"]})


# Taking replies.


def test_a_list_is_used_up_in_order_and_one_call_more_is_a_bad_script() -> None:
    script = Script([Reply("one"), Reply("two")], name="mine")
    assert [script.reply("m", {})[1].text for _ in range(2)] == ["one", "two"]
    for call in ("3", "4"):
        with pytest.raises(
            BadModel, check=BadModel.bad_script.made, match=f"call {call} came, and it has 2 replies"
        ) as refused:
            script.reply("m", {})
        assert refused.value.fields["name"] == "mine"


def test_calls_are_numbered_from_zero() -> None:
    script = Script([Reply("a"), Reply("b")])
    assert [script.reply("m", {})[0] for _ in range(2)] == [0, 1]
    assert script.taken == 2


def test_a_list_that_repeats_begins_anew_but_an_empty_one_has_nothing() -> None:
    script = Script([Reply("a"), Reply("b")], repeat=True)
    assert "".join(script.reply("m", {})[1].text for _ in range(5)) == "ababa"
    with pytest.raises(BadModel, check=BadModel.bad_script.made):
        Script([], repeat=True).reply("m", {})


def test_a_function_hears_the_request_as_the_model_would_see_it() -> None:
    heard: list[Heard] = []

    def answer(request: Heard) -> Reply:
        heard.append(request)
        return Reply(f"{request.number}: {request.text}")

    script = Script(answer)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert [script.reply("m", body, wire="messages")[1].text for _ in range(2)] == ["0: hello", "1: hello"]
    assert heard[0] == Heard(0, "m", body, "hello", "messages")


def test_fifty_threads_take_each_reply_exactly_once() -> None:
    count, threads = 2000, 50
    script = Script([Reply(str(number)) for number in range(count)])
    taken: list[tuple[int, str]] = []
    barrier = threading.Barrier(threads)

    def take() -> None:
        barrier.wait()
        for _ in range(count // threads):
            number, reply = script.reply("m", {})
            taken.append((number, reply.text))

    workers = [threading.Thread(target=take) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(taken) == sorted((number, str(number)) for number in range(count))
    assert script.taken == count


# Names and files.


def test_a_registered_script_is_found_by_its_name() -> None:
    script = Script([Reply("a")])
    assert script.register("mine") == "scripted/mine"
    assert script_named("mine") is script
    assert script.name == "mine"
    other = Script([Reply("b")])
    other.register("mine")
    assert script_named("mine") is other, "the newest is the one that was meant"


def test_echo_is_always_there() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert script_named("echo").reply("echo", body)[1].text == "You said: hello"


@pytest.mark.parametrize(
    "name", ["unknown", "", "unknown.json", "/", "..", "a\0b.json", "x" * 5000 + ".json"], ids=lambda n: ascii(n[:9])
)
def test_a_name_that_nobody_registered_has_no_script(name: str) -> None:
    with pytest.raises(BadModel, check=BadModel.no_script.made):
        script_named(name)


def test_a_file_s_replies_are_used_up_over_all_calls(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    call = {"tool": "read", "arguments": '{"half": ', "call_id": "c"}
    replies = [
        {"text": "one", "usage": {"calls": 1, "input": 5}},
        {"calls": [call], "fault": {"kind": "cut", "after": 2}},
    ]
    path.write_text(json.dumps(replies))
    assert script_named(str(path)).reply("m", {})[1] == Reply("one", usage=Usage(1, 5))
    second = Reply(calls=(ScriptedCall("read", '{"half": ', "c"),), fault=Fault("cut", 2))
    assert script_named(str(path)).reply("m", {})[1] == second
    with pytest.raises(BadModel, check=BadModel.bad_script.made, match="2 replies"):
        script_named(str(path)).reply("m", {})


def test_a_file_may_say_that_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"replies": [{"text": "a"}], "repeat": true}')
    script = Script.load(path)
    assert [script.reply("m", {})[1].text for _ in range(3)] == ["a"] * 3


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"null", b"1", b'"a"', b"{}", b'{"replies": 1}', b"[1]", b'[{"txt": "a"}]', b'[{"text": 1}]'),
        b'[{"fault": {"kind": "explode"}}]',
        b'[{"fault": {"kind": "cut", "afterwards": 1}}]',
        b'{"replies": [], "repaet": true}',
        b"\xff\xfe",
        b'[{"text": "\xff"}]',
    ],
)
def test_a_broken_file_is_a_bad_script_that_names_the_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(content)
    with pytest.raises(BadModel, check=BadModel.bad_script.made) as refused:
        script_named(str(path))
    assert refused.value.fields["name"] == str(path)
    path.write_text('[{"text": "mended"}]')
    assert script_named(str(path)).reply("m", {})[1].text == "mended", "a file that was mended is still refused"


def test_a_file_that_is_not_there_is_a_bad_script_when_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(BadModel, check=BadModel.bad_script.made):
        Script.load(tmp_path / "missing.json")
    with pytest.raises(BadModel, check=BadModel.bad_script.made):
        Script.load(tmp_path)


# What was said last, on any wire.


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "a"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "b"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "ab",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, "a"),
        ({"input": "a"}, "a"),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "result"}]},
                ]
            },
            "a",
        ),
        ({"messages": []}, ""),
        ({}, ""),
        (None, ""),
        ([], ""),
    ],
)
def test_the_newest_words_of_the_user_are_found_on_every_wire(body: Any, text: str) -> None:
    assert last_words(body) == text


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["messages", "input", "role", "content", "text"]), inner, max_size=3)
    ),
    max_leaves=6,
)
bodies = values | st.fixed_dictionaries(
    {"messages": values | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": values}), max_size=2)}
)


@settings(max_examples=200, deadline=None, database=None)
@given(body=bodies)
def test_any_body_at_all_has_last_words_or_none(body: Any) -> None:
    assert isinstance(last_words(body), str)


@pytest.mark.parametrize("content", [1, True, [{"text": 1}], [{"text": ["a"]}]], ids=str)
def test_a_message_with_odd_content_has_no_words(content: Any) -> None:
    assert last_words({"messages": [{"role": "user", "content": content}]}) == ""


@pytest.mark.parametrize("messages", [1, True, {"a": 1}], ids=str)
def test_messages_that_are_no_list_have_no_words(messages: Any) -> None:
    assert last_words({"messages": messages}) == ""


# The model scripted/NAME.


class Asked:
    """What became of one call."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.answer: Answer | None = None
        self.error: ModelError | None = None
        self.usage = Usage()


def request_to(model: str, text: str = "hello", key: str | None = "fp_key") -> Request:
    llm = LLM(model)
    message = UserMessage((Text(text),))
    rendering = render(manifest_of(llm), [StagedEvent(seal(NewEvent(message), 1), message)])
    context = CallContext(own_identity("c"))
    return Request(llm, rendering, context, Options(), rendering.body(llm, context, key=key), (), key)


def ask(reply: Reply | Script, key: str | None = "fp_key") -> Asked:
    script = reply if isinstance(reply, Script) else Script([reply])

    async def call() -> Asked:
        asked = Asked()
        hearing = Hearing(asked.pieces.append)
        try:
            asked.answer = await ScriptedProvider().ask(request_to(script.register("asked"), key=key), hearing)
        except ModelError as error:
            asked.error = error
        asked.usage = hearing.usage
        return asked

    return anyio.run(call)


ORIGIN = "scripted/scripted"
FULL = Reply(
    text="Hello, you.",
    reasoning="Hm, well.",
    calls=(ScriptedCall("read", '{"path": "a"}', "c1"), ScriptedCall("list", "{}")),
    piece=4,
)


def test_a_reply_is_the_answer_and_its_pieces_say_the_same() -> None:
    asked = ask(FULL)
    assert asked.answer == Answer(
        (
            Reasoning("Hm, well.", provider=ORIGIN, item='{"in":"reasoning_content"}'),
            AssistantMessage((Text("Hello, you."),), provider=ORIGIN),
            ToolCall("c1", "read", '{"path": "a"}', provider=ORIGIN),
            ToolCall("call_1_2", "list", "{}", provider=ORIGIN),
        ),
        "tool_calls",
    )
    assert "".join(piece.text for piece in asked.pieces if isinstance(piece, TextPiece)) == "Hello, you."
    assert "".join(piece.text for piece in asked.pieces if isinstance(piece, ReasoningPiece)) == "Hm, well."
    calls = [piece for piece in asked.pieces if isinstance(piece, CallPiece)]
    assert "".join(piece.arguments for piece in calls if piece.index == 0) == '{"path": "a"}'
    assert {(piece.call_id, piece.tool) for piece in calls} == {("c1", "read"), ("call_1_2", "list")}


@few
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30), piece=st.integers(-3, 40))
def test_the_pieces_of_any_size_are_the_whole_text(text: str, piece: int) -> None:
    pieces = ask(Reply("." + text, piece=piece)).pieces
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == "." + text


def test_the_same_script_gives_the_same_ids() -> None:
    reply = Reply(calls=(ScriptedCall("a"), ScriptedCall("b")))
    script = Script([reply], repeat=True)
    ids = [[call.call_id for call in answer.calls] for answer in (ask(script).answer for _ in range(2)) if answer]
    assert ids == [["call_1_1", "call_1_2"], ["call_2_1", "call_2_2"]]


def test_a_reply_with_nothing_in_it_is_an_empty_answer() -> None:
    assert AnswerMalformed.model_empty.made(ask(Reply()).error)
    assert AnswerMalformed.model_empty.made(ask(Reply(reasoning="Hm.")).error)
    assert AnswerMalformed.model_empty.made(ask(Reply(" ")).error)


def test_a_reply_can_reach_the_limit() -> None:
    answer = ask(Reply("Hel", finish="length")).answer
    assert answer is not None
    assert answer.finish == "length"
    cut = Reply(calls=(ScriptedCall("read", '{"pa'),), finish="length")
    assert isinstance(ask(cut).error, AnswerMalformed)


# Faults.

ERRORS: dict[str, ErrorKind] = {
    "authentication": RequestRefused.model_authentication,
    "quota": RequestRefused.model_quota,
    "rate_limit": RateLimited,
    "context_too_long": ContextTooLong,
    "refused": RequestRefused.model_refused,
    "bad_request": RequestRefused,
    "overloaded": ModelUnavailable,
    "status": ModelUnavailable,
    "cut": ModelUnavailable.model_connection,
    "malformed": AnswerMalformed,
    "unfinished": AnswerMalformed,
    "unfinished_call": AnswerMalformed,
    "empty": AnswerMalformed.model_empty,
    "refuses_cache_key": RequestRefused,
}


def test_every_kind_of_fault_is_tested_here() -> None:
    assert set(get_args(FaultKind)) == ERRORS.keys() | {"hang"}


@pytest.mark.parametrize("after", [0, 1, 3, 1000])
@pytest.mark.parametrize("kind", ERRORS)
def test_a_fault_is_its_error_after_exactly_so_many_pieces(kind: FaultKind, after: int) -> None:
    whole = ask(FULL).pieces
    asked = ask(msgspec.structs.replace(FULL, fault=Fault(kind, after, retry_after=2.5, message="why not")))
    assert (asked.error and asked.error.code) == ERRORS[kind].code
    assert asked.answer is None
    assert asked.pieces == whole[:after]
    assert asked.error is not None
    assert (asked.error.retry_after, asked.error.detail) == (2.5, "why not")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, RequestRefused.model_authentication),
        (402, RequestRefused.model_quota),
        (429, RateLimited),
        (400, RequestRefused),
        (500, ModelUnavailable),
        (529, ModelUnavailable),
    ],
)
def test_a_fault_with_a_status_is_the_error_of_that_status(status: int, expected: ErrorKind) -> None:
    """As the recording server would answer, and a client of it would understand."""
    error = ask(Reply("a", fault=Fault("status", status=status))).error
    assert error is not None
    assert error.code == expected.code


def test_a_fault_that_refuses_the_cache_key_names_it_and_stops_when_none_is_sent() -> None:
    reply = Reply("a", fault=Fault("refuses_cache_key"))
    error = ask(reply).error
    assert isinstance(error, RequestRefused)
    assert "prompt_cache_key" in error.detail
    answer = ask(reply, key=None).answer
    assert answer is not None
    assert answer.text == "a"


def cancelled_when_it_waits(reply: Reply) -> list[Piece]:
    """Asks, cancels the call as soon as it does nothing but wait, and gives what was heard until then."""
    Script([reply]).register("asked")
    pieces: list[Piece] = []

    async def call() -> None:
        await ScriptedProvider().ask(request_to("scripted/asked"), Hearing(pieces.append))
        pytest.fail("the call ended by itself")

    async def cancel() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()

    anyio.run(cancel)
    return pieces


@pytest.mark.parametrize("after", [0, 2])
def test_a_hanging_call_says_no_more_and_can_be_cancelled(after: int) -> None:
    assert len(cancelled_when_it_waits(msgspec.structs.replace(FULL, fault=Fault("hang", after)))) == after


def test_a_reply_that_takes_its_time_can_be_cancelled() -> None:
    assert len(cancelled_when_it_waits(Reply("a" * 100, delay=60.0))) == 0
    assert len(cancelled_when_it_waits(Reply("a" * 100, piece=1, pace=60.0))) == 1


def test_a_script_that_is_not_there_or_used_up_is_told_as_such() -> None:
    async def call(model: str) -> None:
        await ScriptedProvider().ask(request_to(model), Hearing())

    with pytest.raises(BadModel, check=BadModel.no_script.made):
        anyio.run(call, "scripted/nobody")
    Script([]).register("empty")
    with pytest.raises(BadModel, check=BadModel.bad_script.made):
        anyio.run(call, "scripted/empty")


# Usage.


def test_usage_is_what_the_reply_says() -> None:
    usage = Usage(calls=1, input=100, cached=60, written=5, output=9, reasoning=2)
    assert ask(Reply("a", usage=usage)).usage == usage
    assert ask(Reply("a", usage=usage, fault=Fault("cut", 1))).usage == usage, "a call that fails later cost the same"


def test_usage_of_nothing_is_reported_as_nothing() -> None:
    assert ask(Reply("a", usage=Usage())).usage == Usage(), "it was given, so it must not be estimated"


def test_usage_is_estimated_if_the_reply_says_nothing_of_it() -> None:
    usage = ask(Reply("a" * 400, reasoning="b" * 400)).usage
    assert usage.calls == 1
    assert usage.input > 0
    assert usage.output == 201
    assert usage.reasoning == 100
    assert (usage.cached, usage.written, usage.nanodollars, usage.unpriced) == (0, 0, 0, 0)


def test_a_cache_says_what_of_a_prompt_is_cached() -> None:
    class Cache:
        def of_body(self, body: Any, *, wire: str, key: str | None) -> Usage:
            assert body["messages"]
            return Usage(calls=1, input=50, cached=40 if key else 0)

    script = Script([Reply("a")], repeat=True, cache=Cache())
    assert ask(script).usage == Usage(calls=1, input=50, cached=40, output=1)
    assert ask(script, key=None).usage == Usage(calls=1, input=50, output=1)

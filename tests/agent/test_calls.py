"""Whatever a tool does, its call comes to a result that the store takes; only a cancelled turn goes on upwards."""

import asyncio
import dataclasses
import datetime
import enum
import json
import math
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.importable import Address, Person

from forkpoint.agent import ToolContext, run_call, tool
from forkpoint.agent.calls import THREADS, limited, parts_of
from forkpoint.events import File, Image, NewEvent, Part, Text, ToolCall, ToolResult, decode_body, encode_body
from forkpoint.history.wholeness import check_whole

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
PATIENCE = 20  # seconds until a test that hangs is a failed one; none waits for it


async def run(function: Callable[..., Any], arguments: str = "{}", **settings: Any) -> ToolResult:
    """The result of a call, which the store would take."""
    context = settings.pop("context", None) or ToolContext("call-1")
    made = tool(name="work", **settings)(function)
    result = await run_call(made, ToolCall("call-1", "work", arguments), context)
    storable(result)
    return result


def storable(result: ToolResult) -> None:
    check_whole(NewEvent(result))
    assert decode_body(encode_body(result)) == result


def text_of(result: ToolResult) -> str:
    return "".join(part.text for part in result.parts if isinstance(part, Text))


def length(parts: tuple[Part, ...]) -> int:
    return sum(len(part.text) for part in parts if isinstance(part, Text))


def returning(value: Any) -> Callable[[], Any]:
    def function():  # type: ignore[no-untyped-def]
        return value

    return function


# Calls.


@both
async def test_a_call_comes_to_what_its_function_returned() -> None:
    def double(n: int) -> int:
        return 2 * n

    async def double_later(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * n

    for function in (double, double_later):
        result = await run(function, '{"n":"21"}')
        assert (result.call_id, result.tool, result.status, result.error) == ("call-1", "work", "done", False)
        assert result.parts == (Text("42"),)
        assert result.duration is not None
        assert 0 <= result.duration < PATIENCE


async def test_a_tool_that_an_agent_does_not_have_is_a_failed_call() -> None:
    result = await run_call(None, ToolCall("call-1", "wrong\ud800", "{}"), ToolContext("call-1"))
    assert result.status == "failed"
    assert "wrong" in text_of(result)
    check_whole(NewEvent(result))


@pytest.mark.parametrize("arguments", ["{", '{"n":"x"}', '{"m":1}', "[]", "\ud800", '{"n":1,"\ud800":1}'], ids=ascii)
async def test_arguments_that_do_not_fit_are_a_failed_call_and_run_nothing(arguments: str) -> None:
    ran: list[int] = []
    result = await run(needs(ran), arguments)
    assert result.status == "failed"
    assert "do not fit" in text_of(result)
    assert ran == []


def needs(ran: list[int]) -> Callable[..., None]:
    def function(n: int) -> None:
        ran.append(n)

    return function


async def test_arguments_whose_type_breaks_are_a_failed_call() -> None:
    @dataclasses.dataclass
    class Picky:
        a: int

        def __post_init__(self) -> None:
            raise LookupError("never satisfied")

    def function(picky):  # type: ignore[no-untyped-def]
        pass

    function.__annotations__["picky"] = Picky
    result = await run(function, '{"picky":{"a":1}}')
    assert result.status == "failed"


@both
async def test_a_plain_function_does_not_hold_up_the_loop() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def function() -> str:
        entered.set()
        assert go_on.wait(PATIENCE)
        return threading.current_thread().name

    async def meanwhile() -> None:
        while not entered.is_set():
            await anyio.lowlevel.checkpoint()
        go_on.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meanwhile)
        result = await run(function)
    assert text_of(result) != threading.current_thread().name


@both
async def test_an_async_function_runs_in_the_loop_itself() -> None:
    async def function() -> bool:
        await anyio.lowlevel.checkpoint()
        return threading.current_thread() is threading.main_thread()

    assert text_of(await run(function)) == "true"


@both
async def test_a_plain_function_that_returns_an_awaitable_is_awaited() -> None:
    async def later() -> str:
        await anyio.lowlevel.checkpoint()
        return "later"

    def function() -> Awaitable[str]:
        return later()

    assert text_of(await run(function)) == "later"


@both
async def test_the_context_is_that_of_the_call() -> None:
    told: list[str] = []
    context = ToolContext("call-1", progress=told.append)

    def function(ctx: ToolContext) -> str:
        ctx.state["a"] = 1
        ctx.progress("half")
        return ctx.call_id

    assert text_of(await run(function, context=context)) == "call-1"
    assert dict(context.state) == {"a": 1}
    assert told == ["half"]
    assert not context.cancelled


# Several at once.


@both
@pytest.mark.parametrize("count", [2, 16])
async def test_parallel_calls_of_plain_functions_really_run_at_once(count: int) -> None:
    barrier = threading.Barrier(count)

    def function() -> str:
        barrier.wait(PATIENCE)
        return "met"

    results: list[ToolResult] = []

    async def one() -> None:
        results.append(await run(function))

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
    assert [text_of(result) for result in results] == ["met"] * count


@both
async def test_two_hundred_slow_tools_leave_everybody_else_s_threads_free() -> None:
    go_on = threading.Event()
    started = threading.Semaphore(0)
    results: list[ToolResult] = []

    def function() -> str:
        started.release()
        assert go_on.wait(PATIENCE)
        return "done"

    async def one() -> None:
        results.append(await run(function))

    try:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for _ in range(200):
                    tasks.start_soon(one)
                for _ in range(THREADS):
                    while not started.acquire(blocking=False):
                        await anyio.lowlevel.checkpoint()
                assert await anyio.to_thread.run_sync(lambda: "free") == "free"
                go_on.set()
    finally:
        go_on.set()
    assert [text_of(result) for result in results] == ["done"] * 200


@both
async def test_threads_left_behind_do_not_keep_others_from_running() -> None:
    go_on = threading.Event()

    def stuck() -> None:
        go_on.wait(PATIENCE)

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(THREADS):
                tasks.start_soon(lambda: run(stuck, timeout=0.01))
        with anyio.fail_after(2):  # nothing else is going on
            assert text_of(await run(returning("runs"))) == "runs"
    finally:
        go_on.set()


# What goes wrong.


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("an error that cannot be told")


class Odd(BaseException):
    """Not an `Exception`, and still nobody's cancellation."""


ERRORS: list[tuple[BaseException, str]] = [
    (ValueError("too blue"), "ValueError: too blue"),
    (ValueError(), "ValueError"),
    (ValueError("  \n"), "ValueError"),
    (KeyError("k"), "KeyError: 'k'"),
    (TimeoutError("slow"), "TimeoutError: slow"),
    (ValueError("\ud800"), "ValueError: \\ud800"),
    (StopIteration(), "StopIteration"),
    (StopAsyncIteration(), "StopAsyncIteration"),
    (RecursionError("deep"), "RecursionError: deep"),
    (MemoryError(), "MemoryError"),
    (Mute(), "Mute"),
    (ExceptionGroup("several", [ValueError("too blue"), KeyError("k")]), "too blue"),
    (SystemExit(3), "SystemExit"),
    (Odd("odd"), "Odd: odd"),
    (BaseExceptionGroup("several", [SystemExit(3)]), "SystemExit"),
]
each_error = pytest.mark.parametrize(("error", "said"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])


async def outcome_of(function: Callable[..., Any], **settings: Any) -> ToolResult:
    """The result of a call; what escapes it fails the test, and does not end the tests."""
    try:
        return await run(function, **settings)
    except BaseException as error:
        if isinstance(error, pytest.fail.Exception | AssertionError):
            raise
        pytest.fail(f"{type(error).__name__} went upwards, and would end more than the call")


@both
@each_error
async def test_whatever_a_plain_function_raises_is_a_failed_call_with_the_reason(
    error: BaseException, said: str
) -> None:
    def function() -> None:
        raise error

    result = await outcome_of(function)
    assert result.status == "failed"
    assert said in text_of(result)


@both
@each_error
async def test_whatever_an_async_function_raises_is_a_failed_call_with_the_reason(
    error: BaseException, said: str
) -> None:
    async def function() -> None:
        raise error

    result = await outcome_of(function)
    assert result.status == "failed"
    assert said in text_of(result)


@both
async def test_a_tool_that_exits_does_not_end_the_process_it_runs_in() -> None:
    """As a command-line parser does that does not like its arguments."""
    result = await outcome_of(lambda: sys.exit("usage: frob [-h]"))
    assert result.status == "failed"
    assert "usage: frob" in text_of(result)


@both
async def test_a_keyboard_interrupt_in_a_tool_s_thread_is_nobody_s_ctrl_c() -> None:
    """Python delivers Ctrl-C to the main thread only; raised elsewhere, it is an error like others."""

    def function() -> None:
        raise KeyboardInterrupt

    assert (await outcome_of(function)).status == "failed"


@both
async def test_a_keyboard_interrupt_in_the_loop_goes_on_upwards() -> None:
    async def function() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run(function)


async def test_a_tool_whose_own_task_was_cancelled_is_a_failed_call_and_cancels_nobody() -> None:
    async def function() -> None:
        task = asyncio.ensure_future(asyncio.sleep(PATIENCE))
        task.cancel()
        await task

    result = await outcome_of(function)
    assert result.status == "failed"
    assert "Cancelled" in text_of(result)


async def test_a_plain_function_that_raises_a_cancellation_is_a_failed_call() -> None:
    def function() -> None:
        raise asyncio.CancelledError

    assert (await outcome_of(function)).status == "failed"


async def test_a_result_is_not_lost_when_a_tool_raises_a_cancellation_of_its_own() -> None:
    """A task group takes a task that ends as cancelled for one that had nothing to say."""
    results: list[ToolResult] = []

    async def function() -> None:
        raise asyncio.CancelledError

    async def one() -> None:
        results.append(await run(function))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
    assert [result.status for result in results] == ["failed"]


async def test_a_reason_has_no_more_characters_than_an_output() -> None:
    def function() -> None:
        raise ValueError("x" * 1_000_000)

    assert len(text_of(await run(function, output_limit=1_000))) <= 1_100


async def test_a_function_that_yields_is_not_said_to_be_done() -> None:
    def function() -> Any:
        yield 1

    try:
        result = await run(function)
    except Exception:
        return  # refused when the tool was made
    assert "generator object" not in text_of(result)


# Timeouts.


@both
async def test_an_async_function_that_takes_too_long_is_a_failed_call_and_is_told() -> None:
    ended: list[bool] = []
    context = ToolContext("call-1")

    async def function(ctx: ToolContext) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    result = await run(function, context=context, timeout=0.01)
    assert result.status == "failed"
    assert "0.01 s" in text_of(result)
    assert ended == [True]
    assert context.cancelled


@both
async def test_a_plain_function_that_takes_too_long_is_left_behind_and_told() -> None:
    go_on, saw = threading.Event(), threading.Event()

    def function(ctx: ToolContext) -> None:
        go_on.wait(PATIENCE)
        if ctx.cancelled:
            saw.set()

    result = await run(function, timeout=0.01)
    assert result.status == "failed"
    assert "0.01 s" in text_of(result)
    go_on.set()
    assert saw.wait(PATIENCE), "the function can see that nobody waits for it"


@both
async def test_a_call_that_ends_in_time_is_not_told_to_stop() -> None:
    context = ToolContext("call-1")
    result = await run(returning("quick"), context=context, timeout=PATIENCE)
    assert (result.status, context.cancelled) == ("done", False)


@both
async def test_an_awaitable_of_a_plain_function_has_the_same_timeout() -> None:
    result = await run(lambda: anyio.sleep_forever(), timeout=0.01)
    assert result.status == "failed"
    assert "0.01 s" in text_of(result)


@both
async def test_what_a_function_raises_when_its_time_is_up_is_the_reason() -> None:
    async def function() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("could not clean up")

    result = await run(function, timeout=0.01)
    assert result.status == "failed"
    assert "could not clean up" in text_of(result)


# Cancellation of the turn.


@both
@pytest.mark.parametrize("kind", ["sync", "async", "awaitable"])
async def test_a_cancelled_scope_goes_on_upwards_at_once_and_the_tool_is_told(kind: str) -> None:
    entered, go_on = threading.Event(), threading.Event()
    context = ToolContext("call-1")
    results: list[ToolResult] = []

    def plain(ctx: ToolContext) -> None:
        entered.set()
        go_on.wait(PATIENCE)

    async def later(ctx: ToolContext) -> None:
        entered.set()
        await anyio.sleep_forever()

    def returns_later(ctx: ToolContext) -> Awaitable[None]:
        return later(ctx)

    function = {"sync": plain, "async": later, "awaitable": returns_later}[kind]

    async def one() -> None:
        results.append(await run(function, context=context, timeout=PATIENCE))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            while not (entered.is_set() or results):
                await anyio.lowlevel.checkpoint()
            assert not results, "it ended before it was cancelled"
            assert not context.cancelled
            tasks.cancel_scope.cancel()
    finally:
        go_on.set()
    assert results == [], "a cancelled turn has no result of this call"
    assert context.cancelled


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_cancelled_task_goes_on_upwards_at_once_and_the_tool_is_told(kind: str) -> None:
    entered, go_on = threading.Event(), threading.Event()
    context = ToolContext("call-1")

    def plain(ctx: ToolContext) -> None:
        entered.set()
        go_on.wait(PATIENCE)

    async def later(ctx: ToolContext) -> None:
        entered.set()
        await asyncio.sleep(PATIENCE)

    task = asyncio.ensure_future(run(plain if kind == "sync" else later, context=context))
    while not (entered.is_set() or task.done()):
        await anyio.lowlevel.checkpoint()
    task.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        go_on.set()
    assert task.cancelled()
    assert context.cancelled


@both
async def test_a_turn_that_is_cancelled_already_runs_no_plain_function() -> None:
    ran: list[int] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run(needs(ran), '{"n":1}')
    assert scope.cancelled_caught
    assert ran == []


# Outputs.


class Word(str):
    """A text that is more than a text."""


class Mood(enum.StrEnum):
    GOOD = "good"


class Ambiguous:
    """As an array or a table, whose comparison is no yes or no."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("The truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "1 2 3"


class Agreeable:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "something"


class Blank:
    def __str__(self) -> str:
        return ""


class Broken:
    def __str__(self) -> str:
        return "\ud800"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("text", "text"),
        (" ", " "),
        (0, "0"),
        (False, "false"),
        (1.5, "1.5"),
        (10**30, str(10**30)),
        ([], "[]"),
        ({}, "{}"),
        ((1, "a"), '[1,"a"]'),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Person("a", 1), '{"name":"a","age":1}'),
        (Address(street="a"), '{"street":"a","number":1}'),
        (datetime.date(2026, 1, 2), '"2026-01-02"'),
        (Mood.GOOD, "good"),
        (Word("word"), "word"),
        (b"bytes", "bytes"),
        (bytearray(b"bytes"), "bytes"),
        (b"\xff", "\ufffd"),
        (Ambiguous(), "1 2 3"),
        (Agreeable(), "something"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_a_tool_returns_is_shown_as_it_is_or_as_json(value: Any, said: str) -> None:
    result = await run(returning(value))
    assert result.status == "done"
    assert text_of(result) == said


@pytest.mark.parametrize(
    "value",
    [[Address(street="a")], {"home": Address(street="a")}, (Address(street="a"), 1)],
    ids=lambda value: type(value).__name__,
)
async def test_pydantic_models_within_something_are_json_too(value: Any) -> None:
    found = json.loads(text_of(await run(returning(value))))
    assert {"street": "a", "number": 1} in (found.values() if isinstance(found, dict) else found)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        Word(""),
        b"",
        bytearray(),
        Text(""),
        [Text("")],
        (Text("a"), Text("")),
        Blank(),
        "\ud800",
        "a\udfffb",
        Broken(),
        Word("\ud800"),
        Text("\ud800"),
        {"a": "\ud800"},
        File("\ud800", "text/plain", data="YQ=="),
        File("a", "text/plain"),
        Image("image/png"),
        Image("image/png", data=""),
        [Text("a"), Image("image/png")],
        Text(5),  # type: ignore[arg-type]
        Text(Word("word")),
        Address,
        math.nan,
        object(),
        [object()],
        pydantic.BaseModel,
    ],
    ids=lambda value: ascii(value).partition(" at ")[0][:40],
)
async def test_whatever_a_tool_returns_the_store_takes_its_result(value: Any) -> None:
    result = await run(returning(value))  # which says so
    assert result.status in {"done", "failed"}


async def test_what_is_not_valid_unicode_is_shown_as_well_as_can_be() -> None:
    result = await run(returning("before \ud800 after"))
    assert result.status == "done"
    assert text_of(result).startswith("before ")
    assert text_of(result).endswith(" after")


async def test_what_contains_itself_comes_to_a_result() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert (await run(returning(endless))).parts


async def test_parts_are_taken_as_they_are() -> None:
    parts = (Text("see"), Image("image/png", data="YQ=="), File("a.txt", "text/plain", url="https://h/a"))
    assert (await run(returning(list(parts)))).parts == parts
    assert (await run(returning(parts))).parts == parts
    assert (await run(returning(parts[1]))).parts == parts[1:2]
    assert parts_of([Text("a"), "b"]) == (Text('[{"type":"text","text":"a"},"b"]'),)


# Limits.


async def test_an_output_within_the_limit_is_whole() -> None:
    for size in (1, 500):
        assert text_of(await run(returning("x" * size), output_limit=size)) == "x" * size


@pytest.mark.parametrize("limit", [1, 50, 150, 199, 200, 201, 1_000, 5_000])
async def test_an_output_beyond_the_limit_has_a_beginning_an_end_and_a_word_on_the_rest(limit: int) -> None:
    value = "a" * 5_000 + "z" * 5_000
    said = text_of(await run(returning(value), output_limit=limit))
    assert "characters left out" in said
    assert len(said) <= limit + 100
    if limit >= 200:
        assert said.startswith("a" * (limit // 2))
        assert said.endswith("z" * (limit // 4))
        digits = "".join(letter for letter in said if letter.isdigit())
        assert int(digits) == len(value) - limit, "it says how much is missing"


@pytest.mark.parametrize("limit", [20, 50, 150, 199])
async def test_a_small_limit_still_shows_something(limit: int) -> None:
    """A result that is a character too long is not worth nothing."""
    assert "xxxxxxxxxx" in text_of(await run(returning("x" * (limit + 1)), output_limit=limit))


def test_many_small_parts_beyond_the_limit_do_not_grow_by_their_notices() -> None:
    parts = tuple(Text("x") for _ in range(1_000))
    assert length(limited(parts, 10)) <= 110


def test_pictures_and_files_stay_when_the_text_between_them_goes() -> None:
    picture, file = Image("image/png", data="YQ=="), File("a", "text/plain", data="YQ==")
    shown = limited((picture, Text("x" * 1_000), file, Text("y" * 1_000), picture), 300)
    assert [part for part in shown if not isinstance(part, Text)] == [picture, file, picture]
    assert length(shown) <= 400


parts = st.lists(st.text("ab", max_size=400).map(Text) | st.just(Image("image/png", data="YQ==")), max_size=6)


@settings(max_examples=150, deadline=None, database=None)
@given(parts=parts.map(tuple), limit=st.integers(1, 900))
def test_a_limit_is_kept_but_for_one_notice_however_the_text_is_divided(parts: tuple[Part, ...], limit: int) -> None:
    shown = limited(parts, limit)
    assert length(shown) <= max(limit, 0) + 100
    pictures = [part for part in parts if isinstance(part, Image)]
    assert [part for part in shown if isinstance(part, Image)] == pictures
    if length(parts) <= limit:
        assert shown == parts
    else:
        assert any("left out" in part.text for part in shown if isinstance(part, Text)), "nobody is told"
        assert all(part.text for part in shown if isinstance(part, Text))


async def test_a_huge_output_is_cut_to_the_limit() -> None:
    result = await run(returning("x" * 50_000_000), output_limit=1_000)
    assert len(text_of(result)) <= 1_100


async def test_json_that_is_too_long_is_cut_like_text() -> None:
    result = await run(returning(list(range(100_000))), output_limit=1_000)
    assert text_of(result).startswith("[0,1,2")
    assert len(text_of(result)) <= 1_100

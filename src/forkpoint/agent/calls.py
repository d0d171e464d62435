"""Running one call of a tool: whatever happens, it comes to a result that the model can be shown.

A tool that raises, takes too long or is asked for with the wrong arguments has a failed result with the reason. Only a
cancellation of the turn itself goes on upwards, after the tool has been told, and `EndsTurn`.
"""

import asyncio
import inspect
import math
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from forkpoint.agent.arguments import BadArguments
from forkpoint.agent.context import EndsTurn, ToolContext
from forkpoint.agent.tool import OUTPUT_LIMIT, Tool
from forkpoint.events import File, Image, NewEvent, Part, Text, ToolCall, ToolResult
from forkpoint.history.wholeness import check_whole

THREADS = 64
"""Plain functions that an event loop waits for at once. Each has a thread, which a timeout cannot end, only leave."""


async def run_call(tool: Tool | None, call: ToolCall, context: ToolContext) -> ToolResult:
    """The result of a call. ``tool`` is None if the agent has none of that name."""
    started = anyio.current_time()
    try:
        parts, status = await _run(tool, call, context), "done"
    except _Failed as failed:
        why = (Text(context.masking.text(failed.why)),)
        parts, status = limited(why, OUTPUT_LIMIT if tool is None else tool.output_limit), "failed"
    duration = anyio.current_time() - started
    return ToolResult(call.call_id, call.tool, parts, status, duration)  # type: ignore[arg-type]


async def _run(tool: Tool | None, call: ToolCall, context: ToolContext) -> tuple[Part, ...]:
    if tool is None:
        raise _Failed(f"There is no tool {call.tool!r}.")
    try:
        bound = tool.bind(call.arguments, context)
    except BadArguments as error:
        raise _Failed(str(error)) from None
    with anyio.move_on_after(tool.timeout if tool.timeout is not None else math.inf) as scope:
        try:
            value = await _call(tool, bound)
            context.state.settle()
            parts = context.masking.parts(parts_of(value))  # first: a cut could leave half of a value
            return limited(parts, tool.output_limit)
        except (_Failed, EndsTurn):
            raise
        except anyio.get_cancelled_exc_class() as error:
            if not is_cancelled():
                raise _Failed(reason_of(error)) from error
            context.cancel()
            raise
        except BaseException as error:
            if is_ours(error):
                raise
            raise _Failed(reason_of(error)) from error
    assert scope.cancelled_caught
    raise _Failed(f"{tool.name} did not end within {tool.timeout:g} s. It may have done part of its work.")


async def _call(tool: Tool, bound: Callable[[], Any]) -> Any:
    if tool._is_async:
        return await bound()
    async with tool_threads():  # and none of the thread's own: in trio a thread that is left behind would keep it
        (value,) = await anyio.to_thread.run_sync(
            _in_thread, bound, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
    return await value if inspect.isawaitable(value) else value


def _in_thread(bound: Callable[[], Any]) -> tuple[Any]:
    """What a function returns, in a tuple: trio takes a thread that returns an awaitable for a mistake.

    Nobody presses Ctrl-C or cancels a task in this thread, so whatever the function raises is its own.
    """
    try:
        return (bound(),)
    except BaseException as error:
        raise _Failed(reason_of(error)) from error


def is_ours(error: BaseException) -> bool:
    """Whether what came out of an async tool is meant for whoever runs the loop."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_ours, error.exceptions))
    return isinstance(error, KeyboardInterrupt | GeneratorExit | anyio.get_cancelled_exc_class())


def is_cancelled() -> bool:
    """Whether somebody cancels this task, rather than the tool something of its own."""
    if anyio.get_current_task().has_pending_cancellation():
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:  # trio, where nobody else can raise a cancellation
        return True
    return task is None or task.cancelling() > 0


def parts_of(value: Any) -> tuple[Part, ...]:
    """What a tool returned, as parts: texts, pictures and files as they are, anything else as JSON."""
    if isinstance(value, list | tuple) and value and all(isinstance(part, Text | Image | File) for part in value):
        parts = tuple(value)
    elif isinstance(value, Text | Image | File):
        parts = (value,)
    elif value is None:
        parts = ()
    elif isinstance(value, str):
        parts = (Text(value),)
    elif isinstance(value, bytes | bytearray):
        parts = (Text(bytes(value).decode(errors="replace")),)
    else:
        parts = (Text(_json(value)),)
    return tuple(_whole(part) for part in parts if not (isinstance(part, Text) and part.text == ""))


def _whole(part: Part) -> Part:
    """The same in a form that can be stored. Raises if there is none."""
    if isinstance(part, Text):
        return Text(valid_text(str.__str__(part.text)))
    check_whole(NewEvent(ToolResult("call", "tool", (part,))))
    msgspec.json.encode(part)
    return part


def limited(parts: tuple[Part, ...], limit: int) -> tuple[Part, ...]:
    """The same with at most so many characters of text: the beginning, the end, and a word on what is missing."""
    length = sum(len(part.text) for part in parts if isinstance(part, Text))
    if length <= limit:
        return parts
    tail = limit // 4
    cut, resumed = limit - tail, length - tail  # what stands between is left out
    notice = f"\n[... {length - limit:,} characters left out ...]\n"
    shown: list[Part] = []
    start = 0
    for part in parts:
        if not isinstance(part, Text):
            shown.append(part)
            continue
        end = start + len(part.text)
        if end <= cut or start >= resumed:
            kept = part.text
        else:
            kept = part.text[: max(cut - start, 0)] + notice + part.text[resumed - start :]
            notice = ""
        if kept:
            shown.append(Text(kept))
        start = end
    return tuple(shown)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    except (TypeError, UnicodeEncodeError, RecursionError, OverflowError):
        return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    raise TypeError(f"{type(value)!r} has no JSON form")


def reason_of(error: BaseException) -> str:
    """What went wrong, in words: the class and what it says."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(reason_of, error.exceptions))
    try:
        said = str(error).strip()
    except Exception:
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def valid_text(text: str) -> str:
    """The same in valid Unicode, which alone can be stored."""
    return text.encode(errors="backslashreplace").decode()


class _Failed(Exception):
    def __init__(self, why: str) -> None:
        self.why = valid_text(why)


_limiters: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("forkpoint tools")


def tool_threads() -> anyio.CapacityLimiter:
    """The threads of this event loop's tools: not those of everybody else, which slow tools would use up."""
    try:
        return _limiters.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(THREADS)
        _limiters.set(limiter)
        return limiter

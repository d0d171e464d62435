"""Running hooks: each comes to a `HookRun`, whatever it does. The first that blocks is the last that runs.

A command gets the context as JSON on stdin. It agrees with exit code 0, blocks with 2 and the reason on stderr, and has
failed with any other. What it prints may be JSON: ``{"block": true, "reason": "...", "context": "..."}``; anything
else is kept as it is, and told nobody. What a hook that failed does is its ``on_error``. Only a cancellation of the
turn goes on upwards, after the hook was ended. Tests: tests/agent/test_hooks.py.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from forkpoint.agent.arguments import typed
from forkpoint.agent.calls import is_cancelled, is_ours, reason_of, tool_threads, valid_text
from forkpoint.agent.hooks.hook import Block, Hook, HookContext
from forkpoint.events import HookRun
from forkpoint.system.process import Finished, run_command

READ = 1024 * 1024
"""Bytes of each output of a command that are read; the rest is let go."""

OUTPUT, REASON, CONTEXT = 10_000, 2_000, 20_000
"""Characters of a hook's output, reason and context that are kept."""

BLOCKS = 2
"""The exit code of a command that blocks."""


class Ran(Struct, frozen=True):
    """What hooks came to: a record of each run, why one has blocked, and what the model is to be told."""

    events: tuple[HookRun, ...] = ()
    blocked: str | None = None
    context: tuple[str, ...] = ()


async def run_hooks(
    hooks: Iterable[Hook],
    context: HookContext,
    *,
    workspace: Path | None = None,
    env: Mapping[str, str] | None = None,
    mask: Callable[[str], str] = lambda text: text,
) -> Ran:
    """Runs those of the hooks that are for this moment, in their order, until one blocks.

    ``workspace`` is where commands run, ``env`` their whole environment (None is ours). What is kept is masked first.
    The files of a project's hook are read directly before it is started, and again when it has ended, before it is
    believed. Raises `TrustChanged` if they are not what was approved.
    """
    events: list[HookRun] = []
    told: list[str] = []
    for hook in hooks:
        if not hook._is_for(context):
            continue
        said = await _run(hook, context, workspace, env)
        blocked = said.blocks or (said.failed and hook.on_error == "block")
        reason = _short(mask(said.reason), REASON) if said.reason is not None else None
        added = _short(mask(said.context), CONTEXT) if said.context is not None and said.context.strip() else None
        events.append(
            HookRun(
                hook.name,
                hook.moment,
                command=mask(hook._command_line) if hook.command is not None else None,
                exit_code=said.exit_code,
                output=_short(mask(said.output), OUTPUT),
                blocked=blocked,
                reason=reason,
                call_id=context.call_id,
                context=added,
            )
        )
        if blocked:
            return Ran(tuple(events), reason, tuple(told))
        if added is not None:
            told.append(added)
    return Ran(tuple(events), None, tuple(told))


class _Verdict(Struct, frozen=True):
    """What one hook came to. One that failed has a reason too: what was wrong with it."""

    blocks: bool = False
    failed: bool = False
    reason: str | None = None
    context: str | None = None
    output: str = ""
    exit_code: int | None = None


class _HookDocument(Struct, frozen=True):
    """What a command may print."""

    block: bool = False
    reason: str | None = None
    context: str | None = None


async def _run(hook: Hook, context: HookContext, workspace: Path | None, env: Mapping[str, str] | None) -> _Verdict:
    if hook.command is None:
        return await _run_function(hook, context)
    await _check(hook, workspace)
    try:
        finished = await run_command(
            hook.command, input=context.document(), cwd=workspace, env=env, seconds=hook.timeout, limit=READ
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _Verdict(failed=True, reason=f"it could not be started ({valid_text(why)})")
    await _check(hook, workspace)
    return _heard(hook, finished)


async def _check(hook: Hook, workspace: Path | None) -> None:
    """Raises `TrustChanged` if a file that a project's hook names is another than was approved."""
    if hook.pinned is not None:
        await anyio.to_thread.run_sync(hook.pinned.check, workspace)


def _heard(hook: Hook, finished: Finished) -> _Verdict:
    """What a command has said with its exit code and its output."""
    output, errors = _text(finished.stdout), _text(finished.stderr).strip()
    code = finished.exit_code
    if code is None:
        return _Verdict(failed=True, reason=_too_late(hook), output=output)
    if code not in (0, BLOCKS):
        ended = f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"
        reason = f"{ended}: {errors}" if errors else ended
        return _Verdict(failed=True, reason=reason, output=output, exit_code=code)
    try:
        document = None if finished.is_cut else _document(output)
    except msgspec.ValidationError as error:
        if code == 0:
            return _Verdict(
                failed=True, reason=f"what it printed makes no sense ({error})", output=output, exit_code=code
            )
        document = None
    said = document or _HookDocument()
    if code == BLOCKS or said.block:
        plain = output.strip() if document is None else ""
        reason = errors if code == BLOCKS and errors else said.reason or plain
        return _Verdict(blocks=True, reason=reason or "it gives no reason", output=output, exit_code=code)
    return _Verdict(context=said.context, output=output, exit_code=code)


def _document(output: str) -> _HookDocument | None:
    """What a command has printed, if that is a document; None if it is just text. Raises ``ValidationError``."""
    if not output.lstrip().startswith("{"):
        return None
    try:
        value = msgspec.json.decode(output)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not value.keys() & set(_HookDocument.__struct_fields__):
        return None
    return msgspec.convert(value, _HookDocument)


async def _run_function(hook: Hook, context: HookContext) -> _Verdict:
    with anyio.move_on_after(hook.timeout) as scope:
        try:
            return _returned(await _call(hook, context))
        except anyio.get_cancelled_exc_class() as error:
            if not is_cancelled():
                return _Verdict(failed=True, reason=reason_of(error))
            raise
        except BaseException as error:
            if not isinstance(error, _Raised) and is_ours(error):
                raise
            cause = error.cause if isinstance(error, _Raised) else error
            return _Verdict(failed=True, reason=valid_text(reason_of(cause)))
    assert scope.cancelled_caught
    return _Verdict(failed=True, reason=_too_late(hook))


async def _call(hook: Hook, context: HookContext) -> Any:
    function = hook.find()
    if inspect.iscoroutinefunction(typed(function)):
        return await function(context)

    def in_thread() -> tuple[Any]:
        try:
            return (function(context),)
        except BaseException as error:  # nobody cancels a task in this thread, so it is the function's own
            raise _Raised(error) from error

    async with tool_threads():  # the threads of tools are those of hooks too
        (value,) = await anyio.to_thread.run_sync(in_thread, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    return await value if inspect.isawaitable(value) else value


def _returned(value: Any) -> _Verdict:
    match value:
        case None:
            return _Verdict()
        case Block(reason=reason):
            return _Verdict(
                blocks=True, reason=valid_text(str(reason)) if str(reason).strip() else "it gives no reason"
            )
        case str():
            text = valid_text(str.__str__(value))
            return _Verdict(context=text, output=text)
        case _:
            kind = type(value).__name__
            return _Verdict(failed=True, reason=f"it returned {kind}, and must return None, a text or a Block")


class _Raised(Exception):
    """What a function has raised in its thread."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


def _too_late(hook: Hook) -> str:
    return f"it did not end within {hook.timeout:g} s"


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _short(text: str, limit: int) -> str:
    """The beginning and the end of a text, with a word on what is missing."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]}\n[... {len(text) - limit:,} characters left out ...]\n{text[-tail:]}"

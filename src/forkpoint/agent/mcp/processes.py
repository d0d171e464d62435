"""A server that is a process: messages go to its standard input and come from its standard output, one a line.

It is not the SDK's own transport, which keeps a line however long it becomes, and shows nobody what a server says on
its standard error when it dies. Here a line has a limit, rubbish between messages is put up with up to a limit, and
both are told as the reason when the server fails. Tests: tests/agent/mcp/test_connections.py.
"""

import codecs
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from copy import copy
from subprocess import PIPE
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from forkpoint.agent.mcp.servers import BASICS, Start
from forkpoint.agent.secrets.masking import SHORTEST, STARS, Masking
from forkpoint.agent.secrets.withheld import is_withheld
from forkpoint.system.exposure import conceal
from forkpoint.system.process import MARK, end_marked, signal_group

_log = logging.getLogger("forkpoint")

MESSAGE = 16 * 1024 * 1024
"""Bytes that one message of a server may have."""

RUBBISH = 256 * 1024
"""Bytes that a server may write which are no message, as programs do that greet whoever starts them."""

GRACE = 1.0
"""Seconds for a process to end by itself when its input ends, and then again when it is told to."""

_SHOWN = 300  # characters of rubbish, or of the standard error, that are told
_KEPT = 4 * _SHOWN  # characters of it that are kept: there may be many blanks in it
_CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


class ServerEnded(Exception):
    """Why the server can no longer be talked to. It is about the server: ``ended with exit code 3``."""


class ServerOutput:
    """What a process has said besides messages, and whether it has ended."""

    def __init__(self, masking: Masking) -> None:
        self.over = anyio.Event()
        self.why: str | None = None
        self._rubbish = 0
        self._first = _OutputPart(masking, first=True)
        self._errors = _OutputPart(masking, first=False)

    def end(self, why: str | None) -> None:
        """Notes that it has ended; the first reason is the true one."""
        self.why = self.why or why
        self.over.set()

    def rubbish(self, line: bytes) -> None:
        """Notes what is no message. Raises `ServerEnded` when it is too much."""
        self._first.add(line + b"\n")
        self._rubbish += max(len(line), 64)  # a line costs something, however short it is
        if self._rubbish > RUBBISH:
            raise ServerEnded("writes what are no messages of MCP")

    def error(self, chunk: bytes) -> None:
        self._errors.add(chunk)

    def told(self) -> str:
        """What it said that may explain why it failed, masked and in brackets; nothing if it said nothing."""
        said = []
        if first := self._first.line():
            said.append(f"it wrote: {first}")
        if error := self._errors.line():
            said.append(f"its standard error ends with: {error}")
        return f" ({'; '.join(said)})" if said else ""


class _OutputPart:
    """A text that comes in pieces, of which the beginning or the end is kept. It is masked before it is cut, for a cut
    could leave half of a value."""

    def __init__(self, masking: Masking, *, first: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._masked = masking.stream()
        self._first = first
        self._kept = ""

    def add(self, data: bytes) -> None:
        if self._first and len(self._kept) >= _KEPT:
            return
        text = self._kept + self._masked.feed(self._decoder.decode(data))
        self._kept = text[:_KEPT] if self._first else text[-_KEPT:]

    def line(self) -> str:
        """What is kept, as one line."""
        rest = copy(self._masked).end()  # it may go on
        text = " ".join((self._kept + (rest if len(rest) < SHORTEST else STARS)).split())
        if len(text) <= _SHOWN:
            return text
        return f"{text[:_SHOWN]}..." if self._first else f"...{text[-_SHOWN:]}"


@asynccontextmanager
async def process(start: Start, heard: ServerOutput) -> AsyncIterator[Any]:
    """The streams of a server that is started here, and ended at the end, with all that it has started.

    The files of a project's server are read directly before that. Raises `TrustChanged` if they are not what was
    approved.
    """
    from mcp.shared.message import SessionMessage

    token = secrets.token_hex(16)
    started = await _start(start, token)
    # Nothing is awaited until the process is within the block that ends it.
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def listen() -> None:
        assert started.stdout is not None
        why: str | None = None
        try:
            async with incoming:
                async for line in _lines(started.stdout):
                    if (message := _message(line)) is None:
                        heard.rubbish(line)
                    else:
                        await incoming.send(SessionMessage(message))
                with anyio.move_on_after(GRACE):
                    await _ended(started)
                why = _how(started.returncode)
        except ServerEnded as ended:
            why = str(ended)
        except _CLOSED:
            pass
        heard.end(why)

    async def speak() -> None:
        assert started.stdin is not None
        with suppress(*_CLOSED):
            async for message in outgoing:
                text: str = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await started.stdin.send(text.encode() + b"\n")

    async def overhear() -> None:
        assert started.stderr is not None
        with suppress(*_CLOSED):
            async for chunk in started.stderr:
                heard.error(chunk)

    async with anyio.create_task_group() as group:
        try:
            for task in (listen, speak, overhear):
                group.start_soon(task)
            yield read, write
        finally:
            with anyio.CancelScope(shield=True):  # every wait in it has a limit
                await _end(started, token)
                for stream in (read, write, incoming, outgoing):
                    stream.close()
            group.cancel_scope.cancel()


async def _start(start: Start, token: str) -> Process:
    """Starts a server, with the token in its environment. Raises `ServerEnded` and `TrustChanged`."""
    conceal(is_withheld)
    environment = {name: os.environ[name] for name in BASICS if name in os.environ} | dict(start.env)
    environment[MARK] = f"{os.environ.get(MARK, '')}:{token}"
    if start.pinned is not None:
        await anyio.to_thread.run_sync(start.pinned.check)
    try:
        return await anyio.open_process(
            list(start.command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=start.cwd,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ServerEnded(f"cannot be started ({error})") from error


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    """The lines of a stream. Raises `ServerEnded` for one that is too long."""
    rest = bytearray()
    async for chunk in stream:
        searched = len(rest)
        rest += chunk
        while (end := rest.find(b"\n", searched)) >= 0:
            yield bytes(rest[:end])
            del rest[: end + 1]
            searched = 0
        if len(rest) > MESSAGE:
            raise ServerEnded(f"sends a message of more than {MESSAGE:,} bytes")


def _message(line: bytes) -> Any:
    """The message in a line; None if the line is not a message."""
    from mcp_types import jsonrpc_message_adapter

    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except (ValueError, RecursionError):
        return None


async def _end(started: Process, token: str) -> None:
    """Ends a process: its input ends, then it is told to, then it is killed. All that it has started is killed: its
    group, and what has left the group, which is known by the token in its environment."""
    assert started.stdin is not None
    with suppress(*_CLOSED):
        await started.stdin.aclose()
    for sent in (None, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if sent is not None:
            _signal(started, sent)
        with anyio.move_on_after(GRACE):
            await _ended(started)
        if started.returncode is not None:
            break
    _signal(started, getattr(signal, "SIGKILL", signal.SIGTERM))  # what it started, and left behind
    own_thread = anyio.CapacityLimiter(1)
    if not await anyio.to_thread.run_sync(end_marked, token.encode(), limiter=own_thread):
        _log.warning("a process that an MCP server has started could not be ended, and runs on")
    for stream in (started.stdout, started.stderr):
        if stream is not None:
            with suppress(*_CLOSED):
                await stream.aclose()
    transport = getattr(getattr(started, "_process", None), "_transport", None)
    if transport is not None:  # asyncio keeps it open as long as anybody holds the other end of a pipe
        with suppress(PermissionError):
            transport.close()
    await anyio.lowlevel.checkpoint()


async def _ended(started: Process) -> None:
    """Returns when a process has ended. (asyncio's own wait is also for everybody who has its pipes.)"""
    while started.returncode is None:  # noqa: ASYNC110
        await anyio.sleep(0.01)


def _signal(started: Process, sent: int) -> None:
    if hasattr(os, "killpg"):
        signal_group(started.pid, sent)
    elif started.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            started.send_signal(signal.Signals(sent))


def _how(code: int | None) -> str:
    if code is None:
        return "has closed its output"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

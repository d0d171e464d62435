"""The fastest scripted model there is: OpenAI's chat completions over loopback HTTP, in a process of its own.

Servers are measured with it, so it must cost next to nothing. It answers at once; or slowly, as a real model does, if
the newest message asks for that. Its answer says how many messages it was sent and how many microseconds it had the
request, from its last byte to the answer's: what is left of the time that a client saw is the server's own.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import httptools
import msgspec
import uvloop
from msgspec import Struct

MODEL = "scripted"
SLOWLY = "slowly:"
"""A newest message that begins so, and then says in how many seconds, is answered piece by piece."""

PIECES = 20

_ROOT = Path(__file__).parents[1]
WORDS = "Nothing unusual is in the log, "  # each piece, so that the answer has about 600 characters


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """Runs the model as a process for as long as the block lasts; gives its base URL and its process id."""
    command = [sys.executable, "-m", "benchmarks.server_model"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:  # closing it ends the process, and so does our death
            url = process.stdout.readline().strip()
            assert url, "the model did not start"
            yield url, process.pid


class _Message(Struct):
    role: str
    content: str = ""


class _Body(Struct):
    messages: list[_Message]
    stream: bool = False


_decoder = msgspec.json.Decoder(_Body)
_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # What the parser calls.

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        started = time.perf_counter_ns()
        body = _decoder.decode(b"".join(self._body))
        self._body.clear()
        newest = body.messages[-1].content
        seconds = float(newest.removeprefix(SLOWLY).split()[0]) if newest.startswith(SLOWLY) else 0.0
        if not body.stream:
            asyncio.get_running_loop().call_later(seconds, self._whole, started, len(body.messages))
            return
        self._transport.write(_STREAM)
        if not seconds:
            self._transport.write(b"".join([_chunk(_ROLE), *[_PIECE] * PIECES, self._end(started, len(body.messages))]))
            return
        self._transport.write(_chunk(_ROLE))
        self._piece(started, len(body.messages), 1, seconds)

    def _piece(self, started: int, messages: int, number: int, seconds: float) -> None:
        if self._gone:
            return
        if number > PIECES:
            self._transport.write(self._end(started, messages))
            return
        if number > 1:
            self._transport.write(_PIECE)
        due = started / 1e9 + seconds * number / PIECES
        wait = due - time.perf_counter()
        asyncio.get_running_loop().call_later(wait, self._piece, started, messages, number + 1, seconds)

    def _whole(self, started: int, messages: int) -> None:
        if self._gone:
            return
        text = WORDS * PIECES + _last_words(started, messages)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        body = _encode(_completion("chat.completion", [choice]) | {"usage": _usage(messages)})
        self._transport.write(_WHOLE % len(body) + body)

    def _end(self, started: int, messages: int) -> bytes:
        last = _chunk({"content": _last_words(started, messages)})
        usage = _framed(_encode(_completion("chat.completion.chunk", []) | {"usage": _usage(messages)}))
        return last + _chunk({}, "stop") + usage + _sized(b"data: [DONE]\n\n") + b"0\r\n\r\n"


_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def _last_words(started: int, messages: int) -> str:
    return f"said of {messages} messages in {(time.perf_counter_ns() - started) // 1000} us."


def _completion(kind: str, choices: list[object]) -> dict[str, object]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1735689600, "model": MODEL, "choices": choices}


def _usage(messages: int) -> dict[str, object]:
    return {"prompt_tokens": 100 * messages, "completion_tokens": 150, "total_tokens": 100 * messages + 150}


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return _framed(_encode(_completion("chat.completion.chunk", [choice]) | {"usage": None}))


def _framed(document: bytes) -> bytes:
    return _sized(b"data: " + document + b"\n\n")


def _sized(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_ROLE = {"role": "assistant", "content": ""}
_PIECE = _chunk({"content": WORDS})


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Client, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())

"""Models behind HTTP, through the official SDKs.

The SDK does what it knows best: connections, authentication, errors. What is sent are the bytes that the
renderer made, untouched, and what comes back is read as plain JSON: no layer between the model and the disk gets to
reorder a field, and a compatible server may leave out what it likes.

The two SDKs have one shape, so there is one provider for both. They are imported when the first call is made, in a
thread, since that takes a second. What they take from the environment (headers, an organisation) is meant for their
own company, and is not sent to another's server.

What goes wrong leaves here as a `ModelError` of ours, with what the provider said. The SDK's own error stays behind,
with its frames: they hold the request, and whatever a server repeats of it. Tests: tests/llm/test_call.py,
tests/llm/test_keys.py.
"""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, Protocol

import anyio
import anyio.to_thread
import msgspec

from forkpoint.errors import AnswerMalformed, ModelError, ModelUnavailable
from forkpoint.llm.answers import Answer
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.failures import CACHE_KEY, error_for_status, error_in_answer
from forkpoint.llm.key import NO_KEY, Key
from forkpoint.llm.providers.clients import STAND_IN, Clients, load
from forkpoint.llm.request import Request
from forkpoint.llm.streams.chat import ChatStream
from forkpoint.llm.streams.messages import MessagesStream
from forkpoint.llm.streams.responses import ResponsesStream
from forkpoint.sse import Frame, FrameReader

_LEFT = 1.0  # seconds that a server has to end its answer once it has said all


class _Stream(Protocol):
    def feed(self, event: Any) -> None: ...
    def answer(self) -> Answer: ...


class SdkProvider:
    """Asks over one wire."""

    def __init__(self, wire: Literal["chat", "responses", "messages"]) -> None:
        self._wire = wire
        self._package = "anthropic" if wire == "messages" else "openai"
        self._path = {"chat": "/chat/completions", "responses": "/responses", "messages": "/v1/messages"}[wire]
        self._loaded: list[Clients] = []  # none before the first call

    async def ask(self, request: Request, hearing: Hearing) -> Answer:
        key = request.llm.key() or NO_KEY
        if not self._loaded:
            with hearing.loading():
                # Not in the threads that everybody shares: those may all be taken by tools.
                sdk = await anyio.to_thread.run_sync(load, self._package, limiter=anyio.CapacityLimiter(1))
            self._loaded.append(Clients(sdk))
        clients = self._loaded[0]
        machine = self._machine(request, hearing)
        try:
            async with (
                clients.client(request.llm, key) as client,
                aclosing(self._chunks(clients.sdk, client, request, hearing)) as chunks,
            ):
                await _feed(machine, chunks, hearing, request.model)
            return machine.answer()
        except ModelError as error:
            failed = _presentable(error, key)
        raise failed  # here, where no other error is about: it would stay with this one

    async def aclose(self) -> None:
        for clients in self._loaded:
            await clients.aclose()

    async def _chunks(self, sdk: Any, client: Any, request: Request, hearing: Hearing) -> AsyncGenerator[bytes, None]:
        """The bytes of an answer as they come. Raises a `ModelError`, or a cancellation, and nothing of the SDK's."""
        try:
            stream = await client.post(
                self._path,
                cast_to=object,
                content=request.body,
                options={"headers": self._headers(sdk.omit, request)},
                stream=True,
                stream_cls=sdk.AsyncStream[object],
            )
            try:
                async for chunk in stream.response.aiter_bytes():
                    yield chunk
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.close()
            return
        except GeneratorExit:
            raise
        except Exception as error:
            failed = _failure(sdk, error, request, hearing)
        except BaseException as error:  # cancelled, or interrupted
            _forget_frames(error)
            raise
        raise failed

    def _machine(self, request: Request, hearing: Hearing) -> _Stream:
        origin, model = request.rendering.manifest.origin, request.model
        match self._wire:
            case "chat":
                return ChatStream(origin=origin, model=model, hearing=hearing)
            case "responses":
                return ResponsesStream(origin=origin, model=model, hearing=hearing)
            case "messages":
                return MessagesStream(origin=origin, model=model, hearing=hearing)

    def _headers(self, omit: Any, request: Request) -> dict[str, Any]:
        headers: dict[str, Any] = {}
        if request.llm.base_url is not None:
            headers |= dict.fromkeys(_from_environment(self._package), omit)
            headers["Authorization"] = f"Bearer {STAND_IN}"
        return headers | {"Content-Type": "application/json", **dict(request.headers)}


async def _feed(machine: _Stream, chunks: AsyncGenerator[bytes, None], hearing: Hearing, model: str) -> None:
    """Feeds the machine with a stream's events. All bytes are signs of life, also those of comments and pings.

    This is the one thing that the SDKs know and we do ourselves: their way costs more than all the rest of a turn.
    """
    reader = FrameReader()
    async for chunk in chunks:
        hearing.alive()
        for frame in reader.feed(chunk):
            if frame.data.startswith("[DONE]"):
                with anyio.move_on_after(_LEFT):  # read to its end, so that the connection can be used again
                    async for _ in chunks:
                        pass
                return
            if frame.event != "ping":
                machine.feed(_event(frame, model))


def _event(frame: Frame, model: str) -> Any:
    """What a frame says. Raises the error that it tells of; what is no JSON is its server's fault."""
    try:
        event = _decoded(frame.data)
    except (ValueError, RecursionError) as error:
        raise AnswerMalformed(model, f"a piece of it is not JSON ({error})") from error
    told = event.get("error") if isinstance(event, dict) else None
    if told or frame.event == "error":
        raise error_in_answer(model, told or event)
    return event


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # half a surrogate pair, which some servers send, is JSON as well
        return json.loads(text)


def _from_environment(package: str) -> list[str]:
    """The headers that an SDK takes from the environment."""
    lines = os.environ.get(f"{package.upper()}_CUSTOM_HEADERS", "").splitlines()
    names = [line.partition(":")[0].strip() for line in lines if ":" in line]
    return names + (["OpenAI-Organization", "OpenAI-Project"] if package == "openai" else [])


def _failure(sdk: Any, error: Exception, request: Request, hearing: Hearing) -> ModelError:
    """What an error of the SDK means, judged by all that the server said: nothing is hidden yet."""
    import httpx2

    model = request.model
    match error:
        case sdk.APITimeoutError():
            within = f"no connection within {request.llm.timeouts.connect:g} s"
            return ModelUnavailable.model_timeout(model, within)
        case sdk.APIConnectionError() | httpx2.HTTPError():
            return ModelUnavailable.model_connection(model, _cause(error))
        case sdk.APIStatusError() if not hearing.lively:
            failed = error_for_status(model, error.status_code, error.body, error.response.headers)
            failed.provider_request = error.request_id
            return failed
        case sdk.APIStatusError():  # an error within a stream whose status was good
            return error_in_answer(model, error.body)
        case sdk.APIError():
            return error_in_answer(model, error.body or {"message": error.message})
        case _:
            return ModelError(model, _cause(error))


def _presentable(error: ModelError, key: Key) -> ModelError:
    """The same error as it may be shown, stored and logged: the key is hidden, and no frame, no other error and no
    answer of the server is left in it."""
    error.detail = key.hide(error.detail)
    if error.field is not None and error.field != CACHE_KEY:
        error.field = key.hide(error.field)
    if error.provider_request is not None:
        error.provider_request = key.hide(error.provider_request)
    error.args = tuple(error.fields.values())
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _forget_frames(error: BaseException) -> None:
    """Takes the frames out of an error, and out of all that led to it: they hold what was being sent."""
    left, seen = [error], {id(error)}
    while left:
        one = left.pop()
        one.__traceback__ = None
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        further = [other for other in (one.__cause__, one.__context__, *inner) if other is not None]
        left += (other for other in further if id(other) not in seen)
        seen |= {id(other) for other in further}


def _cause(error: BaseException) -> str:
    """The innermost reason that says something."""
    said = str(error)
    while error.__cause__ is not None:
        error = error.__cause__
        said = str(error) or said
    said = said.rstrip(".")  # it stands in a sentence of its own
    return f"{type(error).__name__}: {said}" if said else type(error).__name__

"""Models behind HTTP, through the official SDKs.

The SDK does what it knows best: connections, authentication, errors. What is sent are the bytes that the
renderer made, untouched, and what comes back is read as plain JSON: no layer between the model and the disk gets to
reorder a field, and a compatible server may leave out what it likes.

The two SDKs have one shape, so there is one provider for both. They are imported when the first call is made, in a
thread, since that takes a second. What they take from the environment (headers, an organisation) is meant for their
own company, and is not sent to another's server. Tests: tests/llm/test_call.py.
"""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, Protocol

import anyio
import anyio.to_thread
import msgspec

from forkpoint.errors import AnswerMalformed, ModelUnavailable
from forkpoint.llm.answers import Answer
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.failures import error_for_status, error_in_answer
from forkpoint.llm.key import masked
from forkpoint.llm.providers.clients import Clients, load
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
        key = request.llm.key()
        if not self._loaded:
            # Not in the threads that everybody shares: those may all be taken by tools.
            sdk = await anyio.to_thread.run_sync(load, self._package, limiter=anyio.CapacityLimiter(1))
            self._loaded.append(Clients(sdk))
        clients = self._loaded[0]
        machine = self._machine(request, hearing)
        async with clients.client(request.llm, key) as client:
            await self._hear(clients.sdk, client, request, key, hearing, machine)
        return machine.answer()

    async def aclose(self) -> None:
        for clients in self._loaded:
            await clients.aclose()

    async def _hear(
        self, sdk: Any, client: Any, request: Request, key: str | None, hearing: Hearing, machine: _Stream
    ) -> None:
        """Feeds the machine with all that comes. Raises a `ModelError` if it breaks off."""
        import httpx2

        model = request.model
        try:
            stream = await client.post(
                self._path,
                cast_to=object,
                content=request.body,
                options={"headers": self._headers(sdk.omit, request, key)},
                stream=True,
                stream_cls=sdk.AsyncStream[object],
            )
            try:
                async with aclosing(stream.response.aiter_bytes()) as chunks:
                    await _feed(machine, chunks, hearing, model, key)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.close()
        except sdk.APITimeoutError as error:
            raise ModelUnavailable.model_timeout(
                model, f"no connection within {request.llm.timeouts.connect:g} s"
            ) from error
        except sdk.APIConnectionError as error:
            raise ModelUnavailable.model_connection(model, masked(_cause(error), key)) from error
        except sdk.APIStatusError as error:
            body = masked(error.body, key)
            if hearing.lively:  # an error within a stream whose status was good
                raise error_in_answer(model, body) from error
            raise error_for_status(model, error.status_code, body, error.response.headers) from error
        except sdk.APIError as error:
            raise error_in_answer(model, masked(error.body or {"message": error.message}, key)) from error
        except httpx2.HTTPError as error:
            raise ModelUnavailable.model_connection(model, masked(_cause(error), key)) from error

    def _machine(self, request: Request, hearing: Hearing) -> _Stream:
        origin, model = request.rendering.manifest.origin, request.model
        match self._wire:
            case "chat":
                return ChatStream(origin=origin, model=model, hearing=hearing)
            case "responses":
                return ResponsesStream(origin=origin, model=model, hearing=hearing)
            case "messages":
                return MessagesStream(origin=origin, model=model, hearing=hearing)

    def _headers(self, omit: Any, request: Request, key: str | None) -> dict[str, Any]:
        headers: dict[str, Any] = {}
        if request.llm.base_url is not None:
            headers |= dict.fromkeys(_from_environment(self._package), omit)
            headers["Authorization"] = f"Bearer {key}" if key else omit
        return headers | {"Content-Type": "application/json", **dict(request.headers)}


async def _feed(
    machine: _Stream, chunks: AsyncGenerator[bytes, None], hearing: Hearing, model: str, key: str | None
) -> None:
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
                machine.feed(_event(frame, model, key))


def _event(frame: Frame, model: str, key: str | None) -> Any:
    """What a frame says. Raises the error that it tells of; what is no JSON is its server's fault."""
    try:
        event = _decoded(frame.data)
    except (ValueError, RecursionError) as error:
        raise AnswerMalformed(model, f"a piece of it is not JSON ({error})") from error
    told = event.get("error") if isinstance(event, dict) else None
    if told or frame.event == "error":
        raise error_in_answer(model, masked(told or event, key))
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


def _cause(error: BaseException) -> str:
    """The innermost reason that says something."""
    said = str(error)
    while error.__cause__ is not None:
        error = error.__cause__
        said = str(error) or said
    said = said.rstrip(".")  # it stands in a sentence of its own
    return f"{type(error).__name__}: {said}" if said else type(error).__name__

"""Models behind HTTP, through the official SDKs.

The SDK does what it knows best: connections, authentication, server-sent events. What is sent are the bytes that the
renderer made, untouched, and what comes back is read as plain JSON: no layer between the model and the disk gets to
reorder a field, and a compatible server may leave out what it likes.

The two SDKs have one shape, so there is one provider for both. They are imported when the first call is made, in a
thread, since that takes a second. All clients trust the same certificates, which are read once.
"""

import importlib
import ssl
from collections import OrderedDict
from contextlib import aclosing
from functools import cache
from typing import Any, Literal, Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread

from forkpoint.errors import AnswerMalformed, ConnectionLost, ModelError, ModelTimeout
from forkpoint.llm.answers import Answer
from forkpoint.llm.failures import error_for_status, error_in_answer
from forkpoint.llm.hearing import Hearing
from forkpoint.llm.model import LLM
from forkpoint.llm.request import Request
from forkpoint.llm.streams.chat import ChatStream
from forkpoint.llm.streams.messages import MessagesStream
from forkpoint.llm.streams.responses import ResponsesStream

MOST_CLIENTS = 64  # a server with many keys closes the client that was idle longest
NO_KEY = "none"  # the SDKs insist on one; a server that wants no key does not look at it


class _Stream(Protocol):
    def feed(self, event: Any) -> None: ...
    def answer(self) -> Answer: ...


class SdkProvider:
    """Asks over one wire. Clients are pooled by address, key and event loop."""

    def __init__(self, wire: Literal["chat", "responses", "messages"]) -> None:
        self._wire = wire
        self._package = "anthropic" if wire == "messages" else "openai"
        self._path = {"chat": "/chat/completions", "responses": "/responses", "messages": "/v1/messages"}[wire]
        self._sdk: Any = None
        self._clients: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    async def ask(self, request: Request, hearing: Hearing) -> Answer:
        key = request.llm.key()
        try:
            return await self._ask(request, hearing, key)
        except ModelError as error:
            if key and key in error.detail:  # some servers repeat what they were sent
                error.detail = error.detail.replace(key, "***")
            raise

    async def aclose(self) -> None:
        here = anyio.lowlevel.current_token()
        for place in [place for place in self._clients if place[0] == here]:
            await self._clients.pop(place).close()

    async def _ask(self, request: Request, hearing: Hearing, key: str | None) -> Answer:
        if self._sdk is None:
            self._sdk = await anyio.to_thread.run_sync(_load, self._package)
        sdk, model = self._sdk, request.model
        machine = self._machine(request, hearing)
        try:
            stream = await (await self._client(sdk, request.llm, key)).post(
                self._path,
                cast_to=object,
                content=request.body,
                options={"headers": self._headers(sdk, request)},
                stream=True,
                stream_cls=sdk.AsyncStream[object],
            )
            try:
                async with aclosing(aiter(stream)) as events:
                    async for event in events:
                        hearing.alive()
                        machine.feed(event)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.close()
        except sdk.APITimeoutError as error:
            raise ModelTimeout(model, f"no connection within {request.llm.timeouts.connect:g} s") from error
        except sdk.APIConnectionError as error:
            raise ConnectionLost(model, _cause(error)) from error
        except sdk.APIStatusError as error:
            if hearing.lively:  # an error within a stream whose status was good
                raise error_in_answer(model, error.body) from error
            raise error_for_status(model, error.status_code, error.body, error.response.headers) from error
        except sdk.APIError as error:
            raise error_in_answer(model, error.body or {"message": error.message}) from error
        except importlib.import_module("httpx2").HTTPError as error:
            raise ConnectionLost(model, _cause(error)) from error
        except ValueError as error:  # a piece that is not JSON
            raise AnswerMalformed(model, f"a piece of it is not JSON ({error})") from error
        return machine.answer()

    def _machine(self, request: Request, hearing: Hearing) -> _Stream:
        origin, model = request.rendering.manifest.origin, request.model
        match self._wire:
            case "chat":
                return ChatStream(origin=origin, model=model, hearing=hearing)
            case "responses":
                return ResponsesStream(origin=origin, model=model, hearing=hearing)
            case "messages":
                return MessagesStream(origin=origin, model=model, hearing=hearing)

    async def _client(self, sdk: Any, llm: LLM, key: str | None) -> Any:
        place = (anyio.lowlevel.current_token(), llm.base_url, key, llm.timeouts.connect)
        if place in self._clients:
            self._clients.move_to_end(place)
            return self._clients[place]
        make = sdk.AsyncAnthropic if self._package == "anthropic" else sdk.AsyncOpenAI
        # Times between pieces are watched over for all providers alike; here only the connection has a limit.
        timeout = sdk.Timeout(None, connect=llm.timeouts.connect, pool=llm.timeouts.connect)
        http = sdk.DefaultAsyncHttpxClient(verify=_trusted(), timeout=timeout)
        client = make(api_key=key or NO_KEY, base_url=llm.base_url, timeout=timeout, max_retries=0, http_client=http)
        self._clients[place] = client
        if len(self._clients) > MOST_CLIENTS:
            _, idle = self._clients.popitem(last=False)
            await idle.close()
        return client

    def _headers(self, sdk: Any, request: Request) -> dict[str, Any]:
        headers: dict[str, Any] = {"Content-Type": "application/json", **dict(request.headers)}
        if self._package == "openai" and request.llm.base_url is not None:
            # The SDK takes these from the environment. They are meant for OpenAI, not for another's server.
            headers |= {"OpenAI-Organization": sdk.omit, "OpenAI-Project": sdk.omit}
        return headers


def _load(package: str) -> Any:
    """The SDK, and whatever else the first call needs that takes a while."""
    _trusted()
    return importlib.import_module(package)


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates to trust: those of the system, or what the environment names. Reading them takes 25 ms."""
    context: ssl.SSLContext = importlib.import_module("httpx2").create_ssl_context()
    return context


def _cause(error: BaseException) -> str:
    """The innermost reason that says something."""
    said = str(error)
    while error.__cause__ is not None:
        error = error.__cause__
        said = str(error) or said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__

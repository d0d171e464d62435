"""Clients of an SDK, pooled by address and key. They hold connections, and nothing of any conversation.

An SDK never has the key: it is given a stand-in, and the HTTP client puts the key in its place when it sends a request,
and takes it out again when the answer begins. So no object, log or error of an SDK can show it.
Tests: tests/llm/test_call.py, tests/llm/test_keys.py.
"""

import importlib
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

from forkpoint.errors import ExtraBroken
from forkpoint.llm.key import Key
from forkpoint.llm.model import LLM
from forkpoint.lru import Lru
from forkpoint.masking import HiddenInLogs

MOST = 64
"""How many clients stay open though nobody uses them. A server with more keys opens some of them anew."""

STAND_IN = "forkpoint-stand-in"
"""What an SDK has for a key."""

_Place: TypeAlias = tuple[Any, str | None, Key, float]  # event loop, address, key, time to connect
_LOGGERS = (
    *("httpx2", "httpcore2.connection", "httpcore2.http11", "httpcore2.http2", "httpcore2.proxy"),
    *("openai._base_client", "openai._response", "anthropic._base_client", "anthropic._response"),
)


def load(package: str) -> Any:
    """The SDK, and whatever else the first call needs that takes a while. Raises `ExtraBroken`."""
    try:
        _trusted()
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = (error.name or package).partition(".")[0]
        raise ExtraBroken.package_missing(f"A model of {package}'s API", missing) from error
    except ImportError as error:
        raise ExtraBroken(f"A model of {package}'s API", package, f"{type(error).__name__}: {error}") from error


class Clients:
    """All clients of one SDK. Each belongs to the event loop that it was made in."""

    def __init__(self, sdk: Any) -> None:
        self.sdk = sdk
        self._clients: Lru[_Place, _SharedClient] = Lru()  # `_trim` bounds it: it must not close a client in use

    @asynccontextmanager
    async def client(self, llm: LLM, key: Key) -> AsyncIterator[Any]:
        """A client for a model's address and key, in use until the block ends."""
        place = (anyio.lowlevel.current_token(), llm.base_url, key, llm.timeouts.connect)
        shared = self._clients.get(place)
        if shared is None:
            shared = _SharedClient(self._new_client(llm, key), key)
            self._clients.put(place, shared)
        shared.users += 1
        try:
            yield shared.client
        finally:
            shared.users -= 1
            await self._trim()

    async def aclose(self) -> None:
        """Closes the clients of this event loop."""
        here = anyio.lowlevel.current_token()
        for place, shared in list(self._clients.items()):
            if place[0] == here and self._clients.pop(place) is shared:
                await shared.close()

    async def _trim(self) -> None:
        """Closes clients that nobody uses until `MOST` are left. The client that was idle longest goes first."""
        here = anyio.lowlevel.current_token()
        for place, shared in list(self._clients.items()):
            if len(self._clients) <= MOST:
                return
            if _has_ended(place[0]):
                if (ended := self._clients.pop(place)) is not None:  # its connections ended with its loop
                    ended.forget()
            elif place[0] == here and not shared.users and self._clients.pop(place) is shared:
                with anyio.CancelScope(shield=True):
                    await shared.close()

    def _new_client(self, llm: LLM, key: Key) -> Any:
        sdk = self.sdk
        make = sdk.AsyncAnthropic if hasattr(sdk, "AsyncAnthropic") else sdk.AsyncOpenAI
        # Times between pieces are watched over for all providers alike; here only the connection has a limit.
        timeout = sdk.Timeout(None, connect=llm.timeouts.connect, pool=llm.timeouts.connect)
        http = sdk.DefaultAsyncHttpxClient(verify=_trusted(), timeout=timeout, auth=_authorization()(key))
        return make(api_key=STAND_IN, base_url=llm.base_url, timeout=timeout, max_retries=0, http_client=http)


class _SharedClient:
    def __init__(self, client: Any, key: Key) -> None:
        self.client = client
        self.users = 0
        # A server may repeat the key in its headers, and those are logged where somebody debugs the HTTP client.
        self._hidden = None if key.is_blank else HiddenInLogs(key.hide)
        if self._hidden is not None:
            for name in _LOGGERS:
                logging.getLogger(name).addFilter(self._hidden)

    async def close(self) -> None:
        await self.client.close()
        self.forget()

    def forget(self) -> None:
        """Its key is sent no more."""
        if self._hidden is not None:
            for name in _LOGGERS:
                logging.getLogger(name).removeFilter(self._hidden)


@cache
def _authorization() -> Any:
    """The class that puts a key in the place of the stand-in, for as long as its request is being sent."""
    import httpx2

    class Authorization(httpx2.Auth):
        def __init__(self, key: Key) -> None:
            self._key = key

        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            stood = {name: value for name, value in request.headers.items() if STAND_IN in value}
            for name, value in stood.items():
                if self._key.is_blank:
                    del request.headers[name]
                else:
                    request.headers[name] = value.replace(STAND_IN, self._key.reveal())
            sent = [request]
            try:
                response = yield request
                sent += [response.request, *(before.request for before in response.history)]
            finally:
                for one in sent:
                    for name in stood.keys() & one.headers.keys():
                        one.headers[name] = stood[name]

    return Authorization


def _has_ended(token: Any) -> bool:
    loop = getattr(token, "native_token", None)
    return bool(getattr(loop, "is_closed", lambda: False)())


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates to trust: those of the system, or what the environment names. Reading them takes 25 ms."""
    import httpx2

    return httpx2.create_ssl_context()

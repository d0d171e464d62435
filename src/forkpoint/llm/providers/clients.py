"""Clients of an SDK, pooled by address and key. They hold connections, and nothing of any conversation.
Tests: tests/llm/test_call.py."""

import importlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

from forkpoint.llm.model import LLM
from forkpoint.lru import Lru

MOST = 64
"""How many clients stay open though nobody uses them. A server with more keys opens some of them anew."""

NO_KEY = "none"  # the SDKs insist on one; it is not sent

_Place: TypeAlias = tuple[Any, str | None, str | None, float]  # event loop, address, key, time to connect


def load(package: str) -> Any:
    """The SDK, and whatever else the first call needs that takes a while."""
    _trusted()
    return importlib.import_module(package)


class Clients:
    """All clients of one SDK. Each belongs to the event loop that it was made in."""

    def __init__(self, sdk: Any) -> None:
        self.sdk = sdk
        self._clients: Lru[_Place, _SharedClient] = Lru()  # `_trim` bounds it: it must not close a client in use

    @asynccontextmanager
    async def client(self, llm: LLM, key: str | None) -> AsyncIterator[Any]:
        """A client for a model's address and key, in use until the block ends."""
        place = (anyio.lowlevel.current_token(), llm.base_url, key, llm.timeouts.connect)
        shared = self._clients.get(place)
        if shared is None:
            shared = _SharedClient(self._new_client(llm, key))
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
                await shared.client.close()

    async def _trim(self) -> None:
        """Closes clients that nobody uses until `MOST` are left. The client that was idle longest goes first."""
        here = anyio.lowlevel.current_token()
        for place, shared in list(self._clients.items()):
            if len(self._clients) <= MOST:
                return
            if _has_ended(place[0]):
                self._clients.pop(place)  # its connections ended with its loop
            elif place[0] == here and not shared.users and self._clients.pop(place) is shared:
                with anyio.CancelScope(shield=True):
                    await shared.client.close()

    def _new_client(self, llm: LLM, key: str | None) -> Any:
        sdk = self.sdk
        make = sdk.AsyncAnthropic if hasattr(sdk, "AsyncAnthropic") else sdk.AsyncOpenAI
        # Times between pieces are watched over for all providers alike; here only the connection has a limit.
        timeout = sdk.Timeout(None, connect=llm.timeouts.connect, pool=llm.timeouts.connect)
        http = sdk.DefaultAsyncHttpxClient(verify=_trusted(), timeout=timeout)
        return make(api_key=key or NO_KEY, base_url=llm.base_url, timeout=timeout, max_retries=0, http_client=http)


class _SharedClient:
    def __init__(self, client: Any) -> None:
        self.client = client
        self.users = 0


def _has_ended(token: Any) -> bool:
    loop = getattr(token, "native_token", None)
    return bool(getattr(loop, "is_closed", lambda: False)())


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates to trust: those of the system, or what the environment names. Reading them takes 25 ms."""
    import httpx2

    return httpx2.create_ssl_context()

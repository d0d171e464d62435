"""Clients of an SDK, pooled by address and key. They hold connections, and nothing of any conversation."""

import importlib
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

from forkpoint.llm.model import LLM

MOST = 64
"""Clients that are kept though nobody uses them. A server with more keys than that makes some of them anew."""

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
        self._kept: OrderedDict[_Place, _SharedClient] = OrderedDict()

    @asynccontextmanager
    async def client(self, llm: LLM, key: str | None) -> AsyncIterator[Any]:
        """A client for a model's address and key, in use until the block ends."""
        place = (anyio.lowlevel.current_token(), llm.base_url, key, llm.timeouts.connect)
        kept = self._kept.get(place)
        if kept is None:
            kept = self._kept[place] = _SharedClient(self._made(llm, key))
        self._kept.move_to_end(place)
        kept.users += 1
        try:
            yield kept.client
        finally:
            kept.users -= 1
            await self._trim()

    async def aclose(self) -> None:
        """Closes the clients of this event loop."""
        here = anyio.lowlevel.current_token()
        for place in [place for place in self._kept if place[0] == here]:
            await self._kept.pop(place).client.close()

    async def _trim(self) -> None:
        """Lets go of clients that nobody uses, the one that was idle longest first."""
        here = anyio.lowlevel.current_token()
        for place, kept in list(self._kept.items()):
            if len(self._kept) <= MOST:
                return
            if _has_ended(place[0]):
                self._kept.pop(place, None)  # its connections ended with its loop
            elif place[0] == here and not kept.users and self._kept.pop(place, None) is kept:
                with anyio.CancelScope(shield=True):
                    await kept.client.close()

    def _made(self, llm: LLM, key: str | None) -> Any:
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
    context: ssl.SSLContext = importlib.import_module("httpx2").create_ssl_context()
    return context

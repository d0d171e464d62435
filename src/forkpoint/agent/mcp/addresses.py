"""A server that is an address: messages go to it by HTTP, as the SDK's own transport sends them.

What one answer may have is limited here: the SDK limits what comes as a stream of events, and no plain JSON. Both it
and the HTTP client log addresses, in which there may be a secret; it is masked there.
Tests: tests/agent/mcp/test_connections.py.
"""

import functools
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from forkpoint.agent.mcp.processes import MESSAGE
from forkpoint.agent.mcp.servers import Start
from forkpoint.agent.secrets.masking import Masking
from forkpoint.masking import HiddenInLogs

CONNECTING = 30.0
"""Seconds to reach a server, or to send it something."""

_LISTENING = 300.0  # seconds without a byte on a stream of events
_LOGGERS = ("httpx2", "mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher", "client")


@asynccontextmanager
async def address(start: Start) -> AsyncIterator[Any]:
    """The streams of a server that is reached by HTTP."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    assert start.url is not None
    limits = httpx2.Timeout(CONNECTING, read=max(_LISTENING, start.timeout))
    headers = {**dict(start.headers), "accept-encoding": "identity"}  # what is packed cannot be measured
    with _masked_logs(start.masking):
        async with (
            httpx2.AsyncClient(
                headers=headers, timeout=limits, verify=_tls(), event_hooks={"response": [_limit]}
            ) as client,
            streamable_http_client(start.url, http_client=client, max_sse_event_size=MESSAGE) as streams,
        ):
            yield streams


@contextmanager
def _masked_logs(masking: Masking) -> Iterator[None]:
    """Hides values in what is logged of requests, as long as there are any."""
    found = [logging.getLogger(name) for name in _LOGGERS] if masking else []
    hidden = HiddenInLogs(masking.text)
    for logger in found:
        logger.addFilter(hidden)
    try:
        yield
    finally:
        for logger in found:
            logger.removeFilter(hidden)


@functools.cache
def _tls() -> Any:
    """Which certificates are believed: they are read once, for that takes longer than all else here."""
    import httpx2

    return httpx2.create_ssl_context()


async def _limit(response: Any) -> None:
    """Lets an answer go on for so long only. Streams of events have no end, and their own limit."""
    import httpx2

    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("the answer is compressed, and was not to be", request=response.request)
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return
    stream = response.stream

    class Limited(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            seen = 0
            async for chunk in stream:
                seen += len(chunk)
                if seen > MESSAGE:
                    raise httpx2.StreamError(f"the answer has more than {MESSAGE:,} bytes")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Limited()

"""Reads along what a client of somebody else is answered, and checks it with Open Responses.

A witness stands in the client's own HTTP connection, so it sees the bytes that the client sees, and changes none.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
from tests.server.responses.responding import LAST, PATH, check_events, check_response, parsed


class Exchange:
    """A request of a client, and what it was answered."""

    def __init__(self, request: httpx2.Request, response: httpx2.Response) -> None:
        self.method = request.method
        self.path = request.url.path
        self.sent: Any = json.loads(request.content or b"null")
        self.status = response.status_code
        self.is_stream = response.headers["content-type"].startswith("text/event-stream")
        self.content = b""

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream."""
        return list(parsed(self.content.decode().splitlines()))

    @property
    def answer(self) -> Any:
        """The object that it was answered; for a stream, the response that it ended with."""
        return self.events[-1]["response"] if self.is_stream else json.loads(self.content)

    def check(self) -> None:
        """Raises unless Open Responses takes all of it."""
        if self.is_stream:
            check_events(self.events)
            assert self.events[-1]["type"] in LAST
        elif self.status == 200 and self.answer.get("object") == "response" and self.method != "DELETE":
            check_response(self.answer)


class Witness:
    """All exchanges of a client, in order."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    @property
    def responses(self) -> list[Exchange]:
        """The requests for a response."""
        return [one for one in self.exchanges if (one.method, one.path) == ("POST", PATH)]

    def check(self) -> None:
        """Raises unless there was a response, and Open Responses takes all responses and events."""
        assert any(one.status == 200 for one in self.responses), "nothing was seen"
        for one in self.exchanges:
            one.check()

    def see(self, request: httpx2.Request, response: httpx2.Response) -> Exchange:
        self.exchanges.append(Exchange(request, response))
        return self.exchanges[-1]


class Witnessed(httpx2.HTTPTransport):
    """The connection of a client, with a witness."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _ReadAlong(self._witness.see(request, response), response.stream)
        return response


class AsyncWitnessed(httpx2.AsyncHTTPTransport):
    """The connection of an async client, with a witness."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _AsyncReadAlong(self._witness.see(request, response), response.stream)
        return response


class _ReadAlong(httpx2.SyncByteStream):
    def __init__(self, exchange: Exchange, stream: httpx2.SyncByteStream) -> None:
        self._exchange = exchange
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._exchange.content += piece
            yield piece

    def close(self) -> None:
        self._stream.close()


class _AsyncReadAlong(httpx2.AsyncByteStream):
    def __init__(self, exchange: Exchange, stream: httpx2.AsyncByteStream) -> None:
        self._exchange = exchange
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._exchange.content += piece
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()

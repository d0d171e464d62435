"""Asking any node over HTTP, and asking again as the SDKs do: another try after a pause, with the same key."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
from msgspec import Struct

from benchmarks.cluster.ledger import Ledger

_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_FIRST, _LONGEST = 0.25, 8.0  # seconds between two tries
_OBEYED = 60.0  # a Retry-After beyond it is not

TIMEOUT = 30.0
"""Seconds that one try waits for an answer. Real clients wait longer; here a stopped node is to be noticed."""


class Stuck(Exception):
    """A client asked for as long as its patience lasted, and nobody gave it an answer."""


class Answer(Struct, frozen=True):
    """What a node said in the end."""

    status: int
    body: Any
    node: str

    @property
    def code(self) -> str:
        """The code of the error, or an empty text."""
        return _code(self.body)


class Caller:
    """Asks one node after the other, drawn by chance: there are no sticky sessions."""

    def __init__(
        self,
        urls: Sequence[str],
        chance: random.Random,
        ledger: Ledger,
        patience: float,
        *,
        key: str | None = None,
        stale: bool = False,
    ) -> None:
        self._urls = urls
        self._chance = chance
        self._ledger = ledger
        self._patience = patience
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=4, keepalive_expiry=5)
        timeout = httpx2.Timeout(TIMEOUT, connect=3.0)
        self._passing = _PASSING | {404} if stale else _PASSING  # a node may still look at a server that was replaced
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx2.AsyncClient(headers=headers, timeout=timeout, limits=limits, trust_env=False)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        key: str | None = None,
        headers: Mapping[str, str] = {},
        query: Mapping[str, Any] = {},
    ) -> Answer:
        """The first answer that is not a passing trouble. Raises `Stuck`."""
        sent = dict(headers)
        if key is not None:
            sent["Idempotency-Key"] = key
        until = time.monotonic() + self._patience
        node = ""
        for number in range(1_000_000):
            node = self.other_node(node)
            after: float | None = None
            try:
                said = await self._http.request(method, node + path, json=body, headers=sent, params=dict(query))
                document = _document(said)
                if said.status_code not in self._passing:
                    return Answer(said.status_code, document, node)
                why = f"{said.status_code} {_code(document)}".rstrip()
                after = _seconds(said.headers.get("retry-after"))
                if said.status_code == 503 and after is None:
                    self._ledger.count(f"503 without Retry-After: {_code(document)}")
            except httpx2.TransportError as error:
                why = type(error).__name__
            self._ledger.count(f"asked again after {why}")
            if time.monotonic() > until:
                raise Stuck(f"{method} {path} was not answered in {self._patience:.0f} s; the last was {why}")
            await self.pause(number, after)
        raise AssertionError

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] = {},
        query: Mapping[str, Any] = {},
    ) -> AsyncIterator[httpx2.Response]:
        """One try at a stream, on any node. Raises `httpx2.TransportError`."""
        node = self.other_node("")
        sent = {"Accept": "text/event-stream", **headers}
        async with self._http.stream(method, node + path, json=body, headers=sent, params=dict(query)) as answer:
            yield answer

    def other_node(self, last: str) -> str:
        """Any node but the one that was asked last, if there is another."""
        return self._chance.choice([url for url in self._urls if url != last] or self._urls)

    async def pause(self, number: int, after: float | None = None) -> None:
        """Waits before the next try: as long as the node asked for, or longer each time."""
        wait = min(_FIRST * 2 ** min(number, 10), _LONGEST) if after is None else min(after, _OBEYED)
        await asyncio.sleep(wait * self._chance.uniform(0.75, 1.0))

    async def close(self) -> None:
        await self._http.aclose()


async def frames(answer: httpx2.Response) -> AsyncIterator[tuple[str, str, Any]]:
    """The events of a stream: name, id and data of each."""
    name = id = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        match field:
            case "event":
                name = value
            case "id":
                id = value
            case "data":
                yield name, id, msgspec.json.decode(value)
            case "":
                name = id = ""


def _document(answer: httpx2.Response) -> Any:
    try:
        return msgspec.json.decode(answer.content) if answer.content else None
    except msgspec.DecodeError:
        return {"error": {"code": f"no JSON: {answer.text[:100]!r}"}}


def _code(document: Any) -> str:
    match document:
        case {"error": {"code": str(code)}}:
            return code
        case _:
            return ""


def _seconds(text: str | None) -> float | None:
    return None if text is None else float(text)

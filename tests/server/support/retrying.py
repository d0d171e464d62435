"""A client that retries as the SDKs do, with several servers in turn as a plain load balancer gives them."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import httpx2
from tests.server.support.turning import PATIENCE


class RetryingClient:
    """Two retries, on connection errors, 408, 409, 429 and 5xx; after what `Retry-After` says, else 0.5 s and 1 s.

    ``pace`` is how much of that time it really waits: so much less is there to recover in.
    """

    def __init__(self, urls: Sequence[str], *, pace: float = 1.0, retries: int = 2) -> None:
        self._clients = [httpx2.Client(base_url=url, timeout=PATIENCE) for url in urls]
        self._turn = itertools.cycle(self._clients)
        self._pace = pace
        self._tries = retries + 1
        self.retries: list[str] = []

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def send(self, method: str, path: str, *, key: str | None = None, **body: Any) -> httpx2.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        for number in range(self._tries):
            wait = 0.5 * 2**number
            try:
                sent: dict[str, Any] = {} if method == "GET" else {"json": body}
                answer = next(self._turn).request(method, path, headers=headers, **sent)
                if answer.status_code < 500 and answer.status_code not in {408, 409, 429}:
                    return answer
                why, wait = answer.text, float(answer.headers.get("retry-after", wait))
            except httpx2.TransportError as error:
                why = repr(error)
            assert number + 1 < self._tries, f"{method} {path} failed for good: {why}; before: {self.retries[-2:]}"
            self.retries.append(why)
            time.sleep(wait * self._pace)
        raise AssertionError("there is always an answer or a failure")

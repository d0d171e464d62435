"""What a server heard: every request, byte for byte, and a way to wait for the next."""

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import anyio.to_thread
import msgspec
from msgspec import Struct

from forkpoint.testing.prompts import Prompt, prompt_of

PATIENCE = 10.0  # seconds that a test waits for what should come at once


class Recorded(Struct, frozen=True, dict=True):
    """A request as it came. What stands in its body is parsed when it is asked for."""

    number: int  # how many requests there were before this one
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]  # names in the case in which they were sent
    body: bytes
    wire: str | None  # None for a path that is no model's

    def header(self, name: str) -> str | None:
        """The value of a header, whatever the case of its name; None if it was not sent."""
        return next((value for sent, value in self.headers if sent.lower() == name.lower()), None)

    @cached_property
    def json(self) -> Any:
        """The body as JSON; None if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None

    @cached_property
    def prompt(self) -> Prompt:
        """What the model reads."""
        return prompt_of(self.json, self.wire)

    @property
    def blocks(self) -> tuple[bytes, ...]:
        """The prompt as canonical JSON, without marks: each tool, the instructions, each block of each message."""
        return self.prompt.blocks

    @property
    def marks(self) -> tuple[int, ...]:
        """Which of the blocks carry `cache_control`."""
        return self.prompt.marks

    @property
    def key(self) -> str | None:
        """The `prompt_cache_key` in the body."""
        return self._field("prompt_cache_key")

    @property
    def model(self) -> str:
        return self._field("model") or ""

    def _field(self, name: str) -> str | None:
        value = self.json.get(name) if isinstance(self.json, dict) else None
        return value if isinstance(value, str) else None


class Recording:
    """All requests of a server, in the order in which they came. Safe to read from any thread."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._requests: list[Recorded] = []
        self._came = 0
        self._open = 0  # requests that are not yet answered, nor given up by their client
        self._changed = threading.Condition()

    def add(
        self, method: str, path: str, headers: tuple[tuple[str, str], ...], body: bytes, wire: str | None
    ) -> Recorded:
        """Records a request, which counts as open until `ended` is called."""
        with self._changed:
            recorded = Recorded(self._came, method, path, headers, body, wire)
            self._came += 1
            self._open += 1
            if self._keep:
                self._requests.append(recorded)
            self._changed.notify_all()
        return recorded

    def ended(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    @property
    def requests(self) -> list[Recorded]:
        with self._changed:
            return list(self._requests)

    def wait_for(self, count: int, timeout: float = PATIENCE) -> list[Recorded]:
        return self._wait(lambda: self._came >= count, timeout, f"{count} requests", _Given())

    async def heard(self, count: int) -> list[Recorded]:
        return await self._await(lambda: self._came >= count, f"{count} requests")

    def wait_idle(self, timeout: float = PATIENCE) -> None:
        self._wait(lambda: self._open == 0, timeout, "no open request", _Given())

    async def idle(self) -> None:
        await self._await(lambda: self._open == 0, "no open request")

    def _wait(self, until: Callable[[], bool], timeout: float, what: str, given: "_Given") -> list[Recorded]:
        with self._changed:
            if not self._changed.wait_for(lambda: given.up or until(), timeout):
                raise TimeoutError(
                    f"after {timeout} s there is not yet {what}: {self._came} came, {self._open} are open"
                )
            return list(self._requests)

    async def _await(self, until: Callable[[], bool], what: str) -> list[Recorded]:
        given = _Given()
        try:
            return await anyio.to_thread.run_sync(self._wait, until, PATIENCE, what, given, abandon_on_cancel=True)
        finally:
            with self._changed:  # a thread whose caller was cancelled must not go on waiting
                given.up = True
                self._changed.notify_all()


class _Given:
    """Whether somebody has given up waiting."""

    up = False

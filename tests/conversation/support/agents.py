"""Agents whose answers are chosen, and the few words that tests of conversations need again and again."""

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import anyio

from forkpoint.agent import Agent
from forkpoint.backend.callbacks import Update
from forkpoint.events import Event, StagedEvent, Text, ToolResult
from forkpoint.llm import LLM, Retries
from forkpoint.testing import Heard, ModelServer, Reply, Script, ScriptedCall

PATIENCE = 20
"""Seconds until a test that hangs is a failed one; none waits for it."""

ONCE = Retries(attempts=1)
"""The model layer does not try again by itself, so that one fault is one failed turn."""

Answers: TypeAlias = Sequence[Reply | str] | Callable[[Heard], Reply]

_numbers = itertools.count()


def scripted(answers: Answers, *, repeat: bool = False, **settings: Any) -> LLM:
    """A model of its own with these answers."""
    return LLM(script_of(answers, repeat=repeat).register(_fresh_name()), **{"retries": ONCE, **settings})


def script_of(answers: Answers, *, repeat: bool = False) -> Script:
    if callable(answers):
        return Script(answers)
    return Script([Reply(one) if isinstance(one, str) else one for one in answers], repeat=repeat)


def agent_of(answers: Answers, **settings: Any) -> Agent:
    """An agent of its own with these answers."""
    return Agent(scripted(answers), **settings)


def served(server: ModelServer, **settings: Any) -> LLM:
    """A model behind a recording server, asked over HTTP."""
    return LLM("openai/test", **{"base_url": server.url, "retries": ONCE, **settings})


def call(tool: str, call_id: str | None = None, /, **arguments: Any) -> ScriptedCall:
    """A model's call of a tool."""
    return ScriptedCall(tool, json.dumps(arguments), call_id)


def asks(*calls: ScriptedCall, text: str = "") -> Reply:
    """A model that asks for tools."""
    return Reply(text, calls=calls)


def kinds(events: Iterable[Event | StagedEvent]) -> list[str]:
    return [event.envelope.kind for event in events]


def said(events: Iterable[Event | StagedEvent]) -> list[tuple[str, str]]:
    """Who said what: the role and the text of everything in words."""
    found: list[tuple[str, str]] = []
    for event in events:
        words = "".join(part.text for part in getattr(event.body, "parts", ()) if isinstance(part, Text))
        if words and event.envelope.role is not None:
            found.append((event.envelope.role, words))
    return found


def results(events: Iterable[Event | StagedEvent]) -> list[ToolResult]:
    return [event.body for event in events if isinstance(event.body, ToolResult)]


def messages_of(heard: Heard) -> list[dict[str, Any]]:
    """The messages of a request, as a model sees them."""
    found: list[dict[str, Any]] = heard.body["messages"]
    return found


class Signal:
    """An event that a tool sets or waits for, in whichever thread and event loop it runs: a server has its own."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        with anyio.fail_after(PATIENCE):
            while not self._event.is_set():  # noqa: ASYNC110 - it may be set in another thread
                await anyio.sleep(0.001)


class Watcher:
    """A callback that keeps everything that it is told, and lets a test wait for something."""

    def __init__(self) -> None:
        self.told: list[Update] = []
        self._waiting: list[tuple[type, anyio.Event]] = []

    def __call__(self, update: Update) -> None:
        self.told.append(update)
        for kind, event in self._waiting:
            if isinstance(update, kind):
                event.set()

    def of(self, *wanted: type) -> list[Any]:
        return [update for update in self.told if isinstance(update, wanted)]

    @property
    def names(self) -> list[str]:
        return [type(update).__name__ for update in self.told]

    async def until(self, kind: type) -> None:
        """Returns when something of this kind was told."""
        event = anyio.Event()
        self._waiting.append((kind, event))
        if self.of(kind):
            return
        with anyio.fail_after(PATIENCE):
            await event.wait()


def _fresh_name() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"

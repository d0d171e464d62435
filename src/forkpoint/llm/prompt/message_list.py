"""A path as a list of messages, as a provider's own SDK takes it: the same that a prompt of that path has.

Tests: tests/wire/test_message_lists.py."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from forkpoint.events import Event, StagedEvent, SystemMessage, Text, UserMessage, text_of
from forkpoint.history.pairing import SAID
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import manifest_of
from forkpoint.llm.prompt.rendering import render
from forkpoint.llm.wires.body import texts_of
from forkpoint.llm.wires.wording import system_words


def chat_messages(path: Iterable[Event]) -> list[dict[str, Any]]:
    """All that was said on a path, as messages of chat completions."""
    return _messages(LLM("openai/any", api="chat"), [event for event in path if event.kind in SAID], b"]")


def anthropic_messages(path: Iterable[Event]) -> list[dict[str, Any]]:
    """All that was said on a path, as Anthropic's messages. Such a list has no system messages: the user says them."""
    said = (_by_user(event) for event in path if event.kind in SAID)
    return _messages(LLM("anthropic/any"), list(said), b"]}]")


def _messages(llm: LLM, said: "list[Event | StagedEvent] | list[Event]", end: bytes) -> list[dict[str, Any]]:
    *_, history = texts_of(render(manifest_of(llm), said).blocks)
    return msgspec.json.decode(b"[" + b"".join(history) + end, type=list[dict[str, Any]]) if history else []


def _by_user(event: Event) -> Event:
    if not isinstance(event.body, SystemMessage):
        return event
    return replace(event, body=UserMessage((Text(system_words(text_of(event.body))),)))

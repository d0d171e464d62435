"""The format `md`: a transcript for people, one conversation after the other. It cannot be imported.
Tests: tests/conversation/test_copies.py."""

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from functools import partial

from forkpoint.backend.results import words
from forkpoint.engine.exports.selection import Selection
from forkpoint.events import (
    AssistantMessage,
    Brought,
    Condensation,
    Event,
    Gone,
    StagedEvent,
    SubAgentSpawned,
    SystemMessage,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from forkpoint.history.exports.lines import NOT_RECORDED
from forkpoint.history.records import Export
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import StoredConversation, StoredTurn

_FENCE = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)
_KINDS = {"fork": "forked from", "aside": "set aside from", "side": "asked beside", "sub_agent": "spawned by"}


async def write_markdown(store: Store, selection: Selection) -> AsyncGenerator[bytes, None]:
    """Writes the transcripts of all conversations of a selection, turn by turn."""
    about = Export(new_id(), selection.scope, "md")
    recorded = True
    async for family, chosen in selection.families(store):
        branches = [branch async for branch in every(partial(store.conversations, family=family))]
        for found in branches:
            if chosen is None or found.id in chosen:
                recorded &= await store.record_export([found.id], about)
                async for piece in _conversation(store, found, branches):
                    yield piece.encode()
    if not recorded:
        yield f"{NOT_RECORDED}\n".encode()


async def _conversation(
    store: Store, found: StoredConversation, branches: Sequence[StoredConversation]
) -> AsyncIterator[str]:
    names = {other.id: other.name for other in branches}
    yield "".join(f"{line}\n" for line in _heading(found, names, await store.spent(found.id)))
    number = 0
    async for turn in every(partial(store.turns, found.id)):
        number += 1
        _, events = await store.whole_turn(turn.id, upto=turn.end if turn.partial else None)
        yield "".join(f"{line}\n" for line in _turn(turn, number, events))
        here = [other.name for other in branches if other.lineage.at is not None and other.lineage.at == turn.end]
        if here:
            yield f"*Branches begin here: {', '.join(map(_code, sorted(here)))}.*\n\n"


def _heading(found: StoredConversation, names: dict[str, str], spent: Usage) -> Iterator[str]:
    yield f"# {_one_line(found.title or found.name)}"
    yield ""
    yield f"- conversation: {_code(found.name)}" + ("" if found.name == found.id else f" ({_code(found.id)})")
    if found.lineage.kind != "root" and found.lineage.source is not None:
        source = names.get(found.lineage.source, found.lineage.source)
        place = f", after {found.lineage.at.ordinal} events" if found.lineage.at is not None else ""
        yield f"- {_KINDS[found.lineage.kind]}: {_code(source)}{place}"
    for key, value in found.tags:
        yield f"- {_code(key)}: {_code(value)}"
    yield f"- begun: {_moment(found.created)}"
    yield f"- spent: {_cost(spent)}"
    yield ""


def _turn(turn: StoredTurn, number: int, events: Iterable[Event | StagedEvent]) -> Iterator[str]:
    what = "Note" if turn.kind == "note" else "Turn"
    ended = "" if turn.outcome == "committed" else f", {turn.outcome.replace('_', ' ')}"
    ended = ", its first part" if turn.partial else ended
    yield f"## {what} {number}{ended}"
    yield ""
    facts = [_moment(turn.started), *([] if turn.by is None else [f"by {_one_line(turn.by)}"])]
    yield f"*{', '.join([*facts, _cost(turn.usage)])}*"
    yield ""
    for event in events:
        yield from _event(event)
    if turn.error is not None:
        yield f"**{turn.error.code}**"
        yield ""
        yield from _fenced(turn.error.message)


def _event(event: Event | StagedEvent) -> Iterator[str]:
    match event.body:
        case UserMessage(parts=parts):
            yield from _said("User", words(parts))
        case AssistantMessage(parts=parts):
            yield from _said("Assistant", words(parts))
        case SystemMessage(parts=parts):
            yield from _folded("System", words(parts))
        case ToolCall(tool=tool, arguments=arguments):
            yield from _folded(f"Call of {tool}", arguments, "json")
        case ToolResult(tool=tool, status=status, parts=parts):
            yield from _folded(f"Result of {tool}: {status.replace('_', ' ')}", words(parts))
        case Condensation(summary=summary, kept_from=kept_from):
            yield from _folded(f"All before event {kept_from} was summed up", summary)
        case SubAgentSpawned(conversation=conversation, task=task):
            yield from _folded(f"Sub-agent {conversation}", task)
        case Brought(conversation=conversation, what=what):
            yield f"*Brought from {_code(conversation)}: {what}.*"
            yield ""
        case Gone():
            yield "*The content of an event was erased.*"
            yield ""
        case _:
            return  # settings, manifests, calls of models: not for whoever reads what was said


def _said(who: str, text: str) -> Iterator[str]:
    yield f"**{who}**"
    yield ""
    yield text
    if len(_FENCE.findall(text)) % 2:  # a code block that the text leaves open would swallow all that follows
        yield _FENCE.findall(text)[-1]
    yield ""


def _folded(summary: str, text: str, language: str = "") -> Iterator[str]:
    yield "<details>"
    yield f"<summary>{_html(_one_line(summary))}</summary>"
    yield ""
    yield from _fenced(text, language)
    yield "</details>"
    yield ""


def _fenced(text: str, language: str = "") -> Iterator[str]:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}{language}"
    yield text
    yield fence
    yield ""


def _code(text: str) -> str:
    text = _one_line(text)
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _moment(time_: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ // 1_000_000))


def _cost(usage: Usage) -> str:
    tokens = f"{usage.input:,} tokens in, {usage.output:,} out"
    return tokens if usage.dollars is None else f"{tokens}, ${usage.dollars:.4f}"

"""Events for people: who said or did what, in order."""

from collections.abc import Iterable
from typing import assert_never

from rich.table import Table
from rich.text import Text

from forkpoint.backend.results import words
from forkpoint.cli import figures
from forkpoint.cli.output import clean, grid, one_line
from forkpoint.events import (
    ApprovalAsked,
    ApprovalDenied,
    ApprovalGiven,
    AssistantMessage,
    Brought,
    Condensation,
    Content,
    Erased,
    Event,
    Gone,
    HookRun,
    Imported,
    ManifestChanged,
    ModelCalled,
    Opaque,
    Reasoning,
    ResultSubstituted,
    SettingsChanged,
    SkillActivated,
    StagedEvent,
    StateChange,
    SubAgentFinished,
    SubAgentSpawned,
    SystemMessage,
    ToolCall,
    ToolResult,
    TurnStopped,
    UserMessage,
)
from forkpoint.llm.answers import cut_of

_SPOKEN = {"user": "bold cyan", "assistant": "bold green", "tool": "bold magenta", "system": "bold yellow"}

_BROUGHT = {"answer": "the answer of", "summary": "a summary of", "turns": "turns of"}


def transcript(events: Iterable[Event | StagedEvent]) -> Table:
    """Events as a table: where, who, what."""
    table = grid()
    table.add_column("event", style="dim", no_wrap=True)
    table.add_column("who", no_wrap=True)
    table.add_column("what", overflow="fold")
    for number, event in enumerate(events, start=1):
        who, what = told(event.body)
        spoken = _SPOKEN.get(who)
        place = str(event.id) if isinstance(event, Event) else f"+{number}"
        table.add_row(place, Text(who, style=spoken or "dim"), Text(clean(what), style="" if spoken else "dim"))
    return table


def told(body: Content) -> tuple[str, str]:
    """An event in words: who, and what."""
    match body:
        case UserMessage(parts=parts):
            return "user", words(parts)
        case AssistantMessage(parts=parts):
            return "assistant", words(parts)
        case SystemMessage(parts=parts):
            return "system", words(parts)
        case Reasoning(text=text):
            return "thought", text or "(the provider keeps it to itself)"
        case ToolCall(call_id=id, tool=tool, arguments=arguments):
            return "call", f"{tool}({arguments})  {id}"
        case ToolResult(tool=tool, status=status, parts=parts, duration=duration):
            took = "" if duration is None else f", {figures.seconds(duration)}"
            return "tool", f"{tool}: {status.replace('_', ' ')}{took}\n{words(parts)}".rstrip()
        case ResultSubstituted(call_id=id, tool=tool, origin=origin):
            return "substituted", f"the result of {tool} {id} that follows stands in the place of {origin}"
        case StateChange(set=set, removed=removed):
            return "state", ", ".join([*(f"{key} = {value}" for key, value in set), *(f"no {key}" for key in removed)])
        case SkillActivated(name=name):
            return "skill", name
        case SettingsChanged(reason=reason):
            return "settings", reason or "changed"
        case ManifestChanged(hash=hash, reason=reason):
            return "manifest", f"{hash[:12]}: {reason or 'changed'}"
        case Condensation(summary=summary, kept_from=kept_from):
            return "condensed", f"all before event {kept_from:,} is now: {summary}"
        case HookRun(hook=hook, moment=moment, blocked=blocked, reason=reason):
            did = " blocked" if blocked else " failed" if reason else " ran"
            return "hook", f"{hook} ({moment.replace('_', ' ')}){did}" + _because(reason)
        case ApprovalAsked(call_id=id, tool=tool, reason=reason):
            return "approval", f"asked for {tool} {id}" + _because(reason)
        case ApprovalGiven(call_id=id, tool=tool, by=by, arguments=changed):
            instead = f", with these arguments instead: {changed}" if changed is not None else ""
            return "approval", f"given for {tool} {id}{f' by {by}' if by else ''}" + _standing(body) + instead
        case ApprovalDenied(call_id=id, tool=tool, by=by, reason=reason):
            return "approval", f"denied for {tool} {id}{f' by {by}' if by else ''}" + _because(reason)
        case SubAgentSpawned(conversation=conversation, task=task):
            return "sub-agent", f"{conversation} spawned: {one_line(task, 200)}"
        case SubAgentFinished(conversation=conversation, outcome=outcome):
            return "sub-agent", f"{conversation} {outcome}"
        case ModelCalled():
            return "model", _called(body)
        case TurnStopped(what=what, limit=limit):
            return "stopped", f"the turn reached its limit of {limit} {what}"
        case Imported(source=source, count=count):
            return "imported", f"{figures.counted(count, 'event')} from {source}"
        case Brought(conversation=conversation, what=what):
            return "brought", f"{_BROUGHT[what]} {conversation}"
        case Erased(positions=positions, reason=reason):
            return "erased", f"{', '.join(positions)}: {reason}"
        case Opaque(kind=kind):
            return kind, "(only a newer Forkpoint knows what this is)"
        case Gone():
            return "erased", "(its content was erased)"
        case _ as never:
            assert_never(never)


def _standing(given: ApprovalGiven) -> str:
    """How an approval is connected with a standing approval, if it is."""
    if given.standing is not None:
        return f", without a question: {given.standing} allows {given.allows}"
    return f", and from then on without a question: {given.allows} ({given.always})" if given.always is not None else ""


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _called(called: ModelCalled) -> str:
    """A model call: what was sent, what was found in the cache, how long it took."""
    usage = called.usage
    parts = [called.model, f"{usage.input:,} in ({figures.share(usage)} cached), {usage.output:,} out"]
    parts.append(figures.seconds(called.duration))
    if called.attempts > 1:
        parts.append(f"{called.attempts} attempts")
    parts.append(f"failed: {called.error}" if called.error else cut_of(called) or called.finish or "")
    return " · ".join(part for part in parts if part)

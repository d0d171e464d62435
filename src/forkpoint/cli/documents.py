"""What programs get with ``--json``: conversations, turns, events and figures as plain JSON.

Times are microseconds since 1970, UTC. Ids of events are their positions.
"""

from typing import Any

import msgspec
from msgspec.structs import asdict

from forkpoint.conversation.results import Info, Stats, Turn
from forkpoint.events import Event, StagedEvent, Usage


def info_document(info: Info) -> dict[str, Any]:
    """A conversation."""
    lineage = asdict(info.lineage) | {"at": None if info.lineage.at is None else str(info.lineage.at)}
    return asdict(info) | {"lineage": lineage, "cache": asdict(info.cache)}


def stats_document(stats: Stats) -> dict[str, Any]:
    """What a conversation has used."""
    return {
        "spent": usage_document(stats.spent),
        "inherited": usage_document(stats.inherited),
        "family": usage_document(stats.family),
        "total": usage_document(stats.total),
        "cached_share": stats.cached_share,
        "carries_metrics": stats.carries_metrics,
    }


def usage_document(usage: Usage) -> dict[str, Any]:
    """Tokens and dollars; null dollars are a price that nobody knows."""
    counts = asdict(usage)
    del counts["nanodollars"]
    return counts | {"dollars": usage.dollars}


def turn_document(turn: Turn) -> dict[str, Any]:
    """A turn, without its events."""
    return {
        "id": turn.id,
        "conversation": turn.conversation,
        "outcome": turn.outcome,
        "input": msgspec.to_builtins(turn.input),
        "text": turn.text,
        "usage": usage_document(turn.usage),
        "calls": [asdict(call) for call in turn.calls],
        "error": None if turn.error is None else asdict(turn.error),
        "retry_of": turn.retry_of,
        "started": turn.started,
        "ended": turn.ended,
    }


def event_document(event: Event | StagedEvent) -> dict[str, Any]:
    """An event. One of a turn that did not commit has no id."""
    return {
        "id": str(event.id) if isinstance(event, Event) else None,
        "turn": event.turn if isinstance(event, Event) else None,
        "kind": event.envelope.kind,
        "time": event.envelope.time,
        "body": msgspec.to_builtins(event.body),
    }

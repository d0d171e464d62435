"""``forkpoint show``: one conversation, its figures, its turns, its events and its records.
Tests: tests/cli/test_conversations.py."""

from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.text import Text

from forkpoint.backend.messages import split
from forkpoint.backend.results import words
from forkpoint.cli import figures
from forkpoint.cli.cells import Cell, ago, moment, number
from forkpoint.cli.commands.branches.tree import folder_of, origin, own_events
from forkpoint.cli.common import Id, Store, newest_turns, only_one, opened
from forkpoint.cli.options import option
from forkpoint.cli.outcome import command
from forkpoint.cli.output import Json, display, facts, grid, one_line, print_json
from forkpoint.cli.transcript import transcript
from forkpoint.conversation import Call, Conversation, Info, Record, Stats, Steer, Turn
from forkpoint.conversation.call_view import call_line, turn_view
from forkpoint.conversation.screen_text import cut
from forkpoint.conversation.visualizer import figures as told
from forkpoint.errors import NotFound
from forkpoint.llm.prompt.identity import CacheIdentity
from forkpoint.paging import every_sync
from forkpoint.wire.documents import event_document, info_document, stats_document, turn_document

MOST = 50
"""How many turns or events are shown without ``--limit``."""

LONGEST = 300
"""How many characters of a message or a call are shown in the row of a turn."""

OUTCOMES = {"committed": "green", "failed": "red", "cancelled": "yellow", "interrupted": "red"}


def show(
    conversation: Id,
    turns: Annotated[bool, option("--turns", "Show its turns too, also those that did not commit.")] = False,
    events: Annotated[bool, option("--events", "Show its events too: all that was said and done.")] = False,
    records: Annotated[bool, option("--records", "Show its records too: what was kept about it, and by whom.")] = False,
    turn: Annotated[str | None, option("--turn ID", "Show this turn instead, with everything in it.")] = None,
    limit: Annotated[
        int | None, option("--limit N", "Show only the newest N turns, events or records. Default: 50.", min=1)
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show a conversation: origin, cost, cache key, turns, events.

    \b
    Examples:
      forkpoint show build-1234
      forkpoint show build-1234 --turns --limit 5
      forkpoint show build-1234 --events
      forkpoint show build-1234 --records --json
    """
    only_one({"--turn": turn, "--turns": turns})
    only_one({"--turn": turn, "--events": events})
    only_one({"--turn": turn, "--records": records})
    if limit is not None and not (turns or events or records):
        raise typer.BadParameter("it limits --turns, --events and --records, and none is there", param_hint="--limit")
    most = limit or MOST
    with opened(conversation, store) as this:
        if turn is not None:
            return print_turn(this.turn(turn), json)
        info, stats = this.info(), this.stats()
        waiting = this.open_turn() if info.status == "awaiting_approval" and not turns else None
        names = names_of(info, store)
        its_turns = newest_turns(this, most) if turns else None
        its_events = this.events(after=max(info.events - most, 0)) if events else None
        its_records = list(every_sync(this.records))[-most:] if records else None
    if json:
        document: dict[str, Any] = {"conversation": info_document(info), "stats": stats_document(stats)}
        if its_turns is not None:
            document["turns"] = [turn_document(one) for one in its_turns]
        if its_events is not None:
            document["events"] = [event_document(event) for event in its_events]
        if its_records is not None:
            document["records"] = its_records
        return print_json(document)
    parts: list[Any] = [_heading(info), facts(_facts(info, stats, names))]
    if waiting is not None:
        parts += ["", turn_view(waiting, digests=True)]
    for one in its_turns or ():
        parts += ["", _turn_heading(one), facts(_rows(one, command("show", info.name, store, "--turn", one.id)))]
        if one.waiting:
            parts += [tuple(replace(line, text=f"  {line.text}") for line in turn_view(one, digests=True))]
    if its_events is not None:
        parts += ["", transcript(its_events)]
    if its_records is not None:
        parts += ["", _table(its_records)]
    return display(*parts)


def whose(cache: CacheIdentity, names: dict[str, str]) -> str:
    """Who owns a cache key, in words."""
    if cache.inherited_from is not None:
        return f"inherited from {names.get(cache.inherited_from, cache.inherited_from)}"
    return f"its own; {cache.dropped}" if cache.dropped else "its own"


def names_of(info: Info, store: str | None) -> dict[str, str]:
    """The names of the conversations that this one comes from, by id."""
    names = {}
    for id in filter(None, {info.lineage.source, info.cache.inherited_from}):
        try:
            with Conversation.open(id, bind=False, store=store) as other:
                names[id] = other.name
        except NotFound:
            names[id] = f"{id} (deleted)"
    return names


def _heading(info: Info) -> Text:
    heading = Text(one_line(info.name), style="bold")
    if info.title:
        heading.append(f"  {one_line(info.title)}", style="not bold")
    return heading


def _facts(info: Info, stats: Stats, names: dict[str, str]) -> list[tuple[str, str | Text]]:
    history = figures.counted(info.events, "event")
    if info.lineage.kind != "root":
        history += f", {own_events(info):,} of its own"
    if info.head is not None:
        history += f"; the last is {info.head}"
    source = names.get(info.lineage.source or "", info.lineage.source)
    rows: list[tuple[str, str | Text]] = [("id", info.id)] if info.name != info.id else []
    rows += [("status", info.status.replace("_", " ") + (f", turn {info.open_turn}" if info.open_turn else ""))]
    rows += [("origin", origin(info, source)), ("history", history)]
    tags = {key: value for key, value in info.tags.items() if key != "title"}
    optional = {
        "model": info.model,
        "agent": info.agent,
        "workspace": folder_of(info) if info.workspace else None,
        "left out": "; ".join(info.isolation.notes) if info.isolation is not None else None,
        "tags": ", ".join(f"{key}={value}" for key, value in tags.items()),
    }
    rows += [(name, one_line(value)) for name, value in optional.items() if value]
    rows += [("created", moment(info.created, age=True)), ("updated", moment(info.updated, age=True))]
    rows += [("spent", figures.used(stats.spent))]
    if stats.inherited:
        counts = "counted as its own" if stats.carries_metrics else "not counted as its own"
        rows += [("inherited", f"{figures.used(stats.inherited)}; {counts}")]
    if stats.family != stats.spent:
        rows += [("family", figures.used(stats.family))]
    rows += [("cache key", f"{info.cache.key}, {whose(info.cache, names)}"), ("digest", info.digest)]
    return rows


def _table(records: list[Record]) -> Any:
    """Records in a line each. On a screen the digest is cut: enough to tell two apart."""
    table = grid()
    for column in ("record", "kind", "time", "by", "subject", "digest"):
        table.add_column(column)
    for record in records:
        about = "" if record.subject is None else record.subject
        by = "" if record.by is None else Cell(f"by {one_line(record.by)}", record.by)
        digest = Cell(record.digest[:12], record.digest, "dim")
        table.add_row(number(record.number), record.kind.replace("_", " "), ago(record.time), by, about, digest)
    return table


def _turn_heading(turn: Turn) -> Text:
    took = None if turn.ended is None else (turn.ended - turn.started) / 1e6
    outcome = turn.outcome.replace("_", " ")
    part = ", in part" if turn.partial else ""
    spent = told(turn, took)
    heading = Cell(
        outcome, f"{outcome}{part} · {figures.iso(turn.started)} · {spent}", style=OUTCOMES.get(turn.outcome, "yellow")
    )
    heading.append(part, style="yellow")
    return heading.append(f" · {figures.ago(turn.started)} · {spent}", style="default")


def _rows(turn: Turn, whole: str) -> list[tuple[str, str]]:
    """A turn in rows of one line. If one leaves something out, it says how much, and the last row shows the command."""
    said = [(f"  {who}", one_line(what)) for who, what in _said(turn)]
    rows = [(who, cut(what, LONGEST)) for who, what in said]
    return rows if rows == said else [*rows, ("  whole in", whole)]


def _said(turn: Turn) -> list[tuple[str, str]]:
    rows = [("turn", turn.id)]
    rows += [("result", f"{result.call_id}: {words(result.parts)}") for result in split(turn.given)[0].values()]
    rows += [("user", words(message.parts)) for message in turn.input]
    rows += [("went on", "without a message")] if turn.go_on else []
    rows += [("call", _call(call)) for call in turn.calls if call.status != "waiting"]
    rows += [("steered", _steered(one)) for one in turn.steered]
    if turn.text and not turn.waiting:  # what is said beside calls that wait is shown whole, with them
        rows.append(("assistant", turn.text))
    if turn.cut is not None:
        rows.append(("finish", turn.cut))
    if turn.error is not None:
        rows.append(("error", turn.error.message))
    if turn.retry_of is not None:
        rows.append(("retry of", turn.retry_of))
    if turn.by is not None:
        rows.append(("by", turn.by))
    return rows


def _call(call: Call) -> str:
    told = call.status.replace("_", " ")
    if call.duration is not None:
        told += f", {figures.seconds(call.duration)}"
    if call.reason:
        told += f", {call.reason}"
    told += f" [{call.id}]" if call.status in {"unknown", "handed"} else ""
    changed = f", approved with {one_line(call.approved_arguments)}" if call.approved_arguments is not None else ""
    return f"{told}: {call_line(call)}{changed}"


def _steered(one: Steer) -> str:
    said = "" if one.message is None else words(one.message.parts)
    who = "" if one.by is None else f", by {one.by}"
    return f"{'delivered' if one.delivered else 'not delivered'}{who}: {said}"


def print_turn(turn: Turn, as_json: bool) -> None:
    """One turn with everything in it."""
    if as_json:
        return print_json(turn_document(turn, events=True))
    rows: list[tuple[str, str | Text]] = [("turn", turn.id), ("conversation", turn.conversation)]
    rows += [("started", moment(turn.started))]
    if turn.ended is not None:
        rows += [("ended", moment(turn.ended))]
    rows += [("used", figures.used(turn.usage))]
    if turn.cut is not None:
        rows += [("finish", turn.cut)]
    if turn.retry_of is not None:
        rows += [("retry of", turn.retry_of)]
    if turn.by is not None:
        rows += [("by", turn.by)]
    if turn.error is not None:
        rows += [("error", f"{turn.error.code}: {turn.error.message}")]
    rows += [("steered", _steered(one)) for one in turn.steered]
    waiting = ["", turn_view(turn, digests=True)] if turn.waiting else []
    return display(_turn_heading(turn), facts(rows), "", transcript(turn.events), *waiting)

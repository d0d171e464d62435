"""``forkpoint erase`` and ``erasures``: removes content for good, and shows what was removed."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from forkpoint.cli import figures
from forkpoint.cli.cells import ago, brief, number
from forkpoint.cli.common import Store, opened, tags_from
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, aside, display, facts, grid, one_line, print_json, tell
from forkpoint.conversation import Conversations, Receipt
from forkpoint.conversation.look import is_there
from forkpoint.paging import every_sync
from forkpoint.system.durable_file import append_line

_NAMED = 10  # conversations that the question names; --json has up to 100


def erase(
    conversation: Annotated[str | None, argument("CONVERSATION", "Its name, its id, or the start of its id.")] = None,
    reason: Annotated[str, option("--reason TEXT", "Why. It is recorded for good.")] = ...,  # type: ignore[assignment]
    turn: Annotated[str | None, option("--turn ID", "This turn.")] = None,
    event: Annotated[str | None, option("--event ID", "This event, such as 1-4.")] = None,
    all: Annotated[bool, option("--all", "Everything in the conversation, its name and title included.")] = False,
    tag: Annotated[list[str] | None, option("--tag KEY=VALUE", "All conversations with this tag. Repeatable.")] = None,
    tenant: Annotated[bool, option("--tenant", "All conversations there are.")] = False,
    keep_summaries: Annotated[
        bool, option("--keep-summaries", "Keep summaries that cover erased events. They may quote the text.")
    ] = False,
    cancel: Annotated[bool, option("--cancel", "Cancel turns that run in what is touched.")] = False,
    dry_run: Annotated[bool, option("--dry-run", "Change nothing; show what would go.")] = False,
    yes: Annotated[bool, option("--yes -y", "Do not ask.")] = False,
    output: Annotated[Path | None, option("--output -o FILE", "Add the receipts to this file, one on a line.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Remove content for good, and get a receipt.

    The text goes from every place of the store that has it: events, inputs, steps of failed tries, copies in
    sub-agents, state, titles. Events stay in place, and models are shown [erased] instead. Forks share events, so they
    change too: you see how many before anything happens.

    \b
    Examples:
      forkpoint erase build-1234 --turn 01999c5e-7a3b-7000-8000-0123456789ab --reason "a password"
      forkpoint erase --tag customer=4711 --reason "article 17" -o receipts.jsonl
    """
    several = bool(tag) or tenant
    if (
        several == (conversation is not None)
        or [turn is not None, event is not None, all, bool(tag), tenant].count(True) != 1
    ):
        hint = "--turn / --event / --all / --tag / --tenant"
        raise typer.BadParameter("give CONVERSATION with one of the first three, or one of the others", param_hint=hint)
    if keep_summaries and several:
        raise typer.BadParameter("it goes with CONVERSATION only", param_hint="--keep-summaries")
    if not (yes or dry_run) and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter("there is nobody to ask; say --yes, or --dry-run to look first", param_hint="--yes")

    def run(*, preview: bool) -> Sequence[Receipt]:
        if several:
            if not is_there(store):
                return ()
            with Conversations(store) as conversations:
                tags = None if tenant else tags_from(tag)
                return conversations.erase(tags=tags, tenant=tenant, reason=reason, preview=preview, cancel=cancel)
        assert conversation is not None
        with opened(conversation, store) as this:
            what = {"turn": turn, "event": event, "everything": all}
            how = {"keep_summaries": keep_summaries, "cancel": cancel}
            return [this.erase(reason=reason, preview=preview, **what, **how)]  # type: ignore[arg-type]

    if not yes or dry_run:
        found = run(preview=True)
        if dry_run and json:
            print_json({"items": found})
            return
        for one in found:
            _show(one)
        if dry_run:
            return
        if not typer.confirm("Erase this for good?", err=True):
            raise typer.Exit(1)
    _add_lines(output, [])  # before anything is erased: what cannot be written is said now
    receipts = run(preview=False)
    _add_lines(output, receipts)
    if json:
        print_json({"items": receipts})
        return
    for one in receipts:
        done = f"Erased {figures.counted(one.events, 'event')} of {figures.counted(len(one.turns), 'turn')}"
        tell(f"{done}, {figures.size(one.bytes)}. Receipt: {one.id}")
        for pending in one.pending:
            tell(f"Still to come, by itself: {pending}.")
    if receipts:
        aside("Out of reach: " + "; ".join(receipts[0].out_of_reach) + ".")
    else:
        tell("There is nothing to erase.")


def _add_lines(output: Path | None, receipts: Sequence[Receipt]) -> None:
    """Adds receipts to a file, which is made for its owner alone: a reason may name a person."""
    if output is None:
        return
    path = output.expanduser()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        for one in receipts:
            append_line(path, msgspec.json.encode(one))
    except OSError as error:
        after = " It is erased; `forkpoint erasures --json` has the receipts" if receipts else ""
        raise typer.BadParameter(f"{output}: {error.strerror or error}.{after}", param_hint="--output") from None


def erasures(store: Store = None, json: Json = False) -> None:
    """Show the receipts of all erasures.

    With --json there is one receipt on each line: keep these lines apart from the store, so that a backup that is
    restored can forget the same again.

    \b
    Example:
      forkpoint erasures --json > erasures.jsonl
    """
    found: list[Receipt] = []
    if is_there(store):
        with Conversations(store) as conversations:
            found = list(every_sync(conversations.erasures))
    if json:
        for one in found:
            print(msgspec.json.encode(one).decode())
        return
    if not found:
        tell("Nothing was erased.")
        return
    table = grid(header=True)
    for column in ("erasure", "family", "events", "reason", "when", "by"):
        table.add_column(column, no_wrap=column != "reason", overflow="fold")
    for one in found:
        by = brief(one.by or "", 40)
        table.add_row(one.id, one.family, number(one.events), one_line(one.reason), ago(one.time), by)
    display(table)


def _show(found: Receipt) -> None:
    """What would go, and who is affected."""
    named = [one_line(one.name) for one in found.touched_named[:_NAMED]]
    more = f" and {found.touched - len(named):,} more" if found.touched > len(named) else ""
    rows = [
        ("erase", f"{figures.counted(found.events, 'event')}, {figures.size(found.bytes)}"),
        ("turns", f"{len(found.turns):,}"),
        ("events", ", ".join(found.positions[:_NAMED]) + (" ..." if len(found.positions) > _NAMED else "")),
        ("changes", f"{figures.counted(found.touched, 'conversation')}: {', '.join(named)}{more}"),
    ]
    if found.summaries:
        rows.append(("summaries", f"{len(found.summaries):,} {'stay' if found.summaries_kept else 'are erased too'}"))
    if found.discarded:
        rows.append(("discards", figures.counted(len(found.discarded), "open turn")))
    if found.running:
        rows.append(("waits for", f"{figures.counted(len(found.running), 'running turn')}; or say --cancel"))
    display(facts([(name, value) for name, value in rows if value]))

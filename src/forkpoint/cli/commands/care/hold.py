"""``forkpoint hold`` and ``release``: what keeps a family from deletion, erasure and retention.
Tests: tests/cli/test_erase.py."""

from collections.abc import Sequence
from typing import Annotated

import typer

from forkpoint.cli import figures
from forkpoint.cli.cells import ago, brief
from forkpoint.cli.common import Id, Store, opened
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, display, grid, one_line, print_json, tell
from forkpoint.conversation import Conversations, Hold
from forkpoint.conversation.look import is_there


def hold(
    conversation: Annotated[str | None, argument("CONVERSATION", "Its name, its id, or the start of its id.")] = None,
    reason: Annotated[str | None, option("--reason TEXT", "Why. It is recorded for good.")] = None,
    all: Annotated[bool, option("--list", "Show what holds the conversation's family, or all holds.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Keep a family of conversations from deletion and erasure.

    A hold is of the whole family: of the conversation, its forks and its sub-agents. Nothing of it can be deleted or
    erased, and nothing of it expires, until somebody releases it. Several holds may stand.

    \b
    Examples:
      forkpoint hold build-1234 --reason "case 17/2026"
      forkpoint hold --list
    """
    if all == (reason is not None) or (conversation is None and not all):
        raise typer.BadParameter("give CONVERSATION and --reason, or --list", param_hint="--reason / --list")
    if reason is not None and conversation is not None:
        with opened(conversation, store) as this:
            made = this.hold(reason)
        if json:
            print_json(made)
        else:
            tell(f"Held: {made.id}. Release it with: forkpoint release {one_line(conversation)} --hold {made.id}")
        return
    found = _found(conversation, store)
    if json:
        print_json({"items": found})
    elif found:
        _show(found)
    else:
        tell("Nothing is held.")


def release(
    conversation: Id,
    hold: Annotated[str | None, option("--hold ID", "Only this hold. Default: all holds of the family.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """End a hold, so that a family may be deleted and erased again.

    \b
    Example:
      forkpoint release build-1234
    """
    with opened(conversation, store) as this:
        ended = this.release(hold)
    if json:
        print_json({"items": ended})
    else:
        tell(f"{figures.counted(len(ended), 'hold')} released." if ended else "Nothing was held.")


def _found(conversation: str | None, store: str | None) -> Sequence[Hold]:
    if conversation is not None:
        with opened(conversation, store) as this:
            return this.holds()
    if not is_there(store):
        return ()
    with Conversations(store) as conversations:
        return conversations.holds()


def _show(found: Sequence[Hold]) -> None:
    table = grid(header=True)
    for column in ("hold", "family", "reason", "since", "by"):
        table.add_column(column, no_wrap=column != "reason", overflow="fold")
    for one in found:
        table.add_row(one.id, one.family, one_line(one.reason), ago(one.since), brief(one.by or "", 40))
    display(table)

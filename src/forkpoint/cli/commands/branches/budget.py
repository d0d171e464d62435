"""``forkpoint budget``: what a conversation or its family may spend in all. Tests: tests/cli/test_budget.py."""

from collections.abc import Iterable, Sequence
from typing import Annotated, TypeAlias

import typer

from forkpoint.cli.common import Id, Store, opened
from forkpoint.cli.options import option
from forkpoint.cli.output import Json, display, grid, print_json, tell
from forkpoint.conversation import Budget, BudgetStanding
from forkpoint.history.budgets import UNITS

OwnBudget: TypeAlias = Annotated[
    list[str] | None,
    option("--budget LIMIT=N", "A budget of its own, such as dollars=1, instead of the family's. Repeatable."),
]


def budget_from(given: Iterable[str] | None) -> Budget | None:
    """The budget of ``--budget LIMIT=N``."""
    limits: dict[str, float] = {}
    for one in given or ():
        unit, _, number = one.partition("=")
        try:
            limits[unit] = int(number) if unit in ("tokens", "turns") else float(number)
        except ValueError:
            unit = ""
        if unit not in UNITS:
            why = f"{one!r} is not one of dollars=N, tokens=N, turns=N, seconds=N"
            raise typer.BadParameter(why, param_hint="--budget")
    return Budget(**limits) if limits else None  # type: ignore[arg-type]


def budget(
    conversation: Id,
    dollars: Annotated[float | None, option("--dollars N", "At most this many dollars.")] = None,
    tokens: Annotated[int | None, option("--tokens N", "At most this many tokens, input and output.")] = None,
    turns: Annotated[int | None, option("--turns N", "At most this many turns.")] = None,
    seconds: Annotated[float | None, option("--seconds N", "At most this many seconds during which turns run.")] = None,
    family: Annotated[bool, option("--family", "Of the whole family, with all forks and sub-agents.")] = False,
    remove: Annotated[bool, option("--remove", "Remove the budget.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show or set what a conversation or its family may spend in all.

    What was spent before counts. The limits that are given replace all that there were. Before a model is asked, the
    most that the call can cost must fit into every budget that covers the conversation; else it is not asked.

    \b
    Examples:
      forkpoint budget build-1234
      forkpoint budget build-1234 --dollars 5 --family
      forkpoint budget build-1234 --tokens 1000000 --turns 100
      forkpoint budget build-1234 --remove
    """
    limits = {"dollars": dollars, "tokens": tokens, "turns": turns, "seconds": seconds}
    given = {name: value for name, value in limits.items() if value is not None}
    if given and remove:
        raise typer.BadParameter("give limits, or --remove", param_hint="--remove")
    if family and not given and not remove:
        raise typer.BadParameter("give limits or --remove with it", param_hint="--family")
    with opened(conversation, store) as this:
        if given or remove:
            wanted = None if remove else Budget(dollars, tokens, turns, seconds)
            found = this.set_budget(wanted, scope="family" if family else "conversation")
        else:
            found = this.budget()
    if json:
        print_json({"items": found})
    elif found:
        _show(found)
    else:
        tell("It has no budget.")


def _show(found: Sequence[BudgetStanding]) -> None:
    table = grid(header=True)
    for column in ("budget of", "", "limit", "spent", "reserved", "left"):
        table.add_column(column, no_wrap=True, justify="left" if column in ("budget of", "") else "right")
    for one in found:
        whose = "the family" if one.conversation is None else f"conversation {one.conversation}"
        for unit in UNITS:
            limit = getattr(one.limits, unit)
            if limit is not None:
                figures = (getattr(part, unit) for part in (one.limits, one.spent, one.reserved, one.left))
                table.add_row(whose, unit, *(f"{figure:,.9g}" for figure in figures))
                whose = ""
    display(table)

"""``forkpoint budget``: what a conversation or its family may spend in all. Tests: tests/cli/test_budget.py."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import typer
from rich.text import Text

from forkpoint.cli.cells import Cell
from forkpoint.cli.common import Id, Store, opened
from forkpoint.cli.options import option
from forkpoint.cli.output import Json, console, display, grid, print_json, tell
from forkpoint.conversation import Budget, BudgetStanding
from forkpoint.history.budgets import UNITS

_ENOUGH = 10_000  # columns in which every table has room

OwnBudget: TypeAlias = Annotated[
    list[str] | None,
    option("--budget LIMIT=N", "A budget of its own, such as dollars=1, instead of the family's. Repeatable."),
]


def budget_from(given: Iterable[str] | None) -> Budget | None:
    """The budget of ``--budget LIMIT=N``."""
    limits: dict[str, float] = {}
    for count, one in enumerate(given or (), start=1):
        unit, _, number = one.partition("=")
        try:
            limits[unit] = int(number) if unit in ("tokens", "turns") else float(number)
        except ValueError:
            unit = ""
        if unit not in UNITS:
            why = f"{one!r} is not one of dollars=N, tokens=N, turns=N, seconds=N"
            raise typer.BadParameter(why, param_hint="--budget")
        if len(limits) < count:
            raise typer.BadParameter(f"{unit!r} is given twice; give it once", param_hint="--budget")
    return Budget(**limits) if limits else None  # type: ignore[arg-type]


def budget(
    conversation: Id,
    dollars: Annotated[float | None, option("--dollars N", "At most this many dollars.", min=0)] = None,
    tokens: Annotated[int | None, option("--tokens N", "At most this many tokens, input and output.", min=0)] = None,
    turns: Annotated[int | None, option("--turns N", "At most this many turns.", min=0)] = None,
    seconds: Annotated[
        float | None, option("--seconds N", "At most this many seconds during which turns run.", min=0)
    ] = None,
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
        here = this.id
    if json:
        print_json({"items": found})
    elif found:
        display(*drawn(found, here, console().width))
    else:
        tell("It has no budget.")


def drawn(found: Sequence[BudgetStanding], here: str, width: int) -> Iterator[Any]:
    """How budgets stand, for rich to print: in a table, or in lines on a screen that is too narrow for it.

    ``here`` is the id of the conversation that was asked about.
    """
    table = grid(header=True)
    table.add_column("budget of", no_wrap=True)
    table.add_column(Cell("", "unit"), no_wrap=True)
    for column in ("limit", "spent", "reserved", "left"):
        table.add_column(column, no_wrap=True, justify="right")
    for one in found:
        whose = _whose(one, here)
        for n, row in enumerate(_rows(one)):
            table.add_row(Cell("" if n else whose, whose), *row)
    out = console()
    if out.measure(table, options=out.options.update(width=_ENOUGH)).maximum <= width:
        yield table
        return
    for one in found:
        yield Text(_whose(one, here), style="dim")
        for unit, limit, spent, reserved, left in _rows(one):
            yield Text(f"  {unit}: {spent} of {limit} spent, {reserved} reserved, {left} left")


def _whose(one: BudgetStanding, here: str) -> str:
    if one.conversation is None:
        return "the family"
    return "the conversation" if one.conversation == here else one.conversation


def _rows(one: BudgetStanding) -> Iterator[tuple[str | Cell, ...]]:
    """What is limited: its name, limit, what is spent and reserved, and what is left."""
    for unit in UNITS:
        if getattr(one.limits, unit) is not None:
            figures = (getattr(part, unit) for part in (one.limits, one.spent, one.reserved, one.left))
            yield unit, *(Cell(f"{figure:,.9g}", f"{figure:.9g}") for figure in figures)

"""The report: tables for the terminal, and the whole as a page of documentation. Both are Markdown."""

from collections.abc import Sequence
from textwrap import fill

from benchmarks.machine import Machine
from benchmarks.results import Budget, Section, Table
from benchmarks.tables import factor, milliseconds

COMMAND = "./run --group benchmarks python -m benchmarks"

_INTRODUCTION = """\
# Benchmarks

<!-- Written by the command below; do not edit. -->

What Forkpoint costs, beside bare SQLite and beside peers, measured in one run by

```
{command}
```

Times depend on the machine and on the moment, so read the ratios: contenders took turns round by round in an order that
was drawn anew each time, and ratios are those of their medians. Never compare a figure here with one from another run.
Medians leave out what happens now and then, to everyone: a checkpoint of the log, a busy moment of the machine.
{quick}
| machine | |
|---|---|
| cores | {cores} |
| system | {system}, {architecture} |
| Python, SQLite | {python}, {sqlite} |
| one fsync | {fsync} |
| load of other programs before the run | {load} |
| peers | {peers} |

Everything is durable before it counts: WAL and `synchronous=FULL` for every contender, which is what each of them
has by itself. Events have 1 KB, where nothing else is said. A file stands alone for each contender and size.
"""

_QUICK = """
**This was a quick look, with small sizes and few rounds: it does not answer the budgets.**
"""


def page(machine: Machine, sections: Sequence[Section], *, arguments: Sequence[str], quick: bool) -> str:
    """The page of documentation."""
    parts = [
        _INTRODUCTION.format(
            command=" ".join((COMMAND, *arguments)),
            quick=_QUICK if quick else "",
            cores=machine.cores,
            system=machine.system,
            architecture=machine.architecture,
            python=machine.python,
            sqlite=machine.sqlite,
            fsync=milliseconds(machine.fsync),
            load="not known" if machine.load is None else f"{machine.load:.1f}",
            peers=", ".join(f"{name} {version}" for name, version in machine.peers),
        )
    ]
    budgets = [budget for section in sections for budget in section.budgets]
    if budgets:
        parts.append(f"## Budgets\n\n{_BUDGETS}\n\n{table_text(budget_table(budgets))}\n")
    parts += [section_text(section) for section in sections]
    return "\n".join(parts)


def section_text(section: Section) -> str:
    tables = "\n\n".join(table_text(table) for table in section.tables)
    return f"## {section.title}\n\n{fill(section.text, 118)}\n\n{tables}\n"


def budget_table(budgets: Sequence[Budget]) -> Table:
    """The budgets that the design sets for the store, and what this run came to."""
    header = ("what", "budget", "measured", "fastest rounds", "met")
    return Table("Budgets", header, tuple(_budget_row(budget) for budget in budgets))


def table_text(table: Table) -> str:
    """A table as aligned Markdown, readable in a terminal too."""
    lines = [table.header, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = "|".join(
        "-" * (width + 2) if column == 0 else "-" * (width + 1) + ":" for column, width in enumerate(widths)
    )
    return "\n".join([line(table.header), f"|{rule}|", *(line(row) for row in table.rows)])


_BUDGETS = """\
Measured is the ratio of the medians; where several were measured, the worst, with where that was. The column after it
is the same ratio of the fastest rounds."""


def _budget_row(budget: Budget) -> tuple[str, ...]:
    limit = f"{'at least' if budget.at_least else 'at most'} {budget.limit:.1f}x"
    measured = factor(budget.measured) + (f" ({budget.where})" if budget.where else "")
    best = "" if budget.best is None else factor(budget.best)
    return budget.what, limit, measured, best, _verdict(budget)


def _verdict(budget: Budget) -> str:
    """Whether the budget is met, and by how much of it."""
    apart = abs(budget.measured / budget.limit - 1)
    return f"yes, by {apart:.0%}" if budget.met else f"NO, by {apart:.0%}"

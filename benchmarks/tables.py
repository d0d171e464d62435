"""Cells and tables, written out."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from benchmarks.results import Table
from benchmarks.timing import Place, Times


def times_table(
    title: str, first: str, columns: Sequence[str], found: Mapping[Place, Times], against: str, note: str = ""
) -> Table:
    """Medians in milliseconds, a row for each contender, with how many times those of ``against`` they are."""
    rows = list(dict.fromkeys(row for row, _ in found))
    cells = []
    for row in rows:
        line = [row]
        for column in columns:
            times, ours = found.get((row, column)), found.get((against, column))
            if times is None or ours is None:
                line.append("")
            elif row == against:
                line.append(milliseconds(times.median))
            else:
                line.append(f"{milliseconds(times.median)} ({factor(times.median / ours.median)})")
        cells.append(tuple(line))
    return Table(title, (first, *columns), tuple(cells), note)


class Cost(Struct, frozen=True):
    """Seconds that something took: by itself, and the whole of which that was a part, if it was."""

    own: float
    whole: float | None = None


def cost_table(title: str, first: str, columns: Sequence[str], costs: Mapping[Place, Cost], note: str = "") -> Table:
    """How many times the first row's cost each row's is, then the times. A row for each contender."""
    rows = list(dict.fromkeys(row for row, _ in costs))
    cells = [(row, *(_cost(costs.get((row, name)), costs.get((rows[0], name))) for name in columns)) for row in rows]
    return Table(title, (first, *columns), tuple(cells), note)


def _cost(cost: Cost | None, one: Cost | None) -> str:
    if cost is None or one is None:
        return ""
    ratio = factor(cost.own / one.own) if min(cost.own, one.own) > 0 else "within noise"
    if cost.whole is None:
        return f"{ratio} ({milliseconds(cost.own)})"
    return f"{ratio} ({figure(cost.own * 1000)} of {milliseconds(cost.whole)})"


def milliseconds(seconds: float) -> str:
    return f"{figure(seconds * 1000)} ms"


def factor(ratio: float) -> str:
    return f"{figure(ratio)}x"


def figure(value: float) -> str:
    """A number with about three digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def events_column(size: int) -> str:
    return f"{size:,} events"

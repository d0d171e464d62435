"""Cells and tables, written out."""

from collections.abc import Mapping, Sequence

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

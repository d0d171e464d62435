"""What a measurement hands over to the report."""

from msgspec import Struct

from benchmarks.timing import Times


class Budget(Struct, frozen=True):
    """One line of the design's budgets, and what this run came to."""

    what: str
    limit: float
    measured: float
    best: float | None = None  # the same ratio of the fastest rounds instead of the medians
    at_least: bool = False
    where: str = ""  # which of several measurements is the one shown: the worst

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


class Table(Struct, frozen=True):
    """A table of the report, its cells written out."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


class Section(Struct, frozen=True):
    """One measured thing: what was done, the figures, and the budgets that they answer."""

    title: str
    text: str
    tables: tuple[Table, ...]
    budgets: tuple[Budget, ...] = ()


class Ratio(Struct, frozen=True):
    """One contender's times against another's."""

    where: str
    measured: float
    best: float


def ratio(where: str, ours: Times, theirs: Times) -> Ratio:
    return Ratio(where, ours.median / theirs.median, ours.best / theirs.best)


def worst(what: str, limit: float, ratios: list[Ratio]) -> Budget:
    """The budget line that is met only if all of these meet it."""
    most = max(ratios, key=lambda ratio: ratio.measured)
    return Budget(what, limit, most.measured, most.best, where=most.where if len(ratios) > 1 else "")

"""``forkpoint diff``: how two conversations differ, side by side; one below the other where there is no room.

Words that differ are marked with more than colour: ``[-only here-]`` on the left, ``{+only here+}`` on the right.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeAlias

from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from forkpoint.backend.diff import LIMIT, MOST, CallPair, Diff, DiffSide, DiffTurn, TurnPair
from forkpoint.backend.results import Call
from forkpoint.cli import figures
from forkpoint.cli.cells import Cell, brief
from forkpoint.cli.common import Id, Store, opened
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, clean, console, display, grid, one_line, print_json
from forkpoint.history.branches.diff import TextDiff
from forkpoint.wire.branches import diff_document

NARROW = 80
"""Columns of a screen below which the two stand one below the other."""

_SCREEN = 1000  # columns that no screen has: then the output goes to a file or a pipe
_LONGEST = 2000  # characters of a result that are shown; --json has all of it
_MARKS = {"a": ("[-", "-]", "bold red"), "b": ("{+", "+}", "bold green")}

_Here: TypeAlias = Literal["a", "b"]


def diff(
    a: Id,
    b: Annotated[str, argument("OTHER", "The other conversation: its name, its id, or the start of its id.")],
    limit: Annotated[
        int, option("--limit N", "How many turns and notes of each are compared.", min=1, max=MOST)
    ] = LIMIT,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show how two conversations differ, side by side.

    Shown are the last event that both have, and what each has since then, turn by turn: messages, calls with their
    results, state, settings, tokens and time. Words that differ are marked: [-so-] if only the first has them, and
    {+so+} if only the second does.

    \b
    Examples:
      forkpoint diff build-1234 try-2
      forkpoint diff build-1234 try-2 --json
    """
    with opened(a, store) as this, opened(b, store) as other:
        found = this.diff(other, limit=limit)
    if json:
        print_json(diff_document(found))
    else:
        display(*drawn(found, console().width))


def drawn(found: Diff, width: int) -> Iterator[Any]:
    """A difference for rich to print on a screen of this width."""
    beside = NARROW <= width < _SCREEN
    yield _sides(found)
    yield Text(_parting(found), style="dim")
    for pair in found.pairs:
        yield (
            Rule(_heading(pair), align="left", style="dim", characters="─")
            if width < _SCREEN
            else Text(f"-- {_heading(pair)}", style="dim")
        )
        yield _beside(pair) if beside else _below(pair)
    for side, name in ((found.a, "a"), (found.b, "b")):
        if side.left_out:
            yield Text(f"{name}: {figures.counted(side.left_out, 'turn or note', 'turns and notes')} left out", "dim")
    if found.state:
        rows = [(one.key, *(_value(value) for value in (one.before, one.a, one.b))) for one in found.state]
        yield from _listed("State", ("key", "before", "a", "b"), rows)
    if found.settings:
        yield from _listed(
            "Settings", ("setting", "a", "b"), [(one.name, _value(one.a), _value(one.b)) for one in found.settings]
        )


def _sides(found: Diff) -> Table:
    table = grid(header=True)
    table.add_column(Cell("", "what"), style="dim", no_wrap=True)
    table.add_column("a", overflow="fold")
    table.add_column("b", overflow="fold")
    rows: dict[str, Callable[[DiffSide], str | Text]] = {
        "conversation": _name,
        "model": _model,
        "since": _since,
        "used": _used,
        "time": _time,
    }
    for name, of in rows.items():
        table.add_row(name, of(found.a), of(found.b))
    return table


def _name(side: DiffSide) -> Text:
    name, title = one_line(side.name), side.title or ""
    return Cell(f"{name}  {one_line(title, 60)}".rstrip(), f"{name}  {title}")


def _model(side: DiffSide) -> str:
    return one_line(side.model or "-")


def _since(side: DiffSide) -> str:
    counted = [(side.turns, "turn"), (side.notes, "note"), (side.events, "event")]
    return ", ".join(figures.counted(number, what) for number, what in counted if number) or "nothing"


def _used(side: DiffSide) -> str:
    return figures.used(side.usage)


def _time(side: DiffSide) -> str:
    return figures.seconds(side.seconds)


def _parting(found: Diff) -> str:
    if not found.related:
        return "They are of different families and have no common ancestor: all of both is compared."
    if found.ancestor is None:
        return "They share no event: all of both is compared."
    shared = f"They part after event {found.ancestor} ({figures.counted(found.shared, 'event')} shared)."
    return shared if found.a.events or found.b.events else f"Both stand at event {found.ancestor}."


def _heading(pair: TurnPair) -> str:
    turns = {name: turn for name, turn in (("a", pair.a), ("b", pair.b)) if turn is not None}
    kind = next(iter(turns.values())).kind
    if len(turns) == 1:
        return f"{kind}, only {next(iter(turns))}"
    return f"{kind}, the same in both" if pair.same else kind


def _beside(pair: TurnPair) -> Table:
    """Two turns in two columns."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    table.add_row(_column(pair, "a"), _column(pair, "b"))
    return table


def _below(pair: TurnPair) -> Group:
    """Two turns in one column: what differs stands in one text, marked."""
    if pair.a is None or pair.b is None:
        return Group(Padding(_column(pair, "a" if pair.b is None else "b"), (0, 0, 0, 2)))
    return Group(Padding(_merged(pair, pair.a, pair.b), (0, 0, 0, 2)))


def _column(pair: TurnPair, here: _Here) -> Text:
    """One side of a pair, with its own words marked."""
    turn, other = (pair.a, pair.b) if here == "a" else (pair.b, pair.a)
    told = Text()
    if turn is None:
        return Text("-", style="dim")
    _say(told, "user", _marked(pair.input, here) if other is not None else Text(clean(turn.input)))
    for n, call in enumerate(turn.calls):
        with_other = next((one for one in pair.calls if (one.a if here == "a" else one.b) == n), None)
        told.append_text(_call(call, with_other, here))
    _say(told, "assistant", _marked(pair.text, here) if other is not None else Text(clean(turn.text)))
    _rest(told, turn)
    told.rstrip()
    return told


def _merged(pair: TurnPair, a: DiffTurn, b: DiffTurn) -> Text:
    """Both sides of a pair in one text."""
    told = Text()
    _say(told, "user", _marked(pair.input, None))
    for one in pair.calls:
        if one.a is not None and one.b is not None and one.same:
            told.append_text(_call(a.calls[one.a], None, "a"))
            continue
        if one.a is not None:
            told.append_text(_call(a.calls[one.a], one, "a", alone="a"))
        if one.b is not None:
            told.append_text(_call(b.calls[one.b], one, "b", alone="b"))
    _say(told, "assistant", _marked(pair.text, None))
    for name, turn in (("a", a), ("b", b)):
        _rest(told, turn, f"{name}: ")
    told.rstrip()
    return told


def _say(told: Text, who: str, said: Text) -> None:
    if said.plain.strip():
        told.append(f"{who}  ", style="dim")
        told.append_text(said)
        told.append("\n")


def _rest(told: Text, turn: DiffTurn, name: str = "") -> None:
    """What else a turn did, and what it cost."""
    for did in turn.did:
        told.append(f"{name}{one_line(did)}\n", style="dim")
    if turn.partial:
        told.append(f"{name}only a part of this turn stands here\n", style="dim")
    if turn.kind == "turn":
        took = "" if turn.ended is None else f", {figures.seconds((turn.ended - turn.started) / 1e6)}"
        told.append(f"{name}{figures.used(turn.usage)}{took}\n", style="dim")


def _call(call: Call, pair: CallPair | None, here: _Here, *, alone: str = "") -> Text:
    differs = pair is not None and not pair.same
    told = Text()
    told.append(f"{alone}: call  " if alone else "call  ", style="dim")
    is_marked = differs and pair is not None and pair.arguments is not None
    told.append(f"{one_line(call.tool)}(")
    told.append_text(_marked(pair.arguments, here) if is_marked and pair is not None else Text(clean(call.arguments)))
    told.append(f")  {call.status.replace('_', ' ')}\n")
    if call.result:
        result = Text(clean(call.result))
        if differs and pair is not None and pair.result is not None:
            result = _marked(pair.result, here)
        if len(result) > _LONGEST:
            result = result[:_LONGEST] + Text(f" [... {len(result) - _LONGEST:,} characters left out]", style="dim")
        told.append("  ")
        told.append_text(result)
        told.append("\n")
    return told


def _marked(text: TextDiff | None, here: _Here | None) -> Text:
    """A text with the words marked that only this side has; with those of both sides if ``here`` is None."""
    told = Text()
    for piece in () if text is None else text.pieces:
        if piece.side == "both":
            told.append(clean(piece.text))
        elif here in (None, piece.side):
            before, after, style = _MARKS[piece.side]
            told.append(f"{before}{clean(piece.text)}{after}", style=style)
    if text is not None and not text.exact:
        told.append("  (too long to compare word by word)", style="dim")
    return told


def _listed(title: str, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[Any]:
    table = grid(header=True)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    yield Text(f"\n{title}", style="bold")
    yield table


def _value(value: str | None) -> Text:
    return Text("-") if value is None else brief(value, 400)

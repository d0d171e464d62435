"""``forkpoint why``: how a provider's cache served the calls of a turn, and why it did not have more."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import to_builtins
from rich.text import Text

from forkpoint.cli import figures
from forkpoint.cli.common import Id, Store, opened
from forkpoint.cli.options import argument
from forkpoint.cli.output import Json, clean, console, print_json
from forkpoint.llm.prompt.misses import CacheReport, CallCache

_WIDE = 24  # characters of a bar
_PARTS = (("cached", "█", "green"), ("written", "▓", "yellow"), ("fresh", "░", "red"))


def why(
    conversation: Id,
    turn: Annotated[
        str | None, argument("TURN", "A turn, also one that did not commit. Default: the newest that asked a model.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Say why a turn missed its provider's cache.

    There is a line for each call of the turn's model: which part of its prompt was cached (█), written to the cache (▓)
    and fresh (░). If less was cached than possible, the reasons follow, the most likely first. Each call is compared
    with the request before it. Nothing is sent.

    \b
    Examples:
      forkpoint why build-1234
      forkpoint why build-1234 01a1e2ba-4084-7591-a930-4814fe7695df
      forkpoint why build-1234 --json | jq '.calls[].reasons[].code'
    """
    with opened(conversation, store) as this:
        report = this.why(turn)
    if json:
        print_json(to_builtins(report))
        return
    out = console()
    for line in report_lines(report):
        out.print(line, soft_wrap=True)


def report_lines(report: CacheReport) -> Iterator[Text]:
    """A report in lines: of which turn it is, then its calls."""
    yield Text(f"turn {report.turn}, {report.outcome.replace('_', ' ')}", style="dim")
    for call in report.calls:
        yield from _lines(call)


def _lines(call: CallCache) -> Iterator[Text]:
    """A call in a line, then what there is to say of it."""
    line = Text(f"{call.call}  ")
    line.append_text(bar(call))
    line.append(clean(f"  {_tokens(call)}  {call.model}"))
    yield line
    for reason in call.reasons:
        yield Text(clean(f"   - {reason.words}"))
    if call.error is not None:
        yield Text(f"   - the call failed: {call.error}", style="red")
    for unknown in call.unknown:
        yield Text(clean(f"   ? not known: {unknown}"), style="dim")


def bar(call: CallCache) -> Text:
    """The prompt of a call as a bar: its cached, written and fresh part, each at least a character if there is any."""
    shown = Text()
    if not call.input:
        return shown.append("·" * _WIDE, style="dim")
    sizes = [getattr(call, name) for name, _, _ in _PARTS]
    widths = [max(round(_WIDE * size / call.input), 1) if size else 0 for size in sizes]
    largest = max(range(len(widths)), key=lambda n: widths[n])
    widths[largest] += _WIDE - sum(widths)
    for (_, sign, style), width in zip(_PARTS, widths, strict=True):
        shown.append(sign * width, style=style)
    return shown


def _tokens(call: CallCache) -> str:
    if not call.input:
        return "no tokens are known"
    parts = [f"{getattr(call, name):,} {name}" for name, _, _ in _PARTS if name != "written" or call.written]
    told = f"{', '.join(parts)} of {figures.counted(call.input, 'token')}"
    if call.possible is None:
        return told
    about = "about " if call.possible_estimated else ""
    return f"{told}; {about}{call.possible:,} could have been cached"

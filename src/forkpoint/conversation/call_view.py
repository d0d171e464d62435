"""How a tool call is shown: whole and to the character if somebody is to decide on it, or on one line.

**What a person approves is what was shown.** So a call that waits is never cut, its blanks stay, and characters that
cannot be seen are made visible. An edit is shown as a diff, a shell command as the command, everything else as its
arguments. Each line of a text of several lines has a sign before it, so that no text can look like another argument.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from forkpoint.agent.arguments import object_of
from forkpoint.backend.results import Call, Turn
from forkpoint.conversation.screen_text import visible, visible_line
from forkpoint.events import ToolCall

if TYPE_CHECKING:
    from rich.console import Console

SHORT = 80
"""Characters of arguments that are shown on the line of the tool's name, as in ``restart(build=1234)``."""

_LONG = 2_000  # characters from which on a view says how much it shows
_MOST_COMPARED = 2_000  # lines of an edit in which common lines are looked for; beyond that it would take too long
_MOST_EQUAL = 20_000  # pairs of equal lines in an edit, for the same reason: a line that repeats has very many


class ViewLine(Struct, frozen=True):
    """A line that is safe to print as it is, and a style of rich for it."""

    text: str
    style: str = ""


class CallView(Struct, frozen=True):
    """A call, whole: ``restart(build=1234)``, or the tool's name and all arguments in lines below it."""

    heading: str
    lines: tuple[ViewLine, ...] = ()


def call_view(call: Call | ToolCall) -> CallView:
    """The call, whole, as the model asks for it."""
    tool, arguments = visible_line(call.tool), _arguments(call.arguments)
    if arguments is None:
        return _measured(tool, [ViewLine("arguments, which are not a JSON object:"), *_quoted(call.arguments)])
    texts = {name: text for name, value in arguments.items() if (text := _text(value)) is not None}
    match call.tool, texts:
        case "shell", {"command": command}:
            return _measured(tool, [*_command(command), *_named(arguments, but={"command"})])
        case "edit_file", {"old": old, "new": new}:
            return _measured(tool, [*_named(arguments, but={"old", "new"}), *_diff(old, new)])
        case "write_file", {"content": content}:
            written = (ViewLine(f"+ {line}", "green") for line in _lines(content))
            return _measured(tool, [*_named(arguments, but={"content"}), *written])
        case _:
            lines = _named(arguments)
            row = ", ".join(line.text for line in lines)
            short = len(lines) == len(arguments) and len(row) <= SHORT
            return CallView(f"{tool}({row})") if short else _measured(tool, lines)


def edit_view(call: Call | ToolCall) -> CallView | None:
    """A call that edits a file: its other arguments on one line, and the lines that it changes; None for others."""
    arguments = _arguments(call.arguments) or {}
    texts = {name: text for name, value in arguments.items() if (text := _text(value)) is not None}
    match call.tool, texts:
        case "edit_file", {"old": old, "new": new}:
            lines = tuple(_diff(old, new))
        case "write_file", {"content": content}:
            lines = tuple(ViewLine(f"+ {line}", "green") for line in _lines(content.removesuffix("\n")))
        case _:
            return None
    row = ", ".join(
        f"{_name(name)}={visible_line(_value(value))}"
        for name, value in arguments.items()
        if name not in {"old", "new", "content"}
    )
    return CallView(f"{visible_line(call.tool)}({row})", lines)


def call_line(call: Call | ToolCall) -> str:
    """The call on one line, however long: ``read_log(build=1234, lines=100)``."""
    arguments = _arguments(call.arguments)
    if arguments is None:
        return f"{visible_line(call.tool)}({visible_line(call.arguments.strip())})"
    row = (f"{_name(name)}={visible_line(_value(value))}" for name, value in arguments.items())
    return f"{visible_line(call.tool)}({', '.join(row)})"


def waiting_view(call: Call | ToolCall, reason: str | None, *, digest: str | None = None) -> tuple[ViewLine, ...]:
    """A call that waits, for whoever decides on it: what it would do, why it waits, its id, and the digest if given."""
    view = call_view(call)
    id = call.id if isinstance(call, Call) else call.call_id
    why = f" ({visible_line(reason)})" if reason else ""
    lines = [ViewLine(f"{view.heading} waits for an approval{why}, as {visible_line(id)}", "yellow")]
    lines += [ViewLine(f"    {line.text}", line.style) for line in view.lines]
    if digest is not None:
        lines.append(ViewLine(f"    digest {digest}", "dim"))
    return tuple(lines)


def turn_view(turn: Turn, *, calls: Sequence[Call] | None = None, digests: bool = False) -> tuple[ViewLine, ...]:
    """What a person sees who decides on a turn: what the model said, and each call that waits, whole."""
    lines = reason_view(turn.text)
    for call in turn.waiting if calls is None else calls:
        lines += waiting_view(call, call.reason, digest=call.digest if digests else None)
    return lines


def reason_view(text: str) -> tuple[ViewLine, ...]:
    """What a model said beside the calls that wait; nothing if it said nothing."""
    if not text.strip():
        return ()
    return (ViewLine("the model says:", "dim"), *(ViewLine(f"  {line.text}") for line in _quoted(text)))


def print_view(console: "Console", lines: Iterable[ViewLine], *, before: str = "") -> list[str]:
    """Prints lines to the character: nothing is wrapped, cut or coloured by what stands there, and tabs stay tabs.

    Returns the lines as they were printed, for whoever has to know how much of a screen they take.
    """
    from rich.segment import Segment, Segments

    printed = []
    for line in lines:
        text = before + line.text
        try:
            text.encode(console.encoding)
        except UnicodeEncodeError:
            text = text.encode(console.encoding, "backslashreplace").decode(console.encoding)
        style = console.get_style(line.style) if line.style else None
        console.print(Segments([Segment(text, style), Segment("\n")]), soft_wrap=True, end="")
        printed.append(text)
    return printed


def diff_view(old: str, new: str) -> tuple[ViewLine, ...]:
    """A diff with all lines of both texts. A line that both have stands there once."""
    return tuple(_diff(old, new))


# What stands in a view.


def _measured(tool: str, lines: Sequence[ViewLine]) -> CallView:
    """A view that says how much it shows, if that is more than anybody sees at a glance."""
    size = sum(len(line.text) for line in lines)
    heading = f"{tool} [{size:,} characters in {_count(len(lines))}, all of them shown]" if size > _LONG else tool
    return CallView(heading, tuple(lines))


def _count(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines:,} lines"


def _command(command: str) -> Iterator[ViewLine]:
    for number, line in enumerate(_lines(command)):
        yield ViewLine(f"{'>' if number else '$'} {line}", "bold")


def _diff(old: str, new: str) -> Iterator[ViewLine]:
    """All lines of both texts. Those that both have stand there once, if there are not too many to compare."""
    before, after = _lines(old), _lines(new)
    if len(before) + len(after) > _MOST_COMPARED or _equal_pairs(before, after) > _MOST_EQUAL:
        yield from (ViewLine(f"- {line}", "red") for line in before)
        yield from (ViewLine(f"+ {line}", "green") for line in after)
        return
    for sort, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if sort == "equal":
            yield from (ViewLine(f"  {line}") for line in before[a:b])
        else:
            yield from (ViewLine(f"- {line}", "red") for line in before[a:b])
            yield from (ViewLine(f"+ {line}", "green") for line in after[c:d])


def _equal_pairs(before: Sequence[str], after: Sequence[str]) -> int:
    """How many pairs of a line of one text and the same line of the other there are."""
    there = Counter(after)
    return sum(count * there[line] for line, count in Counter(before).items())


def _named(arguments: dict[str, Raw], but: Iterable[str] = ()) -> list[ViewLine]:
    """Arguments by their names: each on a line, or a text of several lines below its name."""
    lines: list[ViewLine] = []
    for name, value in arguments.items():
        if name in but:
            continue
        text = _text(value)
        said = _value(value) if text is None else text
        if "\n" in said:
            lines += [ViewLine(f"{_name(name)}="), *_quoted(said)]
        else:
            lines.append(ViewLine(f"{_name(name)}={visible(_value(value))}"))
    return lines


def _quoted(text: str) -> list[ViewLine]:
    return [ViewLine(f"| {line}") for line in _lines(text)]


def _lines(text: str) -> list[str]:
    return visible(text).split("\n")


# What stands in arguments.


def _arguments(text: str) -> dict[str, Raw] | None:
    """The arguments by name, each value as the exact JSON that it is.

    None if they are not one JSON object, or if a name stands there twice: then only the text itself is the truth.
    """
    try:
        json.loads(text or "{}", object_pairs_hook=object_of)
        return msgspec.json.decode(text or "{}", type=dict[str, Raw])
    except (ValueError, msgspec.MsgspecError, RecursionError):  # not JSON, not an object, not Unicode
        return None


def _text(value: Raw) -> str | None:
    """A value that is a text; None if it is something else."""
    return str(msgspec.json.decode(value)) if bytes(value).startswith(b'"') else None


def _value(value: Raw) -> str:
    """A value as JSON, with letters instead of the escapes that would hide them."""
    text = _text(value)
    if text is not None:
        return json.dumps(text, ensure_ascii=False)
    return _ESCAPE.sub(_letter, bytes(value).decode())


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else visible(json.dumps(name, ensure_ascii=False))


def _letter(found: "re.Match[str]") -> str:
    code = int(found[1], 16) if found[1] else 0
    return found[0] if code < 0x20 or chr(code) in '"\\' or 0xD800 <= code < 0xE000 else chr(code)


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

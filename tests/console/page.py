"""A page of the documentation, as what a reader does: files that they write, and commands that they type.

A ``console`` block has commands, each after ``$``, with what it shows. HTML comments, which a reader does not see, say
the rest:

- ``<!-- not run: REASON -->`` before a block: it cannot run where the tests do.
- ``<!-- answers: of a real model -->`` before a block: what it says, and how many tokens that is, differs by machine.
- ``<!-- file: NAME -->`` before a block of another kind: the file has the content of the block.
- ``<!-- file: NAME`` and more lines: the file has these lines.
- ``<!-- first: COMMANDS -->``: they run before what follows, and have to work.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class File:
    name: str
    content: str


@dataclass(frozen=True)
class Before:
    """A command that the page does not show."""

    line: int
    command: str


@dataclass(frozen=True)
class Command:
    """A command that the page shows, in the line with this number, and what it is said to show."""

    line: int
    command: str
    shown: tuple[str, ...]
    first: int  # the line in which what it shows begins
    indent: str = ""
    loose: bool = False  # it has answers of a real model

    @property
    def comparable(self) -> bool:
        """Whether the page says what the command shows. If it does not, the command just has to work."""
        return bool(self.shown)


@dataclass(frozen=True)
class NotRun:
    line: int
    reason: str


Step: TypeAlias = File | Before | Command | NotRun

_COMMENT = re.compile(r"<!-- (not run|answers|file|first): ?([^\n]*?)(?:\n(.*?))?\s*-->", re.DOTALL)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


def read(page: Path) -> list[Step]:
    """All steps, in the order of the page."""
    return steps(page.read_text(encoding="utf-8"))


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    place = 0
    label: re.Match[str] | None = None  # a comment that is about the block below it
    for part in sorted([*_COMMENT.finditer(text), *_FENCE.finditer(text)], key=lambda part: part.start()):
        if part.start() < place:  # inside a block or a comment
            continue
        place = part.end()
        line = text.count("\n", 0, part.start()) + 1
        if part.re is _FENCE:
            found += _block(part, line, label)
            label = None
            continue
        assert label is None, f"line {line}: the comment before is about a block, and there is none"
        match part[1], part[3]:
            case "first", rest:
                lines = [*filter(None, [part[2]]), *(rest or "").splitlines()]
                found += [Before(line, command) for command, _, _ in _joined(lines)]
            case "file", str(content):
                found.append(File(part[2], content + "\n"))
            case _:
                label = part
    assert label is None, "the last comment is about a block, and there is none"
    return found


def _block(part: re.Match[str], line: int, label: re.Match[str] | None) -> list[Step]:
    kind, content = part[2], _without(part[1], part[3])
    assert kind == "console" or label is None or label[1] == "file", f"line {line}: only console blocks are run"
    if label and label[1] == "not run":
        assert label[2], f"line {line}: say why it is not run"
        return [NotRun(line, label[2])]
    if label and label[1] == "file":
        return [File(label[2], content)]
    commands = _commands(content.splitlines(), line + 1, part[1]) if kind == "console" else []
    return [replace(command, loose=label is not None) for command in commands]


def _without(indent: str, content: str) -> str:
    return "".join(line.removeprefix(indent) for line in content.splitlines(keepends=True))


def _commands(lines: list[str], first: int, indent: str) -> list[Command]:
    assert lines, f"line {first}: the block is empty"
    assert lines[0].startswith("$ "), f"line {first}: the block does not begin with a command"
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    commands = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        ((command, _, used),) = _joined([lines[start][2:], *lines[start + 1 : end]])[:1]
        shown = lines[start + used : end]
        while shown and not shown[-1]:
            shown.pop()
        commands.append(Command(first + start, command, tuple(shown), first + start + used, indent))
    return commands


def _joined(lines: list[str]) -> list[tuple[str, int, int]]:
    """Commands, each with the number of its line and how many lines it has: a backslash at the end means one more."""
    commands = []
    number = 0
    while number < len(lines):
        end = number + 1
        while lines[end - 1].endswith("\\"):
            end += 1
        commands.append(("\n".join(lines[number:end]), number, end - number))
        number = end
    return commands

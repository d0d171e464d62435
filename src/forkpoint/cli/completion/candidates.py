"""`candidates`: what may stand at the cursor of a command line. Tests: tests/cli/test_completion.py."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from forkpoint.cli.completion.index import Command, Parameter, program

Kind: TypeAlias = Literal["words", "files", "folders"]


class Candidates(NamedTuple):
    """What a shell may offer: words with what each is, or files or folders, which the shell knows."""

    kind: Kind
    words: tuple[tuple[str, str], ...] = ()


def candidates(before: Sequence[str], word: str) -> Candidates:
    """What may stand in the place of the unfinished word, after these words."""
    line = _Line(before)
    if line.awaited is not None:
        return _values(line, line.awaited, word)
    if word.startswith("-") and not line.is_closed:
        name, equals, value = word.partition("=")
        option = line.option(name)
        if equals and option is not None and "value" in option:
            found = _values(line, option, value)
            return Candidates(found.kind, tuple((f"{name}={one}", help) for one, help in found.words))
        return _starting(word, line.options())
    found = Candidates("words") if line.argument is None else _values(line, line.argument, word)
    return Candidates(found.kind, _starting(word, line.commands()).words + found.words)


class _Line:
    """The finished words of a command line: the command that they name, its options that are given, its arguments."""

    def __init__(self, words: Iterable[str]) -> None:
        self.command: Command = program()
        self.store: str | None = None
        self.awaited: Parameter | None = None
        self.is_closed = False
        self._given: set[str] = set()
        self._arguments = 0
        for word in words:
            self._take(word)

    def option(self, name: str) -> Parameter | None:
        """The option with this name."""
        return next((one for one in self.command["parameters"] if name in one.get("names", ())), None)

    def options(self) -> Iterator[tuple[str, str]]:
        """The options that can still be given."""
        for one in self.command["parameters"]:
            names = one.get("names", [])
            if one.get("repeat") or not self._given.intersection(names):
                yield from ((name, one["help"]) for name in names)

    def commands(self) -> Iterator[tuple[str, str]]:
        """The commands that can stand here."""
        if not self._arguments:
            yield from ((name, one["help"]) for name, one in self.command.get("commands", {}).items())

    @property
    def argument(self) -> Parameter | None:
        """The argument that can stand here."""
        command = self._default() if "default" in self.command else self.command
        arguments = [one for one in command["parameters"] if "names" not in one]
        if self._arguments < len(arguments):
            return arguments[self._arguments]
        return arguments[-1] if arguments and arguments[-1].get("repeat") else None

    def _take(self, word: str) -> None:
        if self.awaited is not None:
            self._got(self.awaited, word)
            self.awaited = None
        elif word == "--" and not self.is_closed:
            self.is_closed = True
        elif word.startswith("-") and word != "-" and not self.is_closed:
            self._take_option(word)
        elif word in self.command.get("commands", {}):
            self.command = self.command["commands"][word]
        else:
            if "default" in self.command:
                self.command = self._default()
            self._arguments += 1

    def _take_option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        option = self.option(name)
        if option is None:
            return
        self._given.update(option["names"])
        if equals:
            self._got(option, value)
        elif "value" in option:
            self.awaited = option

    def _got(self, option: Parameter, value: str) -> None:
        if option.get("value") == "store":
            self.store = value

    def _default(self) -> Command:
        return self.command["commands"][self.command["default"]]


def _values(line: _Line, parameter: Parameter, word: str) -> Candidates:
    match parameter.get("value"):
        case "conversation":
            from forkpoint.cli.completion.names import known_names  # which loads what reads a store

            return _starting(word, known_names(line.store))
        case "model":
            from forkpoint.cli.completion.models import known_models

            return _starting(word, known_models(word))
        case "template":
            from forkpoint.cli.completion.templates import known_templates

            return _starting(word, known_templates())
        case "agent":
            return _starting(word, [("coder", "works in a repository")])
        case "file" | "store":
            return Candidates("files")
        case "folder":
            return Candidates("folders")
        case list(words):
            return _starting(word, [(one, "") for one in words])
        case _:
            return Candidates("words")


def _starting(word: str, offered: Iterable[tuple[str, str]]) -> Candidates:
    return Candidates("words", tuple((one, help) for one, help in offered if one.startswith(word)))

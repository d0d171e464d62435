"""The help of every command: it is there, and what it says is so."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.program import Program
from tests.test_errors import ALL, BASES, name_of, sample

from forkpoint.cli.app import app, main
from forkpoint.errors import ErrorKind, NotFound

PROGRAM: Any = typer.main.get_command(app)

NO_JSON = {"completion": "its result is a script for a shell, and not a document"}

NO_STORE = {
    "completion": "it prints a script",
    "trust": "what you trust stands in your settings",
    "local": "the weights of a model are in a cache",
    "skills list": "skills are files",
    "templates": "templates stand in settings",
    "skills show": "skills are files",
}


def commands(group: Any = PROGRAM, *words: str) -> Iterator[tuple[str, ...]]:
    """Every command of the table, also those of groups, by the words that one types."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *words, name)
        else:
            yield (*words, name)


def named(words: list[str]) -> tuple[Any, list[str]]:
    """The command that a command line names, and what it is given."""
    command = PROGRAM
    while hasattr(command, "commands"):
        is_named = bool(words) and words[0] in command.commands
        command = command.commands[words.pop(0) if is_named else "list"]  # which is what a group does by itself
    return command, words


def in_shell(line: str) -> Iterator[list[str]]:
    """The words of each call of the program in a line of a shell, also within ``$(...)`` and beside pipes."""
    for within in re.findall(r"\$\(([^)]*)\)", line):
        yield from in_shell(within)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    call: list[str] = []
    for token in [*lexer, "|"]:
        if set(token) <= set("|&;<>"):
            if call[:1] == ["forkpoint"]:
                yield call[1:]
            call = ["a file"] if set(token) <= set("<>") else []
        else:
            call.append(token)


COMMANDS = list(commands())


def help_of(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


def examples_of(help: str) -> list[str]:
    """The lines below ``Example:`` up to the next blank line."""
    found = re.search(r"^  Examples?:\n((?:    .*\n)+)", help, re.MULTILINE)
    return [] if found is None else [line.strip() for line in found[1].splitlines()]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_a_form_for_programs_a_store_and_examples_that_it_takes(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = " ".join(words)
    help = help_of(words, capsys, monkeypatch)
    options, _, _ = help.partition("Options:\n")[2].partition("\n\n")
    assert ("  --json " in options) is (name not in NO_JSON)
    assert ("  --store " in options) is NO_STORE.keys().isdisjoint({name, words[0]})
    command, _ = named(list(words))
    assert [parameter.name for parameter in command.imported.params if not parameter.help] == []
    examples = examples_of(help)
    calls = [call for line in examples for call in in_shell(line)]
    assert any(named([*call])[0] is command for call in calls), f"no example of forkpoint {name}: {examples}"
    for call in calls:
        called, given = named([*call])
        called.make_context(called.name, given)  # raises if it does not take that


def test_a_wrong_example_is_found() -> None:
    command, given = named(["list", "--no-such-option"])
    with pytest.raises(Exception, match="No such option"):
        command.make_context("list", given)
    command, given = named(["list", "--status", "bored"])
    with pytest.raises(Exception, match="bored"):
        command.make_context("list", given)


def test_calls_are_found_in_a_line_of_a_shell() -> None:
    line = """echo a | forkpoint run "a | b" --quiet > out; X=$(forkpoint keys add 'ann') && jq . < forkpoint"""
    assert list(in_shell(line)) == [["keys", "add", "ann"], ["run", "a | b", "--quiet"]]


@pytest.mark.parametrize("name", ["demo", "serve", "backup", "restore"])
def test_a_command_that_refuses_a_server_does_not_offer_one_as_a_store(name: str) -> None:
    (help,) = (one.help for one in named([name])[0].imported.params if "--store" in one.opts)
    assert "server (http" not in help
    assert ("FORKPOINT_STORE" in help) is (name != "demo")


@pytest.mark.parametrize("name", ["demo", "serve"])
def test_and_it_refuses_one(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main([name, "--store", "http://127.0.0.1:8008"])
    assert ended.value.code == 2
    assert "--store" in capsys.readouterr().err


def advised(message: str) -> Iterator[list[str]]:
    """The commands that an error names, in backquotes."""
    for line in re.findall(r"`forkpoint ([^`]*)`", message):
        yield shlex.split(line.replace("...", ""))


@pytest.mark.parametrize("kind", [kind for kind in ALL if name_of(kind) not in BASES], ids=name_of)
def test_a_command_that_an_error_advises_is_there_with_its_options(kind: ErrorKind) -> None:
    for words in advised(sample(kind).message("Command line")):
        command, given = named(words)
        options = {name for one in command.imported.params for name in one.opts}
        assert {word for word in given if word.startswith("-")} <= options


@pytest.mark.parametrize(
    "what", ["conversation", "turn", "committed turn", "event", "skill", "hold", "standing approval", "store", "moon"]
)
def test_what_is_not_found_is_told_with_a_command_that_shows_what_there_is(what: str) -> None:
    message = NotFound(what, "x").message("Command line")
    assert "tenant" not in message
    assert list(advised(message)) or what == "moon"
    for words in advised(message):
        command, given = named(words)
        command.make_context(command.name, given)


def test_a_missing_skill_and_a_misspelled_agent_are_told_with_what_helps(tmp_path: Path) -> None:
    forkpoint = Program(tmp_path)
    assert "`forkpoint skills`" in forkpoint.run("skills", "show", "nothing").stderr
    assert "--agent coder is built in" in forkpoint.run("run", "--agent", "coderr", "hi").stderr

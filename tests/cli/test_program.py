"""The program as a whole: help, errors, pipes, shells, and what reaches the screen."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.program import Program, agent

from forkpoint import Conversation
from forkpoint.cli.app import app
from forkpoint.cli.table import GROUPS
from forkpoint.testing import Reply

ROOT = Path(__file__).parent.parent.parent
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_in_the_help_and_in_the_docs(name: str) -> None:
    context = typer.Context(typer.main.get_command(app), info_name="forkpoint")
    assert f"\n  {name} " in context.get_help()
    assert f"`forkpoint {name}" in (ROOT / "docs" / "command-line.md").read_text()


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_the_list_of_commands_says_of_each_what_its_own_help_says_first(group: str) -> None:
    commands = COMMANDS[group].commands if group else {name: COMMANDS[name] for name in COMMANDS if name not in GROUPS}
    for name, command in commands.items():
        assert command.short_help == command.imported.get_short_help_str(200), name


def test_help_says_what_each_exit_status_means(forkpoint: Program) -> None:
    said = forkpoint.text("--help")
    for status in ("0  ", "1  ", "2  ", "3  ", "130"):
        assert f"\n    {status}" in said


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--help"], {}),
        (["--version"], {}),
        (["agents", "--help"], {}),
        (["list", "--st"], {"_FORKPOINT_COMPLETE": "words"}),
    ],
)
def test_help_and_completion_load_no_command_no_sdk_no_store_and_nothing_that_draws(
    arguments: list[str], environment: dict[str, str]
) -> None:
    script = (
        "import sys\n"
        "from forkpoint.cli import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "except SystemExit:\n"
        "    pass\n"
        "finally:\n"
        "    heavy = ('openai', 'anthropic', 'xllamacpp', 'rich', 'sqlite3', 'forkpoint.conversation', 'http.client')\n"
        "    heavy += ('forkpoint.cli.commands', 'forkpoint.cli.chat')\n"
        "    print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    assert done.stdout
    assert done.stderr == "[]\n"


def test_completing_commands_and_options_loads_neither_the_program_nor_msgspec() -> None:
    script = (
        "import sys\n"
        "from forkpoint.cli import main\n"
        "main()\n"
        "print([name for name in ('typer', 'msgspec', 'forkpoint.cli.app') if name in sys.modules], file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", script, "list", "--sta"]
    environment = os.environ | {"_FORKPOINT_COMPLETE": "words"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith("words\n--status\t")
    assert done.stderr == "[]\n"


def test_an_error_is_one_line_and_exits_with_1(forkpoint: Program) -> None:
    done = forkpoint.run("show", "nobody")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: There is no conversation 'nobody' here.")


def test_an_error_is_a_document_for_programs(forkpoint: Program) -> None:
    done = forkpoint.run("show", "nobody", "--json")
    assert done.returncode == 1
    assert done.stdout == ""
    assert json.loads(done.stderr)["error"]["code"] == "not_found"


def test_an_address_that_is_none_is_an_error_of_one_line(forkpoint: Program) -> None:
    done = forkpoint.run("list", "--store", "postgresql://ann:secret@host/db")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "secret" not in done.stderr


def test_whoever_reads_only_the_beginning_hears_no_complaints(forkpoint: Program) -> None:
    with Conversation(agent("long", Reply("word " * 100_000)), conversation_id="long", store=forkpoint.store) as made:
        made.run("Talk.")
    for arguments in (("show", "long", "--events"), ("show", "long", "--events", "--json"), ("request", "long", "x")):
        with forkpoint.start(*arguments) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.close()
            process.stdout.read(1)
            process.stdout.close()
            assert process.stderr.read() == ""
    with forkpoint.start("list") as process:
        assert process.stdout is not None
        process.stdout.close()  # before it has said anything
        _, err = process.communicate()
    assert err == ""


HOSTILE = "a\x1b]0;owned\x07 \x9b2J [bold red]b[/] \u202ec :smile:\nd\r"


def test_what_others_wrote_is_shown_and_not_obeyed(forkpoint: Program) -> None:
    speaker = agent("hostile", Reply(HOSTILE), instructions="x")
    with Conversation(speaker, conversation_id="evil", store=forkpoint.store, title=HOSTILE) as made:
        made.run(HOSTILE)
        made.describe(tags={"k": HOSTILE})
        made.fork(title=HOSTILE).close()
    for command, times in {
        ("list",): 2,
        ("tree", "evil"): 2,
        ("show", "evil", "--turns", "--events"): 6,  # title, tag, and in turns and events what both have said
        ("request", "evil", "--diff"): 1,
        ("describe", "evil", "--tag", "x=y"): 1,
        ("delete", "evil"): 1,
    }.items():
        done = forkpoint.run(*command)
        shown = done.stdout + done.stderr
        assert not set(shown) & set("\x1b\x07\x9b\u202e\r"), command
        assert shown.count("[bold red]b[/]") == times, command
        assert shown.count(":smile:") == times, command


def test_a_table_is_as_wide_as_the_screen(forkpoint: Program) -> None:
    title = "A title that is much longer than any screen that is only so wide"
    with Conversation(agent("wide"), conversation_id="narrow", store=forkpoint.store, title=title) as made:
        made.run("hi")
    for columns in (40, 60, 100, 200):
        shown = forkpoint.text("list", COLUMNS=str(columns))
        assert max(map(len, shown.splitlines())) <= columns
        assert "narrow" in shown
        assert "A title that " in shown
        assert re.search(r"just now|\d+ (s|min) ago", shown)
        assert (title in shown) is (columns == 200)
        assert ("scripted/echo" in shown) is (columns >= 100)


def test_settings_are_flag_over_environment_over_file_over_default(forkpoint: Program) -> None:
    def conversations(name: str) -> str:
        address = f"sqlite:///{forkpoint.folder / name}.db"
        with Conversation(agent("settings"), conversation_id=name, store=address) as made:
            made.run("hi")
        return address

    flag, environment, file = (conversations(name) for name in ("flag", "environment", "file"))
    forkpoint.settings.parent.mkdir(parents=True)
    forkpoint.settings.write_text(f'store = "{file}"\n')

    def found(*arguments: str, **variables: str) -> list[str]:
        done = forkpoint.run("list", "--json", *arguments, **variables)
        return [item["name"] for item in json.loads(done.stdout)["items"]]

    assert found("--store", flag, FORKPOINT_STORE=environment) == ["flag"]
    assert found(FORKPOINT_STORE=environment) == ["environment"]
    assert found(FORKPOINT_STORE="") == ["file"]
    forkpoint.settings.unlink()
    assert found(FORKPOINT_STORE="") == []

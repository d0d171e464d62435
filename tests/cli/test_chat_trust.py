"""Trust in ``forkpoint run`` and ``forkpoint chat``: said with an option, asked on a terminal, and kept if possible."""

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Program, one_line
from tests.cli.terminal import CTRL_D, Terminal

from forkpoint import Conversation
from forkpoint.testing import Reply, ScriptedCall

ECHO = ("--model", "scripted/echo")
TOLD = "Builds are started with make."
PROMPT = "❯ "
QUESTION = "Do you trust the files in this folder?"


class Desk(Program):
    """The program, and a project that has settings of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.project = folder / "project"
        (self.project / ".forkpoint").mkdir(parents=True)
        self.brings(f'instructions = "{TOLD}"')

    def brings(self, *lines: str) -> None:
        (self.project / ".forkpoint" / "config.toml").write_text("\n".join(lines))

    def says(self, text: str) -> None:
        self.settings.parent.mkdir(parents=True, exist_ok=True)
        self.settings.write_text(text)

    @property
    def kept(self) -> Any:
        projects = tomllib.loads(self.settings.read_text()).get("projects", {}) if self.settings.exists() else {}
        return projects.get(str(self.project), {}).get("trust")

    def instructions(self, name: str) -> str:
        with Conversation.open(name, store=self.store) as conversation:
            assert conversation.agent is not None
            return conversation.agent.instructions


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(Path(os.path.realpath(tmp_path)))


def broken(desk: Desk) -> None:
    desk.says("[projects")


def below_a_file(desk: Desk) -> None:
    desk.settings.parent.parent.write_text("a file, and no folder: not even root can make one below")


# Said with an option.


def test_a_project_that_is_trusted_says_what_it_is_told_and_which_model_is_meant(desk: Desk) -> None:
    desk.brings(f'instructions = "{TOLD}"', 'model = "scripted/echo"')
    desk.text("run", "-c", "one", "--workspace", "project", "--trust", "--instructions", "You help.", "Hello")
    assert (desk.kept, desk.instructions("one")) == ("trusted", f"You help.\n\n{TOLD}")
    desk.text("run", "-c", "two", "--workspace", "project", "Hello")  # it is remembered
    assert desk.instructions("two") == TOLD
    desk.text("run", "-c", "one", "--instructions", "You help.", "Again")  # those that it has


def test_a_project_that_is_undecided_says_nothing(desk: Desk) -> None:
    desk.brings("this is no TOML, and nobody reads it")
    desk.text("run", "-c", "one", "--workspace", "project", *ECHO, "Hello")
    assert (desk.kept, desk.instructions("one")) == (None, "")


def test_a_trusted_project_says_where_conversations_live(desk: Desk) -> None:
    desk.brings('store = "sqlite:///mine.db"')
    done = desk.run("run", "-c", "one", "--workspace", "project", "--trust", *ECHO, "Hello", FORKPOINT_STORE="")
    assert done.returncode == 0, done.stderr
    with Conversation.open("one", store=f"sqlite:///{desk.project / 'mine.db'}", bind=False) as found:
        assert len(found.turns().items) == 1


def test_a_project_that_is_not_trusted_asks_first_before_tools_that_can_do_harm(desk: Desk) -> None:
    desk.script(Reply(calls=(ScriptedCall("restart", '{"build": 1}'),)), Reply("Done."))
    free = ("--agent", "free:agent", "--workspace", "project")
    (desk.folder / "free.py").write_text("import builds\nagent = builds.agent.but(approval='never')\n")
    done = desk.run("run", "-c", "one", *free, "--no-trust", "Restart it")
    assert (done.returncode, desk.kept) == (3, "untrusted")
    assert not (desk.folder / "restarted").exists()


@pytest.mark.parametrize("spoil", [broken, below_a_file])
def test_a_turn_runs_though_trust_cannot_be_kept_and_stderr_says_why(desk: Desk, spoil: Callable[[Desk], None]) -> None:
    spoil(desk)
    done = desk.run("run", "-c", "one", "--workspace", "project", "--trust", *ECHO, "Hello")
    assert done.returncode == 0, done.stderr
    assert one_line(done.stderr).count("could not be kept") == 1
    assert done.stdout.strip() == "You said: Hello"
    assert desk.instructions("one") == TOLD


def test_an_explicit_untrusted_is_not_overridden_and_stderr_says_how_to_change_it(desk: Desk) -> None:
    desk.text("trust", "project", "--revoke")
    said = desk.settings.read_bytes()
    done = desk.run("chat", "one", "--workspace", "project", "--trust", *ECHO, stdin="Hello\n")
    assert done.returncode == 0
    assert f"`forkpoint trust {desk.project}`" in one_line(done.stderr)
    assert (desk.settings.read_bytes(), desk.instructions("one")) == (said, "")
    desk.text("trust", "project")
    desk.text("run", "-c", "two", "--workspace", "project", *ECHO, "Hello")
    assert desk.instructions("two") == TOLD


def test_trust_without_a_workspace_is_refused(desk: Desk) -> None:
    done = desk.run("run", "--trust", *ECHO, "Hello")
    assert done.returncode != 0
    assert "workspace" in done.stderr


# Asked.


def test_on_a_pipe_nobody_is_asked_and_a_line_says_what_undecided_means(desk: Desk) -> None:
    done = desk.run("chat", "one", "--workspace", "project", *ECHO, stdin="Hello\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith(f"{desk.project} is neither trusted nor untrusted: nothing of it is")
    assert QUESTION not in done.stdout
    assert (desk.kept, desk.instructions("one")) == (None, "")
    quiet = desk.run("chat", "two", "--workspace", "project", "--json", *ECHO, stdin="Hello\n")
    assert quiet.stdout.startswith("{")


def test_on_a_terminal_a_chat_asks_until_it_has_an_answer_and_then_never_again(desk: Desk) -> None:
    arguments = ("chat", "one", "--workspace", "project", *ECHO)
    with Terminal(desk, *arguments) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("maybe\n")
        terminal.wait_for(QUESTION)
        terminal.type("\n")
        terminal.wait_for(PROMPT)
        assert terminal.end_with(CTRL_D) == 0
    assert desk.kept is None
    with Terminal(desk, *arguments) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("yes\n")
        terminal.wait_for(PROMPT)
        terminal.type("Hello\n")
        terminal.wait_for("You said: Hello")
        terminal.wait_for(PROMPT)
        assert terminal.end_with(CTRL_D) == 0
    assert desk.instructions("one") == TOLD
    with Terminal(desk, "chat", "--workspace", "project", *ECHO) as terminal:
        terminal.wait_for(PROMPT)
        assert terminal.end_with(CTRL_D) == 0
        assert QUESTION not in terminal.text


def test_an_answer_is_kept_though_nothing_was_said_then(desk: Desk) -> None:
    with Terminal(desk, "chat", "--workspace", "project", *ECHO) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("n\n")
        terminal.wait_for(PROMPT)
        assert terminal.end_with(CTRL_D) == 0
    assert desk.kept == "untrusted"

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
    (desk.folder / "free.py").write_text("import builds\nagent = builds.agent.replace(approval='never')\n")
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
    desk.text("trust", "project", "--yes")
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


def test_only_what_was_shown_is_trusted_and_not_what_is_there_when_the_answer_comes(desk: Desk) -> None:
    guarded(desk, "echo one >> ran\n")
    with Terminal(desk, "chat", "one", "--workspace", "project", *ECHO) as terminal:
        terminal.wait_for(QUESTION)
        guarded(desk, "echo two >> ran\n")
        terminal.type("y\n")
        terminal.wait_for(PROMPT)
        terminal.type("Hello\n")
        terminal.wait_for("+echo two >> ran")
        terminal.wait_for("Approve it? [y/n]")
        terminal.type("n\n")
        terminal.wait_for(PROMPT)
        assert terminal.end_with(CTRL_D) == 0
    assert not (desk.project / "ran").exists()


# What changed.


def guarded(desk: Desk, script: str) -> None:
    desk.brings("[[hooks]]", 'moment = "turn_start"', 'command = ["sh", "guard.sh"]')
    (desk.project / "guard.sh").write_text(script)


def test_a_changed_project_runs_nothing_where_nobody_can_be_asked(desk: Desk) -> None:
    guarded(desk, "echo one >> ran\n")
    desk.text("trust", "project", "--yes")
    desk.text("run", "-c", "one", "--workspace", "project", *ECHO, "Hello")
    guarded(desk, "echo two >> ran\n")
    for arguments in (("run", "-c", "one", "Hello"), ("run", "--workspace", "project", *ECHO, "Hello")):
        done = desk.run(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert "guard.sh changed" in done.stderr
    asked = desk.run("chat", "one", stdin="Hello\n")
    assert f"forkpoint trust {desk.project}" in one_line(asked.stdout)
    assert (desk.project / "ran").read_text() == "one\n"
    digest = desk.text("trust", "project", "--print-digest").strip()
    desk.run("run", "-c", "one", "Hello", FORKPOINT_TRUST_DIGEST=digest)
    assert (desk.project / "ran").read_text() == "one\ntwo\n"


def test_on_a_terminal_the_change_is_shown_and_the_same_message_runs_once_it_is_approved(desk: Desk) -> None:
    guarded(desk, "echo one >> ran\n")
    desk.text("trust", "project", "--yes")
    desk.text("run", "-c", "one", "--workspace", "project", *ECHO, "Hello")
    guarded(desk, "echo two >> ran\n")
    with Terminal(desk, "run", "-c", "one", "Again") as terminal:
        terminal.wait_for("-echo one >> ran")
        terminal.wait_for("+echo two >> ran")
        terminal.wait_for("Approve it? [y/n]")
        assert terminal.end_with("n\n") == 1
    assert (desk.project / "ran").read_text() == "one\n"
    with Terminal(desk, "chat", "one") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Again\n")
        terminal.wait_for("Approve it? [y/n]")
        terminal.type("y\n")
        terminal.wait_for("You said: Again")
        terminal.wait_for(PROMPT)
        assert terminal.end_with(CTRL_D) == 0
    assert (desk.project / "ran").read_text() == "one\ntwo\n"
    with Conversation.open("one", store=desk.store, bind=False) as found:
        assert len(found.turns().items) == 2


def test_a_change_that_cannot_be_kept_as_approved_holds_for_the_command_with_a_warning(desk: Desk) -> None:
    guarded(desk, "echo one >> ran\n")
    desk.text("trust", "project", "--yes")
    guarded(desk, "echo two >> ran\n")
    desk.settings.chmod(0o444)
    said = desk.settings.read_bytes()
    with Terminal(desk, "run", "-c", "one", "--workspace", "project", *ECHO, "Hello") as terminal:
        terminal.wait_for("Approve it? [y/n]")
        assert terminal.end_with("y\n") == 0
        assert "could not be kept" in one_line(terminal.text)
    assert desk.settings.read_bytes() == said
    assert (desk.project / "ran").read_text() == "two\n"


def test_a_call_that_waits_is_decided_again_after_a_change_was_approved(desk: Desk) -> None:
    guarded(desk, "echo one >> ran\n")
    desk.text("trust", "project", "--yes")
    desk.script(Reply(calls=(ScriptedCall("restart", '{"build": 1}'),)), Reply("Done."))
    waits = ("--agent", "builds:agent", "--workspace", "project")
    assert desk.run("run", "-c", "one", *waits, "Restart it").returncode == 3
    guarded(desk, "echo two >> ran\n")
    with Terminal(desk, "chat", "one", "--agent", "builds:agent") as terminal:
        terminal.wait_for("Run restart?")
        terminal.type("y")
        terminal.wait_for("Approve it? [y/n]")
        terminal.type("y\n")
        terminal.wait_for("Run restart?")
        terminal.type("y")
        terminal.wait_for("1 restarted")
        terminal.wait_for("Run restart?")  # the script of the model begins anew in another process
        terminal.type("\n")
        terminal.wait_for(PROMPT)
        assert terminal.end_with(CTRL_D) == 0
    assert (desk.folder / "restarted").read_text() == "1\n"

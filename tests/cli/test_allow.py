"""``--allow``: what the program says is missing, and how it goes on without."""

import shutil
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

from forkpoint.testing import Reply


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """What a program of the user's has left: a conversation ``it`` with one turn, whose folder is gone since."""
    left = Program(tmp_path_factory.mktemp("left"))
    left.script(Reply("Hello."))
    (left.folder / "work").mkdir()
    left.python("with Conversation(builds.agent, conversation_id='it', workspace='work') as made: made.run('hi')")
    (left.folder / "work").rmdir()
    return left


@pytest.fixture
def forkpoint(left: Program, tmp_path: Path) -> Program:
    """The program in another folder, where the tool read_log is no more."""
    for file in filter(Path.is_file, left.folder.glob("store.db*")):
        shutil.copy(file, tmp_path)
    forkpoint = Program(tmp_path)
    forkpoint.script(Reply("Hello."))
    tools = tmp_path / "builds.py"
    tools.write_text(tools.read_text().replace("read_log", "read_logs"))
    return forkpoint


def test_a_conversation_goes_on_without_what_is_allowed_to_be_missing(forkpoint: Program, left: Program) -> None:
    folder = left.folder / "work"
    before = forkpoint.json("show", "it")
    refused = forkpoint.run("run", "-c", "it", "Go on.")
    assert refused.returncode == 1
    for item in (f"workspace {folder}: there is no such folder", "tool read_log: builds:read_log cannot be imported"):
        assert item in one_line(refused.stderr)
    half = forkpoint.run("run", "-c", "it", "Go on.", "--allow", "tools")
    assert half.returncode == 1
    assert "read_log" not in half.stderr
    assert forkpoint.json("show", "it") == before, "it can be read, and nothing has happened"
    done = forkpoint.run("run", "-c", "it", "Go on.", "--allow", "tool:read_log", "--allow", "workspace")
    assert (done.returncode, done.stdout) == (0, "Hello.\n"), done.stderr
    assert forkpoint.run("run", "-c", "it", "Go on.").returncode == 0, "it was recorded"


def test_what_cannot_be_allowed_is_a_mistake_on_the_command_line(forkpoint: Program) -> None:
    for verb in (["run", "-c", "it", "Go on."], ["resume", "it"], ["chat", "it"]):
        done = forkpoint.run(*verb, "--allow", "everything")
        assert done.returncode == 2
        assert "it takes tools, output, approval, workspace, model" in one_line(done.stderr)


def test_every_command_that_runs_something_goes_on_without(forkpoint: Program) -> None:
    may = ("--allow", "tools", "--allow", "workspace")
    asked = forkpoint.run("ask", "it", "By the way?", *may)
    assert (asked.returncode, asked.stdout) == (0, "Hello.\n"), asked.stderr
    talked = forkpoint.run("chat", "it", *may, stdin="Go on.\n")
    assert talked.returncode == 0
    assert "Hello." in talked.stdout
    for verb in ("retry", "resume", "approve", "deny"):  # there is nothing to steer, and that is all that is wrong
        done = forkpoint.run(verb, "it", *may)
        assert (done.returncode, "has no turn to" in done.stderr) == (1, True), done.stderr


def test_a_fork_with_another_model_goes_on_without(forkpoint: Program) -> None:
    assert forkpoint.run("fork", "it").returncode == 0, "as it is, it needs nothing"
    refused = forkpoint.run("fork", "it", "--model", "scripted/echo")
    assert refused.returncode == 1
    assert "tool read_log" in refused.stderr
    other = ("--model", "scripted/echo", "--name", "other", "--workspace", str(forkpoint.folder))
    assert forkpoint.run("fork", "it", *other, "--allow", "tools").returncode == 0
    assert forkpoint.text("run", "-c", "other", "Go on.") == "You said: Go on.\n"


def test_a_conversation_goes_on_with_another_model_if_it_may(forkpoint: Program) -> None:
    may = ("--allow", "tools", "--allow", "workspace")
    assert forkpoint.run("run", "-c", "it", "Go on.", "--model", "scripted/echo", *may).returncode == 2
    done = forkpoint.run("run", "-c", "it", "Go on.", "--model", "scripted/echo", *may, "--allow", "model")
    assert (done.returncode, done.stdout) == (0, "You said: Go on.\n"), done.stderr
    assert forkpoint.text("run", "-c", "it", "And on.") == "You said: And on.\n"


def test_a_new_conversation_misses_nothing(forkpoint: Program) -> None:
    refused = forkpoint.run("run", "Hello.", "--model", "scripted/echo", "--allow", "tools")
    assert refused.returncode == 2
    assert "name one with --conversation" in refused.stderr

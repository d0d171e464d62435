"""``run --allow-tool``: calls that nobody is asked about in one run."""

import json
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

from forkpoint import Conversation
from forkpoint.events import ApprovalGiven
from forkpoint.testing import Reply, ScriptedCall

RESTART = ScriptedCall("restart", '{"build": 1}', "call_1")


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_calls_of_an_allowed_tool_run_and_each_approval_is_recorded(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(RESTART,)), Reply(calls=(RESTART, RESTART)), Reply("Done."))
    said = forkpoint.text("run", "Restart it.", "-c", "b", "--agent", "builds:agent", "--allow-tool", "restart")
    assert said == "Done.\n"
    assert (forkpoint.folder / "restarted").read_text() == "1\n" * 3
    with Conversation.open("b", store=forkpoint.store, bind=False) as this:
        given = [event.body for event in this.events() if isinstance(event.body, ApprovalGiven)]
        assert [each.by for each in given] == ["--allow-tool restart"] * 3
        assert this.approvals() == ()


def test_it_holds_for_this_run_only_and_for_this_tool_only(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(RESTART,)), Reply("Done."))
    arguments = ("-c", "b", "--agent", "builds:agent")
    assert forkpoint.run("run", "Go.", *arguments, "--allow-tool", "read_log").returncode == 3
    forkpoint.text("discard", "b")
    assert forkpoint.run("run", "Go.", *arguments, "--allow-tool", "restart").returncode == 0
    assert forkpoint.run("run", "Go.", *arguments).returncode == 3


def test_a_shell_is_allowed_by_the_first_words_of_its_commands(forkpoint: Program) -> None:
    def shell(command: str) -> ScriptedCall:
        return ScriptedCall("shell", json.dumps({"command": command, "timeout": 60}))

    arguments = ("--agent", "coder", "--model", "scripted/script.json", "--allow-tool", "shell=echo one")
    forkpoint.script(Reply(calls=(shell("echo one two"),)), Reply("Done."))
    assert forkpoint.text("run", "Go.", *arguments) == "Done.\n"
    for other in ("echo two", "echo one; echo two", "echo one > file"):
        forkpoint.script(Reply(calls=(shell(other),)), Reply("Done."))
        assert forkpoint.run("run", "Go.", *arguments).returncode == 3, other
    forkpoint.script(Reply(calls=(shell("echo one"),)), Reply("Done."))
    assert forkpoint.run("run", "Go.", *arguments[:4], "--allow-tool", "shell").returncode == 3


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("shell=bash", "runs whatever it is given"),
        ("shell=git", "does many things"),
        ("shell=", "it must be plain words"),
        ("shell=echo $HOME", "it must be plain words"),
        ("=x", "names no tool"),
    ],
)
def test_a_rule_that_would_allow_too_much_is_refused(forkpoint: Program, rule: str, why: str) -> None:
    done = forkpoint.run("run", "Go.", "--model", "scripted/echo", "--allow-tool", rule)
    assert done.returncode == 2
    assert why in one_line(done.stderr)

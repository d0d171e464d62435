"""``forkpoint agents``: the sub-agents of a conversation, from a shell."""

import json
import shutil
from pathlib import Path

import pytest
import typer.main
from tests.cli.program import Program, one_line

from forkpoint.cli.app import app
from forkpoint.testing import Fault, Reply, ScriptedCall

TEAM = """
from forkpoint import Agent, Role, SubAgents
from forkpoint.llm import LLM, Retries
from builds import restart

llm = LLM("scripted/script.json", retries=Retries(attempts=1))
reader = Agent(llm, name="reader", instructions="You read.")
mine = Agent(llm, name="mine", tools=[restart])
lead = Agent(
    "scripted/echo",
    approval="risky",
    sub_agents=SubAgents(agents={"reader": reader}, roles={"judge": Role(instructions="You judge.")}),
)
"""
READER = ("--agent", "reader", "--nickname", "scout")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a conversation in it, and its agent."""
    program = Program(tmp_path_factory.mktemp("begun"))
    program.script(Reply("The disk was full."))
    (program.folder / "team.py").write_text(TEAM)
    program.text("run", "-c", "build-1234", "--agent", "team:lead", "Hello")
    return program.folder


@pytest.fixture
def forkpoint(begun: Path, tmp_path: Path) -> Program:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    return Program(tmp_path)


def test_a_task_is_given_and_its_answer_is_on_stdout(forkpoint: Program) -> None:
    done = forkpoint.run("agents", "spawn", "build-1234", "Read the log.", *READER)
    assert (done.returncode, done.stdout) == (0, "The disk was full.\n"), done.stderr
    assert "committed" in done.stderr
    listed = forkpoint.json("agents", "build-1234")
    (member,) = listed["items"]
    assert (member["path"], member["status"], member["answer"]) == ("/root/scout", "idle", "The disk was full.")
    shown = forkpoint.json("show", member["conversation"])["conversation"]
    assert (shown["parent"], shown["nickname"]) == (listed["conversation"], "scout")


def test_one_that_is_not_to_run_yet_is_made_and_listed_on_one_line(forkpoint: Program) -> None:
    none = forkpoint.run("agents", "build-1234")
    assert (none.returncode, none.stdout, one_line(none.stderr)) == (0, "", "No sub-agents.")
    id, path = forkpoint.text(
        "agents", "spawn", "build-1234", "Judge\nthis \x1b[31m", "--role", "judge", "--no-run"
    ).split()
    assert path == "/root/judge"
    words = ("agents", "spawn", "build-1234", "Judge.", "--role", "judge", "--no-run", "--title", "T", "--tag", "a=b")
    made = forkpoint.json(*words)
    assert (made["path"], made["tags"], made["events"]) == ("/root/judge-2", {"a": "b", "title": "T"}, 0)
    head, first, second = forkpoint.text("agents", "list", "build-1234").splitlines()
    assert head.split() == ["agent", "role", "status", "task", "said", "conversation"]
    assert (first.split()[:5], first.split()[-1]) == (["/root/judge", "judge", "idle", "Judge", "this"], id)
    assert "\x1b" not in first
    assert second.split()[-1] == made["id"]


def test_a_sub_agent_is_told_more_waited_for_and_closed(forkpoint: Program) -> None:
    forkpoint.text("agents", "spawn", "build-1234", "Read.", *READER, "--no-run")
    waited = forkpoint.run("agents", "wait", "build-1234", "scout")
    assert (waited.returncode, waited.stdout) == (1, "")
    assert "has run nothing yet" in waited.stderr
    assert forkpoint.text("agents", "send", "build-1234", "/root/scout", "Why?") == "The disk was full.\n"
    assert forkpoint.text("agents", "wait", "build-1234", "scout", "--timeout", "5") == "The disk was full.\n"
    turn = forkpoint.json("agents", "wait", "build-1234", "scout")
    assert (turn["outcome"], turn["text"]) == ("committed", "The disk was full.")
    assert forkpoint.text("agents", "close", "build-1234", "scout") == "Closed /root/scout.\n"
    refused = forkpoint.run("agents", "send", "build-1234", "scout", "And now?")
    assert refused.returncode == 1
    assert "closed" in refused.stderr


def test_an_agent_of_ones_own_code_asks_whenever_the_parent_would(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(ScriptedCall("restart", '{"build": 7}', "call_a"),)), Reply("Done."))
    done = forkpoint.run("agents", "spawn", "build-1234", "Restart 7.", "--agent", "team:mine", "--nickname", "doer")
    assert done.returncode == 3, done.stderr
    (member,) = forkpoint.json("agents", "build-1234")["items"]
    assert member["status"] == "awaiting_approval"
    assert f"forkpoint approve {member['conversation']}" in one_line(done.stderr)
    waits = forkpoint.run("agents", "wait", "build-1234", "doer")
    assert waits.returncode == 3
    assert "restart(build=7) waits for an approval" in waits.stdout
    assert not (forkpoint.folder / "restarted").exists()


def test_a_task_that_fails_is_exit_status_1(forkpoint: Program) -> None:
    forkpoint.script(Reply("", fault=Fault("overloaded")))
    done = forkpoint.run("agents", "spawn", "build-1234", "Read.", *READER)
    assert done.returncode == 1
    assert "did not commit" in done.stderr
    (member,) = forkpoint.json("agents", "build-1234")["items"]
    assert (member["status"], member["answer"]) == ("failed", None)


def test_with_a_key_it_is_done_once(forkpoint: Program) -> None:
    words = ("agents", "spawn", "build-1234", "Read.", *READER, "--key", "k")
    first, again = forkpoint.json(*words), forkpoint.json(*words)
    assert (first["id"], first["conversation"]) == (again["id"], again["conversation"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("build-9999",), "not_found"),
        (("spawn", "build-1234", "Read.", "--role", "cook"), "spawn_refused"),
        (("spawn", "build-1234", "Read.", "--agent", "team:nobody"), "bad_agent"),
        (("wait", "build-1234", "nobody"), "no_such_agent"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_a_code(forkpoint: Program, words: tuple[str, ...], code: str) -> None:
    done = forkpoint.run("agents", *words, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["error"]["code"] == code


def test_each_of_them_has_an_example_in_its_help() -> None:
    group = typer.main.get_group(app).commands["agents"]
    commands = getattr(group, "commands", {})
    assert set(commands) == {"list", "spawn", "send", "wait", "close"}
    commands = {name: command.imported for name, command in commands.items()}
    for command in (group, *commands.values()):
        assert "forkpoint agents" in (command.help or "").partition("Example")[2], command.name
    for command in commands.values():
        assert {option for one in command.params for option in one.opts} >= {"--json", "--store"}
        assert all(one.help for one in command.params)

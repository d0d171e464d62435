"""A machine without the system library that llama.cpp needs: root gets it installed, others are told how.

The engine, the package manager and who the user is are a test's own.
"""

import json
import subprocess
from pathlib import Path

import pytest
from tests.cli.program import Program
from tests.cli.terminal import Terminal

from forkpoint import Conversation

COMMAND = "apt-get update; apt-get install -y --no-install-recommends libgomp1"
LACKS = "raise ImportError('libgomp.so.1: cannot open shared object file: No such file or directory')\n"


class Machine(Program):
    """A machine whose package manager brings the library, unless it is broken."""

    def __init__(self, folder: Path, *, root: bool) -> None:
        super().__init__(folder)
        self.engine = folder / "python" / "xllamacpp" / "__init__.py"
        self.engine.parent.mkdir(parents=True)
        self.engine.write_text(LACKS)
        (folder / "python" / "sitecustomize.py").write_text(f"import os\nos.geteuid = lambda: {0 if root else 1000}\n")
        (folder / "bin").mkdir()
        # Without lists it knows no package, as in an image.
        lists = folder / "lists"
        works = "CommonParams = Server = None"
        self.apt(f'[ "$1" = update ] && : >{lists}; [ -e {lists} ] && echo "{works}" >{self.engine}')
        self.environment |= {"PYTHONPATH": str(folder / "python"), "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"  # the engine is mended within the second

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        """Runs it in a process of its own, which looks at who the user is when it starts."""
        with self.start(*arguments, **environment) as process:
            out, err = process.communicate(stdin)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def apt(self, does: str) -> None:
        (self.folder / "bin" / "apt-get").write_text(f'#!/bin/sh\necho "$@" >>{self.folder}/said\n{does}\n')
        (self.folder / "bin" / "apt-get").chmod(0o755)

    @property
    def said(self) -> list[str]:
        """What the package manager was told to do."""
        path = self.folder / "said"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def root(tmp_path: Path) -> Machine:
    return Machine(tmp_path, root=True)


@pytest.fixture
def user(tmp_path: Path) -> Machine:
    return Machine(tmp_path, root=False)


def test_in_a_pipe_root_gets_it_without_a_question(root: Machine) -> None:
    done = root.run("local", "fetch", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fetched"] is False
    assert done.stderr == f"installing libgomp.so.1, which local/smollm2 needs: {COMMAND}\n"
    install = "install -y --no-install-recommends libgomp1"
    assert root.said == [install, "update", install]
    assert root.run("local", "fetch").stderr == "", "it is there now"


def test_others_are_told_the_one_command_and_nothing_is_tried(user: Machine) -> None:
    (user.folder / "bin" / "sudo").touch(mode=0o755)
    for arguments in (("demo",), ("local", "fetch", "--yes"), ("run", "Hello."), ("serve", "--port", "0")):
        done = user.run(*arguments)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert done.stderr == (
            "error: local/smollm2 needs the system library libgomp.so.1, which is not installed. "
            f"Install it with: sudo sh -c '{COMMAND}', and try again.\n"
        )
    assert user.said == []


def test_somebody_at_a_terminal_is_asked_first(root: Machine) -> None:
    with Terminal(root, "local", "fetch") as terminal:
        terminal.wait_for(f"Install it with: {COMMAND}? [Y/n]:")
        terminal.type("n\n")
        assert terminal.end() == 1
        assert root.said == []
    with Terminal(root, "local", "fetch") as terminal:
        terminal.wait_for("[Y/n]:")
        terminal.type("\n")
        terminal.wait_for("is here already")
        assert terminal.end() == 0
        assert root.said != []


def test_with_yes_nobody_is_asked(root: Machine) -> None:
    with Terminal(root, "local", "fetch", "--yes") as terminal:
        terminal.wait_for("is here already")
        assert terminal.end() == 0
        assert "[Y/n]" not in terminal.text


def test_an_installation_that_fails_says_why_and_what_is_still_missing(root: Machine) -> None:
    root.apt("echo 'E: no network' >&2; exit 100")
    done = root.run("local", "fetch")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[1] == "it could not be installed: E: no network"
    assert lines[2].startswith("error: local/smollm2 needs the system library libgomp.so.1")


def test_an_installation_that_changes_nothing_is_not_tried_forever(root: Machine) -> None:
    root.apt("exit 0")
    done = root.run("local", "fetch")
    assert done.returncode == 1
    assert "error: local/smollm2 needs the system library libgomp.so.1" in done.stderr
    assert len(root.said) == 1


@pytest.mark.parametrize("command", [("ask", "it", "And now?"), ("condense", "it")])
def test_every_command_that_asks_the_model_brings_it(root: Machine, command: tuple[str, ...]) -> None:
    with Conversation("local/smollm2", conversation_id="it", store=root.store) as made:
        made.update_state({"a": 1})
    assert "installing libgomp.so.1" in root.run(*command).stderr
    assert root.said != []


def test_a_model_that_runs_elsewhere_needs_no_library(user: Machine) -> None:
    assert user.text("run", "Hello.", "--model", "scripted/echo", "--quiet") == "You said: Hello.\n"


@pytest.mark.parametrize("arguments", [("doctor",), ("doctor", "--model", "local/smollm2")])
def test_doctor_loads_the_engine_and_changes_nothing(root: Machine, arguments: tuple[str, ...]) -> None:
    done = root.run(*arguments, "--json")
    assert done.returncode == 1
    states = {found["what"]: (found["state"], found["said"]) for found in json.loads(done.stdout)["findings"]}
    for what in ("default model", "local model"):
        assert states[what][0] == "bad"
        assert COMMAND in states[what][1]
    assert (states["server"][0], states["MCP"][0]) == ("good", "good")
    assert root.said == []


def test_local_status_is_ready_only_if_the_engine_loads(root: Machine) -> None:
    document = json.loads(root.run("local", "status", "--json").stdout)
    assert (document["ready"], document["extra"], document["checksum"]) == (False, True, True)
    assert "libgomp.so.1" in document["problem"]
    assert COMMAND in " ".join(root.text("local", "status").split())
    root.engine.write_text("CommonParams = Server = None\n")
    document = json.loads(root.run("local", "status", "--json").stdout)
    assert (document["ready"], document["problem"]) == (True, None)

"""The coder at work in a real git repository, with a model whose answers are chosen.

From a failing test to two branches, each with files of its own; and what a hostile model can make it do.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conversation.support.agents import asks, call, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.team import obedient, orders, spawn, told, wait

from forkpoint import Agent, AsyncConversation, Limits, TurnFailed
from forkpoint.agent.coder import coder
from forkpoint.testing import Fault, Reply

pytestmark = pytest.mark.anyio

CALC = "def add(a, b):\n    return a - b\n"
TEST = "from calc import add\n\nassert add(1, 2) == 3, add(1, 2)\nprint('all is well')\n"
RUN = f"{shlex.quote(sys.executable)} test_calc.py"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a failing test; worktrees are made in the test's own folder."""
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(tmp_path / "workspaces"))
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "calc.py").write_text(CALC)
    (folder / "test_calc.py").write_text(TEST)
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "begin")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout


def worker(*replies: Reply | str, **changes: Any) -> Agent:
    """The coder with these answers, where nobody is asked."""
    return coder(scripted(list(replies)), approval="never", **changes)


def shell(command: str, id: str | None = None, **how: Any) -> Reply:
    return asks(call("shell", id, command=command, **how))


async def test_a_failing_test_is_mended_resumed_and_forked_and_each_branch_has_its_own_files(
    home: Home, repository: Path
) -> None:
    agent = worker(
        shell(f"export PYTHONPATH=$PWD; {RUN}"),
        asks(call("search_files", pattern="def add"), call("read_file", path="calc.py")),
        asks(call("edit_file", path="calc.py", old="a - b", new="a + b")),
        Reply("cut", fault=Fault("overloaded")),
        shell(RUN),
        "add() subtracted. It adds now, and the test passes.",
        # The fork: another way to write it.
        asks(call("edit_file", path="calc.py", old="a + b", new="sum((a, b))")),
        asks(call("write_file", path="notes/why.md", content="It reads better.\n")),
        shell(f"{RUN} && echo $PYTHONPATH"),
        "It sums.",
        # The source, which has heard nothing of that.
        shell("cat calc.py; ls"),
        asks(call("edit_file", path="calc.py", old="a + b", new="b + a")),
        shell(RUN),
        "Turned round.",
    )
    async with AsyncConversation(home.agent(agent), store=home.store, workspace=repository) as source:
        with pytest.raises(TurnFailed) as failed:
            await source.run("A test fails. Mend it.")
        assert "AssertionError: -1\n[exit code 1]" in failed.value.turn.calls[0].result
        assert "a + b" in (repository / "calc.py").read_text(), "what a tool did stays done"
        assert await source.events() == []

        turn = await source.resume()
        assert turn.text == "add() subtracted. It adds now, and the test passes."
        assert [made.tool for made in turn.calls] == ["shell", "search_files", "read_file", "edit_file", "shell"]
        assert {made.status for made in turn.calls} == {"done"}
        assert "all is well\n[exit code 0]" in (turn.calls[-1].result or "")

        fork = await source.fork(title="Another way", workspace="worktree")
        where = Path((await fork.info()).workspace or "")
        assert where != repository
        assert git(where, "branch", "--show-current").startswith("forkpoint/")
        other = await fork.run("Is there another way to write it?")
        assert "all is well" in (other.calls[-1].result or "")
        assert f"{where}\n[exit code 0]" in (other.calls[-1].result or ""), "its shell means its own folder"

        mine = await source.run("Turn it round.")
        assert "sum" not in (mine.calls[0].result or "")
        assert "notes" not in (mine.calls[0].result or "")
        assert "all is well" in (mine.calls[-1].result or "")

        assert (repository / "calc.py").read_text() == "def add(a, b):\n    return b + a\n"
        assert (where / "calc.py").read_text() == "def add(a, b):\n    return sum((a, b))\n"
        assert git(repository, "status", "--porcelain") == " M calc.py\n"
        assert git(where, "status", "--porcelain", "-uall") == " M calc.py\n?? notes/why.md\n"
        assert git(repository, "show", "main:calc.py") == CALC, "nobody has committed anything"
        assert (await AsyncConversation.verify_store(store=home.store)).ok


async def test_it_waits_for_an_approval_and_goes_on_with_it(repository: Path) -> None:
    agent = coder(scripted([asks(call("edit_file", "e", path="calc.py", old="a - b", new="a + b")), "Mended."]))
    async with AsyncConversation(agent, store="memory:", workspace=repository) as conversation:
        turn = await conversation.run("Mend it.")
        assert (turn.outcome, [waiting.id for waiting in turn.waiting]) == ("awaiting_approval", ["e"])
        assert (repository / "calc.py").read_text() == CALC
        assert (await conversation.approve()).text == "Mended."
        assert "a + b" in (repository / "calc.py").read_text()


async def test_an_explorer_looks_in_the_same_folder(repository: Path) -> None:
    agent = coder(scripted(obedient), approval="never")
    look = orders([call("search_files", pattern="def add")])
    async with AsyncConversation(agent, store="memory:", workspace=repository) as conversation:
        (done,) = told((await conversation.run(orders([spawn(look, role="explorer")], [wait()]))).text)
        assert (done["agent"], done["status"]) == ("explorer", "done")
        assert "calc.py:1: def add(a, b):" in done["answer"]


# What is hostile.


MARK = f"31536000.{os.getpid()}"  # seconds that a process is to sleep, and what it is found by

HOSTILE = {
    "prints": call("shell", "prints", command="head -c 1000000000 /dev/zero", timeout=60),
    "endless": call("shell", "endless", command=f"echo begun; sleep {MARK}", timeout=1),
    "forks": call("shell", "forks", command=f"for i in $(seq 40); do sleep {MARK} & done; echo forked"),
    "deaf": call("shell", "deaf", command=f"trap '' TERM INT HUP QUIT; while :; do sleep {MARK}; done", timeout=1),
    "climbs": call("read_file", "climbs", path="../outside.txt"),
    "absolute": call("read_file", "absolute", path="/etc/passwd"),
    "link": call("write_file", "link", path="link/outside.txt", content="mine"),
    "rewrites": call("write_file", "rewrites", path=".git/hooks/pre-commit", content="#!/bin/sh\n"),
    "nonsense": call("edit_file", "nonsense", path="calc.py", old="", new="x"),
}


async def test_whatever_is_hostile_ends_in_a_clear_result_within_its_limit_and_the_turn_goes_on(
    repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    (repository / "link").symlink_to(tmp_path)
    agent = worker(asks(*HOSTILE.values()), "I am still here.")
    began = time.monotonic()
    async with AsyncConversation(agent, store="memory:", workspace=repository) as conversation:
        turn = await conversation.run("Do your worst.")
        assert turn.text == "I am still here."
    assert time.monotonic() - began < 30
    said = {made.id: made.result or "" for made in turn.calls}
    status = {made.id: made.status for made in turn.calls}
    assert "1,000,000,000" in said["prints"], said["prints"][-400:]
    assert len(said["prints"]) < 100_000
    kept = list((repository / ".forkpoint" / "output").glob("*"))
    assert sum(one.stat().st_size for one in kept) < 20_000_000
    assert status["endless"] == status["deaf"] == "failed"
    assert "did not end within 1 s" in said["endless"]
    assert "did not end within 1 s" in said["deaf"]
    assert said["endless"].find("begun") >= 0, "what it had printed is shown"
    assert "Processes that it had left in the background were ended." in said["forks"]
    assert not [line for line in commands() if MARK in line]
    for name in ("climbs", "absolute", "link", "rewrites", "nonsense"):
        assert status[name] == "failed", said[name]
    assert "secret" not in str(said)
    assert (tmp_path / "outside.txt").read_text() == "secret"
    assert not (repository / ".git" / "hooks" / "pre-commit").exists()


async def test_what_a_turn_s_clock_stops_is_ended_with_all_that_it_had_started(repository: Path) -> None:
    limits = Limits(seconds=0.7, at_limit="stop")
    agent = worker(shell(f"sleep {MARK} & sleep {MARK}", "s", timeout=3600), "It took too long.", limits=limits)
    async with AsyncConversation(agent, store="memory:", workspace=repository) as conversation:
        turn = await conversation.run("Wait.")
        assert (turn.outcome, turn.stopped) == ("committed", "0.7 seconds")
        assert [made.status for made in turn.calls] == ["unknown"]
        assert not [line for line in commands() if MARK in line]
        assert (await conversation.run("Well?")).text == "It took too long."


async def test_a_model_that_goes_in_circles_is_stopped(repository: Path) -> None:
    agent = worker(*[shell("true")] * 20)
    async with AsyncConversation(agent, store="memory:", workspace=repository) as conversation:
        with pytest.raises(TurnFailed, match="identical calls in a row") as failed:
            await conversation.run("Go.")
        assert [made.status for made in failed.value.turn.calls] == ["done"] * 8 + ["not_run"]


def commands() -> list[str]:
    """What runs on this machine, as command lines."""
    if os.path.isdir("/proc/self"):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue  # it has just ended
        return found
    return subprocess.run(["ps", "-axo", "command"], check=True, capture_output=True, text=True).stdout.splitlines()

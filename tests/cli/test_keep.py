"""``forkpoint keep`` and ``forkpoint rename``."""

from pathlib import Path

import pytest
from tests.cli.program import Program

from forkpoint import Conversation


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    made = Program(tmp_path)
    with Conversation("scripted/echo", conversation_id="build", store=made.store) as build:
        first = build.run("one")
        build.run("two")
        with build.fork(at=first, conversation_id="second-try") as branch:
            branch.run("other")
    return made


def answers(forkpoint: Program, name: str) -> list[str]:
    return [turn["text"] for turn in forkpoint.json("show", name, "--turns")["turns"]]


def test_a_branch_is_kept_and_the_command_that_undoes_it_is_told(forkpoint: Program) -> None:
    told = forkpoint.text("keep", "build", "second-try").splitlines()
    assert told[0] == "build has the 7 events of second-try now, and its agent and cache key."
    assert told[1].startswith("What stood there (7 events) is kept as ")
    assert answers(forkpoint, "build") == ["You said: one", "You said: other"]
    undo = told[2].removeprefix("To undo it: forkpoint ").split()
    assert undo == ["keep", "build", told[1].split()[-1]]
    forkpoint.text(*undo)
    assert answers(forkpoint, "build") == ["You said: one", "You said: two"]


def test_a_branch_that_only_went_on_is_told_too_and_json_has_it_all(forkpoint: Program) -> None:
    forkpoint.text("fork", "build", "--name", "ahead")
    assert "Nothing was changed" in forkpoint.text("keep", "build", "ahead")
    forkpoint.text("run", "three", "--conversation", "ahead")
    told = forkpoint.text("keep", "build", "ahead").splitlines()
    assert told[1] == "ahead went on from where build stood, so nothing had to be set aside."
    back = told[2].removeprefix("To go back there: forkpoint ").split()
    forkpoint.text(*back)
    assert answers(forkpoint, "build") == ["You said: one", "You said: two"]
    kept = forkpoint.json("keep", "build", "second-try")
    assert (kept["conversation"]["name"], kept["branch"]["name"]) == ("build", "second-try")
    assert kept["aside"]["lineage"]["kind"] == "aside"


def test_a_stranger_is_refused_with_what_to_do(forkpoint: Program) -> None:
    forkpoint.text("run", "hello", "--conversation", "stranger", "--model", "scripted/echo")
    refused = forkpoint.run("keep", "build", "stranger").stderr
    assert "is not of the same family. Nothing was changed." in refused
    assert "forkpoint tree" in refused


def test_a_conversation_gets_another_name(forkpoint: Program) -> None:
    assert forkpoint.text("rename", "build", "build-old") == "build is called build-old now.\n"
    assert forkpoint.json("rename", "second-try", "build")["name"] == "build"
    assert answers(forkpoint, "build") == ["You said: one", "You said: other"]
    assert "exists already" in forkpoint.run("rename", "build-old", "build").stderr

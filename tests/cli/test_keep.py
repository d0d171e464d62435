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


def test_the_same_command_with_the_same_key_happens_once(forkpoint: Program) -> None:
    first, second = (forkpoint.json("fork", "build", "--key", "k1")["id"] for _ in range(2))
    assert first == second
    with Conversation.open("build", store=forkpoint.store, bind=False) as build:
        last = build.last_turn()
        assert last is not None
    back = [forkpoint.json("rewind", "build", "--before", last.id, "--key", "k2")["aside"]["id"] for _ in range(2)]
    assert back[0] == back[1]
    kept = [forkpoint.json("keep", "build", "second-try", "--key", "k3") for _ in range(2)]
    assert kept[0]["conversation"]["revision"] == kept[1]["conversation"]["revision"]
    refused = forkpoint.run("rewind", "build", "--turns", "1", "--key", "k4")
    assert refused.returncode == 2
    assert "--at or --before" in " ".join(refused.stderr.split())


def test_an_error_speaks_of_a_conversation_by_its_name(forkpoint: Program) -> None:
    told = " ".join(forkpoint.run("cancel", "build").stderr.split())
    assert "build" in told
    with Conversation.open("build", store=forkpoint.store, bind=False) as build:
        assert build.id not in told


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

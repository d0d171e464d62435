"""``run --stream-json``: each update of a turn on a line, and at the end how it ended."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Program

from forkpoint.testing import Fault, Reply, ScriptedCall

READ = ScriptedCall("read_log", '{"build": 1234}')


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def streamed(forkpoint: Program, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    done = forkpoint.run("run", *arguments, "--stream-json")
    assert done.returncode == status, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_line_says_what_happened_and_the_last_how_the_turn_ended(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(READ,), reasoning="Hm."), Reply("Full."))
    lines = streamed(forkpoint, "Why?", "-c", "build", "--agent", "builds:agent")
    begun, last = lines[0], lines[-1]
    assert (begun["type"], last["type"]) == ("turn_started", "turn")
    assert {line["turn"] for line in lines[1:-1]} == {begun["id"]} == {last["id"]}
    kinds = [line["type"] for line in lines]
    assert kinds.index("reasoning") < kinds.index("call_started") < kinds.index("call_ended") < kinds.index("text")
    assert "".join(line["text"] for line in lines if line["type"] == "text") == "Full." == last["text"]
    assert (last["outcome"], last["name"], last["conversation"]) == ("committed", "build", begun["conversation"])


def test_a_turn_that_fails_ends_with_its_outcome_and_its_error(forkpoint: Program) -> None:
    forkpoint.script(Reply(fault=Fault("refused")))
    last = streamed(forkpoint, "Why?", "--agent", "builds:agent", status=1)[-1]
    assert (last["type"], last["outcome"], last["error"]["code"]) == ("turn", "failed", "model_refused")


def test_an_error_before_any_turn_is_a_line_too(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(ScriptedCall("restart", '{"build": 1}'),)))
    waits = streamed(forkpoint, "Restart it.", "-c", "build", "--agent", "builds:agent", status=3)
    assert (waits[-1]["outcome"], len(waits[-1]["waiting"])) == ("awaiting_approval", 1)
    (error,) = streamed(forkpoint, "Hello?", "-c", "build", status=1)
    assert (error["type"], error["error"]["code"]) == ("error", "turn_open")
    assert streamed(forkpoint, "Hello?", "--agent", "nowhere:agent", status=1)[0]["error"]["code"] == "bad_agent"


def test_one_key_has_one_effect_and_its_turn_is_the_last_line(forkpoint: Program) -> None:
    first = streamed(forkpoint, "hello", "-c", "talk", "--key", "k", "--model", "scripted/echo")[-1]
    joined, again = streamed(forkpoint, "hello", "-c", "talk", "--key", "k")
    assert (joined["type"], joined["id"]) == ("turn_joined", first["id"])
    assert (again["id"], again["outcome"]) == (first["id"], "committed")


def test_only_one_form_of_output_can_be_asked_for(forkpoint: Program) -> None:
    for other in ("--json", "--extract"):
        assert forkpoint.run("run", "hello", "--stream-json", other).returncode == 2

"""The checker of `benchmarks.cluster` finds what it is there to find; and a short run of the whole is good."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cluster import workload
from benchmarks.cluster.caller import Caller
from benchmarks.cluster.checker import Checker
from benchmarks.cluster.ledger import Ledger, Talk

FIRST, SECOND = workload.say("a-1"), workload.use_tool("a-2", 2)


def event(turn: str, kind: str, text: str) -> dict[str, Any]:
    return {"turn": turn, "kind": kind, "body": {"kind": kind, "parts": [{"type": "text", "text": text}]}}


def whole(turn: str, text: str) -> list[dict[str, Any]]:
    return [event(turn, "user_message", text), event(turn, "assistant_message", workload.answer_to(text))]


def checker_of(ledger: Ledger, folder: Path) -> Checker:
    return Checker(Caller(["http://127.0.0.1:1"], random.Random(1), ledger, 1), ledger, folder / "notes")


GOOD = [*whole("t1", FIRST), *whole("t2", SECOND)]


@pytest.mark.parametrize(
    ("events", "kinds"),
    [
        (GOOD, []),
        (GOOD[:2], ["lost"]),
        ([], ["lost", "lost"]),
        ([*GOOD, *whole("t3", FIRST)], ["doubled", "doubled"]),
        ([*GOOD[:2], *whole("t3", SECOND)], ["doubled"]),
        (GOOD[:3], ["half"]),
        ([*GOOD, *whole("t3", workload.say("b-1"))], ["made up"]),
        ([*GOOD[2:], *GOOD[:2]], ["made up"]),
    ],
    ids=["good", "one lost", "all lost", "twice", "another turn", "half", "made up", "another order"],
)
def test_the_checker_finds_what_is_not_as_it_was_acknowledged(
    tmp_path: Path, events: list[dict[str, Any]], kinds: list[str]
) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    talk = Talk("c1")
    ledger.committed(talk, FIRST, "t1", "json")
    ledger.committed(talk, SECOND, "t2", "json")
    checker_of(ledger, tmp_path).compare(talk, events)
    ledger.close()
    assert [finding.kind for finding in ledger.findings] == kinds, ledger.findings


def test_the_checker_finds_a_tool_that_ran_more_often_than_its_turn_was_begun(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    (tmp_path / "notes").write_text("a-2-0\na-2-1\na-2-1\n")
    checker = checker_of(ledger, tmp_path)
    checker.tries["a-2"] = 1
    checker.compare_tools()
    ledger.close()
    assert [finding.what for finding in ledger.findings] == ["the tool that notes 'a-2-1' ran 2 times in 1 tries"]


def test_the_command_says_what_it_found_and_keeps_its_logs(tmp_path: Path) -> None:
    how = ["--store", "sqlite", "--nodes", "2", "--clients", "4", "--minutes", "0.05", "--only", "kill", "--seed", "1"]
    command = [sys.executable, "-m", "benchmarks.cluster", *how, "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost, doubled or half" in (tmp_path / "report.md").read_text()
    assert {"node1.log", "node2.log", "ledger.jsonl"} <= {path.name for path in tmp_path.iterdir()}

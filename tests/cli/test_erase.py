"""``forkpoint erase``, ``erasures``, ``hold`` and ``release``."""

import json
import sys
from pathlib import Path

import pytest
from tests.cli.program import Program, agent, one_line

from forkpoint import Conversation
from forkpoint.testing import Reply

SECRET = "Ann-Kathrin-4711"


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def found_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.db*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def build(forkpoint: Program, script: str) -> str:
    """A conversation with a fork. Gives the id of its first turn."""
    speaker = agent(script, Reply(f"Hello {SECRET}"), Reply("Fine."))
    with Conversation(speaker, conversation_id="ann", store=forkpoint.store, tags={"who": "ann"}) as made:
        turn = made.run(f"I am {SECRET}")
        made.run("How are you?")
        made.fork(conversation_id="fork").close()
    return turn.id


def test_erase_shows_what_would_go_and_acts_only_if_it_may(forkpoint: Program, tmp_path: Path) -> None:
    turn = build(forkpoint, "erase_asks")
    what = ("erase", "ann", "--turn", turn, "--reason", "a request")
    refused = forkpoint.run(*what)
    assert refused.returncode == 2
    assert "there is nobody to ask; say --yes" in one_line(refused.stderr)
    shown = forkpoint.text(*what, "--dry-run")
    assert "changes  2 conversations: ann, fork" in shown
    assert found_in(tmp_path)
    nowhere = forkpoint.run(*what, "--yes", "-o", str(tmp_path / "nowhere" / "receipts.jsonl"))
    assert nowhere.returncode == 2
    assert "No such file or directory" in one_line(nowhere.stderr)
    assert found_in(tmp_path), "nothing is erased without a place for the receipt"
    done = forkpoint.run(*what, "--yes", "-o", str(tmp_path / "receipts.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "Out of reach: backups" in one_line(done.stderr)
    assert found_in(tmp_path) == []
    (line,) = (tmp_path / "receipts.jsonl").read_text().splitlines()
    assert (tmp_path / "receipts.jsonl").stat().st_mode & 0o077 == 0 or sys.platform == "win32"
    receipt = json.loads(line)
    assert (receipt["reason"], receipt["turns"]) == ("a request", [turn])
    assert [event["body"] for event in forkpoint.json("show", "fork", "--events")["events"]].count(None) >= 2
    (listed,) = forkpoint.text("erasures", "--json").splitlines()
    assert json.loads(listed)["runs"] == receipt["runs"]
    assert forkpoint.run("verify").returncode == 0


def test_erase_takes_everything_with_a_tag_unless_it_is_held(forkpoint: Program, tmp_path: Path) -> None:
    build(forkpoint, "erase_tag")
    held = forkpoint.json("hold", "ann", "--reason", "case 17")
    assert forkpoint.json("hold", "--list")["items"] == [held]
    everything = ("erase", "--tag", "who=ann", "--reason", "article 17", "--yes")
    refused = forkpoint.run(*everything)
    assert refused.returncode == 1
    assert "case 17" in refused.stderr
    assert forkpoint.run("delete", "ann", "--yes").returncode == 1
    assert forkpoint.json("release", "fork", "--hold", held["id"])["items"] == [held]
    (receipt,) = forkpoint.json(*everything)["items"]
    assert receipt["conversations"]
    assert found_in(tmp_path) == []
    assert forkpoint.run("show", "ann").returncode != 0, "its name is gone"


@pytest.mark.parametrize(
    "wrong",
    [
        ["erase", "--reason", "x", "--yes"],
        ["erase", "ann", "--reason", "x", "--yes"],
        ["erase", "ann", "--all", "--tenant", "--reason", "x", "--yes"],
        ["erase", "--tenant", "--keep-summaries", "--reason", "x", "--yes"],
        ["erase", "ann", "--all", "--yes"],
        ["hold", "ann"],
        ["hold", "--reason", "x"],
    ],
)
def test_what_is_meant_has_to_be_said(forkpoint: Program, wrong: list[str]) -> None:
    assert forkpoint.run(*wrong).returncode == 2

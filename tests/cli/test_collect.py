"""``forkpoint collect`` and ``delete``: what was deleted is in no file of the store any more."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.program import Program, agent
from tests.store.support.grep import found_in

from forkpoint import Conversation, TurnFailed
from forkpoint.testing import Fault, Reply


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


WORDS = {"promptword", "answerword", "titleword", "tagword", "nameword", "failedword", "errorword"}


def tell(forkpoint: Program, model: str) -> None:
    """A conversation with rare words wherever it can have some."""
    said = [Reply("answerword"), Reply("no", fault=Fault("bad_request", message="errorword"))]
    with Conversation(
        agent(model, *said),
        conversation_id="nameword",
        store=forkpoint.store,
        title="titleword",
        tags={"kind": "tagword"},
    ) as made:
        made.run("promptword")
        with pytest.raises(TurnFailed):
            made.run("failedword")


def findings(forkpoint: Program) -> str:
    """What ``doctor`` says about the store, in one line: a table would break it in two wherever the path is long."""
    return next(str(one["said"]) for one in forkpoint.json("doctor")["findings"] if one["what"] == "store")


def test_a_deleted_conversation_is_gone_from_the_disk_when_the_command_ends(forkpoint: Program) -> None:
    tell(forkpoint, "gone")
    file = forkpoint.folder / "store.db"
    assert found_in(file, WORDS) == WORDS, "the words were never on the disk"
    forkpoint.text("delete", "nameword", "--yes")
    assert found_in(file, WORDS) == set()


def test_what_a_reader_holds_up_is_pending_in_collect_and_doctor_until_the_reader_is_gone(forkpoint: Program) -> None:
    tell(forkpoint, "held-up")
    file = forkpoint.folder / "store.db"
    with closing(sqlite3.connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM conversation").fetchall()
        forkpoint.text("delete", "nameword", "--yes")
        done = forkpoint.run("collect")
        assert done.returncode == 0
        assert done.stdout == "Removed nothing.\n"
        assert "Pending: somebody reads the store" in done.stderr
        assert [one["what"] for one in forkpoint.json("collect")["pending"]] == ["log"]
        assert "not gone from the disk yet" in findings(forkpoint)
        assert found_in(file, WORDS), "nothing was held up, so this proves nothing"
    assert forkpoint.json("collect")["pending"] == []
    assert "not gone from the disk yet" not in findings(forkpoint)
    assert found_in(file, WORDS) == set()


def test_a_dry_run_says_what_would_go_and_a_collection_says_what_went(forkpoint: Program) -> None:
    tell(forkpoint, "dry")
    assert forkpoint.text("collect", "--dry-run", FORKPOINT_KEEP_TRIES="0s") == "Would remove the content of 1 try.\n"
    assert forkpoint.text("collect", FORKPOINT_KEEP_TRIES="0s") == "Removed the content of 1 try.\n"
    assert found_in(forkpoint.folder / "store.db", {"failedword", "errorword"}) == set()
    assert forkpoint.text("collect", "--compact") == "Removed nothing.\n"
    turns = json.loads(forkpoint.run("show", "nameword", "--turns", "--json").stdout)["turns"]
    assert [turn["outcome"] for turn in turns] == ["committed", "failed"]
    assert "has no input" in forkpoint.run("retry", "nameword").stderr, "a try without its content was run again"


def test_a_store_that_is_not_there_is_not_made(forkpoint: Program) -> None:
    assert forkpoint.run("collect").returncode != 0
    assert not (forkpoint.folder / "store.db").exists()

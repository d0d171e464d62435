"""``forkpoint anchor``, and ``verify --anchor``."""

import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.program import Program, agent
from tests.server.support.serving import served

from forkpoint import Conversation


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def talk(forkpoint: Program, name: str = "it", words: str = "hi") -> None:
    with Conversation.open(name, create=agent("echo"), store=forkpoint.store) as conversation:
        conversation.run(words)


def change(forkpoint: Program, statement: str) -> None:
    with closing(sqlite3.connect(forkpoint.folder / "store.db")) as db, db:
        assert db.execute(statement).rowcount > 0, "the statement changed nothing, so this proves nothing"


def test_an_anchor_is_one_line_and_verifies(forkpoint: Program) -> None:
    talk(forkpoint)
    done = forkpoint.run("anchor")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert "Seal 1 of tenant default covers" in done.stderr
    assert json.loads(done.stdout) == forkpoint.json("anchor")
    checked = forkpoint.run("verify", "--anchor", "-", stdin=done.stdout)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.endswith(", 1 seal: as it was written\n")
    findings = forkpoint.json("doctor")["findings"]
    assert [finding["what"] for finding in findings if ", last anchor 20" in finding["said"]] == ["store"]


def test_a_file_collects_anchors_and_all_of_them_are_checked(forkpoint: Program) -> None:
    file = forkpoint.folder / "anchors.jsonl"
    for words in ("one", "two", "three"):
        talk(forkpoint, words=words)
        assert forkpoint.text("anchor", "-o", str(file)) == ""
    forkpoint.text("anchor", "--all-tenants", "-o", str(file))
    assert [json.loads(line)["number"] for line in file.read_text().splitlines()] == [1, 2, 3, 1]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert forkpoint.json("verify", "--anchor", str(file))["seals"] == 4
    change(forkpoint, "DELETE FROM seal WHERE number = 3")
    done = forkpoint.run("verify", "--anchor", str(file))
    assert done.returncode == 1
    assert "anchor 3 of tenant default: there is no seal 3" in done.stdout


def test_an_anchor_finds_what_was_rewritten_and_says_where(forkpoint: Program) -> None:
    talk(forkpoint)
    line = forkpoint.text("anchor")
    change(forkpoint, "UPDATE record SET digest = zeroblob(32) WHERE id = (SELECT max(id) FROM record)")
    done = forkpoint.run("verify", "--anchor", "-", stdin=line)
    assert done.returncode == 1
    assert "seal 1: the records under it are not those that were sealed: conversation it, record " in done.stdout


def test_a_restored_copy_is_told_of_and_is_no_flaw(forkpoint: Program) -> None:
    talk(forkpoint)
    line = forkpoint.text("anchor")
    change(forkpoint, "UPDATE meta SET store = zeroblob(16)")
    done = forkpoint.run("verify", "--anchor", "-", stdin=line)
    assert (done.returncode, "Note: anchors of store" in done.stderr) == (0, True)


def test_what_makes_no_sense_is_refused(forkpoint: Program) -> None:
    done = forkpoint.run("anchor")
    assert (done.returncode, done.stderr.startswith("error: There is no store")) == (1, True)
    talk(forkpoint)
    (forkpoint.folder / "rubbish").write_text("rubbish\n")
    for arguments in (
        ("verify", "--anchor", "not there"),
        ("verify", "--anchor", "rubbish"),
        ("verify", "it", "--anchor", "-"),
        ("anchor", "-o", "no/such/folder/file"),
    ):
        done = forkpoint.run(*arguments)
        assert done.returncode == 2, arguments
        assert "--anchor" in done.stderr or "--output" in done.stderr


def test_a_server_gives_the_anchor_of_the_keys_tenant_and_checks_it(forkpoint: Program) -> None:
    talk(forkpoint)
    with served(forkpoint.store) as server:
        line = forkpoint.text("anchor", "--store", server.url)
        checked = forkpoint.run("verify", "--store", server.url, "--anchor", "-", stdin=line)
        assert checked.returncode == 0, checked.stderr
        refused = forkpoint.run("anchor", "--all-tenants", "--store", server.url)
        assert (refused.returncode, "the anchor of their tenant" in refused.stderr) == (1, True)
    assert forkpoint.text("anchor") == line
    whole = forkpoint.text("anchor", "--all-tenants")
    with served(forkpoint.store) as server:
        refused = forkpoint.run("verify", "--store", server.url, "--anchor", "-", stdin=whole)
        assert (refused.returncode, "where the store is" in refused.stderr) == (1, True)


def test_only_what_is_newer_than_the_newest_anchor_in_a_file_is_looked_at_which_is_said(forkpoint: Program) -> None:
    file = forkpoint.folder / "anchors.jsonl"
    for words in ("one", "two"):
        talk(forkpoint, words=words)
        forkpoint.text("anchor", "-o", str(file))
    talk(forkpoint, words="three")
    done = forkpoint.run("verify", "--since", str(file))
    assert done.returncode == 0, done.stderr
    assert "Only what was recorded after seal 2 was looked at, and no older payload." in done.stderr
    found = forkpoint.json("verify", "--since", str(file))
    assert (found["since"], found["events"]) == (2, 3)
    with served(forkpoint.store) as server:
        assert forkpoint.json("verify", "--since", str(file), "--store", server.url) == found
    change(forkpoint, "UPDATE event SET payload = replace(payload, 'three', 'four')")
    assert forkpoint.run("verify", "--since", str(file)).returncode == 1
    assert forkpoint.run("verify", "--since", str(file), "--head-digest", "00").returncode == 1
    assert forkpoint.run("verify", "it", "--since", str(file)).returncode == 2

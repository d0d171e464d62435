"""``forkpoint export``, ``import`` and ``verify FILE``."""

import json
from pathlib import Path

import pytest
from tests.cli.program import Program, agent, one_line

from forkpoint import Conversation


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    program = Program(tmp_path)
    with Conversation(agent("copies"), conversation_id="build-1234", store=program.store, tags={"team": "ci"}) as talk:
        talk.run("Why did it fail?")
        talk.fork().close()
    return program


def test_a_conversation_goes_to_another_store_and_is_there_once(forkpoint: Program) -> None:
    said = forkpoint.text("export", "build-1234", "-o", "talk.jsonl")
    assert said.startswith("talk.jsonl: ")
    assert forkpoint.text("verify", "talk.jsonl").endswith("of 1 conversation: as it was written\n")
    assert forkpoint.json("verify", "talk.jsonl")["ok"]
    other = ("--store", "sqlite:///other.db")
    assert forkpoint.text("import", "talk.jsonl", *other).startswith("1 new conversation, ")
    assert "all of it was here already" in forkpoint.text("import", "talk.jsonl", *other)
    assert forkpoint.json("verify", *other)["ok"]
    assert forkpoint.text("list", *other).split()[-1] == "root"


def test_families_tags_and_all_are_written_to_standard_output(forkpoint: Program) -> None:
    for what, conversations in ((("--family", "build-1234"), 2), (("--tag", "team=ci"), 1), (("--all",), 2)):
        lines = [json.loads(line) for line in forkpoint.text("export", *what).splitlines()]
        assert sum(line["line"] == "conversation" for line in lines) == conversations
        assert lines[-1]["line"] == "end"
    assert forkpoint.text("export", "build-1234", "--format", "md").startswith("# build-1234\n")


def test_a_changed_file_is_named_with_its_line(forkpoint: Program) -> None:
    forkpoint.text("export", "build-1234", "-o", "talk.jsonl")
    file = forkpoint.folder / "talk.jsonl"
    file.write_bytes(file.read_bytes().replace(b"Why did", b"Who did"))
    done = forkpoint.run("verify", "talk.jsonl")
    assert done.returncode == 1
    assert done.stdout.startswith("line ")
    assert not forkpoint.json("verify", "talk.jsonl", status=1)["ok"]
    refused = forkpoint.run("import", "talk.jsonl", "--store", "sqlite:///other.db")
    assert refused.returncode == 1
    assert "line" in one_line(refused.stderr)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    assert forkpoint.run("verify", "talk.jsonl").stdout.startswith("line 1: "), "without its first line it is still one"


def test_a_name_that_is_taken_is_changed_if_that_is_said(forkpoint: Program) -> None:
    forkpoint.text("export", "build-1234", "-o", "talk.jsonl")
    other = ("--store", "sqlite:///other.db")
    with Conversation(
        agent("taken"), conversation_id="build-1234", store=f"sqlite:///{forkpoint.folder}/other.db"
    ) as it:
        it.run("Hi")
    assert "exists already" in one_line(forkpoint.run("import", "talk.jsonl", *other).stderr)
    assert "is now called build-1234-2" in forkpoint.text("import", "talk.jsonl", "--rename", *other)


def test_what_is_to_be_exported_is_said_once(forkpoint: Program) -> None:
    assert forkpoint.run("export", "-o", "x").returncode == 2
    assert forkpoint.run("export", "build-1234", "--all", "-o", "x").returncode == 2
    assert forkpoint.run("export", "build-1234", "--json").returncode == 2
    assert forkpoint.run("import", "no-such-file").returncode == 2
    assert "no conversation" in one_line(forkpoint.run("export", "nobody", "-o", "x").stderr)


def test_an_export_of_a_store_that_can_only_be_read_says_that_it_is_not_on_record(forkpoint: Program) -> None:
    read_only = ("--store", f"{forkpoint.store}?mode=ro")
    for more in (("-o", "talk.jsonl"), ("--format", "md")):
        done = forkpoint.run("export", "build-1234", *more, *read_only)
        assert (done.returncode, "no record of this export" in one_line(done.stderr)) == (0, True)
        assert forkpoint.run("export", "build-1234", *more).stderr == ""
    assert not forkpoint.json("export", "build-1234", "-o", "talk.jsonl", *read_only)["recorded"]
    assert forkpoint.json("verify", "talk.jsonl")["ok"]
    assert forkpoint.json("export", "build-1234", "-o", "talk.jsonl")["recorded"]


def test_a_file_comes_into_a_store_that_is_absent_or_in_memory_but_not_into_one_that_is_only_read(
    forkpoint: Program,
) -> None:
    forkpoint.text("export", "build-1234", "-o", "talk.jsonl")
    assert forkpoint.text("import", "talk.jsonl", "--store", "memory:").startswith("1 new conversation, ")
    absent = forkpoint.folder / "new.db"
    refused = forkpoint.run("import", "talk.jsonl", "--store", f"sqlite:///{absent}?mode=ro")
    assert (refused.returncode, absent.exists()) == (1, False)
    assert forkpoint.text("import", "talk.jsonl", "--store", f"sqlite:///{absent}").startswith("1 new conversation, ")
    assert absent.stat().st_mode & 0o777 == 0o600
    read_only = ("--store", f"sqlite:///{absent}?mode=ro")
    assert "was here already" in forkpoint.text("import", "talk.jsonl", *read_only)
    forkpoint.text("export", "--all", "-o", "more.jsonl")
    refused = forkpoint.run("import", "more.jsonl", *read_only)
    assert (refused.returncode, "for reading only" in one_line(refused.stderr)) == (1, True)

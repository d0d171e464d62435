"""``run --image`` and ``--file``: files that are part of a message."""

import base64
from pathlib import Path

import pytest
from tests.cli.program import Program

from forkpoint import Conversation
from forkpoint.events import File, Image, Text

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_files_are_part_of_the_message(forkpoint: Program) -> None:
    (forkpoint.folder / "a.png").write_bytes(PICTURE)
    (forkpoint.folder / "notes.txt").write_text("Buy milk.")
    (forkpoint.folder / "b.pdf").write_bytes(b"%PDF-1.7\n%%EOF\n")
    files = ("--image", "a.png", "--file", "notes.txt", "--file", "b.pdf")
    forkpoint.run("run", "What is it?", "-c", "it", "--model", "scripted/echo", *files, stdin="And this.")
    with Conversation.open("it", store=forkpoint.store, bind=False) as this:
        turn = this.last_turn()
        assert turn is not None
        text, *parts = turn.input[0].parts
    assert text == Text("What is it?\n\nAnd this.")
    assert [type(part) for part in parts] == [Image, Text, File]


def test_a_file_that_cannot_be_part_of_a_message_is_refused_before_anything_runs(forkpoint: Program) -> None:
    (forkpoint.folder / "notes.txt").write_text("Buy milk.")
    done = forkpoint.run("run", "What is it?", "--model", "scripted/echo", "--image", "notes.txt")
    assert done.returncode == 1
    assert "error: The file 'notes.txt' cannot be part of a message" in done.stderr
    assert not (forkpoint.folder / "store.db").exists()


def test_a_file_alone_is_a_message(forkpoint: Program) -> None:
    (forkpoint.folder / "notes.txt").write_text("Buy milk.")
    assert "Buy milk." in forkpoint.text("run", "--model", "scripted/echo", "--file", "notes.txt")

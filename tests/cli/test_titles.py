"""Titles that a model writes: ``--title-model``, its setting, and what happens if the model cannot."""

from pathlib import Path

import pytest
from tests.cli.program import Program

from forkpoint.cli.titles import title_in
from forkpoint.testing import Reply


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    program = Program(tmp_path)
    program.script(Reply('"The full disk."'))
    return program


def title_of(forkpoint: Program, name: str) -> str | None:
    titles = {item["name"]: item["title"] for item in forkpoint.json("list")["items"]}
    return titles[name]  # type: ignore[no-any-return]


def test_a_model_writes_the_title_aside_after_the_first_turn(forkpoint: Program) -> None:
    asked = ["run", "-c", "build", "--model", "scripted/echo", "--title-model", "scripted/script.json"]
    assert forkpoint.text(*asked, "Why did it fail?") == "You said: Why did it fail?\n"
    assert title_of(forkpoint, "build") == "The full disk"
    shown = forkpoint.json("show", "build", "--turns", "--events")
    assert len(shown["turns"]) == 1, "the question for a title became history"
    assert shown["conversation"]["model"] == "scripted/echo"
    assert shown["stats"]["family"]["calls"] == 2, "what the title cost is not counted"
    forkpoint.script(Reply("Another title"))
    forkpoint.text(*asked, "And now?")
    assert title_of(forkpoint, "build") == "The full disk", "a title that is there stays"


@pytest.mark.parametrize("place", ["variable", "settings"])
def test_the_model_for_titles_may_be_set_once_for_all(forkpoint: Program, place: str) -> None:
    variables = {}
    if place == "settings":
        forkpoint.settings.parent.mkdir(parents=True)
        forkpoint.settings.write_text('title_model = "scripted/script.json"\n')
    else:
        variables["FORKPOINT_TITLE_MODEL"] = "scripted/script.json"
    forkpoint.text("run", "-c", "build", "--model", "scripted/echo", "Hello", **variables)
    assert title_of(forkpoint, "build") == "The full disk"


def test_chat_gives_a_title_after_the_first_turn(forkpoint: Program) -> None:
    done = forkpoint.run(
        "chat", "talk", "--model", "scripted/echo", "--title-model", "scripted/script.json", stdin="Hello\n"
    )
    assert done.returncode == 0, done.stderr
    assert title_of(forkpoint, "talk") == "The full disk"


def test_a_title_that_cannot_be_had_harms_nothing(forkpoint: Program) -> None:
    asked = ("--title-model", "scripted/missing.json")
    done = forkpoint.run("run", "-c", "build", "--model", "scripted/echo", "Hello", *asked)
    assert (done.returncode, done.stdout) == (0, "You said: Hello\n")
    assert "build has no title: " in done.stderr
    assert title_of(forkpoint, "build") is None
    refused = forkpoint.run("describe", "build", *asked)
    assert (refused.returncode, "missing.json" in refused.stderr) == (1, True)
    forkpoint.script(Reply("***"))
    wordless = forkpoint.run("describe", "build", "--title-model", "scripted/script.json")
    assert (wordless.returncode, "it has no title" in wordless.stderr) == (1, True)


def test_describe_lets_a_model_write_a_title_in_place_of_another(forkpoint: Program) -> None:
    forkpoint.text("run", "-c", "build", "--model", "scripted/echo", "Hello")
    forkpoint.text("describe", "build", "--title", "Mine", "--tag", "kind=debug")
    described = forkpoint.json("describe", "build", "--title-model", "scripted/script.json")
    assert (described["title"], described["tags"]["kind"]) == ("The full disk", "debug")
    assert forkpoint.run("describe", "build", "--title", "a", "--title-model", "b").returncode == 2


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("The full disk", "The full disk"),
        ('\n\n**"The full disk."**\nIt says why.', "The full disk"),
        ("# Why `git` fails", "Why `git` fails"),
        ("---\nDisk", "Disk"),
        ("word " * 40, "word " * 15 + "word…"),
        ("...", ""),
    ],
)
def test_a_title_is_the_first_line_of_words_without_its_marks(answer: str, title: str) -> None:
    assert title_in(answer) == title

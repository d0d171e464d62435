"""Tables where nobody looks at a screen: lines that `awk` and `cut` take apart."""

import re
from pathlib import Path

import pytest
from rich.text import Text
from tests.cli.program import Program, agent

from forkpoint import Conversation
from forkpoint.cli.cells import Cell, ago, brief, moment, number
from forkpoint.cli.output import display, facts, grid, has_screen

LONG = "long " * 30 + "title"
ISO = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def rows(shown: str) -> list[dict[str, str]]:
    """The rows of a table in a pipe, by the names of its columns."""
    names, *rows = (line.split("\t") for line in shown.splitlines())
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.usefixtures("pipe")
def test_a_table_in_a_pipe_has_its_names_and_one_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = grid(header=True)
    for name in ("conversation", "events", "path"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right")
    table.add_row(Text("a", style="bold"), number(1200), "/home/ann/" + "x" * 300)
    table.add_row("b", number(0), "")
    display(table)
    assert capsys.readouterr().out == f"conversation\tevents\tpath\na\t1200\t/home/ann/{'x' * 300}\nb\t0\t\n"


@pytest.mark.usefixtures("pipe")
@pytest.mark.parametrize("mark", ["\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\n \t\n"])
def test_no_cell_has_a_tab_or_a_line_break(mark: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"first{mark}second  third"
    table = grid(header=True)
    table.add_column("one")
    table.add_column(Cell("", f"two{mark}names"))
    table.add_row(text, Text(text))
    table.add_row(brief(text, 5), Cell("", text))
    display(table)
    (names, *cells) = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert len(names) == 2
    assert [len(row) for row in cells] == [2, 2]
    assert all(re.fullmatch(r"first\S* ?second  third", cell) for row in cells for cell in row), cells


@pytest.mark.usefixtures("pipe")
def test_facts_in_a_pipe_are_a_name_a_tab_and_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    display(facts([("id", "01a1"), ("  folder", "/home/ann/two  blanks"), ("created", moment(0, age=True))]))
    assert capsys.readouterr().out == "id\t01a1\nfolder\t/home/ann/two  blanks\ncreated\t1970-01-01T00:00:00Z\n"


@pytest.mark.usefixtures("pipe")
def test_a_line_that_is_no_table_is_never_folded(capsys: pytest.CaptureFixture[str]) -> None:
    display(Text("word " * 5000 + "end"), "")
    assert capsys.readouterr().out == "word " * 5000 + "end\n\n"


def test_with_columns_a_table_is_drawn_as_on_a_screen_of_that_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = grid()
    table.add_column("only in a pipe", no_wrap=True)
    table.add_column("this too", overflow="fold")
    table.add_row(ago(0), number(1200))
    table.add_row("b", "x" * 50)
    display(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1970-01-01  1,200"
    assert len(lines) == 3
    assert max(map(len, lines)) == 40


@pytest.mark.parametrize("columns", ["", "0", "wide"])
def test_columns_that_say_no_width_make_no_screen(
    columns: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with (tmp_path / "out").open("w") as out:
        assert not has_screen(out)
        monkeypatch.setenv("COLUMNS", "1")
        assert has_screen(out)


def test_what_commands_write_into_a_pipe_can_be_cut(forkpoint: Program) -> None:
    folder = forkpoint.folder / ("deep" * 40)
    folder.mkdir()
    with Conversation(agent("pipe"), store=forkpoint.store, title=LONG, workspace=folder) as made:
        made.run("First line.\n\tSecond line.")
        (listed,) = rows(forkpoint.text("list", COLUMNS=""))
        assert listed["conversation"] == made.id
        assert listed["title"] == LONG
        assert ISO.fullmatch(listed["updated"])
        told = dict(line.split("\t") for line in forkpoint.text("show", made.id, COLUMNS="").splitlines()[1:])
        assert told["workspace"].endswith(str(folder))
        assert ISO.fullmatch(told["created"])
        lines = forkpoint.text("show", made.id, "--events", COLUMNS="").splitlines()
        events = rows("\n".join(lines[lines.index("") + 1 :]))
        assert [event["what"] for event in events if event["who"] == "user"] == ["First line. Second line."]
        lines = forkpoint.text("show", made.id, "--records", COLUMNS="").splitlines()
        records = rows("\n".join(lines[lines.index("") + 1 :]))
        assert [len(record["digest"]) for record in records] == [64] * len(records)
        assert all(ISO.fullmatch(record["time"]) for record in records)
        made.hold(reason="case\t17")
    assert [row["reason"] for row in rows(forkpoint.text("hold", "--list", COLUMNS=""))] == ["case 17"]
    budget = rows(forkpoint.text("budget", made.id, "--tokens", "1000000", "--turns", "9", COLUMNS=""))
    assert [(row["budget of"], row["unit"], row["limit"]) for row in budget] == [
        ("the conversation", "tokens", "1000000"),
        ("the conversation", "turns", "9"),
    ]
    states = {row["what"]: row["state"] for row in rows(forkpoint.text("doctor", COLUMNS=""))}
    assert states["store"] == "good"
    assert states["settings"] == "absent"


def test_keys_in_a_pipe_have_their_moment(forkpoint: Program) -> None:
    forkpoint.text("keys", "add", "ann")
    (key,) = rows(forkpoint.text("keys", "list", COLUMNS=""))
    assert (key["name"], key["role"]) == ("ann", "use")
    assert ISO.fullmatch(key["created"])

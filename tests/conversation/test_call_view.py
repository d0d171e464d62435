"""How a call is shown to whoever decides on it: whole, to the character, and never as something that it is not."""

import io
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from forkpoint.backend.results import Turn
from forkpoint.conversation.call_view import call_line, call_view, print_view, reason_view, turn_view, waiting_view
from forkpoint.conversation.screen_text import cut, screen_rows, visible
from forkpoint.events import ApprovalAsked, AssistantMessage, NewEvent, StagedEvent, Text, ToolCall, Usage, seal


def lines(tool: str, arguments: Any) -> list[str]:
    """The heading and the lines of a call."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    view = call_view(ToolCall("c", tool, text))
    return [view.heading, *(line.text for line in view.lines)]


def printed(tool: str, arguments: Any, *, width: int = 40, encoding: str = "utf-8") -> str:
    """What a terminal gets of a call that waits."""
    data = io.BytesIO()
    file = io.TextIOWrapper(data, encoding=encoding, write_through=True, newline="")
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    print_view(console, waiting_view(ToolCall("c", tool, json.dumps(arguments)), "it is risky"))
    return data.getvalue().decode(encoding)


def test_a_short_call_is_one_line() -> None:
    assert lines("restart", {"build": 7, "why": "it hangs", "force": None}) == [
        'restart(build=7, why="it hangs", force=null)'
    ]
    assert lines("restart", "{}") == lines("restart", "") == ["restart()"]


def test_a_long_call_has_a_line_for_each_argument() -> None:
    assert lines("send", {"to": "x" * 100, "cc": ["a", "b"]}) == ["send", f'to="{"x" * 100}"', 'cc=["a", "b"]']


def test_no_text_looks_like_another_argument() -> None:
    assert lines("send", {"text": 'hello\ntrusted=true\n"', "trusted": False}) == [
        "send",
        "text=",
        "| hello",
        "| trusted=true",
        '| "',
        "trusted=false",
    ]
    assert lines("send", {'a="b", c': 1}) == ['send("a=\\"b\\", c"=1)']


def test_a_shell_command_is_shown_as_the_command_with_its_other_arguments() -> None:
    command = "cd /tmp   &&\tls\n  rm -rf build  \n"
    assert lines("shell", {"command": command, "timeout": 9}) == [
        "shell",
        "$ cd /tmp   &&\tls",
        ">   rm -rf build  ",
        "> ",
        "timeout=9",
    ]
    assert lines("shell", {"command": ["ls"]}) == ['shell(command=["ls"])'], "it will be refused, and is shown as it is"


def test_an_edit_is_shown_as_a_diff_of_all_that_is_replaced() -> None:
    edit = {"path": "a.py", "old": "one\ntwo\nthree", "new": "one\n2\nthree\n", "replace_all": True, "odd": 1}
    assert lines("edit_file", edit) == [
        "edit_file",
        'path="a.py"',
        "replace_all=true",
        "odd=1",
        "  one",
        "- two",
        "+ 2",
        "  three",
        "+ ",
    ]
    assert lines("write_file", {"path": "a.py", "content": "one\n\ntwo"}) == [
        "write_file",
        'path="a.py"',
        "+ one",
        "+ ",
        "+ two",
    ]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_a_diff_has_every_line_of_both_texts_in_order(old: list[str], new: list[str]) -> None:
    before, after = "\n".join(old), "\n".join(new)
    shown = lines("edit_file", {"old": before, "new": after})[1:]
    assert "\n".join(line[2:] for line in shown if line[0] in " -") == before
    assert "\n".join(line[2:] for line in shown if line[0] in " +") == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb\n" * 2_000, "b\na\n" * 2_000),
        ("a\nb\n" * 499, "b\na\nc\n" * 333),  # few lines, and each is compared with half of the others
    ],
)
def test_an_edit_that_would_take_long_to_compare_is_shown_as_its_two_texts(old: str, new: str) -> None:
    shown = lines("edit_file", {"old": old, "new": new})[1:]
    whole = [f"- {line}" for line in old.split("\n")] + [f"+ {line}" for line in new.split("\n")]
    assert shown == whole


def test_a_long_edit_of_lines_that_differ_is_compared() -> None:
    old = "\n".join(f"line {n}" for n in range(900))
    shown = lines("edit_file", {"old": old, "new": old.replace("line 450", "another")})[1:]
    assert [line for line in shown if line[0] != " "] == ["- line 450", "+ another"]


@pytest.mark.parametrize(
    "arguments",
    ["[1, 2]", '"ls"', "{", "not JSON", '{"command": "ls", "command": "rm -rf ~"}', '{"a": {"b": 1, "b": 2}}', "7"],
)
def test_arguments_that_are_no_plain_object_are_shown_as_the_text_that_they_are(arguments: str) -> None:
    assert lines("shell", arguments) == ["shell", "arguments, which are not a JSON object:", f"| {arguments}"]


def test_escapes_of_json_hide_nothing() -> None:
    assert lines(
        "run", r'{"what": ["\u0072m \u202e", "\\u0072", "\u0022"], "n": 1.0, "big": 123456789012345678901}'
    ) == [r'run(what=["rm <U+202E>", "\\u0072", "\u0022"], n=1.0, big=123456789012345678901)']
    assert lines("run", r'{"what": "\u0072m"}') == ['run(what="rm")']


def test_what_cannot_be_seen_is_shown_by_a_picture_or_its_number() -> None:
    text = "a\x1b[2Jb\r\nc\u202ed\u200be\ufe0ff\U000e0041g\xa0h\x9bi\x7f"
    assert visible(text) == "a␛[2Jb␍\nc<U+202E>d<U+200B>e<U+FE0F>f<U+E0041>g<U+00A0>h<U+009B>i␡"
    hidden = {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp", "Zs"}  # also what has no meaning yet, or a private one
    unseen = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in hidden]
    left = [char for char in (*unseen, "\U00016fe4", "\U0001d159") if visible(char) == char]
    assert left == ["\t", "\n", " "]


def test_a_long_call_says_how_much_is_shown() -> None:
    heading, *shown = lines("shell", {"command": "x" * 48_000})
    assert heading == "shell [48,002 characters in 1 line, all of them shown]"
    assert shown == ["$ " + "x" * 48_000]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_nothing_is_wrapped_or_cut_or_collapsed_on_the_way_to_a_terminal(encoding: str) -> None:
    command = "echo   a\t\tb" + " é" * 5_000 + "   "
    shown = printed("shell", {"command": command}, encoding=encoding)
    expected = command if encoding == "utf-8" else command.replace("é", r"\xe9")
    assert f"    $ {expected}\n" in shown


def test_a_call_on_one_line_keeps_its_blanks_and_says_what_is_cut() -> None:
    line = call_line(ToolCall("c", "shell", json.dumps({"command": "a  b\nc\td" + "x" * 1_000})))
    assert line == 'shell(command="a  b\\nc\\td' + "x" * 1_000 + '")'
    short = cut(line, 60)
    shown, _, left = short.partition("… [")
    assert len(short) <= 60
    assert line.startswith(shown)
    assert int(left.removesuffix(" more characters]").replace(",", "")) == len(line) - len(shown)
    assert cut("abc", 3) == "abc"


def test_the_reason_of_the_model_is_shown_whole_and_silence_is_not_shown() -> None:
    assert [line.text for line in reason_view("one\n\ntwo")] == ["the model says:", "  | one", "  | ", "  | two"]
    assert reason_view(" \n") == ()


def test_a_turn_that_waits_is_shown_with_its_reason_and_all_its_calls() -> None:
    events = [NewEvent(AssistantMessage((Text("It hangs."),)), 1)]
    events += [NewEvent(ToolCall(id, "restart", '{"build": 7}'), 1) for id in "ab"]
    events += [NewEvent(ApprovalAsked(id, "restart", "it is risky")) for id in "ab"]
    steps = tuple(StagedEvent(seal(event, 0), event.body) for event in events)
    turn = Turn("t", "c", "awaiting_approval", (), steps, Usage())
    a, b = turn.waiting
    assert [line.text for line in turn_view(turn, digests=True)] == [
        "the model says:",
        "  | It hangs.",
        "restart(build=7) waits for an approval (it is risky), as a",
        f"    digest {a.digest}",
        "restart(build=7) waits for an approval (it is risky), as b",
        f"    digest {b.digest}",
    ]
    assert len(turn_view(turn, calls=[b])) == 3


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("", 1),
        ("a" * 10, 1),
        ("a" * 11, 2),
        ("a" * 9 + "\u65e5", 2),  # it needs two columns, and one is left
        ("\u65e5" * 5, 1),
        ("a" * 9 + "\u65e5" + "a" * 8, 2),
        ("a" * 9 + "\u65e5" + "a" * 9, 3),
        ("e\u0301" * 10, 1),
        ("\ta", 1),
        ("\t\t\t\ta", 1),  # a terminal moves to its last column, and no further
        ("\t\taa", 2),
        ("a" * 12 + "\taa", 2),
        ("a" * 12 + "\taaa", 3),
    ],
)
def test_a_line_takes_the_rows_that_a_terminal_of_ten_columns_breaks_it_into(line: str, rows: int) -> None:
    assert screen_rows(line, 10) == rows

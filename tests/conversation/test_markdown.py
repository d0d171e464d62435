"""Answers in Markdown on a terminal: how they look, and that each word stands there once while they arrive."""

import itertools
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conversation.support.emulator import Emulator

from forkpoint import TerminalVisualizer
from forkpoint.conversation import TurnStarted
from forkpoint.conversation.terminal.markdown import closed_until, markdown_rows
from forkpoint.events import ToolCall
from forkpoint.updates import CallStarted, ReasoningPiece, Restarted, TextPiece

ANSWER = """\
# The plan

First some **bold** and *slanted* words with `code`, and then a line that is longer than the screen is wide.

- one
- two
  with more
  1. nested
  2. also nested
- three

```python
def add(a, b):
    return a + b
```

| name | size |
|------|-----:|
| a    |   12 |
| long name | 3 |

> quoted words

Done.
"""

SHOWN = """\
The plan

First some bold and slanted words with
code, and then a line that is longer
than the screen is wide.

• one
• two
  with more
  1. nested
  2. also nested
• three

```python
def add(a, b):
    return a + b
```

name        size
────────────────
a             12
long name      3

│ quoted words

Done.""".splitlines()


def streamed(text: str, *, size: int, width: int = 40, height: int = 10) -> Emulator:
    """A terminal on which a text has arrived in pieces of this many characters."""
    terminal = Emulator(width, height)
    show = TerminalVisualizer(terminal.console)
    for start in range(0, len(text), size):
        show(TextPiece(text[start : start + size]))
    show.end_line()
    return terminal


def rows(source: str, width: int = 40) -> list[str]:
    return [row.plain for row in markdown_rows(source, width, Emulator(width).console)]


# How it looks.


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("height", [5, 10, 40])
def test_an_answer_stands_there_once_whatever_its_pieces_and_however_small_the_screen(size: int, height: int) -> None:
    assert streamed(ANSWER, size=size, height=height).lines == SHOWN


def test_headings_words_and_code_have_styles() -> None:
    terminal = streamed(ANSWER, size=5, height=40)
    assert terminal.style("The plan") == ("default", True, False, True)
    assert terminal.style("bold") == ("default", True, False, False)
    assert terminal.style("slanted") == ("default", False, True, False)
    assert terminal.style("code,")[0] == "cyan"
    assert terminal.style("def")[0] != "default"
    assert terminal.style("def") == terminal.style("return")


def test_the_open_block_is_shown_before_its_line_ends() -> None:
    terminal = Emulator()
    show = TerminalVisualizer(terminal.console)
    show(TextPiece("Some **bo"))
    assert terminal.screen == ["Some **bo"]
    show(TextPiece("ld** words"))
    deadline = time.monotonic() + 20
    while terminal.screen != ["Some bold words"]:  # a moment later, if the first time took long
        assert time.monotonic() < deadline, terminal.screen


def test_code_that_is_longer_than_the_screen_is_followed_and_stands_there_whole_in_the_end() -> None:
    code = [f"line_{number} = {number}" for number in range(200)]
    terminal = Emulator(40, 10)
    show = TerminalVisualizer(terminal.console)
    show(TextPiece("Look:\n\n```python\n"))
    for line in code:
        show(TextPiece(f"{line}\n"))
    show(TextPiece("```\n\nThat is it."))
    show.end_line()
    assert terminal.lines == ["Look:", "", "```python", *code, "```", "", "That is it."]


def test_a_line_of_code_that_is_longer_than_the_screen_is_one_line() -> None:
    code = "x = '" + "a" * 60 + "'"
    terminal = streamed(f"```python\n{code}\n```\n", size=4)
    assert "".join(terminal.lines[1:3]) == code
    assert terminal.lines[3] == "```"


def test_a_list_that_is_longer_than_the_screen_stands_there_once() -> None:
    items = "".join(f"{number}. item number {number}\n" for number in range(1, 60))
    lines = streamed(items, size=3).lines
    assert [line.split()[-1] for line in lines] == [str(number) for number in range(1, 60)]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("[here](https://example.com/a)", "here (https://example.com/a)"),
        ("<https://example.com>", "https://example.com"),
        ("[https://good.com](https://bad.com)", "https://good.com (https://bad.com)"),
        ("![a cat](https://example.com/cat.png)", "[picture: a cat] (https://example.com/cat.png)"),
        ("[a]: https://example.com\n[a]", "[a]: https://example.com\n[a]"),
        ("<b>bold</b> <!-- hidden -->", "<b>bold</b> <!-- hidden -->"),
        ("<details>\nmore\n</details>", "<details>\nmore\n</details>"),
        ("[x](javascript:alert)", "[x](javascript:alert)"),
        ("a\nb", "a\nb"),
        ("- [ ] open\n- [x] done", "• [ ] open\n• [x] done"),
        ("9. nine\n10. ten", " 9. nine\n10. ten"),
        ("* * *", "─" * 40),
        ("```\n\n```", "```\n\n```"),
        ("    indented", "```\nindented\n```"),
        ("```no-such-language\nx\n```", "```no-such-language\nx\n```"),
        ("> a\n> - b", "│ a\n│\n│ • b"),
        ("one [bold] :smile: [/]", "one [bold] :smile: [/]"),
    ],
)
def test_nothing_is_hidden_and_links_say_where_they_lead(source: str, shown: str) -> None:
    assert "\n".join(row.rstrip() for row in rows(source, 60 if "http" in source or "<" in source else 40)) == shown


def test_a_loose_list_has_room_between_its_items() -> None:
    assert rows("- a\n\n- b\n\n  more of b") == ["• a", "", "• b", "", "  more of b"]


# What never happens.

PIECES = ["# ", "a", "b ", "\n", "\n\n", "- ", "1. ", "```", "```py\n", "| a | b |\n", "|---|---|\n", "> ", "**", "`"]
PIECES += ["[x](http://y)", "---\n", "    ", "\t", "日本", "<b>", "word " * 12, "===\n", "  - ", "~~", "![i](u)"]


@settings(max_examples=40, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=40), height=st.integers(3, 12))
def test_however_an_answer_arrives_the_screen_is_as_if_it_had_come_at_once(pieces: list[str], height: int) -> None:
    text = "".join(pieces)
    terminal = Emulator(24, height)
    show = TerminalVisualizer(terminal.console)
    for piece in pieces:
        show(TextPiece(piece))
    show.end_line()
    assert terminal.lines == streamed(text, size=len(text) or 1, width=24, height=40).lines


@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=30))
def test_what_is_closed_does_not_depend_on_what_follows(pieces: list[str]) -> None:
    text = "".join(pieces)
    cuts = [closed_until(text[:end]) for end in range(len(text) + 1)]
    assert all(before <= after for before, after in itertools.pairwise(cuts))


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_can_be_shown_and_only_our_own_codes_reach_the_terminal(text: str) -> None:
    raw = streamed(text, size=7).raw
    ours = re.sub(r"\x1b\[[0-9;]*[mJA]|\r\n|\r(?=\x1b)", "", raw)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", ours)


def test_deep_nesting_is_shown_and_not_an_error() -> None:
    assert rows("> " * 200 + "deep")
    assert rows("".join("  " * depth + "- x\n" for depth in range(60)))


def test_a_paragraph_that_is_longer_than_the_screen_stands_there_once() -> None:
    words = " ".join(f"w{number}" for number in range(2_000))
    assert "".join(streamed(words, size=200, height=20).lines).replace(" ", "") == words.replace(" ", "")


# Beside other lines.


def test_a_call_after_an_answer_begins_a_line_of_its_own() -> None:
    terminal = Emulator(60)
    show = TerminalVisualizer(terminal.console)
    show(TurnStarted("t1", "c1", ()))
    show(TextPiece("Let me *see*"))
    show(CallStarted(ToolCall("c", "look", "{}")))
    show(TextPiece("Seen."))
    show.end_line()
    assert terminal.lines == ["Let me see", "  → look()", "Seen."]


def test_other_lines_are_printed_above_what_is_still_being_written() -> None:
    terminal = Emulator(60)
    show = TerminalVisualizer(terminal.console)
    show(TextPiece("Closed.\n\nStill\nop"))
    with show.apart():
        terminal.console.print("queued: next")
    show(TextPiece("en."))
    show.end_line()
    assert terminal.lines == ["Closed.", "queued: next", "", "Still", "open."]


def test_what_is_typed_meanwhile_stays_below_and_leaves_nothing() -> None:
    terminal = Emulator(60)
    show = TerminalVisualizer(terminal.console)
    show.show_typed("❯ he")
    show(TextPiece("One.\n\nTwo"))
    show.show_typed("❯ hello")
    assert terminal.screen == ["One.", "", "Two", "❯ hello"]
    show(CallStarted(ToolCall("c", "look", "{}")))
    assert terminal.screen == ["One.", "", "Two", "  → look()", "❯ hello"]
    show.show_typed("")
    assert terminal.screen == ["One.", "", "Two", "  → look()"]
    show(TextPiece("Three"))
    show.end_line()
    assert terminal.lines == ["One.", "", "Two", "  → look()", "Three"]


def test_thoughts_stand_before_the_answer_in_paragraphs() -> None:
    terminal = Emulator(60)
    show = TerminalVisualizer(terminal.console)
    for piece in ("I wonder **", "why**.\n\nPer", "haps so.", "\n"):
        show(ReasoningPiece(piece))
    show(TextPiece("So."))
    show.end_line()
    assert terminal.lines == ["I wonder **why**.", "", "Perhaps so.", "So."]
    assert terminal.style("Perhaps")[2]


def test_an_answer_that_begins_anew_does_not_go_on_in_the_old_block() -> None:
    terminal = Emulator(80)
    show = TerminalVisualizer(terminal.console)
    show(TextPiece("- half an"))
    show(Restarted("model_overloaded"))
    show(TextPiece("- whole"))
    show.end_line()
    assert [terminal.lines[0], terminal.lines[-1]] == ["• half an", "• whole"]

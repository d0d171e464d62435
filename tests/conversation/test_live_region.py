"""`LiveRegion`: rows that are written anew in place, and never stand there twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from tests.conversation.support.emulator import Emulator

from forkpoint.conversation.terminal.live_region import LiveRegion, can_be_live


def texts(*rows: str) -> list[Text]:
    return [Text(row) for row in rows]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["show", "settle", "footer", "apart"]), st.lists(st.sampled_from(["", "a", "bb" * 9, "c"]))
        ),
        max_size=12,
    )
)
def test_what_is_settled_stays_once_and_in_order_whatever_is_shown_between(steps: list[tuple[str, list[str]]]) -> None:
    terminal = Emulator(12, 6)
    region = LiveRegion(terminal.console)
    settled: list[str] = []
    for what, rows in steps:
        match what:
            case "show":
                region.show(texts(*rows))
            case "settle":
                region.settle(texts(*rows))
                settled += rows
            case "footer":
                region.set_footer(texts(*rows))
            case _:
                region.hide()
                terminal.console.print("apart")
                settled.append("apart")
                region.show_again()
    region.set_footer([])
    region.show([])
    expected = "".join(row[:12].ljust(12) + row[12:].ljust(12 if row[12:] else 0) for row in settled).rstrip()
    assert "".join(line.ljust(12) for line in terminal.lines).rstrip() == expected


def test_only_what_has_changed_is_written() -> None:
    terminal = Emulator()
    region = LiveRegion(terminal.console)
    region.show(texts("first", "second"))
    before = len(terminal.raw)
    region.show(texts("first", "second", "third"))
    region.show(texts("first", "second", "third"))
    assert terminal.raw[before:] == "\r\nthird"


def test_a_screen_that_became_narrower_has_broken_the_rows() -> None:
    terminal = Emulator(20)
    region = LiveRegion(terminal.console)
    region.show(texts("a" * 20, "b" * 15))
    before = len(terminal.raw)
    terminal.console.width = 10
    region.show(texts("c"))
    assert terminal.raw[before:] == "\r\x1b[3A\x1b[Jc"  # 20 and 15 columns are two rows each now


@pytest.mark.parametrize(
    ("console", "can"),
    [
        (Console(force_terminal=True, color_system="standard", legacy_windows=False), True),
        (Console(force_terminal=True, color_system="standard", no_color=True), False),
        (Console(force_terminal=True, color_system=None), False),
        (Console(force_terminal=False, color_system="standard"), False),
        (Console(force_terminal=True, color_system="standard", _environ={"TERM": "dumb"}), False),
        (Console(force_terminal=True, color_system="standard", force_jupyter=True), False),
    ],
)
def test_only_a_terminal_with_colours_is_live(console: Console, can: bool) -> None:
    assert can_be_live(console) is can

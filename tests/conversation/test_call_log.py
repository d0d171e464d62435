"""Tool calls on a screen: what they are, how far they are, and their output, readable and once."""

import io
import json

import pytest
from rich.console import Console
from tests.conversation.support.emulator import Emulator

from forkpoint import Agent, Conversation, TerminalVisualizer, tool
from forkpoint.events import Text, ToolCall, ToolResult
from forkpoint.testing import Reply, Script, ScriptedCall
from forkpoint.updates import CallEnded, CallProgress, CallStarted


@pytest.fixture
def terminal() -> Emulator:
    return Emulator(60, 40)


def result(text: str, status: str = "done", tool: str = "shell") -> CallEnded:
    return CallEnded(ToolResult("c", tool, (Text(text),), status))  # type: ignore[arg-type]


def test_an_output_has_its_line_breaks_and_says_how_much_is_left_out(terminal: Emulator) -> None:
    TerminalVisualizer(terminal.console)(result("\n".join(f"  line {number}" for number in range(40)) + "\n"))
    lines = [f"      line {number}" for number in range(6)]
    assert terminal.lines == ["  ← shell: 40 lines", *lines, "    … 34 more lines"]


def test_an_output_of_one_line_stands_beside_its_tool(terminal: Emulator) -> None:
    TerminalVisualizer(terminal.console)(result("all is well\n"))
    assert terminal.lines == ["  ← shell: all is well"]


def test_an_output_is_not_cut_to_save_a_single_line(terminal: Emulator) -> None:
    TerminalVisualizer(terminal.console)(result("\n".join("abcdefg")))
    assert terminal.lines[-1] == "    g"


def test_a_failure_has_its_lines_too(terminal: Emulator) -> None:
    TerminalVisualizer(terminal.console)(result("Traceback\n  here\nValueError", "failed"))
    assert terminal.lines == ["  ✗ shell failed: 3 lines", "    Traceback", "      here", "    ValueError"]


def test_what_a_tool_says_while_it_runs_is_shown_until_its_result_comes(terminal: Emulator) -> None:
    show = TerminalVisualizer(terminal.console)
    show(CallStarted(ToolCall("c", "shell", '{"command": "make"}')))
    show(CallProgress("c", "shell", "one\ntwo\n"))
    show(CallProgress("c", "shell", "three\n"))
    assert terminal.lines == ['  → shell(command="make")', "    one", "    two", "    three"]
    show(result("one\ntwo\nthree\n"))
    assert terminal.lines == ['  → shell(command="make")', "  ← shell: 3 lines", "    one", "    two", "    three"]


def test_where_lines_are_only_added_an_output_that_is_told_twice_is_shown_once() -> None:
    console = Console(force_terminal=False, width=80, record=True, file=io.StringIO())
    show = TerminalVisualizer(console)
    show(CallProgress("c", "shell", "one\ntwo\n"))
    show(result("one\ntwo\n"))
    show(CallProgress("c", "shell", "half\ndone\n"))
    show(result("whole"))
    lines = ["  ← shell: 2 lines", "    one", "    two", "    half", "    done", "  ← shell: whole"]
    assert console.export_text().splitlines() == lines


def test_an_edit_is_shown_as_a_diff(terminal: Emulator) -> None:
    arguments = {"path": "a.py", "old": "one\ntwo", "new": "one\n2"}
    TerminalVisualizer(terminal.console)(CallStarted(ToolCall("c", "edit_file", json.dumps(arguments))))
    assert terminal.lines == ['  → edit_file(path="a.py")', "      one", "    - two", "    + 2"]
    assert (terminal.style("- two")[0], terminal.style("+ 2")[0]) == ("red", "green")


def test_a_file_that_is_written_shows_its_first_lines(terminal: Emulator) -> None:
    arguments = {"path": "a.py", "content": "x\n" * 100}
    TerminalVisualizer(terminal.console)(CallStarted(ToolCall("c", "write_file", json.dumps(arguments))))
    assert terminal.lines[:2] == ['  → write_file(path="a.py")', "    + x"]
    assert terminal.lines[-1] == "    … 76 more lines"


def test_an_output_never_controls_the_terminal(terminal: Emulator) -> None:
    TerminalVisualizer(terminal.console)(result("\x1b[31mred\nb\x07ell"))
    assert terminal.lines == ["  ← shell: 2 lines", "    ␛[31mred", "    b␇ell"]


def test_an_edit_that_somebody_has_approved_is_not_shown_again() -> None:
    @tool(risky=True)
    def edit_file(path: str, old: str, new: str) -> str:
        """Edits a file."""
        return "edited"

    terminal = Emulator(100, 40)
    call = ScriptedCall("edit_file", json.dumps({"path": "a.py", "old": "one", "new": "two"}))
    who = Agent(Script([Reply(calls=(call,)), Reply("Done.")]).register("call-log-edit"), tools=[edit_file])
    show = TerminalVisualizer(terminal.console)
    with Conversation(who.replace(approval="risky"), store="memory:", visualizer=show) as conversation:
        conversation.run("Edit it.")
        conversation.approve()
    assert [line.strip() for line in terminal.lines].count("+ two") == 1
    assert '  → edit_file(path="a.py")' in terminal.lines

"""``forkpoint steer``, and what is typed in ``forkpoint chat`` while a turn runs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.program import Program
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal

from forkpoint import Conversation, Turn
from forkpoint.backend.results import words
from forkpoint.testing import Reply, ScriptedCall

LOOKS = Reply("Let me see.", calls=(ScriptedCall("look", "{}", "call_1"),))
AGENT = ("--agent", "looking:agent")
PROMPT = "❯ "
PATIENCE = 20

LOOKING = '''
import time
from pathlib import Path
from forkpoint import Agent, tool

@tool
def look() -> str:
    """Looks until it is told to go on."""
    Path("looking").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return "seen"

agent = Agent("scripted/script.json", tools=[look])
'''


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    program = Program(tmp_path)
    (tmp_path / "looking.py").write_text(LOOKING)
    return program


def asked(turn: Turn) -> list[str]:
    return [words(message.parts) for message in turn.input]


def turns(program: Program) -> tuple[Turn, ...]:
    with Conversation.open("it", bind=False, store=program.store) as conversation:
        return conversation.turns().items


@contextmanager
def looking(program: Program) -> Iterator[None]:
    """Waits until the tool runs. After the block it goes on."""
    deadline = time.monotonic() + PATIENCE
    while not (program.folder / "looking").exists():
        assert time.monotonic() < deadline, "the tool was not run"
        time.sleep(0.01)
    yield
    (program.folder / "go").touch()


def test_a_turn_of_another_process_is_steered(forkpoint: Program) -> None:
    forkpoint.script(LOOKS, Reply("Brief: fine."))
    with forkpoint.start("run", "Look.", "-c", "it", *AGENT) as process:
        assert process.stdin is not None
        process.stdin.close()
        with looking(forkpoint):
            done = forkpoint.run("steer", "it", "Be brief.", "--key", "k1")
            sent = forkpoint.json("steer", "it", "Be brief.", "--key", "k1")
        assert process.stdout is not None
        out = process.stdout.read()
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"Sent to turn {sent['turn']}. It is delivered with the next tool results.\n"
    assert (sent["outcome"], sent["delivered"], out) == ("running", False, "Brief: fine.\n")
    (turn,) = turns(forkpoint)
    assert [(one.id, one.delivered) for one in turn.steered] == [(sent["id"], True)]
    shown = forkpoint.run("show", "it", "--turn", turn.id).stdout
    assert "delivered: Be brief." in shown
    refused = forkpoint.run("steer", "it", "And now?")
    assert refused.returncode == 1
    assert "none is open; send the message as the next turn" in refused.stderr


def test_lines_that_are_typed_during_an_answer_are_queued_and_run_in_order(forkpoint: Program) -> None:
    forkpoint.script(LOOKS, Reply("Fine."), Reply("The net too."), Reply("Good bye."))
    with Terminal(forkpoint, "chat", "it", *AGENT) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("And the disk?\n")
        with looking(forkpoint):
            terminal.type("And the net?\n")
            terminal.wait_for("queued: And the net?")
            terminal.type("Thanks.\n")
            terminal.wait_for("queued: Thanks.")
            terminal.type("/steer Be brief.\n")
            terminal.wait_for("sent to the turn: Be brief.")
        terminal.wait_for(f"{PROMPT}And the net?")
        terminal.wait_for("The net too.")
        terminal.wait_for(f"{PROMPT}Thanks.")
        terminal.wait_for("Good bye.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    first, second, third = turns(forkpoint)
    assert [asked(turn) for turn in (first, second, third)] == [["And the disk?"], ["And the net?"], ["Thanks."]]
    assert [words(one.message.parts) for one in first.steered if one.message is not None] == ["Be brief."]
    assert [one.delivered for one in first.steered] == [True]


def test_ctrl_c_stops_the_answer_and_what_was_queued_is_not_sent(forkpoint: Program) -> None:
    forkpoint.script(LOOKS, Reply("Never said."))
    with Terminal(forkpoint, "chat", "it", *AGENT) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("And the disk?\n")
        with looking(forkpoint):
            terminal.type("And the net?\n")
            terminal.wait_for("queued: And the net?")
            terminal.type(CTRL_C)
            terminal.wait_for("Not sent, since the turn was stopped: And the net?")
        terminal.wait_for(PROMPT)
        terminal.type("/steer Too late.\n")
        terminal.wait_for("none is open")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert [turn.outcome for turn in turns(forkpoint)] == ["cancelled"]

"""``forkpoint budget``."""

from pathlib import Path

import pytest
from tests.cli.program import Program, agent, one_line

from forkpoint import Conversation
from forkpoint.cli.commands.branches.budget import drawn
from forkpoint.events import Usage
from forkpoint.testing import Reply


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    program = Program(tmp_path)
    speaker = agent("budget_cli", Reply("Hello.", usage=Usage(calls=1, input=90, output=10)))
    with Conversation(speaker, conversation_id="ann", store=program.store) as made:
        made.run("I am Ann")
        made.fork(conversation_id="fork").close()
    return program


def test_a_budget_is_set_shown_and_removed(forkpoint: Program) -> None:
    assert "It has no budget." in one_line(forkpoint.run("budget", "ann").stderr)
    shown = forkpoint.text("budget", "ann", "--tokens", "5000", "--turns", "3", "--family")
    assert [line.split() for line in shown.splitlines()][1:] == [
        ["the", "family", "tokens", "5,000", "100", "0", "4,900"],
        ["turns", "3", "1", "0", "2"],
    ]
    forkpoint.text("budget", "fork", "--dollars", "0.5", "--seconds", "60")
    own, family = forkpoint.json("budget", "fork")["items"]
    assert (own["scope"], own["limits"]) == ("conversation", {"dollars": 0.5, "seconds": 60})
    assert (family["scope"], family["spent"]["tokens"], family["left"]["tokens"]) == ("family", 100, 4900)
    assert forkpoint.json("budget", "ann", "--remove", "--family") == {"items": []}
    assert forkpoint.run("verify").returncode == 0


def test_a_turn_that_the_budget_does_not_allow_says_how_to_raise_it(forkpoint: Program) -> None:
    forkpoint.text("budget", "ann", "--turns", "1")
    refused = forkpoint.run("run", "-c", "ann", "More?")
    assert refused.returncode != 0
    assert "of 1 turns, 1 are spent" in one_line(refused.stderr)
    assert "Raise it with `forkpoint budget NAME`" in one_line(refused.stderr)
    assert "or run it again if no turn has begun" in one_line(refused.stderr)


def test_no_figure_is_cut_on_a_narrow_screen(forkpoint: Program) -> None:
    forkpoint.text("budget", "ann", "--tokens", "5000")
    with Conversation.open("ann", bind=False, store=forkpoint.store) as ann:
        found, here = ann.budget(), ann.id
    assert [str(line) for line in drawn(found, here, 40)] == [
        "the conversation",
        "  tokens: 100 of 5,000 spent, 0 reserved, 4,900 left",
    ]
    assert str(next(iter(drawn(found, "another", 40)))) == here


def test_a_fork_may_have_a_budget_of_its_own(forkpoint: Program) -> None:
    forkpoint.text("fork", "ann", "--name", "apart", "--budget", "dollars=0.5", "--budget", "turns=3")
    (own,) = forkpoint.json("budget", "apart")["items"]
    assert (own["limits"], own["apart"]) == ({"dollars": 0.5, "turns": 3}, True)
    for wrong in ("dollars", "pounds=1", "turns=1.5", "tokens=x"):
        refused = forkpoint.run("fork", "ann", "--budget", wrong)
        assert refused.returncode == 2
        assert "is not one of dollars=N" in one_line(refused.stderr)
    for option, key in (("--budget", "turns"), ("--result", "call_1"), ("--state", "suspect"), ("--tag", "kind")):
        refused = forkpoint.run("fork", "ann", option, f"{key}=1", option, f"{key}=2")
        assert (refused.returncode, f"'{key}' is given twice" in one_line(refused.stderr)) == (2, True), option


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (("--turns", "1", "--remove"), "give limits, or --remove"),
        (("--family",), "give limits or --remove with it"),
        (("--tokens", "-1"), "greater than or equal to 0"),
        (("--dollars", "nan"), "--dollars"),
    ],
)
def test_what_cannot_be_is_refused(forkpoint: Program, said: tuple[str, ...], why: str) -> None:
    refused = forkpoint.run("budget", "ann", *said)
    assert refused.returncode == 2
    assert why in one_line(refused.stderr)

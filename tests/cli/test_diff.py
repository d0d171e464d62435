"""``forkpoint diff`` and ``forkpoint bring``: two branches beside each other, and what one takes from the other."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.program import Program, agent

from forkpoint import Conversation
from forkpoint.backend.diff import Diff
from forkpoint.cli.commands.branches.diff import drawn
from forkpoint.events import Usage
from forkpoint.testing import Reply

USED = Usage(calls=1, input=100, cached=90, output=10)


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def family(forkpoint: Program, request: pytest.FixtureRequest) -> Diff:
    """A conversation and a branch that was asked the same, and then more."""
    answers = ("hi", "The disk is full.", "The disk is empty.", "Wait.", "Again \x1b[31m.", "Again.")
    said = [Reply(text, usage=USED) for text in answers]
    script = f"{request.node.name[:40]}-diff"
    with Conversation(agent(script, *said), conversation_id="build", store=forkpoint.store) as build:
        build.run("hello")
        with build.fork(conversation_id="try-2", title="The other way") as branch:
            build.run("why?")
            branch.run("why?")
            branch.run("and then?")
            branch.update_state({"suspect": "net"})
            return build.diff(branch)


def shown(found: Diff, width: int) -> str:
    out = io.StringIO()
    screen = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    for part in drawn(found, width):
        screen.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_two_branches_stand_side_by_side_and_words_that_differ_are_marked_without_colour(family: Diff) -> None:
    lines = shown(family, 100).splitlines()
    (beside,) = [line for line in lines if "[-full-]" in line]
    assert "{+empty+}" in beside
    (alone,) = [line for line in lines if "and then?" in line]
    assert alone.startswith("-  ")
    assert any("try-2" in line and "build" in line and "The other way" in line for line in lines)
    assert any(line.startswith("suspect") and '"net"' in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_on_a_narrow_screen_the_two_stand_in_one_column(family: Diff) -> None:
    text = shown(family, 60)
    assert "The disk is [-full-]{+empty+}." in text
    assert max(map(len, text.splitlines())) <= 60


def test_into_a_pipe_each_text_is_on_lines_of_its_own(forkpoint: Program, family: Diff) -> None:
    text = forkpoint.text("diff", "build", "try-2", COLUMNS="")
    assert "The disk is [-full-]{+empty+}." in text
    assert "They part after event" in text
    assert text == forkpoint.text("diff", family.a.id[:18], "try-2", COLUMNS="")


def test_a_program_gets_all_of_it_as_json(forkpoint: Program, family: Diff) -> None:
    found = forkpoint.json("diff", "build", "try-2", "--limit", "1")
    assert (found["ancestor"], found["related"], found["a"]["turns"], found["b"]["turns"]) == (
        family.ancestor,
        True,
        1,
        2,
    )
    assert (len(found["pairs"]), found["b"]["left_out"]) == (1, 2)
    assert found["pairs"][0]["text"]["pieces"][1] == {"side": "a", "text": "full"}
    assert found["b"]["usage"]["input"] == 200


def test_conversations_that_share_nothing_are_compared_and_it_says_so(forkpoint: Program, family: Diff) -> None:
    with Conversation(agent("unrelated-diff", Reply("hi")), conversation_id="other", store=forkpoint.store) as other:
        other.run("hello")
    assert "no common ancestor" in forkpoint.text("diff", "build", "other")
    assert "Both stand at event" in forkpoint.text("diff", "build", "build")


def test_a_summary_is_brought_with_what_it_cost(forkpoint: Program) -> None:
    with Conversation(agent("echoes"), conversation_id="build", store=forkpoint.store) as build:
        build.run("hello")
        with build.fork(conversation_id="try-2") as branch:
            branch.run("why?")
    text = forkpoint.text("bring", "build", "try-2", "--what", "summary")
    assert "A summary of what the branch try-2" in text
    assert "1 call" in text.splitlines()[-1]


def test_an_answer_and_turns_are_brought_once_for_a_key(forkpoint: Program, family: Diff) -> None:
    text = forkpoint.text("bring", "build", "try-2")
    assert "try-2" in text
    assert "Wait." in text
    assert forkpoint.text("bring", "build", "try-2", "--what", "turns").startswith("Brought 4 events from ")
    done = forkpoint.json("bring", "build", family.b.id[:18], "--key", "k")
    assert (done["what"], done["source"], [one["kind"] for one in done["events"]]) == (
        "answer",
        family.b.id,
        ["brought", "user_message"],
    )
    assert forkpoint.json("bring", "build", "try-2", "--key", "k") == done
    assert "brought" in forkpoint.text("show", "build", "--events")
    refused = forkpoint.run("bring", "build", "try-2", "--what", "turns", "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]["code"]) == (1, "bring_refused")

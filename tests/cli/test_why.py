"""``forkpoint why``: a line for each call with a bar, then the reasons."""

from pathlib import Path

import pytest
from tests.cli.program import Program, agent

from forkpoint import Conversation
from forkpoint.cli.commands.why import bar
from forkpoint.events import Usage
from forkpoint.llm.prompt.misses import CallCache
from forkpoint.testing import Reply


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def used(input: int, cached: int = 0, written: int = 0) -> Reply:
    return Reply("Yes.", usage=Usage(calls=1, input=input, cached=cached, written=written, output=1))


def test_why_shows_each_call_with_a_bar_and_the_reasons(forkpoint: Program) -> None:
    said = [used(100), used(200, 50, 50), used(300, 200)]
    with Conversation(agent("why", *said), conversation_id="it", store=forkpoint.store) as made:
        first = made.run("One?")
        made.run("Two?")
        made.fork(conversation_id="fork").close()
        newest = made.run("Three?")
    assert forkpoint.text("why", "it").splitlines() == [
        f"turn {newest.id}, committed",
        "1  ████████████████░░░░░░░░  200 cached, 100 fresh of 300 tokens; 200 could have been cached  scripted/why",
    ]
    shown = forkpoint.text("why", "it", first.id).splitlines()
    assert shown[1].startswith("1  ░░░░░░░░░░░░░░░░░░░░░░░░  0 cached, 100 fresh of 100 tokens; 0 could have been")
    assert shown[2:] == ["   - the first request of this conversation"]
    middle = forkpoint.text("why", "fork").splitlines()
    assert middle[1].startswith(
        "1  ██████▓▓▓▓▓▓░░░░░░░░░░░░  50 cached, 50 written, 100 fresh of 200 tokens; 100 could"
    )
    assert middle[2].startswith(
        "   - nothing that is recorded explains it: the prompt goes on from the request before it, with"
    )
    document = forkpoint.json("why", "it", first.id)
    assert [reason["code"] for reason in document["calls"][0]["reasons"]] == ["first_request"]


def test_why_needs_a_turn_that_asked_a_model(forkpoint: Program) -> None:
    with Conversation.open("silent", create=agent("silent"), store=forkpoint.store):
        pass
    silent = forkpoint.run("why", "silent")
    assert (silent.returncode, "no turn of its history asked a model" in silent.stderr) == (1, True)
    unknown = forkpoint.run("why", "silent", "01a1e2ba-4084-7591-a930-4814fe7695df")
    assert (unknown.returncode, "There is no turn" in unknown.stderr) == (1, True), unknown.stderr


@pytest.mark.parametrize(
    ("cached", "written", "fresh", "expected"),
    [(1, 0, 9_999, "█" + "░" * 23), (9_999, 1, 1, "█" * 22 + "▓░"), (0, 0, 0, "·" * 24), (5, 0, 0, "█" * 24)],
)
def test_a_part_of_a_prompt_is_never_too_small_to_be_seen(cached: int, written: int, fresh: int, expected: str) -> None:
    call = CallCache(1, "m", "p", 0, cached + written + fresh, cached, written, fresh)
    assert str(bar(call)) == expected

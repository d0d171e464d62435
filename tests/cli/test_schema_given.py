"""``run --schema``: an answer that has a form."""

import json
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

from forkpoint.testing import Reply

SCHEMA = {"type": "object", "properties": {"risk": {"type": "integer"}}, "required": ["risk"]}


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize("inline", [True, False])
def test_the_answer_is_checked_and_printed_as_json(forkpoint: Program, inline: bool) -> None:
    forkpoint.script(Reply("I would say two."), Reply('{"risk":2}'))  # the first has not the form, and is asked again
    (forkpoint.folder / "form.json").write_text(json.dumps(SCHEMA))
    given = json.dumps(SCHEMA) if inline else "form.json"
    arguments = ("run", "How risky?", "-c", "it", "--model", "scripted/script.json", "--schema", given)
    done = forkpoint.run(*arguments)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"risk": 2})
    assert "conversation it · committed" in done.stderr
    assert forkpoint.run(*arguments).returncode == 0, "the conversation has this form"
    other = forkpoint.run(*arguments[:-1], '{"type": "string"}')
    assert other.returncode == 2
    assert "has its agent's form of answers already" in one_line(other.stderr)


def test_a_schema_that_is_none_is_refused_in_words(forkpoint: Program) -> None:
    (forkpoint.folder / "list.json").write_text("[]")
    for given, why in (
        ("nowhere.json", "No such file"),
        ("list.json", "is no JSON schema"),
        ("{", "is no JSON schema"),
    ):
        done = forkpoint.run("run", "hi", "--model", "scripted/echo", "--schema", given)
        assert done.returncode == 2
        assert why in one_line(done.stderr)
    assert forkpoint.run("run", "hi", "--model", "scripted/echo", "--schema", '{"type": 5}').returncode == 1

"""Commands of a chat: answers again, other messages, other models, and what was spent."""

from pathlib import Path

import pytest
from tests.cli.program import Program, one_line
from tests.cli.test_chat import ECHO, chat, documents, found, turns

from forkpoint import Conversation
from forkpoint.testing import Reply


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_an_answer_is_given_again_and_the_old_one_is_kept(forkpoint: Program) -> None:
    forkpoint.script(Reply("one"), Reply("two"), Reply("two again"))
    shown = chat(forkpoint, "first", "second", "/regenerate", options=("talk", "--agent", "builds:agent"))
    aside = found(r"What stood there is kept: /switch (\S+)", shown)
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["one", "two again"]
    assert [turn.text for turn in turns(forkpoint, aside)] == ["one", "two"]


def test_a_message_is_edited_the_last_or_any(forkpoint: Program) -> None:
    lines = ["one", "two", "/edit 2b", "three", "/edit 1 another start", "/edit 7 x", "/edit"]
    shown = chat(forkpoint, *lines, options=("talk", *ECHO))
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: another start"]
    assert "You said: 2b" in shown
    assert "error: There is no turn 7: /turns shows those that there are" in shown
    assert "error: Use it like this: /edit [N] [TEXT]" in shown  # nobody can be asked on a pipe


def test_a_branch_is_compared_and_kept(forkpoint: Program) -> None:
    got = documents(forkpoint, "one", "/fork", "two", "/switch talk", "/diff", "/quit", options=("talk", *ECHO))
    assert got[4]["error"]["message"] == "Use it like this: /diff [BRANCH]"
    fork = got[1]["name"]
    shown = chat(forkpoint, f"/diff {fork}", f"/keep {fork}", options=("talk",))
    assert any("They part after event" in line for line in shown)
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: one", "You said: two"]


def test_another_model_answers_from_here_on(forkpoint: Program) -> None:
    forkpoint.script(Reply("scripted"))
    lines = ["/model", "one", "/model scripted/echo", "two", "/model nonsense"]
    shown = chat(forkpoint, *lines, options=("talk", "--model", "scripted/script.json"))
    assert "scripted/script.json answers." in shown
    assert "scripted/echo answers from here on." in shown
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["scripted", "You said: two"]
    assert found("^(error: .*)", shown)


def test_what_was_spent_why_and_all_of_a_turn_are_shown(forkpoint: Program) -> None:
    shown = chat(forkpoint, "one", "/usage", "/why", "/show", "/show 9", options=("talk", *ECHO))
    assert any(one_line(line).startswith("this conversation ") and "1 call" in line for line in shown)
    assert any(line.startswith("its family ") for line in shown)
    assert any(line.endswith("scripted/echo") and line.startswith("1  ") for line in shown)
    assert any(line.startswith("started ") for line in shown)
    assert "error: There is no turn 9: /turns shows those that there are" in shown


def test_a_title_is_given_and_the_conversation_is_written_into_a_file(forkpoint: Program) -> None:
    lines = ["/title", "one", "/title About one", "/export talk.md", "/export talk.md", "/export", "/export a b"]
    shown = chat(forkpoint, *lines, options=("talk", *ECHO))
    assert "There is no title yet: /title TEXT gives one." in shown
    assert "The title is: About one" in shown
    assert "You said: one" in (forkpoint.folder / "talk.md").read_text()
    assert (forkpoint.folder / "talk.jsonl").exists()
    assert "error: talk.md is there already: name another file" in shown
    assert "error: Use it like this: /export [FILE] [--md]" in shown
    with Conversation.open("talk", bind=False, store=forkpoint.store) as conversation:
        assert conversation.title() == "About one"


def test_what_to_look_at_is_said_when_a_conversation_is_compacted(forkpoint: Program) -> None:
    shown = chat(forkpoint, "one", "two", "three", "/compact Above all the colours.")
    assert any("Above all the colours." in line for line in shown), "the model, which repeats, did not hear it"


def test_a_short_conversation_has_nothing_to_compact(forkpoint: Program) -> None:
    assert any(line.startswith("Nothing was condensed") for line in chat(forkpoint, "one", "/compact"))


def test_an_agent_that_is_none_is_told_which_ones_are_built_in(forkpoint: Program) -> None:
    done = forkpoint.run("chat", "--agent", "coderr")
    assert "no agent that is built in, as coder is" in done.stderr

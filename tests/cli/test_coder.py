"""``--agent coder``: an agent that needs no code of yours, in the folder that you are in."""

import json
from pathlib import Path

import pytest
from tests.cli.program import Program

from forkpoint import Conversation
from forkpoint.agent.coder import INSTRUCTIONS
from forkpoint.cli.answerer.answerer import Answerer, ModelOptions
from forkpoint.errors import BadAgent
from forkpoint.testing import Reply, ScriptedCall

CODER = ("--agent", "coder", "--model", "scripted/script.json")


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def write(path: str, content: str) -> Reply:
    return Reply(calls=(ScriptedCall("write_file", json.dumps({"path": path, "content": content}), "w"),))


def test_it_works_here_with_the_model_that_is_named_and_asks_first(forkpoint: Program) -> None:
    forkpoint.script(write("a.txt", "one"), Reply("Written."))
    waits = forkpoint.run("run", "Write it.", "-c", "job", *CODER)
    assert waits.returncode == 3
    assert not (forkpoint.folder / "a.txt").exists()
    forkpoint.script(Reply("Written."))  # a process of its own begins with the first
    done = forkpoint.run("approve", "job", *forkpoint.seen("job"))
    assert (done.returncode, done.stdout) == (0, "Written.\n")
    assert (forkpoint.folder / "a.txt").read_text() == "one"
    with Conversation.open("job", bind=False, store=forkpoint.store) as conversation:
        info = conversation.info()
        assert (info.agent, info.model, info.workspace) == ("coder", "scripted/script.json", str(forkpoint.folder))
    with Conversation.open("job", store=forkpoint.store) as bound:
        assert bound.agent is not None
        assert bound.agent.instructions == INSTRUCTIONS


def test_where_nobody_can_be_asked_it_runs_without(forkpoint: Program) -> None:
    (forkpoint.folder / "inner").mkdir()
    forkpoint.script(write("a.txt", "one"), Reply("Written."))
    done = forkpoint.run("run", "Write it.", "-c", "job", *CODER, "--approval", "never", "--workspace", "inner")
    assert (done.returncode, done.stdout) == (0, "Written.\n")
    assert (forkpoint.folder / "inner" / "a.txt").read_text() == "one"
    forkpoint.script(Reply("Still there."))
    again = forkpoint.run("run", "And now?", "-c", "job", *CODER)
    assert (again.returncode, again.stdout) == (0, "Still there.\n"), "one that exists stays where it works"
    refused = forkpoint.run("run", "And now?", "-c", "job", "--approval", "always")
    assert refused.returncode == 2
    assert "--approval" in refused.stderr


def test_a_chat_with_it_is_a_conversation_like_any_other(forkpoint: Program) -> None:
    forkpoint.script(write("a.txt", "one"), Reply("Written."))
    done = forkpoint.run("chat", *CODER, "--json", stdin="Write it.\n/approve\n")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["outcome"], second["outcome"], second["text"]) == ("awaiting_approval", "committed", "Written.")
    assert (forkpoint.folder / "a.txt").read_text() == "one"


@pytest.mark.parametrize(
    ("options", "why"),
    [((*CODER, "--instructions", "Be brief."), "--instructions"), (("--agent", "coders"), "MODULE:NAME")],
)
def test_what_would_have_no_effect_and_what_is_no_agent_is_refused(
    forkpoint: Program, options: tuple[str, ...], why: str
) -> None:
    refused = forkpoint.run("run", "Hello", *options)
    assert refused.returncode != 0
    assert why in refused.stderr


def test_at_a_server_an_agent_of_the_same_name_has_its_own_model() -> None:
    who = Answerer(ModelOptions("scripted/echo"), agent="coder")
    who.check()
    with pytest.raises(BadAgent, match="--model cannot be given too"):
        who.at("http://localhost:8008")

"""The first answer of the model in the box: how the program asks it, and what it says of it, once."""

from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

from forkpoint import Agent, Conversation
from forkpoint.cli.answerer.bundled import INSTRUCTIONS, INTRODUCTION, MAX_TOKENS


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def agent_of(forkpoint: Program, name: str) -> Agent:
    with Conversation.open(name, store=forkpoint.store) as found:
        assert found.agent is not None
        return found.agent


def test_it_is_told_how_to_answer_and_what_it_is_is_said_once(forkpoint: Program) -> None:
    done = forkpoint.run("run", "What is the capital of France?", "-c", "one")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert one_line(done.stderr).count(INTRODUCTION) == 1
    agent = agent_of(forkpoint, "one")
    assert (agent.instructions, agent.llm.temperature, agent.llm.max_tokens) == (INSTRUCTIONS, 0, MAX_TOKENS)
    again = forkpoint.run("run", "And of Japan?", "-c", "one", "--model", "local/smollm2")
    assert (again.returncode, INTRODUCTION in one_line(again.stderr)) == (0, False), again.stderr


def test_who_says_how_it_is_to_answer_is_obeyed_and_programs_hear_nothing_of_it(forkpoint: Program) -> None:
    told = ("--instructions", "You answer with one word.")
    for name, form in (("quiet", "--quiet"), ("json", "--json")):
        done = forkpoint.run("run", "What is the capital of France?", "-c", name, form, *told)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert agent_of(forkpoint, name).instructions == "You answer with one word."


def test_chat_says_it_when_it_begins_and_not_of_another_model(forkpoint: Program) -> None:
    assert INTRODUCTION in one_line(forkpoint.run("chat", stdin="/quit\n").stdout)
    assert "small model" not in forkpoint.run("chat", "--model", "scripted/echo", stdin="/quit\n").stdout
    done = forkpoint.run("run", "Hello.", "--model", "scripted/echo", "-c", "echo")
    assert "small model" not in done.stderr
    assert agent_of(forkpoint, "echo").instructions == ""

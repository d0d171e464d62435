"""The coder: an agent made of the built-in tools, which is data like every other."""

import pytest

from forkpoint.agent import Agent, Limits, tool
from forkpoint.agent.builtin import TOOLS
from forkpoint.agent.coder import INSTRUCTIONS, coder
from forkpoint.agent.stored.document import bind
from forkpoint.errors import BadAgent
from forkpoint.events import ToolCall

ECHO = "scripted/echo"


@tool
def deploy() -> str:
    """Deploys."""
    return "deployed"


def test_it_has_the_tools_of_a_workspace_and_sub_agents() -> None:
    names = {tool.name for tool in coder(ECHO).tools}
    assert {tool.name for tool in TOOLS} <= names
    assert "spawn_agent" in names


@pytest.mark.parametrize("name", ["shell", "write_file", "edit_file"])
def test_it_asks_before_it_changes_anything(name: str) -> None:
    assert coder(ECHO).asks_before(ToolCall("c", name, "{}")) is not None


@pytest.mark.parametrize("name", ["read_file", "list_files", "search_files", "spawn_agent"])
def test_it_looks_around_unasked(name: str) -> None:
    assert coder(ECHO).asks_before(ToolCall("c", name, "{}")) is None


def test_it_comes_back_from_its_document_without_being_given() -> None:
    made = coder(ECHO)
    back = bind(made.to_json())
    assert (back.manifest.hash, back.limits, back.approval) == (made.manifest.hash, made.limits, made.approval)
    assert back.to_json() == made.to_json()


def test_what_is_given_is_added_or_replaces_a_setting() -> None:
    made = coder(ECHO, instructions="Use tabs.", tools=[deploy], limits=Limits(steps=3), sub_agents=None, name="mine")
    assert made.instructions == f"{INSTRUCTIONS}\n\nUse tabs."
    assert {tool.name for tool in made.tools} == {"deploy", *(tool.name for tool in TOOLS)}
    assert (made.limits, made.name, made.approval) == (Limits(steps=3), "mine", "risky")


def test_what_is_no_setting_of_an_agent_is_refused() -> None:
    with pytest.raises(TypeError):
        coder(ECHO, aproval="never")
    with pytest.raises(BadAgent):
        coder(ECHO, approval="sometimes")


def test_it_says_the_same_on_every_machine_and_in_every_folder() -> None:
    made = coder(ECHO)
    assert isinstance(made, Agent)
    assert made == coder(ECHO), "nothing volatile stands before the history"
    assert len(INSTRUCTIONS) < 2500, "every prompt pays for it"

"""``forkpoint approvals``: what a conversation may do without a question, listed and taken back."""

import json
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line
from tests.conversation.support import tools as shared

from forkpoint import Conversation
from forkpoint.agent.standing_approval import StandingApproval

ERASE = shared.steps([("erase", {})])


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def rule(forkpoint: Program) -> StandingApproval:
    """The standing approval of the conversation ``it``."""
    agent = shared.agent(approval="risky")
    with Conversation(agent, conversation_id="it", store=forkpoint.store, workspace=forkpoint.folder) as conversation:
        turn = conversation.run(ERASE)
        conversation.approve(*turn.waiting, always="call", by="ann\x1b[2J")
        return conversation.approvals()[0]


def test_what_is_allowed_is_listed_and_nothing_in_it_reaches_the_screen_as_a_command(
    forkpoint: Program, rule: StandingApproval
) -> None:
    listed = one_line(forkpoint.text("approvals", "it"))
    assert listed.startswith(f"id allows given by {rule.id} erase({{}}) ")
    assert listed.endswith(" ann␛[2J")
    (item,) = forkpoint.json("approvals", "it")["items"]
    assert (item["id"], item["kind"], item["tool"], item["arguments"]) == (rule.id, "call", "erase", "{}")
    shown = forkpoint.text("show", "it", "--events")
    assert f"and from then on without a question: erase({{}}) ({rule.id})" in one_line(shown)


def test_what_is_taken_back_is_asked_about_again(forkpoint: Program, rule: StandingApproval) -> None:
    done = forkpoint.run("approvals", "it", "--revoke", rule.id[:6], "--by", "ben")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "Revoked: erase({}). Such calls are asked about again.\n"
    none = forkpoint.run("approvals", "it")
    assert (none.returncode, none.stdout) == (0, "")
    assert "There are no standing approvals" in none.stderr
    assert forkpoint.json("approvals", "it") == {"items": []}
    assert " ben\n" in forkpoint.text("approvals", "it", "--all")
    again = forkpoint.json("approvals", "it", "--revoke", rule.id)
    assert again["revoked_by"] == "ben", "once more changes nothing"
    with Conversation.open("it", store=forkpoint.store) as conversation:
        assert conversation.run(ERASE).outcome == "awaiting_approval"


def test_what_is_not_there_cannot_be_taken_back(forkpoint: Program, rule: StandingApproval) -> None:
    missing = forkpoint.run("approvals", "it", "--revoke", "zzz", "--json")
    assert missing.returncode == 1
    assert json.loads(missing.stderr)["error"]["code"] == "not_found"
    assert forkpoint.run("approvals", "nobody").returncode == 1

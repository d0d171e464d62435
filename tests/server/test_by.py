"""Turns, notes and approvals name the key of the request that began them, whatever the client says of itself."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint import Agent, AsyncConversation, Conversation, tool
from forkpoint.backend.actor import actor
from forkpoint.conversation import acting_as
from forkpoint.errors import BadArgument
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.keys import Keyring, Keys, add_key
from forkpoint.testing import Reply, Script, ScriptedCall

PLACE = "/api/conversations"
ECHO = Agent("scripted/echo")

pytestmark = pytest.mark.anyio


@tool(risky=True)
def erase(file: str) -> str:
    """Erases a file."""
    return f"{file} is gone"


def asks(heard: Any) -> Reply:
    if heard.body["messages"][-1]["role"] == "tool":
        return Reply("Done.")
    return Reply(calls=(ScriptedCall("erase", '{"file": "a"}', "c1"),))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "keys.json"
    tokens = {name: add_key(file, name).token for name in ("ci", "ann")}
    careful = Agent(Script(asks).register("asks-first"), tools=[erase], approval="risky")
    agents = Catalog({"echo": ECHO, "careful": careful})
    with served(f"sqlite:///{tmp_path / 'store.db'}", agents, keyring=Keyring([Keys(file)])) as running:
        running.tokens = tokens  # type: ignore[attr-defined]
        yield running


def client_of(server: Served, name: str) -> httpx2.Client:
    return checked(server, server.tokens[name])  # type: ignore[attr-defined]


def test_each_turn_names_the_key_that_began_it(server: Served) -> None:
    with client_of(server, "ci") as ci, client_of(server, "ann") as ann:
        ci.post(PLACE, json={"id": "a", "agent": "echo"})
        first = ci.post(f"{PLACE}/a/turns", json={"message": "Hi"}).json()
        second = ann.post(f"{PLACE}/a/turns", json={"message": "Hi"}).json()
        chat = ci.post(
            "/v1/chat/completions",
            json={"model": "echo", "messages": [{"role": "user", "content": "Hi"}]},
            headers={"X-Conversation-Id": "b"},
        )
        assert (first["by"], second["by"]) == ("ci", "ann")
        assert [one["by"] for one in ann.get(f"{PLACE}/a/turns").json()["items"]] == ["ci", "ann"]
        assert ann.get(f"{PLACE}/b/turns/{chat.headers['x-turn-id']}").json()["by"] == "ci"


def test_a_note_is_kept_with_the_key(server: Served, tmp_path: Path) -> None:
    with client_of(server, "ann") as ann:
        ann.post(PLACE, json={"id": "a", "agent": "echo"})
        assert ann.patch(f"{PLACE}/a/state", json={"set": {"x": 1}}).status_code == 200
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        assert db.execute('SELECT kind, "by" FROM turn').fetchall() == [("note", "ann")]


@pytest.mark.parametrize(
    ("said", "kept"), [(None, "ci"), ("ann", "ann (key ci)"), ("ann (key ann)", "ann (key ann) (key ci)")]
)
@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_a_decision_names_the_key_beside_what_the_client_says(
    server: Served, verb: str, said: str | None, kept: str
) -> None:
    with client_of(server, "ci") as ci:
        ci.post(PLACE, json={"id": "a", "agent": "careful"})
        turn = ci.post(f"{PLACE}/a/turns", json={"message": "Clean up"}).json()
        (call,) = turn["calls"]
        calls = [{"id": call["id"], "digest": call["digest"]}]
        body = {"calls": calls} | ({} if said is None else {"by": said})
        answered = ci.post(f"{PLACE}/a/turns/{turn['id']}/{verb}", json=body)
        assert answered.status_code == 200, answered.text
        decided = [
            event["body"]["by"]
            for event in answered.json()["events"]
            if event["kind"].startswith("approval_") and event["kind"] != "approval_asked"
        ]
        assert decided == [kept]


async def test_without_a_server_a_program_says_who_acts() -> None:
    async with AsyncConversation(ECHO, store="memory:") as conversation:
        with acting_as("nightly"):
            turn = await conversation.run("Hi")
            fork = await conversation.fork()
            inner = await fork.run("Hi")
        plain = await conversation.run("Hi")
        assert (turn.by, inner.by, plain.by) == ("nightly", "nightly", None)
        assert [one.by for one in (await conversation.turns()).items] == ["nightly", None]


def test_it_goes_with_the_context_of_a_synchronous_call_too() -> None:
    with Conversation(ECHO, store="memory:") as conversation, acting_as("ann"):
        assert conversation.run("Hi").by == "ann"
        with acting_as("bob"):
            assert actor() == "bob"
        assert actor() == "ann"
    assert actor() is None


@pytest.mark.parametrize("name", ["", "x" * 257, "\ud800"])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises(BadArgument), acting_as(name):
        pass

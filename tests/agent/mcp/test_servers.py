"""A server is frozen data: checked when it is made, the same after a way through JSON, without its secrets."""

from pathlib import Path
from typing import Any

import pytest

from forkpoint.agent.mcp import McpFailed, McpServer
from forkpoint.agent.mcp.servers import start_of
from forkpoint.errors import BadAgent, BadSetting

FULL = McpServer(
    "github",
    command=["server", "--root", "${workspace}"],
    env={"TOKEN": "${GITHUB_TOKEN}", "LEVEL": "debug", "KEY": "line\nline"},
    cwd="${workspace}/sub",
    tools=["b", "a", "b"],
    timeout=5,
    hints=True,
)


@pytest.mark.parametrize("server", [FULL, McpServer("web", url="http://host/mcp", headers={"A": "Bearer ${KEY}"})])
def test_a_server_comes_back_from_its_json_as_it_was(server: McpServer) -> None:
    again = McpServer.from_json(server.to_json())
    assert again == server
    assert again.to_json() == server.to_json()


def test_what_is_not_said_is_not_in_the_document() -> None:
    assert McpServer("a", command=["b"]).to_json() == '{"name":"a","command":["b"]}'


def test_equal_servers_have_one_document_in_whatever_order_they_are_said() -> None:
    one = McpServer("a", command=["b"], env={"X": "1", "A": "2"}, tools=["y", "x"])
    assert one.to_json() == McpServer("a", command=("b",), env={"A": "2", "X": "1"}, tools=("x", "y", "x")).to_json()


def test_nobody_changes_a_server_through_what_it_was_made_of() -> None:
    env = {"A": "1"}
    server = McpServer("a", command=["b"], env=env)
    env["A"] = "2"
    assert server.env == {"A": "1"}


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "a__b"},
        {"name": "_a"},
        {"name": "a_"},
        {"name": "a" * 33},
        {"command": []},
        {"command": "program"},
        {"command": ["a\0b"]},
        {"command": [""]},
        {"url": "http://host"},
        {"command": [], "url": "ftp://host"},
        {"command": [], "url": "http://"},
        {"command": [], "url": "http://me:secret@host/"},
        {"command": [], "url": "http://[host"},
        {"command": [], "url": "http://host", "env": {"A": "b"}},
        {"command": [], "url": "http://host", "cwd": "/"},
        {"command": [], "url": "http://host", "headers": {"A b": "c"}},
        {"command": [], "url": "http://host", "headers": {"A": "b\nC: d"}},
        {"headers": {"A": "b"}},
        {"env": {"A=B": "c"}},
        {"env": {"A": 1}},
        {"cwd": ""},
        {"tools": []},
        {"tools": "all"},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": True},
        {"hints": "yes"},
    ],
    ids=str,
)
def test_a_server_that_cannot_be_is_refused_when_it_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(BadAgent):
        McpServer(**{"name": "a", "command": ["b"]} | fields)


@pytest.mark.parametrize("text", ["", "[]", '{"name":"a","command":["b"],"more":1}', '{"name":"a","command":"b"}'])
def test_a_document_that_is_no_server_is_refused(text: str) -> None:
    with pytest.raises((BadSetting, BadAgent)):
        McpServer.from_json(text)


def test_secrets_are_filled_in_when_it_is_started_and_the_agents_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "of the environment")
    start = start_of(FULL, workspace=Path("/work"), secrets={"GITHUB_TOKEN": "of the agent"})
    assert dict(start.env) == {"TOKEN": "of the agent", "LEVEL": "debug", "KEY": "line\nline"}
    assert dict(start_of(FULL, workspace=Path("/work")).env)["TOKEN"] == "of the environment"
    assert (start.command, start.cwd) == (("server", "--root", "/work"), "/work/sub")
    assert "of the agent" not in repr(start) + FULL.to_json()
    assert start.masking.text("it is of the agent.") == "it is ***."
    assert FULL._references == ("GITHUB_TOKEN",)


def test_a_command_shows_no_secret_since_every_process_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "secret")
    assert start_of(McpServer("a", command=["b", "${KEY}"])).command == ("b", "${KEY}")


def test_a_secret_or_folder_that_is_missing_is_said_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    with pytest.raises(McpFailed, match=r"needs \$\{GITHUB_TOKEN\}"):
        start_of(FULL, workspace=Path("/work"))
    with pytest.raises(McpFailed, match=r"needs \$\{workspace\}"):
        start_of(FULL, secrets={"GITHUB_TOKEN": "x"})

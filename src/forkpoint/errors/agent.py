"""Errors of agents, and of what agents need: tools, sub-agents, MCP servers, secrets. Tests: tests/test_errors.py."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class BadAgent(ForkpointError, code="bad_agent"):
    """This agent cannot be used: {why}.

    Check how it is made, and make another.

    Command line: Check it, or name another: --agent MODULE:NAME is an Agent in your own code, and --agent coder is
    built in.

    Chat: Check the tools and the form of the answer that the request asks for, or use another model.
    """

    why: str


class BadConfig(BadAgent, code="bad_config"):
    """The server's file cannot be used: {why}.

    Check these places, and start the server again.
    """


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing that a conversation was made with, and that is not here as it was. Without a name it is the agent
    itself. In words it says what and why."""

    kind: Literal["tool", "output", "approval", "workspace", "model", "agent", "hook", "condenser"]
    name: str
    why: str

    def __str__(self) -> str:
        if not self.name:
            return f"its {self.kind} {self.why}"
        return f"{'approval policy' if self.kind == 'approval' else self.kind} {self.name}: {self.why}"


class CannotResume(ForkpointError, code="cannot_resume"):
    """What this conversation was made with is not here as it was: {missing}.

    Make it importable again, or go on without it.

    Python: Open it with an agent that has it, make it importable again, or go on without it: `allow` names what may be
    missing.

    Command line: Name an agent that has it with --agent, make it importable again, or go on without it: --allow KIND.

    HTTP: Send an agent that has it, or go on without it: "allow" in the body names what may be missing.

    Chat: Go on in another conversation, or tell whoever runs the server.
    """

    missing: str
    items: tuple[Item, ...] = ()

    @classmethod
    def of(cls, items: Iterable[Item]) -> "CannotResume":
        """The error that says all of these at once."""
        listed = tuple(dict.fromkeys(items))
        return cls("; ".join(map(str, listed)), listed)


class SpawnRefused(ForkpointError, code="spawn_refused"):
    """Nothing was asked of a sub-agent: {why}.

    Ask again in another way.
    """

    why: str

    @form
    def agent_closed(self, agent: str) -> None:
        """The sub-agent {agent} was closed by its parent.

        It can still be read and forked; spawn another one to go on.
        """
        self.why = f"{agent} was closed"


class NoAgent(ForkpointError, code="no_agent"):
    """Conversation {conversation} cannot run here: {why}.

    Give it an agent.

    Python: Open it with its tools at hand, or use change_agent() to give it an agent.

    Command line: Name an agent that has its tools with --agent MODULE:NAME.

    HTTP: Send an agent with the turn, or PUT one to the conversation.

    Chat: Go on in another conversation, or tell whoever runs the server.
    """

    conversation: str
    why: str


class BadTool(ForkpointError, code="bad_tool"):
    """The tool {name!r} cannot be offered to a model: {why}.

    Check its name (1 to 64 of the characters A-Z a-z 0-9 _ -), its annotations and its schema.
    """

    name: str
    why: str


class McpFailed(ForkpointError, code="mcp_failed"):
    """The MCP server {server!r} {why}.

    Check how it is started or reached, and try again: it is started anew.

    Chat: Try again, since it is started anew; if that does not help, tell whoever runs the server.
    """

    server: str
    why: str


class NoSecret(ForkpointError, code="no_secret"):
    """The secret {name} cannot be had from {reference}: {why}.

    Check that reference, and try again.

    Chat: Tell whoever runs the server.
    """

    name: str
    reference: str
    why: str

"""Forkpoint: conversations for AI agents in which every turn is a transaction and every commit a fork point.

::

    from forkpoint import Agent, Conversation, tool

Everything else has a module of its own: errors in `forkpoint.errors`, events in `forkpoint.events`, stores in
`forkpoint.store`, models in `forkpoint.llm`, what tests need in `forkpoint.testing`. Names here are loaded when they
are first used, so that importing a part of Forkpoint loads no more than that part.
"""

import importlib
from typing import TYPE_CHECKING, Any

from forkpoint.version import __version__ as __version__

if TYPE_CHECKING:
    from forkpoint.agent import (
        Agent,
        Condenser,
        Hook,
        Limits,
        McpServer,
        Role,
        Secret,
        Skill,
        SubAgents,
        ToolContext,
        Window,
    )
    from forkpoint.agent.team.tools import Member
    from forkpoint.agent.tool import Tool, tool  # not by way of the package: there the name is also a module's
    from forkpoint.attachments import attachment
    from forkpoint.conversation import AsyncConversation, AsyncConversations, Conversation, Conversations, Turn
    from forkpoint.conversation.visualizer import TerminalVisualizer
    from forkpoint.errors import ForkpointError, TurnCancelled, TurnFailed
    from forkpoint.events import Image
    from forkpoint.history.budgets import Budget
    from forkpoint.llm import LLM
    from forkpoint.updates import (
        Answered,
        CallEnded,
        CallPiece,
        CallProgress,
        CallStarted,
        CallWaits,
        ReasoningPiece,
        Restarted,
        Steered,
        TextPiece,
        TurnJoined,
        TurnStarted,
    )

__all__ = [
    "LLM",
    "Agent",
    "Answered",
    "AsyncConversation",
    "AsyncConversations",
    "Budget",
    "CallEnded",
    "CallPiece",
    "CallProgress",
    "CallStarted",
    "CallWaits",
    "Condenser",
    "Conversation",
    "Conversations",
    "ForkpointError",
    "Hook",
    "Image",
    "Limits",
    "McpServer",
    "Member",
    "ReasoningPiece",
    "Restarted",
    "Role",
    "Secret",
    "Skill",
    "Steered",
    "SubAgents",
    "TerminalVisualizer",
    "TextPiece",
    "Tool",
    "ToolContext",
    "Turn",
    "TurnCancelled",
    "TurnFailed",
    "TurnJoined",
    "TurnStarted",
    "Window",
    "attachment",
    "tool",
]

_HOMES = {
    name: module
    for module, names in {
        "forkpoint.agent.agent": "Agent Limits",
        "forkpoint.agent.condense.condenser": "Condenser Window",
        "forkpoint.agent.context": "ToolContext",
        "forkpoint.agent.hooks.hook": "Hook",
        "forkpoint.agent.mcp.servers": "McpServer",
        "forkpoint.agent.secrets.secret": "Secret",
        "forkpoint.agent.skills.skill": "Skill",
        "forkpoint.agent.team.offer": "Role SubAgents",
        "forkpoint.agent.team.tools": "Member",
        "forkpoint.agent.tool": "Tool tool",
        "forkpoint.attachments": "attachment",
        "forkpoint.conversation": "AsyncConversation AsyncConversations Conversation Conversations Turn",
        "forkpoint.conversation.visualizer": "TerminalVisualizer",
        "forkpoint.errors": "ForkpointError TurnCancelled TurnFailed",
        "forkpoint.events": "Image",
        "forkpoint.history.budgets": "Budget",
        "forkpoint.llm.model": "LLM",
        "forkpoint.updates": "Answered CallEnded CallPiece CallProgress CallStarted CallWaits "
        "ReasoningPiece Restarted Steered TextPiece TurnJoined TurnStarted",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forkpoint' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

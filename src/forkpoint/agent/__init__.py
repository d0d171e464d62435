"""Agents: which model, which instructions, which tools, and what they may do. Frozen data, shared by everybody.

- `tool`, `arguments`: a typed Python function as a tool; its schema, and what a model writes for it.
- `context`: what a tool sees while it runs.
- `running`: one call, to its result.
- `agent`: `Agent`, and its limits. `approval`: which calls wait for somebody. `sub_agents`: whom it may give tasks to.
- `hooks`: what runs at certain moments of its turns.
- `mcp`: MCP servers as tools.
- `skills`: what it is told when it comes to it. `condenser`: what its prompts forget.
- `secrets`: where values are that nobody may read. `masking_values`: how they are hidden in texts.
- `output`: a form of answers that is only a JSON schema.
- `binding`: an agent's JSON, and how its callables are found again.
"""

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.approval import Approval
from forkpoint.agent.binding import bind
from forkpoint.agent.condenser import Condenser, Window
from forkpoint.agent.context import AgentState, ToolContext
from forkpoint.agent.hooks import Block, Hook, HookContext
from forkpoint.agent.mcp import McpServer
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.running import run_call
from forkpoint.agent.secrets import Secret
from forkpoint.agent.skills import Skill
from forkpoint.agent.sub_agents import Role, SubAgents
from forkpoint.agent.tool import Tool, tool

__all__ = [
    "Agent",
    "AgentState",
    "Approval",
    "Block",
    "Condenser",
    "Hook",
    "HookContext",
    "Limits",
    "McpServer",
    "OutputSchema",
    "Role",
    "Secret",
    "Skill",
    "SubAgents",
    "Tool",
    "ToolContext",
    "Window",
    "bind",
    "run_call",
    "tool",
]

"""Agents: which model, which instructions, which tools, and what they may do. Frozen data, shared by everybody.

- `agent`: `Agent`, and its limits. `approval`: which calls wait for somebody. `output`: answers in a given form.
- `tool`, `arguments`: a typed Python function as a tool. `context`: what it sees while it runs. `calls`: one call.
- `loop`: ask the model, run its tools, until there is an answer. `budget`: how much a turn may still use.
- `stored/`: an agent as JSON, and its functions found again. `team/`: sub-agents. `hooks/`, `skills/`, `secrets/`.
- `condense/`: what prompts leave out. `mcp/`: MCP servers as tools. `builtin/`: tools that work in the workspace.
"""

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.approval import Approval
from forkpoint.agent.calls import run_call
from forkpoint.agent.condense.condenser import Condenser, Window
from forkpoint.agent.context import ToolContext
from forkpoint.agent.hooks.hook import Block, Hook, HookContext
from forkpoint.agent.mcp import McpServer
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.secrets.secret import Secret
from forkpoint.agent.skills.skill import Skill
from forkpoint.agent.team.offer import Role, SubAgents
from forkpoint.agent.tool import Tool, tool

__all__ = [
    "Agent",
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
    "run_call",
    "tool",
]

"""Agents: which model, which instructions, which tools, and what they may do. Frozen data, shared by everybody.

- `tool`, `arguments`: a typed Python function as a tool; its schema, and what a model writes for it.
- `context`: what a tool sees while it runs.
- `running`: one call, to its result.
- `agent`: `Agent`, and its limits. `approval`: which calls wait for somebody. `sub_agents`: whom it may give tasks to.
- `output`: a form of answers that is only a JSON schema.
- `binding`: an agent's JSON, and how its callables are found again.
"""

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.approval import Approval
from forkpoint.agent.binding import bind
from forkpoint.agent.context import AgentState, ToolContext
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.running import run_call
from forkpoint.agent.sub_agents import Role, SubAgents
from forkpoint.agent.tool import Tool, tool

__all__ = [
    "Agent",
    "AgentState",
    "Approval",
    "Limits",
    "OutputSchema",
    "Role",
    "SubAgents",
    "Tool",
    "ToolContext",
    "bind",
    "run_call",
    "tool",
]

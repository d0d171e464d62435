"""MCP servers as tools, over the official SDK (the extra ``mcp``), which is loaded when a server is first needed.

- `servers`: `McpServer`, how one is reached: frozen data with a JSON form.
- `tools`: what servers offer, frozen as data, and as tools that an agent can have.
- `results`: what a server answers, as parts.
- `connections`: connections, each started on demand and ended with the process. `processes` and `addresses` are the two
  ways to reach a server; `thread` is where all of it happens.
- `failures`: a tool that says that it has failed. A server that cannot be used is `forkpoint.errors.McpFailed`.
"""

from forkpoint.agent.mcp.connections import end_servers
from forkpoint.agent.mcp.failures import McpToolError
from forkpoint.agent.mcp.servers import McpServer, rooted
from forkpoint.agent.mcp.tools import (
    Offered,
    OfferedTool,
    connect,
    is_mcp_tool,
    mcp_tools,
    names_for,
    offered_now,
    offered_of,
    offers,
    project_servers,
    without_served,
)
from forkpoint.errors import McpFailed

__all__ = [
    "McpFailed",
    "McpServer",
    "McpToolError",
    "Offered",
    "OfferedTool",
    "connect",
    "end_servers",
    "is_mcp_tool",
    "mcp_tools",
    "names_for",
    "offered_now",
    "offered_of",
    "offers",
    "project_servers",
    "rooted",
    "without_served",
]

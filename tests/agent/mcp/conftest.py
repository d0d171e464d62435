"""Servers end with the module whose tests started them."""

from tests.agent.mcp.calling import servers as servers

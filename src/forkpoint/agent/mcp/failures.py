"""What goes wrong with MCP servers, beside `McpFailed`: a server that cannot be used.
Tests: tests/agent/mcp/test_connections.py."""

from forkpoint.agent.secrets.masking import Masking


class McpToolError(Exception):
    """A tool of an MCP server says that it has failed. The text is for the model."""


def reason(error: BaseException, masking: Masking) -> str:
    """What an error says, masked and in one line; of a group what its members say."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(reason(one, masking) for one in error.exceptions))
    said = " ".join(masking.text(str(error)).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__

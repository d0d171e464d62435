"""Servers of the tests, and calls of their tools."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from forkpoint.agent import Tool, ToolContext, run_call
from forkpoint.agent.mcp import McpServer, connect, end_servers
from forkpoint.events import Text, ToolCall, ToolResult

HERE = Path(__file__).parent

_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Servers are shared by the tests of a module, end with it, and need not be waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forkpoint.agent.mcp.processes.GRACE", 0.2)
        yield
        anyio.run(end_servers)


def fresh(manner: str = "well", **settings: Any) -> McpServer:
    """The same as `odd`, in a process that no other test has talked to."""
    return odd(manner, **settings, env={"NUMBER": str(next(_numbers))})


def odd(manner: str = "well", **settings: Any) -> McpServer:
    """The server that does whatever a test needs."""
    fields: dict[str, Any] = {"name": "odd", "timeout": 20.0} | settings
    return McpServer(command=[sys.executable, "-I", "-S", str(HERE / "odd_server.py"), manner], **fields)


class Tools:
    """The tools of a server, called as the loop does it."""

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self.tools = {tool.name: tool for tool in tools}

    @classmethod
    async def of(cls, *servers: McpServer) -> "Tools":
        return cls(await connect(*servers))

    async def result(
        self, name: str, arguments: str = "{}", *, progress: Callable[[str], None] | None = None, **context: Any
    ) -> ToolResult:
        name = name if "__" in name else f"odd__{name}"
        call = ToolCall("c1", name, arguments)
        return await run_call(self.tools.get(name), call, ToolContext("c1", progress=progress, **context))

    async def done(self, name: str, arguments: str = "{}", **context: Any) -> str:
        """What a call says that is to succeed."""
        result = await self.result(name, arguments, **context)
        assert result.status == "done", said(result)
        return said(result)

    async def failed(self, name: str, arguments: str = "{}", **context: Any) -> str:
        """What a call says that is to fail."""
        result = await self.result(name, arguments, **context)
        assert result.status == "failed", said(result)
        return said(result)


def said(result: ToolResult) -> str:
    return "".join(part.text for part in result.parts if isinstance(part, Text))


def is_there(pid: int) -> bool:
    """Whether a process runs. One that has ended and waits for its parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

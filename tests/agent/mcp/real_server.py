"""A server made with the official SDK, in a thread of its own, over HTTP."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452")

server = MCPServer("real", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def picture() -> Image:
    """Shows a picture."""
    return Image(data=PNG, format="png")


@server.tool()
async def works(ctx: Context) -> str:
    """Says how far it is."""
    await ctx.report_progress(1, 2, "half")
    return "worked"


@contextmanager
def serving() -> Iterator[str]:
    """Its address, for as long as it is there."""
    web = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="critical"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            web.should_exit = True
            thread.join()

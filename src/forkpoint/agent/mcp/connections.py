"""Connections to MCP servers: each is started when it is first needed, shared by whoever needs it, and ended with the
process.

**What a caller can rely on: a call comes to an end within its server's timeout, whatever the server does.** One that
dies, closes its connection, speaks rubbish or says nothing has failed the calls that wait for it, with the reason, and
is started anew for the next. No call is made twice: nobody knows what the first one did.
"""

import functools
import importlib.metadata
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from forkpoint.agent.mcp.addresses import address
from forkpoint.agent.mcp.failures import McpToolError, reason
from forkpoint.agent.mcp.processes import GRACE, ServerEnded, ServerOutput, process
from forkpoint.agent.mcp.servers import Start
from forkpoint.agent.mcp.thread import there
from forkpoint.errors import McpFailed, TrustChanged
from forkpoint.system import extras
from forkpoint.threads.wakeup import soon_here

T = TypeVar("T")

MOST = 64
"""Connections that are kept. Beyond that the one that was idle for longest is ended."""

PAGES = 100
"""Pages that a server's list of tools may have."""

PATIENCE = 2.0
"""Seconds for a server that has let a call time out to show that it is still there."""

_SLACK = 5.0  # seconds beyond a timeout, for a thread that has much to do
_MAY_HAVE_RUN = "It may have done part of its work."


async def list_tools(start: Start) -> tuple[Any, ...]:
    """The tools that a server offers now, as the SDK's. It is started if need be. Raises `McpFailed`."""

    async def ask(group: TaskGroup) -> tuple[Any, ...]:
        with anyio.move_on_after(start.timeout):
            connection = await _pool(group).connected(start)
            with connection.used():
                return await connection.tools()
        raise McpFailed(start.name, f"did not list its tools within {start.timeout:g} s")

    return await _there(start, ask)


async def known_tools(start: Start) -> tuple[Any, ...] | None:
    """The tools that a server offers now, if it is connected; None if it is not, or does not answer."""

    async def ask(group: TaskGroup) -> tuple[Any, ...] | None:
        connection = _pool(group).live(start)
        if connection is None or not connection.ready.is_set():
            return None
        with anyio.move_on_after(PATIENCE), connection.used():
            return await connection.tools()
        return None

    try:
        return await _there(start, ask)
    except McpFailed:
        return None


async def call_tool(
    start: Start, tool: str, arguments: dict[str, Any], progress: Callable[[str], None] | None = None
) -> Any:
    """The SDK's result of a call. Raises `McpFailed`, or `McpToolError` if the server refuses the call."""
    tell = soon_here()

    async def heard(done: float, total: float | None, message: str | None) -> None:
        if progress is not None:
            share = f"{done:g}" if total is None else f"{done:g} of {total:g}"
            tell(progress, start.masking.text(f"{share}: {message}" if message else share))

    async def call(group: TaskGroup) -> Any:
        connection: _Connection | None = None
        with anyio.move_on_after(start.timeout):
            connection = await _pool(group).connected(start)
            with connection.used():
                return await connection.call(tool, arguments, heard)
        if connection is None:
            raise McpFailed(start.name, f"did not start within {start.timeout:g} s")
        connection.suspect(group)
        raise McpFailed(start.name, f"did not answer within {start.timeout:g} s. {_MAY_HAVE_RUN}".rstrip("."))

    return await _there(start, call)


async def end_servers() -> None:
    """Ends all connections; the next call of a tool starts its server anew. At the process's end they end anyway."""

    async def end(group: TaskGroup) -> None:
        connections = list(_pool(group).connections.values())
        for connection in connections:
            connection.end()
        for connection in connections:
            await connection.ended.wait()

    if _the_pool is not None:
        await there(end)


class _Connection:
    """One connection to a server. Its task enters and leaves all that it is made of; others use its session."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.heard = ServerOutput(start.masking)
        self.ready = anyio.Event()  # or it has failed
        self.ended = anyio.Event()
        self.is_retired = False  # whoever uses it ends, and nobody else begins
        self.users = 0
        self.probe: anyio.Event | None = None
        self.refused: TrustChanged | None = None  # it was not started: its files are not what was approved
        self._scope = anyio.CancelScope()
        self._session: Any = None
        self._tools: tuple[Any, ...] | None = None
        self._changes = 0  # how often it has said that its list is another

    @property
    def is_over(self) -> bool:
        return self.heard.over.is_set()

    async def run(self) -> None:
        self._scope.deadline = anyio.current_time() + self.start.timeout
        try:
            with self._scope:
                await self._serve()
            if self._scope.cancelled_caught and self._session is None:
                self.heard.end(f"did not start within {self.start.timeout:g} s")
        except TrustChanged as changed:
            self.refused = changed
        except Exception as error:  # also what the SDK's tasks raise, in groups
            why = f"cannot be talked to ({reason(error, self.start.masking)})"
            self.heard.end(str(error) if isinstance(error, ServerEnded) else why)
        finally:
            self.heard.over.set()
            self._session = None
            self.ready.set()
            self.ended.set()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keeps it from being taken for an idle one."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            if self.is_retired and not self.users:
                self.end()

    def retire(self) -> None:
        """Lets whoever uses it come to an end, and gives it to nobody else: others' calls are not this one's."""
        self.is_retired = True
        if not self.users:
            self.end()

    def end(self) -> None:
        self.heard.end("was ended")

    def failed(self, why: str | None = None) -> McpFailed:
        said = self.start.masking.text(why or self.heard.why or "has closed its connection")
        return McpFailed(self.start.name, said + self.heard.told())

    async def tools(self) -> tuple[Any, ...]:
        """Its list, asked for once, and again when it says that it has changed."""
        if self._tools is None:
            before = self._changes
            tools: tuple[Any, ...] = await self._asked(functools.partial(_all_tools, self._session))
            if self._changes != before:  # while it was read: whoever needs it next asks again
                return tools
            self._tools = tools
        return self._tools

    async def call(self, tool: str, arguments: dict[str, Any], heard: Any) -> Any:
        session = self._session
        return await self._asked(lambda: session.call_tool(tool, arguments, progress_callback=heard))

    def suspect(self, group: TaskGroup) -> None:
        """Finds out whether a server that let a call time out is only slow. One that says nothing at all is ended."""
        if self.probe is not None or self.is_over:
            return
        self.probe = anyio.Event()
        group.start_soon(self._probe, self.probe)

    async def _serve(self) -> None:
        session_class = _session_class()
        async with AsyncExitStack() as stack:
            way = address(self.start) if self.start.url is not None else process(self.start, self.heard)
            read, write = await stack.enter_async_context(way)
            session = session_class(read, write, message_handler=self._heard, client_info=_who())
            await stack.enter_async_context(session)
            try:
                await _greet(session)
            except Exception as error:
                await self._settled()
                why = f"does not answer as an MCP server does ({reason(error, self.start.masking)})"
                raise ServerEnded(self.heard.why or why) from error
            self._session = session
            self._scope.deadline = math.inf
            self.ready.set()
            await self.heard.over.wait()
            self._scope.deadline = anyio.current_time() + GRACE  # to say goodbye; a process has more, and is shielded

    async def _heard(self, message: Any) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._tools = None
            self._changes += 1

    async def _asked(self, ask: Callable[[], Any]) -> Any:
        """What the server answers. An error that it answers with is the tool's; anything else ends the connection."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        try:
            return await ask()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:  # or an error of the server's own, which may have the same number
                await self._settled()
            if self.is_over:
                raise self.failed(
                    f"{self.heard.why or 'has closed its connection'}. {_MAY_HAVE_RUN}".rstrip(".")
                ) from None
            if self.start.url is not None:  # it may mean that the session is gone; a new one costs little
                self.retire()
            raise McpToolError(self.start.masking.text(error.message) or reason(error, self.start.masking)) from None
        except McpFailed:
            raise
        except Exception as error:
            if self.start.url is not None:
                self.retire()
            raise self.failed(f"gives an answer that is none ({_cut(reason(error, self.start.masking))})") from error

    async def _settled(self) -> None:
        """Waits a moment for the reason, if the connection has been closed."""
        with anyio.move_on_after(0.2 if self.start.url is not None else 0.05):
            await self.heard.over.wait()

    async def _probe(self, done: anyio.Event) -> None:
        try:
            with anyio.move_on_after(PATIENCE) as scope:
                await _all_tools(self._session)
            if scope.cancelled_caught:
                self.heard.end("no longer answers")
        except Exception:
            self.heard.end("no longer answers")
        finally:
            self.probe = None
            done.set()


class _Pool:
    """The connections that live in a task group, by what they were started with. Only their thread touches them."""

    def __init__(self, group: TaskGroup) -> None:
        self.group = group
        self.connections: dict[Start, _Connection] = {}  # by their keys; the one that was used last is the last

    def live(self, start: Start) -> _Connection | None:
        connection = self.connections.get(start.key)
        return None if connection is None or connection.is_over or connection.is_retired else connection

    async def connected(self, start: Start) -> _Connection:
        """A connection that is ready. Raises `McpFailed` and `TrustChanged`."""
        connection = self.live(start)
        if connection is not None and connection.probe is not None:
            await connection.probe.wait()
            connection = self.live(start)
        if connection is None:
            connection = _Connection(start)
            self._make_room()
            self.group.start_soon(connection.run)
        self.connections.pop(start.key, None)
        self.connections[start.key] = connection
        with connection.used():  # or it would be taken for an idle one
            await connection.ready.wait()
        if connection.is_over:
            if self.connections.get(start.key) is connection:
                del self.connections[start.key]
            raise connection.failed() if connection.refused is None else connection.refused
        return connection

    def _make_room(self) -> None:
        for key, connection in list(self.connections.items()):
            if connection.is_over or (len(self.connections) >= MOST and not connection.users):
                connection.end()
                del self.connections[key]


_the_pool: _Pool | None = None


def _pool(group: TaskGroup) -> _Pool:
    """The connections of this process. After ``os.fork`` there is another thread, and the parent's are not ours."""
    global _the_pool
    if _the_pool is None or _the_pool.group is not group:
        _the_pool = _Pool(group)
    return _the_pool


async def _there(start: Start, call: Callable[[TaskGroup], Awaitable[T]]) -> T:
    if not extras.is_loaded("mcp"):  # takes a second, which neither holds up the loop nor counts for the server
        await anyio.to_thread.run_sync(extras.load, "mcp", "An MCP server")
    with anyio.move_on_after(start.timeout + _SLACK):
        return await there(call)
    raise McpFailed(start.name, f"was not heard within {start.timeout + _SLACK:g} s. {_MAY_HAVE_RUN}".rstrip("."))


async def _greet(session: Any) -> None:
    """Agrees with a server on a version. Nearly all know the handshake; those that do not know the newer way."""
    from mcp import MCPError
    from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION

    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in {METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION}:
            raise
        await session.discover()


async def _all_tools(session: Any) -> tuple[Any, ...]:
    from mcp_types import PaginatedRequestParams

    found: list[Any] = []
    cursor: str | None = None
    for _ in range(PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tuple(found)
    raise ValueError(f"its list of tools has more than {PAGES} pages")


@functools.cache
def _session_class() -> Any:
    """The SDK's session, loaded now. It does not check results by a server's own schema: that is work whose end the
    server chooses, in a thread that is everybody's."""
    from mcp import ClientSession

    for name in ("mcp", "client"):  # who wants to read what the SDK says sets up logging; nobody else's terminal has it
        logging.getLogger(name).addHandler(logging.NullHandler())

    class Session(ClientSession):
        async def validate_tool_result(self, name: str, result: Any) -> None:
            pass

    return Session


@functools.cache
def _who() -> Any:
    from mcp_types import Implementation

    return Implementation(name="forkpoint", version=importlib.metadata.version("forkpoint"))


def _cut(text: str, limit: int = 500) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."

"""What MCP servers offer, frozen as data, and as tools that an agent can have.

A server's list is asked for once, sorted, and kept with the conversation. An `OfferedTool` holds all that a prompt and
a call need of a tool. So a conversation that is opened again needs no server until it calls a tool, and its prompts
begin as they did. `offers` says when another list holds.
"""

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.arguments import Arguments, BadArguments
from forkpoint.agent.context import EndsTurn, ToolContext
from forkpoint.agent.mcp.connections import call_tool, known_tools, list_tools
from forkpoint.agent.mcp.results import parts_of_result
from forkpoint.agent.mcp.servers import McpServer, rooted, start_of
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.secrets.masking import Masking
from forkpoint.agent.secrets.secret import Resolved, Secret, resolve
from forkpoint.agent.tool import OUTPUT_LIMIT, Tool
from forkpoint.errors import BadAgent, BadTool, McpFailed, NoSecret, TrustChanged
from forkpoint.events import JsonText, Part
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.system import extras
from forkpoint.workspace.pins.pins import PinnedCommand, trust_changed

TOOLS = 256
"""Tools that one server may add to an agent."""

DESCRIPTION, SCHEMA = 8_000, 64_000
"""Characters of a tool's description that a model is shown, and that the schema of its arguments may have.

A description of more characters than a schema may have is not cut but refused: nobody writes that much by hand.
"""

NAME = 64
"""Characters that every provider takes as the name of a tool."""

_ODD = re.compile(r"[^A-Za-z0-9_-]")
_SHOWN = 8_000


class OfferedTool(Struct, frozen=True, omit_defaults=True):
    """A tool that a server offers, as it is kept with a conversation.

    ``tool`` is the server's name for it, ``name`` the one that a model is told.
    """

    tool: str
    name: str
    description: str = ""
    parameters: JsonText = '{"type":"object"}'
    read_only: bool = False  # as far as the server is believed
    repeatable: bool = False


class Offered(Struct, frozen=True, omit_defaults=True):
    """A server in a stored agent, and what it offered; None before it was first asked.

    ``project`` is the root of the project that names it, if it is not the agent's own.
    """

    server: McpServer
    tools: tuple[OfferedTool, ...] | None = None
    project: str | None = None


async def connect(*servers: McpServer, workspace: Path | None = None) -> tuple[Tool, ...]:
    """The tools of these servers, which are started for it: ``Agent(..., tools=await connect(server))``.

    Raises `McpFailed` for a server that cannot be reached or whose list cannot be used.
    """
    found = await offers(servers, workspace=workspace)
    return tuple(tool for server in servers for tool in mcp_tools(server, found[server.name]))


def offered_of(given: Iterable[McpServer | Offered]) -> tuple[Offered, ...]:
    """What an agent was given as its servers, sorted by name. Raises `BadAgent`."""
    made: dict[str, Offered] = {}
    for one in given:
        offered: Any = Offered(one) if isinstance(one, McpServer) else one
        if not isinstance(offered, Offered):
            raise BadAgent("each of its MCP servers must be of the class McpServer")
        if offered.server.name in made:
            raise BadAgent(f"two of its MCP servers are called {offered.server.name}")
        made[offered.server.name] = offered
    return tuple(made[name] for name in sorted(made))


def project_servers(said: Any, root: Path) -> tuple[Offered, ...]:
    """The servers of a project's settings, ``[[mcp]]`` in TOML. Raises `BadAgent`.

    A program or folder with a relative path is that of the project's root. If nothing else is said, a server starts in
    the conversation's folder, so that one of a fork's worktree works there.
    """
    try:
        servers = msgspec.convert(said, tuple[McpServer, ...])
    except msgspec.ValidationError as error:
        raise BadAgent(f"its MCP servers cannot be read ({error})") from None
    return offered_of(Offered(rooted(one, root, cwd="${workspace}"), project=str(root)) for one in servers)


async def offered_now(
    before: Sequence[Offered],
    *,
    workspace: Path | None = None,
    secrets: Mapping[str, Secret] | None = None,
    pinned: Mapping[str, PinnedCommand] | None = None,
) -> tuple[Offered, ...]:
    """The same servers with what they offer to a turn that begins now (`offers`), given what they name of an agent's
    secrets. ``pinned`` are the commands of the project's servers. Raises `McpFailed`, `TrustChanged`, and `NoSecret` if
    a server that has no list yet needs it."""
    known = {one.server.name: one.tools for one in before if one.tools is not None}
    given = {one.server.name: await _given(one, secrets or {}) for one in before}
    pins = {one.server.name: pin_of(one.server.name, one.project, pinned or {}) for one in before}
    found = await offers([one.server for one in before], known, workspace=workspace, secrets=given, pinned=pins)
    return tuple(replace(one, tools=found[one.server.name]) for one in before)


def pin_of(server: str, project: str | None, pinned: Mapping[str, PinnedCommand]) -> PinnedCommand | None:
    """What is pinned of a server; None if it is not a project's. Raises `TrustChanged` if it is a project's, and nobody
    has approved it."""
    if project is None:
        return None
    if (found := pinned.get(server)) is None:
        raise trust_changed(project, project, f"its MCP server {server} is not approved", None)
    return found


def names_for(one: Offered, secrets: Container[str]) -> tuple[str, ...]:
    """The names of an agent's secrets that a server is given. A project's own gets none: the agent is not its."""
    return tuple(name for name in one.server._references if name in secrets and one.project is None)


async def _given(one: Offered, secrets: Mapping[str, Secret]) -> Resolved:
    try:
        return await resolve(names_for(one, secrets), secrets)
    except NoSecret:
        if one.tools is None:
            raise
        return Resolved()  # whoever calls one of its tools is told


async def offers(
    servers: Sequence[McpServer],
    before: Mapping[str, tuple[OfferedTool, ...]] | None = None,
    *,
    workspace: Path | None = None,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    pinned: Mapping[str, PinnedCommand | None] | None = None,
) -> dict[str, tuple[OfferedTool, ...]]:
    """What each server offers, by its name: what it offered ``before``, unless it is known to offer something else.

    A server without a list is asked for one, all at once. One with a list is not started for this; if it is connected
    in this process, and says that its list is another, that holds from now on. ``secrets`` are the values that each
    is given, by its name, and ``pinned`` what is approved of it. Raises `McpFailed` and `TrustChanged`.
    """
    known = {} if before is None else before
    given = {} if secrets is None else secrets
    pins = {} if pinned is None else pinned
    found: dict[str, tuple[OfferedTool, ...]] = {}
    errors: list[McpFailed | TrustChanged | extras.Unusable] = []

    async def ask(server: McpServer) -> None:
        kept = known.get(server.name)
        try:
            secret = given.get(server.name)
            start = start_of(server, workspace=workspace, secrets=secret, pinned=pins.get(server.name))
            listed = await (list_tools(start) if kept is None else known_tools(start))
            if kept is None or listed is not None:
                kept = offers_of(server, listed or (), start.masking)
            found[server.name] = kept
        except TrustChanged as error:
            errors.insert(0, error)
        except (McpFailed, *extras.UNUSABLE) as error:
            if kept is None:
                errors.append(error)
            else:  # a list that cannot be used does not replace one that can
                found[server.name] = kept

    async with anyio.create_task_group() as group:
        for server in servers:
            group.start_soon(ask, server)
    if errors:
        raise errors[0]
    return {server.name: found[server.name] for server in servers}


def offers_of(server: McpServer, listed: Iterable[Any], masking: Masking = Masking()) -> tuple[OfferedTool, ...]:
    """A server's list as it is kept: the tools that are wanted, sorted by name. Raises `McpFailed`."""
    found = {tool.name: tool for tool in reversed(tuple(listed))}  # of two with one name the first
    if server.tools is not None:
        if missing := [name for name in server.tools if name not in found]:
            raise McpFailed(server.name, f"has no tool {missing[0]!r}; it has {_few(found) or 'none'}")
        found = {name: found[name] for name in server.tools}
    if len(found) > TOOLS:
        raise McpFailed(server.name, f"has {len(found):,} tools, and {TOOLS} can be used; name those that are wanted")
    names = plain_names(server.name, found)
    if len(set(names.values())) < len(names):
        raise McpFailed(server.name, "has tools whose names cannot be told apart; name those that are wanted")
    made = (_offer(server, names[name], tool, masking) for name, tool in found.items())
    return tuple(sorted(made, key=lambda offer: offer.name))


def plain_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """What a model is told as the names of a server's tools: ``SERVER__TOOL``, as every provider takes it.

    A name that has to be changed for that, and would then be another's or too long, ends with a digest of its own.
    """
    plain = {tool: f"{server}__{_ODD.sub('_', tool)}" for tool in tools}
    taken = Counter(plain.values())
    made: dict[str, str] = {}
    for tool, name in plain.items():
        is_own = name == f"{server}__{tool}" or taken[name] == 1
        if not is_own or len(name) > NAME or not tool:
            name = f"{name[: NAME - 9]}_{hashlib.sha256(tool.encode(errors='replace')).hexdigest()[:8]}"
        made[tool] = name
    return made


def mcp_tools(
    server: McpServer, offered: Iterable[OfferedTool], secrets: tuple[str, ...] = (), project: str | None = None
) -> tuple[Tool, ...]:
    """What a server offers, as tools: the very same for equal ones, so that equal agents are equal.

    ``secrets`` are the names of those that it is given, ``project`` is the project that names it, if one does. Nothing
    is started: that happens when one of them is called.
    """
    return _tools(server, tuple(offered), secrets, project)


@functools.lru_cache(maxsize=256)
def _tools(
    server: McpServer, offered: tuple[OfferedTool, ...], secrets: tuple[str, ...], project: str | None
) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            function=McpCall(server, offer.tool, project),
            schema=ToolSchema(offer.name, offer.description, offer.parameters),
            arguments=SchemaArguments(offer.name, offer.parameters, offer.description),
            context="ctx",
            timeout=None,  # its own says more
            output_limit=OUTPUT_LIMIT,
            repeatable=offer.repeatable,
            risky=not offer.read_only,
            secrets=secrets,
        )
        for offer in offered
    )


def is_mcp_tool(tool: Tool) -> bool:
    """Whether a tool is an MCP server's."""
    return isinstance(tool.function, McpCall)


def without_served(tools: Iterable[Tool], servers: Iterable[Offered]) -> list[Tool]:
    """Those of the tools that are not of these servers: an agent's own, which stand in its document by themselves."""
    names = {one.server.name for one in servers}
    return [tool for tool in tools if not (isinstance(tool.function, McpCall) and tool.function.server.name in names)]


class McpCall:
    """A tool of a server, to be called. It holds no connection. ``project`` is the project that names the server."""

    def __init__(self, server: McpServer, tool: str, project: str | None = None) -> None:
        self.server = server
        self.tool = tool
        self.project = project

    async def __call__(self, arguments: dict[str, Any], ctx: ToolContext) -> tuple[Part, ...]:
        try:
            pinned = pin_of(self.server.name, self.project, ctx.pinned)
            if pinned is not None:  # also of a server that runs already: it may read its files again
                await anyio.to_thread.run_sync(pinned.check)
            start = start_of(self.server, workspace=ctx.workspace, secrets=ctx.secrets, pinned=pinned)
            return parts_of_result(await call_tool(start, self.tool, arguments, ctx.progress), start)
        except TrustChanged as changed:
            raise EndsTurn(changed) from changed


class SchemaArguments(Arguments):
    """Arguments that a JSON schema describes, and no Python function. They are given as one, ``arguments``.

    They are checked here as far as the schema can be used for that; the server has the last word.
    """

    def __init__(self, name: str, schema: JsonText, description: str = "") -> None:
        self.description = description
        self.schema = schema
        self._name = name
        self._checks = True
        self._output: OutputSchema | None = None

    def read(self, text: str) -> dict[str, Any]:
        """The arguments in a model's text. Raises `BadArguments`."""
        try:
            value = self._checked(text or "{}")
            if not isinstance(value, dict):
                raise ValueError("they are not an object")
        except (ValueError, RecursionError) as error:
            schema = self.schema if len(self.schema) <= _SHOWN else f"{self.schema[:_SHOWN]}..."
            raise BadArguments(f"The arguments for {self._name} do not fit: {error}. Its schema: {schema}") from None
        return {"arguments": value}

    def _checked(self, text: str) -> Any:
        if self._checks and self._output is None:
            try:
                self._output = OutputSchema(self._name, self.schema)
            except (BadAgent, *extras.UNUSABLE):  # a schema that is too much to check by, or nothing to check with
                self._checks = False
        return msgspec.json.decode(text) if self._output is None else self._output.decode(text)


def _offer(server: McpServer, name: str, tool: Any, masking: Masking) -> OfferedTool:
    hints = tool.annotations if server.hints else None
    read_only = bool(hints is not None and hints.read_only_hint)
    schema = {"type": "object", **tool.input_schema}
    try:
        parameters = msgspec.json.encode(schema, order="deterministic").decode()
        if len(parameters) > SCHEMA:
            raise ValueError(
                f"the schema of its arguments has {len(parameters):,} characters, and {SCHEMA:,} can be used"
            )
        said = tool.description or tool.title or ""
        if len(said) > SCHEMA:
            raise ValueError(f"its description has {len(said):,} characters, and {SCHEMA:,} can be used")
        said = _cut(masking.text(said), DESCRIPTION)
        made = ToolSchema(name, said, masking.json(parameters))
    except (ValueError, TypeError, RecursionError, BadTool) as error:
        raise McpFailed(
            server.name, f"has a tool {tool.name[:100]!r} that cannot be used ({error}); leave it out with tools=[...]"
        ) from None
    repeatable = read_only or bool(hints is not None and hints.idempotent_hint)
    return OfferedTool(tool.name, name, made.description, made.parameters, read_only, repeatable)


def _few(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:20]) + (", ..." if len(ordered) > 20 else "")


def _cut(text: str, limit: int) -> str:
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= limit else f"{text[:limit]} [... {len(text) - limit:,} characters left out]"

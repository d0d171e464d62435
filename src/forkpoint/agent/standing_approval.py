"""Standing approvals: what a person has allowed once and for all in a conversation ("always").

A standing approval is of a tool as it was when the person looked: its name, its arguments, and where it comes from. If
another program or server offers a tool of the same name, or the tool's schema changes, somebody is asked again. It is
also of the project that the conversation worked in. What runs commands can never be allowed as a whole: a shell is
allowed by the first words of a command (`command_prefix`).
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.agent import command_prefix
from forkpoint.agent.arguments import object_of
from forkpoint.agent.mcp.tools import McpCall
from forkpoint.agent.name_words import name_words
from forkpoint.agent.tool import Tool
from forkpoint.errors import BadArgument
from forkpoint.events import ToolCall

Kind: TypeAlias = Literal["call", "tool", "prefix"]

LARGEST = 16_384
"""Characters of arguments that can be approved for good. A person will not compare longer ones with the next call's."""

_COMMANDS = frozenset(
    {
        *("argv", "bash", "cmd", "cmds", "cmdline", "code", "command", "commandline"),
        *("commands", "eval", "exec", "executable", "javascript", "js", "powershell", "program"),
        *("python", "script", "scripts", "shell", "snippet", "sql", "statement", "statements"),
    }
)
"""Words in the name of an argument that holds something to run. A tool that has one is taken to run commands."""

_RUNNERS = frozenset(
    {
        *("bash", "cmd", "code", "command", "commandline", "commands", "eval", "exec"),
        *("execute", "interpreter", "javascript", "js", "powershell", "pwsh", "python", "repl"),
        *("script", "scripts", "sh", "shell", "sql", "subprocess", "terminal", "zsh"),
    }
)
"""Words in the name of a tool that runs commands, whatever its arguments are called."""


class StandingApproval(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is allowed without a question from now on, who said so, and when.

    - ``kind``: ``call`` allows ``tool`` with exactly these ``arguments``; ``tool`` allows every call of it; ``prefix``
      allows the commands that begin with the words of ``prefix``, and whose other ``arguments`` are these.
    - ``turn`` and ``call``: where it was given.
    - ``tool_digest``: the tool as it was then. ``workspace``: the project's folder then; None without a folder.
    """

    id: str
    kind: Kind
    tool: str
    tool_digest: str
    given: int  # microseconds since 1970, UTC
    arguments: str | None = None
    prefix: tuple[str, ...] = ()
    workspace: str | None = None
    by: str | None = None
    turn: str | None = None
    call: str | None = None
    revoked: int | None = None
    revoked_by: str | None = None

    @property
    def allows(self) -> str:
        """What it allows, in words."""
        match self.kind:
            case "tool":
                return f"every call of {self.tool}"
            case "prefix":
                return f"{self.tool}: {' '.join(self.prefix)} ..."
            case _:
                return f"{self.tool}({self.arguments})"

    def covers(self, call: ToolCall, tool: Tool, workspace: str | None) -> bool:
        """Whether it allows a call of this tool in the project at ``workspace``."""
        if self.revoked is not None or call.tool != self.tool or self.tool_digest != tool_digest_of(tool):
            return False
        if self.workspace != workspace:
            return False
        match self.kind:
            case "call":
                return call.arguments == self.arguments
            case "tool":
                return not runs_commands(tool)
            case _:
                command, others = command_of(tool, call.arguments)
                return command is not None and others == self.arguments and command_prefix.allows(self.prefix, command)


class StandingApprovalReader(Protocol):
    """The standing approvals of the conversation that a run belongs to, as they are at each moment."""

    async def find(self, call: ToolCall, tool: Tool | None) -> StandingApproval | None:
        """The standing approval that allows this call now; None if somebody has to be asked."""
        ...


class Always(Struct, frozen=True):
    """What a person wants to be allowed for good: ``call``, ``tool``, or ``prefix:`` and the first words."""

    kind: Kind
    prefix: tuple[str, ...] = ()

    @classmethod
    def of(cls, said: Any) -> "Always":
        """Raises `BadArgument`."""
        if said in ("call", "tool"):
            return cls(said)
        if isinstance(said, str) and said.startswith("prefix:"):
            words = command_prefix.plain_words(said.removeprefix("prefix:"))
            if words is None:
                raise _refused(said, "the words after prefix: must be plain words, as in prefix:git status")
            return cls("prefix", words)
        raise _refused(said, "it is call, tool, or prefix: and the first words of a command, as in prefix:git status")

    def __str__(self) -> str:
        return f"prefix:{' '.join(self.prefix)}" if self.kind == "prefix" else self.kind

    def checked(self, call: ToolCall, tool: Tool | None) -> tuple[str | None, str]:
        """The arguments that the standing approval would be about, and the tool's digest.

        Raises `BadArgument` if it may not be given for this call.
        """
        said = str(self)
        if tool is None:
            raise _refused(said, f"there is no tool {call.tool!r}")
        if self.kind == "tool":
            if runs_commands(tool):
                why = f"{tool.name} runs commands, and is never allowed as a whole; allow this call, or a prefix:"
                raise _refused(said, why)
            return None, tool_digest_of(tool)
        if len(call.arguments) > LARGEST:
            raise _refused(said, f"its arguments have more than {LARGEST:,} characters; approve such calls one by one")
        if self.kind == "call":
            return call.arguments, tool_digest_of(tool)
        command, others = command_of(tool, call.arguments)
        if command is None:
            raise _refused(said, f"{tool.name} with these arguments is no shell command")
        if (wrong := command_prefix.why_refused(self.prefix)) is not None:
            raise _refused(said, wrong)
        if not command_prefix.allows(self.prefix, command):
            why = f"the command that waits does not begin with it, or is not all plain words: {command[:200]!r}"
            raise _refused(said, why)
        return others, tool_digest_of(tool)


def offered_for(call: ToolCall, tool: Tool | None) -> tuple[str, ...]:
    """What a person may allow for good when this call waits, as `Always.of` takes it, with the shortest prefix.

    If ``tool`` is None, since only a server has it, the call's name and arguments decide. The server may still refuse.
    """
    prefix = command_prefix.proposed(command_in(call.arguments) or "")
    ways = [Always("call"), Always("tool"), *([Always("prefix", prefix)] if prefix else [])]
    return tuple(str(way) for way in ways if (_is_likely(way, call) if tool is None else _is_possible(way, call, tool)))


def _is_possible(way: Always, call: ToolCall, tool: Tool) -> bool:
    try:
        way.checked(call, tool)
    except BadArgument:
        return False
    return True


def _is_likely(way: Always, call: ToolCall) -> bool:
    if way.kind != "tool" and len(call.arguments) > LARGEST:
        return False
    runs = _is_runner(call.tool, _names_in(call.arguments))
    return way.kind == "call" or runs == (way.kind == "prefix")


def runs_commands(tool: Tool) -> bool:
    """Whether a tool runs what a model writes, as far as that can be told: if in doubt, it does."""
    return tool.secrets == "shell" or _is_runner(tool.name, _properties(tool))


def command_of(tool: Tool, arguments: str) -> tuple[str | None, str | None]:
    """The shell command in the arguments of a call, and the other arguments as canonical JSON; None without a command.

    Only a tool that says of itself that it runs shell commands has one (``secrets="shell"``), in ``command``.
    """
    return _command_and_others(arguments) if tool.secrets == "shell" else (None, None)


def command_in(arguments: str) -> str | None:
    """The shell command in the arguments of a call; None without a command."""
    return _command_and_others(arguments)[0]


def _command_and_others(arguments: str) -> tuple[str | None, str | None]:
    try:
        json.loads(arguments, object_pairs_hook=object_of)
        said = msgspec.json.decode(arguments, type=dict[str, Any])
    except (ValueError, RecursionError):
        return None, None
    command = said.pop("command", None)
    if not isinstance(command, str):
        return None, None
    return command, msgspec.json.encode(said, order="deterministic").decode()


def tool_digest_of(tool: Tool) -> str:
    """A digest of all that a tool is to a person who allows it: its name, its description, its schema, its origin."""
    function = tool.function
    if isinstance(function, McpCall):
        origin: list[Any] = ["mcp", function.server, function.tool]
    else:
        kind = type(function)
        module = getattr(function, "__module__", None) or kind.__module__
        origin = ["function", module, getattr(function, "__qualname__", None) or kind.__qualname__]
    said = [tool.name, tool.schema.description, tool.schema.parameters, origin]
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


def _properties(tool: Tool) -> list[str]:
    try:
        schema = msgspec.json.decode(tool.schema.parameters)
    except msgspec.DecodeError:
        return list(_COMMANDS)
    found = schema.get("properties") if isinstance(schema, dict) else None
    return list(found) if isinstance(found, dict) else []


def _names_in(arguments: str) -> list[str]:
    try:
        return list(msgspec.json.decode(arguments, type=dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, UnicodeError):
        return list(_COMMANDS)


def _is_runner(tool: str, arguments: Iterable[str]) -> bool:
    name = _words(tool.strip("_").rsplit("__", 1)[-1])  # without the MCP server's own name
    if not _RUNNERS.isdisjoint(name) or "process" in name[1:] or name == ["process"]:  # not process_order
        return True
    given = [_words(argument) for argument in arguments]
    return any(not _COMMANDS.isdisjoint(words) or words == ["source"] for words in given)  # not source_branch


def _words(name: str) -> list[str]:
    """The words of a name, whatever their version: python3 is python."""
    return [word.rstrip("0123456789") for word in name_words(name)]


def _refused(said: Any, why: str) -> BadArgument:
    return BadArgument("approve()", f"always={said!r}"[:300], why)

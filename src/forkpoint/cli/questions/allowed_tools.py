"""`AllowedTools`: the calls that ``run --allow-tool`` approves, so that nobody is asked about them in this run.

Each approval is recorded as any other, with ``--allow-tool`` and the rule as who gave it. It is of this one run: the
next one asks again. What runs commands is never allowed as a whole, as with ``approve --always``: a shell is allowed by
the first words of its commands. Tests: tests/cli/test_allow_tool.py.
"""

from collections.abc import Iterable

import msgspec
import typer
from msgspec import Struct

from forkpoint.agent import command_prefix
from forkpoint.agent.standing_approval import command_in, offered_for
from forkpoint.agent.tool import Tool
from forkpoint.conversation import Call, Conversation, Turn
from forkpoint.events import ToolCall

OPTION = "--allow-tool"


class AllowedTool(Struct, frozen=True):
    """One rule: a tool, or the commands of a tool that begin with these words."""

    tool: str
    prefix: tuple[str, ...] = ()

    @classmethod
    def of(cls, said: str) -> "AllowedTool":
        """The rule of ``NAME`` or ``NAME=WORDS``. Raises `typer.BadParameter`."""
        tool, equals, rest = said.partition("=")
        if not tool.strip():
            raise typer.BadParameter(f"{said!r} names no tool; write NAME, or NAME=WORDS", param_hint=OPTION)
        if not equals:
            return cls(tool.strip())
        words = command_prefix.plain_words(rest)
        wrong = command_prefix.why_refused(words or ())
        if wrong is not None:
            raise typer.BadParameter(f"{said!r} is refused: {wrong}", param_hint=OPTION)
        return cls(tool.strip(), words or ())

    def covers(self, call: Call, tool: Tool | None) -> bool:
        """Whether it allows this call. ``tool`` is None if only a server has it."""
        if call.tool != self.tool:
            return False
        if not self.prefix:
            return "tool" in offered_for(ToolCall(call.id, call.tool, call.arguments), tool)
        if tool is not None and tool.secrets != "shell":
            return False
        command = command_in(call.arguments)
        return command is not None and _is_plain(call) and command_prefix.allows(self.prefix, command)

    def __str__(self) -> str:
        return f"{self.tool}={' '.join(self.prefix)}" if self.prefix else self.tool


class AllowedTools:
    """All rules of a run."""

    def __init__(self, given: Iterable[str] | None) -> None:
        self._rules = [AllowedTool.of(each) for each in given or ()]

    def carry_on(self, conversation: Conversation, turn: Turn) -> Turn:
        """Approves what is allowed, and goes on with the turn, until it ends or something else waits."""
        while turn.outcome == "awaiting_approval":
            tools = {} if conversation.agent is None else {tool.name: tool for tool in conversation.agent.tools}
            found = [(call, rule) for call in turn.waiting if (rule := self._rule_for(call, tools)) is not None]
            if not found:
                break
            rule = found[0][1]
            same = [each for each, other in found if other is rule]
            turn = conversation.approve(*same, by=f"{OPTION} {rule}")
        return turn

    def _rule_for(self, call: Call, tools: dict[str, Tool]) -> AllowedTool | None:
        return next((rule for rule in self._rules if rule.covers(call, tools.get(call.tool))), None)


def _is_plain(call: Call) -> bool:
    """Whether a call says nothing beside its command but how long that may take."""
    return msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw]).keys() <= {"command", "timeout"}

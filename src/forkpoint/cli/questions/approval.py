"""The question about calls that wait for an approval: one key decides on one call, which stands whole above it.

What the model says and the whole call stand directly above the question, each time that it is asked: only so is it
certain how much of them is on the screen. Enter, Ctrl-C, Ctrl-D and Esc decide nothing: the turn goes on waiting.
Tests: tests/cli/test_approval_question.py.
"""

import getpass
import os
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from rich.console import Console

from forkpoint.agent import command_prefix
from forkpoint.agent.arguments import BadArguments
from forkpoint.agent.standing_approval import Always, command_in, offered_for
from forkpoint.agent.tool import Tool
from forkpoint.cli.output import menu, one_line
from forkpoint.cli.questions.editor import edited
from forkpoint.cli.questions.keyboard import read_key, read_line
from forkpoint.cli.questions.whole_view import print_above
from forkpoint.conversation import Call, Conversation, Turn
from forkpoint.conversation.call_view import ViewLine, diff_view, print_view, turn_view, waiting_view
from forkpoint.errors import BadArgument, CallChanged
from forkpoint.events import ToolCall

_LATER = frozenset({"", "\r", "\n", "\x04", "\x1b"})  # the end of the input, Enter, Ctrl-D, Esc

_MEANINGS = {
    "y": "run it, this time",
    "n": "do not run it; you may say why, and the model is told",
    "e": "change its arguments first: in $VISUAL or $EDITOR, or else on a line",
    "a": "run it, and exactly this call without a question from now on",
    "t": "run it, and every call of this tool without a question from now on",
    "p": "run it, and commands that begin with the same words without a question from now on",
    "?": "show this",
}
_ALWAYS = {"call": "a", "tool": "t", "prefix": "p"}


class Verdict(Struct, frozen=True):
    """What somebody says to a call, and what goes with it."""

    approved: bool
    reason: str | None = None
    arguments: str | None = None
    always: str | None = None


class ApprovalQuestion:
    """Asks about calls that wait, one after another, until nothing waits or somebody decides nothing."""

    def __init__(self, console: Console, conversation: Conversation) -> None:
        self._out = console
        self._this = conversation
        self._by = _user()

    def ask(self, turn: Turn) -> Turn:
        """The turn after all decisions; it still waits if somebody decides nothing."""
        shown: set[str] = set()
        while turn.outcome == "awaiting_approval" and turn.waiting:
            call, *others = turn.waiting
            # Whoever decides nothing here may say /approve, which means all that waits: so all of it is shown.
            for other in others:
                if other.digest not in shown:
                    print_view(self._out, waiting_view(other, other.reason), before="  ")
            shown.update(other.digest for other in turn.waiting)
            answer = self._answer(call, turn_view(turn, calls=[call]))
            if answer is None:
                return turn
            try:
                turn = self._decided(call, answer)
            except (BadArgument, CallChanged) as refused:  # nothing was decided
                self._complain(refused.message("Terminal chat"))
                turn = self._this.open_turn() or turn
        return turn

    def _decided(self, call: Call, answer: Verdict) -> Turn:
        if not answer.approved:
            return self._this.deny(call, by=self._by, reason=answer.reason)
        changed = None if answer.arguments is None else {call.id: answer.arguments}
        return self._this.approve(call, arguments=changed, by=self._by, always=answer.always)

    def _answer(self, call: Call, view: Sequence[ViewLine]) -> Verdict | None:
        """What somebody says to a call, which is shown as this view; None: nothing yet."""
        tool = None if self._this.agent is None else self._this.agent.tool(call.tool)  # None: a server has it
        offered = {_ALWAYS[Always.of(way).kind]: way for way in offered_for(_asked(call), tool)}
        arguments = call.arguments
        while True:
            is_changed = arguments != call.arguments
            keys = ["y", "n", "e", *(() if is_changed else offered), "?"]
            lines = [*view, *_changes(call, arguments)] if is_changed else view
            asked = f"Run {one_line(call.tool, 40)}? [{'/'.join(keys)}, Enter: decide later] "
            match self._key(lines, asked, keys):
                case "y":
                    return Verdict(True, arguments=arguments if is_changed else None)
                case "n":
                    said = read_line("Why not? (Enter: no reason) ")
                    return None if said is None else Verdict(False, reason=said.strip() or None)
                case "e":
                    arguments = self._edited(arguments, tool)
                case "a" | "t" as key:
                    return Verdict(True, always=offered[key])
                case "p":
                    if (prefix := self._prefix(call, view, Always.of(offered["p"]).prefix)) is not None:
                        return Verdict(True, always=prefix)
                case "?":
                    rows = [(f"  {key}", _MEANINGS[key]) for key in keys]
                    self._out.print(menu([*rows, ("  Enter", "decide later; the turn goes on waiting")]))
                case _:
                    return None

    # Other arguments.

    def _edited(self, before: str, tool: Tool | None) -> str:
        """The arguments that somebody wants instead; as they were, if they are of no use."""
        text = self._typed(before)
        if text is None or not text.strip() or _lines(text) == _lines(before):
            self._say("The arguments stay as they are.")
            return before
        try:
            given = msgspec.json.format(text.strip(), indent=-1)
            msgspec.json.decode(given, type=dict[str, msgspec.Raw])
            if tool is not None:
                tool.arguments.read(given)
        except (ValueError, RecursionError, BadArguments) as error:
            self._complain(f"These arguments cannot be used, and stay as they are: {error}")
            return before
        return given

    def _typed(self, arguments: str) -> str | None:
        """What somebody makes of arguments, in the editor of their choice or on a line; None: nothing."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not editor:
            return read_line("Arguments: ", "" if "\n" in arguments else arguments)
        try:
            return edited(_lines(arguments), "arguments.json")
        except OSError as error:
            self._complain(str(error))
            return None

    # A prefix.

    def _prefix(self, call: Call, view: Sequence[ViewLine], proposed: Sequence[str]) -> str | None:
        """The first words of commands that somebody allows, as `Always.of` takes them; None: none."""
        words = command_prefix.plain_words(command_in(call.arguments) or "") or ()
        length = len(proposed)
        while True:
            prefix = words[:length]
            why = command_prefix.why_refused(prefix)
            if why is not None:
                self._complain(f"{' '.join(prefix)}: {why}")
            ways = {"y": "allow it"} if why is None else {}
            ways |= {"+": "one word more"} if length < len(words) else {}
            ways |= {"-": "one word less"} if length > 1 else {}
            told = ", ".join([*(f"{key}: {does}" for key, does in ways.items()), "Enter: back"])
            match self._key(view, f"Always allow commands that begin with: {' '.join(prefix)} [{told}] ", [*ways]):
                case "y":
                    return str(Always("prefix", prefix))
                case "+":
                    length += 1
                case "-":
                    length -= 1
                case _:
                    return None

    # Asking and telling.

    def _key(self, view: Sequence[ViewLine], question: str, keys: Sequence[str]) -> str:
        """The key that somebody presses below what is shown, one of these; "" if that decides nothing."""
        while True:
            print_above(self._out, view, question, before="  ")
            pressed = read_key(question).lower()
            if pressed in keys:
                return pressed
            if pressed in _LATER:
                return ""
            self._say("That key means nothing here.")

    def _say(self, text: str) -> None:
        self._out.print(one_line(text), style="dim")

    def _complain(self, text: str) -> None:
        self._out.print(f"error: {one_line(text)}", style="red")


def _asked(call: Call) -> ToolCall:
    return ToolCall(call.id, call.tool, call.arguments)


def _changes(call: Call, arguments: str) -> list[ViewLine]:
    """The lines that show what a call is to run with instead."""
    below = [ViewLine(f"  {line.text}", line.style) for line in diff_view(_lines(call.arguments), _lines(arguments))]
    return [ViewLine(f"{one_line(call.tool)}, with these changes:", "yellow"), *below]


def _lines(arguments: str) -> str:
    """Arguments with each value on a line of its own; as they are, if they are not JSON."""
    try:
        return msgspec.json.format(arguments.strip(), indent=2)
    except msgspec.DecodeError:
        return arguments


def _user() -> str | None:
    """The name of the user of this machine, for the record."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None

"""`Dialogue`: from line to line of a chat: a message runs a turn, and a line with a slash is a command.
Tests: tests/cli/test_chat.py."""

from collections.abc import Sequence
from typing import Any

import msgspec
import typer

from forkpoint.cli.chat.attachments import attached as attached_file
from forkpoint.cli.chat.attachments import named_files
from forkpoint.cli.chat.commands.branches import branch_commands
from forkpoint.cli.chat.commands.changes import change_commands
from forkpoint.cli.chat.commands.decisions import decision_commands
from forkpoint.cli.chat.commands.looks import look_commands
from forkpoint.cli.chat.commands.slash_command import Answer, Refused, SlashCommand, WrongUse
from forkpoint.cli.chat.commands.tries import try_commands
from forkpoint.cli.chat.completion import completions
from forkpoint.cli.chat.line_queue import LineQueue
from forkpoint.cli.chat.prompt import Prompt
from forkpoint.cli.chat.session import INTERRUPTED, WAITS, Session
from forkpoint.cli.chat.shell import run_command
from forkpoint.cli.chat.status import status_line
from forkpoint.cli.chat.turn_watch import asked
from forkpoint.cli.outcome import INTERRUPTED as EXIT_INTERRUPTED
from forkpoint.cli.outcome import command, document
from forkpoint.cli.output import clean, menu
from forkpoint.errors import ForkpointError, TurnFailed, TurnOpen
from forkpoint.events import Part, Text

_FAILED = "/retry runs it again from the last good state, /resume goes on after its last finished step."


class Dialogue:
    """A user at a keyboard, or a pipe, and the conversation that they talk in."""

    def __init__(self, session: Session, attached: Sequence[Part] = ()) -> None:
        self._session = session
        self._screen = session.screen
        self._ends = False
        self._attached = list(attached)  # what goes with the next message
        self._groups = {
            "Branches": branch_commands(session),
            "Answers": try_commands(session),
            "Approvals": decision_commands(session),
            "Look": look_commands(session),
            "Change": change_commands(session),
            "Chat": (
                SlashCommand("help", "", "show this", self._help),
                SlashCommand("quit", "", "end the program; so does Ctrl-D", self._quit),
            ),
        }
        self._commands = {one.name: one for group in self._groups.values() for one in group}
        self._prompt = Prompt(session.screen, lambda line: completions(line, self._commands))
        self._queue = LineQueue(session.screen, self._commands["steer"].act)
        self._told: str | None = None  # the status line that was shown last
        session.typed_meanwhile = self._queue.take

    def go(self) -> None:
        """Reads and answers lines until there are no more."""
        self._prompt.set_up(map(asked, self._session.turns))
        if self._screen.is_watched and self._session.is_waiting:
            self._do("/decide")
        while not self._ends and (line := self._next()) is not None:
            if line.strip():
                self._do(line.strip())
        if self._session.is_kept:
            name, store = self._session.this.name, self._session.store
            self._screen.say(f"Go on with: {command('chat', name, store)}")

    def _next(self) -> str | None:
        """The next line; None to end the program. Ctrl-C clears the line, and a second one ends the program."""
        warned = False
        while True:
            try:
                if self._queue:
                    return self._queue.next()
                if not warned:
                    self._show_status()
                self._prompt.draft, self._session.draft = self._session.draft, ""
                line = self._prompt.read()
            except KeyboardInterrupt:
                if not self._screen.is_typed or (warned and not self._prompt.is_begun):
                    line = None
                else:
                    warned = True
                    self._screen.out.print()
                    self._screen.say("Ctrl-C again leaves; so does Ctrl-D.")
                    continue
            if line is None and self._screen.is_typed:
                self._screen.out.print()
            return line

    def _show_status(self) -> None:
        """Shows where one is, above the prompt, if that has changed."""
        if not self._screen.is_watched or not self._session.is_kept:
            return
        try:
            line = status_line(self._session.this)
        except ForkpointError:  # the next line that is sent tells of it
            return
        if line is not None and line != self._told:
            self._screen.say(line)
            self._told = line

    def _do(self, line: str) -> None:
        """Does what a line asks for. If that fails, it prints the error, and the chat goes on."""
        self._session.watch.turn = None
        stopped = False
        try:
            answer = self._answer(line)
        except KeyboardInterrupt:
            answer, stopped = self._interrupted(), True
        except Refused as refused:
            answer = self._refuse(str(refused))
        except TurnFailed as failed:
            self._screen.say(_FAILED)
            answer = _error(failed) if failed.turn is None else document(failed.turn, self._session.this.name)
        except ForkpointError as error:
            self._screen.complain(error.message("Terminal chat"))
            if isinstance(error, TurnOpen):
                self._screen.say(WAITS if error.outcome == "awaiting_approval" else INTERRUPTED)
            answer = _error(error)
        self._session.is_kept = self._session.is_kept or self._session.watch.turn is not None
        if self._screen.as_json:
            print(msgspec.json.encode(answer).decode(), flush=True)
        if stopped and not self._screen.is_typed:  # there is no prompt to come back to
            raise typer.Exit(EXIT_INTERRUPTED)

    def _answer(self, line: str) -> Answer:
        if line.startswith("!") and self._screen.is_typed:
            return self._run_command(line[1:].strip())
        if not line.startswith("/"):
            return self._say(line)
        if line.startswith("//"):
            return self._say(line[1:])
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            raise Refused(f"There is no command /{name}. /help shows those that there are; //{name} says /{name}")
        try:
            return self._commands[name].act(rest.strip())
        except WrongUse:
            raise Refused(f"Use it like this: {self._commands[name].form}") from None

    def _say(self, message: str) -> Answer:
        """Runs a turn with a message, the files that it names, and what was to go with it."""
        parts: list[Part] = [Text(message)]
        if self._screen.is_typed:  # elsewhere a message may be of somebody who must not read files here
            for path in named_files(message):
                part, told = attached_file(path)
                self._screen.say(told)
                parts.append(part)
        given = [*self._attached, *parts]
        answer = self._session.say(given if len(given) > 1 else message)
        self._attached = []
        return answer

    def _run_command(self, line: str) -> Answer:
        """Runs a command of the user's, whose output goes with the next message. Without one, it forgets them."""
        if not line:
            self._attached = []
            self._screen.say("Nothing goes with your next message.")
            return {}
        folder = self._session.this.workspace
        ran = run_command(line, folder, lambda said: self._screen.out.print(clean(said), soft_wrap=True))
        self._attached.append(Text(ran.message))
        status = f"exit status {ran.status} · " if ran.status else ""
        self._screen.say(f"{status}This goes with your next message; ! alone forgets it.")
        return {"command": line, "status": ran.status}

    def _interrupted(self) -> Answer:
        """Says what can be done after Ctrl-C. How the turn ended is shown already."""
        self._queue.drop()
        if self._session.watch.turn is None:
            return self._refuse("It was stopped")
        turn = self._session.this.turn(self._session.watch.turn)
        if turn.outcome == "cancelled":
            self._screen.say(_FAILED)
        return document(turn, self._session.this.name)

    def _refuse(self, why: str) -> Answer:
        self._screen.complain(why)
        return {"error": {"code": "refused", "message": why}}

    def _help(self, _: str) -> Answer:
        rows: list[tuple[str, str]] = []
        for group, commands in self._groups.items():
            rows += [("", "")] if rows else []
            rows += [(group, "")] + [(f"  {one.form}", one.does) for one in commands]
        rows += [("  //TEXT", "say /TEXT")]
        if self._screen.is_typed:
            rows += [("  @FILE", "in a message: make a file part of it; Tab completes its name")]
            rows += [("  !COMMAND", "run a command here; its output goes with your next message")]
        self._screen.out.print(menu(rows))
        return {"commands": list(self._commands)}

    def _quit(self, _: str) -> Answer:
        self._ends = True
        return {"conversation": self._session.this.id, "name": self._session.this.name}


def _error(error: ForkpointError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message("Terminal chat")}}

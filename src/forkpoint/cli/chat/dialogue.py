"""`Dialogue`: from line to line of a chat: a message runs a turn, and a line with a slash is a command.
Tests: tests/cli/test_chat.py."""

from typing import Any

import msgspec
import typer

from forkpoint.cli.chat.commands.branches import branch_commands
from forkpoint.cli.chat.commands.decisions import decision_commands
from forkpoint.cli.chat.commands.looks import look_commands
from forkpoint.cli.chat.commands.slash_command import Answer, Refused, SlashCommand, WrongUse
from forkpoint.cli.chat.commands.tries import try_commands
from forkpoint.cli.chat.line_queue import LineQueue
from forkpoint.cli.chat.prompt import Prompt
from forkpoint.cli.chat.session import INTERRUPTED, WAITS, Session
from forkpoint.cli.chat.turn_watch import asked
from forkpoint.cli.outcome import INTERRUPTED as EXIT_INTERRUPTED
from forkpoint.cli.outcome import command, document
from forkpoint.cli.output import menu
from forkpoint.errors import ForkpointError, TurnFailed, TurnOpen

_FAILED = "/retry runs it again from the last good state, /resume goes on after its last finished step."


class Dialogue:
    """A user at a keyboard, or a pipe, and the conversation that they talk in."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = session.screen
        self._prompt = Prompt(session.screen)
        self._ends = False
        own = (
            SlashCommand("help", "", "show this", self._help),
            SlashCommand("quit", "", "end the program; so does Ctrl-D", self._quit),
        )
        groups = branch_commands(session), try_commands(session), decision_commands(session), look_commands(session)
        self._commands = {one.name: one for group in (*groups, own) for one in group}
        self._queue = LineQueue(session.screen, self._commands["steer"].act)
        session.typed_meanwhile = self._queue.take

    def go(self) -> None:
        """Reads and answers lines until there are no more."""
        self._prompt.set_up(self._commands, map(asked, self._session.turns))
        if self._screen.is_watched and self._session.is_waiting:
            self._do("/decide")
        while not self._ends:
            try:
                line = self._queue.next() if self._queue else self._prompt.read()
            except KeyboardInterrupt:
                line = None
            if line is None:
                if self._screen.is_typed:
                    self._screen.out.print()
                break
            if line.strip():
                self._do(line.strip())
        if self._session.is_kept:
            name, store = self._session.this.name, self._session.store
            self._screen.say(f"Go on with: {command('chat', name, store)}")

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
            self._screen.complain(error.message("Command line"))
            if isinstance(error, TurnOpen):
                self._screen.say(WAITS if error.outcome == "awaiting_approval" else INTERRUPTED)
            answer = _error(error)
        self._session.is_kept = self._session.is_kept or self._session.watch.turn is not None
        if self._screen.as_json:
            print(msgspec.json.encode(answer).decode(), flush=True)
        if stopped and not self._screen.is_typed:  # there is no prompt to come back to
            raise typer.Exit(EXIT_INTERRUPTED)

    def _answer(self, line: str) -> Answer:
        if not line.startswith("/"):
            return self._session.say(line)
        if line.startswith("//"):
            return self._session.say(line[1:])
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            raise Refused(f"There is no command /{name}. /help shows those that there are; //{name} says /{name}")
        try:
            return self._commands[name].act(rest.strip())
        except WrongUse:
            raise Refused(f"Use it like this: {self._commands[name].form}") from None

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
        rows = [(one.form, one.does) for one in self._commands.values()]
        self._screen.out.print(menu([*rows, ("//TEXT", "say /TEXT")]))
        return {"commands": list(self._commands)}

    def _quit(self, _: str) -> Answer:
        self._ends = True
        return {"conversation": self._session.this.id, "name": self._session.this.name}


def _error(error: ForkpointError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message("Command line")}}

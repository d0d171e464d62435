"""`Telling`: what a command prints about the turn that it runs: its answer, its end, and what can be done then.

The answer is on stdout, all the rest on stderr. On a terminal the answer is shown as it comes; a file or a pipe gets it
once it is committed, whole. `AnswerForm` says what else may stand in its place.
Tests: tests/cli/test_run.py, tests/cli/test_turns.py.
"""

import shlex
import sys
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec
import typer

from forkpoint.cli.answer.code_block import first_block
from forkpoint.cli.answer.json_lines import JsonLines
from forkpoint.cli.commands.local import bring_library_for
from forkpoint.cli.output import WAITING, clean, console, menu, one_line, print_error, print_json, summary
from forkpoint.cli.questions.project import in_approved_project
from forkpoint.conversation import Conversation, Turn, TurnStarted, Update
from forkpoint.conversation.visualizer import TerminalVisualizer
from forkpoint.errors import TurnFailed, TurnOpen
from forkpoint.wire.documents import plain, turn_document

INTERRUPTED = 130
"""The exit status after Ctrl-C."""

_OTHER_MODEL = ("retry", "the same input, answered by another model", "--model", "NAME")
"""For a turn whose model cannot be asked, however often."""

_CANNOT_BE_ASKED = {
    "missing_key",
    "model_authentication",
    "model_connection",
    "model_quota",
    "model_unknown",
    "model_wrong_address",
}

_RETRY = ("retry", "the same input again, from the last good state")
_RESUME = ("resume", "on after the last finished step")
_DISCARD = ("discard", "end it, and go on without it")
_DECIDE = (("approve", "look at what waits, let it run, and go on"), ("deny", "refuse it, and go on"), _DISCARD)

AnswerForm: TypeAlias = Literal["text", "json", "json_lines", "code", "output"]
"""What a command prints on stdout: the answer; the whole turn as one JSON document; each update of the turn on a line;
the first code block of the answer; or the typed output, as JSON."""


class Telling:
    """Prints one turn. Open the conversation with `options`, then `run` the turn."""

    def __init__(self, *, store: str | None, as_json: bool, quiet: bool = False, form: AnswerForm = "text") -> None:
        self._store = store
        self._form: AnswerForm = "json" if as_json else form
        self._as_json = self._form in {"json", "json_lines"}
        self._lines = JsonLines() if form == "json_lines" else None
        self._begun: str | None = None
        self._aside = console(stderr=True)
        self._aside.quiet = quiet
        answers = console()
        answers.quiet = self._form != "text"
        streams = sys.stdout.isatty() and self._form == "text"
        self._screen = TerminalVisualizer(
            self._aside, answers=answers, stream=streams, show_input=False, show_end=False, store=store
        )

    @property
    def options(self) -> dict[str, Any]:
        """The options to open the conversation with."""
        callbacks = [self._follow, *([] if self._lines is None else [self._lines])]
        return {"callbacks": callbacks, "visualizer": None if self._as_json else self._screen}

    def run(self, conversation: Conversation, act: Callable[[], Turn]) -> None:
        """Runs the turn and tells how it ended. Exits unless it has committed."""
        name = conversation.name
        bring_library_for(conversation, self._store)
        try:
            turn = in_approved_project(act, conversation.workspace, self._store, asks=not self._as_json)
        except KeyboardInterrupt:
            self._interrupted(conversation)
            raise typer.Exit(INTERRUPTED) from None
        except TurnFailed as failed:
            self._failed(failed, name)
            raise typer.Exit(1) from None
        except TurnOpen as error:
            if self._lines is not None:
                raise
            print_error(error, as_json=self._as_json)
            self._suggest(name, *(_DECIDE if error.outcome == "awaiting_approval" else (_RESUME, _DISCARD)))
            raise typer.Exit(1) from None
        if not self._as_json and self._begun != turn.id:  # an earlier call with the same key ran it
            self._screen(turn)
        self.ended(turn, name)
        if turn.outcome == "awaiting_approval":
            self._suggest(name, *_DECIDE)
            raise typer.Exit(WAITING)
        self._print_part(turn, name)

    def _print_part(self, turn: Turn, name: str) -> None:
        """Prints the part of the answer that was asked for. Exits if the answer has none."""
        if self._form == "output":
            print_json(_plain_output(turn))
        elif self._form == "code":
            block = first_block(turn.text)
            if block is None:
                shows = command("show", name, self._store, "--turn", turn.id)
                told = f"The answer has no code block, and the turn has committed. `{shows}` shows it."
                print(f"error: {one_line(told)}", file=sys.stderr)
                raise typer.Exit(1)
            print(clean(block) if sys.stdout.isatty() else block)

    def ended(self, turn: Turn, name: str) -> None:
        """What a turn took, on one line, or all of it for programs."""
        if self._lines is not None:
            self._lines.ended(document(turn, name))
        elif self._as_json:
            print_json(document(turn, name))
        else:
            self._screen.end_line()
            for call in turn.handed:
                told = f"{one_line(call.tool)} is the client's own tool, and its result is to come from there"
                self._aside.print(told, style="yellow", soft_wrap=True, markup=False)
            if turn.stopped is not None:
                told = f"The turn was stopped at its limit of {turn.stopped}. The next message goes on from there."
                self._aside.print(one_line(told), style="yellow", soft_wrap=True, markup=False)
            self._aside.print(f"conversation {name} · {summary(turn)}", style="dim", soft_wrap=True)

    def _follow(self, update: Update) -> None:
        if isinstance(update, TurnStarted):
            self._begun = update.id

    def _failed(self, failed: TurnFailed, name: str) -> None:
        self._screen.end_line()
        if self._lines is not None:
            if not isinstance(failed.turn, Turn):
                raise failed
            self._lines.ended(document(failed.turn, name))
            return
        if self._as_json:
            if isinstance(failed.turn, Turn):
                print_json(document(failed.turn, name))
            print_error(failed, as_json=True)
            return
        print(f"error: {one_line(failed.fact('Command line'))}", file=sys.stderr)
        other = [_OTHER_MODEL] if getattr(failed.cause, "code", None) in _CANNOT_BE_ASKED else []
        self._suggest(name, _RETRY, _RESUME, *other)

    def _interrupted(self, conversation: Conversation) -> None:
        """Shows how the turn ended that Ctrl-C should stop: cancelled, unless it had ended before."""
        turn = conversation.turn(self._begun) if self._begun is not None else None
        if turn is not None:
            self.ended(turn, conversation.name)
            if turn.outcome == "cancelled":
                self._suggest(conversation.name, _RETRY, _RESUME)
        elif not self._as_json:
            print("Nothing was run.", file=sys.stderr)

    def _suggest(self, name: str, *verbs: tuple[str, ...]) -> None:
        """Says on stderr what can be done now: each a command, what it does, and further words of the command."""
        if self._as_json:
            return
        rows = [(f"  {command(verb, name, self._store, *more)}", does) for verb, does, *more in verbs]
        console(stderr=True).print(menu(rows))


def command(verb: str, name: str, store: str | None, *more: str) -> str:
    """A command line that does something with a conversation."""
    there = [] if store is None else ["--store", store]
    return shlex.join(["forkpoint", verb, name, *more, *there])


def document(turn: Turn, name: str) -> dict[str, Any]:
    """A turn, for programs."""
    told = plain(turn_document(turn)) | {"name": name}
    told["output"] = _plain_output(turn)
    return told


def _plain_output(turn: Turn) -> Any:
    """The typed output of a turn, of plain values."""
    return msgspec.to_builtins(turn.output, enc_hook=_builtins)


def _builtins(value: Any) -> Any:
    """A value of a type that msgspec does not know, as pydantic's are."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    raise NotImplementedError

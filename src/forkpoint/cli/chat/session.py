"""``forkpoint chat``: a conversation on a terminal, with commands to fork it, go back and try again.

It reads from a pipe too, without prompts; with ``--json`` it answers each line with one JSON document on one line.
Tests: tests/cli/test_chat.py.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Self, TypeVar

import msgspec
import typer
from rich.text import Text

from forkpoint.backend.results import words
from forkpoint.cli import figures
from forkpoint.cli.chat.typed_lines import TypedLines
from forkpoint.cli.commands.branches.tree import draw, stats_of, turns_back, walk
from forkpoint.cli.commands.local import bring_library_for
from forkpoint.cli.common import AgentPath, Allow, Approval, Instructions, Model, Store, all_turns, opened
from forkpoint.cli.options import argument, option
from forkpoint.cli.outcome import INTERRUPTED, command, document
from forkpoint.cli.output import clean, console, grid, menu, one_line
from forkpoint.cli.questions.approval import ApprovalQuestion
from forkpoint.cli.questions.project import TrustGiven, Workspace, ask_trust, in_approved_project, place_of
from forkpoint.cli.talk import Talk, here_for
from forkpoint.conversation import Conversation, Info, Turn, TurnStarted, Update, Visualizer
from forkpoint.conversation.call_view import ViewLine, print_view, turn_view
from forkpoint.conversation.visualizer import TerminalVisualizer
from forkpoint.errors import ForkpointError, TurnFailed, TurnOpen
from forkpoint.updates import CallWaits
from forkpoint.wire.documents import info_document, plain, usage_document

_FAILED = "/retry runs it again from the last good state, /resume goes on after its last finished step."
_INTERRUPTED = "/resume goes on after its last finished step, /retry runs it again, /discard ends it."
_WAITS = "/approve lets it run, /deny refuses it, /discard ends the turn."
_LATER = f"Nothing was decided, and the turn goes on waiting. /decide asks again, {_WAITS}"

T = TypeVar("T")


def chat(
    conversation: Annotated[
        str | None,
        argument(
            "CONVERSATION",
            "Go on with this conversation: its name, its id, or the start of its id. A new name makes a new one.",
        ),
    ] = None,
    model: Model = None,
    instructions: Instructions = None,
    agent: AgentPath = None,
    approval: Approval = None,
    workspace: Workspace = None,
    trust: TrustGiven = None,
    allow: Allow = None,
    store: Store = None,
    json: Annotated[
        bool, option("--json", "Answer each line with one JSON document on one line, for programs.")
    ] = False,
) -> None:
    """Talk, and see answers as they come.

    Ctrl-C stops an answer, and nothing of that turn stays; Ctrl-D ends the program. /help shows what you can do: fork,
    go back, try again, ask aside. What you type during an answer is queued and is the next turn; /steer sends it to the
    turn that runs.

    \b
    Examples:
      forkpoint chat
      forkpoint chat build-1234
      forkpoint chat --agent coder
      printf 'What is the capital of France?\\n/fork\\nAnd of Spain?\\n' | forkpoint chat
    """
    workspace = here_for(agent, workspace, conversation, store)
    if trust is None and not json:
        trust = ask_trust(workspace, store, say=_say_aside)
    store = place_of(workspace, store, trust)
    talk = Talk(conversation, model, instructions, agent, approval, workspace, trust, allow, store)
    with _Chat(talk, as_json=json) as begun:
        begun.go()


class _Chat:
    """A user at a keyboard, or a pipe, and the conversation that they talk in."""

    _this: Conversation

    def __init__(self, talk: Talk, *, as_json: bool) -> None:
        self._talk = talk
        self._store = talk.store
        self._json = as_json
        self._typed = sys.stdin.isatty()
        self._out = console()
        self._out.quiet = as_json
        self._screen = TerminalVisualizer(self._out, show_input=False, store=talk.store)
        self._told = _Following(self._repeat)
        self._kept = False  # whether the conversation is in the store, so that the user can come back to it
        self._ends = False
        self._asks = self._typed and sys.stdout.isatty() and not as_json  # whether somebody sees what is shown
        self._queue: deque[str] = deque()  # lines that were typed while a turn ran
        self._is_waiting = False  # whether calls waited for an approval when the user came here
        self._commands: dict[str, tuple[str, str, Callable[[str], dict[str, Any]]]] = {
            "fork": ("[TITLE]", "go on in a fork; this conversation stays as it is", self._fork),
            "switch": ("CONVERSATION", "go to another conversation, by its name or id", self._switch),
            "rewind": ("[N]", "go back N turns, by default one; what stood there is kept", self._rewind),
            "retry": ("", "run the turn that did not commit again, from the last good state", self._retry),
            "resume": ("", "go on with it after its last finished step", self._resume),
            "discard": ("", "end a turn that waits or was interrupted", self._discard),
            "approve": ("[CALL]", "let a call run that waits for an approval, by default all of them", self._approve),
            "deny": ("[REASON]", "refuse what waits; the model is told the reason", self._deny),
            "decide": ("", "look again at what waits, and decide on each call", self._decide),
            "steer": ("MESSAGE", "send it to the turn that runs, with its next tool results", self._steer),
            "ask": ("QUESTION", "ask aside: nothing of it is kept but what it cost", self._ask),
            "turns": ("", "show the turns of this conversation", self._turns),
            "tree": ("", "show its family: forks, and what was set aside", self._tree),
            "help": ("", "show this", self._help),
            "quit": ("", "end the program; so does Ctrl-D", self._quit),
        }

    # From line to line.

    def __enter__(self) -> Self:
        """Opens the conversation, and says how it stands."""
        name, options = self._talk.name, self._options
        found = self._talk.existing(**options)
        self._kept = found is not None
        self._this = found or self._talk.new(**options)
        bring_library_for(self._this, self._store)
        turns = all_turns(self._this)
        if found is not None:
            self._announce(self._this.info(), turns)
        else:
            told = [f"new conversation{f' {name}' if name else ''}", "/help shows what you can do"]
            if self._this.agent is not None:
                told.insert(1, self._this.agent.llm.model)
            self._say(" · ".join(told))
        if self._typed:
            _set_up_readline(self._commands, map(_asked, turns))
        return self

    def __exit__(self, *_: object) -> None:
        self._this.close()

    @property
    def _options(self) -> dict[str, Any]:
        shows = _WithoutWaiting(self._screen) if self._asks else self._screen
        return {"callbacks": [self._told], "visualizer": shows}

    def go(self) -> None:
        """Reads and answers lines until there are no more."""
        if self._asks and self._is_waiting:
            self._do("/decide")
        while not self._ends:
            try:
                line = self._next_queued() if self._queue else self._read()
            except KeyboardInterrupt:
                line = None
            if line is None:
                if self._typed:
                    self._out.print()
                break
            if line.strip():
                self._do(line.strip())
        if self._kept:
            self._say(f"Go on with: {command('chat', self._this.name, self._store)}")

    def _do(self, line: str) -> None:
        """Does what a line asks for. If that fails, it prints the error, and the chat goes on."""
        self._told.turn = None
        stopped = False
        try:
            answer = self._answer(line)
        except KeyboardInterrupt:
            answer, stopped = self._interrupted(), True
        except TurnFailed as failed:
            self._say(_FAILED)
            answer = _error(failed) if failed.turn is None else document(failed.turn, self._this.name)
        except ForkpointError as error:
            self._complain(error.message("Command line"))
            if isinstance(error, TurnOpen):
                self._say(_WAITS if error.outcome == "awaiting_approval" else _INTERRUPTED)
            answer = _error(error)
        self._kept = self._kept or self._told.turn is not None
        if self._json:
            print(msgspec.json.encode(answer).decode(), flush=True)
        if stopped and not self._typed:  # there is no prompt to come back to
            raise typer.Exit(INTERRUPTED)

    def _answer(self, line: str) -> dict[str, Any]:
        if not line.startswith("/"):
            return self._ran(self._run(lambda: self._this.run(line)))
        if line.startswith("//"):
            return self._ran(self._run(lambda: self._this.run(line[1:])))
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            return self._refuse(f"There is no command /{name}. /help shows those that there are; //{name} says /{name}")
        return self._commands[name][2](rest.strip())

    def _ran(self, turn: Turn) -> dict[str, Any]:
        """Tells of a turn. If calls wait, it asks about them, or says how to decide."""
        if turn.outcome == "awaiting_approval" and self._asks:
            self._screen.end_line()
            waits, question = turn, ApprovalQuestion(self._out, self._this)
            turn = self._in_project(lambda: question.ask(self._this.open_turn() or waits))
        if turn.outcome == "awaiting_approval":
            self._say(_LATER if self._asks else _WAITS)
        return document(turn, self._this.name)

    def _in_project(self, act: Callable[[], T]) -> T:
        """Runs a turn. If the project changed, it shows that and asks first."""
        return in_approved_project(act, self._this.workspace, self._store, asks=not self._json)

    def _run(self, act: Callable[[], T]) -> T:
        """Runs a turn in which nobody is asked anything at the keyboard: lines that are typed meanwhile are taken."""

        def listening() -> T:
            if not self._typed:
                return act()
            with TypedLines(self._typed_meanwhile) as lines:
                self._told.at_end = lines.stop  # before the end is shown: what is typed after it is for the prompt
                return act()

        return self._in_project(listening)

    def _typed_meanwhile(self, line: str | None) -> None:
        """Takes a line that was typed while a turn runs: for that turn, or for after it. Another thread calls it."""
        if line is None:
            self._queue.append("/quit")
            return
        steers, _, message = line.partition(" ")
        if steers == "/steer":
            try:
                self._steer(message.strip())
            except ForkpointError as error:
                self._complain(error.message("Command line"))
            return
        self._queue.append(line)
        self._screen.end_line()
        self._say(f"queued: {one_line(line, 200)}")

    def _next_queued(self) -> str:
        """A queued line, shown again: it was typed in the middle of another answer."""
        line = self._queue.popleft()
        if line.strip() and line != "/quit":
            self._repeat(line)
        return line

    def _interrupted(self) -> dict[str, Any]:
        """Shows how the turn ended that Ctrl-C should stop."""
        if self._queue:
            self._say(
                f"Not sent, since the turn was stopped: {' · '.join(one_line(line, 200) for line in self._queue)}"
            )
            self._queue.clear()
        if self._told.turn is None:
            return self._refuse("It was stopped")
        turn = self._this.turn(self._told.turn)
        self._screen(turn)
        if turn.outcome == "cancelled":
            self._say(_FAILED)
        return document(turn, self._this.name)

    # Lines that begin with a slash.

    def _fork(self, title: str) -> dict[str, Any]:
        source = self._this
        self._go_to(source.fork(title=title or None, callbacks=[self._told]))
        self._say(f"This is the fork {self._this.name} now. Back: /switch {source.name}")
        return {"conversation": self._this.id, "name": self._this.name, "source": source.id}

    def _switch(self, given: str) -> dict[str, Any]:
        if not given:
            return self._usage("switch")
        before = self._this.name
        agent, allow = self._talk.agent, self._talk.allow
        self._go_to(opened(given, self._store, bind=True, agent=agent, allow=allow, **self._options))
        self._announce(self._this.info(), all_turns(self._this))
        self._say(f"Back: /switch {before}")
        if self._asks and self._is_waiting:
            return self._decide("")
        return {"conversation": self._this.id, "name": self._this.name}

    def _rewind(self, given: str) -> dict[str, Any]:
        if given and not (given.isascii() and given.isdigit() and int(given)):
            return self._usage("rewind")
        number = int(given or 1)
        aside = self._this.rewind(before=turns_back(self._this, number))
        kept = None
        if aside is not None:
            with aside:
                kept = aside.id
            self._say(f"Back by {figures.counted(number, 'turn')}. What stood there is kept: /switch {kept}")
        return {"conversation": self._this.id, "aside": kept}

    def _retry(self, _: str) -> dict[str, Any]:
        self._told.repeats = True
        try:
            return self._ran(self._run(self._this.retry))
        finally:
            self._told.repeats = False

    def _resume(self, _: str) -> dict[str, Any]:
        return self._ran(self._run(self._this.resume))

    def _discard(self, _: str) -> dict[str, Any]:
        turn = self._this.discard()
        self._say(f"Turn {turn.id} is {turn.outcome}.")
        return document(turn, self._this.name)

    def _approve(self, calls: str) -> dict[str, Any]:
        return self._ran(self._run(lambda: self._this.approve(*calls.split())))

    def _deny(self, reason: str) -> dict[str, Any]:
        return self._ran(self._run(lambda: self._this.deny(reason=reason or None)))

    def _decide(self, _: str) -> dict[str, Any]:
        turn = self._this.open_turn()
        if turn is None or turn.outcome != "awaiting_approval":
            return self._refuse("Nothing waits for an approval")
        if not self._asks:
            self._show(turn_view(turn))
        return self._ran(turn)

    def _steer(self, message: str) -> dict[str, Any]:
        if not message:
            return self._usage("steer")
        sent = self._this.steer(message)
        self._screen.end_line()
        self._say(f"sent to the turn: {one_line(message, 200)}")
        return {**msgspec.to_builtins(sent)}

    def _ask(self, question: str) -> dict[str, Any]:
        if not question:
            return self._usage("ask")
        answer = self._run(lambda: self._this.ask(question))
        self._kept = True
        self._screen.end_line()
        self._say(f"asked aside, not kept · {figures.tokens(answer.usage)} · {figures.money(answer.cost)}")
        return {"text": answer.text, "usage": usage_document(answer.usage)}

    def _turns(self, _: str) -> dict[str, Any]:
        turns = all_turns(self._this)
        if not turns:
            self._say("There are no turns yet.")
        table = grid()
        table.add_column(style="dim", justify="right", no_wrap=True, min_width=len(str(len(turns))))
        table.add_column(no_wrap=True, min_width=max((len(turn.outcome) for turn in turns), default=0))
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=2)
        table.add_column(style="dim", no_wrap=True, overflow="ellipsis", ratio=3)
        number = 0
        for turn in turns:
            committed = turn.outcome == "committed"
            number += committed
            outcome = Text(turn.outcome.replace("_", " "), style="green" if committed else "yellow")
            came = turn.text or (turn.error.message if turn.error is not None else "")
            table.add_row(str(number) if committed else "", outcome, one_line(_asked(turn), 200), one_line(came, 200))
        self._out.print(table)
        return {"turns": [document(turn, self._this.name) for turn in turns]}

    def _tree(self, _: str) -> dict[str, Any]:
        branches = self._this.tree() if self._kept else ()
        if not branches:
            self._say("Nothing was said yet.")
        self._out.print(draw(branches, here=self._this.id, stats=stats_of(branches, self._store)))
        return {"branches": [plain(info_document(info)) | {"depth": depth} for info, depth in walk(branches)]}

    def _help(self, _: str) -> dict[str, Any]:
        rows = [(f"/{name} {arguments}".rstrip(), does) for name, (arguments, does, _) in self._commands.items()]
        self._out.print(menu([*rows, ("//TEXT", "say /TEXT")]))
        return {"commands": list(self._commands)}

    def _quit(self, _: str) -> dict[str, Any]:
        self._ends = True
        return {"conversation": self._this.id, "name": self._this.name}

    # Shared by the commands.

    def _go_to(self, other: Conversation) -> None:
        before, self._this = self._this, other
        self._kept = True
        before.close()

    def _announce(self, info: Info, turns: list[Turn]) -> None:
        """Shows how the conversation stands that the user has come to. Whoever can be asked is asked what waits."""
        self._is_waiting = info.status == "awaiting_approval"
        committed = [turn for turn in turns if turn.outcome == "committed"]
        told = [f"conversation {info.name}", one_line(info.title or "", 60), info.model or ""]
        told += [figures.counted(len(committed), "turn"), "/help shows what you can do"]
        self._say(" · ".join(part for part in told if part))
        if committed and self._typed:
            self._say(f"{self._mark}{one_line(_asked(committed[-1]), 200)}")
            self._say(one_line(committed[-1].text, 600))
        match info.status:
            case "interrupted":
                self._warn(f"Turn {info.open_turn} was interrupted: its process ended.")
                self._say(_INTERRUPTED)
            case "awaiting_approval":
                if not self._asks:
                    for turn in turns:
                        self._show(turn_view(turn) if turn.id == info.open_turn else ())
                    self._say(_WAITS)
            case "running":
                self._warn(f"Turn {info.open_turn} is running, in another process.")
            case "idle":
                pass

    def _usage(self, name: str) -> dict[str, Any]:
        return self._refuse(f"Use it like this: /{name} {self._commands[name][0]}")

    def _refuse(self, why: str) -> dict[str, Any]:
        self._complain(why)
        return {"error": {"code": "refused", "message": why}}

    def _read(self) -> str | None:
        """The next line; None at the end."""
        if not self._typed:
            read = sys.stdin.buffer.readline()
            line = read.decode(errors="surrogateescape").strip()
            if line:
                self._repeat(line)
            return line if read else None
        prompt = self._mark
        if not sys.stdout.isatty():  # stdout is a file or a pipe, so the prompt goes to stderr
            print(prompt, end="", file=sys.stderr, flush=True)
            prompt = ""
        try:
            return input(prompt)
        except EOFError:
            return None

    @property
    def _mark(self) -> str:
        return "\u276f " if self._out.encoding.lower().startswith("utf") else "> "

    def _repeat(self, line: str) -> None:
        """Shows a message that the user has not just typed."""
        self._out.print(f"{self._mark}{one_line(line, 600)}", style="bold")

    def _say(self, text: str) -> None:
        self._out.print(clean(text), style="dim")

    def _show(self, lines: Iterable[ViewLine]) -> None:
        """Shows what somebody decides on, to the character."""
        print_view(self._out, lines, before="  ")

    def _warn(self, text: str) -> None:
        self._out.print(clean(text), style="yellow")

    def _complain(self, text: str) -> None:
        self._screen.end_line()
        self._out.print(f"error: {one_line(text)}", style="red")


class _WithoutWaiting:
    """Shows turns while they run, all but the calls that wait: the question shows those, directly above itself."""

    def __init__(self, screen: Visualizer) -> None:
        self._screen = screen

    def __call__(self, update: Update, /) -> None:
        if not isinstance(update, CallWaits):
            self._screen(update)

    def for_fork(self) -> "_WithoutWaiting":
        return _WithoutWaiting(self._screen.for_fork())


class _Following:
    """A callback that remembers which turn has begun, for Ctrl-C. It can show the turn's message, and tell its end."""

    def __init__(self, repeat: Callable[[str], None]) -> None:
        self._repeat = repeat
        self.repeats = False
        self.turn: str | None = None
        self.at_end: Callable[[], None] = lambda: None  # called when a turn has ended

    def __call__(self, update: Update) -> None:
        if isinstance(update, TurnStarted):
            self.turn = update.id
            if self.repeats:
                self._repeat(_asked(update))
        elif isinstance(update, Turn):
            self.at_end()


def _say_aside(text: str) -> None:
    console().print(clean(text), style="dim")


def _asked(turn: Turn | TurnStarted) -> str:
    return "\n".join(words(message.parts) for message in turn.input)


def _error(error: ForkpointError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message("Command line")}}


def _set_up_readline(commands: Iterable[str], said: Iterable[str]) -> None:
    """Sets up readline, if the system has it: earlier messages as history, and completion of commands."""
    try:
        import readline
    except ImportError:
        return
    for line in said:
        if line and "\n" not in line:
            readline.add_history(line)
    names = [f"/{name} " for name in commands]
    readline.set_completer_delims("")
    readline.set_completer(lambda start, number: [*(name for name in names if name.startswith(start)), None][number])
    readline.parse_and_bind("tab: complete")
    readline.parse_and_bind("set enable-bracketed-paste on")  # several lines that are pasted are one message

"""`TerminalVisualizer`: a conversation on a terminal, as it happens.

On a terminal with colours, answers are shown as Markdown, and what is still arriving is rewritten in place. Elsewhere
lines are only ever added, so that the output looks the same in a log file and in a notebook. **What models and tools
say never controls the terminal**: it is no markup of ours, and has no characters that would be commands.
A call that waits for an approval is shown whole. Of the others there is a line, and of an output its first lines: if
something is left out, it says how much, and the turn ends with the command that shows it. How a turn ended is shown
once, whoever else shows the turn again.
"""

import shlex
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, assert_never

from forkpoint.backend.callbacks import Update
from forkpoint.backend.results import Turn, tools_of, words
from forkpoint.conversation.call_view import call_line, reason_view, waiting_view
from forkpoint.conversation.screen_text import clean as clean
from forkpoint.conversation.screen_text import cut, in_a_row
from forkpoint.conversation.terminal.call_log import CallLog
from forkpoint.conversation.terminal.figures import dollars as dollars
from forkpoint.conversation.terminal.figures import figures as figures
from forkpoint.conversation.terminal.figures import seconds as seconds
from forkpoint.conversation.terminal.turn_screen import TurnScreen
from forkpoint.events import UserMessage
from forkpoint.llm.answers import cut_of
from forkpoint.updates import (
    Answered,
    CallEnded,
    CallPiece,
    CallProgress,
    CallStarted,
    CallWaits,
    ReasoningPiece,
    Restarted,
    Steered,
    TextPiece,
    TurnJoined,
    TurnStarted,
)

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_INPUT = 300
"""How many characters of a user's message are shown."""


class TerminalVisualizer:
    """Shows turns while they run. Any thread may call it.

    - ``console``: a console of rich. Default: a console on stdout.
    - ``answers``: another console for the text of answers, to keep it apart from all the rest.
    - ``stream``: if True, answers are shown as they arrive. If False, an answer is shown when it is committed, so that
      no answer is shown and then declared void.
    - ``show_input``, ``show_reasoning``, ``show_end``: whether to show the user's messages, the model's thoughts, and
      how a turn ended.
    - ``markdown``: whether answers in Markdown are shown as such: on a terminal that has colours. Elsewhere, and where
      NO_COLOR is set, they are shown as they are.
    - ``store``: the store's address, for the command that shows what a line leaves out. Default: the usual store.
    - ``whole``: what somebody types to see what is left out. Default: that command.
    """

    def __init__(
        self,
        console: "Console | None" = None,
        *,
        answers: "Console | None" = None,
        stream: bool = True,
        show_input: bool = True,
        show_reasoning: bool = True,
        show_end: bool = True,
        store: str | None = None,
        markdown: bool = True,
        whole: str | None = None,
    ) -> None:
        if console is None:
            from rich.console import Console

            console = Console(highlight=False, force_jupyter=False)  # a notebook shows plain output well
        self._stream = stream
        self._show_input = show_input
        self._show_reasoning = show_reasoning
        self._show_end = show_end
        self._store = store
        self._whole = whole
        self._begin(TurnScreen(console, answers or console, markdown=markdown))

    def _begin(self, screen: TurnScreen) -> None:
        self._screen = screen
        self._turn: str | None = None  # the turn that is being shown
        self._since = 0.0  # when its first update came
        self._heard = False  # whether a piece of the present answer was shown
        self._hearing = ""  # what the model says in the answer that is arriving, if answers are not shown meanwhile
        self._unsaid = ""  # what it said in the last whole answer, if nobody was shown it
        self._calls = CallLog(screen)
        self._waited: set[str] = set()  # the calls that somebody was shown whole, to decide on them
        self._end: tuple[str, str] | None = None  # the turn whose end was shown last, and its outcome

    def for_fork(self) -> "TerminalVisualizer":
        """A visualizer on the same console."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._begin(self._screen)
        return made

    def __call__(self, update: Update, /) -> None:
        with self._screen.lock:
            try:
                self._show(update)
            except (SystemExit, BrokenPipeError):  # the output is closed; that must not end a turn that is paid for
                self._screen.leave()

    def end_line(self) -> None:
        """Ends a line that is still being written, so that other code may print."""
        with self._screen.lock:
            self._screen.end_line()

    def apart(self) -> AbstractContextManager[None]:
        """A context in which other code may print: above an answer that is shown live, else after its line."""
        return self._screen.apart()

    def show_typed(self, text: str) -> None:
        """Shows what somebody types meanwhile, below everything else; "" ends that. Only if `is_live`."""
        self._screen.set_footer(clean(text))

    @property
    def is_live(self) -> bool:
        """Whether answers are shown as Markdown, and rewritten in place until they are whole."""
        return self._screen.is_live

    def _show(self, update: Update) -> None:
        screen, marks = self._screen, self._screen.marks
        match update:
            case TurnStarted(id=turn, input=input, resumed=resumed):
                self._turn, self._since, self._heard = turn, time.monotonic(), False
                self._hearing, self._unsaid, self._calls, self._end = "", "", CallLog(screen), None
                if resumed:
                    screen.row(marks.note, "the turn goes on", "dim")
                elif self._show_input:
                    self._show_messages(input)
            case TurnJoined():
                pass  # whoever began it shows it
            case TextPiece(text=text):
                if self._stream:
                    screen.stream(self, text)
                    self._heard = True
                else:
                    self._hearing += text
            case ReasoningPiece(text=text):
                if self._show_reasoning:
                    screen.stream(self, text, thought=True)
                    self._heard = True
            case CallPiece():
                pass  # the call is shown whole, when it starts
            case Restarted(error=error):
                void = ": what was heard of this answer is void" if self._heard else ""
                screen.row(marks.again, f"the model is asked again ({in_a_row(error)}){void}", "yellow")
                self._heard, self._hearing = False, ""
            case Answered(called=called):
                screen.end_line()
                if (ended := cut_of(called)) is not None:
                    screen.row(marks.note, f"the answer was {ended}", "yellow")
                self._heard = False
                self._unsaid, self._hearing = self._hearing, ""
            case CallStarted(call=call):
                self._calls.started(call, is_known=call.call_id in self._waited)
            case CallProgress():
                self._calls.progress(update)
            case CallEnded(result=result):
                self._calls.ended(result)
            case CallWaits(call=call, reason=reason):
                screen.view(marks.note, reason_view(self._unsaid))
                self._unsaid = ""
                screen.view(marks.waits, waiting_view(call, reason))
            case Steered(message=message):
                screen.end_line()
                self._show_messages([message])
            case Turn():
                self._show_turn(update)
            case _ as never:
                assert_never(never)

    def _show_messages(self, messages: Iterable[UserMessage]) -> None:
        for message in messages:
            text = words(message.parts)
            if len(text) > LONGEST_INPUT:
                text = f"{text[:LONGEST_INPUT].rstrip()} {self._screen.marks.dots} ({len(text):,} characters)"
            self._screen.row(self._screen.marks.user, clean(text).strip(), "bold", indent=0)

    def _show_turn(self, turn: Turn) -> None:
        screen, marks = self._screen, self._screen.marks
        screen.show_live((), "")
        if self._end == (turn.id, turn.outcome):  # whoever ran the turn shows it again
            return
        self._end = turn.id, turn.outcome
        self._waited = {call.id for call in turn.waiting}
        if told := turn.id == self._turn:
            passed: float | None = time.monotonic() - self._since  # not what it waited before it was resumed
        else:
            passed = None if turn.ended is None else (turn.ended - turn.started) / 1e6
        self._turn = None
        screen.end_line()
        if not told:
            self._show_before(turn)
        if turn.outcome == "committed" and not (told and self._stream):
            screen.stream(self, turn.text)
            screen.end_line()
        if not told and turn.cut is not None:
            screen.row(marks.note, f"the answer was {turn.cut}", "yellow")
        if self._calls.is_cut:
            self._calls.is_cut = False
            screen.row(marks.note, f"what is left out above is shown by: {self._whole or self._command(turn)}", "dim")
        if not self._show_end:
            return
        outcome, used = turn.outcome.replace("_", " "), figures(turn, passed)
        match turn.outcome:
            case "committed":
                if turn.stopped is not None:
                    screen.row(marks.waits, f"stopped at its limit of {turn.stopped}", "yellow", indent=0)
                for one in turn.steered:
                    if not one.delivered and one.message is not None:
                        screen.row(
                            marks.waits, f"not delivered: {in_a_row(words(one.message.parts))}", "yellow", indent=0
                        )
                screen.end(marks.good, f"{outcome} · {used}", "dim", mark_style="green")
            case "failed" | "cancelled":
                why = f": {cut(in_a_row(turn.error.message), 2000)}" if turn.error is not None else ""
                screen.row(marks.bad, f"{outcome}{why}", "", mark_style="red", indent=0)
                if turn.calls or turn.steered:
                    screen.row("", clean(tools_of(turn)), "", indent=0)
                screen.end("", f"the conversation is as it was · {used}", "dim")
            case "awaiting_approval":
                count = len(turn.waiting)
                told_of = f"{count} {'call waits' if count == 1 else 'calls wait'}"
                screen.end(marks.waits, f"{outcome} · {told_of} · {used}", "yellow")
            case "running" | "interrupted":
                screen.end(marks.note, f"{outcome} · {used}", "dim")
            case _ as never:
                assert_never(never)
        screen.blank()

    def _command(self, turn: Turn) -> str:
        """The command that shows all of a turn."""
        place = [] if self._store is None else ["--store", self._store]
        return shlex.join(["forkpoint", "show", turn.conversation, "--turn", turn.id, *place])

    def _show_before(self, turn: Turn) -> None:
        """Shows the input and the calls of a turn of which no update came while it ran."""
        if self._show_input:
            self._show_messages(turn.input)
        screen, marks = self._screen, self._screen.marks
        for call in turn.calls:
            if call.status != "waiting":
                self._calls.row(marks.call, f"{call.status.replace('_', ' ')}: {call_line(call)}", "cyan")
        if turn.waiting:
            screen.view(marks.note, reason_view(turn.text))
        for call in turn.waiting:
            screen.view(marks.waits, waiting_view(call, call.reason))

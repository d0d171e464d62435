"""`Session`: the conversation that a user of a chat talks in now, and how its turns are run.
Tests: tests/cli/test_chat.py."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

from forkpoint.backend.messages import Message
from forkpoint.cli import figures
from forkpoint.cli.answerer.bundled import INTRODUCTION, is_bundled
from forkpoint.cli.chat.screen import ChatScreen
from forkpoint.cli.chat.turn_watch import TurnWatch, asked
from forkpoint.cli.chat.typed_lines import TypedLines
from forkpoint.cli.commands.local import bring_library_for
from forkpoint.cli.common import all_turns, opened
from forkpoint.cli.outcome import document
from forkpoint.cli.output import one_line
from forkpoint.cli.questions.approval import ApprovalQuestion
from forkpoint.cli.questions.project import in_approved_project
from forkpoint.cli.talk import Talk
from forkpoint.cli.titles import Titles
from forkpoint.conversation import Conversation, Info, Turn
from forkpoint.conversation.call_view import turn_view

WAITS = "/approve lets it run, /deny refuses it, /discard ends the turn."
INTERRUPTED = "/resume goes on after its last finished step, /retry runs it again, /discard ends it."
_LATER = f"Nothing was decided, and the turn goes on waiting. /decide asks again, {WAITS}"

T = TypeVar("T")


class Session:
    """The conversation in hand. As a context it opens that conversation, and says how it stands."""

    this: Conversation

    def __init__(self, talk: Talk, screen: ChatScreen, titles: Titles) -> None:
        self._talk = talk
        self._titles = titles
        self.store = talk.store
        self.screen = screen
        self.watch = TurnWatch(screen.repeat)
        self.turns: list[Turn] = []  # those that were there when the user came
        self.is_kept = False  # whether the conversation is in the store, so that the user can come back to it
        self.is_waiting = False  # whether calls waited for an approval when the user came here
        self.draft = ""  # what the user had typed when a turn ended, and not sent
        self.typed_meanwhile: Callable[[str | None], None] = lambda _: None  # gets lines while a turn runs

    def __enter__(self) -> Self:
        name, options = self._talk.name, self._options
        found = self._talk.existing(**options)
        self.is_kept = found is not None
        self.this = found or self._talk.new(**options)
        bring_library_for(self.this, self.store)
        self.turns = all_turns(self.this)
        if found is not None:
            self._announce(self.this.info(), self.turns)
        else:
            told = [f"new conversation{f' {name}' if name else ''}", "/help shows what you can do"]
            if self.this.agent is not None:
                told.insert(1, self.this.agent.llm.model)
            self.screen.say(" · ".join(told))
            if is_bundled(self.this.agent):
                self.screen.say(INTRODUCTION)
        return self

    def __exit__(self, *_: object) -> None:
        self.this.close()

    @property
    def _options(self) -> dict[str, Any]:
        return {"callbacks": [self.watch], "visualizer": self.screen.visualizer}

    # Turns.

    def say(self, message: Message) -> dict[str, Any]:
        """Runs a turn with a message of the user."""
        return self.ran(self.run(lambda: self.this.run(message)))

    def run(self, act: Callable[[], T]) -> T:
        """Runs a turn in which nobody is asked anything at the keyboard: lines that are typed meanwhile are taken."""

        def listening() -> T:
            if not self.screen.is_typed:
                return act()
            lines = TypedLines(self.typed_meanwhile, self.screen.show_typed if self.screen.is_live else None)
            try:
                with lines:
                    self.watch.at_end = lines.stop  # before the end is shown: what is typed after it is for the prompt
                    return act()
            finally:
                self.draft = lines.draft

        return self._in_project(listening)

    def ran(self, turn: Turn) -> dict[str, Any]:
        """Tells of a turn. If calls wait, it asks about them, or says how to decide."""
        if turn.outcome == "awaiting_approval" and self.screen.is_watched:
            self.screen.end_line()
            waits, question = turn, ApprovalQuestion(self.screen.out, self.this)
            turn = self._in_project(lambda: question.ask(self.this.open_turn() or waits))
        if turn.outcome == "awaiting_approval":
            self.screen.say(_LATER if self.screen.is_watched else WAITS)
        if turn.outcome == "committed":
            self._titles.give(self.this)
        return document(turn, self.this.name)

    def _in_project(self, act: Callable[[], T]) -> T:
        """Runs a turn. If the project changed, it shows that and asks first."""
        return in_approved_project(act, self.this.workspace, self.store, asks=not self.screen.as_json)

    # Which conversation it is.

    def switch(self, name: str) -> None:
        """Goes to another conversation, and says how it stands."""
        agent, allow = self._talk.who.agent, self._talk.allow
        self.go_to(opened(name, self.store, bind=True, agent=agent, allow=allow, **self._options))
        self._announce(self.this.info(), all_turns(self.this))

    def go_to(self, other: Conversation) -> None:
        """Goes on in another conversation, which is in the store."""
        before, self.this = self.this, other
        self.is_kept = True
        before.close()

    def _announce(self, info: Info, turns: list[Turn]) -> None:
        """Shows how the conversation stands that the user has come to. Whoever can be asked is asked what waits."""
        screen = self.screen
        self.is_waiting = info.status == "awaiting_approval"
        committed = [turn for turn in turns if turn.outcome == "committed"]
        told = [f"conversation {info.name}", one_line(info.title or "", 60), info.model or ""]
        told += [figures.counted(len(committed), "turn"), "/help shows what you can do"]
        screen.say(" · ".join(part for part in told if part))
        if committed and screen.is_typed:
            screen.say(f"{screen.mark}{one_line(asked(committed[-1]), 200)}")
            screen.say(one_line(committed[-1].text, 600))
        match info.status:
            case "interrupted":
                screen.warn(f"Turn {info.open_turn} was interrupted: its process ended.")
                screen.say(INTERRUPTED)
            case "awaiting_approval":
                if not screen.is_watched:
                    for turn in turns:
                        screen.show(turn_view(turn) if turn.id == info.open_turn else ())
                    screen.say(WAITS)
            case "running":
                screen.warn(f"Turn {info.open_turn} is running, in another process.")
            case "idle":
                pass

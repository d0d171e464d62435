"""Commands of a chat that run or end turns. Tests: tests/cli/test_chat.py, tests/cli/test_chat_commands.py."""

import os

import msgspec

from forkpoint.cli import figures
from forkpoint.cli.chat.attachments import is_own_words
from forkpoint.cli.chat.commands.slash_command import Answer, Refused, SlashCommand, WrongUse
from forkpoint.cli.chat.session import Session
from forkpoint.cli.chat.turn_watch import asked
from forkpoint.cli.common import all_turns
from forkpoint.cli.outcome import document
from forkpoint.cli.output import one_line
from forkpoint.cli.questions.editor import edited
from forkpoint.cli.questions.keyboard import read_line
from forkpoint.conversation import Turn
from forkpoint.events import Text, UserMessage
from forkpoint.wire.documents import usage_document


def try_commands(session: Session) -> tuple[SlashCommand, ...]:
    """The commands."""
    does = _Tries(session)
    return (
        SlashCommand("regenerate", "", "have the last message answered again; the old answer is kept", does.regenerate),
        SlashCommand("edit", "[N] [TEXT]", "change your last message, or that of turn N, and run it", does.edit),
        SlashCommand("retry", "", "run the turn that did not commit again, from the last good state", does.retry),
        SlashCommand("resume", "", "go on with it after its last finished step", does.resume),
        SlashCommand("discard", "", "end a turn that waits or was interrupted", does.discard),
        SlashCommand("steer", "MESSAGE", "send it to the turn that runs, with its next tool results", does.steer),
        SlashCommand("ask", "QUESTION", "ask aside: nothing of it is kept but what it cost", does.ask),
    )


class _Tries:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = session.screen

    def regenerate(self, _: str) -> Answer:
        turn = self._committed(None)
        return self._instead(turn, turn.input)

    def edit(self, given: str) -> Answer:
        number, _, text = given.partition(" ")
        if number.isascii() and number.isdigit():
            turn = self._committed(int(number))
        else:
            turn, text = self._committed(None), given
        said = text.strip() or self._changed(asked(turn))
        if not said:
            self._screen.say("Nothing was changed.")
            return {"conversation": self._session.this.id}
        others = [part for message in turn.input for part in message.parts if not is_own_words(part)]
        return self._instead(turn, (UserMessage((Text(said), *others)),))

    def _changed(self, before: str) -> str:
        """What somebody makes of a message, in an editor or on a line; "" if they leave it as it is."""
        if not self._screen.is_watched:
            raise WrongUse
        if os.environ.get("VISUAL") or os.environ.get("EDITOR"):
            try:
                after = edited(before, "message.md").strip()
                if after != before.strip():
                    self._screen.repeat(after)
            except OSError as error:
                raise Refused(str(error)) from None
        else:
            after = read_line(self._screen.mark, "" if "\n" in before else before) or ""
        return "" if after.strip() == before.strip() else after.strip()

    def _instead(self, turn: Turn, messages: tuple[UserMessage, ...]) -> Answer:
        """Runs messages in the place of a turn and all after it, which are kept as a branch."""
        this = self._session.this
        aside = this.rewind(before=turn.id)
        if aside is not None:
            with aside:
                self._screen.say(f"What stood there is kept: /switch {aside.id}")
        *before, last = messages
        for message in before:
            this.send_message(message)
        return self._session.say(last)

    def _committed(self, number: int | None) -> Turn:
        """A committed turn that has a message, by its number in /turns; by default the last one."""
        turns = [turn for turn in all_turns(self._session.this) if turn.outcome == "committed"]
        if not turns:
            raise Refused("Nothing was said yet")
        if number is not None and not 1 <= number <= len(turns):
            raise Refused(f"There is no turn {number}: /turns shows those that there are")
        turn = turns[-1 if number is None else number - 1]
        if not turn.input:
            raise Refused("That turn has no message: it went on without one")
        return turn

    def retry(self, _: str) -> Answer:
        watch = self._session.watch
        watch.repeats = True
        try:
            return self._session.ran(self._session.run(self._session.this.retry))
        finally:
            watch.repeats = False

    def resume(self, _: str) -> Answer:
        return self._session.ran(self._session.run(self._session.this.resume))

    def discard(self, _: str) -> Answer:
        turn = self._session.this.discard()
        self._screen.say(f"Turn {turn.id} is {turn.outcome}.")
        return document(turn, self._session.this.name)

    def steer(self, message: str) -> Answer:
        if not message:
            raise WrongUse
        sent = self._session.this.steer(message)
        with self._screen.apart():
            self._screen.say(f"sent to the turn: {one_line(message, 200)}")
        return {**msgspec.to_builtins(sent)}

    def ask(self, question: str) -> Answer:
        if not question:
            raise WrongUse
        answer = self._session.run(lambda: self._session.this.ask(question))
        self._session.is_kept = True
        self._screen.end_line()
        spent = f"{figures.tokens(answer.usage)} · {figures.money(answer.cost)}"
        self._screen.say(f"asked aside, not kept · {spent}")
        return {"text": answer.text, "usage": usage_document(answer.usage)}

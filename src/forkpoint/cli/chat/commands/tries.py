"""Commands of a chat that run or end turns: retry, resume, discard, steer, ask. Tests: tests/cli/test_chat.py."""

import msgspec

from forkpoint.cli import figures
from forkpoint.cli.chat.commands.slash_command import Answer, SlashCommand, WrongUse
from forkpoint.cli.chat.session import Session
from forkpoint.cli.outcome import document
from forkpoint.cli.output import one_line
from forkpoint.wire.documents import usage_document


def try_commands(session: Session) -> tuple[SlashCommand, ...]:
    """The commands."""
    does = _Tries(session)
    return (
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
        self._screen.end_line()
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

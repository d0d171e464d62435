"""Commands of a chat that decide on calls that wait: approve, deny, decide. Tests: tests/cli/test_chat.py."""

from forkpoint.cli.chat.commands.slash_command import Answer, Refused, SlashCommand
from forkpoint.cli.chat.session import Session
from forkpoint.conversation.call_view import turn_view


def decision_commands(session: Session) -> tuple[SlashCommand, ...]:
    """The commands."""
    does = _Decisions(session)
    return (
        SlashCommand(
            "approve", "[CALL]", "let a call run that waits for an approval, by default all of them", does.approve
        ),
        SlashCommand("deny", "[REASON]", "refuse what waits; the model is told the reason", does.deny),
        SlashCommand("decide", "", "look again at what waits, and decide on each call", does.decide),
    )


class _Decisions:
    def __init__(self, session: Session) -> None:
        self._session = session

    def approve(self, calls: str) -> Answer:
        return self._session.ran(self._session.run(lambda: self._session.this.approve(*calls.split())))

    def deny(self, reason: str) -> Answer:
        return self._session.ran(self._session.run(lambda: self._session.this.deny(reason=reason or None)))

    def decide(self, _: str) -> Answer:
        turn = self._session.this.open_turn()
        if turn is None or turn.outcome != "awaiting_approval":
            raise Refused("Nothing waits for an approval")
        if not self._session.screen.is_watched:
            self._session.screen.show(turn_view(turn))
        return self._session.ran(turn)

"""Commands of a chat that show something: turns. Tests: tests/cli/test_chat.py."""

from rich.text import Text

from forkpoint.cli.chat.commands.slash_command import Answer, SlashCommand
from forkpoint.cli.chat.session import Session
from forkpoint.cli.chat.turn_watch import asked
from forkpoint.cli.common import all_turns
from forkpoint.cli.outcome import document
from forkpoint.cli.output import grid, one_line


def look_commands(session: Session) -> tuple[SlashCommand, ...]:
    """The commands."""
    does = _Looks(session)
    return (SlashCommand("turns", "", "show the turns of this conversation", does.turns),)


class _Looks:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = session.screen

    def turns(self, _: str) -> Answer:
        turns = all_turns(self._session.this)
        if not turns:
            self._screen.say("There are no turns yet.")
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
            table.add_row(str(number) if committed else "", outcome, one_line(asked(turn), 200), one_line(came, 200))
        self._screen.out.print(table)
        return {"turns": [document(turn, self._session.this.name) for turn in turns]}

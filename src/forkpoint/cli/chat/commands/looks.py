"""Commands of a chat that show something: turns, show, usage, why.
Tests: tests/cli/test_chat.py, tests/cli/test_chat_commands.py."""

from msgspec import to_builtins
from rich.text import Text

from forkpoint.cli import figures
from forkpoint.cli.chat.commands.slash_command import Answer, Refused, SlashCommand, WrongUse
from forkpoint.cli.chat.session import Session
from forkpoint.cli.chat.turn_watch import asked
from forkpoint.cli.commands.show import print_turn
from forkpoint.cli.commands.why import report_lines
from forkpoint.cli.common import all_turns
from forkpoint.cli.outcome import document
from forkpoint.cli.output import facts, grid, one_line
from forkpoint.wire.documents import plain, stats_document


def look_commands(session: Session) -> tuple[SlashCommand, ...]:
    """The commands."""
    does = _Looks(session)
    return (
        SlashCommand("turns", "", "show the turns of this conversation", does.turns),
        SlashCommand("show", "[N]", "show all of the last turn, or of turn N: calls, outputs, tokens", does.show),
        SlashCommand("usage", "", "show what this conversation and its family have spent", does.usage),
        SlashCommand("why", "", "say why the last turn missed its provider's cache", does.why),
    )


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

    def show(self, given: str) -> Answer:
        if given and not (given.isascii() and given.isdigit() and int(given)):
            raise WrongUse
        turn = self._session.this.last_turn()
        if given:
            committed = [one for one in all_turns(self._session.this) if one.outcome == "committed"]
            turn = committed[int(given) - 1] if int(given) <= len(committed) else None
        if turn is None:
            raise Refused(f"There is no turn {given}".rstrip() + ": /turns shows those that there are")
        if not self._screen.as_json:
            print_turn(turn, False)
        return document(turn, self._session.this.name)

    def usage(self, _: str) -> Answer:
        stats = self._session.this.stats()
        rows = [("this conversation", figures.used(stats.spent))]
        if stats.inherited:
            rows.append(("inherited", figures.used(stats.inherited)))
        rows.append(("its family", figures.used(stats.family)))
        self._screen.out.print(facts(rows))
        return plain(stats_document(stats))

    def why(self, _: str) -> Answer:
        report = self._session.this.why()
        for line in report_lines(report):
            self._screen.out.print(line, soft_wrap=True)
        return {"why": to_builtins(report)}

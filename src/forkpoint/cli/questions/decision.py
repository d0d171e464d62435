"""A decision at a command line: what waits is shown whole, and then somebody is asked.

An approval is of content. On a terminal that is what was shown there; elsewhere it is what ``--digest`` stands for.
Tests: tests/cli/test_turns.py.
"""

import sys
from typing import NoReturn

import typer
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.cli.outcome import command, document
from forkpoint.cli.output import WAITING, clean, console, print_json, tell
from forkpoint.cli.questions.keyboard import says_yes
from forkpoint.cli.questions.whole_view import print_above
from forkpoint.conversation import Call, Conversation, Turn
from forkpoint.conversation.call_view import ViewLine, call_view, print_view, turn_view
from forkpoint.errors import CallChanged

NOT_SHOWN = 2
"""The exit status if nobody on a terminal could be asked, and no digest says what was seen."""


class ChosenCalls:
    """The calls that the options name: ``--call`` and ``--digest`` in pairs, or ``--call`` alone."""

    def __init__(self, calls: list[str] | None, digests: list[str] | None) -> None:
        self.ids, self.digests = calls or [], digests or []
        if self.digests and len(self.digests) != len(self.ids):
            raise typer.BadParameter("each --call needs a --digest of its own", param_hint="--digest")

    def among(self, turn: Turn) -> list[Call | str]:
        """The calls that are meant, by default all that wait; an id that does not wait stays an id.

        Raises `CallChanged` if a call waits with other content than its digest says.
        """
        waiting = {call.id: call for call in turn.waiting}
        for id, digest in zip(self.ids, self.digests, strict=False):
            if id in waiting and waiting[id].digest != digest:
                raise CallChanged(id, turn.id)
        return [waiting.get(id, id) for id in self.ids] or list(turn.waiting)


class ApprovalOptions(Struct, frozen=True):
    """What goes with an approval, as the options of `approve` say."""

    arguments: str | None = None
    always: str | None = None
    by: str | None = None

    @property
    def options(self) -> list[str]:
        """The options again."""
        given = {"--arguments": self.arguments, "--always": self.always, "--by": self.by}
        return [part for name, value in given.items() if value is not None for part in (name, value)]


def approve(this: Conversation, chosen: ChosenCalls, how: ApprovalOptions, *, store: str | None, as_json: bool) -> Turn:
    """Approves calls, after a look at them unless their digests are given. Exits if nothing was approved."""
    turn = this.open_turn()
    if turn is None or not turn.waiting:
        return this.approve(by=how.by)  # raises the reason
    calls = chosen.among(turn)
    known = [call for call in calls if isinstance(call, Call)]
    if len(known) < len(calls):
        return this.approve(*calls, by=how.by)  # raises the reason
    if how.arguments is not None and len(known) != 1:
        raise typer.BadParameter("it is for one call; name it with --call", param_hint="--arguments")
    if not chosen.digests:
        _look(this, turn, known, how, store=store, as_json=as_json)
    changed = None if how.arguments is None else {known[0].id: how.arguments}
    return this.approve(*known, arguments=changed, by=how.by, always=how.always)


def deny(this: Conversation, chosen: ChosenCalls, by: str | None, reason: str | None) -> Turn:
    """Denies calls, by default all that wait. Nobody is asked: denying is safe."""
    turn = this.open_turn() if chosen.ids else None
    return this.deny(*([] if turn is None else chosen.among(turn)), by=by, reason=reason)


def _look(
    this: Conversation, turn: Turn, calls: list[Call], how: ApprovalOptions, *, store: str | None, as_json: bool
) -> None:
    """Shows calls and asks. Returns if the user says yes."""
    screen = console(stderr=True)
    lines = [*turn_view(turn, calls=calls, digests=True), *_instead(calls[0], how.arguments)]
    if as_json:
        print_json(document(turn, this.name))
        _refuse(this, calls, how, store)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print_view(screen, lines)
        _refuse(this, calls, how, store)
    always = "" if how.always is None else f", and from now on without a question ({clean(how.always)})"
    question = f"May it run{always}?" if len(calls) == 1 else f"May these {len(calls)} calls run{always}?"
    if not says_yes(question, show=lambda question: print_above(screen, lines, question)):
        tell(f"Nothing was approved. To refuse: {command('deny', this.name, store)}")
        raise typer.Exit(WAITING)


def _instead(call: Call, arguments: str | None) -> list[ViewLine]:
    """The lines that show what a call is to run with instead."""
    if arguments is None:
        return []
    view = call_view(replace(call, arguments=arguments))
    below = [ViewLine(f"    {line.text}", line.style) for line in view.lines]
    return [ViewLine(f"approved with these arguments instead: {view.heading}", "yellow"), *below]


def _refuse(this: Conversation, calls: list[Call], how: ApprovalOptions, store: str | None) -> NoReturn:
    """Says how to approve where nobody can be asked."""
    named = [part for call in calls for part in ("--call", call.id, "--digest", call.digest)]
    named += how.options
    tell("Nothing was approved: there is no terminal to ask on. To approve what was shown, repeat it as:")
    tell(f"  {command('approve', this.name, store, *named)}")
    raise typer.Exit(NOT_SHOWN)

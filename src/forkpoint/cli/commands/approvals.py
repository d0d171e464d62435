"""``forkpoint approvals``: what a conversation's turns may do without a question, and how to take it back."""

from collections.abc import Sequence
from typing import Annotated

from rich.text import Text

from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.cli.cells import ago, brief
from forkpoint.cli.common import Id, Store, opened
from forkpoint.cli.options import option
from forkpoint.cli.output import Json, display, grid, one_line, print_json, tell
from forkpoint.errors import BadName, NotFound

_SHOWN = 200  # characters of what one allows; --json has all of it


def approvals(
    conversation: Id,
    revoke: Annotated[str | None, option("--revoke ID", "Take this one back: its id, or the start of its id.")] = None,
    by: Annotated[str | None, option("--by NAME", "Who takes it back; it is recorded.")] = None,
    revoked: Annotated[bool, option("--all", "Show also what was revoked.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show what a conversation may do without a question.

    These are its standing approvals: calls that somebody has allowed for good, with "always". What is taken back is
    asked about again, also in a turn that is running.

    \b
    Examples:
      forkpoint approvals build-1234
      forkpoint approvals build-1234 --revoke 9f2c41 --by ann
    """
    with opened(conversation, store) as this:
        found = this.approvals(revoked=revoked or revoke is not None)
        if revoke is not None:
            taken = this.revoke_approval(_meant(revoke, found), by=by)
            if json:
                print_json(taken)
            else:
                tell(f"Revoked: {one_line(taken.allows, _SHOWN)}. Such calls are asked about again.")
            return
    if json:
        print_json({"items": found})
    elif not found:
        tell("There are no standing approvals: whatever its agent asks about waits for an approval.")
    else:
        _show(found, with_end=revoked)


def _show(found: Sequence[StandingApproval], *, with_end: bool) -> None:
    table = grid(header=True)
    for column in ("id", "allows", "given", "by", *(["revoked", "revoked by"] if with_end else [])):
        table.add_column(column, no_wrap=column != "allows", overflow="fold")
    for one in found:
        row: list[str | Text] = [one.id, brief(one.allows, _SHOWN), ago(one.given), brief(one.by or "", 40)]
        if with_end:
            row += ["", ""] if one.revoked is None else [ago(one.revoked), brief(one.revoked_by or "", 40)]
        table.add_row(*row)
    display(table)


def _meant(given: str, found: Sequence[StandingApproval]) -> str:
    """The given id, or the only id that begins with it. Raises `NotFound` or `BadName`."""
    starting = [one.id for one in found if one.id.startswith(given)]
    if given in starting or len(starting) == 1:
        return given if given in starting else starting[0]
    if not starting:
        raise NotFound("standing approval", given[:200])
    raise BadName.ambiguous(given, len(starting), ", ".join(starting[:5]))

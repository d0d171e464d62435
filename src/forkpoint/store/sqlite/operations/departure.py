"""The departure from a head: what becomes of it when a turn with another base commits.
Tests: forkpoint.testing.conformance.elsewhere."""

from forkpoint.errors import BadArgument
from forkpoint.history.paths import common_ancestor
from forkpoint.store.sqlite.connection import Database
from forkpoint.store.sqlite.operations import conversations
from forkpoint.store.sqlite.operations.conversations import Spend
from forkpoint.store.sqlite.operations.history import read_path
from forkpoint.store.sqlite.rows import Scope, head_of
from forkpoint.store.values import Lineage, NewFork, OpenTurn


def leave_head(db: Database, scope: Scope, turn: OpenTurn, aside: NewFork | None) -> tuple[Spend, str | None]:
    """Makes a branch of the head that a turn's commit is about to leave, unless the new path has it.

    Returns what of the new path's cost is not the conversation's own, and the branch's id or None.
    """
    row = conversations.row_of(db, scope, turn.conversation)
    old, own = head_of(row), conversations.spend_of(row)
    there = Spend(turn.base.ordinal, turn.base.totals)
    here_path, there_path = (read_path(db, scope, row["family"], end.position) for end in (old, turn.base))
    parting = common_ancestor(here_path, there_path)
    if parting == old.position:
        # The new path goes on from the old head, through what other branches have spent. What this one has spent before
        # stays its own: no other branch would count it.
        return Spend(there.own_from, own.inherited + (there.inherited - old.totals)), None
    if aside is None:
        why = "the turn stood elsewhere than at the head, and what stands there has to be kept under a branch"
        raise BadArgument("commit", "aside=None", why)
    # Back on its own path it is a rewind. On another branch's, all that this conversation has spent goes with the old
    # head: of the new path, nothing is its own.
    set_aside, kept = own.parted(there) if parting == turn.base.position else (own, there)
    lineage = Lineage("aside", turn.conversation, parting)
    return kept, conversations.insert_branch(db, scope, row, aside, old, lineage, set_aside).id

"""Accounts: which budgets cover a conversation, and what was spent of each.

What is spent is counted in the transaction that records it, in every budget that covers the conversation. So what a
budget says is what turns and ledger say, whoever dies when. **A family without a budget costs nothing**: a turn's row
says whether there is one to look for.

Which budgets cover a conversation: its own, and those of the conversations that it works beneath, as a sub-agent, a
side or a branch set aside; then the family's. A budget that is ``apart`` ends that: nothing above it pays.
Tests: forkpoint.testing.conformance.budgets, tests/store/test_budgets.py.
"""

from msgspec.structs import replace

from forkpoint.events import Usage
from forkpoint.history.budgets import Amount
from forkpoint.store.tables.budgets.reservations import give_back, keep
from forkpoint.store.tables.budgets.rows import columns
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.rows import Scope

BENEATH = ("sub_agent", "side", "aside")
"""Lineages of conversations for which the one pays that they come from."""


def has_budgets(db: Database, scope: Scope, family: bytes) -> bool:
    """Whether anything in a family has a budget."""
    return db.run("has_budgets", {"tenant": scope.tenant, "family": family}).fetchone() is not None


def covering(db: Database, scope: Scope, conversation: bytes, family: bytes) -> list[Row]:
    """The budgets that cover a conversation: its own first, the family's last."""
    found: list[Row] = []
    payer: bytes | None = conversation
    seen: set[bytes] = set()
    while payer is not None and payer not in seen:
        seen.add(payer)
        own = budget_of(db, scope, family, "conversation", payer)
        if own is not None:
            found.append(own)
            if own["apart"]:
                return found
        row = db.run("payer_of", {"tenant": scope.tenant, "id": payer}).fetchone()
        payer = row["lineage_source"] if row is not None and row["lineage_kind"] in BENEATH else None
    shared = budget_of(db, scope, family, "family", family)
    return found if shared is None else [*found, shared]


def budget_of(db: Database, scope: Scope, family: bytes, of: str, subject: bytes) -> Row | None:
    """The budget of a conversation or a family, or None."""
    parameters = {"tenant": scope.tenant, "family": family, "scope": of, "subject": subject}
    row: Row | None = db.run("budget_of", parameters).fetchone()
    return row


def count(db: Database, scope: Scope, conversation: bytes, family: bytes, amount: Amount) -> None:
    """Counts what was spent in a conversation, in every budget that covers it."""
    if amount != Amount():
        for row in covering(db, scope, conversation, family):
            db.run("add_spent", columns(amount) | {"id": row["id"]})


def count_turn(
    db: Database, scope: Scope, turn: bytes, conversation: bytes, family: bytes, before: Usage, more: Usage
) -> None:
    """Counts what a turn has spent since it was last recorded. It is one of the turns once it has asked a model."""
    begins = not before.calls and bool(more.calls)
    count(db, scope, conversation, family, replace(Amount.of(more), turns=int(begins)))
    if begins:
        keep(db, turn, "turn", lambda amount: replace(amount, turns=0))


def end_turn(db: Database, scope: Scope, turn: bytes, conversation: bytes, family: bytes, since: int | None) -> None:
    """A turn does not run any more: its time is counted, if a process says so, and all that it reserved is free."""
    if since is not None:
        count(db, scope, conversation, family, Amount(micros=max(scope.now - since, 0)))
    give_back(db, turn)

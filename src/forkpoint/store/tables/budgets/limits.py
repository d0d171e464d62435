"""The limits of budgets: setting them, and how they stand. Each change is a record in the family's chain.
Tests: forkpoint.testing.conformance.budgets, tests/store/test_budgets.py."""

from forkpoint.history.budgets import FIELDS, Amount, Budget, BudgetScope, BudgetStanding, Figures, Limit, shown
from forkpoint.history.records import BudgetSet, Fact, decode_fact, family_chain
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.budgets.accounts import budget_of, covering
from forkpoint.store.tables.budgets.reservations import reserved_now
from forkpoint.store.tables.budgets.rows import columns, limit_in, spent_in
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.rows import Scope


def put(
    db: Database,
    scope: Scope,
    family: bytes,
    of: BudgetScope,
    subject: bytes,
    budget: Budget,
    *,
    apart: bool,
    spent: Amount,
) -> None:
    """Writes the row of a budget. What was spent of one that is there already stays."""
    limits = {f"most_{field}": getattr(budget.most, field) for field in FIELDS}
    place = {"tenant": scope.tenant, "family": family, "scope": of, "subject": subject, "apart": apart}
    db.run("put_budget", place | limits | columns(spent))


def begin(
    db: Database,
    scope: Scope,
    family: bytes,
    of: BudgetScope,
    subject: bytes,
    budget: Budget | None,
    *,
    apart: bool = False,
) -> None:
    """Gives a conversation or a family that was just made its budget, if it has one: nothing is spent there yet."""
    if budget is not None:
        put(db, scope, family, of, subject, budget, apart=apart, spent=Amount())
        tell(db, scope, family, of, subject, budget, apart=apart)


def remove(db: Database, scope: Scope, row: Row) -> None:
    """Removes a budget. If it was apart, what was spent there counts in the budgets that cover it from now on."""
    family = row["family"]
    db.run("delete_budget", {"id": row["id"]})
    if row["apart"]:
        for above in covering(db, scope, row["subject"], family):
            db.run("add_spent", columns(spent_in(row)) | {"id": above["id"]})
    tell(db, scope, family, row["scope"], row["subject"], None, apart=False)


def tell(
    db: Database, scope: Scope, family: bytes, of: BudgetScope, subject: bytes, budget: Budget | None, *, apart: bool
) -> None:
    """Adds the record of a change to the family's chain. From now on the family's open turns look for budgets."""
    db.run("count_in_open_turns", {"tenant": scope.tenant, "family": family})
    change = BudgetSet(None if of == "family" else id_from_bytes(subject), budget, apart)
    fact = Fact(kind="budget", time=scope.now, by=scope.by, budget=change)
    records.tell_in(db, scope, family_chain(family), fact, subject=subject)


def adopt(db: Database, scope: Scope, family: bytes, fact: Fact) -> None:
    """Sets or removes a budget as a record of another store says. What was spent is counted afterwards."""
    change = fact.budget
    if change is None:
        return
    of: BudgetScope = "family" if change.conversation is None else "conversation"
    subject = family if change.conversation is None else id_to_bytes(change.conversation)
    if change.limits is not None:
        put(db, scope, family, of, subject, change.limits, apart=change.apart, spent=Amount())
    elif (row := budget_of(db, scope, family, of, subject)) is not None:
        db.run("delete_budget", {"id": row["id"]})
    db.run("count_in_open_turns", {"tenant": scope.tenant, "family": family})


def on_record(db: Database, scope: Scope, family: bytes) -> dict[tuple[BudgetScope, bytes], BudgetSet]:
    """The budgets that a family has according to its records."""
    found: dict[tuple[BudgetScope, bytes], BudgetSet] = {}
    for row in db.run("budget_records", {"tenant": scope.tenant, "chain": family_chain(family)}):
        change = decode_fact(row["body"]).budget
        if change is None:
            continue
        place: tuple[BudgetScope, bytes]
        place = (
            ("family", family) if change.conversation is None else ("conversation", id_to_bytes(change.conversation))
        )
        if change.limits is None:
            found.pop(place, None)
        else:
            found[place] = change
    return found


def standings(db: Database, scope: Scope, conversation: bytes, family: bytes) -> tuple[BudgetStanding, ...]:
    """The budgets that cover a conversation, and how they stand. What a dead process had reserved does not count."""
    return tuple(_standing(row, reserved_now(db, scope, row)) for row in covering(db, scope, conversation, family))


def is_set(db: Database, scope: Scope, conversation: bytes, family: bytes, budget: Budget | None, of: str) -> bool:
    """Whether a budget has these limits."""
    row = budget_of(db, scope, family, of, conversation if of == "conversation" else family)
    return budget is None if row is None else budget is not None and limit_in(row) == budget.most


def forget(db: Database, scope: Scope, conversation: bytes, family: bytes) -> None:
    """A conversation is deleted, and its budget with it. A budget that is apart stays: what was set aside from the
    conversation draws from it, and what it has spent is not the family's."""
    row = budget_of(db, scope, family, "conversation", conversation)
    if row is not None and not row["apart"]:
        remove(db, scope, row)


def _standing(row: Row, reserved: Amount) -> BudgetStanding:
    limit, spent = limit_in(row), spent_in(row)
    left = Limit(
        *(
            None if (most := getattr(limit, field)) is None else most - getattr(spent, field) - getattr(reserved, field)
            for field in FIELDS
        )
    )
    return BudgetStanding(
        scope=row["scope"],
        conversation=None if row["scope"] == "family" else id_from_bytes(row["subject"]),
        limits=limit.budget,
        spent=Figures(*shown(spent)),
        reserved=Figures(*shown(reserved)),
        left=Figures(*shown(left)),
        apart=bool(row["apart"]),
    )

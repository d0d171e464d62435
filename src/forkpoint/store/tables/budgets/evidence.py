"""Evidence: what the turns and the ledger of a family say was spent, which a budget has to say too.

It is read when a budget is set, after an import, and by verify. Tests: tests/store/test_budgets.py.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from forkpoint.events import Usage
from forkpoint.history.budgets import Amount, Budget, BudgetScope
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.budgets import limits
from forkpoint.store.tables.budgets.accounts import BENEATH, budget_of
from forkpoint.store.tables.budgets.rows import columns, spent_in
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import ledger
from forkpoint.store.tables.rows import Scope, load_usage


def set_budget(
    db: Database, scope: Scope, conversation: bytes, family: bytes, budget: Budget | None, of: BudgetScope
) -> None:
    """Sets or removes a budget, and records that. All that was ever spent there counts.

    If the budget of a conversation is removed that was apart, it draws from the family's again.
    """
    subject = conversation if of == "conversation" else family
    there = budget_of(db, scope, family, of, subject)
    if budget is None:
        if there is not None:
            limits.remove(db, scope, there)
        return
    apart = there is not None and bool(there["apart"])
    spent = Amount() if there is not None else evidence(db, scope, family).spent(of, subject)
    limits.put(db, scope, family, of, subject, budget, apart=apart, spent=spent)
    limits.tell(db, scope, family, of, subject, budget, apart=apart)


class Evidence:
    """What the turns and the ledger of a family say was spent, and by whom."""

    def __init__(
        self,
        own: Mapping[bytes, Amount],
        payers: Mapping[bytes, bytes | None],
        apart: Mapping[bytes, Amount],
        total: Usage,
    ) -> None:
        self._own = own
        self._payers = payers
        self._apart = apart
        self._total = total

    def spent(self, of: BudgetScope, subject: bytes) -> Amount:
        """What a budget has to have counted: all of a family but what is apart; or what is there of a conversation and
        all beneath it. Turns and time of what was deleted are not known any more."""
        chains = {id: self._chain(id) for id in self._own}
        if of == "conversation":
            return sum((self._own[id] for id, chain in chains.items() if subject in chain), Amount())
        ours = (self._own[id] for id, chain in chains.items() if not self._apart.keys() & set(chain))
        beside = sum(self._apart.values(), Amount())
        return replace(
            sum(ours, Amount()),
            nanodollars=self._total.nanodollars - (beside.nanodollars or 0),
            tokens=self._total.input + self._total.output - beside.tokens,
        )

    def _chain(self, id: bytes) -> list[bytes]:
        """A conversation and those that pay for it."""
        chain: list[bytes] = []
        payer: bytes | None = id
        while payer is not None and payer not in chain:
            chain.append(payer)
            payer = None if payer in self._apart else self._payers.get(payer)
        return chain


def evidence(db: Database, scope: Scope, family: bytes) -> Evidence:
    """What a family has spent, conversation by conversation. It reads all of them."""
    of = {"tenant": scope.tenant, "family": family}
    turns = {row["conversation"]: row for row in db.run("turns_to_count", of)}
    own: dict[bytes, Amount] = {}
    payers: dict[bytes, bytes | None] = {}
    for row in db.run("members_to_count", of).fetchall():
        charged = db.run("charges", {"tenant": scope.tenant, "conversation": row["id"]})
        used = sum((load_usage(charge["usage"]) for charge in charged), ledger.in_turns(db, scope, row))
        ran = turns.get(row["id"])
        amount = Amount.of(used)
        own[row["id"]] = amount if ran is None else replace(amount, turns=ran["turns"], micros=ran["micros"])
        payers[row["id"]] = row["lineage_source"] if row["lineage_kind"] in BENEATH else None
    budgets = db.run("budgets_of_a_family", of).fetchall()
    apart = {row["subject"]: spent_in(row) for row in budgets if row["apart"]}
    return Evidence(own, payers, apart, ledger.usage(db, scope, id_from_bytes(family)))


def counted(db: Database, scope: Scope, family: bytes) -> dict[tuple[str, bytes], Amount]:
    """What turns and ledger say was spent of each budget of a family, by its scope and its subject."""
    rows = db.run("budgets_of_a_family", {"tenant": scope.tenant, "family": family}).fetchall()
    if not rows:
        return {}
    found = evidence(db, scope, family)
    return {(row["scope"], row["subject"]): found.spent(row["scope"], row["subject"]) for row in rows}


def recount(db: Database, scope: Scope, family: bytes, before: Mapping[tuple[str, bytes], Amount]) -> None:
    """Counts what the budgets of a family have spent, after an import has brought turns and charges.

    ``before`` is what was `counted` before it. Of a budget that stood here, what came is added: it may have counted
    more than turns and ledger still know, because of what was deleted since.
    """
    of = {"tenant": scope.tenant, "family": family}
    rows = db.run("budgets_of_a_family", of).fetchall()
    for row in sorted(rows, key=lambda row: (row["scope"] == "family", not row["apart"])):
        found = evidence(db, scope, family).spent(row["scope"], row["subject"])
        came = (found - before.get((row["scope"], row["subject"]), found)).at_least(Amount())
        spent = (spent_in(row) + came).at_least(found)
        if row["scope"] == "family":
            spent = replace(spent, nanodollars=found.nanodollars, tokens=found.tokens)
        db.run("restate_spent", columns(spent) | {"id": row["id"]})

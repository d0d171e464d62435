"""`EngineBudgets`: the budgets of a store's conversations, as callers see them.
Tests: tests/conversation/test_budgets.py."""

from forkpoint.engine.resources import Resources
from forkpoint.history.budgets import Budget, BudgetScope, BudgetStanding


class EngineBudgets:
    """Sets what conversations and families of an open store may spend, and says how that stands."""

    def __init__(self, resources: Resources) -> None:
        self._store = resources.store

    async def set(self, id: str, budget: Budget | None, *, scope: BudgetScope) -> tuple[BudgetStanding, ...]:
        """Sets a budget, or removes it. Returns what covers the conversation then."""
        return await self._store.set_budget(id, budget, scope=scope)

    async def read(self, id: str) -> tuple[BudgetStanding, ...]:
        """The budgets that cover a conversation, and how they stand."""
        return await self._store.budgets(id)

"""Budgets of conversations behind a server. Tests: tests/conversation/test_both_homes.py, test_budgets.py."""

from msgspec import to_builtins

from forkpoint.history.budgets import Budget, BudgetScope, BudgetStanding
from forkpoint.remote.connection import ServerConnection, ServerRequest
from forkpoint.remote.requests import path_of
from forkpoint.wire.documents import BudgetsDocument


class RemoteBudgets:
    """Sets what conversations and families behind a server may spend, and says how that stands."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def set(self, id: str, budget: Budget | None, *, scope: BudgetScope) -> tuple[BudgetStanding, ...]:
        path = f"{path_of(id)}/budget"
        if budget is None:
            request = ServerRequest(method="DELETE", path=path, query=[("scope", scope)])
        else:
            request = ServerRequest(method="PUT", path=path, body=to_builtins(budget) | {"scope": scope})
        return await self._connection.read(request, BudgetsDocument, lambda found: found.items)

    async def read(self, id: str) -> tuple[BudgetStanding, ...]:
        request = ServerRequest(method="GET", path=f"{path_of(id)}/budget")
        return await self._connection.read(request, BudgetsDocument, lambda found: found.items)

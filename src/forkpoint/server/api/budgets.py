"""Budgets: what a conversation or its family may spend in all. Tests: tests/server/test_budgets.py."""

from typing import Annotated

from fastapi import Query, Response

from forkpoint.history.budgets import Budget, BudgetScope
from forkpoint.server.api.bodies import SetBudget
from forkpoint.server.http.call import CallMade, Calls, Conversation, answer
from forkpoint.wire.documents import BudgetsDocument

calls = Calls("budgets", under="/api/conversations/{id}")


@calls(
    "PUT",
    "/budget",
    role="operate",
    takes=SetBudget,
    optional=False,
    gives=BudgetsDocument,
    raises="not_found bad_argument",
)
async def set_budget(call: CallMade, id: Conversation) -> Response:
    """Set what a conversation or its family may spend in all. What was spent before counts.

    It is recorded, and holds for turns that run from their next step on. The answer is what covers the conversation.
    """
    body = await call.body(SetBudget)
    budget = Budget(body.dollars, body.tokens, body.turns, body.seconds)
    info, _ = await call.found(id)
    return answer(BudgetsDocument(await call.backend.budgets.set(info.id, budget, scope=body.scope)))


@calls("GET", "/budget", role="read", gives=BudgetsDocument, raises="not_found")
async def get_budget(call: CallMade, id: Conversation) -> Response:
    """The budgets that cover a conversation: limits, what is spent, reserved and left."""
    info, _ = await call.found(id)
    return answer(BudgetsDocument(await call.backend.budgets.read(info.id)))


@calls("DELETE", "/budget", role="operate", gives=BudgetsDocument, raises="not_found")
async def remove_budget(
    call: CallMade, id: Conversation, scope: Annotated[BudgetScope, Query(description="Whose budget.")] = "conversation"
) -> Response:
    """Remove a budget. The answer is what still covers the conversation."""
    info, _ = await call.found(id)
    return answer(BudgetsDocument(await call.backend.budgets.set(info.id, None, scope=scope)))

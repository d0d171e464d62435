"""Admission of calls: before a model is asked, the most that this can cost is reserved in every budget that applies.

Where no budget applies, nothing is written and nothing is asked. What was reserved is given back by the write that says
what the call has cost: the turn's next step or its end, a charge, or a note.
Tests: tests/conversation/test_budgets.py, test_budget_races.py.
"""

from forkpoint.engine.turns.journal import Steps
from forkpoint.events import Usage
from forkpoint.history.budgets import Amount
from forkpoint.llm.options import Options
from forkpoint.llm.request import Request
from forkpoint.llm.worst_case import worst_case
from forkpoint.store.protocol import Store


class TurnAdmission:
    """Admits the calls of a turn that runs here."""

    def __init__(self, store: Store, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    async def __call__(self, request: Request, used: Usage) -> Options:
        turn = self._steps.turn
        if not turn.budgeted:
            return request.options
        case, before = worst_case(request), Amount.of(used + self._steps.unrecorded)
        most, least = case.most + before, case.least + before
        granted = await self._store.reserve(turn, most, least, model=request.model)
        self._steps.call_begins()
        return case.options(request.options, granted - before)


class BesideAdmission:
    """Admits one call outside of turns. ``id`` is that of the charge or note which will count its cost."""

    def __init__(self, store: Store, conversation: str, id: str) -> None:
        self._store = store
        self._conversation = conversation
        self.id = id

    async def __call__(self, request: Request, used: Usage) -> Options:
        case, before = worst_case(request), Amount.of(used)
        most, least = case.most + before, case.least + before
        granted = await self._store.reserve_beside(self._conversation, self.id, most, least, model=request.model)
        return case.options(request.options, granted - before)


async def admission_beside(store: Store, conversation: str, id: str) -> BesideAdmission | None:
    """The admission of a call outside of turns; None if no budget covers the conversation."""
    return BesideAdmission(store, conversation, id) if await store.budgets(conversation) else None

"""Resources: what the parts of one engine share. Tests: tests/engine/turns/test_prompts.py."""

from collections.abc import Callable

from msgspec import Struct

from forkpoint.backend.callbacks import Callback
from forkpoint.engine.charges import Charges
from forkpoint.engine.conversation_cache import ConversationCache
from forkpoint.engine.paid_notes import PaidNotes
from forkpoint.engine.standing_approvals import StandingApprovals
from forkpoint.engine.trust import Trusting
from forkpoint.engine.turns.plan import Planner
from forkpoint.engine.turns.prompts import Prompts
from forkpoint.llm.call import Models
from forkpoint.store.protocol import Store


class EngineOptions(Struct, frozen=True, kw_only=True):
    """What an engine may be given.

    - ``prompts`` and ``trusting`` are shared with other engines if they are given.
    - ``moved`` is told which conversation a commit has moved, and to which revision.
    - ``patience``: seconds that a turn may take, whatever its agent says.
    - ``beside``: who is told of the turns that a conversation's sub-agents run.
    """

    prompts: Prompts | None = None
    trusting: Trusting | None = None
    moved: Callable[[str, int], None] | None = None
    patience: float | None = None
    beside: Callable[[str], Callback] | None = None


class Resources:
    """The store and the models of an engine, and what it keeps in memory of them."""

    def __init__(self, store: Store, models: Models, options: EngineOptions) -> None:
        self.store = store
        self.models = models
        self.prompts = options.prompts or Prompts(store)
        self.records = ConversationCache(store, options.moved)
        self.trusting = options.trusting or Trusting()
        self.standing = StandingApprovals(store, self.trusting)
        self.planner = Planner(
            store, self.prompts, self.records, self.trusting, self.standing, patience=options.patience
        )
        self.charges = Charges(store)
        self.paid_notes = PaidNotes(store, self.charges)
        self.beside = options.beside

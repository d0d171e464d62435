"""What each tenant sees: its own conversations in the shared store, through a backend of its own."""

from collections.abc import Callable
from functools import partial

from forkpoint.backend.callbacks import Callback
from forkpoint.engine.engine import Engine
from forkpoint.engine.resources import EngineOptions
from forkpoint.engine.trust import Trusting
from forkpoint.engine.turns.prompts import Prompts
from forkpoint.llm.call import Models
from forkpoint.store.protocol import Store


class Tenants:
    """The backends of a server, one for each tenant. They share the store's engine and the connections to models."""

    def __init__(
        self,
        store: Store,
        models: Models | None = None,
        moved: Callable[[str, str, int], None] | None = None,
        patience: float | None = None,
        beside: Callable[[str, str], Callback] | None = None,
    ) -> None:
        self.store = store
        self._models = models or Models()
        self._prompts = Prompts(store)  # one bound for all of them
        self._moved = moved  # told of each turn that commits: tenant, conversation, revision
        self._patience = patience  # seconds that a turn may take
        self._beside = beside  # who is told of a sub-agent's turn: tenant, conversation
        self._backends: dict[str, Engine] = {}
        self.trusting = Trusting()  # one for all of them: they work in the same folders

    def backend(self, tenant: str) -> Engine:
        """The place that a tenant sees. Tenants come from keys, so there are few."""
        if (found := self._backends.get(tenant)) is None:
            view = self.store.within(tenant)
            prompts = self._prompts.within(view)
            moved = None if self._moved is None else partial(self._moved, tenant)
            options = EngineOptions(
                prompts=prompts,
                moved=moved,
                patience=self._patience,
                trusting=self.trusting.within(),
                beside=None if self._beside is None else partial(self._beside, tenant),
            )
            found = Engine(view, self._models, options, owns_store=False)
            self._backends[tenant] = found
        return found

    async def stop(self) -> None:
        """Cancels every turn that still runs, and waits for its end."""
        for backend in list(self._backends.values()):
            await backend.stop()

    async def close(self) -> None:
        """Lets go of models and store."""
        await self._models.aclose()
        await self.store.close()

"""What each tenant sees: its own conversations in the shared store, through an engine of its own."""

import asyncio
from collections.abc import Callable
from functools import partial

from forkpoint.backend.callbacks import Callback
from forkpoint.engine import Engine, EngineOptions
from forkpoint.llm.call import Models
from forkpoint.store import Store

PAUSE = 2.0  # seconds between two tries to end what the store did not take


class Tenants:
    """The engines of a server, one for each tenant. They share the store, the models and the memory for prompts."""

    def __init__(
        self,
        store: Store,
        models: Models | None,
        patience: float | None,
        moved: Callable[[str, str, int], None],
        beside: Callable[[str, str], Callback],
    ) -> None:
        self.store = store
        self.shared = Engine(store, models)  # runs nothing itself
        self._patience = patience  # seconds that a turn may take
        self._moved = moved  # told of each turn that commits: tenant, conversation, revision
        self._beside = beside  # who is told of a sub-agent's turn: tenant, conversation
        self._engines: dict[str, Engine] = {}

    def backend(self, tenant: str) -> Engine:
        """The engine of a tenant. Tenants come from keys, so there are few."""
        if (found := self._engines.get(tenant)) is None:
            options = EngineOptions(
                moved=partial(self._moved, tenant), patience=self._patience, beside=partial(self._beside, tenant)
            )
            found = self._engines[tenant] = self.shared.within(tenant, options)
        return found

    async def end_turns(self) -> None:
        """Ends turns whose end the store did not take, once it does. Nobody else may while this process lives."""
        while True:
            await asyncio.sleep(PAUSE)
            for engine in list(self._engines.values()):
                await engine.turns.unended.end_all()

    async def stop(self) -> None:
        """Lets go of every turn that still runs, for another process to go on with."""
        await asyncio.gather(*(engine.stop(hand_over=True) for engine in self._engines.values()))

    async def close(self) -> None:
        """Lets go of models and store."""
        await self.shared.close()

"""What all chat completions of a server share."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from forkpoint.errors import ForkpointError
from forkpoint.history.client_view import Seen
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.tenants import Tenants
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat.dressing import Wardrobe
from forkpoint.server.wires.chat.hot import Entry, HotSet, Key
from forkpoint.server.wires.chat.kept import Kept
from forkpoint.server.wires.chat.models import ModelNames

EXCHANGES = 500_000
"""Of how many questions and answers it is kept in memory how clients saw them: some 150 MB."""

_LOOK = 60.0  # seconds after which memory is looked through at the latest


class ChatService:
    """The models that clients see, who stands behind them, and which conversations are in memory."""

    def __init__(self, agents: Catalog, tenants: Tenants, settings: ServerSettings) -> None:
        self.models = ModelNames(agents)
        self.wardrobe = Wardrobe(agents)
        self.hot = HotSet(settings.conversations_max, settings.conversation_ttl, dropped=self._dropped)
        self.seen: Kept[tuple[str, bytes], Sequence[Seen]] = Kept(EXCHANGES)  # of paths, by tenant and digest
        self.refused: Kept[Key, str] = Kept(settings.conversations_max)  # the last request of a name that did not begin
        self._tenants = tenants
        self._forgotten: dict[str, list[str]] = {}  # conversations that are to be deleted, by tenant
        self._forgetting: asyncio.Task[None] | None = None

    async def sweep(self) -> None:
        """Drops what nobody uses any more, for as long as the server runs."""
        while True:
            wait = self.hot.sweep()
            await asyncio.sleep(_LOOK if wait is None else min(max(wait, 0.05), _LOOK))

    async def stop(self) -> None:
        """Finishes what it is about to forget."""
        if self._forgetting is not None:
            await self._forgetting

    def _dropped(self, key: Key, entry: Entry) -> None:
        """Memory is all that goes; but where the store is memory too, the conversation goes with it."""
        tenant, _ = key
        backend = self._tenants.backend(tenant)
        if (record := backend.known(entry.id)) is not None:
            self.seen.forget((tenant, record.head.digest))
        backend.forget(entry.id)
        if not self._tenants.store.capabilities.durable:
            self._forgotten.setdefault(tenant, []).append(entry.id)
            if self._forgetting is None or self._forgetting.done():
                self._forgetting = asyncio.ensure_future(self._forget())

    async def _forget(self) -> None:
        """Deletes what was dropped, and then what nobody reaches any more."""
        while self._forgotten:
            tenant, ids = self._forgotten.popitem()
            for id in ids:
                await self._delete(tenant, id)
            with suppress(ForkpointError):
                await self._tenants.store.within(tenant).collect()

    async def _delete(self, tenant: str, id: str) -> None:
        backend = self._tenants.backend(tenant)
        with suppress(ForkpointError):  # somebody deleted it, or uses it in another way
            branches = await backend.set_aside(id)
            await backend.delete(id)
            for branch in branches:
                with suppress(ForkpointError):
                    await backend.delete(branch.id)

"""What all chat completions of a server share: who answers, and memory. Tests: tests/server/chat/test_service.py."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from forkpoint.errors import ForkpointError
from forkpoint.history.client_view import Seen
from forkpoint.lru import Lru
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.tenants import Tenants
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.answerers import ModelNames, Wardrobe
from forkpoint.server.wires.chat.memory import Aside, Entry, HotSet, Key
from forkpoint.server.wires.chat.side_rules import SideRules

EXCHANGES = 500_000
"""How many questions and answers are in memory as clients saw them: some 150 MB."""

_LOOK = 60.0  # seconds between two looks through memory, at most


class ChatService:
    """The models that clients see, who stands behind them, and which conversations are in memory."""

    def __init__(self, agents: Catalog, tenants: Tenants, settings: ServerSettings) -> None:
        self.models = ModelNames(agents)
        self.wardrobe = Wardrobe(agents)
        self.hot = HotSet(settings.conversations_max, settings.conversation_ttl, dropped=self._dropped)
        # Paths as clients saw them, by tenant and digest; and the last request of each name that did not begin.
        self.seen: Lru[tuple[str, bytes], Sequence[Seen]] = Lru(None, EXCHANGES)
        self.refused: Lru[Key, str] = Lru(settings.conversations_max)
        # By name and digest of a request: the branch beside the conversation that answers it.
        self.aside: Lru[tuple[str, str, str], Aside] = Lru(settings.conversations_max)
        self.side_rules = SideRules(settings.side_rules)
        self._tenants = tenants
        self._forgotten: dict[str, list[str]] = {}  # conversations to delete, by tenant
        self._forgetting: asyncio.Task[None] | None = None

    def forget_texts(self) -> None:
        """Something was erased: the digests of texts that memory has go too."""
        for path in list(self.seen):
            self.seen.pop(path)
        for name in list(self.refused):
            self.refused.pop(name)
        for request in list(self.aside):
            self.aside.pop(request)

    def renamed(self, tenant: str, old: str, new: str) -> None:
        """A conversation has another name: nothing in memory leads to it under the old one."""
        self.hot.move((tenant, old), (tenant, new))
        self.refused.pop((tenant, old))
        for request in [one for one in self.aside if one[:2] == (tenant, old)]:
            self.aside.pop(request)

    async def sweep(self) -> None:
        """Drops what nobody uses any more, for as long as the server runs."""
        while True:
            wait = self.hot.sweep()
            await asyncio.sleep(_LOOK if wait is None else min(max(wait, 0.05), _LOOK))

    async def stop(self) -> None:
        """Waits until all dropped conversations are deleted."""
        if self._forgetting is not None:
            await self._forgetting

    def _dropped(self, key: Key, entry: Entry) -> None:
        """Only memory goes. But if the store is memory too, the conversation goes with it."""
        tenant, _ = key
        backend = self._tenants.backend(tenant)
        if (record := backend.placement.known(entry.id)) is not None:
            self.seen.pop((tenant, record.head.digest))
        backend.forget(entry.id)
        if not self._tenants.store.capabilities.durable:
            self._forgotten.setdefault(tenant, []).append(entry.id)
            if self._forgetting is None or self._forgetting.done():
                self._forgetting = asyncio.ensure_future(self._forget())

    async def _forget(self) -> None:
        """Deletes dropped conversations, and then what no conversation reaches any more."""
        while self._forgotten:
            tenant, ids = self._forgotten.popitem()
            for id in ids:
                await self._delete(tenant, id)
            with suppress(ForkpointError):
                await self._tenants.store.within(tenant).collect()

    async def _delete(self, tenant: str, id: str) -> None:
        backend = self._tenants.backend(tenant)
        with suppress(ForkpointError):  # somebody deleted it, or uses it in another way
            branches = await backend.placement.set_aside(id)
            await backend.delete(id)
            for branch in branches:
                with suppress(ForkpointError):
                    await backend.delete(branch.id)

"""Sub-agents of conversations, made in a server's store alone, as another process would."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.server.support.serving import Served
from tests.server.support.turning import PATIENCE

from forkpoint.backend.settings import Settings, SubAgentOf
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import Lineage, NewConversation

T = TypeVar("T")


def inside(server: Served, work: Coroutine[Any, Any, T]) -> T:
    """Does something in the server's own loop."""
    return asyncio.run_coroutine_threadsafe(work, server.loop).result(PATIENCE)


def spawn(server: Served, parent: str, nickname: str, *, path: str = "/root", tenant: str = "default") -> str:
    """A sub-agent, made in the store alone, as another process would."""

    async def made() -> str:
        store: Store = server.services.tenants.store.within(tenant)
        agent = server.services.agents.named("helper")
        record = await store.read(parent)
        of = SubAgentOf(parent, f"{path}/{nickname}", nickname, path.count("/"), role="explorer", task="Look around.")
        settings = Settings(Settings.of(agent, None).agent, None, sub_agent=of)
        lineage = Lineage("sub_agent", parent, None, new_id(), f"call-{nickname}")
        new = NewConversation(id=new_id(), settings=settings.to_json(), lineage=lineage, family=record.family)
        return (await store.create(new)).id

    return inside(server, made())

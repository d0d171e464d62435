"""Keeps: a conversation gets the head of a branch of its family, and what stood there is set aside.

The agent and the cache identity come with the branch, so that the next prompt is warm. What guards the conversation
stays: approval, limits, hooks, standing approvals, trust and the folder that it works in.
Tests: tests/conversation/test_keep.py, test_keep_table.py.
"""

from typing import TypeAlias

from forkpoint.backend.settings import Settings
from forkpoint.engine.conversation_cache import check_revision
from forkpoint.engine.idempotency import keep_key
from forkpoint.engine.resources import Resources
from forkpoint.engine.views import identity_of
from forkpoint.errors import Stale
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import CacheIdentity, fork_identity, own_identity
from forkpoint.store.values import IdempotencyKey, NewFork, StoredConversation

Kept: TypeAlias = tuple[StoredConversation, StoredConversation | None]
"""A conversation that has kept a branch, and what was set aside for that, if anything was."""


class Keeps:
    """Moves the heads of a store's conversations to those of their branches."""

    def __init__(self, resources: Resources) -> None:
        self._store = resources.store
        self._records = resources.records

    async def keep(self, id: str, branch: str, *, key: str | None = None, if_revision: int | None = None) -> Kept:
        """Moves the head of a conversation to the head of a branch, which is named by its id or name.

        Or returns what an earlier request with the same key came to, even if the branch is gone by now.
        """
        once = keep_key(key, branch)
        if once is not None and (made := await self._store.made_with(once, "keep", id)) is not None:
            assert isinstance(made, StoredConversation)
            return await self._store.read(id), None if made.id == id else made
        while True:
            keeper = await self._store.read(id)
            check_revision(keeper, if_revision)
            try:
                return await self._keep(keeper, await self._records.find(branch), once)
            except Stale:  # one of the two has moved since it was read, and what was made of it would be wrong
                if if_revision is not None:
                    check_revision(await self._store.read(id), if_revision)

    async def _keep(self, keeper: StoredConversation, branch: StoredConversation, key: IdempotencyKey | None) -> Kept:
        before = Settings.from_json(keeper.settings)
        settings = before.keeping(Settings.from_json(branch.settings))
        aside = new_id()
        now, left = await self._store.keep(
            keeper.id,
            branch.id,
            NewFork(id=aside, cache=(await self._inherited(keeper, aside)).to_json()),
            settings=None if settings == before else settings.to_json(),
            cache=(await self._inherited(branch, keeper.id)).to_json(),
            if_unchanged=(keeper, branch),
            key=key,
        )
        return self._records.know(now), left

    async def _inherited(self, source: StoredConversation, heir: str) -> CacheIdentity:
        """What a conversation shows a provider if it goes on from the head of ``source``, where prompts are warm.

        If that is what the conversation would show by itself, the identity is its own.
        """
        manifest = (await self._store.state(source.id)).manifest or ""
        found = fork_identity(
            identity_of(source), source.id, heir, "inherit", manifest=manifest, source_manifest=manifest
        )
        own = own_identity(heir)
        return own if (found.key, found.session) == (own.key, own.session) else found

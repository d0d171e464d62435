"""Erasures: removes content for good, and drops it from memory. Tests: tests/conversation/test_erasing.py."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forkpoint.backend.options import ErasureOptions
from forkpoint.engine.turns.runner import TurnRunner
from forkpoint.engine.views import stored_tags
from forkpoint.errors import NoSuchTurn, NotFound
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.erasure import Erasing, Receipt

if TYPE_CHECKING:
    from forkpoint.engine.resources import Resources


class Erasures:
    """Erases in the conversations of a store."""

    def __init__(self, resources: "Resources", turns: TurnRunner) -> None:
        self._store = resources.store
        self._prompts = resources.prompts
        self._records = resources.records
        self._turns = turns

    async def in_conversation(self, id: str, options: ErasureOptions) -> Receipt:
        """Erases a turn, an event, or everything in a conversation."""
        await self._turns.unended.end(id)
        chosen = Erasing(
            conversations=(id,), turn=options.turn, event=options.event, keep_summaries=options.keep_summaries
        )
        return await self._erase(chosen, options)

    async def with_tags(self, tags: Mapping[str, str], options: ErasureOptions) -> tuple[Receipt, ...]:
        """Erases everything in the conversations that have all of these tags, each family in its own transaction."""
        families: dict[str, list[str]] = defaultdict(list)
        async for record in every(partial(self._store.conversations, tags=stored_tags(tags))):
            families[record.family].append(record.id)
        return await self._erase_each([Erasing(conversations=tuple(ids)) for ids in families.values()], options)

    async def of_tenant(self, options: ErasureOptions) -> tuple[Receipt, ...]:
        """Erases everything that the tenant has: each family in its own transaction."""
        families = [Erasing(family=id) async for id in every(self._store.families)]
        return await self._erase_each(families, options)

    async def _erase_each(self, chosen: Sequence[Erasing], options: ErasureOptions) -> tuple[Receipt, ...]:
        """Erases in several families. The store cleans up once, with the last."""
        last = len(chosen) - 1
        receipts = [await self._erase(one, options, more_follow=n < last) for n, one in enumerate(chosen)]
        return tuple(replace(one, pending=receipts[-1].pending) for one in receipts)

    async def _erase(self, chosen: Erasing, options: ErasureOptions, *, more_follow: bool = False) -> Receipt:
        if options.cancel and not options.preview:
            await self._cancel(chosen, options)
        receipt = await self._store.erase(
            new_id(), chosen, reason=options.reason, dry_run=options.preview, more_follow=more_follow
        )
        if receipt.done:
            count = await self._store.erasure_count()
            self._prompts.heed(count)
            self._records.heed(count)
        return receipt

    async def _cancel(self, chosen: Erasing, options: ErasureOptions) -> None:
        """Cancels what runs in what an erasure touches."""
        found = await self._store.erase(new_id(), chosen, reason=options.reason, dry_run=True)
        for turn in found.running:
            with suppress(NoSuchTurn, NotFound):  # it has ended meanwhile
                await self._turns.cancel((await self._store.turn(turn)).conversation, turn)

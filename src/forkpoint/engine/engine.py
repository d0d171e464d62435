"""`Engine`: the conversations of a store that this process has open, run by this process.

It holds its parts and hands each call to the part that knows: turns, sub-agents, forks, questions.
Tests: tests/conversation/test_turns.py.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from os import PathLike
from typing import Any

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.context import AgentState
from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.backend.actor import actor
from forkpoint.backend.options import ConversationFilter, Draft, ErasureOptions, ExportOptions
from forkpoint.backend.results import ImportReport, Info, RemovedWorkspace, Stats
from forkpoint.backend.settings import Settings
from forkpoint.engine.branches.branches import EngineBranches
from forkpoint.engine.budgets.budgets import EngineBudgets
from forkpoint.engine.conversation_cache import check_revision
from forkpoint.engine.erasures import Erasures
from forkpoint.engine.exports import format_named, import_archive
from forkpoint.engine.exports.selection import Selection
from forkpoint.engine.glances import glances
from forkpoint.engine.idempotency import create_key
from forkpoint.engine.notes import Notes
from forkpoint.engine.placement import Placement
from forkpoint.engine.questions.questions import Questions
from forkpoint.engine.resources import EngineOptions, Resources
from forkpoint.engine.team.teams import Teams
from forkpoint.engine.turns.runner import TurnRunner
from forkpoint.engine.views import identity_of, info_of, new_conversation, stored_tags
from forkpoint.engine.workspaces import left_by, settings_if_any
from forkpoint.errors import AlreadyExists, BadArgument, Stale
from forkpoint.events import Event, NewEvent, StateChange, Usage
from forkpoint.history.anchors import Anchor
from forkpoint.ids import new_id
from forkpoint.llm.call import Models
from forkpoint.llm.prompt.identity import under_manifest
from forkpoint.paging import Page
from forkpoint.store.erasure import Receipt
from forkpoint.store.protocol import Store
from forkpoint.store.values import (
    Backup,
    Collected,
    CopyProgress,
    Hold,
    ListOrder,
    Record,
    Verification,
    VerifyProgress,
)


class Engine:
    """The `Backend` of an open store. It asks models and runs tools in this process."""

    def __init__(
        self,
        store: Store,
        models: Models | None = None,
        options: EngineOptions = EngineOptions(),
        *,
        owns_store: bool = True,
    ) -> None:
        resources = Resources(store, models or Models(), options)
        self._store = store
        self._owns_store = owns_store
        self._models = resources.models
        self._prompts = resources.prompts
        self._records = resources.records
        self._planner = resources.planner
        self._trusting = resources.trusting
        self._standing = resources.standing
        self.notes = Notes(resources)
        self.questions = Questions(resources)
        self.turns = TurnRunner(resources)
        self.team = self.turns.beneath = Teams(resources, self.turns)
        self.branches = EngineBranches(resources, self.turns)
        self.budgets = EngineBudgets(resources)
        self.placement = Placement(resources, self.branches.forks, self.turns)
        self._erasures = Erasures(resources, self.turns)

    def within(self, tenant: str, options: EngineOptions) -> "Engine":
        """The engine of a tenant. It shares this engine's store, models and memory; closing it closes none of them."""
        store = self._store.within(tenant)
        options = replace(options, prompts=self._prompts.within(store), trusting=self._trusting.within())
        return Engine(store, self._models, options, owns_store=False)

    async def close(self) -> None:
        """Cancels what still runs here, and lets go of store and models."""
        await self.stop()
        await self._models.aclose()
        if self._owns_store:
            await self._store.close()

    async def stop(self, *, hand_over: bool = False) -> None:
        """Cancels what still runs here. Nothing begins any more.

        With ``hand_over`` turns are left open instead, for another process to go on with once the store is closed here.
        """
        await self.turns.stop(hand_over=hand_over)

    def check_closable(self) -> None:
        """Raises `Busy` inside a turn that runs here."""
        self.turns.active.check_closable()

    def forget(self, id: str) -> None:
        """Drops what is in memory of a conversation: its record, and the prompt of its head."""
        if (record := self._records.known(id)) is not None:
            self._prompts.forget(record.head.digest)
        self._records.forget(id)

    async def usage(self) -> tuple[Usage, Usage]:
        """All that the tenant has ever spent, and what of it outside of conversations."""
        return await self._store.usage(), await self._store.spent(None)

    # Conversations.

    async def prepared(self, draft: Draft, agent: Agent | None) -> tuple[Draft, Agent | None]:
        return self._trusting.prepared(draft, agent)

    async def trust(self, family: str | None, workspace: str | PathLike[str], trusted: bool) -> None:
        """Keeps what somebody says of a workspace: for one family, or for all conversations if ``family`` is None."""
        await anyio.to_thread.run_sync(self._trusting.keep, workspace, trusted, family)

    def trust_warning(self, family: str) -> str | None:
        return self._trusting.warning(family)

    async def create(self, draft: Draft, *, key: str | None = None) -> Info:
        once = create_key(key, draft)
        history = () if draft.history is None else draft.history.as_history()
        try:
            made = await self._store.create(new_conversation(draft), history, key=once)
        except AlreadyExists:
            if not await self.placement.free_name(draft.name or draft.id):
                raise
            made = await self._store.create(new_conversation(draft), history, key=once)
        await self._trusting.keep_for(draft)
        return info_of(self._records.know(made))

    async def find(self, id_or_name: str) -> tuple[Info, Settings]:
        record = await self._records.find(id_or_name)
        return info_of(record), Settings.from_json(record.settings)

    async def conversations(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        order: ListOrder = "created",
        wanted: ConversationFilter = ConversationFilter(),
        glance: bool = False,
    ) -> Page[Info]:
        parent = None if wanted.parent is None else (await self._records.find(wanted.parent)).id
        page = await self._store.conversations(
            cursor=cursor,
            limit=limit,
            order=order,
            tags=stored_tags(wanted.tags),
            status=wanted.status,
            parent=parent,
            sub_agents=wanted.sub_agents or parent is not None,
            sides=wanted.sides,
            asides=wanted.asides,
            drafts=wanted.drafts,
        )
        shown = await glances(self._store, page.items) if glance else {}
        return Page(tuple(info_of(record, shown.get(record.id)) for record in page.items), page.next)

    async def describe(
        self,
        id: str,
        *,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        name: str | None = None,
        if_info: Info | None = None,
    ) -> Info:
        if name is not None:
            await self.placement.check_free(name, id)
        describe = partial(self._store.describe, id, title=title, tags=None if tags is None else stored_tags(tags))
        before = None
        if if_info is not None:
            before = await self._store.read(id)
            found = info_of(before)
            if (found.revision, found.name, found.tags) != (if_info.revision, if_info.name, if_info.tags):
                raise Stale(id, if_info.version, found.version)
        try:
            described = await describe(name=name, if_unchanged=before)
        except Stale:  # somebody was faster, between the reading and the writing
            assert if_info is not None
            raise Stale(id, if_info.version, info_of(await self._store.read(id)).version) from None
        except AlreadyExists:
            if name is None or not await self.placement.free_name(name):
                raise
            described = await describe(name=name, if_unchanged=before)
        if name is not None:
            self._records.forget(id)  # it says which name the conversation has
        return info_of(described)

    async def delete(self, id: str, *, if_revision: int | None = None) -> RemovedWorkspace | None:
        await self.turns.unended.end(id)
        settings = settings_if_any((await self._store.read(id)).settings)
        await self._store.delete(id, if_revision=if_revision)
        self._records.forget(id)
        return await left_by(settings, self._store)

    async def change(self, id: str, settings: Settings, agent: Agent | None, *, if_revision: int | None = None) -> Info:
        await self.turns.unended.end(id)
        record = await self._store.read(id)
        check_revision(record, if_revision)
        if record.settings == settings.to_json():  # so that it can be asked for again by one who heard no answer
            return info_of(self._records.know(record))
        events = await self._planner.settings_change(id, record.head, record.settings, settings.to_json())
        identity = identity_of(record)
        if agent is not None:
            identity = under_manifest(identity, id, agent.manifest.hash)
            state = await self._store.state(id)
            events += await self._planner.manifest_change(record, state, agent, lost=())
        await self._store.note(
            id,
            new_id(),
            events,
            settings=settings.to_json(),
            cache=identity.to_json(),
            if_revision=record.revision,
            by=actor(),
        )
        return info_of(self._records.know(await self._store.read(id)))

    # Standing approvals.

    async def approvals(self, id: str, *, revoked: bool = False) -> tuple[StandingApproval, ...]:
        return await self._standing.list(id, revoked=revoked)

    async def revoke_approval(self, id: str, approval: str, *, by: str | None = None) -> StandingApproval:
        return await self._standing.revoke(id, approval, by)

    # Holds and erasures.

    async def hold(self, id: str, hold: str, reason: str) -> Hold:
        return await self._store.hold(id, hold, reason)

    async def holds(self, id: str | None) -> tuple[Hold, ...]:
        return await self._store.holds(id)

    async def release(self, id: str, hold: str | None) -> tuple[Hold, ...]:
        return await self._store.release(id, hold)

    async def erase(self, id: str, options: ErasureOptions) -> Receipt:
        return await self._erasures.in_conversation(id, options)

    async def erase_all(self, tags: Mapping[str, str] | None, options: ErasureOptions) -> tuple[Receipt, ...]:
        if tags is None:
            return await self._erasures.of_tenant(options)
        return await self._erasures.with_tags(tags, options)

    async def erasures(self, *, cursor: str | None = None, limit: int = 50) -> Page[Receipt]:
        return await self._store.erasures(cursor=cursor, limit=limit)

    # Reading.

    async def events(
        self, id: str, *, after: int = 0, limit: int | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        return await self._store.events(id, after=after, limit=limit, kinds=kinds)

    async def stats(self, id: str) -> Stats:
        record = await self._store.read(id)
        return Stats(
            spent=await self._store.spent(id),
            inherited=record.inherited,
            family=await self._store.usage(record.family),
            events=record.head.ordinal,
            carries_metrics=record.carries_metrics,
        )

    async def state(self, id: str) -> dict[str, Any]:
        return {key: msgspec.json.decode(value) for key, value in (await self._store.state(id)).values}

    async def update_state(
        self, id: str, set: Mapping[str, Any], removed: Collection[str], *, if_revision: int | None = None
    ) -> None:
        await self.turns.unended.end(id)
        if if_revision is not None:
            check_revision(await self._store.read(id), if_revision)
        state = AgentState(await self._store.state(id))
        for key, value in set.items():
            state[key] = value
        change = state.change
        if both := sorted(key for key in removed if key in set):
            raise BadArgument("update_state()", f"remove={both!r}", "the same key is set")
        gone = tuple(sorted(key for key in removed if key in state))
        if change is not None or gone:
            changed = StateChange(change.set if change else (), gone)
            await self._store.note(id, new_id(), [NewEvent(changed)], if_revision=if_revision, by=actor())

    async def verify(
        self,
        id: str | None,
        *,
        head_digest: str | None,
        anchors: Sequence[Anchor] = (),
        since: Anchor | None = None,
        progress: VerifyProgress | None = None,
    ) -> Verification:
        try:
            digest = None if head_digest is None else bytes.fromhex(head_digest)
        except ValueError:
            why = "it is not hexadecimal, as `digest` of an earlier info() is"
            raise BadArgument("verify()", f"head_digest={head_digest!r}", why) from None
        return await self._store.verify(id, head_digest=digest, anchors=anchors, since=since, progress=progress)

    async def records(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[Record]:
        return await self._store.records(id, cursor=cursor, limit=limit)

    async def backup(self, path: str, *, force: bool, progress: CopyProgress | None) -> Backup:
        return await self._store.backup(path, force=force, progress=progress)

    async def anchor(self, *, all_tenants: bool) -> Anchor:
        return await self._store.anchor(all_tenants=all_tenants)

    async def collect(self, *, dry_run: bool = False, compact: bool = False) -> Collected:
        """Collects for the engine's tenant. Whoever has opened the store itself collects for all of its tenants."""
        return await self._store.collect(dry_run=dry_run, compact=compact, every_tenant=self._owns_store)

    # Copies.

    async def export(self, wanted: ExportOptions) -> AsyncGenerator[bytes, None]:
        format = format_named(wanted.format)
        id = None if wanted.id is None else (await self._records.find(wanted.id)).id
        selection = Selection(wanted.scope, id, stored_tags(wanted.tags))
        async with aclosing(format.write(self._store, selection)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def import_(self, chunks: AsyncIterator[bytes], *, rename: bool) -> ImportReport:
        done = await import_archive(self._store, chunks, rename=rename)
        for id in done.grown:
            self.forget(id)
        return done

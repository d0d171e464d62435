"""Forks and rewinds: how a conversation branches.
Tests: tests/conversation/test_fork.py, test_fork_keys.py, test_rewind.py, test_workspaces.py."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.actor import actor
from forkpoint.backend.options import ForkOptions
from forkpoint.backend.settings import Settings
from forkpoint.engine.branches.substitution import Substitution
from forkpoint.engine.conversation_cache import check_revision
from forkpoint.engine.idempotency import fork_key, rewind_key
from forkpoint.engine.resources import Resources
from forkpoint.engine.trust import with_project
from forkpoint.engine.views import stored_tags
from forkpoint.engine.workspaces import made_for, remove_made
from forkpoint.errors import BadArgument, ForkpointError, NotFound, Stale
from forkpoint.events import NewEvent, Position
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.store.values import IdempotencyKey, NewFork, StoredConversation
from forkpoint.workspace.folders import Made


class _ForkRequest(Struct, frozen=True):
    """A fork that somebody asks for: of which conversation, how it differs, and what it depends on."""

    source: str
    options: ForkOptions
    agent: Agent | None
    key: IdempotencyKey | None
    if_revision: int | None
    draft: bool


class Forks:
    """Branches the conversations of a store."""

    def __init__(self, resources: Resources) -> None:
        self._store = resources.store
        self._planner = resources.planner
        self._substitution = Substitution(resources.store)

    async def fork(
        self,
        source: str,
        options: ForkOptions,
        agent: Agent | None = None,
        *,
        key: str | None = None,
        if_revision: int | None = None,
        draft: bool = False,
    ) -> StoredConversation:
        """A fork, or the one that an earlier request with the same key made."""
        asked = _ForkRequest(source, options, agent, fork_key(key, options), if_revision, draft)
        if asked.key is not None and (made := await self._forked_before(source, asked.key)) is not None:
            return made
        return await (self._isolated(asked) if options.isolation is not None else self._shared(asked))

    async def rewind(
        self,
        id: str,
        *,
        at: str | Position | None,
        before: str | Position | None,
        events: Sequence[NewEvent] = (),
        key: str | None = None,
        if_revision: int | None = None,
    ) -> StoredConversation | None:
        """Moves a head back, and adds a note with ``events`` there, if there are any.

        Gives the branch that keeps what stood after it; None if nothing did.
        """
        branch = new_id()
        _, aside = await self._store.rewind(
            id,
            NewFork(id=branch, cache=own_identity(branch).to_json()),
            at=at,
            before=before,
            events=events,
            if_revision=if_revision,
            key=rewind_key(key, at, before),
            by=actor() if events else None,
        )
        return aside

    async def _isolated(self, asked: _ForkRequest) -> StoredConversation:
        """A fork with a folder of its own. Either both are there in the end, or neither is."""
        options = asked.options
        assert options.isolation is not None
        record = await self._store.read(asked.source)
        check_revision(record, asked.if_revision)
        folder = Settings.from_json(record.settings).workspace
        if folder is None:
            why = "there is no workspace to make one of"
            raise BadArgument("fork()", f'workspace="{options.isolation}"', why)

        async def is_used(made: Made) -> bool:
            try:
                there = await self._store.read(options.id)
            except NotFound:
                return False
            except ForkpointError:
                return True  # nobody can say, so it stays
            return Settings.from_json(there.settings).made == made

        name = options.name or (f"{options.title}-{options.id[-6:]}" if options.title else options.id)
        async with made_for(options.isolation, folder, name, is_used) as made:
            forked = await self._shared(asked, made)
            if forked.id != options.id:  # that of a request with the same key, which was faster
                await remove_made(made)
        return forked

    async def _shared(self, asked: _ForkRequest, made: Made | None = None) -> StoredConversation:
        """A fork in the source's folder, or in one that was ``made`` for it."""
        while True:
            try:
                return await self._fork(asked, await self._store.read(asked.source), made)
            except Stale:  # it has moved since it was read, and what was read with it
                if asked.if_revision is not None:
                    raise

    async def _forked_before(self, source: str, key: IdempotencyKey) -> StoredConversation | None:
        """The fork that an earlier request with this key made, even if its source has gone on or was deleted."""
        made = await self._store.made_with(key, "fork", source)
        assert made is None or isinstance(made, StoredConversation)
        return made

    async def _fork(self, asked: _ForkRequest, source: StoredConversation, made: Made | None) -> StoredConversation:
        options = asked.options
        check_revision(source, asked.if_revision)
        other: Settings | None = None  # None: the source's, as they are at that moment
        folder = options.workspace if made is None else made.path
        if options.agent is not None or folder is not None:
            now = Settings.from_json(source.settings)
            if options.agent is not None:
                options = replace(options, agent=with_project(options.agent, now.project))
            document = now.agent if options.agent is None else Settings.of(options.agent, None).agent
            other = replace(now, agent=document)
            if folder is not None:
                guarded_by = None if made is None else now.guarded_by  # whoever names a folder has chosen its project
                other = replace(other, workspace=folder, made=made, placed=options.id, guarded_by=guarded_by)
        new = NewFork(
            id=options.id,
            name=options.name,
            cache=(await self._planner.identity_for(source, options, asked.agent)).to_json(),
            settings=None if other is None else other.to_json(),
            title=options.title,
            tags=stored_tags(options.tags),
            carries_metrics=not options.reset_metrics,
            budget=options.budget,
        )
        if source.draft:  # nothing is in it, but somebody wants to go on from there
            await self._store.admit(source.id)
        begins = await self._substitution.beginning(source, options)
        as_read = other is not None or options.cache != "own"  # whether any of this is from the record that was read
        revision = source.revision if as_read or options.results else asked.if_revision
        return await self._store.fork(
            source.id,
            new,
            at=begins.at,
            before=begins.before,
            events=begins.events,
            if_revision=revision,
            key=asked.key,
            draft=asked.draft,
            by=actor() if begins.events else None,
        )

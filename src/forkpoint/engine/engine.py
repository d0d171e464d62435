"""`LocalBackend`: conversations in a store that this process has open, run by this process."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import anyio.to_thread
import msgspec
from msgspec.structs import asdict, replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.context import AgentState
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.protocol import Draft, ForkOptions
from forkpoint.backend.results import Branch, Info, RemovedWorkspace, SideAnswer, Stats, Turn
from forkpoint.backend.settings import Settings
from forkpoint.engine.placement import Placement
from forkpoint.engine.requests import Requests
from forkpoint.engine.team.teams import RunsTeams
from forkpoint.engine.trust import Trusting, with_project
from forkpoint.engine.turns.journal import staged
from forkpoint.engine.turns.missing import NOTHING, is_stand_in
from forkpoint.engine.turns.prompts import Prompts
from forkpoint.engine.turns.skills import called_for
from forkpoint.engine.turns.transaction import read_turn
from forkpoint.engine.views import identity_of, info_of, new_conversation, stored_tags, tree_of
from forkpoint.engine.workspaces import left_by, made_for, remove_made, settings_if_any
from forkpoint.errors import (
    AlreadyExists,
    BadArgument,
    ForkpointError,
    NoSuchTurn,
    NotFound,
    Stale,
)
from forkpoint.events import (
    Event,
    ModelCalled,
    NewEvent,
    Position,
    StagedEvent,
    StateChange,
    Usage,
    UserMessage,
)
from forkpoint.ids import new_id
from forkpoint.llm.answers import Failed
from forkpoint.llm.call import Models
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.identity import CallContext, own_identity, under_manifest
from forkpoint.llm.prompt.inspection import Inspection
from forkpoint.paging import Page
from forkpoint.shield import finished
from forkpoint.store.protocol import Store
from forkpoint.store.records import (
    ConversationRecord,
    IdempotencyKey,
    NewFork,
    Status,
    TurnRecord,
    Verification,
)
from forkpoint.workspace.folders import Made


class LocalBackend(RunsTeams):
    """Conversations in an open store. It asks models and runs tools in this process."""

    def __init__(
        self,
        store: Store,
        models: Models | None = None,
        *,
        owns_store: bool = True,
        prompts: Prompts | None = None,
        moved: Callable[[str, int], None] | None = None,
        patience: float | None = None,
        trusting: Trusting | None = None,
        beside: Callable[[str], Callback] | None = None,
    ) -> None:
        super().__init__(store, models or Models(), prompts, moved, patience, trusting, beside)
        self._owns_store = owns_store
        self.placement = Placement(self._store, self._records, partial(self.fork, draft=True), self._last_turn)

    async def close(self) -> None:
        """Cancels what still runs here, and lets go of store and models."""
        await self.stop()
        await self._models.aclose()
        if self._owns_store:
            await self._store.close()

    # What is at hand.

    def forget(self, id: str) -> None:
        """Drops what is in memory of a conversation: its record, and the prompt of its head."""
        if (record := self._records.known(id)) is not None:
            self._prompts.forget(record.head.digest)
        self._records.forget(id)

    async def usage(self) -> tuple[Usage, Usage]:
        """All that the tenant has ever spent, and what of it beside any conversation."""
        return await self._store.usage(), await self._store.spent(None)

    # Conversations.

    async def prepared(self, draft: Draft, agent: Agent | None) -> tuple[Draft, Agent | None]:
        return self._trusting.prepared(draft, agent)

    async def trust(self, family: str, workspace: str, trusted: bool) -> None:
        await anyio.to_thread.run_sync(self._trusting.keep, workspace, trusted, family)

    def trust_warning(self, family: str) -> str | None:
        return self._trusting.warning(family)

    async def create(self, draft: Draft, *, key: str | None = None) -> Info:
        once = None if key is None else _once(key, _asked(draft))
        try:
            made = await self._store.create(new_conversation(draft), key=once)
        except AlreadyExists:
            if not await self.placement.free_name(draft.name or draft.id):
                raise
            made = await self._store.create(new_conversation(draft), key=once)
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
        tags: Mapping[str, str] | None = None,
        status: Status | None = None,
        sub_agents: bool = False,
        parent: str | None = None,
    ) -> Page[Info]:
        wanted = stored_tags(tags or {})
        of = None if parent is None else (await self._records.find(parent)).id
        page = await self._store.conversations(
            cursor=cursor, limit=limit, tags=wanted, status=status, parent=of, sub_agents=sub_agents or of is not None
        )
        return Page(tuple(map(info_of, page.items)), page.next)

    async def tree(self, id: str) -> tuple[Branch, ...]:
        family = (await self._store.read(id)).family
        infos: list[Info] = []
        cursor: str | None = None
        while True:
            page = await self._store.conversations(cursor=cursor, limit=1000, family=family)
            infos += map(info_of, page.items)
            cursor = page.next
            if cursor is None:
                return tree_of(infos)

    async def describe(self, id: str, *, title: str | None, tags: Mapping[str, str] | None) -> Info:
        record = await self._store.describe(id, title=title, tags=None if tags is None else stored_tags(tags))
        return info_of(record)

    async def fork(
        self,
        source: str,
        options: ForkOptions,
        agent: Agent | None = None,
        *,
        key: str | None = None,
        if_revision: int | None = None,
        draft: bool = False,
    ) -> tuple[Info, Settings]:
        once = None if key is None else _once(key, _asked(options))
        made = None if once is None else await self._forked_before(source, options, once)
        if made is None and options.isolation is not None:
            made = await self._forked_apart(source, options, agent, once, if_revision)
        elif made is None:
            made = await self._forked(source, options, agent, once, if_revision, draft)
        return info_of(self._records.know(made)), Settings.from_json(made.settings)

    async def _forked_apart(
        self,
        source: str,
        options: ForkOptions,
        agent: Agent | None,
        once: IdempotencyKey | None,
        if_revision: int | None,
    ) -> ConversationRecord:
        """A fork with a folder of its own. Either both are there in the end, or neither is."""
        assert options.isolation is not None
        record = await self._store.read(source)
        _check_revision(record, if_revision)
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
            forked = await self._forked(source, options, agent, once, if_revision, draft=False, made=made)
            if forked.id != options.id:  # that of a request with the same key, which was faster
                await remove_made(made)
        return forked

    async def _forked(
        self,
        source: str,
        options: ForkOptions,
        agent: Agent | None,
        once: IdempotencyKey | None,
        if_revision: int | None,
        draft: bool,
        made: Made | None = None,
    ) -> ConversationRecord:
        while True:
            try:
                return await self._fork(await self._store.read(source), options, agent, once, if_revision, draft, made)
            except Stale:  # it has moved since it was read, and what was read with it
                if if_revision is not None:
                    raise

    async def _forked_before(
        self, source: str, options: ForkOptions, once: IdempotencyKey
    ) -> ConversationRecord | None:
        """The fork that an earlier request with this key made, even if its source has gone on or was deleted."""
        made = await self._store.made_with(once, "fork", source)
        assert made is None or isinstance(made, ConversationRecord)
        return made

    async def _fork(
        self,
        source: ConversationRecord,
        options: ForkOptions,
        agent: Agent | None,
        once: IdempotencyKey | None,
        if_revision: int | None,
        draft: bool,
        made: Made | None,
    ) -> ConversationRecord:
        _check_revision(source, if_revision)
        other: Settings | None = None  # None: the source's, as they are at that moment
        folder = options.workspace if made is None else made.path
        if options.agent is not None or folder is not None:
            now = Settings.from_json(source.settings)
            if options.agent is not None:
                options = replace(options, agent=with_project(options.agent, now.project))
            document = now.agent if options.agent is None else Settings.of(options.agent, None).agent
            other = replace(now, agent=document)
            if folder is not None:
                other = replace(other, workspace=folder, made=made, placed=options.id)
        new = NewFork(
            id=options.id,
            name=options.name,
            cache=(await self._planner.identity_for(source, options, agent)).to_json(),
            settings=None if other is None else other.to_json(),
            title=options.title,
            tags=stored_tags(options.tags),
            carries_metrics=not options.reset_metrics,
        )
        if source.draft:  # nothing is in it, but somebody wants to go on from there
            await self._store.admit(source.id)
        as_read = other is not None or options.cache != "own"  # whether any of this is from the record that was read
        revision = source.revision if as_read else if_revision
        return await self._store.fork(
            source.id, new, at=options.at, before=options.before, if_revision=revision, key=once, draft=draft
        )

    async def rewind(
        self,
        id: str,
        *,
        at: str | Position | None,
        before: str | Position | None,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> tuple[Info, Settings] | None:
        branch = new_id()
        await self.end_what_could_not_be_ended(id)
        _, aside = await self._store.rewind(
            id,
            NewFork(id=branch, cache=own_identity(branch).to_json()),
            at=at,
            before=before,
            if_revision=if_revision,
            key=None if key is None else _once(key, {"at": _place(at), "before": _place(before)}),
        )
        return None if aside is None else (info_of(aside), Settings.from_json(aside.settings))

    async def delete(self, id: str, *, if_revision: int | None = None) -> RemovedWorkspace | None:
        await self.end_what_could_not_be_ended(id)
        settings = settings_if_any((await self._store.read(id)).settings)
        await self._store.delete(id, if_revision=if_revision)
        self._records.forget(id)
        return await left_by(settings, self._store)

    async def change(self, id: str, settings: Settings, agent: Agent | None, *, if_revision: int | None = None) -> Info:
        await self.end_what_could_not_be_ended(id)
        record = await self._store.read(id)
        _check_revision(record, if_revision)
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
        )
        return info_of(self._records.know(await self._store.read(id)))

    # Side questions, and what is sent.

    async def ask(
        self,
        id: str,
        agent: Agent,
        messages: Sequence[UserMessage],
        *,
        allow: frozenset[str] = NOTHING,
        tell: Callback,
    ) -> SideAnswer:
        record = await self._store.read(id)
        agent = self._planner.agent_for(record.settings, agent, allow)
        agent.llm.key()
        base = await self._prompts.at(id, record.head, agent.manifest)
        opening = await self._opening(record, messages)
        options = Options(tool_choice="none") if agent.manifest.tools else Options()
        spent: list[ModelCalled] = []
        try:
            outcome = await self._models.call(
                agent.llm,
                base.then(opening),
                self._planner.context(record, agent),
                options,
                heard=tell,
                record=spent.append,
            )
        finally:
            used = sum((called.usage for called in spent), Usage())
            self._charging(id, used)
            await finished(self._charge)
        if isinstance(outcome, Failed):
            raise outcome.error
        return SideAnswer(outcome.answer.text, outcome.usage)

    async def request(
        self,
        id: str,
        agent: Agent,
        messages: Sequence[UserMessage],
        *,
        draft: Draft | None = None,
        allow: frozenset[str] = NOTHING,
    ) -> Inspection:
        if draft is not None:  # there is nothing yet, and looking makes nothing
            context = CallContext(own_identity(id), self._store.tenant)
            return Requests(self._models, agent, context, []).next(staged(map(NewEvent, messages)))
        record = await self._store.read(id)
        requests = await self._requests(record, agent, allow)
        agent = self._planner.agent_for(record.settings, agent, allow)
        return requests.next(await self._opening(record, messages, agent))

    async def sent(self, id: str, agent: Agent, turn: str | None, *, allow: frozenset[str] = NOTHING) -> Inspection:
        return (await self._requests(await self._store.read(id), agent, allow)).sent(id, turn)

    # Reading.

    async def turn(self, id: str, turn: str) -> Turn:
        record = await self._store.turn(turn)
        if record.kind != "turn":
            raise NotFound("turn", turn)  # a note is none
        if record.conversation != id and record.outcome != "committed":
            raise NoSuchTurn(id, "read", f"turn {turn} is another conversation's")
        return await read_turn(self._store, record.id)

    async def turns(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[Turn]:
        page = await self._store.turns(id, cursor=cursor, limit=limit)
        turns = [await read_turn(self._store, record.id) for record in page.items if record.kind == "turn"]
        return Page(tuple(turns), page.next)

    async def tries(self, id: str) -> tuple[Turn, ...]:
        record = await self._store.read(id)
        found = await self._tries_at(id, record.head.position)
        if not found and (before := await self._before_a_summary(record)) is not None:
            found = await self._tries_at(id, before)
        if record.open_turn is not None and all(turn.id != record.open_turn for turn in found):
            found.append(await self._store.turn(record.open_turn))  # it stands elsewhere, and holds the conversation
        return tuple([await read_turn(self._store, turn.id) for turn in found])

    async def _tries_at(self, id: str, position: Position | None) -> list[TurnRecord]:
        """What was tried at a place of the path, and did not commit."""
        found: list[TurnRecord] = []
        cursor: str | None = None
        while True:
            since = 0 if position is None else position.ordinal
            page = await self._store.turns(id, cursor=cursor, limit=1000, since=since)
            tries = (turn for turn in page.items if turn.kind == "turn" and turn.outcome != "committed")
            found += [turn for turn in tries if turn.base == position]
            cursor = page.next
            if cursor is None:
                return found

    async def _before_a_summary(self, record: ConversationRecord) -> Position | None:
        """Where a conversation stood before it was last condensed, if it has stood still since. What was too long then
        is tried again after that."""
        last = await self._store.events(record.id, last=1)
        if not last or (note := await self._store.turn(last[-1].turn)).kind != "note":
            return None
        after = 0 if note.base is None else note.base.ordinal
        added = await self._store.events(record.id, after=after, kinds=("condensation",))
        return note.base if added else None

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
        await self.end_what_could_not_be_ended(id)
        if if_revision is not None:
            _check_revision(await self._store.read(id), if_revision)
        state = AgentState(await self._store.state(id))
        for key, value in set.items():
            state[key] = value
        change = state.change
        if both := sorted(key for key in removed if key in set):
            raise BadArgument("update_state()", f"remove={both!r}", "the same key is set")
        gone = tuple(sorted(key for key in removed if key in state))
        if change is not None or gone:
            changed = StateChange(change.set if change else (), gone)
            await self._store.note(id, new_id(), [NewEvent(changed)], if_revision=if_revision)

    async def verify(self, id: str | None, *, head_digest: str | None) -> Verification:
        try:
            digest = None if head_digest is None else bytes.fromhex(head_digest)
        except ValueError:
            why = "it is not hexadecimal, as `digest` of an earlier info() is"
            raise BadArgument("verify()", f"head_digest={head_digest!r}", why) from None
        return await self._store.verify(id, head_digest=digest)

    # What is known of a conversation.

    async def _requests(self, record: ConversationRecord, agent: Agent, allow: frozenset[str]) -> Requests:
        agent = self._planner.agent_for(record.settings, agent, allow)
        events = await self._store.events(record.id, at=record.head.position) if record.head.position else []
        stored = Settings.from_json(record.settings).agent_json if is_stand_in(agent) else None
        return Requests(self._models, agent, self._planner.context(record, agent), events, stored)

    async def _opening(
        self, record: ConversationRecord, messages: Sequence[UserMessage], agent: Agent | None = None
    ) -> list[StagedEvent]:
        """How a turn with these messages would begin; with the skills that they call for, if ``agent`` would answer."""
        results, said = await self._planner.answered(record.id, record.head, messages, record.name)
        called: list[NewEvent] = []
        if agent is not None:
            folder = Settings.from_json(record.settings).folder
            skills = await self._planner.skills.of(agent, folder, record.family)
            told = await self._planner.skills_told(record.id, record.head, await self._store.state(record.id))
            called = await called_for(skills, messages, told, folder)
        return staged((*results, *called, *said))


def _once(key: str, asked: Mapping[str, object]) -> IdempotencyKey:
    """A key, bound to all that was asked for under it."""
    return IdempotencyKey(key, hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest())


def _asked(new: Draft | ForkOptions) -> dict[str, object]:
    """All that somebody asks of a new conversation. An id that nobody chose is another with each try, and not asked."""
    asked = asdict(new) | {"id": new.id if new.chosen and new.name is None else None, "tags": stored_tags(new.tags)}
    match new:
        case Draft(settings=settings):
            settings = settings if new.asked is None else new.asked
            return asked | {"settings": settings.to_json(), "asked": None}
        case ForkOptions(at=at, before=before, agent=agent):
            return asked | {"at": _place(at), "before": _place(before), "agent": agent.to_json() if agent else None}


def _place(point: str | Position | None) -> str | None:
    return None if point is None else str(point)


def _check_revision(record: ConversationRecord, expected: int | None) -> None:
    if expected is not None and record.revision != expected:
        raise Stale(record.id, expected, record.revision)

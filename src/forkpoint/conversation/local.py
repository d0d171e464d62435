"""`LocalBackend`: conversations in a store that this process has open, run by this process."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.context import AgentState
from forkpoint.conversation.backend import Decision, Draft, ForkOptions
from forkpoint.conversation.messages import read_input, write_input
from forkpoint.conversation.planning import Planner, agent_for, decided
from forkpoint.conversation.prompts import Prompts
from forkpoint.conversation.records import Records
from forkpoint.conversation.requests import Requests
from forkpoint.conversation.results import Branch, Info, SideAnswer, Stats, Turn
from forkpoint.conversation.settings import Settings
from forkpoint.conversation.steps import staged
from forkpoint.conversation.turn import Plan, Transaction, raise_for, read_turn, turn_of
from forkpoint.conversation.updates import Callback, TurnStarted
from forkpoint.conversation.views import identity_of, info_of, tree_of
from forkpoint.errors import AlreadyExists, BadArgument, Busy, NoSuchTurn, NotFound, Stale, TurnFailed
from forkpoint.events import (
    Event,
    ModelCalled,
    NewEvent,
    Position,
    SettingsChanged,
    StagedEvent,
    StateChange,
    Usage,
    UserMessage,
)
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.llm.answers import Failed
from forkpoint.llm.calling import Models
from forkpoint.llm.identity import CallContext, own_identity, under_manifest
from forkpoint.llm.inspecting import Inspection
from forkpoint.llm.options import Options
from forkpoint.store.protocol import Store
from forkpoint.store.records import (
    ConversationRecord,
    IdempotencyKey,
    NewConversation,
    NewFork,
    OpenTurn,
    Page,
    Status,
    Tags,
    TurnRecord,
    Verification,
)

POLL = 0.05, 1.0  # seconds between two looks at a turn that another process runs, at first and at most


class _Running:
    """A turn that this process runs."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()


class LocalBackend:
    """Conversations in an open store. It asks models and runs tools in this process."""

    def __init__(
        self, store: Store, models: Models | None = None, *, address: str = "", owns_store: bool = True
    ) -> None:
        self._store = store
        self._models = models or Models()
        self._address = address
        self._owns_store = owns_store
        self._prompts = Prompts(store)
        self._running: dict[str, _Running] = {}
        self._unended: dict[str, Transaction] = {}
        self._records = Records(store)
        self._planner = Planner(store, self._prompts, self._records)

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        """Cancels what still runs here, and lets go of store and models."""
        for running in list(self._running.values()):
            running.scope.cancel()
            await running.done.wait()
        await self._models.aclose()
        if self._owns_store:
            await self._store.close()

    # Conversations.

    async def create(self, draft: Draft) -> Info:
        return info_of(self._records.know(await self._store.create(_new(draft))))

    async def find(self, id_or_name: str) -> tuple[Info, Settings]:
        record = self._records.know(await self._find(id_or_name))
        return info_of(record), Settings.from_json(record.settings)

    async def conversations(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        tags: Mapping[str, str] | None = None,
        status: Status | None = None,
    ) -> Page[Info]:
        wanted = _tags(tags or {})
        page = await self._store.conversations(cursor=cursor, limit=limit, tags=wanted, status=status)
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
        record = await self._store.describe(id, title=title, tags=None if tags is None else _tags(tags))
        return info_of(record)

    async def fork(self, source: str, options: ForkOptions, agent: Agent | None = None) -> tuple[Info, Settings]:
        while True:
            try:
                made = await self._fork(await self._store.read(source), options, agent)
            except Stale:  # it has moved since it was read, and what was read with it
                continue
            return info_of(self._records.know(made)), Settings.from_json(made.settings)

    async def _fork(self, source: ConversationRecord, options: ForkOptions, agent: Agent | None) -> ConversationRecord:
        other: Settings | None = None  # None: the source's, as they are at that moment
        if options.agent is not None or options.workspace is not None:
            now = Settings.from_json(source.settings)
            document = now.agent if options.agent is None else Settings.of(options.agent, None).agent
            other = replace(now, agent=document, workspace=options.workspace or now.workspace)
        new = NewFork(
            id=options.id,
            name=options.name,
            cache=(await self._planner.identity_for(source, options, agent)).to_json(),
            settings=None if other is None else other.to_json(),
            title=options.title,
            tags=_tags(options.tags),
            carries_metrics=not options.reset_metrics,
        )
        if source.draft:  # nothing is in it, but somebody wants to go on from there
            await self._store.keep(source.id)
        as_read = other is not None or options.cache != "own"  # whether any of this is from the record that was read
        revision = source.revision if as_read else None
        return await self._store.fork(source.id, new, at=options.at, before=options.before, if_revision=revision)

    async def rewind(self, id: str, *, at: str | Position | None, before: str | Position | None) -> Info | None:
        aside = new_id()
        await self._end_what_could_not_be_ended(id)
        await self._store.rewind(id, NewFork(id=aside, cache=own_identity(aside).to_json()), at=at, before=before)
        try:
            return info_of(await self._store.read(aside))
        except NotFound:
            return None

    async def delete(self, id: str) -> None:
        await self._end_what_could_not_be_ended(id)
        await self._store.delete(id)
        self._records.forget(id)

    async def change(self, id: str, settings: Settings, agent: Agent | None) -> Info:
        await self._end_what_could_not_be_ended(id)
        record = await self._store.read(id)
        events = [NewEvent(SettingsChanged(settings.to_json()))]
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

    # Turns.

    async def run(
        self,
        id: str,
        agent: Agent,
        messages: Sequence[UserMessage],
        *,
        draft: Draft | None = None,
        retry_of: str | None = None,
        supersede: bool = False,
        key: str | None = None,
        tell: Callback,
    ) -> Turn:
        input = write_input(messages)
        agent.llm.key()  # a missing one is said before anything begins
        await self._end_what_could_not_be_ended(id)
        if draft is not None and draft.chosen:
            await self._check_new(id)
        opened = await self._store.begin(
            id,
            new_id(),
            input=input,
            retry_of=retry_of,
            create=None if draft is None else _new(draft),
            supersede=supersede,
            key=None if key is None else IdempotencyKey(key, hashlib.sha256(input.encode()).digest()),
        )
        if isinstance(opened, TurnRecord):
            return await self._join(opened)
        return await self._go(opened, agent, tuple(messages), tell)

    async def resume(
        self,
        id: str,
        turn: str,
        agent: Agent,
        *,
        decision: Decision | None = None,
        rerun: Collection[str] = (),
        limits: Limits | None = None,
        tell: Callback,
    ) -> Turn:
        record = await self._own_turn(id, turn, "resume")
        if decision is not None:
            decided(id, await self._store.steps(turn), decision)  # says what is wrong before the turn is taken
        agent.llm.key()
        await self._end_what_could_not_be_ended(id)
        opened = await self._store.resume(turn)
        messages = read_input(record.input)
        return await self._go(
            opened, agent, messages, tell, resumed=True, decision=decision, rerun=rerun, limits=limits
        )

    async def cancel(self, id: str) -> Turn:
        running = self._running.get(id)
        if running is None:
            record = await self._store.read(id)
            if record.status == "running" and record.open_turn is not None:
                raise Busy(id, record.open_turn)  # in another process, which alone can stop it
            raise NoSuchTurn(id, "cancel", "none is running")
        running.scope.cancel()
        await running.done.wait()
        return await read_turn(self._store, running.turn)

    async def discard(self, id: str, turn: str) -> Turn:
        await self._own_turn(id, turn, "discard")
        await self._end_what_could_not_be_ended(id)
        record = await self._store.discard(turn)
        return await turn_of(self._store, record, id)

    async def settle(self, turn: str) -> Turn:
        await self._store.settle(turn)
        return await read_turn(self._store, turn)

    async def ask(self, id: str, agent: Agent, messages: Sequence[UserMessage], *, tell: Callback) -> SideAnswer:
        record = await self._store.read(id)
        agent = agent_for(record.settings, agent)
        base = await self._prompts.at(id, record.head, agent.manifest)
        opening = await self._opening(record, messages)
        options = Options(tool_choice="none") if agent.tools else Options()
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
            if used:
                with anyio.CancelScope(shield=True):
                    await self._store.charge(id, new_id(), used)
        if isinstance(outcome, Failed):
            raise outcome.error
        return SideAnswer(outcome.answer.text, outcome.usage)

    async def request(
        self, id: str, agent: Agent, messages: Sequence[UserMessage], *, draft: Draft | None = None
    ) -> Inspection:
        if draft is not None:  # there is nothing yet, and looking makes nothing
            context = CallContext(own_identity(id), self._store.tenant)
            return Requests(self._models, agent, context, []).next(staged(map(NewEvent, messages)))
        record = await self._store.read(id)
        requests = await self._requests(record, agent)
        return requests.next(await self._opening(record, messages))

    async def sent(self, id: str, agent: Agent, turn: str | None) -> Inspection:
        return (await self._requests(await self._store.read(id), agent)).sent(id, turn)

    # Reading.

    async def turn(self, id: str, turn: str) -> Turn:
        record = await self._store.turn(turn)
        if record.conversation != id and record.outcome != "committed":
            raise NoSuchTurn(id, "read", f"turn {turn} is another conversation's")
        return await turn_of(self._store, record, id)

    async def turns(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[Turn]:
        page = await self._store.turns(id, cursor=cursor, limit=limit)
        turns = [await turn_of(self._store, record, id) for record in page.items if record.kind == "turn"]
        return Page(tuple(turns), page.next)

    async def tries(self, id: str) -> tuple[Turn, ...]:
        head = (await self._store.read(id)).head
        found: list[TurnRecord] = []
        cursor: str | None = None
        while True:
            page = await self._store.turns(id, cursor=cursor, limit=1000, since=head.ordinal)
            found += [
                record
                for record in page.items
                if record.kind == "turn" and record.outcome != "committed" and record.base == head.position
            ]
            cursor = page.next
            if cursor is None:
                return tuple([await turn_of(self._store, record, id) for record in found])

    async def events(
        self, id: str, *, after: int = 0, limit: int | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        return await self._store.events(id, after=after, limit=limit, kinds=kinds)

    async def stats(self, id: str) -> Stats:
        record = await self._store.read(id)
        return Stats(
            spent=await self._store.spent(id),
            inherited=record.inherited,
            family=await self._store.family_usage(record.family),
            events=record.head.ordinal,
            carries_metrics=record.carries_metrics,
        )

    async def state(self, id: str) -> dict[str, Any]:
        return {key: msgspec.json.decode(value) for key, value in (await self._store.state(id)).values}

    async def update_state(self, id: str, set: Mapping[str, Any], removed: Collection[str]) -> None:
        await self._end_what_could_not_be_ended(id)
        state = AgentState(await self._store.state(id))
        for key, value in set.items():
            state[key] = value
        change = state.change
        gone = tuple(sorted(key for key in removed if key in state))
        if change is not None or gone:
            await self._store.note(id, new_id(), [NewEvent(StateChange(change.set if change else (), gone))])

    async def verify(self, id: str | None, *, head_digest: str | None) -> Verification:
        try:
            digest = None if head_digest is None else bytes.fromhex(head_digest)
        except ValueError:
            raise BadArgument(
                "verify()", "head_digest", "it is not hexadecimal; use `digest` of an earlier info()"
            ) from None
        return await self._store.verify(id, head_digest=digest)

    # How a turn goes on.

    async def _go(
        self,
        opened: OpenTurn,
        agent: Agent,
        messages: tuple[UserMessage, ...],
        tell: Callback,
        *,
        resumed: bool = False,
        decision: Decision | None = None,
        rerun: Collection[str] = (),
        limits: Limits | None = None,
    ) -> Turn:
        """A turn that this process has just taken, to its end."""
        running = self._running[opened.conversation] = _Running(opened.id)
        transaction = Transaction(self._store, self._models, self._prompts, opened)

        async def plan(already: Sequence[StagedEvent]) -> Plan:
            made = await self._planner.plan(opened, agent, messages, already)
            events, fresh = _still_decided(opened.conversation, already, decision)
            return replace(made, events=(*made.events, *events), fresh=fresh, rerun=rerun, limits=limits)

        try:
            tell(TurnStarted(opened.id, opened.conversation, messages, resumed))
            with running.scope:
                turn = await transaction.run(plan, tell)
            if running.scope.cancelled_caught:
                turn = await read_turn(self._store, opened.id)
            if turn.outcome == "awaiting_approval" and opened.revision == 0:
                await self._store.keep(opened.conversation)  # whoever is to approve it has to find it
            tell(turn)
            return raise_for(turn)
        except TurnFailed as failed:
            if isinstance(failed.turn, Turn) and failed.cause is not None:
                tell(failed.turn)
            raise
        finally:
            if not transaction.is_ended:
                self._unended[opened.conversation] = transaction
            if transaction.committed is not None:
                self._records.moved(transaction.committed, transaction.cache)
            del self._running[opened.conversation]
            running.done.set()

    async def _join(self, record: TurnRecord) -> Turn:
        """The turn that an idempotency key named before, once it has ended."""
        if (running := self._running.get(record.conversation)) is not None and running.turn == record.id:
            await running.done.wait()
        wait, longest = POLL
        while (turn := await read_turn(self._store, record.id)).outcome == "running":
            await anyio.sleep(wait)
            wait = min(wait * 2, longest)
        return raise_for(turn)

    async def _end_what_could_not_be_ended(self, id: str) -> None:
        """A turn whose end the disk did not take still holds its conversation: its end is written now."""
        if (transaction := self._unended.get(id)) is not None:
            await transaction.end()
            if transaction.is_ended:
                self._unended.pop(id, None)

    # What is known of a conversation.

    async def _requests(self, record: ConversationRecord, agent: Agent) -> Requests:
        agent = agent_for(record.settings, agent)
        events = await self._store.events(record.id, at=record.head.position) if record.head.position else []
        return Requests(self._models, agent, self._planner.context(record, agent), events)

    async def _opening(self, record: ConversationRecord, messages: Sequence[UserMessage]) -> list[StagedEvent]:
        """How a turn with these messages would begin."""
        unanswered = await self._planner.not_answered(record.id, record.head.open_calls.client)
        return staged((*unanswered, *map(NewEvent, messages)))

    async def _find(self, id_or_name: str) -> ConversationRecord:
        try:
            id_to_bytes(id_or_name)
            return await self._store.read(id_or_name)
        except (ValueError, NotFound):
            return await self._store.find(id_or_name)

    async def _check_new(self, id: str) -> None:
        try:
            await self._store.read(id)
        except NotFound:
            return
        raise AlreadyExists("conversation", id)

    async def _own_turn(self, id: str, turn: str, verb: str) -> TurnRecord:
        record = await self._store.turn(turn)
        if record.conversation != id:
            raise NoSuchTurn(id, verb, f"turn {turn} is another conversation's")
        return record


def _still_decided(id: str, steps: Sequence[StagedEvent], decision: Decision | None) -> tuple[list[NewEvent], set[str]]:
    """The same once the turn is held; nothing if somebody else decided first, and the turn just waits again."""
    try:
        return decided(id, steps, decision)
    except NoSuchTurn:
        return [], set()


def _new(draft: Draft) -> NewConversation:
    return NewConversation(
        id=draft.id,
        name=draft.name,
        settings=draft.settings.to_json(),
        cache=own_identity(draft.id).to_json(),
        title=draft.title,
        tags=_tags(draft.tags),
    )


def _tags(tags: Mapping[str, str]) -> Tags:
    return tuple(sorted(tags.items()))

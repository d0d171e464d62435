"""`LocalBackend`: conversations in a store that this process has open, run by this process."""

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.context import AgentState
from forkpoint.agent.loop import stand
from forkpoint.conversation.backend import Decision, Draft, ForkOptions
from forkpoint.conversation.finishing import finished
from forkpoint.conversation.messages import read_input, write_input
from forkpoint.conversation.planning import Planner, decided
from forkpoint.conversation.prompts import Prompts
from forkpoint.conversation.records import Records
from forkpoint.conversation.requests import Requests
from forkpoint.conversation.results import Branch, Info, SideAnswer, Stats, Turn
from forkpoint.conversation.settings import Settings
from forkpoint.conversation.steps import staged
from forkpoint.conversation.turn import Plan, Transaction, raise_for, read_turn, turn_of
from forkpoint.conversation.updates import Callback, TurnStarted
from forkpoint.conversation.views import identity_of, info_of, tree_of
from forkpoint.errors import (
    AlreadyExists,
    BadArgument,
    Busy,
    ForkpointError,
    NoSuchTurn,
    NotFound,
    Stale,
    TurnFailed,
    TurnOpen,
)
from forkpoint.events import (
    Event,
    JsonText,
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

_log = logging.getLogger("forkpoint")

POLL = 0.05, 1.0  # seconds between two looks at a turn that another process runs, at first and at most


class _Running:
    """A turn that this process runs."""

    def __init__(self, conversation: str, turn: str) -> None:
        self.conversation = conversation
        self.turn = turn
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.ended: Turn | None = None  # as it was told


_inside: ContextVar[_Running | None] = ContextVar("forkpoint turn", default=None)
"""The turn that whatever runs here is part of: a tool, a callback, a model's provider."""


class LocalBackend:
    """Conversations in an open store. It asks models and runs tools in this process."""

    def __init__(self, store: Store, models: Models | None = None, *, owns_store: bool = True) -> None:
        self._store = store
        self._models = models or Models()
        self._owns_store = owns_store
        self._prompts = Prompts(store)
        self._running: dict[str, _Running] = {}
        self._unended: dict[str, Transaction] = {}
        self._uncharged: list[tuple[str, str, Usage]] = []
        self._records = Records(store)
        self._planner = Planner(store, self._prompts, self._records)

    async def close(self) -> None:
        """Cancels what still runs here, and lets go of store and models."""
        running = list(self._running.values())
        for one in running:
            one.scope.cancel()
        for one in running:
            await one.done.wait()
        for id in list(self._unended):
            with suppress(ForkpointError):
                await self._end_what_could_not_be_ended(id)
        await self._models.aclose()
        if self._owns_store:
            await self._store.close()

    def check_closable(self) -> None:
        """Raises `Busy` inside of a turn that runs here: closing would wait for the very turn that waits for it."""
        inside = _inside.get()
        if inside is not None and self._running.get(inside.conversation) is inside:
            raise Busy(inside.conversation, inside.turn)

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

    async def rewind(
        self, id: str, *, at: str | Position | None, before: str | Position | None
    ) -> tuple[Info, Settings] | None:
        aside = new_id()
        await self._end_what_could_not_be_ended(id)
        await self._store.rewind(id, NewFork(id=aside, cache=own_identity(aside).to_json()), at=at, before=before)
        try:
            made = await self._store.read(aside)
        except NotFound:
            return None
        return info_of(made), Settings.from_json(made.settings)

    async def delete(self, id: str) -> None:
        await self._end_what_could_not_be_ended(id)
        await self._store.delete(id)
        self._records.forget(id)

    async def change(self, id: str, settings: Settings, agent: Agent | None) -> Info:
        await self._end_what_could_not_be_ended(id)
        record = await self._store.read(id)
        events = [NewEvent(SettingsChanged(settings.to_json()))]
        if record.head.position is not None and not await self._store.events(id, kinds=("settings_changed",)):
            events.insert(0, NewEvent(SettingsChanged(record.settings, "as it was until here")))
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
        once = None if key is None else IdempotencyKey(key, hashlib.sha256(input.encode()).digest())
        await self._end_what_could_not_be_ended(id)
        if draft is not None and draft.chosen and (there := await self._namesake(draft)) is not None:
            return await self._join(await self._same_request(there, input, once))
        opened = await self._store.begin(
            id,
            new_id(),
            input=input,
            retry_of=retry_of,
            create=None if draft is None else _new(draft),
            supersede=supersede,
            key=once,
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
        steps = await self._store.steps(turn)  # what is wrong is said before the turn is taken
        decided(id, steps, decision)
        _check_rerun(id, steps, rerun)
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
        return running.ended or await read_turn(self._store, running.turn)

    async def discard(self, id: str, turn: str) -> Turn:
        await self._own_turn(id, turn, "discard")
        await self._end_what_could_not_be_ended(id)
        record = await self._store.discard(turn)
        return await turn_of(self._store, record, id)

    async def settle(self, id: str, turn: str) -> Turn:
        await self._own_turn(id, turn, "settle")
        await self._store.settle(turn)
        return await read_turn(self._store, turn)

    async def ask(self, id: str, agent: Agent, messages: Sequence[UserMessage], *, tell: Callback) -> SideAnswer:
        record = await self._store.read(id)
        agent = self._planner.agent_for(record.settings, agent)
        agent.llm.key()
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
                self._uncharged.append((id, new_id(), used))
            await finished(self._charge)
        if isinstance(outcome, Failed):
            raise outcome.error
        return SideAnswer(outcome.answer.text, outcome.usage)

    async def _charge(self) -> None:
        """Counts what side questions cost. What the disk does not take now is counted with the next."""
        while self._uncharged:
            id, charge, used = self._uncharged[0]
            try:
                await self._store.charge(id, charge, used)
            except NotFound:
                pass  # it was deleted meanwhile, with all that is counted for it
            except ForkpointError as error:
                _log.warning("what a side question cost is not counted yet: %s", error)
                return
            self._uncharged.pop(0)

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
        if both := sorted(key for key in removed if key in set):
            raise BadArgument("update_state()", f"remove={both!r}", "the same key is set")
        gone = tuple(sorted(key for key in removed if key in state))
        if change is not None or gone:
            await self._store.note(id, new_id(), [NewEvent(StateChange(change.set if change else (), gone))])

    async def verify(self, id: str | None, *, head_digest: str | None) -> Verification:
        try:
            digest = None if head_digest is None else bytes.fromhex(head_digest)
        except ValueError:
            why = "it is not hexadecimal, as `digest` of an earlier info() is"
            raise BadArgument("verify()", f"head_digest={head_digest!r}", why) from None
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
        running = self._running[opened.conversation] = _Running(opened.conversation, opened.id)
        inside = _inside.set(running)
        transaction = Transaction(self._store, self._models, self._prompts, opened)

        async def plan(already: Sequence[StagedEvent]) -> Plan:
            made = await self._planner.plan(opened, agent, messages, already)
            events, fresh = _still_decided(opened.conversation, already, decision)
            return replace(made, events=(*made.events, *events), fresh=fresh, rerun=rerun, limits=limits)

        try:
            with running.scope:
                started = TurnStarted(opened.id, opened.conversation, messages, resumed)
                turn = await transaction.run(plan, tell, started)
            if running.scope.cancelled_caught:
                turn = await transaction.cancelled()
            running.ended = turn
            tell(turn)
            return raise_for(turn)
        except TurnFailed as failed:
            if running.ended is None and isinstance(failed.turn, Turn):
                running.ended = failed.turn
                tell(failed.turn)
            raise
        finally:
            _inside.reset(inside)
            if not transaction.is_ended:
                self._unended[opened.conversation] = transaction
            if transaction.committed is not None:
                self._records.moved(transaction.committed, transaction.cache)
            if self._running.get(opened.conversation) is running:
                del self._running[opened.conversation]
            running.done.set()

    async def _join(self, record: TurnRecord) -> Turn:
        """The turn that an idempotency key named before, once it has ended."""
        if (running := self._running.get(record.conversation)) is not None and running.turn == record.id:
            await running.done.wait()
        wait, longest = POLL
        while True:
            await self._end_what_could_not_be_ended(record.conversation)
            await self._store.settle(record.id)  # raises what its runner heard, if only the disk knows
            if (turn := await read_turn(self._store, record.id)).outcome != "running":
                return raise_for(turn)
            await anyio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _end_what_could_not_be_ended(self, id: str) -> None:
        """A turn whose end the disk did not take still holds its conversation: its end is written now."""
        if (transaction := self._unended.get(id)) is not None:
            await transaction.end()
            if transaction.is_ended and self._unended.get(id) is transaction:
                del self._unended[id]

    # What is known of a conversation.

    async def _requests(self, record: ConversationRecord, agent: Agent) -> Requests:
        agent = self._planner.agent_for(record.settings, agent)
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

    async def _namesake(self, draft: Draft) -> ConversationRecord | None:
        """A conversation that has the id or the name that somebody chose for a new one."""
        try:
            return await self._find(draft.name or draft.id)
        except NotFound:
            return None

    async def _same_request(self, there: ConversationRecord, input: JsonText, key: IdempotencyKey | None) -> TurnRecord:
        """The turn of an earlier request with this key, which made the conversation. Raises `AlreadyExists` otherwise.

        Keys are looked up before anything else, and no conversation is ever at this revision: nothing can begin.
        """
        if key is not None:
            with suppress(Busy, TurnOpen, Stale):
                found = await self._store.begin(there.id, new_id(), input=input, key=key, if_revision=-1)
                assert isinstance(found, TurnRecord)
                return found
        raise AlreadyExists("conversation", there.name)

    async def _own_turn(self, id: str, turn: str, verb: str) -> TurnRecord:
        record = await self._store.turn(turn)
        if record.conversation != id:
            raise NoSuchTurn(id, verb, f"turn {turn} is another conversation's")
        return record


def _check_rerun(id: str, steps: Sequence[StagedEvent], rerun: Collection[str]) -> None:
    """Refuses to run a call again that is not there to be: it would be settled as unknown instead, for good."""
    standing = stand(steps)
    open = [call.call_id for call in standing.open if call.call_id not in standing.waiting]
    if strangers := [call for call in rerun if call not in open]:
        said = ", ".join(open) or "none"
        raise NoSuchTurn(id, "resume", f"call {strangers[0]!r} cannot be run again; these have no result: {said}")


def _still_decided(id: str, steps: Sequence[StagedEvent], decision: Decision | None) -> tuple[list[NewEvent], set[str]]:
    """What a decision comes to once the turn is held: nothing if somebody decided first, and it just waits again."""
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

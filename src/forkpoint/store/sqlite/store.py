"""`SqliteStore`: the store of one machine, in a file or in memory.

This module says which operation runs where (writer or readers), how durably, and how to find out whether it
landed. What the operations do stands in `conversations`, `turns`, `ledger`, `history` and `care`.
"""

import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path as FilePath
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from forkpoint.clock import Clock, system_clock
from forkpoint.errors import (
    BadId,
    BadName,
    BadStoreUrl,
    CommitFailed,
    ForkpointError,
    NotFound,
    NotWhole,
    OutcomeUnknown,
    ReadOnly,
    TurnLost,
)
from forkpoint.events import Event, JsonText, NewEvent, Position, StagedEvent, Usage
from forkpoint.file_lock import FileLock, NoLock
from forkpoint.history.paths import Path
from forkpoint.history.state import State
from forkpoint.ids import new_id
from forkpoint.paging import Page
from forkpoint.store.checks import Checks
from forkpoint.store.records import (
    DEFAULT_TENANT,
    Capabilities,
    Collected,
    Committed,
    ConversationRecord,
    Deleted,
    IdempotencyKey,
    KeyedOperation,
    NewConversation,
    NewFork,
    Onto,
    OpenTurn,
    Outcome,
    Status,
    Tags,
    TurnError,
    TurnRecord,
    Verification,
    check_id,
    check_name,
)
from forkpoint.store.sqlite.connection import MEMORY, SQL, Connect, Database, connect, connect_reader, translated
from forkpoint.store.sqlite.files import lock_path, make_tables, prepare
from forkpoint.store.sqlite.holders import Holder
from forkpoint.store.sqlite.open_file import DEFAULTS, SECOND, OpenFile, SqliteSettings
from forkpoint.store.sqlite.operations import care, commits, conversations, deletion, history, ledger, turns
from forkpoint.store.sqlite.pulse import Pulse
from forkpoint.store.sqlite.reader import Readers, SharedReaders
from forkpoint.store.sqlite.rows import Scope, head_of
from forkpoint.store.sqlite.writer import WriteJob, Writer
from forkpoint.store.stage import Staged, placed, stage
from forkpoint.wakeup import finish_in_thread

T = TypeVar("T")


class SqliteStore(AbstractAsyncContextManager["SqliteStore", None]):
    """Conversations in a SQLite file, or in memory. Open it with `open` or `forkpoint.store.open_store`."""

    def __init__(self, engine: OpenFile, tenant: str, *, owner: bool = True) -> None:
        self._engine = engine
        self._tenant = tenant
        self._owner = owner  # a view from another tenant does not close what it looks at
        self._checks = Checks(engine.settings.limits)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str] | None,
        *,
        tenant: str = DEFAULT_TENANT,
        settings: SqliteSettings = DEFAULTS,
        clock: Clock = system_clock,
        connect: Connect = connect,
    ) -> Self:
        """Opens a file, making it if there is none; None keeps everything in memory.

        ``clock`` and ``connect`` can be replaced to test what time and broken disks do.
        """
        check_name("tenant", tenant)
        return await anyio.to_thread.run_sync(partial(cls._open, path, tenant, settings, clock, connect))

    @classmethod
    def _open(
        cls, path: str | os.PathLike[str] | None, tenant: str, settings: SqliteSettings, clock: Clock, connect: Connect
    ) -> Self:
        try:
            name = MEMORY if path is None else os.path.realpath(path)
        except ValueError as error:
            raise BadStoreUrl(str(path), f"no file can have that name ({error})") from None
        if path is not None:
            prepare(FilePath(name))
        holder = Holder(None if path is None else name, settings.expiry)
        engine = OpenFile(name, settings, clock, holder)
        lock = NoLock() if path is None else FileLock(lock_path(FilePath(name)))
        with translated(name):
            engine.writer = Writer(
                name, connect, lock, beat=engine.beat, every=settings.heartbeat / SECOND, alone=engine.is_alone
            )
            if path is None:
                make_tables(engine.writer.connection)
                engine.readers = SharedReaders(engine.writer)
            else:
                engine.readers = Readers(name, connect_reader, settings.readers)
            engine.pulse = Pulse(name, connect_reader, engine.writer)
        return cls(engine, tenant)

    @property
    def tenant(self) -> str:
        return self._tenant

    @property
    def capabilities(self) -> Capabilities:
        on_disk = self._engine.path != MEMORY
        return Capabilities(durable=on_disk, shared=on_disk, notify=False)

    def within(self, tenant: str) -> Self:
        return type(self)(self._engine, check_name("tenant", tenant), owner=False)

    async def close(self) -> None:
        engine = self._engine
        if engine.closed or not self._owner:
            return
        engine.closed = True
        try:
            if engine.beaten is not None:
                leave = partial(_leave, holder=engine.holder.id)
                with suppress(ForkpointError):  # the lock of its holder says the same
                    await engine.writer.finish(WriteJob("leave", "", leave, landed=lambda db: True, durable=False))
        finally:
            await finish_in_thread(engine.let_go)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # Conversations.

    async def create(
        self,
        new: NewConversation,
        events: Sequence[NewEvent] = (),
        *,
        key: IdempotencyKey | None = None,
    ) -> ConversationRecord:
        self._checks.new(new)
        self._checks.key(key)
        note = new_id(self._engine.clock())
        told = new.id

        def run(db: Database, scope: Scope) -> ConversationRecord:
            nonlocal told
            made = conversations.made_before(db, scope, new, key)
            told = new.id if made is None else made.id
            if made is not None:
                return made
            made = conversations.create(db, scope, new, draft=False, key=key)
            if not events:
                return made
            self._note(db, scope, new.id, note, events)
            return conversations.read(db, scope, new.id)

        def landed(db: Database, scope: Scope) -> bool:
            return conversations.exists(db, scope, told)  # and with it its note, which is of the same transaction

        return await self._write("conversation", new.id, run, landed=landed)

    async def read(self, id: str) -> ConversationRecord:
        return await self._read(partial(conversations.read, id=id))

    async def find(self, name: str) -> ConversationRecord:
        try:
            check_name("name", name)
        except BadName:
            raise NotFound("conversation", name if len(name) <= 200 else name[:200] + "...") from None
        return await self._read(partial(conversations.find, name=name))

    async def made_with(
        self, key: IdempotencyKey, operation: KeyedOperation, source: str | None = None
    ) -> ConversationRecord | TurnRecord | None:
        # A read is enough. Its snapshot is as new as the call, so it has every key that any process committed before;
        # and a key that is taken afterwards is found by the operation itself, which looks again under the write lock.
        self._checks.key(key)
        return await self._read(partial(turns.made_with, key=key, operation=operation, source=source))

    async def conversations(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        tags: Tags = (),
        status: Status | None = None,
        family: str | None = None,
        parent: str | None = None,
        sub_agents: bool = True,
    ) -> Page[ConversationRecord]:
        self._checks.description(None, tags)
        page = partial(
            conversations.page,
            cursor=cursor,
            limit=_bounded(limit),
            tags=tags,
            status=status,
            family=family,
            parent=parent,
            sub_agents=sub_agents,
        )
        return await self._read(page)

    async def revisions(self, ids: Collection[str]) -> dict[str, int]:
        return await self._read(partial(conversations.revisions, ids=ids))

    async def describe(self, id: str, *, title: str | None = None, tags: Tags | None = None) -> ConversationRecord:
        self._checks.description(title, tags or ())
        run = partial(conversations.describe, id=id, title=title, tags=tags)
        return await self._write("description of", id, run, landed=partial(conversations.was_updated, id=id))

    async def rename(self, id: str, name: str | None, *, if_revision: int | None = None) -> ConversationRecord:
        conversations.key_of(id)
        if name is not None:
            check_name("name", name)
        run = partial(conversations.rename, id=id, name=name, if_revision=if_revision)
        return await self._write("name of", id, run, landed=partial(conversations.is_named, id=id, name=name))

    async def admit(self, id: str) -> ConversationRecord:
        run = partial(conversations.admit, id=id)
        return await self._write("admission of", id, run, landed=partial(conversations.is_admitted, id=id))

    async def fork(
        self,
        source: str,
        new: NewFork,
        *,
        at: str | Position | None = None,
        before: str | Position | None = None,
        if_revision: int | None = None,
        key: IdempotencyKey | None = None,
        draft: bool = False,
    ) -> ConversationRecord:
        self._checks.new(new)
        self._checks.key(key)
        run = partial(
            conversations.fork,
            source=source,
            new=new,
            at=at,
            before=before,
            if_revision=if_revision,
            key=key,
            draft=draft,
        )
        return await self._write("conversation", new.id, run, landed=partial(conversations.exists, id=new.id))

    async def rewind(
        self,
        id: str,
        aside: NewFork,
        *,
        at: str | Position | None = None,
        before: str | Position | None = None,
        if_revision: int | None = None,
        key: IdempotencyKey | None = None,
    ) -> tuple[ConversationRecord, ConversationRecord | None]:
        self._checks.new(aside)
        self._checks.key(key)
        run = partial(conversations.rewind, id=id, aside=aside, at=at, before=before, if_revision=if_revision, key=key)
        return await self._write("rewind of", id, run, landed=partial(conversations.exists, id=aside.id))

    async def note(
        self,
        id: str,
        note: str,
        events: Sequence[NewEvent],
        *,
        settings: JsonText | None = None,
        cache: JsonText | None = None,
        usage: Usage = Usage(),
        if_revision: int | None = None,
    ) -> Committed:
        self._checks.documents(settings, cache)
        conversations.key_of(id)
        check_id("note", note)

        def run(db: Database, scope: Scope) -> Committed:
            return self._note(
                db, scope, id, note, events, settings=settings, cache=cache, usage=usage, if_revision=if_revision
            )

        return await self._write("note", note, run, landed=partial(turns.exists, id=note))

    async def delete(self, id: str, *, if_revision: int | None = None) -> Deleted:
        run = partial(deletion.delete, id=id, if_revision=if_revision)
        return await self._write(
            "removal of", id, run, landed=lambda db, scope: not conversations.exists(db, scope, id)
        )

    # Turns.

    async def begin(
        self,
        conversation: str,
        turn: str,
        *,
        input: JsonText | None = None,
        retry_of: str | None = None,
        create: NewConversation | None = None,
        supersede: bool = False,
        if_revision: int | None = None,
        key: IdempotencyKey | None = None,
        onto: Onto | None = None,
    ) -> OpenTurn | TurnRecord:
        self._checks.input(input)
        conversations.key_of(conversation)
        check_id("turn", turn)
        if retry_of is not None:
            check_id("turn", retry_of)
        self._checks.key(key)
        if create is not None:
            self._checks.new(create)
            if create.id != conversation:
                raise BadId(f"conversation that turn {turn} creates", create.id)
        token = os.urandom(16)
        run = partial(
            turns.begin,
            conversation=conversation,
            turn=turn,
            token=token,
            input=input,
            retry_of=retry_of,
            create=create,
            supersede=supersede,
            if_revision=if_revision,
            key=key,
            onto=onto,
        )
        return await self._hold(turn, token, begun=True, operation=run)

    async def journal(self, turn: OpenTurn, events: Sequence[NewEvent], *, usage: Usage = Usage()) -> OpenTurn:
        staged = self._stage(turn, events)
        spent = turn.usage + usage
        run = partial(turns.journal, turn=turn, staged=staged, usage=spent)
        landed = partial(turns.journalled, id=turn.id, staged=turn.staged + len(events), usage=spent)
        await self._as_holder(turn, self._write("steps of turn", turn.id, run, landed=landed, size=staged.size))
        return replace(
            turn,
            staged=turn.staged + len(events),
            calls=staged.calls,
            state=staged.state,
            state_changed=turn.state_changed or staged.state is not turn.state,
            usage=spent,
        )

    async def commit(
        self,
        turn: OpenTurn,
        events: Sequence[NewEvent] = (),
        *,
        usage: Usage = Usage(),
        cache: JsonText | None = None,
        settings: JsonText | None = None,
        aside: NewFork | None = None,
    ) -> Committed:
        self._checks.documents(settings, cache)
        if aside is not None:
            self._checks.new(aside)
        staged = self._stage(turn, events)
        if not turn.staged + len(events):
            raise NotWhole("turn", "it has no events")
        staged.calls.at_a_commit()
        run = partial(
            commits.commit,
            turn=turn,
            staged=staged,
            usage=turn.usage + usage,
            settings=settings,
            cache=cache,
            aside=aside,
        )

        def landed(db: Database, scope: Scope) -> bool:
            return turns.settle(db, scope, turn.id, turn.token, usage) == "committed"

        def not_landed(error: Exception) -> CommitFailed:
            return CommitFailed(self._engine.path, turn.id, str(error))

        write = self._write("turn", turn.id, run, landed=landed, not_landed=not_landed, size=staged.size)
        committed = await self._as_holder(turn, write, usage)
        if turn.staged:  # the rest is in the journal, and only the disk has it as it is
            return committed
        return replace(committed, events=placed(turn, events, staged, committed.first))

    async def fail(self, turn: OpenTurn, error: TurnError, *, usage: Usage = Usage()) -> TurnRecord:
        error = TurnError(_printable(error.code), _printable(error.message))
        return await self._end(turn, partial(turns.end, outcome="failed", error=error), usage)

    async def cancel(self, turn: OpenTurn, *, usage: Usage = Usage()) -> TurnRecord:
        return await self._end(turn, partial(turns.end, outcome="cancelled", error=None), usage)

    async def wait(self, turn: OpenTurn, events: Sequence[NewEvent] = (), *, usage: Usage = Usage()) -> TurnRecord:
        staged = self._stage(turn, events)
        return await self._end(turn, partial(turns.wait, staged=staged), usage)

    async def resume(self, turn: str) -> OpenTurn:
        token = os.urandom(16)
        taken = await self._hold(turn, token, begun=False, operation=partial(turns.resume, id=turn, token=token))
        assert isinstance(taken, OpenTurn)
        return taken

    async def discard(self, turn: str) -> TurnRecord:
        return await self._write("turn", turn, partial(turns.discard, id=turn), landed=partial(turns.is_over, id=turn))

    async def settle(self, turn: str) -> Outcome:
        unsettled = self._engine.unsettled.get((self._tenant, turn))
        if unsettled is None:
            return (await self.turn(turn)).outcome
        token, usage = unsettled

        def run(db: Database, scope: Scope) -> Outcome:
            _raise_barrier(db, scope)
            return turns.settle(db, scope, turn, token, usage)

        outcome = await self._write("turn", turn, run, landed=partial(turns.is_over, id=turn))
        self._engine.unsettled.pop((self._tenant, turn), None)
        self._engine.running.discard(token)
        return outcome

    async def refresh(self, turn: OpenTurn) -> OpenTurn:
        return await self._read(partial(turns.refresh, turn=turn))

    async def turn(self, id: str) -> TurnRecord:
        return await self._read(partial(turns.read, id=id))

    async def whole_turn(self, id: str) -> tuple[TurnRecord, tuple[Event, ...] | tuple[StagedEvent, ...]]:
        def read(db: Database, scope: Scope) -> tuple[TurnRecord, tuple[Event, ...] | tuple[StagedEvent, ...]]:
            record = turns.read(db, scope, id)
            if record.end is None:
                return record, tuple(history.read_steps(db, id))
            return record, tuple(history.read_stretch(db, record.base.ordinal + 1 if record.base else 1, record.end))

        return await self._read(read)

    async def turns(
        self, conversation: str, *, cursor: str | None = None, limit: int = 50, since: int = 0
    ) -> Page[TurnRecord]:
        page = partial(turns.page, conversation=conversation, cursor=cursor, limit=_bounded(limit), since=since)
        return await self._read(page)

    # What was spent.

    async def charge(self, conversation: str | None, id: str, usage: Usage) -> None:
        if conversation is not None:
            conversations.key_of(conversation)
        check_id("charge", id)
        run = partial(ledger.charge, conversation=conversation, id=id, usage=usage)
        await self._write("charge", id, run, landed=partial(ledger.is_charged, id=id))

    async def spent(self, conversation: str | None) -> Usage:
        return await self._read(partial(ledger.spent, conversation=conversation))

    async def usage(self, family: str | None = None) -> Usage:
        return await self._read(partial(ledger.usage, family=family))

    # History.

    async def path(self, conversation: str) -> Path:
        def read(db: Database, scope: Scope) -> Path:
            row = conversations.row_of(db, scope, conversation)
            return history.read_path(db, scope, row["family"], head_of(row).position)

        return await self._read(read)

    async def events(
        self,
        conversation: str,
        *,
        at: Position | None = None,
        after: int = 0,
        limit: int | None = None,
        last: int | None = None,
        kinds: Sequence[str] = (),
    ) -> list[Event]:
        def read(db: Database, scope: Scope) -> list[Event]:
            row = conversations.row_of(db, scope, conversation)
            head = head_of(row).position
            if at is not None and at != head:
                if at not in history.read_path(db, scope, row["family"], head):
                    raise NotFound("event", str(at))
                head = at
            begin, upto = max(after, 0), head.ordinal if head else 0
            if last is not None:
                begin = max(begin, upto - max(last, 0))
            if limit is not None:
                upto = min(upto, begin + max(limit, 0))
            return history.read_events(db, scope, row["family"], head, begin, upto, kinds)

        return await self._read(read)

    async def steps(self, turn: str) -> list[StagedEvent]:
        def read(db: Database, scope: Scope) -> list[StagedEvent]:
            turns.read(db, scope, turn)
            return history.read_steps(db, turn)

        return await self._read(read)

    async def state(self, conversation: str) -> State:
        def read(db: Database, scope: Scope) -> State:
            return history.read_state(db, head_of(conversations.row_of(db, scope, conversation)))

        return await self._read(read)

    # Care.

    async def pulse(self) -> int:
        await checkpoint()
        if not self._engine.pulse.is_ready:
            await anyio.to_thread.run_sync(self._engine.pulse.prepare)
        return self._engine.pulse.read()

    async def verify(self, conversation: str | None = None, *, head_digest: bytes | None = None) -> Verification:
        return await self._read(partial(care.verify, conversation=conversation, head_digest=head_digest))

    async def collect(self, *, dry_run: bool = False) -> Collected:
        settings, now = self._engine.settings, self._engine.clock()
        if dry_run:
            return await self._read(
                partial(_dry_run, drafts_before=now - settings.keep_drafts, keys_before=now - settings.keep_keys)
            )
        total = Collected()
        before = now - settings.keep_drafts
        for draft in await self._read(partial(care.old_drafts, before=before)):
            run_draft = partial(deletion.delete_old_draft, id=draft, before=before)
            if await self._write("collection", "", run_draft, landed=lambda db, scope: False):
                total += Collected(drafts=1)
        for family in await self._read(care.families):
            more = True
            while more:
                run = partial(care.collect_some, family=family)
                some, more = await self._write("collection", "", run, landed=lambda db, scope: False)
                total += some
        keys = await self._write(
            "collection",
            "",
            partial(care.delete_old_keys, before=now - settings.keep_keys),
            landed=lambda db, scope: False,
        )
        forget = partial(care.forget_holders, before=now - settings.expiry)
        await self._write("collection", "", lambda db, scope: forget(db), landed=lambda db, scope: False)
        await anyio.to_thread.run_sync(self._engine.holder.sweep)
        return total + Collected(keys=keys)

    # How operations are run.

    def _scope(self) -> Scope:
        now = self._engine.clock()
        holder = self._engine.holder

        def alive(id: bytes | None, seen: int | None) -> bool:
            return holder.is_alive(id, seen, now)

        return Scope(self._tenant, now, holder.id, alive)

    async def _read(self, operation: Callable[[Database, Scope], T]) -> T:
        if self._engine.writer.in_doubt:
            # What is not there now might be there after a crash, until a barrier is on disk: never a guess.
            await self._write("barrier", "", _raise_barrier, landed=lambda db, scope: True)
        scope = self._scope()
        return await self._engine.readers.run(lambda db: operation(db, scope))

    async def _write(
        self,
        what: str,
        id: str,
        operation: Callable[[Database, Scope], T],
        *,
        landed: Callable[[Database, Scope], bool],
        not_landed: Callable[[Exception], ForkpointError] | None = None,
        durable: bool = True,
        size: int = 0,
    ) -> T:
        scope = self._scope()
        job = WriteJob(
            what,
            id,
            lambda db: operation(db, scope),
            landed=lambda db: landed(db, scope),
            not_landed=not_landed,
            durable=durable,
            size=size,
        )
        return await self._engine.writer.submit(job)

    async def _as_holder(self, turn: OpenTurn, write: Awaitable[T], usage: Usage | None = None) -> T:
        """Does a write to a turn, and keeps account of whether this process still holds it.

        ``usage`` is given where a success ends the turn.
        """
        engine = self._engine
        try:
            done = await write
        except OutcomeUnknown:
            engine.unsettled[self._tenant, turn.id] = (turn.token, usage or Usage())
            raise
        except (TurnLost, CommitFailed):
            engine.running.discard(turn.token)
            raise
        if usage is not None:
            engine.running.discard(turn.token)
        return done

    async def _hold(
        self, turn: str, token: bytes, *, begun: bool, operation: Callable[[Database, Scope], OpenTurn | TurnRecord]
    ) -> OpenTurn | TurnRecord:
        """Begins or takes over a turn. Need not reach the disk: it must survive a dead process, not a power cut."""
        engine = self._engine
        try:
            engine.holder.enrol()
        except OSError as error:
            raise ReadOnly(engine.path, error.strerror or str(error)) from error

        def run(db: Database, scope: Scope) -> tuple[OpenTurn | TurnRecord, int | None]:
            beaten = engine.say_alive(db) if engine.is_silent() else engine.beaten
            return operation(db, scope), beaten

        try:
            held, engine.beaten = await self._write(
                "turn", turn, run, landed=partial(turns.is_held, id=turn, token=token), durable=False
            )
        except anyio.get_cancelled_exc_class():
            await self._let_go(turn, token, begun=begun)
            raise
        except OutcomeUnknown:
            engine.running.add(token)
            engine.unsettled[self._tenant, turn] = (token, Usage())
            raise
        if isinstance(held, OpenTurn):
            engine.running.add(token)
        return held

    async def _let_go(self, turn: str, token: bytes, *, begun: bool) -> None:
        """The caller was cancelled while it took a turn: if it got it, nobody else would ever give it back."""
        run = partial(turns.let_go, scope=self._scope(), id=turn, token=token, begun=begun)

        def landed(db: Database) -> bool:
            run(db)  # whether it was done or not: it is now
            return True

        with suppress(ForkpointError):  # then it is interrupted when this process ends, and can be discarded
            await self._engine.writer.finish(WriteJob("turn", turn, run, landed=landed, durable=False))

    async def _end(self, turn: OpenTurn, operation: Callable[..., TurnRecord], usage: Usage) -> TurnRecord:
        run = partial(operation, turn=turn, usage=usage)
        landed = partial(turns.is_not_held, id=turn.id, token=turn.token)
        return await self._as_holder(turn, self._write("turn", turn.id, run, landed=landed), usage)

    def _note(
        self,
        db: Database,
        scope: Scope,
        id: str,
        note: str,
        events: Sequence[NewEvent],
        *,
        settings: JsonText | None = None,
        cache: JsonText | None = None,
        usage: Usage = Usage(),
        if_revision: int | None = None,
    ) -> Committed:
        if not events:
            raise NotWhole("note", "it has no events")
        if (done := commits.same_note(db, scope, id, note, events)) is not None:
            return done
        base = commits.base_for_note(db, scope, id, note, if_revision)
        return commits.note(db, scope, base, self._stage(base, events), usage=usage, settings=settings, cache=cache)

    def _stage(self, turn: OpenTurn, events: Sequence[NewEvent]) -> Staged:
        return stage(
            events,
            calls=turn.calls,
            state=turn.state,
            now=self._engine.clock(),
            limits=self._checks.limits,
        )


def _raise_barrier(db: Database, scope: Scope) -> None:
    db.execute(SQL["raise_barrier"])


def _leave(db: Database, holder: bytes) -> None:
    db.execute(SQL["leave"], {"id": holder})


def _dry_run(db: Database, scope: Scope, drafts_before: int, keys_before: int) -> Collected:
    total = Collected(
        drafts=len(care.old_drafts(db, scope, drafts_before)), keys=care.count_old_keys(db, scope, keys_before)
    )
    for family in care.families(db, scope):
        for stretch in care.unreached(db, scope, family):
            total += care.measure(db, stretch)
    return total


def _bounded(limit: int) -> int:
    return min(max(limit, 1), 1000)


def _printable(text: str) -> str:
    """A text without half surrogate pairs: why a turn failed must not keep it from ending."""
    return text.encode(errors="backslashreplace").decode()

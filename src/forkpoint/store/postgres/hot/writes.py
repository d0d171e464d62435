"""`HotWrites`: says hot statements, and finds out what became of one that the server did not answer.

A statement that was refused has written nothing, and one whose guard found no row neither: then the shared operation
runs, which tries again or tells the caller why. A statement that nobody has confirmed is settled as a COMMIT is
(`settling`): its session is ended, then the database is asked. If it was not done, the shared operation runs too.
Tests: tests/postgres/test_hot_commit.py, test_hot_turns.py, test_hot_outcomes.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import psycopg

from forkpoint.errors import OutcomeUnknown
from forkpoint.events import JsonText, Usage
from forkpoint.history.steers import steers_among
from forkpoint.store.postgres.hot import commit
from forkpoint.store.postgres.hot.begin import Begin
from forkpoint.store.postgres.hot.ending import Ending
from forkpoint.store.postgres.hot.journal import Journal
from forkpoint.store.postgres.hot.sealed_steps import MOST_EVENTS, is_small
from forkpoint.store.postgres.open_database import OpenDatabase
from forkpoint.store.postgres.session.failures import is_lost, translate
from forkpoint.store.postgres.session.hot_link import HotLink
from forkpoint.store.postgres.session.link import Unconfirmed
from forkpoint.store.postgres.transactions import Write
from forkpoint.store.stage import Sealed, Staged
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations.history import read_sealed
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import Committed, IdempotencyKey, OpenTurn, StoredTurn, TurnError
from forkpoint.threads.shield import finished

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Write(Protocol[T_co]):
    @property
    def statement(self) -> tuple[bytes, list[Any]]: ...

    def read(self, db: Database, scope: Scope) -> T_co | None: ...


@dataclass(frozen=True, eq=False)
class HotWrites:
    """The writes of one tenant's turns, each as one statement: `forkpoint.store.tables.quick.QuickWrites`."""

    opened: OpenDatabase
    tenant: str

    async def begin(
        self,
        conversation: str,
        turn: str,
        *,
        token: bytes,
        input: JsonText | None,
        if_revision: int | None,
        if_name: str | None,
        key: IdempotencyKey | None,
        by: str | None,
        accepted: bool,
    ) -> OpenTurn | None:
        scope = self._scope()
        beat = self.opened.whereabouts if self.opened.is_silent() else None
        begin = Begin(
            scope,
            conversation,
            turn,
            token=token,
            input=input,
            if_revision=if_revision,
            if_name=if_name,
            key=key,
            by=by,
            accepted=accepted,
            beat=beat,
        )
        answer = await self._say("turn", turn, begin, durable=accepted)
        if not isinstance(answer, Mapping):
            return answer
        self.opened.hear(answer["clock"])
        if beat is not None:
            self.opened.beaten = scope.now
        begun = begin.done(answer)
        return begun if begun is not None else await self.opened.transactions.read(self.tenant, begin.read)

    async def journal(
        self, turn: OpenTurn, staged: Staged, usage: Usage
    ) -> tuple[bytes | None, JsonText | None, bool] | None:
        if not is_small(staged.events) or turn.budgeted or steers_among([one.envelope for one in staged.events]):
            return None
        journal = Journal(self._scope(), turn, staged, usage)
        answer = await self._say("steps of turn", turn.id, journal)
        done = journal.done(answer["steered"]) if isinstance(answer, Mapping) else answer
        if done is not None:
            self.opened.sealed.add(turn, staged)
        return done

    async def commit(
        self, turn: OpenTurn, staged: Staged, usage: Usage, *, settings: JsonText | None, cache: JsonText | None
    ) -> Committed | None:
        if turn.branch is not None or turn.budgeted or turn.staged + len(staged.events) > MOST_EVENTS:
            return None
        if (steps := self.opened.sealed.of(turn)) is None:
            steps = tuple(await self.opened.transactions.read(self.tenant, partial(_read_sealed, turn=turn.id)))
            if len(steps) != turn.staged:
                return None
        events = steps + staged.events
        if not is_small(events):
            return None
        commits = commit.prepare(self._scope(), turn, events, staged, usage, settings=settings, cache=cache)
        answer = await self._say("turn", turn.id, commits)
        done = commits.done(answer["segment"]) if isinstance(answer, Mapping) else answer
        self.opened.sealed.forget(self.opened.running - {turn.token})
        return done

    async def end(
        self, turn: OpenTurn, kind: Literal["failed", "cancelled"], error: TurnError | None, usage: Usage
    ) -> StoredTurn | None:
        if turn.branch is not None or turn.budgeted:
            return None
        ending = Ending(self._scope(), turn, kind, error, usage)
        answer = await self._say("turn", turn.id, ending)
        self.opened.sealed.forget(self.opened.running - {turn.token})
        return ending.done(answer) if isinstance(answer, Mapping) else answer

    def _scope(self) -> Scope:
        return self.opened.scope(self.tenant)

    async def _say(self, what: str, id: str, write: _Write[T], *, durable: bool = True) -> Mapping[str, Any] | T | None:
        """The row that a statement answers with; or what the write has come to, if that had to be found out. None:
        nothing is written.

        Cancelled while it waits for a connection, nothing is sent. Afterwards the cancellation waits for the outcome.
        """
        self.opened.check_writable()
        try:
            async with self.opened.connections.hot() as link:
                try:
                    return await self._see_through(link, what, id, write, durable=durable)
                finally:
                    if link.cancelled is not None:
                        raise link.cancelled
        except (psycopg.Error, OSError):  # there is no connection, and the shared operation says why
            return None

    async def _see_through(
        self, link: HotLink, what: str, id: str, write: _Write[T], *, durable: bool
    ) -> Mapping[str, Any] | T | None:
        try:
            rows = await link.say(*write.statement, within=self.opened.settings.commit_within)
        except Unconfirmed as unknown:
            return await finished(partial(self._find_out, link, what, id, write, unknown.cause, durable=durable))
        except (psycopg.Error, OSError) as error:
            if not is_lost(error):
                return None
            return await finished(partial(self._find_out, link, what, id, write, error, durable=durable))
        if not rows:
            return None
        self.opened.transactions.committed()
        return rows[0]

    async def _find_out(
        self, link: HotLink, what: str, id: str, write: _Write[T], error: Exception, *, durable: bool
    ) -> T | None:
        """What a statement has come to that nobody has confirmed. None: it was not done, and never will be."""
        found: T | None = None

        def landed(db: Database, scope: Scope) -> bool:
            nonlocal found
            found = write.read(db, scope)
            return found is not None

        asked = Write(what, id, write.read, landed, durable=durable)
        is_there = await self.opened.transactions.find_out(self.tenant, asked, link.session, error)
        if not is_there and link.session is None:  # behind a pooler it may still be on its way
            raise OutcomeUnknown(self.opened.path, what, id, str(translate(error, self.opened.path)))
        if is_there:
            self.opened.transactions.committed()
        return found


def _read_sealed(db: Database, scope: Scope, turn: str) -> list[Sealed]:
    return read_sealed(db, turn)

"""The turns that this process holds, or may hold: taking them, writing to them, ending them, settling them.
Tests: tests/store/test_cancellation.py, test_failed_commit.py, test_several_processes.py."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio

from forkpoint.errors import CommitFailed, ForkpointError, OutcomeUnknown, TurnLost
from forkpoint.events import Usage
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import turns
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.view import View
from forkpoint.store.values import OpenTurn, Outcome, StoredTurn

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class HeldTurns:
    """A tenant's turns in this process. The account of them is in the open store."""

    view: View

    async def take(
        self,
        turn: str,
        token: bytes,
        *,
        begun: bool,
        operation: Callable[[Database, Scope], OpenTurn | StoredTurn],
        durable: bool = False,
        quickly: Callable[[], Awaitable[OpenTurn | None]] | None = None,
    ) -> OpenTurn | StoredTurn:
        """Begins a turn or takes it over. This must survive a dead process, not a power cut, so it is not synced unless
        it is ``durable``: then somebody is promised the turn.

        ``quickly`` does the same in another way, or nothing: see `QuickWrites`.
        """
        opened = self.view.opened
        await opened.enrol()

        def run(db: Database, scope: Scope) -> tuple[OpenTurn | StoredTurn, int | None]:
            beaten = opened.say_alive(db) if opened.is_silent() else opened.beaten
            return operation(db, scope), beaten

        try:
            held: OpenTurn | StoredTurn
            begun_quickly = None if quickly is None else await quickly()
            if begun_quickly is not None:
                held = begun_quickly
            else:
                held, opened.beaten = await self.view.write(
                    "turn", turn, run, landed=partial(turns.is_taken, id=turn, token=token), durable=durable
                )
        except anyio.get_cancelled_exc_class():
            await self._let_go(turn, token, begun=begun)
            raise
        except OutcomeUnknown:
            opened.doubt(token, begun=begun)
            opened.unsettled[self.view.tenant, turn] = (token, Usage())
            raise
        if isinstance(held, OpenTurn):
            opened.running.add(token)
        return held

    async def hold(
        self,
        what: str,
        id: str,
        operation: Callable[[Database, Scope], T],
        landed: Callable[[Database, Scope, T], bool],
    ) -> T:
        """Writes what belongs to this process as long as it lives. It must survive a dead process, not a power cut.

        ``landed`` says whether it was written that gave this result. If that is unknown, it may stay until the process
        ends, or the turn.
        """
        opened = self.view.opened
        await opened.enrol()

        results: list[T] = []

        def run(db: Database, scope: Scope) -> int | None:
            beaten = opened.say_alive(db) if opened.is_silent() else opened.beaten
            results.append(operation(db, scope))
            return beaten

        def has_landed(db: Database, scope: Scope) -> bool:
            return landed(db, scope, results[-1])

        opened.beaten = await self.view.write(what, id, run, landed=has_landed, durable=False)
        return results[-1]

    async def account(self, turn: OpenTurn, write: Awaitable[T], ends_with: Usage | None = None) -> T:
        """Does a write to a turn, and keeps account of whether this process still holds the turn.

        ``ends_with`` is what was spent last, if the write ends the turn; None if the turn goes on.
        """
        opened = self.view.opened
        try:
            done = await write
        except OutcomeUnknown:
            opened.unsettled[self.view.tenant, turn.id] = (turn.token, ends_with or Usage())
            raise
        except (TurnLost, CommitFailed):
            opened.running.discard(turn.token)
            raise
        if ends_with is not None:
            opened.running.discard(turn.token)
        return done

    async def end(
        self,
        turn: OpenTurn,
        operation: Callable[..., StoredTurn],
        usage: Usage,
        *,
        quickly: Callable[[], Awaitable[StoredTurn | None]] | None = None,
    ) -> StoredTurn:
        """Ends or parks a turn without a commit. ``quickly`` does the same in another way, or nothing."""

        async def write() -> StoredTurn:
            ended = None if quickly is None else await quickly()
            if ended is not None:
                return ended
            run = partial(operation, turn=turn, usage=usage)
            landed = partial(turns.is_not_held, id=turn.id, token=turn.token)
            return await self.view.write("turn", turn.id, run, landed=landed)

        return await self.account(turn, write(), usage)

    async def settle(self, turn: str) -> Outcome:
        """Finds out what became of a turn. If its outcome is unknown, the turn fails unless it has committed; an
        accepted turn is left open instead."""
        opened, key = self.view.opened, (self.view.tenant, turn)
        if key not in opened.unsettled:
            read = partial(turns.read, id=turn)
            return (await self.view.read_for_good("turn", turn, read, lambda found: found.has_result)).outcome
        token, usage = opened.unsettled[key]

        def run(db: Database, scope: Scope) -> Outcome:
            raise_barrier(db, scope)
            return turns.settle(db, scope, turn, token, usage)

        landed = partial(turns.is_not_held, id=turn, token=token)
        outcome = await self.view.write("turn", turn, run, landed=landed)
        opened.unsettled.pop(key, None)
        opened.running.discard(token)
        return outcome

    async def _let_go(self, turn: str, token: bytes, *, begun: bool) -> None:
        """Gives a turn back whose caller was cancelled while it took the turn, because nobody else would."""
        run = partial(turns.let_go, id=turn, token=token, begun=begun)
        with suppress(ForkpointError):  # then it is interrupted when this process ends, and can be discarded
            await self.view.finish("turn", turn, run)


def raise_barrier(db: Database, scope: Scope) -> None:
    """Writes a row: once it is on disk, all commits before it are there too, or will never be."""
    db.run("raise_barrier")

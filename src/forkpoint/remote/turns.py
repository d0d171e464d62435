"""Turns that a server runs: asked for here, heard here, to their ends.

A connection may be lost at any moment, and the turn goes on. So a turn is always begun with an idempotency key: sent
again, the same request finds the turn that runs, or how it ended. One that is resumed or decided on has no key: it is
looked at first, and asked for again only if it stands as it stood before. A side question is never asked twice.

Whoever cancels waits until the server has stopped the turn; nothing runs on unseen.
Tests: tests/remote/test_backend.py.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import anyio
import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.backend.allowance import NOTHING
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.options import Continuation, How, NewTurn
from forkpoint.backend.results import SteerReceipt, Turn, raise_for
from forkpoint.errors import (
    BadArgument,
    ConversationClosed,
    ForkpointError,
    NoSuchTurn,
    NotFound,
    ServerUnreachable,
    ShuttingDown,
    TooMany,
    TurnFailed,
)
from forkpoint.events import Condensation, UserMessage
from forkpoint.ids import new_id
from forkpoint.paging import Page
from forkpoint.remote.connection import Delivery, Lost, Patience, ServerConnection, ServerRequest, quoted
from forkpoint.remote.requests import (
    asked,
    created,
    decided,
    joining,
    page_of,
    page_size,
    path_of,
    resumption,
    streamed,
    update_of,
    without,
)
from forkpoint.remote.turn_log import TurnLog
from forkpoint.sse import Frame
from forkpoint.threads.shield import finished
from forkpoint.updates import Provisional, TurnJoined, TurnStarted
from forkpoint.wire.documents import CondensedDocument, InfoDocument, PageDocument, TurnDocument, condensed_of, turn_of

STOPPING = 10.0
"""Seconds that whoever cancels a turn waits at most for the server to stop it."""


class Snapshot(Struct, frozen=True):
    """How a turn stands, for one who came late: all that was told of it, deltas joined."""

    turn: str | None
    updates: tuple[Provisional, ...]
    conversation: str | None = None


class _FollowedTurn:
    """A turn that is followed here."""

    def __init__(self, conversation: str, heard: TurnLog) -> None:
        self.conversation = conversation
        self.heard = heard
        self.sending = Delivery()
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.begun: Turn | None = None  # a turn that nothing was heard of before it was cancelled


class RemoteTurns:
    """Asks a server for turns, and follows them."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._running: set[_FollowedTurn] = set()

    async def stop(self) -> None:
        """Cancels the turns that are followed here, and waits for their ends."""
        running = list(self._running)
        for one in running:
            one.scope.cancel()
        for one in running:
            await one.done.wait()

    async def run(self, id: str, agent: Agent | None, new: NewTurn, tell: Callback) -> Turn:
        """Runs a turn there. Of ``how`` only ``allow`` can be asked of a server: raises `BadArgument` for the rest."""
        _check(new.how, "run()", {"allow"})
        given, retry_of = new.given, new.retry_of
        body: dict[str, Any] = {"go_on": True} if new.go_on else asked(given) | created(new.draft)
        if new.supersede:
            body["supersede"] = True
        path = f"{path_of(id)}/turns"
        if retry_of is not None:
            path, body = f"{path}/{quoted(retry_of, 'turn')}/retry", {}  # the server has what it was given
        body |= without(new.how.allow, agent)
        request = streamed(path, body, key=new.key or new_id(), revision=new.if_revision)
        running = _FollowedTurn(id, TurnLog(tell))

        async def again() -> ServerRequest:
            return request

        async def stop() -> Turn | None:
            heard = running.heard
            if heard.joined:
                return None  # it is somebody else's, who is not disturbed
            if heard.turn is None:  # the server has it, and we do not know its id yet
                promptly = msgspec.structs.replace(request, headers={"prefer": "respond-async"})
                running.begun = begun = await self._connection.read(promptly, TurnDocument, turn_of)
                return await self._stopped(begun.conversation, begun.id)
            return await self._stopped(heard.conversation or id, heard.turn)

        return await self._followed(running, request, again, stop)

    async def resume(self, id: str, turn: str, agent: Agent | None, how: Continuation, tell: Callback) -> Turn:
        """Goes on with a turn there. Of ``how.how`` a server takes only ``allow`` and ``limits``, as in `run`."""
        _check(how.how, "resume()", {"allow", "limits"})
        verb, body, decision = "resume", resumption(how.rerun, how.how.limits), how.decision
        if decision is not None:
            verb, body = "approve" if decision.approved else "deny", decided(decision)
            if not decision.calls:  # to a server, none would be all
                raise NoSuchTurn(id, verb, "no call waits for an approval")
        body |= without(how.how.allow, agent)
        before = await self.read(id, turn)
        path = f"{path_of(id)}/turns/{quoted(turn, 'turn')}"
        request = streamed(f"{path}/{verb}", body)
        running = _FollowedTurn(id, TurnLog(tell, resumed=before))

        async def again() -> ServerRequest | Turn:
            now = await self.read(id, turn)
            if now.outcome == "running":
                return joining(path)
            return request if now == before else now

        async def stop() -> Turn | None:
            until = anyio.current_time() + STOPPING / 4
            while True:  # the server may still be about to take what was sent
                now = await self._stopped(id, turn)
                if now != before or anyio.current_time() > until:
                    return now
                await anyio.sleep(0.1)

        return await self._followed(running, request, again, stop)

    async def make_way(self, id: str, turn: str, agent: Agent | None, *, allow: frozenset[str] = NOTHING) -> None:
        """Only the server knows whether it can run the turn again, and gives it up itself then."""

    async def cancel(self, id: str, turn: str | None = None) -> Turn:
        if turn is None and (turn := await self._open_turn(id)) is None:
            raise NoSuchTurn(id, "cancel", "none is running")
        return await self._cancelled(id, turn)

    async def steer(
        self, id: str, message: UserMessage, *, turn: str | None = None, key: str | None = None
    ) -> SteerReceipt:
        found = turn or await self._open_turn(id)
        if found is None and key is None:
            raise NoSuchTurn(id, "steer", "none is open; send the message as the next turn")
        path = f"{path_of(id)}/turns/{quoted(found or new_id(), 'turn')}/steer"  # the server looks at the key first
        request = ServerRequest(method="POST", path=path, body={"message": message.parts}, key=key or new_id())
        try:
            return await self._connection.read(request, SteerReceipt)
        except NotFound as error:
            if found is None and error.what == "turn":
                raise NoSuchTurn(id, "steer", "none is open; send the message as the next turn") from None
            raise

    async def discard(self, id: str, turn: str) -> Turn:
        request = ServerRequest(method="POST", path=f"{path_of(id)}/turns/{quoted(turn, 'turn')}/discard")
        sending = Delivery()
        try:
            return self._connection.understood(await self._connection.call(request, sending), TurnDocument, turn_of)
        except (ServerUnreachable, TooMany, ShuttingDown):
            raise
        except ForkpointError:
            if sending.repeated and (now := await self.read(id, turn)).outcome == "cancelled":
                return now  # the first of our requests did it
            raise

    async def settle(self, id: str, turn: str) -> Turn:
        request = ServerRequest(method="POST", path=f"{path_of(id)}/turns/{quoted(turn, 'turn')}/settle")
        return await self._connection.read(request, TurnDocument, turn_of)

    async def read(self, id: str, turn: str) -> Turn:
        """A turn by its id."""
        request = ServerRequest(method="GET", path=f"{path_of(id)}/turns/{quoted(turn, 'turn')}")
        return await self._connection.read(request, TurnDocument, turn_of)

    async def condense(
        self,
        id: str,
        agent: Agent | None,
        *,
        focus: str | None = None,
        if_revision: int | None = None,
        allow: frozenset[str] = NOTHING,
    ) -> Condensation | None:
        path, body = f"{path_of(id)}/condense", without(allow, agent) | ({} if focus is None else {"focus": focus})
        request = ServerRequest(method="POST", path=path, body=body, revision=if_revision, read=None)
        return await self._connection.read(request, CondensedDocument, condensed_of, twice=False)

    async def list(
        self,
        id: str,
        *,
        cursor: str | None = None,
        limit: int = 50,
        newest_first: bool = False,
        committed: bool = False,
    ) -> Page[Turn]:
        query = [("limit", page_size(limit)), ("events", "true")]
        query += [("order", "newest")] if newest_first else []
        query += [("committed", "true")] if committed else []
        return await self._turns(id, query if cursor is None else [*query, ("cursor", cursor)])

    async def tries(self, id: str) -> tuple[Turn, ...]:
        return (await self._turns(id, [("tries", "true"), ("events", "true")])).items

    async def made_with(self, id: str, key: str) -> Turn | None:
        found = (await self._turns(id, [("key", key), ("events", "true")])).items
        return found[0] if found else None

    async def _turns(self, id: str, query: Sequence[tuple[str, str]]) -> Page[Turn]:
        request = ServerRequest(method="GET", path=f"{path_of(id)}/turns", query=query)
        return await self._connection.read(request, PageDocument[TurnDocument], page_of(turn_of))

    # Below the surface.

    async def _followed(
        self,
        running: _FollowedTurn,
        request: ServerRequest,
        again: Callable[[], Awaitable[ServerRequest | Turn]],
        stop: Callable[[], Awaitable[Turn | None]],
    ) -> Turn:
        """A turn to its end. ``again`` says how to go on after a lost connection, ``stop`` stops it."""
        stopped: Turn | None = None

        async def stopping() -> None:
            nonlocal stopped
            if running.sending.received:
                with anyio.move_on_after(STOPPING):
                    stopped = await stop()

        self._running.add(running)
        try:
            with running.scope:
                try:
                    return await self._heard(running, request, again)
                except anyio.get_cancelled_exc_class():
                    try:
                        await finished(lambda: _quietly(stopping))
                    finally:
                        if (begun := running.begun) is not None:  # what was asked for is there, and so are its messages
                            running.heard.hear(TurnStarted(begun.id, begun.conversation, begun.input))
                    raise
            if stopped is None:
                raise ConversationClosed(running.conversation)
            running.heard.end(stopped)
            return raise_for(stopped)
        finally:
            self._running.discard(running)
            running.done.set()

    async def _heard(
        self, running: _FollowedTurn, request: ServerRequest, again: Callable[[], Awaitable[ServerRequest | Turn]]
    ) -> Turn:
        heard, sending, patience = running.heard, running.sending, self._connection.patience()
        while True:
            try:
                async with self._connection.opened(request, sending) as response:
                    return await self._listen(response, heard, patience)
            except Lost as lost:
                if heard.turn is not None and isinstance(lost.error, ServerUnreachable):
                    lost.error = self._unreachable(f"{lost.error.detail}; turn {heard.turn} may still run there")
                await patience.again(lost)
                heard.lost |= sending.received
            if sending.received:
                next = await again()
                if isinstance(next, Turn):
                    heard.end(next)
                    return raise_for(next)
                request = next

    async def _listen(self, response: Any, heard: TurnLog, patience: Patience) -> Turn:
        """Hears a turn to its end. Raises what it ended with, or `Lost`."""

        def each(frame: Frame) -> Turn | Exception | None:
            patience.heard()
            if frame.event == "turn":
                turn = self._connection.understood(frame.data, TurnDocument, turn_of)
                self._ended(turn, heard)
                return turn
            if frame.event == "error":
                return self._error(frame, heard)
            if frame.event == "snapshot":
                self._join(self._connection.understood(frame.data, Snapshot), heard)
            elif (update := update_of(self._connection, frame)) is not None:
                heard.hear(update)
            return None

        outcome: Turn | Exception = await self._connection.hear(response, each)
        if isinstance(outcome, Exception):
            raise outcome
        return raise_for(outcome)

    def _join(self, snapshot: Snapshot, heard: TurnLog) -> None:
        """A turn that runs already: our own, after a lost connection, or one of an earlier request with this key."""
        started = snapshot.updates[0] if snapshot.updates else None
        conversation = started.conversation if isinstance(started, TurnStarted | TurnJoined) else snapshot.conversation
        if snapshot.turn is None or conversation is None:
            return  # it runs nowhere here: what comes next is how it ended
        if heard.turn is None and not heard.lost:
            heard.hear(TurnJoined(snapshot.turn, conversation))
        heard.catch_up(snapshot.updates)

    def _ended(self, turn: Turn, heard: TurnLog) -> None:
        if heard.turn is None and not heard.lost:
            heard.hear(TurnJoined(turn.id, turn.conversation))
        heard.end(turn)

    def _error(self, frame: Frame, heard: TurnLog) -> Exception:
        """What a turn ended with. A server that is stopping is not an end: the turn is asked for again."""
        error = self._connection.told(frame.data)
        if isinstance(error, TooMany | ShuttingDown):
            return Lost(error, after=float(error.retry_after))
        if isinstance(error, TurnFailed) and isinstance(error.turn, Turn):
            self._ended(error.turn, heard)
        return error

    async def _open_turn(self, id: str) -> str | None:
        """The turn that is followed here, or that the server says is open."""
        for running in self._running:
            heard = running.heard
            if heard.turn is not None and id in {running.conversation, heard.conversation} and not heard.joined:
                return heard.turn
        return (await self._connection.read(ServerRequest(method="GET", path=path_of(id)), InfoDocument)).open_turn

    async def _stopped(self, id: str, turn: str) -> Turn:
        """A turn after somebody has stopped it, or as it stands if there was nothing to stop."""
        try:
            return await self._cancelled(id, turn)
        except ForkpointError:
            return await self.read(id, turn)

    async def _cancelled(self, id: str, turn: str) -> Turn:
        request = ServerRequest(method="POST", path=f"{path_of(id)}/turns/{quoted(turn, 'turn')}/cancel")
        return await self._connection.read(request, TurnDocument, turn_of)

    def _unreachable(self, why: str) -> ServerUnreachable:
        return ServerUnreachable(self._connection.url, why)


def _check(how: How, call: str, taken: Collection[str]) -> None:
    """Raises `BadArgument` for what a server decides itself: it would have no effect."""
    for name in how.__struct_fields__:
        if name not in taken and getattr(how, name) != getattr(How(), name):
            why = "a server decides that itself; leave it out, or open the conversation in its own store"
            raise BadArgument(call, f"how.{name}", why)


async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
    """Does something whose errors would only hide that somebody cancels."""
    with suppress(ForkpointError):
        await work()

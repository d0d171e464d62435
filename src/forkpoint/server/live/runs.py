"""Turns that run apart from their requests: a client may go, and the turn goes on.

Each turn has a task of its own, and a feed that any number of requests listen to.
Tests: tests/server/test_turns.py, test_disconnects.py.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.results import SideAnswer, Turn
from forkpoint.errors import ForkpointError, ShuttingDown, StoreUnavailable, TooMany, TurnOpen
from forkpoint.server.http.metrics import Metrics
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.watch import Watching
from forkpoint.server.settings import ServerSettings
from forkpoint.updates import TurnStarted
from forkpoint.wire.problems import hides

_log = logging.getLogger("forkpoint.server")

Act: TypeAlias = Callable[[Callback], Awaitable[Turn | SideAnswer]]
"""Runs a turn, or asks a side question. The callback gets its updates."""

_beneath: ContextVar[dict[Feed, Callable[[], None]] | None] = ContextVar("sub-agents' turns", default=None)
"""Ends the feeds of sub-agents' turns that are still open when their parent's turn has ended."""


class Turns:
    """What runs in this server."""

    def __init__(self, settings: ServerSettings, watching: Watching, metrics: Metrics) -> None:
        self._settings = settings
        self._watching = watching
        self._metrics = metrics
        self._tasks: dict[asyncio.Task[None], Feed | None] = {}  # all that runs; None for a task that stops a turn
        self._feeds: dict[tuple[str, str], Feed] = {}  # by tenant and conversation: one turn at a time
        self._count: Counter[str] = Counter()
        self.draining = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, and no feed is left."""
        return not self._tasks and not self._feeds and not self._count.total()

    def feed(self, tenant: str, conversation: str) -> Feed | None:
        """The feed of the turn that runs here in a conversation, or None."""
        return self._feeds.get((tenant, conversation))

    async def start(self, tenant: str, act: Act, *, is_turn: bool = True) -> tuple[Feed, bool]:
        """Starts a turn or a side question. Waits until a turn has begun, and raises what kept it from beginning.

        Also returns whether the feed is that of an earlier turn with the same key. A side question may be silent for
        minutes, and its client gets heartbeats meanwhile.
        """
        self._check(tenant)
        self._count[tenant] += 1  # at once: others may ask before its task has run at all
        feed = Feed(lambda: self._watching.mailboxes(tenant, feed.conversation))
        task = self._do(self._run(tenant, feed, act), feed)
        task.add_done_callback(lambda _: self._end(tenant, feed))  # also if it was stopped before it ran at all
        if is_turn:
            await feed.begun.wait()
        if feed.joined is not None and feed.conversation is not None:
            other = self.feed(tenant, feed.conversation)
            return (other if other is not None and other.turn == feed.joined else feed), True
        if feed.turn is None and feed.error is not None:
            raise feed.error
        return feed, False

    def beside(self, tenant: str, conversation: str) -> Callback:
        """A callback for one turn that a sub-agent runs inside its parent's turn. It tells the sub-agent's watchers.

        The metrics count the turn, but the limit on turns does not: its parent's turn counts there.
        """
        key, started = (tenant, conversation), time.perf_counter()
        feed = Feed(lambda: self._watching.mailboxes(tenant, conversation))
        beneath = _beneath.get()

        def tell(update: Update) -> None:
            if isinstance(update, Turn):
                end(update)
                _log.info("turn %s", update.outcome, extra={"fields": _told_of(update, time.perf_counter() - started)})
                return
            if isinstance(update, TurnStarted):
                self._feeds[key] = feed
                self._watching.begun(tenant, conversation)
            feed.tell(update)

        def end(turn: Turn | None) -> None:
            if beneath is not None:
                beneath.pop(feed, None)
            if self._feeds.get(key) is feed:
                del self._feeds[key]
            if not feed.ended.is_set():
                feed.end(turn, None if turn is not None else ShuttingDown())
            counting.__exit__(None, None, None)

        counting = self._metrics.turn(tell)
        if beneath is not None:
            beneath[feed] = partial(end, None)
        return counting.__enter__()

    def abandon(self, tenant: str, feed: Feed, cancel: Callable[[str, str], Awaitable[object]]) -> None:
        """Stops a turn or a side question whose clients have gone. ``cancel`` cancels a turn of a conversation."""
        feed.is_left = True

        async def stop() -> None:
            # Cancel only if our feed is still registered: otherwise another request's turn is running.
            if feed.conversation is None or feed.turn is None:
                return
            if self.feed(tenant, feed.conversation) is feed:
                try:
                    await cancel(feed.conversation, feed.turn)
                except ForkpointError as error:
                    _log.info("%s", error)

        if feed.turn is not None:
            self._do(stop(), None)
        else:  # a side question
            self._drop([task for task, of in self._tasks.items() if of is feed])

    async def until_left(self, tenant: str, conversation: str) -> None:
        """Waits for the end of a turn that is being stopped since its client has gone. It is not to be joined."""
        here = self.feed(tenant, conversation)
        if here is not None and here.is_left:
            await here.ended.wait()

    async def drain(self, grace: float) -> None:
        """Lets nothing more begin, and waits up to ``grace`` seconds for all that runs.

        It does not cancel the turns that still run then. It stops side questions, and requests that wait for turns of
        other processes.
        """
        self.draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        self._drop([task for task, feed in self._tasks.items() if feed is not None and feed.turn is None])

    async def ended(self) -> None:
        """Waits until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _do(self, work: Coroutine[Any, Any, None], feed: Feed | None) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks[task] = feed
        task.add_done_callback(self._tasks.pop)
        return task

    def _drop(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()

    def _check(self, tenant: str) -> None:
        if self.draining:
            raise ShuttingDown()
        most, each = self._settings.max_turns, self._settings.max_turns_per_tenant
        if self._count.total() >= most:
            self._metrics.refused("turns")
            raise TooMany("turns", most)
        if each is not None and self._count[tenant] >= each:
            self._metrics.refused("turns")
            raise TooMany("turns of yours", each)

    async def _run(self, tenant: str, feed: Feed, act: Act) -> None:
        registered: tuple[str, str] | None = None
        beneath: dict[Feed, Callable[[], None]] = {}
        _beneath.set(beneath)  # for this task and those that it starts
        started = time.perf_counter()

        def tell(update: Update) -> None:
            nonlocal registered
            feed.tell(update)
            if registered is None and feed.turn is not None and feed.conversation is not None:
                registered = (tenant, feed.conversation)
                self._feeds[registered] = feed

        result: Turn | SideAnswer | None = None
        error: Exception | None = None
        try:
            with self._metrics.turn(tell) as counted:
                result = await act(counted)
            if isinstance(result, SideAnswer):
                self._metrics.used(result.usage)
        except Exception as raised:
            error = self._handed_over(feed, raised) or raised
            if hides(raised) and not StoreUnavailable.store_away.made(raised):
                _log.error("what was asked for failed", exc_info=getattr(raised, "cause", None) or raised)
        finally:
            for end in list(beneath.values()):
                end()
            if registered is not None and self._feeds.get(registered) is feed:
                del self._feeds[registered]
            self._end(tenant, feed, result, error)
            if (turn := feed.outcome) is not None and turn.id == feed.turn:
                _log.info("turn %s", turn.outcome, extra={"fields": _told_of(turn, time.perf_counter() - started)})

    def _handed_over(self, feed: Feed, error: Exception) -> ShuttingDown | None:
        """What clients hear if this server, which is stopping, has let go of its turn; None if it has not."""
        if not self.draining or not isinstance(error, TurnOpen) or error.turn != feed.turn:
            return None
        _log.info("turn handed over", extra={"fields": {"conversation": error.conversation, "turn": error.turn}})
        return ShuttingDown.turn_handed_over(error.turn)

    def _end(
        self, tenant: str, feed: Feed, result: Turn | SideAnswer | None = None, error: Exception | None = None
    ) -> None:
        """Ends a feed and makes room for another. Without a result or an error, the server has stopped the turn."""
        if not feed.ended.is_set():
            self._count[tenant] -= 1
            feed.end(result, ShuttingDown() if result is None and error is None else error)


def _told_of(turn: Turn, seconds: float) -> dict[str, object]:
    """The fields of a turn in the log: how it ended, and nothing of its messages."""
    error = {} if turn.error is None else {"code": turn.error.code}
    return {"conversation": turn.conversation, "turn": turn.id, "seconds": round(seconds, 6)} | error

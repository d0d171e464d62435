"""Orphans of a server: turns whose process is gone, which this server goes on with by itself.

A server looks for them when it starts and every few seconds, at times that are a bit random, so that several servers do
not look at once. It goes on with turns that were answered with 202 before they ended, since somebody waits for them, or
with all, as `ServerSettings.resume_orphans` says. The store decides which server gets a turn. A turn goes on from its
journal: what has a result is not run again, and what was started and has no result only if its tool is repeatable.
Tests: tests/server/test_orphans.py.
"""

import asyncio
import logging
import random
from functools import partial

from forkpoint.backend.results import Turn
from forkpoint.errors import Busy, ForkpointError, NotFound, StoreError, TooMany
from forkpoint.paging import every
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.metrics import Done, Metrics
from forkpoint.server.http.tenants import Tenants
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.runs import Turns
from forkpoint.server.settings import ServerSettings
from forkpoint.store import GIVEN_UP, Orphan, Store

_RANDOM = random.SystemRandom()

AT_ONCE = 32
"""How many orphans one server goes on with at once, at most: others may take the rest."""

_SOON = 0.5  # seconds, at most, before the first look
_REMEMBERED = 10_000  # orphans that this server cannot go on with: each is logged once

_log = logging.getLogger("forkpoint.server")


class OrphanLoop:
    """Finds orphans of all tenants and goes on with them, for as long as the server runs."""

    def __init__(
        self, settings: ServerSettings, store: Store, agents: Catalog, tenants: Tenants, turns: Turns, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._store = store
        self._agents = agents
        self._tenants = tenants
        self._turns = turns
        self._metrics = metrics
        self._going: set[Feed] = set()  # of the turns that go on here
        self._left: dict[str, None] = {}  # turns that cannot go on here, the newest last

    def expects(self, turn: Turn) -> bool:
        """Whether a turn that no process runs will go on by itself, as far as this server can tell."""
        if turn.outcome != "interrupted" or turn.error is not None or turn.id in self._left or self._turns.draining:
            return False
        match self._settings.resume_orphans:
            case "none":
                return False
            case "async":
                return turn.accepted
            case "all":
                return True

    async def run(self) -> None:
        """Looks for orphans until it is cancelled; not at all if the settings say so, or nobody else has the store."""
        if self._settings.resume_orphans == "none" or not self._store.capabilities.shared:
            return
        try:
            self._store.check_writable()
        except StoreError:
            return
        pause = self._settings.resume_orphans_every
        await asyncio.sleep(_RANDOM.uniform(0, min(_SOON, pause)))
        while not self._turns.draining:
            try:
                await self._look()
            except ForkpointError as error:
                _log.warning("turns whose process is gone could not be looked for: %s", error)
            await asyncio.sleep(_RANDOM.uniform(0.5, 1.5) * pause)

    async def _look(self) -> None:
        """Goes on with as many orphans as fit, in any order: servers that look at once begin at different ones."""
        wanted = partial(self._store.orphans, accepted=self._settings.resume_orphans == "async", every_tenant=True)
        found = [one async for one in every(wanted)]
        _RANDOM.shuffle(found)
        for orphan in found:
            self._going = {feed for feed in self._going if not feed.ended.is_set()}
            if len(self._going) >= AT_ONCE or self._turns.draining:
                break  # another server may take the rest, or this one when it looks again
            try:
                await self._go_on(orphan)
            except (Busy, NotFound, TooMany):
                pass  # another server has it, it is gone, or there is no room here
            except ForkpointError as error:
                self._leave(orphan, error)

    async def _go_on(self, orphan: Orphan) -> None:
        """Takes one orphan over, and returns when its turn runs. Raises what keeps it from going on here."""
        turns = self._tenants.backend(orphan.tenant).turns
        if orphan.is_cancel_asked:  # its process died before it saw that
            await turns.cancel(orphan.conversation, orphan.id)
            self._did("cancelled", orphan, "turn cancelled, as somebody had asked the process that died")
            return
        act = partial(turns.take_over, orphan.conversation, orphan.id, self._agents.bound)
        feed, _ = await self._turns.start(orphan.tenant, act)
        if isinstance(feed.result, Turn) and feed.result.error == GIVEN_UP:
            self._did("given_up", orphan, f"turn given up: {GIVEN_UP.message}", level=logging.ERROR)
        else:
            self._going.add(feed)
            self._did("taken_over", orphan, "turn taken over from a process that is gone")

    def _did(self, what: Done, orphan: Orphan, said: str, *, level: int = logging.INFO) -> None:
        self._metrics.orphan(what)
        _log.log(level, "%s", said, extra={"fields": _fields(orphan)})

    def _leave(self, orphan: Orphan, error: ForkpointError) -> None:
        """Says once why an orphan cannot go on here. It stays as it is, for another server or for whoever asks."""
        if orphan.id in self._left:
            return
        self._left[orphan.id] = None
        if len(self._left) > _REMEMBERED:
            del self._left[next(iter(self._left))]
        _log.warning("turn left interrupted: %s", error, extra={"fields": _fields(orphan)})


def _fields(orphan: Orphan) -> dict[str, object]:
    return {"conversation": orphan.conversation, "turn": orphan.id, "takeovers": orphan.takeovers}

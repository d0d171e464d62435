"""Witnesses: the file and the command to which a server hands anchors of its store.

They get an anchor at the start, at each interval if anything is new, and at the end. A witness that fails stops
nothing: it is logged and counted, and gets the next anchor, which covers what the missed one did.
Tests: tests/server/test_witnesses.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

from forkpoint.errors import BadArgument
from forkpoint.history.anchors import Anchor, read_anchors
from forkpoint.server.http.metrics import Metrics
from forkpoint.server.settings import ServerSettings
from forkpoint.store import Store
from forkpoint.system.durable_file import append_line
from forkpoint.system.process import run_command

PATIENCE = 60.0
"""Seconds that the command has for an anchor."""

LAST_PATIENCE = 10.0
"""Seconds that it has for the one at the end."""

_log = logging.getLogger("forkpoint.server")


class Witnesses:
    """Hands anchors of a store to its witnesses."""

    def __init__(self, settings: ServerSettings, store: Store, metrics: Metrics) -> None:
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._had: dict[str, Anchor] = {}  # what each witness has got
        self._busy = asyncio.Lock()

    @property
    def are_there(self) -> bool:
        return self._settings.anchor_log is not None or self._settings.anchor_command is not None

    async def watch(self) -> None:
        """Hands out anchors for good: now, and at each interval."""
        if not self.are_there:
            return
        await anyio.to_thread.run_sync(self._look_into_log)
        while True:
            await self.tell(PATIENCE)
            await asyncio.sleep(self._settings.anchor_interval)

    async def tell(self, patience: float = LAST_PATIENCE) -> None:
        """Gives each witness the newest anchor, unless it has that already. Nothing that goes wrong is raised."""
        if not self.are_there:
            return
        async with self._busy:
            try:
                anchor = await self._store.anchor(all_tenants=True)
            except Exception:
                _log.exception("the store gave no anchor; it is tried again in %g s", self._settings.anchor_interval)
                for witness in self._witnesses(patience):
                    self._metrics.unwitnessed(witness)
                return
            if not anchor.number:
                return  # nothing is recorded yet
            given = [await self._give(name, give, anchor) for name, give in self._witnesses(patience).items()]
            if all(given):
                self._metrics.anchored()

    def _witnesses(self, patience: float) -> dict[str, Callable[[Anchor], Awaitable[None]]]:
        log, command = self._settings.anchor_log, self._settings.anchor_command
        found: dict[str, Callable[[Anchor], Awaitable[None]]] = {}
        if log is not None:
            found["log"] = lambda anchor: _append(Path(log), anchor)
        if command is not None:
            found["command"] = lambda anchor: _run(command, anchor, patience)
        return found

    async def _give(self, name: str, give: Callable[[Anchor], Awaitable[None]], anchor: Anchor) -> bool:
        if self._had.get(name) == anchor:
            return True
        try:
            await give(anchor)
        except Exception as error:
            _log.error("the anchor %s did not get anchor %d: %s", name, anchor.number, error)
            self._metrics.unwitnessed(name)
            return False
        self._had[name] = anchor
        return True

    def _look_into_log(self) -> None:
        """Learns from its last line which anchor the log has."""
        if self._settings.anchor_log is not None:
            with suppress(OSError, ValueError, IndexError, BadArgument):
                last = Path(self._settings.anchor_log).read_text(encoding="utf-8").splitlines()[-1]
                (self._had["log"],) = read_anchors(last)


async def _append(log: Path, anchor: Anchor) -> None:
    await anyio.to_thread.run_sync(append_line, log, anchor.to_json().encode())


async def _run(command: str, anchor: Anchor, patience: float) -> None:
    ended = await run_command(command, input=anchor.to_json().encode() + b"\n", seconds=patience, limit=4096)
    if ended.exit_code != 0:
        said = ended.stderr.decode(errors="replace").strip()[:1000]
        how = (
            f"it took longer than {patience:g} s"
            if ended.exit_code is None
            else f"its exit status is {ended.exit_code}"
        )
        raise OSError(f"{how}; it said: {said}" if said else how)

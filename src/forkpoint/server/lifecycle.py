"""Running a server: listening, and stopping without losing anything.

The first signal (SIGTERM, Ctrl-C) makes it drain. It says at once that it is not ready, begins no new turn, and closes
each connection with its next answer, so that clients go elsewhere. Turns and other requests that run have the grace
time to finish. Then it hands over the turns that have not: they are left open with their journals, and another server
on the store can go on with them as soon as this one is gone. A second signal shortens the grace time to nothing; a
third one ends the process, whatever a tool still does.
Tests: tests/server/test_shutdown.py, test_rolling.py, tests/postgres/test_absence.py.
"""

import asyncio
import atexit
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from forkpoint.agent.condense.condenser import asked_by
from forkpoint.llm.call import load_modules
from forkpoint.server.absence import once_there
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.app import create_app, stop
from forkpoint.server.http.address import BACKLOG, listen
from forkpoint.server.http.keys import Keyring
from forkpoint.server.http.protocol import HttpProtocol, SocketProtocol
from forkpoint.server.services import Services
from forkpoint.server.settings import ServerSettings
from forkpoint.store import Retention, open_store
from forkpoint.workspace.retention import retention

THREADS = 1.0
"""Seconds that tools have to return once everything else has ended."""

_log = logging.getLogger("forkpoint.server")


def run(
    store: str,
    agents: Catalog,
    keyring: Keyring | None,
    settings: ServerSettings,
    *,
    host: str,
    port: int,
    told: Callable[[str], None],
) -> None:
    """Serves until a signal stops it. Calls ``told`` with the server's address when it listens."""

    _load(agents)

    async def serve() -> None:
        listening = listen(host, port)
        try:
            opened = await once_there(
                store, lambda: open_store(store, retention=retention(_kept(settings))), _log.warning
            )
            app = create_app(opened, agents, keyring=keyring, settings=settings)
            url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
            await Listening(app, lambda: told(url)).serve(sockets=[listening])
        finally:
            listening.close()

    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        runner.run(serve())
    _leave_threads_behind()


class Listening(uvicorn.Server):
    """A server that stops in the right order: turns first, then other requests, then connections."""

    def __init__(self, app: FastAPI, told: Callable[[], None] = lambda: None) -> None:
        self._told = told  # when it listens
        self._services: Services = app.state.services
        self._hurry: asyncio.Event | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws=SocketProtocol,
            ws_max_size=self._services.settings.max_body,
            ws_per_message_deflate=False,  # what is small on the wire could be large in memory
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=3,  # by then turns, streams and other requests have ended
            timeout_keep_alive=75,  # longer than proxies keep theirs
            lifespan="on",
            backlog=BACKLOG,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if not self.should_exit:
            self._told()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None:
            super().handle_exit(sig, frame)
        else:
            self._loop.call_soon_threadsafe(self._stop, sig)

    def _stop(self, sig: int) -> None:
        if self._stopping is None:
            grace = self._services.settings.grace
            _log.info("draining (%s): running turns have %g s to finish", signal.Signals(sig).name, grace)
            self._services.turns.draining = True  # at once, and not when the task runs
            self._services.responses.stop()
            self._hurry = asyncio.Event()
            self._stopping = asyncio.create_task(self._stop_gracefully(grace))
        elif self._hurry is not None and not self._hurry.is_set():
            self._hurry.set()
        else:
            _log.warning("stopped at once: turns that still ran are interrupted, and can be resumed")
            os._exit(1)

    async def _stop_gracefully(self, grace: float) -> None:
        assert self._hurry is not None
        until = time.monotonic() + grace
        drained = asyncio.create_task(self._services.turns.drain(grace))
        hurried = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait((drained, hurried), return_when=asyncio.FIRST_COMPLETED)
            await stop(self._services, grace=0)
            # An export, an import, a backup: those that run now. Others come and go while this waits, and are short.
            answered = asyncio.create_task(_all_of(self.server_state.tasks, until - time.monotonic()))
            await asyncio.wait((answered, hurried), return_when=asyncio.FIRST_COMPLETED)
            answered.cancel()
        finally:
            hurried.cancel()
            drained.cancel()
            self.should_exit = True


async def _all_of(tasks: Iterable[asyncio.Task[None]], seconds: float) -> None:
    """Waits for the tasks that run now, but not longer than this."""
    if running := list(tasks):
        await asyncio.wait(running, timeout=max(seconds, 0.0))


def _leave_threads_behind() -> None:
    """Ends the process although a tool still runs: its turn was cancelled, and nobody can stop a thread."""
    deadline = time.monotonic() + THREADS
    others = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if stuck := [thread for thread in others if thread.is_alive()]:
        _log.warning("%d tools did not stop with their turns, and are left behind", len(stuck))
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _kept(settings: ServerSettings) -> Retention:
    return Retention(
        drafts=settings.keep_drafts,
        keys=settings.keep_keys,
        tries=settings.keep_tries,
        responses=settings.keep_responses,
        lease=settings.lease,
    )


def _load(agents: Catalog) -> None:
    """Loads what first turns would load: that takes a second or two, in which nothing else would go on."""
    found = [agents.named(name) for name in agents.names()]
    asked = [asked_by(agent.condenser, agent.llm)[0] for agent in found if agent.condenser is not None]
    for llm in (*(agent.llm for agent in found), *asked):
        load_modules(llm)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one; None is Python's own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop

"""Real servers on loopback ports: in a thread of this process, where scripts can be registered, or in their own."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2

from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.app import create_app
from forkpoint.server.http.address import listen
from forkpoint.server.http.keys import Keyring
from forkpoint.server.lifecycle import Listening
from forkpoint.server.services import Services
from forkpoint.server.settings import ServerSettings
from forkpoint.store.address import open_store


class Served:
    """A server that runs in a thread of this process."""

    def __init__(
        self,
        store: str = "memory:",
        agents: Catalog | None = None,
        *,
        keyring: Keyring | None = None,
        settings: ServerSettings = ServerSettings(),
    ) -> None:
        self._store = store
        self._agents = agents or Catalog.of_model("scripted/echo", allow_models=["scripted/*"])
        self._keyring = keyring
        self._settings = settings
        self._socket = listen("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._failed: BaseException | None = None
        self.services: Services
        self.loop: asyncio.AbstractEventLoop
        self._server: Listening

    def start(self) -> "Served":
        self._thread.start()
        assert self._listens.wait(30), "the server did not start"
        if self._failed is not None:
            raise self._failed
        return self

    def stop(self) -> None:
        """Stops it as SIGTERM would."""
        if self._thread.is_alive():
            self._server.handle_exit(signal.SIGTERM, None)
            self._thread.join(60)
            assert not self._thread.is_alive(), "the server did not stop"

    def client(self, key: str | None = None, **options: Any) -> httpx2.Client:
        """A plain HTTP client of it."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30, **options)

    def _run(self) -> None:
        async def serve() -> None:
            app = create_app(
                await open_store(self._store), self._agents, keyring=self._keyring, settings=self._settings
            )
            self.loop = asyncio.get_running_loop()
            self.services = app.state.services
            self._server = Listening(app, self._listens.set)
            await self._server.serve(sockets=[self._socket])

        try:
            asyncio.run(serve())
        except BaseException as error:
            self._failed = error
            self._listens.set()
        finally:
            self._socket.close()


@contextmanager
def served(store: str = "memory:", agents: Catalog | None = None, **options: Any) -> Iterator[Served]:
    """A server in a thread, stopped at the end."""
    server = Served(store, agents, **options).start()
    try:
        yield server
    finally:
        server.stop()


class ServerProcess:
    """``forkpoint serve`` as its users have it: a process of its own, that can be killed."""

    def __init__(
        self, *options: str, folder: Path, store: str = "sqlite:///server.db", env: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "forkpoint", "serve", "--port", "0", "--json", "--store", store, *options]
        self.log = folder / f"server-{os.urandom(4).hex()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        said = b""
        while not said.rstrip().endswith(b"}"):
            line = self.process.stdout.readline()
            assert line, f"the server did not start:\n{self.log.read_text()}"
            said += line
        self.url: str = json.loads(said)["url"]

    def until_logged(self, line: str) -> None:
        """Waits until its log has a line with these words."""
        deadline = time.monotonic() + 20
        while line not in self.log.read_text():
            assert time.monotonic() < deadline, f"the server never said: {line}"
            time.sleep(0.005)

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """As an operator would. Gives its exit status."""
        self.process.terminate()
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

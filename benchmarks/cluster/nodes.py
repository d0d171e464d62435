"""The nodes: processes of ``forkpoint serve`` on one store, started again when they end, as a service manager does."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cluster.ledger import Ledger

ROOT = Path(__file__).parents[2]
_PAUSE = 0.5  # before a node that ended by itself is started again

_FILE = """\
[server]
log_format = "json"
grace = 10
metrics = "public"
{settings}

[agents.worker]
agent = "benchmarks.cluster.worker:WORKER"
"""


class Node:
    """One node. It may be down for a while because somebody killed it; otherwise it should run."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        folder: Path,
        *,
        store: str,
        env: Mapping[str, str],
        options: Sequence[str] = (),
        inside: Sequence[str] = (),
        settings: str = "",
    ) -> None:
        self.name = name
        self.url = f"http://{host}:{port}"
        self.log = folder / f"{name}.log"
        self.starts = 0
        self._said = folder / f"{name}.out"
        file = folder / "server.toml"
        file.write_text(_FILE.format(settings=settings), encoding="utf-8")
        where = ["--host", host, "--port", str(port), "--store", store, "--config", str(file)]
        self._command = [*inside, sys.executable, "-m", "forkpoint", "serve", "--json", *where, *options]
        self._env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "CLUSTER_MODEL_KEY": "any", **env}
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_listened(self) -> bool:
        """Whether this process of it has come as far as serving."""
        return b"url" in self._said.read_bytes()

    @property
    def status(self) -> int | None:
        """The exit status, if it has ended."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as log, self._said.open("wb") as said:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=said, stderr=log, cwd=self._folder, env=self._env
            )

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Returns when it has ended; kills it if it does not."""
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise


class Nodes:
    """All nodes, and the service manager that keeps them up."""

    def __init__(self, nodes: Sequence[Node], ledger: Ledger) -> None:
        self.all = nodes
        self._ledger = ledger
        self._down: set[str] = set()  # names of those that somebody took down
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._manage, name="nodes", daemon=True)

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.all]

    def start(self) -> None:
        for node in self.all:
            node.start()
        self._thread.start()

    def take(self, node: Node) -> bool:
        """Whether the caller may do something to a node: until `give` nobody else does, and nobody starts it."""
        with self._lock:
            if node.name in self._down:
                return False
            self._down.add(node.name)
            return True

    def give(self, node: Node) -> None:
        """Lets the service manager care for it again."""
        with self._lock:
            self._down.discard(node.name)

    def stop(self) -> None:
        """Ends all nodes in order."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        for node in self.all:
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM)
        for node in self.all:
            try:
                node.wait(60)
            except subprocess.TimeoutExpired:
                self._ledger.found("stuck", f"{node.name} did not end within 60 s after SIGTERM")

    def _manage(self) -> None:
        while not self._ending.wait(_PAUSE):
            for node in self.all:
                with self._lock:
                    if node.name in self._down or node.is_running:
                        continue
                    if node.has_listened:
                        self._ledger.found("crashed", f"{node.name} ended by itself with status {node.status}")
                    else:
                        self._ledger.count("a node could not start, and was started again")
                    node.start()


def wait_ready(nodes: Nodes, seconds: float) -> list[str]:
    """The names of nodes that are not ready even then."""
    import httpx2

    until = time.monotonic() + seconds
    waiting = list(nodes.all)
    with httpx2.Client(timeout=5, trust_env=False) as http:
        while waiting and time.monotonic() < until:
            time.sleep(0.2)
            for node in list(waiting):
                try:
                    if http.get(f"{node.url}/ready").status_code == 200:
                        waiting.remove(node)
                except httpx2.TransportError:
                    continue
    return [node.name for node in waiting]

"""A process that has loaded Forkpoint and is forked for each program that a test runs: starting anew takes a second.

`Nursery.run` runs a program to its end. `install` puts ``forkpoint`` and ``python`` into a folder, for shells that
have it on their PATH: these connect to the nursery and hand over their arguments, folder, environment and files, and
the fork becomes the program. The process has no thread and no event loop of its own, which a fork would cut in half.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_LONGEST_ORDER = 1 << 20


class Nursery:
    """The process, started."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forkpoint-")
        self._address = str(Path(self._folder.name) / "nursery")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno())],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
        atexit.register(self.close)

    def run(
        self, program: Sequence[str], folder: Path, environment: Mapping[str, str] | None, files: Sequence[Path]
    ) -> int:
        """Runs ``forkpoint`` or ``python`` with these arguments. Standard input is the first of the files, and the
        others get what it prints. Gives its exit status."""
        opened = [os.open(files[0], os.O_RDONLY)]
        opened += [os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600) for file in files[1:]]
        order = {"program": program, "folder": str(folder), "environment": dict(environment or os.environ)}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._address)
            socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], opened)
            for file in opened:
                os.close(file)
            *_, status = connection.makefile().read().split()
        return int(status)

    def install(self, folder: Path) -> None:
        """Makes the two programs."""
        client = Path(__file__).with_name("nursery_client.py")
        for name in ("forkpoint", "python"):
            (file := folder / name).write_text(
                f'#!/bin/sh\nexec {sys.executable} -I -S {client} {self._address} {name} "$@"\n'
            )
            file.chmod(0o755)

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._folder.cleanup()


@cache
def nursery() -> Nursery:
    return Nursery()


class _Order(NamedTuple):
    """A program to become, with its three standard files."""

    program: list[str]
    folder: str
    environment: dict[str, str]
    files: list[int]


def _serve(listener: socket.socket) -> _Order | None:
    """Forks for each connection. Returns the order in a fork, and None if whoever started this has gone.

    A connection hears the number of its process at once, and the exit status at the end. If the connection is closed
    before, the process is asked to end.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, socket.socket | None] = {}
    while True:
        heard = [connection for connection in running.values() if connection]
        ready, _, _ = select.select([sys.stdin, listener, woken, *heard], [], [])
        if sys.stdin in ready:
            return None
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(running)
        for child, connection in running.items():
            if connection and connection in ready:  # nothing is ever sent: it was closed
                os.kill(child, signal.SIGTERM)
                connection.close()
                running[child] = None
        if listener in ready:
            connection, _ = listener.accept()
            order = _read(connection)
            if not (child := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, connection, *filter(None, running.values())):
                    other.close()
                os.close(woken)
                os.close(wake)
                return order
            for file in order.files:
                os.close(file)
            connection.send(b"%d\n" % child)
            running[child] = connection


def _read(connection: socket.socket) -> _Order:
    said, files, _, _ = socket.recv_fds(connection, _LONGEST_ORDER, 3)
    while not said.endswith(b"\n"):
        said += connection.recv(_LONGEST_ORDER)
    return _Order(**json.loads(said), files=files)


def _tell_ends(running: dict[int, socket.socket | None]) -> None:
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        if connection := running.pop(child):
            with connection, suppress(BrokenPipeError):
                connection.send(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(order: _Order) -> None:
    """What a fork does: all that it leaves to do at its end, Python does."""
    for number, file in enumerate(order.files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)  # line by line on a terminal
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    warnings.simplefilter("error")
    name, *arguments = order.program
    sys.path[0] = order.folder
    if name == "forkpoint":
        importlib.import_module("forkpoint.cli").main(arguments)
    else:
        _python(arguments)


def _python(arguments: list[str]) -> None:
    """What ``python -c CODE``, ``python -m MODULE`` and ``python FILE`` do."""
    match arguments:
        case ["-c", code, *rest]:
            sys.argv, sys.path[0] = ["-c", *rest], ""
            program = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), program.__dict__)
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [file, *rest]:
            sys.argv, sys.path[0] = [file, *rest], str(Path(file).resolve().parent)
            runpy.run_path(file, run_name="__main__")


def _load() -> None:
    shown = "anyio._backends._asyncio rich.table rich.text rich.tree typer._adapters"
    served = "fastapi httptools httpx2 jsonschema mcp prometheus_client uvicorn uvloop"
    sys.dont_write_bytecode = True  # a folder of a user's looks the same, whatever the environment of the tests says
    for name in f"{shown} {served} openai anthropic".split():  # not xllamacpp, which tests replace
        importlib.import_module(name)
    import forkpoint

    for found in pkgutil.walk_packages(forkpoint.__path__, "forkpoint."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    gc.freeze()  # else each fork copies all of it to free it at its end


def main() -> None:
    _load()
    if (order := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _become(order)


if __name__ == "__main__":
    main()

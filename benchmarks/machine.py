"""The machine that a run was on: enough to read the figures, nothing that names it."""

import os
import platform
import sqlite3
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from msgspec import Struct

_PEERS = (
    "langchain-openai",
    "langgraph",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "openai-agents",
)


class Machine(Struct, frozen=True):
    cores: int
    system: str
    architecture: str
    python: str
    sqlite: str
    fsync: float  # seconds, the median
    load: float | None  # of others, just before the run: how many programs wanted a core
    peers: tuple[tuple[str, str], ...]


def look(folder: Path) -> Machine:
    """What machine this is; its disk is the one that the folder is on."""
    return Machine(
        cores=os.cpu_count() or 1,
        system=platform.system(),
        architecture=platform.machine(),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        fsync=_fsync(folder / "fsync"),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        peers=tuple((name, _version(name)) for name in _PEERS),
    )


def _fsync(path: Path) -> float:
    """How long the disk takes to confirm one page that was appended."""
    seconds = []
    with path.open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(bytes(4096))
            start = time.perf_counter()
            os.fsync(file)
            seconds.append(time.perf_counter() - start)
    path.unlink()
    return median(seconds)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"

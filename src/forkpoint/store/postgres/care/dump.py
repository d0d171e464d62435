"""A backup of a database, by PostgreSQL's own program ``pg_dump``.

The dump is taken from one snapshot, and every digest of that snapshot is checked before the file gets its name.
Tests: tests/postgres/test_dump.py.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
from msgspec.structs import replace
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from forkpoint.errors import CopyRefused, StoreDamaged
from forkpoint.store.copy_file import new_copy, put_in_place
from forkpoint.store.postgres.address import PostgresAddress, without_password
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.seals import sealing
from forkpoint.store.tables.verification import verify
from forkpoint.store.values import Backup, CopyProgress, CopyStep
from forkpoint.system.durable_file import sync

if TYPE_CHECKING:
    from forkpoint.store.postgres.view import PostgresView

_SHOWN = 3  # flaws that an error names
_LOOK = 0.2  # seconds between two looks at how far a program has come


async def back_up(
    view: "PostgresView", path: str | os.PathLike[str], *, force: bool = False, progress: CopyProgress | None = None
) -> Backup:
    """Dumps the whole database to a file, and checks what it has. ``progress`` is called from another thread.

    All that is recorded is sealed before, so that the dump has the seal which the backup's anchor names.
    """
    address = view.opened.connections.address
    if address.is_pooled and not address.listen:
        raise CopyRefused.behind_a_pooler(address.shown)
    try:
        target = await anyio.to_thread.run_sync(partial(_target, path, force=force))
        anchor = await sealing.anchor(view, all_tenants=True) if view.opened.is_open else None
        with new_copy(target) as copy:
            dump = partial(_dump, address=address, target=target, copy=copy, progress=progress)
            made = await view.read(dump)
            await anyio.to_thread.run_sync(partial(put_in_place, copy, target, force=force))
            return replace(made, taken=view.opened.clock(), anchor=anchor)
    except OSError as error:
        raise CopyRefused(os.fspath(path), error.strerror or str(error)) from error


def _target(path: str | os.PathLike[str], *, force: bool) -> Path:
    """The file that the backup is to be. Refuses a name that a backup must not have."""
    target = Path(os.path.abspath(path))
    if not target.parent.is_dir():
        raise CopyRefused(str(target), f"there is no folder {str(target.parent)!r}; make it first")
    if target.is_dir():
        raise CopyRefused(str(target), "it is a folder")
    if os.path.lexists(target) and not force:
        raise CopyRefused.file_exists(str(target))
    return target


def _dump(
    db: Database, scope: Scope, address: PostgresAddress, target: Path, copy: Path, progress: CopyProgress | None
) -> Backup:
    """Runs within the transaction whose snapshot is dumped."""
    opened = db.run("export_snapshot").fetchone()
    where, environment = place_of(address)
    command = ["--format=custom", f"--file={copy}", f"--snapshot={opened['snapshot']}", f"--dbname={where}"]
    said = f"pg_dump --format=custom --file={target} --dbname={without_password(address.dsn)}"
    program = find_program("pg_dump", opened["version"], str(target), said)

    def tell(stage: CopyStep) -> None:
        if progress is not None:
            progress(stage)

    run_program(
        [program, *command], environment, str(target), lambda: tell(CopyStep("copying", _size(copy), opened["size"]))
    )
    sync(copy)
    size = _size(copy)
    tell(CopyStep("checking", 0, size))
    conversations, events = check_every_tenant(db, scope)
    tell(CopyStep("checking", size, size))
    return Backup(str(target), size, conversations, events, opened["format"], scope.now)


def check_every_tenant(db: Database, scope: Scope) -> tuple[int, int]:
    """Checks every digest of all tenants, and returns how many conversations and events there are."""
    conversations = events = 0
    flaws: list[str] = []
    for row in db.run("all_tenants").fetchall():
        found = verify(db.within(row["tenant"]), replace(scope, tenant=row["tenant"]), None, None)
        conversations, events = conversations + found.conversations, events + found.events
        flaws += [f"{flaw.where}: {flaw.what}" for flaw in found.flaws]
    if flaws:
        more = "" if len(flaws) <= _SHOWN else f", and {len(flaws) - _SHOWN:,} more"
        raise StoreDamaged(db.path, f"a copy of it is not sound: {'; '.join(flaws[:_SHOWN])}{more}")
    return conversations, events


def find_program(name: str, version: int, path: str, said: str) -> str:
    """The path of a program of the server's version. Raises `CopyRefused`, with the command that a person can run."""
    found = shutil.which(name)
    if found is not None:
        ask = [found, "--version"]
        told = subprocess.run(ask, capture_output=True, text=True, check=False).stdout  # noqa: S603
        number = re.search(r"\b(\d+)(?:\.\d+|devel|beta|rc)", told)
        if number is not None and int(number[1]) == version:
            return found
    raise CopyRefused.needs_program(path, name, version, said)


def place_of(address: PostgresAddress) -> tuple[str, dict[str, str]]:
    """Where the database is, past a pooler; and the variables with the password, which no list of processes shows."""
    said = conninfo_to_dict(address.listen or address.dsn)
    password = said.pop("password", None)
    secret = {} if password is None else {"PGPASSWORD": str(password)}
    return make_conninfo("", **said), {**os.environ, **secret}


def run_program(command: Sequence[str], environment: dict[str, str], path: str, look: Callable[[], None]) -> None:
    """Runs a program to its end."""
    program = subprocess.Popen(  # noqa: S603 - no shell
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        while True:
            try:
                _, errors = program.communicate(timeout=_LOOK)
                break
            except subprocess.TimeoutExpired:
                look()
    except BaseException:
        program.kill()
        program.wait()
        raise
    if program.returncode != 0:
        lines = errors.strip().splitlines() or [f"exit code {program.returncode}"]
        raise CopyRefused(path, f"{os.path.basename(command[0])} failed: {lines[0]}")


def _size(file: Path) -> int:
    return file.stat().st_size

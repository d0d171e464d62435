"""A program that writes to a store while the kernel lets the log's syncs or writes fail, and then waits to be killed.

    python failing_disk.py FILE FAULT ACT IDS

FAULT says what fails from then on, through a seccomp filter, so that SQLite meets a real error of a system call:

- ``sync-once``: a sync of the log, through the connections that are open now. The store's next ones work.
- ``sync-always``: every sync.
- ``write-once``: a write to the log, for want of space, through the connections that are open now.
- ``sync-once-no-files``: as ``sync-once``, and no further file can be opened.

ACT is one call, IDS the ids that it needs (see `Ids`). The program says in lines of JSON how the call answered, and
what can be read afterwards; then it makes the call again, when told so by a line on standard input. It ends with
status 77 where the kernel has no such filters.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence

import anyio
from msgspec import Struct

from forkpoint.errors import ForkpointError, NotFound, OutcomeUnknown
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, NewFork, OpenTurn, TurnError
from forkpoint.testing.samples import exchange, says

UNSUPPORTED = 77


class Ids(Struct, frozen=True):
    """What the tests prepared: a conversation of two turns, one without, and ids to be used."""

    told: str
    first: str  # the first turn of `told`
    free: str
    turn: str  # to be begun in `free`
    new: str  # for what is made
    early: str  # a fork of `told` after its first turn


class Machine(Struct, frozen=True):
    """The numbers of system calls on a kind of machine."""

    audit: int
    seccomp: int
    sync: tuple[int, ...]  # fsync, fdatasync
    write: tuple[int, ...]  # write, pwrite64, pwritev


MACHINES = {
    "x86_64": Machine(0xC000003E, 317, (74, 75), (1, 18, 296)),
    "aarch64": Machine(0xC00000B7, 277, (82, 83), (64, 68, 70)),
}


def make_fail(calls: Sequence[int], error: int, files: Sequence[int] | None, machine: Machine) -> None:
    """From now on these system calls fail in all threads, on these files, or on all."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000 | error
    number, audit, first_argument = 0, 4, 16
    steps: list[tuple[int, int, int, int]] = [(load, 0, 0, audit), (jump_if_equal, 1, 0, machine.audit)]
    steps += [(give, 0, 0, allow), (load, 0, 0, number)]
    steps += [(jump_if_equal, len(calls) - place, 0, call) for place, call in enumerate(calls)]
    steps += [(give, 0, 0, allow)]
    if files is not None:
        steps += [(load, 0, 0, first_argument)]
        steps += [(jump_if_equal, len(files) - place, 0, file) for place, file in enumerate(files)]
        steps += [(give, 0, 0, allow)]
    steps += [(give, 0, 0, fail)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(steps), code)
    no_new_privileges, set_filter, all_threads = 38, 1, 1
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.syscall(
        machine.seccomp, set_filter, all_threads, ctypes.byref(program)
    ):
        print(f"seccomp is not to be had here: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        sys.exit(UNSUPPORTED)


def files_of(path: str) -> list[int]:
    """The open files of this process that are to a path."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.path.realpath(f"/proc/self/fd/{name}") == os.path.realpath(path):
                found.append(int(name))
        except OSError:
            continue
    return found


def break_the_disk(file: str, fault: str, machine: Machine) -> None:
    log = files_of(f"{file}-wal")
    if not log:
        raise RuntimeError("the store has not opened its log yet, so that nothing could fail")
    match fault:
        case "sync-once" | "sync-once-no-files":
            make_fail(machine.sync, errno.EIO, log, machine)
        case "sync-always":
            make_fail(machine.sync, errno.EIO, None, machine)
        case "write-once":
            make_fail(machine.write, errno.ENOSPC, log, machine)
        case _:
            raise ValueError(fault)
    if fault == "sync-once-no-files":
        most = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class Writer:
    """Makes the call, and says how it answered."""

    def __init__(self, store: SqliteStore, held: OpenTurn, act: str, ids: Ids) -> None:
        self._store = store
        self._held = held
        self._act = act
        self._ids = ids

    async def attempt(self) -> str:
        try:
            await self._call()
        except OutcomeUnknown:
            return "unknown"
        except ForkpointError as error:
            return f"refused: {error.code}"
        return "done"

    async def read(self) -> str:
        """What the store says of what the call makes, as a caller would ask after an unknown outcome."""
        try:
            if self._act in ("note", "journal", "commit", "fail"):
                turn = self._ids.new if self._act == "note" else self._ids.turn
                return (await self._store.turn(turn)).outcome
            if self._act == "charge":
                return "found" if await self._store.spent(self._ids.told) else "not found"
            id = self._ids.told if self._act == "delete" else self._ids.new
            await self._store.read(id)
        except NotFound:
            return "not found"
        except ForkpointError as error:
            return f"refused: {error.code}"
        return "found"

    async def settle(self) -> str:
        try:
            return await self._store.settle(self._ids.turn)
        except ForkpointError as error:
            return f"refused: {error.code}"

    async def recover(self) -> None:
        """A commit that failed for certain has ended its turn, which can be resumed."""
        if self._act == "commit" and (await self._store.turn(self._ids.turn)).outcome == "failed":
            self._held = await self._store.resume(self._ids.turn)

    async def _call(self) -> object:
        store, ids = self._store, self._ids
        branch = NewFork(id=ids.new, cache="{}")
        match self._act:
            case "create":
                return await store.create(NewConversation(id=ids.new), exchange("Hello."))
            case "fork":
                return await store.fork(ids.told, branch)
            case "rewind":
                return await store.rewind(ids.told, branch, at=ids.first)
            case "keep":
                return await store.keep(ids.told, ids.early, branch)
            case "note":
                return await store.note(ids.told, ids.new, exchange("Noted."))
            case "delete":
                return await store.delete(ids.told)
            case "charge":
                await store.charge(ids.told, ids.new, Usage(calls=1, input=3))
                return None
            case "journal":
                return await store.journal(self._held, [says("Look.")])
            case "commit":
                return await store.commit(self._held, exchange("Look."))
            case "fail":
                return await store.fail(self._held, TurnError("failed", "It was to fail."))
            case _:
                raise ValueError(self._act)


def say(**fields: str) -> None:
    print(json.dumps(fields), flush=True)


async def main(file: str, fault: str, act: str, ids: Ids, machine: Machine) -> None:
    store = await SqliteStore.open(file)
    held = await store.begin(ids.free, ids.turn)
    assert isinstance(held, OpenTurn)
    await store.describe(ids.told, title=new_id())  # so that the log is open for writing
    await store.read(ids.told)  # and a connection for reading too
    writer = Writer(store, held, act, ids)
    break_the_disk(file, fault, machine)
    answer = await writer.attempt()
    say(answer=answer, read=await writer.read(), settled=await writer.settle() if act == "commit" else "")
    sys.stdin.readline()
    await writer.recover()
    say(answer=await writer.attempt(), read=await writer.read(), settled="")
    signal.pause()


if __name__ == "__main__":
    known = MACHINES.get(platform.machine())
    if sys.platform != "linux" or known is None:
        print(f"no filters of system calls on {sys.platform} {platform.machine()}", file=sys.stderr)
        sys.exit(UNSUPPORTED)
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], Ids(**json.loads(sys.argv[4])), known)

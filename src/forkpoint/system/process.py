"""A command as a process, and the end of all that it started.

The command runs in a session and a process group of its own. **The promise: when `run` returns, nothing of the session
runs any more**, whether the command exited, its time was up, or somebody cancelled. The processes get TERM, and after a
while KILL, which none can ignore. A process that holds the output open makes nobody wait.

A process can leave the session (``setsid``). If the command exited, such a process goes on: that is how a command
leaves a server behind on purpose. After a timeout or a cancellation it is ended too, if there is a ``/proc`` to find it
in: by a variable in its environment, which it would have to hide. A process has no environment to be seen while it
becomes another program, so nobody is said to have ended before such a moment is over.

`run_command` is for a command that gets some bytes and prints an answer; `run` and `supervise` are for one that is
listened to while it runs.
"""

import math
import os
import secrets
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
from msgspec import Struct

GRACE = 1.0
"""Seconds between TERM and KILL for a command of `run_command`."""

MARK = "FORKPOINT_CALL"
"""The variable by which a command's processes are known."""

_PROC = os.path.exists("/proc/self/stat")
_CHUNK = 1 << 16
_GLANCE = 0.05  # seconds between two looks at whether to go on
_KILL_PATIENCE = 1.0  # seconds until a killed process must be gone; one that is stuck in the kernel is not
_LAST_WORDS = 0.2  # seconds for what is in the pipe when all has ended
_BEGINNING = 0.3  # seconds for a process that the command left behind to become what it shall be
_LOOKS = 2  # how often in a row nobody must be found: a process may be made while the others are looked at


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A command, and how it is run."""

    command: Sequence[str]
    folder: str
    env: Mapping[str, str]
    timeout: float
    heard: Callable[[bytes], None]  # gets what the command prints, in the thread that waits for it
    stdin: int = subprocess.DEVNULL
    errors: int = subprocess.STDOUT
    side: tuple[int, int, Callable[[bytes], None]] | None = None  # one more pipe: both its ends, and who listens
    inherit: tuple[int, ...] = ()  # open files that the command gets
    grace: float = 2.0  # seconds between TERM and KILL


class CannotStart(Exception):
    """A command cannot be started; ``error`` is what the system says."""

    def __init__(self, error: OSError | ValueError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    why: Literal["exited", "timeout", "cancelled"]
    code: int | None  # negative: the signal that ended it. None: it could not be ended
    swept: bool = False  # whether other processes were ended when the command had exited
    left: bool = False  # whether a process that was to be ended has left the session instead, and goes on
    stuck: bool = False  # whether something runs on that could not be ended


class Finished(Struct, frozen=True):
    """How a command of `run_command` ended, and the beginning of each of its outputs.

    ``exit_code`` is None if the command did not end in time; if it is negative, a signal ended the command. ``is_cut``
    says whether the command printed more than ``stdout``.
    """

    exit_code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    is_cut: bool = False


async def run_command(
    command: str | Sequence[str],
    *,
    input: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = math.inf,
    limit: int = 256 * 1024,
) -> Finished:
    """Gives a command its input, and returns what it printed. A single text is a command for the shell.

    ``env`` is its whole environment; None is ours. ``limit`` is how many bytes of each output are kept. Raises
    ``OSError`` or ``ValueError`` if the command cannot be started.
    """
    if os.name != "posix":
        raise OSError("commands are run on Linux and macOS alone")
    out, err = OutputHead(limit), OutputHead(limit)
    with tempfile.TemporaryFile(buffering=0) as stdin:  # no pipe: nothing waits for a command that does not read it
        stdin.write(input)
        stdin.seek(0)
        read, write = os.pipe()
        job = Job(
            command=["/bin/sh", "-c", command] if isinstance(command, str) else command,
            folder=os.curdir if cwd is None else str(cwd),
            env=os.environ if env is None else env,
            timeout=seconds,
            heard=out.add,
            stdin=stdin.fileno(),
            errors=write,
            side=(read, write, err.add),
            grace=GRACE,
        )
        try:
            ended = await run(job)
        except CannotStart as refused:
            raise refused.error from None
    code = ended.code if ended.why == "exited" else None
    return Finished(code, bytes(out.data), bytes(err.data), out.is_cut)


async def run(job: Job) -> Ended:
    """Runs a command to its end. A cancellation goes on upwards when all its processes are ended.

    Raises `CannotStart`.
    """
    stop = _Stop()

    def work() -> Ended | None:
        if not stop.begin():
            return None
        try:
            return supervise(job, stop.is_set)
        finally:
            stop.done.set()

    try:
        ended = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        assert ended is not None
        return ended
    finally:
        if stop.set():
            with anyio.CancelScope(shield=True):
                while not stop.done.is_set():  # noqa: ASYNC110 - a thread sets it
                    await anyio.sleep(0.01)
        elif job.side:  # the command has never begun
            os.close(job.side[0])
            os.close(job.side[1])


def supervise(job: Job, stopped: Callable[[], bool] = lambda: False) -> Ended:
    """Runs a command to its end, or until ``stopped`` returns True. It blocks its thread. Raises `CannotStart`."""
    token = secrets.token_hex(16)
    running = _RunningProcess(job, token)
    try:
        why = running.wait(stopped)
        return running.end(why)
    finally:
        running.close()


def signal_group(group: int, number: int) -> None:
    """Sends a signal to all processes of a group that are left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class OutputHead:
    """The beginning of what a command prints, up to a limit. ``is_cut`` says whether there was more."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.is_cut = False
        self._limit = limit

    def add(self, chunk: bytes) -> None:
        room = self._limit - len(self.data)
        self.is_cut = self.is_cut or len(chunk) > room
        self.data += chunk[:room]


class _Stop:
    """Whether somebody wants an end, and whether there is anything to wait for."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._begun = self._wanted = False

    def begin(self) -> bool:
        with self._lock:
            self._begun = not self._wanted
            return self._begun

    def set(self) -> bool:
        with self._lock:
            self._wanted = True
            return self._begun

    def is_set(self) -> bool:
        return self._wanted


class _RunningProcess:
    def __init__(self, job: Job, token: str) -> None:
        self._job, self._token = job, token.encode()
        self._deadline = time.monotonic() + job.timeout
        env = {**job.env, MARK: f"{job.env.get(MARK, '')}:{token}"}  # a command may run us again
        side = job.side
        try:
            self._process = subprocess.Popen(  # noqa: S603 - to run it is what this is for
                list(job.command),
                bufsize=0,
                stdin=job.stdin,
                stdout=subprocess.PIPE,
                stderr=job.errors,
                cwd=job.folder,
                env=env,
                start_new_session=True,
                pass_fds=(*job.inherit, *((side[1],) if side else ())),
            )
        except BaseException as error:
            if side:
                os.close(side[0])
            if isinstance(error, OSError | ValueError):
                raise CannotStart(error) from error
            raise
        finally:
            if side:
                os.close(side[1])
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._listen(self._process.stdout.fileno(), job.heard)
        if side:
            self._listen(side[0], side[2])

    def wait(self, stopped: Callable[[], bool]) -> Literal["exited", "timeout", "cancelled"]:
        while self._process.poll() is None:
            if stopped():
                return "cancelled"
            left = self._deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            self._hear(min(left, _GLANCE))
        return "exited"

    def end(self, why: Literal["exited", "timeout", "cancelled"]) -> Ended:
        marked = why != "exited"
        if not marked:
            self._let_begin()
        ended, stuck = dict[int, bytes](), False
        if self._alive(marked):
            ended, stuck = self._stop_all(marked)
        until = time.monotonic() + _LAST_WORDS
        while self._hear(0) and time.monotonic() < until:
            pass
        left = not stuck and any(_began(pid) == began for pid, began in ended.items())
        gone = any(_began(pid) != began for pid, began in ended.items())
        return Ended(why, self._process.poll(), not marked and gone, not marked and left, stuck)

    def _let_begin(self) -> None:
        """Waits for what the command left behind: ``setsid SERVER &`` may not have left the session yet."""
        if not _PROC:
            return
        until = time.monotonic() + _BEGINNING
        own = list(map(os.fsencode, self._job.command))
        while any(_is_beginning(pid, own) for pid in _in_session(self._process.pid)) and time.monotonic() < until:
            self._hear(0.005)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._unlisten(key.fd)
        self._selector.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _stop_all(self, marked: bool) -> tuple[dict[int, bytes], bool]:
        """Ends all processes. Returns those that it found, with the time when each began, and whether some are left."""
        found: dict[int, bytes] = {}
        for ask, patience in ((signal.SIGTERM, self._job.grace), (signal.SIGKILL, _KILL_PATIENCE)):
            until, pause, asked = time.monotonic() + patience, 0.005, False
            while alive := self._alive(marked):
                found |= {pid: _began(pid) for pid in alive if pid not in found}
                if not asked or ask == signal.SIGKILL:  # new ones may have come
                    self._signal(ask, alive)
                    asked = True
                if time.monotonic() > until:
                    break
                if not self._hear(pause):
                    time.sleep(pause)
                pause = min(2 * pause, _GLANCE)
            else:
                return found, False
        return found, True

    def _signal(self, number: signal.Signals, alive: Sequence[int]) -> None:
        signal_group(self._process.pid, number)
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)  # one that is stopped does not hear it

    def _alive(self, marked: bool) -> list[int]:
        """The processes that run: those of the command's session, and if ``marked``, those that left it."""
        own = self._process.pid
        if not _PROC:  # the group is all that we can ask about
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(own, 0)
                return [own]
            return []
        for _ in range(_LOOKS):
            running = [own] if self._process.poll() is None else []
            running += (pid for pid in _in_session(own) if pid != own)
            if marked:
                running += marked_processes(self._token)
            if running:
                return list(dict.fromkeys(running))
        return []

    def _listen(self, pipe: int, heard: Callable[[bytes], None]) -> None:
        os.set_blocking(pipe, False)
        self._selector.register(pipe, selectors.EVENT_READ, heard)

    def _unlisten(self, pipe: int) -> None:
        self._selector.unregister(pipe)
        if self._process.stdout is None or pipe != self._process.stdout.fileno():
            os.close(pipe)

    def _hear(self, timeout: float) -> bool:
        """Waits for output, and passes it on. False if there was none."""
        if not self._selector.get_map():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            return False
        said = False
        for key, _ in self._selector.select(timeout):
            with suppress(BlockingIOError):
                chunk = os.read(key.fd, _CHUNK)
                said = True
                if chunk:
                    key.data(chunk)
                else:
                    self._unlisten(key.fd)
        return said


def marked_processes(token: bytes) -> list[int]:
    """The processes that have a token in their environment. It waits for those that just become another program."""
    until = time.monotonic() + _KILL_PATIENCE
    while True:
        looks = {pid: _environment(pid) for pid in _pids()}
        if not any(one is None for one in looks.values()) or time.monotonic() > until:
            return [pid for pid, environment in looks.items() if environment is not None and token in environment]
        time.sleep(0.001)


def end_marked(token: bytes) -> bool:
    """Kills the processes that have a token in their environment. False if some are left. It blocks its thread."""
    until = time.monotonic() + _KILL_PATIENCE
    quiet = 0
    while _PROC and quiet < _LOOKS:
        if found := marked_processes(token):
            quiet = 0
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                return False
            time.sleep(0.005)
        else:
            quiet += 1
    return True


def _environment(pid: int) -> bytes | None:
    """The environment of a process: empty if it has none or is not ours, None if it is becoming another program."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if found := file.read():
                return found
        with open(f"/proc/{pid}/maps", "rb") as file:  # nothing, for a thread of the kernel and for a dead process
            has_memory = bool(file.read(1))
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it is gone, or somebody else's
        return b""
    start, end = fields[47:49] or (b"0", b"0")  # where the environment is; both are 0 until it is there
    begins = has_memory and fields[0] not in {b"Z", b"X"} and (start == b"0" or start != end)
    return None if begins else b""  # a process may have an empty environment for good


def _began(pid: int) -> bytes:
    """When a process began, which tells it from another that has its number later; empty if it does not run."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        if fields[0] not in {b"Z", b"X"}:
            return fields[19]
    return b""


def _is_beginning(pid: int, command: Sequence[bytes]) -> bool:
    """Whether a process is a copy of the command that has not become another program yet, or `setsid` itself.

    While a process becomes another program, the system shows no words of it.
    """
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")[:-1]
        return not words or words == list(command) or os.path.basename(words[0]) == b"setsid"
    return False


def _in_session(session: int) -> Iterator[int]:
    for pid in _pids():
        with suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, _, _, of = file.read().rpartition(b")")[2].split()[:4]
            if int(of) == session and state not in {b"Z", b"X"}:
                yield pid


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]

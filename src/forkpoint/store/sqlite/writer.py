"""The one writer: a thread that drains a queue of jobs in group commits.

A job is a function of its inputs that reads and writes through a connection. Jobs that wait together share one
transaction and one fsync, each in a savepoint of its own: one that fails, fails alone. Nobody waits for a group
to fill, and big jobs go alone. If an error throws the whole transaction away, the jobs run again, one by one.

**An error at COMMIT is not a failure, it is unknown**: the log may hold the commit although its fsync failed, and a
crash could bring it to light. So the writer takes a new connection and writes a barrier; once *that* is on disk,
what can be read is true for good, and each job is told whether it landed. Only when the barrier fails too does a
caller hear `OutcomeUnknown`.

A job that need not survive a power cut (`durable=False`) costs less than handing it to another thread, so it is run
where it is submitted, if nobody else is writing.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio

from forkpoint.errors import OutcomeUnknown, StoreClosed
from forkpoint.store.sqlite.connection import BUSY_TIMEOUT, SQL, Connect, Connection, code_of, translate
from forkpoint.store.sqlite.locks import FileLock
from forkpoint.store.sqlite.wakeup import Wakeup

T = TypeVar("T")

GROUP_JOBS = 64
GROUP_BYTES = 1 << 20
CHECKPOINT_BYTES = 4 << 20
_OVERHEAD_BYTES = 40 << 10  # about what one small transaction adds to the log


class Job(Generic[T]):
    """Something to write, and what came of it."""

    def __init__(
        self,
        what: str,
        id: str,
        run: Callable[[Connection], T],
        *,
        landed: Callable[[Connection], bool],
        durable: bool = True,
        size: int = 0,
    ) -> None:
        self.what = what
        self.id = id
        self.run = run
        self.landed = landed  # asked on a new connection after a failed COMMIT; may write
        self.durable = durable
        self.size = size
        self.taken = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self._wakeup: Wakeup | None = None

    def outcome(self) -> T:
        """What the job returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Writer:
    """Owns the connection that writes, and the thread that uses it."""

    def __init__(self, path: str, connect: Connect, lock: FileLock, beat: Callable[[], Job[Any] | None], every: float):
        self._path = path
        self._connect = connect
        self._gate = lock  # between processes
        self._beat = beat
        self._every = every
        self._db = connect(path)
        self._synced = True
        self._logged = 0  # bytes, roughly, since the last checkpoint
        self._last_beat = time.monotonic()
        self._jobs: deque[Job[Any]] = deque()
        self._arrived = threading.Condition()
        self._closing = False
        self.writing = threading.Lock()  # between this thread and jobs that run in place
        self._thread = threading.Thread(target=self._work, name=f"forkpoint writer {path}", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> Connection:
        """The connection that writes; to be read from only while `writing` is held."""
        return self._db

    async def submit(self, job: Job[T]) -> T:
        """Runs a job and returns its result when that is certain.

        Cancelled while the job is queued, it is withdrawn and has no effect. Once the writer has taken it, the
        cancellation waits until the outcome is in the database.
        """
        if not job.durable and self._run_in_place(job):
            await anyio.lowlevel.checkpoint()
            return job.outcome()
        wakeup = job._wakeup = Wakeup()
        with self._arrived:
            if self._closing:
                raise StoreClosed(self._path)
            self._jobs.append(job)
            self._arrived.notify()
        try:
            await wakeup.wait()
        except anyio.get_cancelled_exc_class():
            if not self._withdraw(job):
                await wakeup.wait_shielded()
            raise
        return job.outcome()

    def close(self) -> None:
        """Finishes what is queued, and closes the connection."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._thread.join()
        with self.writing:
            self._gate.acquire()  # closing the last connection checkpoints, and only a writer may
            try:
                self._db.close()
            finally:
                self._gate.release()
        self._gate.close()

    # On the writer's thread.

    def _work(self) -> None:
        while (group := self._next_group()) is not None:
            if group:
                with self.writing:
                    self._run_group(group)
                Wakeup.wake_all([job._wakeup for job in group if job._wakeup is not None])
            if self._logged > CHECKPOINT_BYTES:
                self._checkpoint()

    def _next_group(self) -> list[Job[Any]] | None:
        """The jobs that share the next transaction; empty for none yet; None when it is time to stop."""
        with self._arrived:
            while not self._jobs and not self._closing:
                if not self._arrived.wait(timeout=self._every):
                    break
            group: list[Job[Any]] = []
            size = 0
            while self._jobs and len(group) < GROUP_JOBS:
                if group and size + self._jobs[0].size > GROUP_BYTES:
                    break
                job = self._jobs.popleft()
                job.taken = True
                group.append(job)
                size += job.size
            if not group and self._closing:
                return None
        if time.monotonic() - self._last_beat >= self._every:
            self._last_beat = time.monotonic()
            if (beat := self._beat()) is not None:
                group.append(beat)
        return group

    def _withdraw(self, job: Job[Any]) -> bool:
        with self._arrived:
            if job.taken:
                return False
            self._jobs.remove(job)
            return True

    def _checkpoint(self) -> None:
        """Moves the log into the database file: here, so that no caller waits for it."""
        with self.writing, self._gate, suppress(sqlite3.Error):  # if not now, then next time: the log has it all
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._logged = 0

    # With `writing` held.

    def _run_in_place(self, job: Job[Any]) -> bool:
        """Runs a job on the caller's thread if nobody else is writing; False if it has to queue."""
        if self._jobs or self._closing or not self.writing.acquire(blocking=False):
            return False
        try:
            if not self._gate.try_acquire():
                return False
            try:
                self._db.execute("PRAGMA busy_timeout = 0")
                self._transact([job])
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT * 1000)}")
                self._gate.release()
            if isinstance(job.error, sqlite3.Error) and code_of(job.error) == sqlite3.SQLITE_BUSY:
                return False  # somebody writes without our lock: let the thread wait for it
            self._translate([job])
            return True
        finally:
            self.writing.release()

    def _run_group(self, group: Sequence[Job[Any]]) -> None:
        with self._gate:
            self._transact(group)
        self._translate(group)

    def _translate(self, group: Sequence[Job[Any]]) -> None:
        for job in group:
            if isinstance(job.error, sqlite3.Error):
                job.error = translate(job.error, self._path)

    def _transact(self, group: Sequence[Job[Any]]) -> None:
        """Runs jobs in one transaction; afterwards each has its result or its error."""
        for job in group:
            job.error = job.result = None
        try:
            self._begin(durable=any(job.durable for job in group))
        except sqlite3.Error as error:
            for job in group:
                job.error = error
            return
        if len(group) == 1:
            self._run_alone(group[0])
        elif not self._run_together(group):
            for job in group:
                self._transact([job])
            return
        if not self._db.in_transaction:
            return
        self._logged += _OVERHEAD_BYTES + sum(job.size for job in group)
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._commit_failed([job for job in group if job.error is None], error)

    def _run_alone(self, job: Job[Any]) -> None:
        try:
            job.result = job.run(self._db)
        except BaseException as error:
            job.error = error
            self._rollback()

    def _run_together(self, group: Sequence[Job[Any]]) -> bool:
        """Runs each job in a savepoint. False if the transaction broke, and with it all that was done."""
        for job in group:
            try:
                self._db.execute("SAVEPOINT job")
                try:
                    job.result = job.run(self._db)
                except BaseException as error:
                    job.error = error
                    self._db.execute("ROLLBACK TO job")
                self._db.execute("RELEASE job")
            except sqlite3.Error:
                self._rollback()
                return False
            if not self._db.in_transaction:
                return False
        return True

    def _begin(self, *, durable: bool) -> None:
        if durable != self._synced:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._synced = durable
        self._db.execute("BEGIN IMMEDIATE")

    def _rollback(self) -> None:
        if self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:
                self._replace_connection()

    # After a failed COMMIT.

    def _commit_failed(self, jobs: Sequence[Job[Any]], error: sqlite3.Error) -> None:
        if code_of(error) == sqlite3.SQLITE_FULL:
            # Only a write says "full", never an fsync; and the frame that commits is written last. So it is
            # certain that it is not in the log, and no space is needed to find out.
            self._rollback()
            for job in jobs:
                job.error = error
            return
        try:
            self._replace_connection()
            self._begin(durable=True)
            self._db.execute(SQL["raise_barrier"])
            landed = [job.landed(self._db) for job in jobs]
            self._db.execute("COMMIT")
        except sqlite3.Error as second:
            self._rollback()
            for job in jobs:
                job.error = OutcomeUnknown(self._path, job.what, job.id, f"{error}; then {second}")
        else:
            for job, is_there in zip(jobs, landed, strict=True):
                job.error = None if is_there else error

    def _replace_connection(self) -> None:
        old = self._db
        self._db = self._connect(self._path)  # before the old one is closed: never without a connection
        self._synced = True
        with suppress(sqlite3.Error):  # it broke; that is why it is replaced
            old.close()

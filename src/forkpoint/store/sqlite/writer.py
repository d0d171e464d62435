"""The one writer: a thread that drains a queue of jobs in group commits.

A job is a function of its inputs that reads and writes through a connection. Jobs that wait together share one
transaction and one fsync, and a job that fails, fails alone: a job that is refused before it wrote anything is left
out; if a job fails half-way, all jobs of the group run again, each in a transaction of its own. The writer does not
wait for a group to fill, and big jobs go alone.

**An error at COMMIT is not a failure, it is unknown**: the log may hold the commit although its fsync failed, and a
crash could bring it to light. So the writer takes a new connection and writes a barrier. Once *that* is on disk,
what can be read is true for good, and the writer finds out for each job whether it landed. Only if the barrier fails
too, the caller gets `OutcomeUnknown`.

Handing a job to another thread and back costs about as much as an fsync on a fast disk. So if no other job could share
the transaction, a job runs in the thread that submits it: a job that need not reach the disk (`durable=False`) always,
a durable job if its turn is the only open turn here and the disk has lately been quick.
Tests: tests/store/test_cancellation.py, test_failed_commit.py, test_failed_fsync.py, test_faults.py.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from forkpoint.errors import ForkpointError, OutcomeUnknown, StoreDamaged, StoreUnavailable
from forkpoint.store.sqlite.connection import MEMORY, PATIENCE, SQL, Connect, Database, code_of, translate, translated
from forkpoint.system.file_lock import FileLock
from forkpoint.threads.wakeup import Wakeup

T = TypeVar("T")

GROUP_JOBS = 64
GROUP_BYTES = 1 << 20
QUICK = 0.002
"""Seconds of fsync that a loop's thread may be asked to wait; beyond that, another thread does."""

CHECKPOINT_BYTES = 4 << 20
_OVERHEAD_BYTES = 40 << 10  # about what one small transaction adds to the log


class WriteJob(Generic[T]):
    """An operation that the writer is to run, and its result or error. ``what`` and ``id`` name it in errors."""

    def __init__(
        self,
        what: str,
        id: str,
        run: Callable[[Database], T],
        *,
        landed: Callable[[Database], bool],
        not_landed: Callable[[Exception], ForkpointError] | None = None,
        durable: bool = True,
        size: int = 0,
        alone: bool = False,
    ) -> None:
        self.what = what
        self.id = id
        self.run = run
        self.landed = landed  # asked on a new connection after a failed COMMIT; may write
        self.not_landed = not_landed  # the error for the caller if it did not; None: the error of the COMMIT
        self.durable = durable  # whether it must survive a power cut
        self.size = size  # bytes that it writes, roughly
        self.alone = alone  # whether it has a transaction to itself, on the writer's thread: nobody waits for it
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

    def __init__(
        self,
        path: str,
        connect: Connect,
        lock: FileLock,
        *,
        beat: Callable[[], WriteJob[Any] | None],
        every: float,
        alone: Callable[[], bool],
    ) -> None:
        self._path = path
        self._connect = connect
        self._gate = lock  # between processes
        self._beat = beat
        self._every = every
        self._alone = alone
        self._pace = 0.0  # seconds that durable transactions have taken lately
        self._db, self._quick = self._connections()
        self._broken = False  # the connections are to be replaced before they are used again
        self.in_doubt = False  # a COMMIT failed, and no barrier has reached the disk since: reads may not be final
        self.commits = 0  # groups that were committed, or may have been
        self._logged = 0  # bytes, roughly, since the last checkpoint
        self._last_beat = time.monotonic()
        self._jobs: SimpleQueue[WriteJob[Any] | None] = SimpleQueue()  # None: stop once all before it are done
        self._next: WriteJob[Any] | None = None  # was taken from the queue, and is to go alone
        self._deciding = threading.Lock()  # who takes a job, and whether one may still be queued
        self._closing = False
        self.writing = threading.Lock()  # between this thread and jobs that run in place
        self._thread = threading.Thread(target=self._work, name=f"forkpoint writer {path}", daemon=True)
        self._thread.start()

    def _connections(self) -> tuple[Database, Database]:
        """One whose commits reach the disk, and one whose commits survive a dead process but not a power cut."""
        with ExitStack() as opened:
            durable = quick = opened.enter_context(closing(self._connect(self._path)))
            if self._path != MEMORY:
                quick = opened.enter_context(closing(self._connect(self._path)))
                quick.execute("PRAGMA synchronous = NORMAL")
                for db in (durable, quick):
                    db.execute("PRAGMA busy_timeout = 0")  # the writer's thread waits itself; a loop's must not
            opened.pop_all()  # only a failure closes them
        return durable, quick

    @property
    def connection(self) -> Database:
        """The connection that writes; to be read from only while `writing` is held."""
        return self._db

    async def submit(self, job: WriteJob[T]) -> T:
        """Runs a job and returns its result when that is certain.

        Cancelled while the job is queued, it is withdrawn and has no effect. Once the writer has taken it, the
        cancellation waits until the outcome is in the database.
        """
        await checkpoint()
        if not job.alone and (not job.durable or self._alone_and_quick()) and self._run_in_place(job):
            return job.outcome()
        wakeup = self._enqueue(job)
        try:
            await wakeup.wait()
        except anyio.get_cancelled_exc_class():
            if not self._take(job):
                await wakeup.wait_shielded()
            raise
        return job.outcome()

    async def finish(self, job: WriteJob[T]) -> T:
        """Runs a job to its end although the caller is being cancelled; the cancellation then goes on."""
        await self._enqueue(job).wait_shielded()
        return job.outcome()

    def empty_log(self) -> bool:
        """Moves the log into the database file and cuts it to nothing. False if somebody still reads from it.

        Blocks its thread, and nobody writes meanwhile. There is little to move: checkpoints keep the log short.
        """
        if self._path == MEMORY:
            return True
        with self.writing, self._gate, translated(self._path):
            if self._broken:
                self._reconnect()
            busy: int = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if not busy:
            self._logged = 0
        return not busy

    def compact(self) -> None:
        """Writes the whole database anew, without a gap, so that it can give space back from then on.

        Blocks its thread, and nobody writes meanwhile, in no process. SQLite needs room for two more copies: a
        temporary file without a name, and the log.
        """
        if self._path == MEMORY:
            return
        with self.writing, self._gate, translated(self._path), closing(self._connect(self._path)) as db:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("VACUUM")

    def close(self) -> None:
        """Finishes what is queued, and closes the connection."""
        with self._deciding:
            self._closing = True
            self._jobs.put(None)
        self._thread.join()
        with self.writing:
            held = self._gate.acquire_within(PATIENCE)  # closing the last connection checkpoints, as only a writer may
            try:
                for db in {self._quick, self._db}:
                    with suppress(sqlite3.Error):
                        db.close()
            finally:
                if held:
                    self._gate.release()
        self._gate.close()

    def _enqueue(self, job: WriteJob[Any]) -> Wakeup:
        job._wakeup = Wakeup()
        with self._deciding:
            if self._closing:
                raise StoreUnavailable.store_closed(self._path)
            self._jobs.put(job)
        return job._wakeup

    # On the writer's thread.

    def _work(self) -> None:
        while (first := self._arrival()) is not None:
            with self.writing:
                group = self._run_next(first)
            Wakeup.wake_all([job._wakeup for job in group if job._wakeup is not None])
            if self._logged > CHECKPOINT_BYTES:
                self._checkpoint()

    def _run_next(self, first: WriteJob[Any]) -> list[WriteJob[Any]]:
        """Runs the next group of jobs, once it is this process's turn to write."""
        try:
            self._gate.acquire()  # a job that waits for another process can still be withdrawn
        except OSError as error:  # the system has no lock left, or the file system lost it
            group = self._group(first)
            for job in group:
                job.error = StoreUnavailable(self._path, f"its lock cannot be had ({error})")
            return group
        try:
            group = self._group(first)
            self._run_group(group)
            return group
        finally:
            self._gate.release()

    def _arrival(self) -> WriteJob[Any] | None:
        """The next job; after a while, a reason to look at the clock; None when it is time to stop."""
        if (job := self._next) is not None:
            self._next = None
            return job
        try:
            return self._jobs.get(timeout=self._every)
        except Empty:
            return _LOOK_UP

    def _group(self, first: WriteJob[Any]) -> list[WriteJob[Any]]:
        """The jobs that share the next transaction: those that have queued up, and the heartbeat if it is due."""
        group: list[WriteJob[Any]] = []
        size = 0
        job: WriteJob[Any] | None = first
        with suppress(Empty):
            while job is not None:
                if job.alone and group:
                    self._next = job
                    break
                if job is not _LOOK_UP and self._take(job):
                    group.append(job)
                    size += job.size
                if job.alone or len(group) == GROUP_JOBS or size > GROUP_BYTES:
                    break
                job = self._jobs.get_nowait()
        if job is None:
            self._jobs.put(None)  # nothing is queued after it
        if time.monotonic() - self._last_beat >= self._every:
            self._last_beat = time.monotonic()
            if (beat := self._beat()) is not None:
                group.append(beat)
        return group

    def _take(self, job: WriteJob[Any]) -> bool:
        """Decides between the writer, who would run a job, and its caller, who would withdraw it: once."""
        with self._deciding:
            taken, job.taken = job.taken, True
            return not taken

    def _checkpoint(self) -> None:
        """Moves the log into the database file: here, so that no caller waits for it."""
        # If not now, then next time: the log has it all.
        with self.writing, suppress(sqlite3.Error, OSError), self._gate:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._logged = 0

    # On the caller's thread.

    def _alone_and_quick(self) -> bool:
        return self._pace < QUICK and self._alone()

    def _run_in_place(self, job: WriteJob[Any]) -> bool:
        """Runs a job if nobody else is writing; False if it has to queue."""
        if not self._jobs.empty() or not self.writing.acquire(blocking=False):
            return False
        try:
            if self._closing or not self._gate.try_acquire():
                return False
            try:
                self._transact([job])
            except BaseException:
                self._broken = True
                raise
            finally:
                self._gate.release()
            if _is_busy(job):
                return False  # somebody writes without our lock: let the thread wait for it
            self._translate([job])
            return True
        finally:
            self.writing.release()
            if self._logged > CHECKPOINT_BYTES:
                self._jobs.put(_LOOK_UP)

    # On either, with `writing` held.

    def _run_group(self, group: Sequence[WriteJob[Any]]) -> None:
        try:
            self._transact(group)
            deadline = time.monotonic() + PATIENCE
            while group and all(map(_is_busy, group)) and time.monotonic() < deadline:
                time.sleep(0.01)
                self._transact(group)
        except Exception as error:  # nothing may end this thread: its callers would wait for good
            self._broken = True
            for job in group:
                job.error = job.error or error
        self._translate(group)

    def _translate(self, group: Sequence[WriteJob[Any]]) -> None:
        for job in group:
            if isinstance(job.error, sqlite3.Error):
                job.error = translate(job.error, self._path)
            elif isinstance(job.error, msgspec.DecodeError):
                job.error = StoreDamaged(self._path, f"a row cannot be read ({job.error})")

    def _transact(self, group: Sequence[WriteJob[Any]]) -> None:
        """Runs jobs in one transaction; afterwards each has its result or its error."""
        if not group:
            return
        for job in group:
            job.error = job.result = None
        durable = any(job.durable for job in group)
        started = time.perf_counter()
        try:
            if self._broken:
                self._reconnect()
            db = self._db if durable else self._quick
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            for job in group:
                job.error = error
            return
        if len(group) == 1:
            self._run_alone(db, group[0])
        elif not self._run_together(db, group):
            for job in group:
                self._transact([job])
            return
        if not db.in_transaction:
            return
        self._logged += _OVERHEAD_BYTES + sum(job.size for job in group)
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self._rollback(db)
            self._commit_failed([job for job in group if job.error is None], error)
        else:
            self.in_doubt = self.in_doubt and not durable
        self.commits += 1  # after it can be read: whoever sees the new number must not miss it
        if durable:
            self._pace += (time.perf_counter() - started - self._pace) / 8

    def _run_alone(self, db: Database, job: WriteJob[Any]) -> None:
        try:
            job.result = job.run(db)
        except BaseException as error:
            job.error = error
            self._rollback(db)

    def _run_together(self, db: Database, group: Sequence[WriteJob[Any]]) -> bool:
        """Runs jobs one after the other. False if one failed half-way, and all that was done is undone.

        Why no savepoint for each: it would add two statements to every job, and refusals, which are the common
        failure, write nothing that would have to be undone.
        """
        for job in group:
            written = db.total_changes
            try:
                job.result = job.run(db)
            except BaseException as error:
                job.error = error
                if db.total_changes != written or not db.in_transaction:
                    self._rollback(db)
                    return False
        return True

    def _rollback(self, db: Database) -> None:
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        self._broken = self._broken or db.in_transaction

    # After a failed COMMIT.

    def _commit_failed(self, jobs: Sequence[WriteJob[Any]], error: sqlite3.Error) -> None:
        if code_of(error) == sqlite3.SQLITE_FULL:
            # Only a write says "full", never an fsync; and the frame that commits is written last. So it is
            # certain that it is not in the log, and no space is needed to find out.
            for job in jobs:
                job.error = error
            return
        try:
            self._reconnect()
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(SQL["raise_barrier"])
            landed = [job.landed(self._db) for job in jobs]
            self._db.execute("COMMIT")
            self.in_doubt = False
            with suppress(sqlite3.Error):
                # After a failed fsync the system may believe that older parts of the log are on disk. They are
                # written once more, into the file itself.
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except Exception as second:  # whatever it was: what became of these jobs is not known
            self._rollback(self._db)
            self._broken = self.in_doubt = True
            for job in jobs:
                job.error = OutcomeUnknown(self._path, job.what, job.id, f"{error}; then {second}")
        else:
            for job, is_there in zip(jobs, landed, strict=True):
                if not is_there:
                    job.error = error if job.not_landed is None else job.not_landed(error)

    def _reconnect(self) -> None:
        """New connections in place of ones that broke. A store in memory has only the one it lives in."""
        if self._path == MEMORY:
            self._broken = False
            return
        old = {self._db, self._quick}
        self._db, self._quick = self._connections()  # before the old ones go: never without a connection
        self._broken = False
        for db in old:
            with suppress(sqlite3.Error):
                db.close()


_LOOK_UP: WriteJob[None] = WriteJob("nothing", "", lambda db: None, landed=lambda db: True)
"""Wakes the thread up, which then sees that a checkpoint or a heartbeat is due."""


def _is_busy(job: WriteJob[Any]) -> bool:
    return isinstance(job.error, sqlite3.Error) and code_of(job.error) == sqlite3.SQLITE_BUSY

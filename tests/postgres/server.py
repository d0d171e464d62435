"""A PostgreSQL server of the tests' own, with a folder and a process, and what can be done to it.

It is reached by its socket alone. Its files are where the tests keep theirs, in memory as a rule, where syncing costs
nothing: so a server is as durable as its settings say, which by default are PostgreSQL's own.
"""

import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from tests.postgres.programs import as_user, hand_over, plain_environment, programs, run_program
from tests.postgres.room import room

if TYPE_CHECKING:
    import psycopg

Stop = Literal["smart", "fast", "immediate"]
Settings = Mapping[str, str | int]

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_ALWAYS: Settings = {
    "shared_buffers": "32MB",
    "max_connections": 200,
    "max_wal_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # in its folder, so that a crash leaves none behind
}
_NUMBERS = count(1)


class Server:
    """Started by `Server.make`, stopped by `stop`, at the latest when this process has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.standbys: list[Server] = []
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(cls, **settings: str | int) -> Self:
        """Makes and starts a server without data. ``settings`` are those of ``postgresql.conf``."""
        server = cls(new_folder())
        how = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        run_program("initdb", "-D", server.folder, *how, "--no-instructions")
        server._write({**_ALWAYS, **settings})
        server.start()
        return server

    def start(self) -> None:
        """Starts it, and returns when it takes connections."""
        folder = str(self.folder)
        command = [str(programs() / "postgres"), "-D", folder, "-c", "listen_addresses=", "-k", folder]
        with (self.folder / "log").open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=plain_environment(), **as_user()
            )
        self._process = process
        while not self._is_ready():
            assert process.poll() is None, f"the server does not start:\n{self.log()}"
            time.sleep(0.01)

    def stop(self, how: Stop = "fast") -> None:
        """Stops it; ``immediate`` is a crash, after which it has to recover."""
        if self._process is not None:
            self._process.send_signal(_SIGNALS[how])
            self._process.wait()
            self._process = None

    def stop_all(self) -> None:
        """Stops it and its standbys at once, for good."""
        for server in (self, *self.standbys):
            server.stop("immediate")

    def restart(self, how: Stop = "fast") -> None:
        self.stop(how)
        self.start()

    def url(self, database: str = "postgres") -> str:
        """The address of a database, without any option."""
        return f"postgresql://postgres@{quote(str(self.folder), safe='')}/{database}"

    def execute(self, statement: str, *parameters: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Executes one statement on a connection of its own, and returns the rows."""
        import psycopg

        # No prepared statement, and no wait for a standby: a test that made commits hang has to get through.
        with psycopg.connect(self.url(database), autocommit=True, options="-c synchronous_commit=local") as db:
            cursor = db.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    def wait_for_sessions(self, what: str) -> None:
        """Returns when a session waits for what ``pg_stat_activity`` calls so."""
        those = "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s IN (wait_event, wait_event_type)"
        while self.execute(those, what) != [(True,)]:
            time.sleep(0.01)

    def wait_for_no_session(self, what: str) -> None:
        """Returns when no session waits for that any more."""
        while self.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = %s", what) != [(0,)]:
            time.sleep(0.01)

    def wait_for_end_of_wait(self, pid: int, what: str) -> None:
        """Returns when this session does not wait for that any more. Others may."""
        those = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = %s"
        while self.execute(those, pid, what) != [(0,)]:
            time.sleep(0.01)

    def lock(self, statement: str, database: str) -> "psycopg.Connection":
        """Executes a statement in a transaction that is open until the connection is closed."""
        import psycopg

        db = psycopg.connect(self.url(database))
        db.execute(statement.encode())
        return db

    def configure(self, **settings: str | int) -> None:
        """Changes settings that need no restart, and returns when sessions see them."""
        self._write(settings)
        assert self._process is not None, "the server is not started"
        self._process.send_signal(signal.SIGHUP)
        while not self._has(settings):
            time.sleep(0.01)

    def standby(self, name: str = "standby", **settings: str | int) -> "Server":
        """Makes and starts a standby of this server, which streams from it under a name."""
        copy = Server(new_folder())
        run_program("pg_basebackup", "-d", self.url(), "-D", copy.folder, "-c", "fast", "--no-sync", "-R")
        for own in ("log", ".s.PGSQL.5432.lock"):
            (copy.folder / own).unlink()
        address = f"user=postgres host={self.folder} application_name={name}"
        copy._write({"primary_conninfo": address, **settings})
        copy.start()
        self.standbys.append(copy)
        return copy

    def promote(self) -> None:
        """Makes a standby a server that writes, and returns when it does."""
        self.execute("SELECT pg_promote()")

    def is_standby(self) -> bool:
        return self.execute("SELECT pg_is_in_recovery()") == [(True,)]

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not started"
        return self._process.pid

    def _write(self, settings: Settings) -> None:
        """Of two lines about one setting PostgreSQL takes the later."""
        lines = [f"{name} = '{str(value).replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items()]
        with (self.folder / "postgresql.auto.conf").open("a") as file:  # read after postgresql.conf
            file.writelines(lines)

    def _has(self, settings: Settings) -> bool:
        """Whether a new session has these settings."""
        import psycopg

        with psycopg.connect(self.url()) as db:
            now = {name: db.execute("SELECT current_setting(%s)", [name]).fetchone() for name in settings}
        return all(now[name] == (str(value),) for name, value in settings.items())

    def _is_ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True


def new_folder() -> Path:
    """A folder for a server, owned by whom it runs as."""
    folder = Path(tempfile.mkdtemp(prefix=f"{next(_NUMBERS)}-", dir=room()))
    hand_over(folder)
    return folder

"""One PostgreSQL server of the cluster: durable, on TCP, in a folder of its own; and what can be done to it."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.postgres.programs import as_user, hand_over, plain_environment, programs
from tests.postgres.server import new_folder

DATABASE = "forkpoint"
PATIENCE = 60.0

_SETTINGS: Mapping[str, str] = {
    "shared_buffers": "64MB",
    "max_connections": "200",
    "max_wal_senders": "10",
    "wal_keep_size": "256MB",
    "max_wal_size": "512MB",
    "wal_log_hints": "on",
    "hot_standby": "on",
    "wal_retrieve_retry_interval": "200ms",
    "dynamic_shared_memory_type": "mmap",  # in its folder, so that a crash leaves none behind
    "log_line_prefix": "%m [%p] %a ",
}


class Postgres:
    """A server that can be started, stopped, killed, copied and promoted. Admission is by its socket."""

    def __init__(self, name: str, host: str, port: int, *, inside: Sequence[str] = (), **settings: str) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.folder = new_folder()
        self._inside = inside  # the command that runs another one in a network namespace
        self._settings = {**_SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # Making it.

    def make(self) -> None:
        """Makes a server without data, and starts it."""
        self._run(
            "initdb", "-D", self.folder, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"
        )
        self._write()
        self.start()
        self.execute(f"CREATE DATABASE {DATABASE}", database="postgres")

    def copy(self, primary: "Postgres") -> None:
        """Throws away what it has, and becomes a standby of another server."""
        assert not self.is_running
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        hand_over(self.folder)
        conninfo = (
            f"host={primary.host} port={primary.port} user=postgres application_name={self.name} connect_timeout=3"
        )
        self._run("pg_basebackup", "-d", conninfo, "-D", self.folder, "-c", "fast", "-R", inside=True)
        for own in ("log", "postmaster.pid", f".s.PGSQL.{primary.port}.lock"):
            (self.folder / own).unlink(missing_ok=True)
        self._write(primary_conninfo=conninfo)
        self.start()

    def follow(self, primary: "Postgres") -> None:
        """Lets a standby stream from another primary."""
        conninfo = (
            f"host={primary.host} port={primary.port} user=postgres application_name={self.name} connect_timeout=3"
        )
        self._write(primary_conninfo=conninfo)
        self.signal(signal.SIGHUP)

    def _write(self, **settings: str) -> None:
        lines = [f"{name} = '{value}'\n" for name, value in {**self._settings, **settings}.items()]
        with (self.folder / "postgresql.auto.conf").open("a") as file:  # of two lines about one setting the later holds
            file.writelines(lines)
        anywhere = "".join(
            f"{kind} trust\n" for kind in ("local all all", "host all all all", "host replication all all")
        )
        (self.folder / "pg_hba.conf").write_text(anywhere + "local replication all trust\n")

    # Running it.

    def start(self) -> None:
        """Starts it, and returns when it takes connections."""
        options = [f"listen_addresses={self.host}", f"port={self.port}", f"cluster_name={self.name}"]
        command = [*self._inside, str(programs() / "postgres"), "-D", str(self.folder), "-k", str(self.folder)]
        for option in options:
            command += ["-c", option]
        with (self.folder / "log").open("ab") as log:
            # A namespace is entered as root, so there the user is changed by the command itself.
            user = {} if self._inside else as_user()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=plain_environment(), **user
            )
        until = time.monotonic() + PATIENCE
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the database server {self.name} does not start:\n{self.log()[-2000:]}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stops it in order (SIGINT), or as a crash (SIGQUIT)."""
        if self._process is not None:
            self.signal(how)
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """Kills all its processes, as a power cut would."""
        if self._process is not None:
            children = self.children()
            for pid in (self.pid, *children):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            (self.folder / "postmaster.pid").unlink(missing_ok=True)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def promote(self) -> None:
        """Makes a standby a primary, and returns when it is."""
        self.execute("SELECT pg_promote(true, 60)", database="postgres")

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not started"
        return self._process.pid

    def children(self, title: str = "") -> list[int]:
        """Its processes whose title has a text in it."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.pid and title in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
        return found

    # Asking it.

    def execute(self, statement: str, *parameters: object, database: str = DATABASE) -> list[tuple[Any, ...]]:
        """Executes one statement by its socket, without waiting for a standby."""
        import psycopg

        options = "-c synchronous_commit=local -c statement_timeout=20s"
        address = f"host={self.folder} port={self.port} user=postgres dbname={database} connect_timeout=5"
        with psycopg.connect(address, autocommit=True, options=options, application_name="killer") as db:
            cursor = db.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    def is_ready(self) -> bool:
        import psycopg

        try:
            self.execute("SELECT 1", database="postgres")
        except psycopg.Error:
            return False
        return True

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def check(self) -> str:
        """What PostgreSQL finds wrong when it reads all of its tables, checksums included; nothing if all is well."""
        where = ["-h", str(self.folder), "-p", str(self.port), "-U", "postgres", "-d", DATABASE]
        command = [str(programs() / "pg_dump"), *where, "-f", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain_environment(), cwd="/")
        return "" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]

    def _run(self, name: str, *arguments: str | Path, inside: bool = False) -> None:
        prefix: Sequence[str] = self._inside if inside else ()
        user = {} if prefix else as_user()
        done = subprocess.run(
            [*prefix, str(programs() / name), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=plain_environment(),
            **user,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed:\n{done.stdout}{done.stderr}")

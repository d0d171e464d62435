"""PgBouncer in transaction mode, in front of a server of the tests.

It is set up as its own documentation begins: nothing is ignored and nothing is tracked that would make a program work
that keeps state in a session.
"""

import subprocess
import time
from pathlib import Path
from typing import Self
from urllib.parse import quote

from tests.postgres.programs import as_user, pgbouncer_program, plain_environment
from tests.postgres.server import Server, new_folder

MISSING = "PgBouncer is missing: apt-get install pgbouncer (as root)"

_SETTINGS = """
[databases]
* = host={server} user=postgres

[pgbouncer]
pool_mode = transaction
auth_type = any
listen_addr =
unix_socket_dir = {folder}
pidfile = {folder}/pgbouncer.pid
logfile = {folder}/log
max_client_conn = 1000
default_pool_size = 20
"""


class Pooler:
    """Started by `Pooler.make`, stopped by `stop`, at the latest when this process has ended."""

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        self.folder = folder
        self._process = process

    @classmethod
    def make(cls, server: Server) -> Self:
        program = pgbouncer_program()
        assert program is not None, MISSING
        folder = new_folder()
        settings = folder / "pgbouncer.ini"
        settings.write_text(_SETTINGS.format(server=server.folder, folder=folder))
        settings.chmod(0o644)
        process = subprocess.Popen(
            [program, "--quiet", settings], stdin=subprocess.DEVNULL, cwd="/", env=plain_environment(), **as_user()
        )
        while not (folder / ".s.PGSQL.6432").exists():
            assert process.poll() is None, f"PgBouncer does not start:\n{(folder / 'log').read_text()}"
            time.sleep(0.01)
        return cls(folder, process)

    def url(self, database: str) -> str:
        """The address of a database of the server behind it, without any option."""
        return f"postgresql://postgres@{quote(str(self.folder), safe='')}:6432/{database}"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

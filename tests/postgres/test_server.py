"""The servers of the tests: each test has a database of its own, and nothing is left of them."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.postgres.server import Server

ROOT = Path(__file__).parent.parent.parent

_MAKES_A_SERVER = """
from tests.postgres.server import Server
server = Server.make()
print(server.pid, server.folder.parent, flush=True)
input()
"""


@pytest.mark.parametrize("_", range(2))
def test_each_test_has_an_empty_database(postgres: str, _: int) -> None:
    with psycopg.connect(postgres) as db:
        assert db.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        db.execute("CREATE TABLE left_behind ()")


def test_a_database_is_reached_through_a_pooler_too(postgres: str, pgbouncer: str) -> None:
    with psycopg.connect(postgres) as db:
        db.execute("CREATE TABLE seen ()")
    with psycopg.connect(pgbouncer) as db:
        assert db.execute("SELECT * FROM seen").fetchall() == []


def test_the_pooler_lets_go_of_a_connection_after_each_transaction(pgbouncer: str) -> None:
    with psycopg.connect(pgbouncer, autocommit=True) as one, psycopg.connect(pgbouncer, autocommit=True) as other:
        pids = {db.execute("SELECT pg_backend_pid()").fetchone() for db in (one, other)}
    assert len(pids) == 1


def test_a_standby_that_is_promoted_has_what_was_committed(make_server: Callable[..., Server]) -> None:
    primary = make_server()
    standby = primary.standby("second", hot_standby="on")
    primary.configure(synchronous_standby_names="second", synchronous_commit="remote_apply")
    with psycopg.connect(primary.url()) as db:
        db.execute("CREATE TABLE committed ()")
    assert standby.is_standby()
    primary.stop("immediate")
    standby.promote()
    assert not standby.is_standby()
    assert standby.execute("SELECT * FROM committed") == []


def test_a_commit_hangs_without_the_standby_that_it_needs(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.configure(synchronous_standby_names="absent")
    with closing(psycopg.connect(server.url())) as db:
        db.execute("CREATE TABLE waited_for ()")
        db.pgconn.send_query(b"COMMIT")
        waits = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        while server.execute(waits, db.info.backend_pid) != [("SyncRep",)]:
            time.sleep(0.01)
        server.execute("SELECT pg_terminate_backend(%s)", db.info.backend_pid)
        while server.execute(waits, db.info.backend_pid):
            time.sleep(0.01)
    assert server.execute("SELECT * FROM waited_for") == [], "it is there, although nobody was told so"


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_process_that_ends_leaves_no_server_behind(by: signal.Signals | None) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _MAKES_A_SERVER], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as own:
        assert own.stdout is not None
        pid, folder = own.stdout.readline().split()
        assert Path("/proc", pid).exists() or sys.platform != "linux"
        if by is not None:
            own.send_signal(by)
        own.communicate("\n")
    while Path(folder).exists():
        time.sleep(0.01)
    assert is_gone(int(pid))


def is_gone(pid: int) -> bool:
    """Whether a process has ended; where nobody takes notice of the end of orphans, its number is still used."""
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

"""The second form: three PostgreSQL servers under Patroni with etcd, and HAProxy in front, from Debian's packages.

Patroni promotes, demotes and rewinds by itself; HAProxy sends connections to the server that Patroni calls primary,
and cuts those to any other. A plain kill of the leader would tell little, since on one machine its standbys have
everything at once: so replication is stalled before it.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.postgres.programs import as_user, plain_environment
from tests.postgres.server import new_folder

from benchmarks.cluster.killer import Kill
from benchmarks.cluster.postgres import DATABASE

INSTALL = "apt-get install -y --no-install-recommends patroni etcd-server postgresql-15 haproxy"
_PASSWORD = "cluster"
_PATIENCE = 90.0
_STRICT = 3  # servers: with two, commits would wait for as long as one is down


class Missing(Exception):
    """Programs that this form needs are not installed."""


class Member:
    """One PostgreSQL server with its agent."""

    def __init__(self, name: str, port: int, rest: int) -> None:
        self.name = name
        self.port = port
        self.rest = rest
        self.folder = new_folder()
        self.agent: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def postmaster(self) -> int | None:
        """The process id of its PostgreSQL server, if there is one."""
        try:
            return int((self.data / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return None

    def children(self, title: str = "") -> list[int]:
        """Processes of its PostgreSQL server whose title has a text in it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == self.postmaster and title in (entry / "cmdline").read_text():
                        found.append(int(entry.name))
        return found

    def ask(self, path: str) -> Any:
        """What its agent says; None if it says nothing."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest}/{path}", timeout=2) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError, ValueError):
            return None

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        import psycopg

        address = f"host=127.0.0.1 port={self.port} user=postgres password={_PASSWORD} dbname={database}"
        options = "-c synchronous_commit=local -c statement_timeout=20s"
        with psycopg.connect(address, autocommit=True, options=options, connect_timeout=5) as db:
            cursor = db.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []


class Patroni:
    """All of it: etcd, agents with their servers, HAProxy."""

    def __init__(self, ports: Sequence[int], logs: Path) -> None:
        _check_programs()
        self._logs = logs
        self._ports = list(ports)
        self._etcd_clients = [self._ports.pop() for _ in range(3)]
        self._etcd_peers = [self._ports.pop() for _ in range(3)]
        self._proxy = self._ports.pop()
        self.members = [Member(f"p{n}", self._ports.pop(), self._ports.pop()) for n in range(1, _STRICT + 1)]
        self._folder = new_folder()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.failovers = 0

    PORTS = 3 + 3 + 1 + 2 * _STRICT
    """How many ports it needs."""

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{_PASSWORD}@127.0.0.1:{self._proxy}/{DATABASE}?connect_timeout=3"

    def make(self) -> None:
        self._start_etcd()
        self._start_agent(self.members[0])
        self._wait("a first leader", lambda: self.leader() is not None)
        for member in self.members[1:]:
            self._start_agent(member)
        self._wait("a synchronous standby", self.is_whole)
        leader = self.leader()
        assert leader is not None
        leader.execute(f"CREATE DATABASE {DATABASE}")
        self._start_proxy()

    def close(self) -> None:
        for member in self.members:
            if member.agent is not None and member.agent.poll() is None:
                member.agent.terminate()
        for member in self.members:
            if member.agent is not None:
                with suppress(subprocess.TimeoutExpired):
                    member.agent.wait(20)
                member.agent.kill()
            self._kill_server(member)
        for process in self._processes:
            process.kill()
            process.wait()
        for member in self.members:
            for log in (member.data / "log").glob("*"):
                shutil.copy(log, self._logs / f"{member.name}-{log.name}")

    def leader(self) -> Member | None:
        """The member that its own agent calls the primary."""
        for member in self.members:
            if (said := member.ask("patroni")) and said.get("role") in {"master", "primary"}:
                return member
        return None

    def is_whole(self) -> bool:
        """Whether there is a leader, a synchronous standby, and all members run."""
        for member in self.members:
            if said := member.ask("cluster"):
                members = said["members"]
                roles = [one["role"] for one in members if one["state"] in {"running", "streaming"}]
                return len(roles) == _STRICT and "leader" in roles and "sync_standby" in roles
        return False

    def kills(self) -> Mapping[str, Kill]:
        return {
            "leader": Kill(2, self.kill_leader),
            "agent": Kill(1, self.kill_agent),
            "cancel": Kill(1, self.cancel_and_kill),
            "backends": Kill(1, self.end_backends),
        }

    def heal(self) -> None:
        self._wait("a whole cluster", self.is_whole)

    def check(self) -> str:
        leader = self.leader()
        if leader is None:
            return "there is no leader"
        leader.execute("CREATE EXTENSION IF NOT EXISTS amcheck", DATABASE)
        command = [_bin("pg_amcheck"), "-h", "127.0.0.1", "-p", str(leader.port), "-U", "postgres", DATABASE]
        env = {**plain_environment(), "PGPASSWORD": _PASSWORD}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        return "" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]

    def size(self) -> int | None:
        leader = self.leader()
        return None if leader is None else int(leader.execute(f"SELECT pg_database_size('{DATABASE}')")[0][0])

    # What is done to them.

    def kill_leader(self, chance: random.Random) -> str:
        """Stalls replication, kills the leader's server and agent, and starts the agent again once another leads."""
        leader, stalled = self._stall()
        lag = chance.uniform(0.3, 1.5)
        time.sleep(lag)
        return f"leader {leader.name} killed, {lag:.1f} s after replication stood still: " + self._replace(
            leader, stalled
        )

    def cancel_and_kill(self, chance: random.Random) -> str:
        """Cancels commits while they wait for a standby, then kills the leader: they are nowhere else."""
        leader, stalled = self._stall()
        cancelled = 0
        until = time.monotonic() + chance.uniform(0.5, 2.0)
        while time.monotonic() < until:
            time.sleep(0.1)
            waiting = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            cancelled += leader.execute(waiting)[0][0]
        return f"{cancelled} commits cancelled while they waited, then {leader.name} killed: " + self._replace(
            leader, stalled
        )

    def kill_agent(self, chance: random.Random) -> str:
        """Kills an agent alone: its server stays up, and takes connections, while another one is promoted."""
        leader = self._leader()
        assert leader.agent is not None
        began = time.monotonic()
        leader.agent.kill()
        leader.agent.wait()
        self._wait("another leader", lambda: self.leader() not in {None, leader})
        promoted = time.monotonic() - began
        time.sleep(chance.choice([0.0, 5.0]))  # the old server goes on, without an agent
        self._start_agent(leader)
        self._wait("a whole cluster", self.is_whole)
        self.failovers += 1
        whole = time.monotonic() - began
        return f"agent of {leader.name} killed: another leader in {promoted:.1f} s, whole again in {whole:.1f} s"

    def end_backends(self, chance: random.Random) -> str:
        ended = self._leader().execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            f"WHERE backend_type = 'client backend' AND datname = '{DATABASE}'"
        )
        return f"{ended[0][0]} connections ended"

    # Helpers.

    def _replace(self, leader: Member, stalled: Sequence[int]) -> str:
        assert leader.agent is not None
        began = time.monotonic()
        leader.agent.kill()
        leader.agent.wait()
        self._kill_server(leader)
        for pid in stalled:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)
        self._wait("another leader", lambda: self.leader() is not None)
        promoted = time.monotonic() - began
        self._start_agent(leader)
        self._wait("a whole cluster", self.is_whole)
        self.failovers += 1
        return f"another leader in {promoted:.1f} s, whole again in {time.monotonic() - began:.1f} s"

    def _stall(self) -> tuple[Member, list[int]]:
        """The leader, and the processes that replicate from it, which are stopped now."""
        leader = self._leader()
        stalled = [pid for member in self.members if member is not leader for pid in member.children("walreceiver")]
        for pid in stalled:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return leader, stalled

    def _leader(self) -> Member:
        self._wait("a leader", lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None
        return leader

    def _kill_server(self, member: Member) -> None:
        postmaster = member.postmaster
        if postmaster is not None:
            for pid in (postmaster, *member.children()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _wait(self, what: str, done: Any) -> None:
        until = time.monotonic() + _PATIENCE
        while not done():
            if time.monotonic() > until:
                raise RuntimeError(f"Patroni did not come to {what} in {_PATIENCE:.0f} s; its logs are in {self._logs}")
            time.sleep(0.1)

    # Starting.

    def _start_etcd(self) -> None:
        names = ["e1", "e2", "e3"]
        peers = ",".join(f"{n}=http://127.0.0.1:{port}" for n, port in zip(names, self._etcd_peers, strict=True))
        for name, client, peer in zip(names, self._etcd_clients, self._etcd_peers, strict=True):
            at_client, at_peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
            command = ["etcd", "--name", name, "--data-dir", str(self._folder / name)]
            command += ["--listen-client-urls", at_client, "--advertise-client-urls", at_client]
            command += ["--listen-peer-urls", at_peer, "--initial-advertise-peer-urls", at_peer]
            command += ["--initial-cluster", peers, "--initial-cluster-state", "new"]
            self._processes.append(self._start(command, self._logs / f"{name}.log"))

    def _start_agent(self, member: Member) -> None:
        file = member.folder / "patroni.yml"
        file.write_text(json.dumps(self._settings(member)))  # JSON is YAML
        os.chmod(file, 0o644)
        member.agent = self._start(["patroni", str(file)], self._logs / f"{member.name}.log", member.folder)

    def _start_proxy(self) -> None:
        lines = ["global", "  maxconn 500", "defaults", "  mode tcp", "  timeout connect 3s"]
        lines += ["  timeout client 1h", "  timeout server 1h", "  timeout check 1s", "listen postgres"]
        lines += [
            f"  bind 127.0.0.1:{self._proxy}",
            "  option httpchk OPTIONS /primary",
            "  http-check expect status 200",
        ]
        lines += ["  default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions"]
        lines += [f"  server {m.name} 127.0.0.1:{m.port} check port {m.rest}" for m in self.members]
        file = self._folder / "haproxy.cfg"
        file.write_text("\n".join(lines) + "\n")
        os.chmod(file, 0o644)
        self._processes.append(self._start([_sbin("haproxy"), "-db", "-f", str(file)], self._logs / "haproxy.log"))

    def _start(self, command: Sequence[str], log: Path, home: Path | None = None) -> subprocess.Popen[bytes]:
        env = {**plain_environment(), "HOME": str(home or self._folder)}
        with log.open("ab") as said:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/", env=env, **as_user()
            )

    def _settings(self, member: Member) -> dict[str, Any]:
        who = {"username": "postgres", "password": _PASSWORD}
        return {
            "scope": "cluster",
            "name": member.name,
            "restapi": {"listen": f"127.0.0.1:{member.rest}", "connect_address": f"127.0.0.1:{member.rest}"},
            "etcd3": {"hosts": [f"127.0.0.1:{port}" for port in self._etcd_clients]},
            "bootstrap": {
                "dcs": {
                    "ttl": 5,
                    "loop_wait": 1,
                    "retry_timeout": 2,
                    "synchronous_mode": True,
                    "synchronous_mode_strict": True,
                    "primary_start_timeout": 0,
                    "maximum_lag_on_failover": 1 << 27,  # unsynced writes go on while commits wait for a standby
                    "postgresql": {
                        "use_pg_rewind": True,
                        "use_slots": True,
                        "parameters": {
                            "wal_log_hints": "on",
                            "wal_retrieve_retry_interval": "200ms",
                            "max_connections": 200,
                            "shared_buffers": "64MB",
                            "dynamic_shared_memory_type": "mmap",
                        },
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{member.port}",
                "connect_address": f"127.0.0.1:{member.port}",
                "data_dir": str(member.data),
                "bin_dir": str(_bin_folder()),
                "pgpass": str(member.folder / "pgpass"),
                "parameters": {"unix_socket_directories": str(member.folder)},
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 scram-sha-256",
                    "host replication all 127.0.0.1/32 scram-sha-256",
                ],
                "authentication": {
                    "superuser": who,
                    "replication": {"username": "replicator", "password": _PASSWORD},
                    "rewind": {"username": "rewinder", "password": _PASSWORD},
                },
            },
            "watchdog": {"mode": "off"},
        }


def _check_programs() -> None:
    missing = [name for name in ("patroni", "etcd") if shutil.which(name) is None]
    if not Path(_sbin("haproxy")).exists():
        missing.append("haproxy")
    if _bin_folder() is None:
        missing.append("postgres")
    if missing:
        raise Missing(f"{', '.join(missing)} not found. Install with: {INSTALL}")


def _sbin(name: str) -> str:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or f"/usr/sbin/{name}"


def _bin_folder() -> Path | None:
    """Where Debian's PostgreSQL has its programs: the newest version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def _bin(name: str) -> str:
    folder = _bin_folder()
    assert folder is not None
    return str(folder / name)

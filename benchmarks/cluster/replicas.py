"""Servers that replicate synchronously: a primary and its standbys, with restart, stall and failover.

Every commit waits for one standby, and the order of a failover is the one that loses nothing: the old primary is down
for good before a standby is promoted, and it comes back only as a copy of the new primary. Until then commits wait.
"""

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from benchmarks.cluster.killer import Kill
from benchmarks.cluster.postgres import DATABASE, PATIENCE, Postgres


class Replicas:
    """A primary and its standbys. All of it is done by one thread."""

    def __init__(self, servers: Sequence[Postgres]) -> None:
        self.servers = servers
        self.primary = servers[0]
        self.failovers = 0

    @property
    def url(self) -> str:
        """The address for nodes: all servers, of which the one that writes is used."""
        places = ",".join(f"{server.host}:{server.port}" for server in self.servers)
        return f"postgresql://postgres@{places}/{DATABASE}?target_session_attrs=read-write&connect_timeout=3"

    @property
    def standbys(self) -> list[Postgres]:
        return [server for server in self.servers if server is not self.primary]

    def make(self) -> None:
        self.primary.make()
        for standby in self.standbys:
            standby.copy(self.primary)
        self.wait_synchronous()

    def close(self) -> None:
        for server in self.servers:
            if server.is_running:
                server.stop(signal.SIGQUIT)

    def kills(self) -> Mapping[str, Kill]:
        return {
            "backends": Kill(3, self.end_backends),
            "cancel": Kill(1, self.cancel_commits),
            "restart": Kill(1, self.restart),
            "standby": Kill(1, self.stall),
            "failover": Kill(1, self.fail_over),
        }

    def heal(self) -> None:
        """Nothing is left to mend: each of these ends with a cluster that is whole."""
        self.wait_synchronous()

    def check(self) -> str:
        """What PostgreSQL finds wrong when it reads all of its tables."""
        return self.primary.check()

    def size(self) -> int:
        """Bytes of the database."""
        return int(self.primary.execute("SELECT pg_database_size(%s)", DATABASE)[0][0])

    # What is done to them.

    def end_backends(self, chance: random.Random) -> str:
        """Ends some or all connections of nodes."""
        share = chance.choice([0.2, 0.5, 1.0])
        ended = self.primary.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid() AND datname = current_database() AND random() < %s",
            share,
        )
        return f"{ended[0][0]} connections ended"

    def cancel_commits(self, chance: random.Random) -> str:
        """Stops replication, and cancels commits while they wait for it: they are in one place only."""
        stalled = self._stop_receivers()
        cancelled = 0
        try:
            until = time.monotonic() + chance.uniform(0.5, 3.0)
            while time.monotonic() < until:
                time.sleep(0.1)
                rows = self.primary.execute(
                    "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                )
                cancelled += rows[0][0]
        finally:
            _go_on(stalled)
        return f"{cancelled} commits cancelled while they waited for a standby"

    def restart(self, chance: random.Random) -> str:
        how = chance.choice([signal.SIGINT, signal.SIGQUIT])
        self.primary.stop(how)
        down = chance.choice([0.0, 0.0, 3.0])
        time.sleep(down)
        self.primary.start()
        self.wait_synchronous()
        return f"database restarted, {'in order' if how == signal.SIGINT else 'as after a crash'}, {down:.0f} s down"

    def stall(self, chance: random.Random) -> str:
        """Stops replication for a while: no commit may be acknowledged meanwhile."""
        seconds = chance.uniform(0.5, 6.0)
        stalled = self._stop_receivers()
        try:
            time.sleep(seconds)
        finally:
            _go_on(stalled)
        return f"replication stood still for {seconds:.1f} s"

    def fail_over(self, chance: random.Random) -> str:
        """Kills the primary, often while its standbys lag behind, and promotes a standby."""
        stalled = self._stop_receivers() if chance.random() < 0.7 else []
        lag = chance.uniform(0.2, 1.5) if stalled else 0.0
        time.sleep(lag)
        old = self.primary
        old.kill()
        began = time.monotonic()
        for pid in stalled:  # what had not reached it never does
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        _go_on(stalled)
        self.promote_best()
        promoted = time.monotonic() - began
        old.copy(self.primary)
        self.wait_synchronous()
        whole = time.monotonic() - began
        after = f" after replication had stood still for {lag:.1f} s" if stalled else ""
        return f"failover to {self.primary.name}{after}: promoted in {promoted:.1f} s, whole again in {whole:.1f} s"

    def promote_best(self) -> None:
        """Promotes the standby that has received most, and lets the others follow it. The old primary is left alone."""
        old = self.primary
        self.primary = max(self.standbys, key=_received)
        self.primary.promote()
        self.failovers += 1
        for standby in self.standbys:
            if standby is not old:
                standby.follow(self.primary)

    # Helpers.

    def wait_synchronous(self) -> None:
        """Returns when a standby confirms commits."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            rows = self.primary.execute(
                "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
            )
            if rows[0][0]:
                return
            time.sleep(0.05)
        raise RuntimeError(f"no standby follows {self.primary.name}:\n{self.standbys[0].log()[-2000:]}")

    def _stop_receivers(self) -> list[int]:
        stalled = [pid for standby in self.standbys for pid in standby.children("walreceiver")]
        for pid in stalled:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return stalled


def pair(ports: Sequence[int]) -> Replicas:
    """A primary and a standby on loopback."""
    names = [f"db{number}" for number in range(1, len(ports) + 1)]
    any_other = f"ANY 1 ({', '.join(names)})"
    return Replicas(
        [
            Postgres(name, "127.0.0.1", port, synchronous_standby_names=any_other)
            for name, port in zip(names, ports, strict=True)
        ]
    )


def _go_on(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _received(standby: Postgres) -> int:
    """How far a standby has come, in bytes of the log."""
    return int(standby.execute("SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0')::bigint")[0][0] or 0)

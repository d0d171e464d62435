"""The third form: a network that is cut. Nodes, database servers and clients are on hosts of their own.

There are two switches: clients and nodes are on the front, nodes and databases on the back. Clients are in two places.
When the primary is cut off with a node and a place of clients, a standby is promoted on the other side, while the old
primary goes on: only synchronous replication keeps it from acknowledging anything.
"""

import random
import signal
import time
from collections.abc import Mapping

from benchmarks.cluster.killer import Kill
from benchmarks.cluster.ledger import Ledger
from benchmarks.cluster.network import Network, prefix
from benchmarks.cluster.postgres import Postgres
from benchmarks.cluster.replicas import Replicas

FRONT, BACK = "front", "back"
PLACES = ("c1", "c2")
DATABASES = ("db1", "db2", "db3")
MANAGER = "manager"
_PORT = 5432
_AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


class Partition:
    """The network, the databases, and what is done to them."""

    def __init__(self, nodes: int, ledger: Ledger) -> None:
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.network = Network(FRONT, BACK)
        self.both = 0  # how often there were two servers that took themselves for the primary
        self.minority = 0  # turns that the cut off side acknowledged meanwhile
        self._ledger = ledger

    def make(self) -> None:
        for host in (MANAGER, *PLACES):
            self.network.add(host, FRONT)
        for host in self.nodes:
            self.network.add(host, FRONT, BACK)
        for host in DATABASES:
            self.network.add(host, BACK)
        names = f"ANY 1 ({', '.join(DATABASES)})"
        quick = {"wal_receiver_timeout": "5s", "wal_sender_timeout": "5s"}
        self.replicas = Replicas(
            [
                Postgres(
                    host,
                    self.network.address(host, BACK),
                    _PORT,
                    inside=[*prefix(host), *_AS_NOBODY],
                    synchronous_standby_names=names,
                    **quick,
                )
                for host in DATABASES
            ]
        )
        self.replicas.make()

    def close(self) -> None:
        self.network.close()

    def kills(self) -> Mapping[str, Kill]:
        return {
            "front": Kill(1, self.cut_front),
            "back": Kill(2, self.cut_back),
            "standbys": Kill(1, self.cut_standbys),
            "slow": Kill(1, self.slow),
            "split": Kill(2, self.split),
        }

    def heal(self) -> None:
        self.network.heal(FRONT)
        self.network.heal(BACK)
        self.replicas.heal()

    def remarks(self) -> list[str]:
        how = "tc netem" if self.network.has_netem else "losing packets in bursts: this kernel has no netem"
        told = f"clients on the side of the old one were told of {self.minority} turns meanwhile"
        return [f"Two servers took themselves for the primary {self.both} times; {told}.", f"Slow links: {how}."]

    # What is done to them.

    def cut_front(self, chance: random.Random) -> str:
        """A node that clients cannot reach goes on with what it has."""
        return self._for_a_while(FRONT, [chance.choice(self.nodes)], chance)

    def cut_back(self, chance: random.Random) -> str:
        """A node that clients reach cannot reach the databases."""
        return self._for_a_while(BACK, [chance.choice(self.nodes)], chance)

    def cut_standbys(self, chance: random.Random) -> str:
        """The primary is alone with the nodes: nothing may be acknowledged until a standby is back."""
        said = self._for_a_while(BACK, [server.name for server in self.replicas.standbys], chance)
        self.replicas.wait_synchronous()
        return said

    def slow(self, chance: random.Random) -> str:
        host = chance.choice([*self.nodes, *DATABASES])
        return self.network.slow(host, BACK, chance.uniform(4, 10), chance)

    def split(self, chance: random.Random) -> str:
        """Cuts off the primary with a node and a place of clients, and promotes a standby on the other side."""
        node, place = chance.choice(self.nodes), PLACES[1]
        old = self.replicas.primary
        before = self._acknowledged(place)
        self.network.split(FRONT, [node, place])
        self.network.split(BACK, [node, old.name])
        began = time.monotonic()
        try:
            time.sleep(chance.uniform(1.0, 3.0))
            # What was acknowledged is on at least one of the standbys: the one that has more is promoted.
            self.replicas.promote_best()
            promoted = time.monotonic() - began
            self.both += 1
            time.sleep(1.0)  # what was acknowledged before the cut has been written down
            before = self._acknowledged(place)
            time.sleep(chance.uniform(5.0, 15.0))
        finally:
            self.minority += self._acknowledged(place) - before
            self.network.heal(FRONT)
            self.network.heal(BACK)
        time.sleep(chance.choice([0.0, 1.0, 3.0]))  # for so long everybody reaches both
        old.stop(signal.SIGQUIT)
        old.copy(self.replicas.primary)
        self.replicas.wait_synchronous()
        whole = time.monotonic() - began
        return (
            f"{old.name}, {node} and {place} cut off, {self.replicas.primary.name} promoted after {promoted:.1f} s, "
            f"whole again after {whole:.1f} s"
        )

    def _for_a_while(self, switch: str, hosts: list[str], chance: random.Random) -> str:
        seconds = chance.choice([1.0, 4.0, 12.0])
        self.network.split(switch, hosts)
        try:
            time.sleep(seconds)
        finally:
            self.network.heal(switch)
        return f"{' and '.join(hosts)} cut off from the {switch} for {seconds:.0f} s"

    def _acknowledged(self, place: str) -> int:
        return self._ledger.by_place[place]

"""The three forms of the cluster: what each sets up, and what it may do to it."""

import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.cluster import network, replicas
from benchmarks.cluster.killer import Kill, NodeKills
from benchmarks.cluster.ledger import Ledger
from benchmarks.cluster.nodes import Node, Nodes
from benchmarks.cluster.partition import FRONT, MANAGER, PLACES, Partition
from benchmarks.cluster.patroni import Patroni
from benchmarks.cluster.replicas import Replicas
from benchmarks.cluster.run import Place, Plan, Run
from benchmarks.cluster.workload import reply
from benchmarks.progress import Progress
from forkpoint.testing import ModelServer, Script

_KEY = "fp_cluster00_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJK"  # for nodes that others than loopback reach
_NODE_PORT, _MODEL_PORT = 8008, 9009


class Wanted(Struct, frozen=True):
    """What the command line asks for."""

    form: str
    store: str
    minutes: float
    nodes: int
    clients: int
    only: str
    seed: int
    folder: Path
    command: str


def run(wanted: Wanted, progress: Progress) -> bool:
    """Runs the cluster in the form that is wanted. Says whether all was good."""
    forms: Mapping[str, Callable[[Wanted, Progress, ExitStack], bool]]
    forms = {"plain": _plain, "patroni": _patroni, "partition": _partition}
    with ExitStack() as exits:
        return forms[wanted.form](wanted, progress, exits)


def _plain(wanted: Wanted, progress: Progress, exits: ExitStack) -> bool:
    """Everything on loopback: one SQLite file, or PostgreSQL with a synchronous standby."""
    if wanted.store == "sqlite":
        return _on_loopback(
            wanted, progress, exits, f"sqlite:///{wanted.folder / 'store.db'}", {}, "one SQLite file", {}
        )
    progress.say("starting PostgreSQL and a standby")
    database = replicas.pair(free_ports(2))
    exits.callback(_keep_logs, database, wanted.folder)
    exits.callback(database.close)
    database.make()
    return _on_loopback(wanted, progress, exits, database.url, database.kills(), "PostgreSQL", _care(database))


def _patroni(wanted: Wanted, progress: Progress, exits: ExitStack) -> bool:
    progress.say("starting etcd, Patroni with three PostgreSQL servers, and HAProxy")
    database = Patroni(free_ports(Patroni.PORTS), wanted.folder)
    exits.callback(database.close)
    database.make()
    return _on_loopback(wanted, progress, exits, database.url, database.kills(), "Patroni and etcd", _care(database))


def _on_loopback(
    wanted: Wanted,
    progress: Progress,
    exits: ExitStack,
    store: str,
    kills: Mapping[str, Kill],
    what: str,
    care: Mapping[str, Any],
) -> bool:
    ledger = Ledger(wanted.folder / "ledger.jsonl")
    model = exits.enter_context(ModelServer(Script(reply), keep=False))
    env = _environment(model.url, wanted)
    started = [
        Node(f"node{number}", "127.0.0.1", port, wanted.folder, store=store, env=env)
        for number, port in enumerate(free_ports(wanted.nodes), 1)
    ]
    nodes = Nodes(started, ledger)
    exits.callback(nodes.stop)
    nodes.start()
    places = (Place("client", wanted.clients, tuple(nodes.urls)),)
    plan = _plan(wanted, f"{wanted.nodes} nodes on {what}", places, **care)
    return Run(plan, ledger, nodes, chosen({**NodeKills(nodes).kills(), **kills}, wanted.only), progress).run()


def _partition(wanted: Wanted, progress: Progress, exits: ExitStack) -> bool:
    """Every node, database server and place of clients is a host of its own."""
    ledger = Ledger(wanted.folder / "ledger.jsonl")
    progress.say("making a network with three PostgreSQL servers")
    cut = Partition(wanted.nodes, ledger)
    exits.callback(cut.close)
    cut.make()
    exits.callback(_keep_logs, cut.replicas, wanted.folder)
    exits.callback(cut.replicas.close)
    started = []
    for host in cut.nodes:
        model = ModelServer(Script(reply), port=_MODEL_PORT, keep=False)
        network.on(host, model.start)
        exits.callback(model.stop)
        node = Node(
            host,
            cut.network.address(host, FRONT),
            _NODE_PORT,
            wanted.folder,
            store=cut.replicas.url,
            env={**_environment(model.url, wanted), "CLUSTER_KEY": _KEY},
            options=["--key-env", "CLUSTER_KEY"],
            inside=network.prefix(host),
        )
        started.append(node)
    nodes = Nodes(started, ledger)
    exits.callback(nodes.stop)
    nodes.start()
    network.enter(MANAGER)  # from here on this thread, and those that it starts, see the nodes
    each = wanted.clients // len(PLACES)
    places = [Place(host, each, tuple(nodes.urls), partial(network.enter, host)) for host in PLACES]
    plan = _plan(
        wanted,
        f"{wanted.nodes} nodes on PostgreSQL in a network that is cut",
        tuple(places),
        heal=cut.heal,
        check=cut.replicas.check,
        size=cut.replicas.size,
        remarks=cut.remarks,
        key=_KEY,
        stale=True,
    )
    kills = {**cut.kills(), **{name: kill for name, kill in NodeKills(nodes).kills().items() if name == "kill"}}
    return Run(plan, ledger, nodes, chosen(kills, wanted.only), progress).run()


def _plan(wanted: Wanted, form: str, places: tuple[Place, ...], **care: Any) -> Plan:
    return Plan(form, wanted.command, wanted.minutes, wanted.seed, wanted.folder, places, **care)


def _care(database: Replicas | Patroni) -> dict[str, Any]:
    def remarks() -> list[str]:
        return [f"{database.failovers} failovers; replication was synchronous."]

    return {"heal": database.heal, "check": database.check, "size": database.size, "remarks": remarks}


def _environment(model: str, wanted: Wanted) -> dict[str, str]:
    return {"CLUSTER_MODEL": model, "CLUSTER_LOG": str(wanted.folder / "notes")}


def _keep_logs(database: Replicas, folder: Path) -> None:
    for server in database.servers:
        if (log := server.folder / "log").exists():
            shutil.copy(log, folder / f"{server.name}.log")


def chosen(kills: Mapping[str, Kill], only: str) -> dict[str, Kill]:
    """The kinds of trouble that are wanted."""
    if not only:
        return dict(kills)
    names = [name.strip() for name in only.split(",") if name.strip() != "none"]
    if unknown := [name for name in names if name not in kills]:
        raise SystemExit(f"there is no kill {', '.join(unknown)}; there are {', '.join(kills)}, and none")
    return {name: kills[name] for name in names}


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports

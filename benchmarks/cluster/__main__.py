"""The command: ``./run python -m benchmarks.cluster --help``."""

import argparse
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cluster import replicas
from benchmarks.cluster.killer import Kill, NodeKills
from benchmarks.cluster.ledger import Ledger
from benchmarks.cluster.nodes import Node, Nodes
from benchmarks.cluster.run import Place, Plan, Run
from benchmarks.cluster.workload import reply
from benchmarks.progress import Progress
from forkpoint.testing import ModelServer, Script


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument(
        "--form", choices=["plain", "patroni", "partition"], default="plain", help="default: %(default)s"
    )
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="postgres", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=5.0, help="of load (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--only", default="", metavar="KILL,...", help="only these kinds of trouble; `none` is none")
    parser.add_argument("--seed", type=int, default=None, help="what is asked for, and what is killed in which order")
    parser.add_argument(
        "--folder", type=Path, default=None, help="for logs and the report (default: a new one in /tmp)"
    )
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="forkpoint-cluster-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(quiet=given.quiet)
    progress.say(f"{given.form} on {given.store}, {given.minutes:g} minutes, --seed {seed}, logs in {folder}")
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(
        ["python -m benchmarks.cluster", *words, *([] if given.seed is not None else [f"--seed {seed}"])]
    )
    with ExitStack() as exits:
        good = _plain(given, seed, folder, command, progress, exits)
    progress.say(f"{'good' if good else 'NOT GOOD'}; report and logs are in {folder}")
    return 0 if good else 1


def _plain(
    given: argparse.Namespace, seed: int, folder: Path, command: str, progress: Progress, exits: ExitStack
) -> bool:
    """Everything on loopback."""
    ledger = Ledger(folder / "ledger.jsonl")
    model = exits.enter_context(ModelServer(Script(reply), keep=False))
    ports = free_ports(given.nodes + 2)
    database = None
    if given.store == "sqlite":
        store = f"sqlite:///{folder / 'store.db'}"
    else:
        progress.say("starting PostgreSQL and a standby")
        database = replicas.pair(ports[given.nodes :])
        exits.callback(_keep_logs, database, folder)
        exits.callback(database.close)
        database.make()
        store = database.url
    env = {"CLUSTER_MODEL": model.url, "CLUSTER_LOG": str(folder / "notes")}
    nodes = Nodes(
        [
            Node(f"node{number}", "127.0.0.1", port, folder, store=store, env=env)
            for number, port in enumerate(ports[: given.nodes], 1)
        ],
        ledger,
    )
    exits.callback(nodes.stop)
    nodes.start()
    kills = dict(NodeKills(nodes).kills())
    if database is not None:
        kills |= database.kills()
    plan = Plan(
        form=f"{given.nodes} nodes on {'PostgreSQL' if database else 'one SQLite file'}",
        command=command,
        minutes=given.minutes,
        seed=seed,
        folder=folder,
        places=(Place("client", given.clients, tuple(nodes.urls)),),
    )
    if database is not None:
        plan = _with_database(plan, database)
    return Run(plan, ledger, nodes, chosen(kills, given.only), progress).run()


def _with_database(plan: Plan, database: replicas.Replicas) -> Plan:
    from msgspec.structs import replace

    def remarks() -> list[str]:
        return [f"{database.failovers} failovers; replication was synchronous."]

    return replace(plan, heal=database.heal, check=database.check, size=database.size, remarks=remarks)


def _keep_logs(database: replicas.Replicas, folder: Path) -> None:
    for server in database.servers:
        if (log := server.folder / "log").exists():
            shutil.copy(log, folder / f"{server.name}.log")


def chosen(kills: dict[str, Kill], only: str) -> dict[str, Kill]:
    """The kinds of trouble that are wanted."""
    if not only:
        return kills
    if only == "none":
        return {}
    names = [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in kills]:
        raise SystemExit(f"there is no kill {', '.join(unknown)}; there are {', '.join(kills)}")
    return {name: kills[name] for name in names}


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    sys.exit(main())

"""Runs several nodes on one database, kills what can be killed, and looks whether anything acknowledged is lost."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.cluster.forms import Wanted, run
from benchmarks.cluster.network import NotAllowed
from benchmarks.cluster.patroni import Missing
from benchmarks.progress import Progress

_KILLS = """\
kinds of trouble for --only, or `none`:
  all forms      kill (SIGKILL of a node), and but for partition: stop (SIGSTOP, later SIGCONT), term (SIGTERM)
  plain          backends (pg_terminate_backend), cancel (commits that wait), restart, standby (stalled), failover
  patroni        leader (killed after a stall), agent (killed alone), cancel (then the leader is killed), backends
  partition      front, back (a node cut off from clients, or from databases), standbys, slow, split (with a failover)
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        epilog=_KILLS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--form", choices=["plain", "patroni", "partition"], default="plain", help="default: %(default)s"
    )
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="postgres", help="of the plain form")
    parser.add_argument("--minutes", type=float, default=5.0, help="of load (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--only", default="", metavar="KILL,...", help="only these kinds of trouble")
    parser.add_argument("--seed", type=int, default=None, help="what is asked for, and what is killed in which order")
    parser.add_argument(
        "--folder", type=Path, default=None, help="for logs and the report (default: a new one in /tmp)"
    )
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="forkpoint-cluster-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # agents of databases write their logs there, and are not root
    progress = Progress(quiet=given.quiet)
    progress.say(f"{given.form}, {given.minutes:g} minutes, --seed {seed}, logs in {folder}")
    command = " ".join(["python -m benchmarks.cluster", *sys.argv[1:], *([] if given.seed else [f"--seed {seed}"])])
    options = (given.form, given.store, given.minutes, given.nodes, given.clients, given.only)
    try:
        good = run(Wanted(*options, seed, folder, command), progress)
    except (Missing, NotAllowed) as error:
        print(f"This form cannot run here: {error}", file=sys.stderr)
        return 2
    progress.say(f"{'good' if good else 'NOT GOOD'}; report and logs are in {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

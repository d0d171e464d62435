"""Looks for answers that the OpenAPI document does not promise: `python -m benchmarks.conformance`.

The same as tests/server/test_conformance.py, for longer: more made-up requests for each call, chains of calls in which
one uses what another gave, and other seeds.
"""

import argparse
import sys
import time

from tests.server.support.conformance import SEED, conformance


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100, help="made-up requests for each call (default: 100)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to try (default: 1)")
    given = parser.parse_args()
    ended = 0
    for seed in range(SEED, SEED + given.seeds):
        started = time.monotonic()
        found = conformance(examples=given.examples, stateful=True, seed=seed)
        seconds = time.monotonic() - started
        print(f"seed {seed}: {found.cases:,} requests in {seconds:.0f} s, statuses {sorted(found.statuses)}")
        for problem in dict.fromkeys(found.problems):
            print(f"\n{problem}")
            ended = 1
    return ended


if __name__ == "__main__":
    sys.exit(main())

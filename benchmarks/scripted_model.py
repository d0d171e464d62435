"""The scripted model that every contender asks: the same one, over loopback HTTP, in a process of its own.

Its answer is always the same, and takes it no time. What it reports as tokens of the prompt is the number of messages
there, so that every turn shows whether the model was really sent the whole history.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forkpoint.events import Usage
from forkpoint.testing import Heard, ModelServer, Reply, Script, ScriptedCall

MODEL = "scripted"
ANSWER = "Nothing unusual is in the log."
PLAIN = "What does the log say?"
LOOK = "Look at the log, then say what is in it."
"""The question that the model answers after a call of the tool `look`."""

_ROOT = Path(__file__).parents[1]


@contextmanager
def serving() -> Iterator[str]:
    """Runs the model as a process for as long as the block lasts; gives its base URL."""
    command = [sys.executable, "-m", "benchmarks.scripted_model"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:  # closing it ends the process, and so does our death
            url = process.stdout.readline().strip()
            assert url, "the scripted model did not start"
            yield url


class _Messages:
    """Counts messages where a provider counts tokens: cheap, and it shows what was sent."""

    def of_body(self, body: Any, *, wire: str, key: str | None) -> Usage:
        return Usage(calls=1, input=len(body["messages"]))


def _reply(heard: Heard) -> Reply:
    asked = heard.body["messages"][-1]["role"] == "user" and heard.text == LOOK
    return Reply(calls=(ScriptedCall("look", '{"at": "log"}'),)) if asked else Reply(ANSWER)


def main() -> None:
    with ModelServer(Script(_reply), cache=_Messages(), keep=False) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

"""A server keeps conversations; a program elsewhere forks one with another agent, and both go on.

Run it with `./run python examples/remote_fork.py`. It needs no key and no network beyond this machine: it starts
`forkpoint serve` on a free port, talks to it as any program would, and stops it.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forkpoint import Agent, Conversation

# A model that repeats what it is told. "local/smollm2", "openai/NAME" or "anthropic/NAME" go in the same place.
MODEL = "scripted/echo"

# An agent is data: it goes to the server as it is. Python tools do not; those are the server's own agents' affair.
CRITIC = Agent(MODEL, instructions="You doubt what was said, and say why.", name="critic")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A server on a free port of this machine, with one agent and a SQLite file. Gives its address."""
    command = [sys.executable, "-m", "forkpoint", "serve", "--port", "0", "--json", "--log-level", "error"]
    command += ["--model", MODEL, "--store", f"sqlite:///{folder / 'server.db'}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = ""
        while not said.rstrip().endswith("}") and (line := process.stdout.readline()):
            said += line
        yield json.loads(said)["url"]
    finally:
        process.terminate()  # it lets turns finish, and then it stops
        process.wait()
        process.stdout.close()


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, server(Path(folder)) as url:
        # "echo" is the server's agent: a name without a slash. Everything else is as with a store of one's own.
        with Conversation("echo", store=url, conversation_id="build-1234", tags={"kind": "debug"}) as run:
            first = run.run("The build failed. Why?")
            run.run("And the one before?")

            with run.fork(at=first, agent=CRITIC, title="Is that so?", tags={"kind": "review"}) as fork:
                # Not one event more or less than the source had at that point.
                assert len(fork.events()) == len(first.events) == fork.info().events
                assert fork.events() == run.events()[: len(first.events)]
                print(f"events: {len(run.events())} in the run, {len(fork.events())} in the fork")

                print("the fork says:", fork.run("Was it the disk?").text)
                print("tags of the run:", run.tags())
                print("tags of the fork:", fork.tags())
                assert fork.cache().key != run.cache().key, "another prompt has another key"
            with run.fork(cache="inherit") as heir:
                assert heir.cache().key == run.cache().key, "the same prompt keeps its cache"

            (root,) = run.tree()
            print(f"{root.info.name} and {len(root.branches)} branches, answered by {root.info.model}")
            assert run.verify().ok

        # Any other program, in any process, finds it by its name. No function has to be at hand here.
        with Conversation.open("build-1234", store=url) as again:
            print("later:", again.run("Thanks.").text)


if __name__ == "__main__":
    main()

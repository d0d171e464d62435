"""A coding agent in CI, and a person who goes on: it mends a failing test, and what it did is a conversation to fork.

Run it with `./run python examples/coder.py`. It needs git, and no key and no network.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from forkpoint import LLM, Conversation, TurnFailed
from forkpoint.agent.coder import coder
from forkpoint.llm import Retries
from forkpoint.testing import Fault, Reply, Script, ScriptedCall

TEST = f"{sys.executable} test_prices.py"


def calls(tool: str, **arguments: str) -> Reply:
    return Reply(calls=(ScriptedCall(tool, json.dumps(arguments)),))


# What the model says is written down here, so that you get the same story. What its tools do is real.
# "openai/NAME" or "anthropic/NAME" go in the same place, and get their key from the environment.
SCRIPT = Script(
    [
        calls("shell", command=TEST),
        calls("search_files", pattern=r"def total"),
        calls("edit_file", path="prices.py", old="sum(prices) * tax", new="sum(prices) * (1 + tax)"),
        Reply(fault=Fault("overloaded")),  # the provider has a bad moment, half-way
        calls("shell", command=TEST),
        Reply("total() left out the prices themselves. It adds the tax to them now, and the test passes."),
        # What the person asks for, in one branch and in the other.
        calls("edit_file", path="prices.py", old="(1 + tax)", new="(1 + tax / 100)"),
        calls("edit_file", path="test_prices.py", old="0.2", new="20"),
        calls("shell", command=TEST),
        Reply("The tax is in percent now, in the test too."),
        calls("edit_file", path="prices.py", old="sum(prices) * (1 + tax)", new="round(sum(prices) * (1 + tax), 2)"),
        calls("shell", command=TEST),
        Reply("Totals are rounded to cents."),
    ]
)
MODEL = LLM(SCRIPT.register("prices"), retries=Retries(attempts=1))


def ci(store: str, folder: Path) -> str:
    """The job: nobody is there to be asked, so the agent does not ask. Returns what it changed."""
    agent = coder(MODEL, approval="never", instructions="You run in CI. Mend what is broken, and nothing else.")
    with Conversation(agent, conversation_id="ci-1234", workspace=folder, store=store) as run:
        try:
            turn = run.run(f"`{TEST}` fails. Mend it.")
        except TurnFailed as failed:
            print(f"half-way: {failed.turn.error.code}, and {len(failed.turn.calls)} calls had run")
            turn = run.resume()  # none of them runs again
        for call in turn.calls:
            print(f"  {call.tool:12} {(call.result or '').strip().splitlines()[-1]}")
        print(turn.text)
    return git(folder, "diff")


def person(store: str, folder: Path) -> None:
    """Somebody looks at it later, on another machine: the job's folder is gone, and here is a clone with its patch."""
    with Conversation.open("ci-1234", store=store, allow={"workspace"}) as run:
        mine = run.fork(title="Tax in percent", workspace=folder)  # my folder, with all that the agent knows
    with mine:
        other = mine.fork(title="Cents", workspace="worktree")  # another way, in a branch and a folder of its own
        print(mine.run("Let the tax be in percent.").text)
    with other:
        print(other.run("Round to cents.").text)
        there = other.workspace
    assert there is not None
    for where in (folder, there):
        branch = git(where, "branch", "--show-current").strip()
        print(f"{branch.partition('/')[0]}: {(where / 'prices.py').read_text().splitlines()[-1].strip()}")
    assert "round" not in (folder / "prices.py").read_text()  # neither sees the other's files
    assert "100" not in (there / "prices.py").read_text()


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        os.environ["FORKPOINT_WORKSPACES"] = str(top / "workspaces")  # else worktrees are in your data folder
        project = top / "project"
        project.mkdir()
        (project / "prices.py").write_text("def total(prices, tax):\n    return sum(prices) * tax\n")
        (project / "test_prices.py").write_text("from prices import total\n\nassert total([10, 20], 0.2) == 36\n")
        git(project, "init", "-q", "-b", "main")
        git(project, "add", ".")
        git(project, "commit", "-qm", "Prices")

        store = f"sqlite:///{top / 'run.db'}"
        git(top, "clone", "-q", "project", "job")
        patch = ci(store, top / "job")  # the job keeps run.db and the patch, as artifacts
        shutil.rmtree(top / "job")

        git(top, "clone", "-q", "project", "mine")
        (top / "patch").write_text(patch)
        git(top / "mine", "apply", "../patch")
        person(store, top / "mine")


if __name__ == "__main__":
    main()

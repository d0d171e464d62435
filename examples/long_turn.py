"""A long turn that breaks half-way is not lost: it goes on after its last finished step, and no tool runs twice.

Run it with `./run python examples/long_turn.py`. It needs no key and no network. The turn checks twelve files, with
one call of a tool for each. First the provider fails in the middle. Then, in another conversation, the whole process
is killed while a tool runs, and this one goes on in its place.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from forkpoint import LLM, Agent, Conversation, ToolContext, Turn, TurnFailed, tool
from forkpoint.llm import Retries
from forkpoint.testing import Fault, Heard, Reply, Script, ScriptedCall

FILES = [f"module_{n:02}.py" for n in range(1, 13)]


@tool
def check(ctx: ToolContext, file: str) -> str:
    """Checks a file, and writes a line into the report."""
    with report(ctx).open("a") as lines:
        lines.write(f"{file} is fine\n")
    if os.environ.get("KILL_AT") == file:
        os.kill(os.getpid(), signal.SIGKILL)  # the line is written, and nobody lives to say so
    return "fine"


@tool(repeatable=True)
def read_report(ctx: ToolContext) -> str:
    """Reads the report. Doing that twice does no harm."""
    return report(ctx).read_text()


def report(ctx: ToolContext) -> Path:
    assert ctx.workspace is not None
    return ctx.workspace / "report.txt"


def scripted(heard: Heard) -> Reply:
    """A model that checks one file after the other, and looks at the report when it is told that it cannot be sure.

    A real one goes in the same place: "local/smollm2", "openai/NAME", "anthropic/NAME".
    """
    if heard.number == 7 and "KILL_AT" not in os.environ:
        return Reply(fault=Fault("overloaded", message="too many requests at once"))
    asked = re.findall(r"module_\d\d", str([said.get("tool_calls") for said in heard.body["messages"]]))
    if "not known" in str(heard.body["messages"][-1].get("content")):
        return Reply(calls=(ScriptedCall("read_report"),))
    if len(asked) < len(FILES):
        return Reply(calls=(ScriptedCall("check", f'{{"file": "{FILES[len(asked)]}"}}'),))
    return Reply(f"All {len(asked)} files are fine.")


MODEL = LLM(Script(scripted).register("checker"), retries=Retries(attempts=1))  # one try, to see the turn fail
AGENT = Agent(MODEL, instructions="Check every file.", tools=[check, read_report])


def the_provider_fails(folder: Path) -> None:
    with Conversation(AGENT, workspace=folder, store="memory:") as conversation:
        try:
            conversation.run("Check all modules.")
        except TurnFailed as failed:
            print(f"{type(failed.cause).__name__}: {tally(failed.turn)}")
        assert conversation.events() == []  # nothing has moved
        assert written(folder) == FILES[:7]  # but what its tools did stays done

        turn = conversation.resume()
        print(f"{turn.outcome}: {tally(turn)}. {turn.text}")
        assert written(folder) == FILES  # each file once: no finished tool was run again


def the_process_dies(folder: Path) -> None:
    store = f"sqlite:///{folder}/forkpoint.db"
    environment = os.environ | {"KILL_AT": FILES[8]}
    again = [*sys.orig_argv, store, str(folder)]  # this very program
    child = subprocess.run(again, env=environment)
    assert child.returncode == -signal.SIGKILL

    with Conversation.open("audit", store=store) as conversation:
        (turn,) = conversation.turns().items
        print(f"{conversation.status()}: {tally(turn)}")
        assert turn.calls[-1].status == "unknown"  # it was started, and nobody knows whether it finished

        turn = conversation.resume()  # the model is told so, and looks; resume(rerun=[...]) would run the call again
        print(f"{turn.outcome}: {tally(turn)}. {turn.text}")
        assert [call.tool for call in turn.calls].count("read_report") == 1
        assert written(folder) == FILES
        assert conversation.verify().ok


def tally(turn: Turn) -> str:
    """How many calls stand how."""
    statuses = [call.status for call in turn.calls]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def written(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "report.txt").read_text().splitlines()]


def main() -> None:
    for story in (the_provider_fails, the_process_dies):
        with tempfile.TemporaryDirectory() as folder:
            story(Path(folder))


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the process that is killed
        store, folder = sys.argv[1:]
        Conversation(AGENT, conversation_id="audit", workspace=folder, store=store).run("Check all modules.")
    else:
        main()

"""A risky tool waits for somebody's approval: durably, so that the process which asked may end meanwhile.

Run it with `./run python examples/approval.py`. It needs no key and no network. It plays both parts: it starts itself
twice, as a program that asks and ends, and as the one that approves later.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from forkpoint import Agent, Conversation, ToolContext, tool
from forkpoint.errors import ForkpointError
from forkpoint.events import ApprovalGiven
from forkpoint.testing import Heard, Reply, Script, ScriptedCall


@tool(risky=True)
def deploy(ctx: ToolContext, version: str) -> str:
    """Puts a version into production."""
    assert ctx.workspace is not None
    with (ctx.workspace / "deployments").open("a") as world:  # the world outside, which no rollback undoes
        world.write(f"{version} {ctx.key}\n")
    return f"{version} is live"


def scripted(heard: Heard) -> Reply:
    """A model that deploys what it is asked to. A real one goes in the same place: "local/smollm2", "openai/NAME"."""
    newest = heard.body["messages"][-1]
    if newest["role"] == "user":
        return Reply("I will deploy it.", calls=(ScriptedCall("deploy", '{"version": "1.8"}'),))
    return Reply(f"Done: {newest['content']}.")


AGENT = Agent(Script(scripted).register("deployer"), tools=[deploy], approval="risky")


def ask(store: str, folder: str) -> None:
    """The first process: it runs until something waits, and ends."""
    with Conversation(AGENT, conversation_id="release", workspace=folder, store=store) as conversation:
        turn = conversation.run("Ship 1.8, please.")
        assert turn.outcome == "awaiting_approval"
        print(f"{len(turn.waiting)} call waits")


def approve(store: str, folder: str) -> None:
    """The second process: it knows the conversation's name, and looks before it approves."""
    with Conversation.open("release", store=store) as conversation:  # its tools are imported again
        waiting = conversation.open_turn()
        assert waiting is not None
        print(f"the model says: {waiting.text}")
        for call in waiting.waiting:
            print(f"waits: {call.tool} {call.arguments} because {call.reason}")
        turn = conversation.approve(by="ana")  # the calls that were shown, and no others
        assert turn.outcome == "committed"
        print(f"committed: {turn.text}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, world = f"sqlite:///{folder}/forkpoint.db", Path(folder) / "deployments"

        in_a_process_of_its_own("ask", store, folder)
        with Conversation.open("release", store=store) as conversation:
            assert conversation.status() == "awaiting_approval"
            assert not world.exists()  # nothing was run
            assert conversation.events() == []  # and nothing is history
            assert refusal(lambda: conversation.run("And 1.9?")) == "turn_open"  # one thing after the other
            assert refusal(lambda: conversation.approve(by="ben")) == "not_shown"  # nobody approves what was not shown

        in_a_process_of_its_own("approve", store, folder)
        with Conversation.open("release", store=store) as conversation:
            assert conversation.status() == "idle"
            assert refusal(lambda: conversation.approve(by="ben")) == "no_such_turn"  # somebody else was first
            names = [event.body.by for event in conversation.events() if isinstance(event.body, ApprovalGiven)]
            assert names == ["ana"]
        assert len(world.read_text().splitlines()) == 1  # it ran once
        print("1.8 was deployed once, and the record says who approved it")


def refusal(attempt: Callable[[], object]) -> str | None:
    """The code of the error that an attempt meets."""
    try:
        attempt()
    except ForkpointError as error:
        print(f"refused: {error}")
        return error.code
    return None


def in_a_process_of_its_own(*arguments: str) -> None:
    again = [*sys.orig_argv, *arguments]  # this very program
    done = subprocess.run(again, check=True, capture_output=True, text=True)
    print(f"[{arguments[0]}] {done.stdout.strip()}")


if __name__ == "__main__":
    parts = {"ask": ask, "approve": approve}
    if len(sys.argv) > 1:
        parts[sys.argv[1]](*sys.argv[2:])
    else:
        main()

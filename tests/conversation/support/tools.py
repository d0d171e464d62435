"""A model and tools that several processes know by the same names, so that one can go on where another stopped.

The model is obedient: a user's message is JSON, a list of steps, each a list of ``[tool, arguments]``; it asks for the
calls of one step after the other, and then says what they came to. Each tool writes a line to ``log`` in the workspace
when it runs, so that a test sees how often it did, whichever process it was in.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from forkpoint.agent import Agent, ToolContext, tool
from forkpoint.testing import Heard, Reply, Script, ScriptedCall


def obedient(heard: Heard) -> Reply:
    messages: list[dict[str, Any]] = heard.body["messages"]
    asked = max(n for n, message in enumerate(messages) if message["role"] == "user")
    since = messages[asked + 1 :]
    steps = json.loads(heard.text) if heard.text.startswith("[") else []
    done = sum(bool(message.get("tool_calls")) for message in since)
    if done < len(steps):
        named = enumerate(steps[done])
        return Reply(calls=tuple(ScriptedCall(name, json.dumps(args), f"c{done}-{n}") for n, (name, args) in named))
    results = [message["content"] for message in since if message["role"] == "tool"]
    return Reply(f"Done: {' | '.join(results)}")


MODEL = Script(obedient).register("obedient")


def _log(ctx: ToolContext, line: str) -> None:
    assert ctx.workspace is not None
    with open(ctx.workspace / "log", "a") as log:
        log.write(line + "\n")


@tool
def write(ctx: ToolContext, line: str) -> str:
    """Writes a line."""
    _log(ctx, line)
    return f"wrote {line}"


@tool(risky=True)
def erase(ctx: ToolContext) -> str:
    """Erases something."""
    _log(ctx, "erased")
    return "erased"


@tool
def wait(ctx: ToolContext) -> str:
    """Says that it waits, and waits for a line on standard input."""
    _log(ctx, "waits")
    print("waits", flush=True)
    return f"was told {sys.stdin.readline().strip()}"


@tool(repeatable=True)
def wait_again(ctx: ToolContext) -> str:
    """The same, and does no harm when it is run twice: run again, it does not wait."""
    _log(ctx, f"waits again as {ctx.call_id} with {ctx.key}")
    assert ctx.workspace is not None
    if (ctx.workspace / "log").read_text().count("waits again") == 1:
        print("waits", flush=True)
        sys.stdin.readline()
    return "ran"


@tool(risky=True)
def die_once(ctx: ToolContext, line: str) -> str:
    """Writes a line, and kills its process if that is the first line."""
    _log(ctx, line)
    if len(logged(ctx.workspace or Path())) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"wrote {line}"


def agent(**settings: Any) -> Agent:
    """The obedient agent with all tools."""
    return Agent(MODEL, tools=[write, erase, wait, wait_again, die_once], **settings)


def steps(*steps: list[tuple[str, dict[str, Any]]]) -> str:
    """A message that makes the model ask for these calls, step by step."""
    return json.dumps(steps)


def logged(workspace: Path) -> list[str]:
    """What the tools wrote, in order."""
    log = workspace / "log"
    return log.read_text().splitlines() if log.exists() else []

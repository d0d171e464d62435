"""A process is killed, and another opens what it left: the same request, identity, state and family, to the byte."""

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conversation.support.homes import new_file

from forkpoint.testing import Heard, Reply, Script, ScriptedCall
from forkpoint.testing.model_server import ModelServer

BOTH = '''
    """What both processes have: an agent, and how to look at everything."""

    import os, signal, sys

    import msgspec

    from forkpoint import LLM, Agent, Conversation, ToolContext, tool

    store, url = sys.argv[1:]
    WIRES = "chat", "responses"
    NAMES = [f"{wire}-{name}" for wire in WIRES for name in ("source", "warm", "cold")]


    @tool
    def remember(ctx: ToolContext, key: str, value: int) -> str:
        """Remembers a number."""
        ctx.state[key] = value
        return "remembered"


    def asks(call, tool):
        return False


    def agent(wire):
        llm = LLM("openai/m", api=wire, base_url=url, temperature=0.5, max_tokens=100)
        return Agent(llm, instructions="Be brief. é", tools=[remember], approval=asks, name="builder")


    def family(branches):
        return [[one.info.id, one.info.lineage, one.info.cache, family(one.branches)] for one in branches]


    def facts():
        told = {}
        for name in NAMES:
            with Conversation.open(name, store=store) as this:
                told[name] = {
                    "events": this.events(),
                    "state": this.agent_state(),
                    "cache": this.cache(),
                    "agent": this.agent.to_json(),
                    "workspace": str(this.workspace),
                    "tree": family(this.tree()),
                    "next": [(it := this.request("What next?")).body, it.headers, it.key],
                }
        print(msgspec.json.encode(told).decode(), flush=True)
'''

FIRST = """
    from both import *


    def dies(update):
        if type(update).__name__ == "TextPiece" and deadly:
            os.kill(os.getpid(), signal.SIGKILL)


    deadly = False
    for wire in WIRES:
        source = Conversation(
            agent(wire), conversation_id=f"{wire}-source", store=store, workspace=".", callbacks=[dies]
        )
        first = source.run("one")
        source.run("two")
        source.update_state({"b": [1, 2]})
        warm = source.fork(conversation_id=f"{wire}-warm", cache="inherit")
        cold = source.fork(conversation_id=f"{wire}-cold", at=first)
        warm.run("three")
    facts()
    deadly = True
    source.run("four")
"""

SECOND = """
    from both import *

    facts()
    with Conversation.open("responses-source", store=store) as source:
        assert source.status() == "interrupted"
        source.retry()
        assert source.verify().ok
    for name in ("chat-warm", "responses-cold"):
        with Conversation.open(name, store=store) as this:
            this.run("What next?")
"""


def answer(heard: Heard) -> Reply:
    """Remembers something in the second turn, and says something in all."""
    last = heard.body[{"responses": "input"}.get(heard.wire, "messages")][-1]
    if heard.text == "two" and "remembered" not in json.dumps(last):
        return Reply(reasoning="Worth it.", calls=(ScriptedCall("remember", '{"key": "a", "value": 1}'),))
    return Reply(f"This is what I have to say to {heard.text}, and no more.")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(Script(answer)) as server:
        yield server


@pytest.mark.skipif(sys.platform == "win32", reason="nobody is killed like this there")
def test_a_process_that_opens_what_a_killed_one_left_sends_the_very_same(server: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(textwrap.dedent(BOTH))
    arguments = f"sqlite:///{new_file(tmp_path)}", server.url
    killed, before = run(FIRST, tmp_path, *arguments)
    assert killed == -signal.SIGKILL
    sent = server.requests[-1]
    assert b"four" in sent.body
    ended, after = run(SECOND, tmp_path, *arguments)
    assert ended == 0
    assert len(before) == 6
    for name, was in before.items():
        assert after[name] == was, name
    source, warm, cold = (before[f"chat-{name}"] for name in ("source", "warm", "cold"))
    assert source["state"] == {"a": 1, "b": [1, 2]}
    assert len(source["tree"][0][3]) == 2, "there is a family to be the same"
    assert warm["cache"]["key"] == source["cache"]["key"] != cold["cache"]["key"]
    again, *others = server.requests[sent.number + 1 :]
    assert again.body == sent.body
    assert stable(again.headers) == stable(sent.headers)
    for name, request in zip(("chat-warm", "responses-cold"), others, strict=True):
        body, _, key = before[name]["next"]
        assert request.body.decode() == body, "what the first process would have sent next"
        assert request.key == key == before[name]["cache"]["key"]


def stable(headers: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """What a client says of itself and of the conversation, without what is new with each connection."""
    return [(name, value) for name, value in headers if name.lower() not in {"host", "connection"}]


def run(code: str, folder: Path, *arguments: str) -> tuple[int, Any]:
    """How a process ends, and what it tells."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", textwrap.dedent(code), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)

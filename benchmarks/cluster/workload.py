"""What turns do, and what the model of the nodes answers. What a turn does stands in its message.

A message is ``say KEY ...``, ``slow KEY ...`` or ``tool N KEY ...``; the last one makes the model ask for N calls, one
after the other, of a tool that writes ``KEY-NUMBER`` into a file that all nodes share. The tool is not repeatable: a
call that was started and has no result is not run again.
"""

import json
from typing import Any

from forkpoint.testing import Heard, Reply, ScriptedCall


def say(key: str) -> str:
    return f"say {key} " + "and some more words " * 5


def slow(key: str) -> str:
    return f"slow {key} " + "and some more words " * 5


def use_tool(key: str, times: int) -> str:
    return f"tool {times} {key}"


def answer_to(message: str) -> str:
    """What a turn with this message must end with."""
    words = message.split(" ", 2)
    return f"Done: {words[2]}" if words[0] == "tool" else f"You said: {message}"


def reply(heard: Heard) -> Reply:
    """What the model says."""
    words = heard.text.split(" ", 2)
    match words[0]:
        case "tool":
            messages: list[dict[str, Any]] = heard.body["messages"]
            asked = max(number for number, message in enumerate(messages) if message["role"] == "user")
            done = sum(bool(message.get("tool_calls")) for message in messages[asked + 1 :])
            if done < int(words[1]):
                return Reply(calls=(ScriptedCall("note", json.dumps({"line": f"{words[2]}-{done}"})),), delay=0.02)
            return Reply(answer_to(heard.text), delay=0.02)
        case "slow":
            return Reply(answer_to(heard.text), delay=0.3, pace=0.05)
        case _:
            return Reply(answer_to(heard.text), delay=0.02)

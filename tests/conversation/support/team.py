"""A model that does what it is told, round by round, so that a test says in a message what a family does."""

import json
from typing import Any

from tests.conversation.support.agents import call, messages_of, scripted

from forkpoint.agent import Agent, SubAgents
from forkpoint.testing import Heard, Reply, ScriptedCall


def orders(*rounds: list[ScriptedCall], say: str = "") -> str:
    """A message that makes the model ask for these calls, one round after the other, and then say something.

    Without words of its own it says what the last round's results were.
    """
    asked = [[[one.tool, json.loads(one.arguments), one.call_id] for one in calls] for calls in rounds]
    return json.dumps({"do": asked, "say": say})


def obedient(heard: Heard) -> Reply:
    """Follows `orders`; says "Did TEXT" to anything else."""
    messages = messages_of(heard)
    asked = max(n for n, message in enumerate(messages) if message["role"] == "user")
    since = messages[asked + 1 :]
    if not heard.text.startswith('{"do"'):
        return Reply(f"Did {heard.text}")
    told: dict[str, Any] = json.loads(heard.text)
    done = sum(message["role"] == "assistant" for message in since)
    if done < len(told["do"]):
        calls = [ScriptedCall(tool, json.dumps(arguments), id) for tool, arguments, id in told["do"][done]]
        return Reply(calls=tuple(calls))
    results: list[str] = []
    for message in reversed(since):
        if message["role"] != "tool":
            break
        results.insert(0, message["content"])
    return Reply(told["say"] or " | ".join(results))


def lead(sub_agents: SubAgents | bool = True, **settings: Any) -> Agent:
    """An agent that does what it is told, and may have sub-agents."""
    return Agent(scripted(obedient), sub_agents=sub_agents, **settings)


def spawn(task: str, id: str | None = None, /, **how: Any) -> ScriptedCall:
    return call("spawn_agent", id, task=task, **how)


def wait(id: str | None = None, /, **how: Any) -> ScriptedCall:
    return call("wait_agent", id, **how)


def send(agent: str, message: str, id: str | None = None, /) -> ScriptedCall:
    return call("send_to_agent", id, agent=agent, message=message)


def close(agent: str, id: str | None = None, /) -> ScriptedCall:
    return call("close_agent", id, agent=agent)


def told(text: str) -> list[dict[str, Any]]:
    """What a model was told of its sub-agents, from the result of a call."""
    found: Any = json.loads(text)
    return found if isinstance(found, list) else [found]

"""A parent and two forked children on the real small model: what the parent was asked is in the cache for them.

A model this small does not call tools by itself. So in one step of the parent its words are replaced by calls, after
it was asked as ever and has read its whole prompt. All else that is said here, it has said.
"""

import json
from typing import Any

import pytest

from forkpoint import LLM, Agent, AsyncConversation, Role, SubAgents
from forkpoint.backend.options import Draft
from forkpoint.backend.settings import Settings
from forkpoint.conversation import Turn
from forkpoint.engine.engine import Engine
from forkpoint.events import ModelCalled, ToolCall, Usage
from forkpoint.ids import new_id
from forkpoint.llm import Models
from forkpoint.llm.answers import Answer
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.providers.local import LocalProvider
from forkpoint.llm.request import Request
from forkpoint.store import open_store

pytestmark = pytest.mark.anyio

SMALL = LLM("local/smollm2", context_tokens=1024, temperature=0, max_tokens=8)
RULES = "You are a guide who knows every country. You answer in one short sentence, and you are kind. " * 10
DELEGATE = "Let two others help you."
TASKS = "Name a river of France.", "Name a mountain of France."


class Delegating(LocalProvider):
    """The real model. When it is to delegate, it is heard, and then taken to have called for two others."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, list[Any]] = {}  # the first request for each message of a user

    async def ask(self, request: Request, hearing: Hearing) -> Answer:
        messages = json.loads(request.body)["messages"]
        said = [message["content"] for message in messages if message["role"] == "user"][-1]
        self.asked.setdefault(said, messages)
        answer = await super().ask(request, hearing)
        if messages[-1]["content"] != DELEGATE:
            return answer
        calls = [
            ToolCall(f"call_{n}", "spawn_agent", json.dumps({"task": task, "fork": "all", "role": "guide"}))
            for n, task in enumerate(TASKS, start=1)
        ]
        return Answer((*calls, ToolCall("call_3", "wait_agent", "{}")), "tool_calls", answer.response_id)


async def test_two_forked_children_find_95_percent_of_what_they_share_with_their_parent_in_the_cache() -> None:
    agent = Agent(SMALL, instructions=RULES, sub_agents=SubAgents(roles={"guide": Role("guides")}))
    settings = Settings.of(agent, None)
    model = Delegating()
    backend = Engine(await open_store("memory:"), Models({"local": model}))
    try:
        info = await backend.create(Draft(id=new_id(), name=None, settings=settings))
        parent = AsyncConversation.over(backend, info, settings, agent)
        await parent.run("What is the capital of France?")
        asked, then = steps_of(await parent.run(DELEGATE))
        members = await parent.list_agents()
        children = [steps_of(await backend.turns.read(one.conversation, one.turn or ""))[0] for one in members]
        verified = await parent.verify()
    finally:
        await backend.close()

    assert [one.task for one in members] == list(TASKS)
    assert all(one.answer for one in members), "somebody has said nothing"
    for task in TASKS:
        shared = [*model.asked[DELEGATE], model.asked[task][len(model.asked[DELEGATE])]]
        assert [call["id"] for call in shared[-1]["tool_calls"]] == ["call_1", "call_2", "call_3"]
        assert model.asked[task][: len(shared)] == shared, "it does not begin with what its parent was asked and said"
    share = max(asked.input, then.cached)  # how many tokens that is: what it said is read with the next request
    assert share > 150
    for used in children:
        assert used.cached >= 0.95 * share, f"only {used.cached} of {share} shared tokens were cached"
    assert verified.ok


def steps_of(turn: Turn) -> list[Usage]:
    """What each call of the model in a turn has used."""
    assert turn.outcome == "committed"
    return [event.body.usage for event in turn.events if isinstance(event.body, ModelCalled)]

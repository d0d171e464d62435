"""A family on a recording server: a parent that gives work to children, which give work to theirs.

The model answers by what it is shown and by nothing else: a task that names others is given on to them, all in one
response; then it waits for all of them; then it answers. It speaks each wire.
"""

import json
import threading
import zlib
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from forkpoint import LLM, Agent, SubAgents
from forkpoint.events import Usage
from forkpoint.testing import Heard, ModelServer, Recorded, Reply, Script, ScriptedCall, SimulatedCache

WIRES = "chat", "responses", "messages"
INSTRUCTIONS = "You explore a country, and what you have seen you tell in few words. " * 60


def asks_for(*tasks: str, fork: str | int = "all", **how: Any) -> str:
    """A message that lets the model give these tasks to others."""
    return json.dumps({"give": tasks, "how": {"fork": fork, **how}})


def family_task(children: int, grandchildren: int, *, fork: str | int = "all") -> str:
    """A message to a parent that shall have so many children, each of which shall have so many."""
    tasks = [
        asks_for(*(f"place {child}.{place}" for place in range(1, grandchildren + 1)), fork=fork)
        for child in range(1, children + 1)
    ]
    return asks_for(*tasks, fork=fork)


def llm_at(server: ModelServer, wire: str, model: str = "a-model", **settings: Any) -> LLM:
    if wire == "messages":
        return LLM(f"anthropic/{model}", base_url=server.root, **settings)
    return LLM(f"openai/{model}", api=wire, base_url=server.url, **settings)  # type: ignore[arg-type]


def agent_at(server: ModelServer, wire: str = "chat", **limits: Any) -> Agent:
    return Agent(llm_at(server, wire), instructions=INSTRUCTIONS, sub_agents=SubAgents(**limits))


class Explorers:
    """The model, and what it was paid for each task. Its provider has a cache."""

    def __init__(self, *, same_ids: bool = False) -> None:
        self.paid: defaultdict[str, Usage] = defaultdict(Usage)
        self.first: dict[str, Usage] = {}  # what the first request of each task used
        self._same_ids = same_ids  # whether it counts its calls anew in each response
        self._cache = SimulatedCache(minimum=64, granularity=16, shards=64)
        self._lock = threading.Lock()

    def serve(self) -> ModelServer:
        return ModelServer(Script(self.answer))

    def answer(self, heard: Heard) -> Reply:
        task, results = since_asked(heard.body)
        with self._lock:
            counted = self._cache.of_body(heard.body, wire=heard.wire, key=heard.body.get("prompt_cache_key"))
            used = msgspec.structs.replace(counted, output=7 + len(results))
            self.paid[task] += used
            self.first.setdefault(task, used)
        return msgspec.structs.replace(self._said(task, results), usage=used)

    def _said(self, task: str, results: Sequence[str]) -> Reply:
        if not task.startswith("{"):
            return Reply(f"I saw {task}.")
        asked = json.loads(task)
        tasks: list[str] = asked["give"]
        if not results:
            return Reply("Others shall look.", reasoning="That is much.", calls=self._calls(tasks, asked["how"]))
        if len(results) == len(tasks):
            return Reply(calls=(ScriptedCall("wait_agent", "{}", self._id(task, 0)),))
        return Reply(f"They told me: {' '.join(results)}")

    def _calls(self, tasks: Sequence[str], how: dict[str, Any]) -> tuple[ScriptedCall, ...]:
        return tuple(
            ScriptedCall("spawn_agent", json.dumps({"task": task, **how}), self._id(task, number))
            for number, task in enumerate(tasks, start=1)
        )

    def _id(self, task: str, number: int) -> str:
        return f"call_{number}" if self._same_ids else f"call_{number}_{zlib.crc32(task.encode()):08x}"


# What a request shows.


def task_of(request: Recorded) -> str:
    """The task that a request is about: the newest words of a user."""
    return since_asked(request.json)[0]


def first_requests(requests: Sequence[Recorded]) -> dict[str, Recorded]:
    """The first request of each task."""
    found: dict[str, Recorded] = {}
    for request in requests:
        found.setdefault(task_of(request), request)
    return found


def shown(request: Recorded) -> tuple[str | None, str | None]:
    """What a request shows of its conversation: the key and the session."""
    assert request.header("session_id") == request.header("x-session-id")
    return request.key, request.header("x-session-id")


def with_response(requests: Sequence[Recorded], task: str) -> tuple[bytes, ...]:
    """The blocks of a task's first request, and those of the response that it got, as its next request shows them."""
    asked, then = [request for request in requests if task_of(request) == task][:2]
    assert then.blocks[: len(asked.blocks)] == asked.blocks, "its own next request starts with other blocks"
    said = takewhile(lambda block: _answered(json.loads(block)) is None, then.blocks[len(asked.blocks) :])
    return asked.blocks + tuple(said)


def calls_in(blocks: Sequence[bytes]) -> list[str]:
    """The ids of the calls in these blocks, in order."""
    return [id for block in blocks for id in _asked(json.loads(block))]


def answers_in(blocks: Sequence[bytes]) -> list[str]:
    """The ids of the calls that these blocks answer, in order."""
    answered = [_answered(json.loads(block)) for block in blocks]
    return [id for id in answered if id is not None]


def since_asked(body: Any) -> tuple[str, list[str]]:
    """The newest words of a user, and the results since then."""
    words, results = "", list[str]()
    for item in body.get("messages") or body["input"]:
        content = item.get("content", "")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if item.get("type") == "function_call_output" or item.get("role") == "tool":
            results.append(_text(item.get("output", content)))
        elif item.get("role") == "user":
            for part in parts:
                if part["type"] == "tool_result":
                    results.append(_text(part["content"]))
                else:
                    words, results = part["text"], []
    return words, results


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _asked(block: Any) -> list[str]:
    """The calls in one block, on any wire."""
    match block:
        case {"role": "assistant", "tool_calls": [*calls]}:
            return [call["id"] for call in calls]
        case {"role": "assistant", "content": {"type": "tool_use", "id": id}} | {
            "type": "function_call",
            "call_id": id,
        }:
            return [id]
        case _:
            return []


def _answered(block: Any) -> str | None:
    """The call that a block answers, on any wire; None if it is no result."""
    match block:
        case (
            {"role": "tool", "tool_call_id": str(id)}
            | {"type": "function_call_output", "call_id": str(id)}
            | {"content": {"type": "tool_result", "tool_use_id": str(id)}}
        ):
            return id
        case _:
            return None

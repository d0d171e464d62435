"""Clients that send lists of messages, and a model that keeps what it was asked."""

import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import httpx2
from tests.server.chat.chatting import NAME, PATH, system, user
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE

from forkpoint.agent import Agent, Tool, tool
from forkpoint.llm import LLM, Retries
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Fault, Heard, Reply, Script, ScriptedCall

Message: TypeAlias = dict[str, Any]

__all__ = ["FULL", "NAME", "Chat", "Message", "Model", "system", "user"]

PLACE = "/api/conversations"
FULL = {"X-Conversation-History": "full"}


# Messages.


def assistant(text: str | None, *calls: tuple[str, str, str]) -> Message:
    """The assistant's words; with calls: id, tool and arguments of each."""
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return message


def result(id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": text}


def function(name: str, **parameters: str) -> dict[str, Any]:
    """A tool of the client, with texts as its parameters."""
    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in parameters.items()}}
    return {"type": "function", "function": {"name": name, "description": f"It can {name}.", "parameters": schema}}


# The model.


class Model:
    """A scripted model that does what it is told, and keeps the bodies of the requests that it got.

    ``use TOOL {...}; TOOL {...}`` makes calls, ``fail`` is an error of the provider, and all else is answered with a
    number in the answer, so that no two answers are the same. It thinks before it speaks.
    """

    def __init__(self, name: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.llm = LLM(Script(self._reply).register(f"{name}-{os.getpid()}"), retries=Retries(attempts=1))

    @property
    def heard(self) -> list[str]:
        """What it was asked last, a line for each thing."""
        return lines(self.bodies[-1])

    def _reply(self, heard: Heard) -> Reply:
        self.bodies.append(heard.body)
        return obedient(heard)


def obedient(heard: Heard) -> Reply:
    """The answer of a `Model`."""
    messages = heard.body["messages"]
    if heard.text.startswith("fail"):
        return Reply(fault=Fault("status", status=500))
    since = messages[max(n for n, message in enumerate(messages) if message["role"] == "user") + 1 :]
    done = [message["content"] for message in since if message["role"] == "tool"]
    if heard.text.startswith("use ") and not done:
        asked = (call.strip().partition(" ") for call in heard.text[4:].split(";"))
        calls = tuple(ScriptedCall(name, arguments or "{}") for name, _, arguments in asked)
        return Reply("On it.", reasoning="A tool will do.", calls=calls, piece=5)
    said = f"Done: {' | '.join(done)}" if done else f"Answer {heard.number} to {heard.text}"
    return Reply(said, reasoning=f"Thought {heard.number}", piece=5)


def lines(body: dict[str, Any]) -> list[str]:
    """The messages of a request to a model on the chat wire, a line for each thing that they say."""
    said: list[str] = []
    for message in body["messages"]:
        content = message.get("content")
        if message.get("reasoning_content"):
            said.append(f"thought: {message['reasoning_content']}")
        if content and message["role"] != "tool":
            said.append(f"{message['role']}: {content if isinstance(content, str) else json.dumps(content)}")
        calls = (call["function"] for call in message.get("tool_calls") or ())
        said += [f"call: {call['name']} {call['arguments']}" for call in calls]
        if message["role"] == "tool":
            said.append(f"result: {content}")
    return said


@tool
def look(what: str) -> str:
    """Looks at something."""
    return f"saw {what}"


class Gates:
    """Places where turns wait, each with a name: ``use hold {"at": NAME}``."""

    def __init__(self) -> None:
        self._reached: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self._open: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def reached(self, name: str) -> None:
        """Returns when somebody waits there."""
        assert self._reached[name].wait(PATIENCE), f"nobody came to {name}"

    def open(self, name: str) -> None:
        self._open[name].set()

    def open_all(self) -> None:
        for gate in self._reached:
            self._open[gate].set()

    @property
    def tool(self) -> Tool:
        @tool
        def hold(at: str) -> str:
            """Waits."""
            self._reached[at].set()
            assert self._open[at].wait(PATIENCE)
            return f"held at {at}"

        return hold


# The client.


class Chat:
    """A client of chat completions that knows the native calls too, to look at what came of them."""

    def __init__(self, server: Served, model: Model | None = None, *, key: str | None = None, **headers: str) -> None:
        self.server = server
        self.model = model
        self.http = server.client(key)
        self.headers = headers
        self.gates = Gates()
        self._threads = ThreadPoolExecutor(8)

    def post(
        self, messages: list[Message], name: str | None = None, headers: dict[str, str] | None = None, **body: Any
    ) -> httpx2.Response:
        """Sends a list, for the conversation of this name."""
        named = {} if name is None else {NAME: name}
        sent = {"model": "helper", "messages": messages, **body}
        return self.http.post(PATH, json=sent, headers={**self.headers, **named, **(headers or {})})

    def say(
        self, messages: list[Message], name: str | None = None, headers: dict[str, str] | None = None, **body: Any
    ) -> str:
        """The answer's words."""
        return str(answer(self.post(messages, name, headers, **body))["content"])

    def stream(
        self, messages: list[Message], name: str | None = None, headers: dict[str, str] | None = None, **body: Any
    ) -> list[dict[str, Any]]:
        """The chunks of a streamed answer, which must end well."""
        response = self.post(messages, name, headers, stream=True, **body)
        assert response.status_code == 200, response.text
        data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
        assert data[-1] == "[DONE]", data
        return [json.loads(line) for line in data[:-1]]

    def soon(self, *args: Any, **options: Any) -> "Future[httpx2.Response]":
        """`post` in a thread of its own, while the test goes on."""
        return self._threads.submit(self.post, *args, **options)

    # What came of it.

    def get(self, path: str, **query: Any) -> Any:
        found = self.http.get(f"{PLACE}{path}", params=query)
        assert found.status_code == 200, found.text
        return found.json()

    def names(self) -> set[str]:
        """Of all conversations that are listed, but for what was set aside."""
        return {one["name"] for one in self.get("", limit=1000)["items"] if one["lineage"]["kind"] != "aside"}

    def aside(self, name: str) -> list[str]:
        """The branches that were set aside."""
        family, id = self.get(f"/{name}/tree")["items"], self.get(f"/{name}")["id"]
        return [one["id"] for one in family if (one["lineage"]["kind"], one["lineage"]["source"]) == ("aside", id)]

    def sides(self, name: str) -> list[str]:
        """What was asked beside it."""
        family, id = self.get(f"/{name}/tree")["items"], self.get(f"/{name}")["id"]
        return [one["id"] for one in family if (one["lineage"]["kind"], one["lineage"]["source"]) == ("side", id)]

    def events(self, name: str, *kinds: str) -> list[dict[str, Any]]:
        found = self.get(f"/{name}/events", limit=1000)["items"]
        return [event["body"] for event in found if not kinds or event["kind"] in kinds]

    def history(self, name: str) -> list[str]:
        """What was said in a conversation, a line for each message, call and result."""
        return [_line(event) for event in self.events(name, *_SHOWN)]

    def everything(self, name: str) -> dict[str, list[str]]:
        """The histories of a conversation and of all that was set aside from it."""
        return {one: self.history(one) for one in (name, *self.aside(name))}

    def standing(self, name: str) -> tuple[Any, ...]:
        """What no failed turn may change: where the name points to, and all branches."""
        info = self.get(f"/{name}")
        same = ("id", "head", "digest", "revision", "status", "agent", "model")
        return (*(info[field] for field in same), self.everything(name), self.events(name))

    def verify(self) -> None:
        """The whole store is sound."""
        found = self.http.post("/api/verify", json={}).json()
        assert found["ok"], found

    def close(self) -> None:
        self.http.close()
        self._threads.shutdown()


def answer(response: httpx2.Response) -> dict[str, Any]:
    """The message of an answer that must be there."""
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def refused(response: httpx2.Response, status: int, code: str) -> str:
    """What a refusal says, which must be this one."""
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    return str(response.json()["error"]["message"])


def put_together(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The message that chunks make, and why it ended."""
    message: dict[str, Any] = {"content": "", "reasoning_content": ""}
    calls: dict[int, dict[str, Any]] = {}
    finish = ""
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls", ()):
                if piece["index"] not in calls:
                    calls[piece["index"]] = {key: value for key, value in piece.items() if key != "index"}
                else:
                    assert set(piece) == {"index", "function"}, piece
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message, finish


@contextmanager
def chatting(name: str, *, store: str = "memory:", **options: Any) -> Iterator[Chat]:
    """A client of a server with the agent ``helper``, which has a tool to look and one to hold; sound at the end."""
    model, gates = Model(name), Gates()
    tools = [look, gates.tool, *options.pop("tools", ())]
    key, headers = options.pop("key", None), options.pop("headers", {})
    agent = Agent(model.llm, instructions="Be kind.", tools=tools, **options.pop("agent", {}))
    agents = Catalog({"helper": agent, **options.pop("others", {})})
    with served(store, agents, **options) as server:
        chat = Chat(server, model, key=key, **headers)
        chat.gates = gates
        try:
            yield chat
            chat.verify()
        finally:
            gates.open_all()
            chat.close()


_SHOWN = ("user_message", "assistant_message", "tool_call", "tool_result")


def _line(event: dict[str, Any]) -> str:
    kind = event["kind"].removesuffix("_message")
    if kind == "tool_call":
        return f"call: {event['tool']} {event['arguments']}"
    words = " ".join(part.get("text", "...") for part in event.get("parts", ()))
    if kind == "tool_result":
        status = event.get("status", "ok")
        return f"result: {words}" if status == "ok" else f"result ({status}): {words}".strip()
    return f"{kind}: {words}"

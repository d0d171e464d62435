"""Responses as tests ask for them: few words for a request, and each object and event checked with Open Responses."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
import openresponses_types as types
from pydantic import BaseModel
from tests.server.chat.chatting import agents_at
from tests.server.support.families import inside
from tests.server.support.serving import Served, served
from tests.server.support.turning import Api, using

from forkpoint.server.wires.responses.items.ids import turn_of_response
from forkpoint.testing import ModelServer, Reply, Script

PATH = "/v1/responses"
EVENTS: dict[str, type[BaseModel]] = {
    "response.created": types.ResponseCreatedStreamingEvent,
    "response.in_progress": types.ResponseInProgressStreamingEvent,
    "response.completed": types.ResponseCompletedStreamingEvent,
    "response.failed": types.ResponseFailedStreamingEvent,
    "response.incomplete": types.ResponseIncompleteStreamingEvent,
    "response.output_item.added": types.ResponseOutputItemAddedStreamingEvent,
    "response.output_item.done": types.ResponseOutputItemDoneStreamingEvent,
    "response.content_part.added": types.ResponseContentPartAddedStreamingEvent,
    "response.content_part.done": types.ResponseContentPartDoneStreamingEvent,
    "response.output_text.delta": types.ResponseOutputTextDeltaStreamingEvent,
    "response.output_text.done": types.ResponseOutputTextDoneStreamingEvent,
    "response.refusal.delta": types.ResponseRefusalDeltaStreamingEvent,
    "response.refusal.done": types.ResponseRefusalDoneStreamingEvent,
    "response.function_call_arguments.delta": types.ResponseFunctionCallArgumentsDeltaStreamingEvent,
    "response.function_call_arguments.done": types.ResponseFunctionCallArgumentsDoneStreamingEvent,
    "response.reasoning_summary_part.added": types.ResponseReasoningSummaryPartAddedStreamingEvent,
    "response.reasoning_summary_part.done": types.ResponseReasoningSummaryPartDoneStreamingEvent,
    "response.reasoning_summary_text.delta": types.ResponseReasoningSummaryDeltaStreamingEvent,
    "response.reasoning_summary_text.done": types.ResponseReasoningSummaryDoneStreamingEvent,
}
LAST = ("response.completed", "response.failed", "response.incomplete")


class Place:
    """A server of responses, and the model behind it."""

    def __init__(self, server: Served, api: Api, models: ModelServer) -> None:
        self.server = server
        self.api = api
        self.models = models

    def script(self, *replies: Reply | Any) -> None:
        """The model answers so from now on."""
        self.models.script = Script(list(replies))

    def post(self, input: Any = "Hello", *, headers: Mapping[str, str] | None = None, **fields: Any) -> httpx2.Response:
        return self.api.http.post(PATH, json=body(input, **fields), headers=dict(headers or {}))

    def ask(self, input: Any = "Hello", *, headers: Mapping[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        """The response object, which is well and whole."""
        return checked(self.post(input, headers=headers, **fields))

    def get(self, id: str, **query: Any) -> dict[str, Any]:
        return checked(self.api.http.get(f"{PATH}/{id}", params=query))

    def stream(self, input: Any = "Hello", **fields: Any) -> list[dict[str, Any]]:
        """All events of a response."""
        return events_of(self.post(input, stream=True, **fields))

    def said(self, id: str) -> list[str]:
        """What stands in the conversation of a response, in words."""
        return self.api.said(self.conversation(id))

    def conversation(self, id: str) -> str:
        """The conversation whose turn a response is."""
        backend = self.server.services.tenants.backend("default")
        stored = inside(self.server, backend.placement.turn(turn_of_response(id)))
        return stored.conversation


@contextmanager
def responding(*replies: Reply | Any, store: str = "memory:", **options: Any) -> Iterator[Place]:
    """A server with one agent, ``helper``, whose model answers so."""
    settings = {name: options.pop(name) for name in ("settings", "keyring") if name in options}
    with (
        ModelServer(Script(list(replies))) as models,
        served(store, agents_at(models, **options), **settings) as server,
        using(server.url) as api,
    ):
        yield Place(server, api, models)


def body(input: Any, *, model: str = "helper", **fields: Any) -> dict[str, Any]:
    return {"model": model, "input": input, **fields}


def checked(response: httpx2.Response) -> dict[str, Any]:
    """A response object that Open Responses takes."""
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    check_response(found)
    return found


def check_response(found: dict[str, Any]) -> None:
    """Raises unless Open Responses takes a response object. It does not know custom tools, nor schemas of forms."""
    shown = json.loads(json.dumps(found))
    shown["tools"] = [tool for tool in shown["tools"] if tool["type"] == "function"]
    shown["output"] = [item for item in shown["output"] if item["type"] != "custom_tool_call"]
    if shown["text"]["format"]["type"] == "json_schema":
        shown["text"]["format"]["schema"] = None
    if isinstance(shown["tool_choice"], dict) and shown["tool_choice"]["type"] != "function":
        shown["tool_choice"] = "auto"
    types.ResponseResource.model_validate(shown)


def events_of(response: httpx2.Response) -> list[dict[str, Any]]:
    """The events of a stream, each checked; numbered without gaps, and ended as each stream must."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = list(parsed(response.text.splitlines()))
    check_events(events)
    return events


def parsed(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == kind
            yield event


def check_events(events: Sequence[dict[str, Any]]) -> None:
    for event in events:
        if "response" in event:
            check_response(event["response"])
        is_custom = "custom_tool_call" in event["type"] or event.get("item", {}).get("type") == "custom_tool_call"
        if not is_custom and "response" not in event:
            EVENTS[event["type"]].model_validate(event)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [event["type"] for event in events if event["type"] in LAST] == [events[-1]["type"]], "one end, the last"


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def text_of(response: Mapping[str, Any]) -> str:
    """The words of a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "\n\n".join(item["content"][0]["text"] for item in messages)


def problem(response: httpx2.Response) -> tuple[int, str, str | None]:
    """The status, the code and the field of a request that was refused."""
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


def result(call: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call, "output": output}


def function(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    return {"type": "function", "name": name, "description": "A tool.", "parameters": schema, "strict": False}

"""Items: what stands in a turn or a note, as this API shows it, each with its id.

One response of a model has at most one message, which is all its words. A thought is shown as the provider's own item,
but for its id. Tests: tests/server/responses/test_stream.py.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from forkpoint.backend.messages import Given
from forkpoint.events import (
    AssistantMessage,
    Event,
    File,
    HookRun,
    Image,
    ModelCalled,
    NewEvent,
    Part,
    Reasoning,
    StagedEvent,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
    seal,
)
from forkpoint.history.fences import unfenced
from forkpoint.server.wires.responses.items.ids import (
    call_item_id,
    input_item_id,
    message_id,
    reasoning_id,
    refusal_id,
    result_item_id,
)
from forkpoint.server.wires.responses.items.input import is_custom
from forkpoint.server.wires.responses.request import ENCRYPTED, SERVER_CALLS, Echo

Said = Event | StagedEvent


class ShownItem(Struct, frozen=True):
    """One item, and the events that it shows."""

    id: str
    document: dict[str, Any]
    events: tuple[Said, ...]
    is_input: bool


def items_of(turn: str, events: Iterable[Said], echo: Echo) -> list[ShownItem]:
    """The items of a turn or a note: what it was given, and what was said in it."""
    reader = _Reader(turn, echo)
    for event in events:
        reader.take(event)
    return reader.items()


def output_of(turn: str, events: Iterable[Said], echo: Echo) -> list[dict[str, Any]]:
    """The output of a response: what was said in its turn."""
    return [item.document for item in items_of(turn, events, echo) if not item.is_input]


def input_of(turn: str, events: Sequence[Said], echo: Echo) -> list[dict[str, Any]]:
    """The input of a response: what its turn was given."""
    return [item.document for item in items_of(turn, events, echo) if item.is_input]


def given_of(turn: str, given: Sequence[Given], echo: Echo) -> list[dict[str, Any]]:
    """The input of a response whose turn is not history: it stands where it was asked, and not among events."""
    results = [one for one in given if isinstance(one, ToolResult)]
    others = [one for one in given if not isinstance(one, ToolResult)]
    return input_of(turn, [StagedEvent(seal(NewEvent(body), 0), body) for body in (*results, *others)], echo)


def message(id: str, text: str, status: str = "completed") -> dict[str, Any]:
    """A message of the assistant."""
    return {"type": "message", "id": id, "status": status, "role": "assistant", "content": [output_text(text)]}


def refusal_message(turn: str, why: str) -> dict[str, Any]:
    """A message of the assistant that refuses to answer a turn. It is no part of the history."""
    return message(refusal_id(turn), "") | {"content": [refusal(why)]}


def refusal(why: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": why}


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def function_call(id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    called = {"type": "function_call", "id": id, "call_id": call_id, "name": name}
    return called | {"arguments": arguments, "status": status}


def custom_call(id: str, call_id: str, name: str, input: str, status: str = "completed") -> dict[str, Any]:
    return {"type": "custom_tool_call", "id": id, "call_id": call_id, "name": name, "input": input, "status": status}


def call_output(turn: str, result: ToolResult) -> dict[str, Any]:
    """The result of a call that ran in a turn."""
    shown = {"type": "function_call_output", "id": result_item_id(turn, result.call_id), "call_id": result.call_id}
    return shown | {"output": _result(result), "status": "completed" if result.status == "done" else "incomplete"}


def reasoning(id: str, summary: Sequence[str] = ()) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"type": "reasoning", "id": id, "summary": parts, "content": None, "encrypted_content": None}


def custom_input(arguments: str) -> str:
    """The text that a custom tool is called with: its model sees a function of one text."""
    try:
        found: Any = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError):
        return arguments
    given = found.get("input") if isinstance(found, dict) else None
    return given if isinstance(given, str) else arguments


class _Reader:
    """Takes the events of a turn one by one, and makes items of them."""

    def __init__(self, turn: str, echo: Echo) -> None:
        self._turn = turn
        self._echo = echo
        self._has_begun = False  # a model was asked: what follows was said in the turn
        self._given = 0
        self._input: list[ShownItem] = []
        self._output: dict[str, ShownItem] = {}
        self._thoughts: dict[int, int] = {}  # how many each response has
        self._finishes: dict[int, str | None] = {}  # how the answers of the models ended, in order
        self._ours: set[str] = set()  # calls of the agent's own tools
        self._custom = set(echo.custom_results)  # calls of custom tools

    def items(self) -> list[ShownItem]:
        return [*self._input, *map(self._finished, self._output.values())]

    def take(self, event: Said) -> None:
        response = event.envelope.response
        match event.body:
            case ModelCalled(finish=finish, error=error):
                self._has_begun = True
                if error is None:
                    self._finishes[len(self._finishes) + 1] = finish
            case SystemMessage() | HookRun(moment="turn_end", blocked=True) if self._has_begun:
                self._output = {}  # the model had to say it again
            case Reasoning() as body if response is not None:
                self._think(body, response, event)
            case AssistantMessage(parts=parts) if response is not None:
                text = "".join(part.text for part in parts if isinstance(part, Text))
                id = message_id(self._turn, response)
                before = self._output.get(id)
                said = text if before is None else before.document["content"][0]["text"] + text
                events = (event,) if before is None else (*before.events, event)
                self._output[id] = ShownItem(id, message(id, said), events, False)
            case ToolCall() as body if response is not None:
                self._call(body, response, event)
            case ToolResult(call_id=call) as body if self._has_begun:
                if call in self._ours and SERVER_CALLS in self._echo.include:
                    document = call_output(self._turn, body)
                    self._output[document["id"]] = ShownItem(document["id"], document, (event,), False)
            case ToolResult(status="not_answered"):
                pass  # nobody has sent it
            case UserMessage() | SystemMessage() | AssistantMessage() | ToolCall() | ToolResult() | Reasoning() as body:
                self._take_input(body, event)
            case _:
                pass

    def _finished(self, item: ShownItem) -> ShownItem:
        """The item with what is known at the end: whether its text was cut, and a form without a fence around it."""
        if item.document["type"] != "message":
            return item
        finish = self._finishes.get(item.events[0].envelope.response or 0)
        text = item.document["content"][0]["text"]
        status = "incomplete" if finish in {"length", "filter"} else "completed"
        shown = unfenced(text) if self._echo.has_form else text
        return ShownItem(item.id, message(item.id, shown, status), item.events, False)

    def _think(self, body: Reasoning, response: int, event: Said) -> None:
        number = self._thoughts.get(response, 0)
        self._thoughts[response] = number + 1
        id = reasoning_id(self._turn, response, number)
        document = _thought(id, body, encrypted=ENCRYPTED in self._echo.include)
        if document is not None:
            self._output[id] = ShownItem(id, document, (event,), False)

    def _call(self, body: ToolCall, response: int, event: Said) -> None:
        if not body.client:
            self._ours.add(body.call_id)
            if SERVER_CALLS not in self._echo.include:
                return
        document = _call(body, call_item_id, (self._turn, response), self._echo)
        self._output[document["id"]] = ShownItem(document["id"], document, (event,), False)

    def _take_input(
        self, body: UserMessage | SystemMessage | AssistantMessage | ToolCall | ToolResult | Reasoning, event: Said
    ) -> None:
        document = self._input_document(body)
        self._given += 1
        if document is not None:
            self._input.append(ShownItem(document["id"], document, (event,), True))

    def _input_document(
        self, body: UserMessage | SystemMessage | AssistantMessage | ToolCall | ToolResult | Reasoning
    ) -> dict[str, Any] | None:
        def named(prefix: str) -> str:
            return input_item_id(self._turn, prefix, self._given)

        match body:
            case UserMessage(parts=parts):
                return _given_message(named("msg"), "user", parts)
            case SystemMessage(parts=parts):
                return _given_message(named("msg"), "system", parts)
            case AssistantMessage(parts=parts):
                return message(named("msg"), "".join(part.text for part in parts if isinstance(part, Text)))
            case ToolCall(call_id=call, tool=tool, arguments=arguments):
                if tool in self._echo.custom or is_custom(body):
                    self._custom.add(call)
                    return custom_call(named("ctc"), call, tool, custom_input(arguments))
                return function_call(named("fc"), call, tool, arguments)
            case ToolResult(call_id=call, tool=tool):
                custom = tool in self._echo.custom or call in self._custom
                kind = "custom_tool_call_output" if custom else "function_call_output"
                shown = {"type": kind, "id": named("ctco" if custom else "fco"), "call_id": call}
                return shown | {"output": _result(body), "status": "completed"}
            case Reasoning():
                return _thought(named("rs"), body, encrypted=ENCRYPTED in self._echo.include)


def _call(body: ToolCall, id_of: Any, place: tuple[str, int], echo: Echo) -> dict[str, Any]:
    custom = body.client and body.tool in echo.custom
    id = id_of(*place, body.call_id, custom=custom)
    if custom:
        return custom_call(id, body.call_id, body.tool, custom_input(body.arguments))
    return function_call(id, body.call_id, body.tool, body.arguments)


def _given_message(id: str, role: str, parts: Sequence[Part]) -> dict[str, Any]:
    content = [_part(part) for part in parts]
    return {"type": "message", "id": id, "status": "completed", "role": role, "content": content}


def _thought(id: str, body: Reasoning, *, encrypted: bool) -> dict[str, Any] | None:
    """A thought, or None for the work of a provider's own tool, which is no thought."""
    item: dict[str, Any] = {} if body.item is None else msgspec.json.decode(body.item)
    if item.get("type") is None:  # of a provider that does not speak Responses
        return reasoning(id, [body.text] if body.text else [])
    if item["type"] != "reasoning":
        return None
    shown = {"type": "reasoning", "id": id, "summary": item.get("summary") or [], "content": item.get("content")}
    return shown | {"encrypted_content": item.get("encrypted_content") if encrypted else None}


def _result(result: ToolResult) -> str | list[dict[str, Any]]:
    if all(isinstance(part, Text) for part in result.parts):
        return "\n".join(part.text for part in result.parts if isinstance(part, Text))
    return [_part(part) for part in result.parts]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "input_text", "text": text}
        case Image(media_type=media, data=data, url=url):
            return {"type": "input_image", "image_url": url or f"data:{media};base64,{data}", "detail": "auto"}
        case File(name=name, url=str(url)):
            return {"type": "input_file", "filename": name, "file_url": url}
        case File(name=name, media_type=media, data=data):
            return {"type": "input_file", "filename": name, "file_data": f"data:{media};base64,{data}"}

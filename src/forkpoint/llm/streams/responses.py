"""Responses: typed events, and items that go back as they came. Tests: tests/llm/test_streams.py."""

from typing import Any

from forkpoint.errors import AnswerMalformed, RequestRefused
from forkpoint.events import AssistantMessage, Reasoning, Text, ToolCall, Usage
from forkpoint.llm.answers import Answer, Finish, Said
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.failures import error_in_answer
from forkpoint.llm.streams.parts import (
    FILTERED,
    SplitText,
    as_json,
    count,
    field,
    mended,
    name,
    objects,
    whole_answer,
    words,
)
from forkpoint.updates import CallPiece, ReasoningPiece, TextPiece

_THOUGHTS = {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
_INCOMPLETE: dict[str, Finish] = {"max_output_tokens": "length", "content_filter": "filter"}
_SAID = {"message", "function_call"}  # items of all other types are thoughts, or go back with them
_ENDS = {"response.completed": "completed", "response.incomplete": "incomplete"}


class ResponsesStream:
    """Makes an answer of a response's events."""

    def __init__(self, *, origin: str, model: str, hearing: Hearing) -> None:
        self._origin = origin
        self._model = model
        self._hearing = hearing
        self._text = SplitText()
        self._thoughts: dict[int, SplitText] = {}
        self._arguments: dict[int, SplitText] = {}
        self._begun: dict[int, dict[str, Any]] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._end: dict[str, Any] | None = None
        self._status = ""

    def feed(self, event: Any) -> None:
        """Takes the next event. Raises a `ModelError` if the event is one."""
        kind = words(field(event, "type"))
        response = field(event, "response")
        self._hearing.response_id = self._hearing.response_id or name(field(response, "id")) or None
        if isinstance(usage := field(response, "usage"), dict):
            self._hearing.usage = responses_usage(usage)
        delta = words(field(event, "delta"))
        item = field(event, "item")
        place = field(event, "output_index")
        place = place if isinstance(place, int) else len(self._items)
        match kind:
            case "response.output_text.delta":
                if shown := self._text.add(delta):
                    self._think_before(place)
                    self._hearing.piece(TextPiece(shown))
            case _ if kind in _THOUGHTS:
                if shown := self._thoughts.setdefault(place, SplitText()).add(delta):
                    self._think_before(place)
                    self._hearing.piece(ReasoningPiece(shown, self._thoughts_before(place)))
            case "response.output_item.added" if isinstance(item, dict):
                self._begun[place] = item
                if item.get("type") == "function_call":
                    self._called(place, "")
            case "response.function_call_arguments.delta":
                self._called(place, delta)
            case "response.output_item.done" if isinstance(item, dict):
                self._items[place] = item
            case _ if kind in _ENDS and isinstance(response, dict):
                self._end, self._status = response, words(response.get("status")) or _ENDS[kind]
            case "response.failed" | "error":
                raise error_in_answer(self._model, field(response, "error") or field(event, "error") or event)
            case _:
                pass  # further events repeat what these said, or are of tools that nobody asked for

    def answer(self) -> Answer:
        """The whole answer. Raises a `ModelError` if there is none."""
        if self._end is None:
            raise AnswerMalformed(self._model, "it ended without its last event")
        finish: Finish = "stop"
        if self._status == "incomplete":
            reason = words(field(self._end, "incomplete_details", "reason"))
            if reason not in _INCOMPLETE:
                raise AnswerMalformed(self._model, f"it was broken off: {name(reason)[:80] or 'no reason given'}")
            finish = _INCOMPLETE[reason]
        elif self._status != "completed":
            raise AnswerMalformed(self._model, f"it ended, and says that it is {name(self._status)[:80]}")
        items = dict(enumerate(objects(self._end.get("output")))) | self._items
        if self._begun.keys() - items.keys():
            cut = finish == "length"
            raise AnswerMalformed(self._model, "a part of it was begun and never finished", lasting=cut)
        said = [body for _, item in sorted(items.items()) if (body := self._body(item, finish)) is not None]
        return whole_answer(said, finish, model=self._model, response_id=self._hearing.response_id)

    def _called(self, place: int, delta: str) -> None:
        begun = self._begun.get(place, {})
        self._think_before(place)
        shown = self._arguments.setdefault(place, SplitText()).add(delta)
        self._hearing.piece(CallPiece(place, name(begun.get("call_id")), name(begun.get("name")), shown))

    def _think_before(self, place: int) -> None:
        """Tells the thoughts before an item that came without a word, so that whoever listens keeps their places."""
        for at, item in self._begun.items():
            if at < place and item.get("type") == "reasoning" and at not in self._thoughts:
                self._thoughts[at] = SplitText()
                self._hearing.piece(ReasoningPiece("", self._thoughts_before(at)))

    def _thoughts_before(self, place: int) -> int:
        """How many thoughts of the answer come before an item."""
        before = (item.get("type") for at, item in self._begun.items() if at < place)
        return sum(kind not in _SAID for kind in before)

    def _body(self, item: dict[str, Any], finish: Finish) -> Said | None:
        match item.get("type"):
            case "message":
                return self._message(item)
            case "function_call":
                return self._call(item, finish)
            case "reasoning":
                parts = objects(item.get("summary")) + objects(item.get("content"))
                text = "\n\n".join(words(part.get("text")) for part in parts)
                return Reasoning(mended(text) or None, provider=self._origin, item=as_json(item))
            case _:  # the work of a provider's own tool: kept, and sent back with the thoughts that it belongs to
                return Reasoning(provider=self._origin, item=as_json(item))

    def _message(self, item: dict[str, Any]) -> AssistantMessage | None:
        parts: list[Text] = []
        for part in objects(item.get("content")):
            if part.get("type") == "refusal":
                raise RequestRefused.model_refused(self._model, name(part.get("refusal")) or "the model refused")
            text = name(part.get("text"))
            if text.strip():
                parts.append(Text(text))
        if not parts:
            return None
        return AssistantMessage(tuple(parts), provider=self._origin, item=as_json(item))

    def _call(self, item: dict[str, Any], finish: Finish) -> ToolCall:
        tool, arguments = name(item.get("name")), item.get("arguments")
        if item.get("status") == "incomplete" and finish == "filter":
            raise RequestRefused.model_refused(self._model, FILTERED)
        if item.get("status") == "incomplete":
            raise AnswerMalformed(self._model, f"its call of {tool!r} is unfinished", lasting=finish == "length")
        text = as_json(arguments) if isinstance(arguments, dict) else name(arguments)
        return ToolCall(name(item.get("call_id")), tool, text, provider=self._origin, item=as_json(item))


def responses_usage(usage: dict[str, Any]) -> Usage:
    """What a Responses server reported. Its input counts everything, cached tokens included."""
    return Usage(
        calls=1,
        input=count(usage.get("input_tokens")),
        cached=count(field(usage, "input_tokens_details", "cached_tokens")),
        written=count(field(usage, "input_tokens_details", "cache_write_tokens")),
        output=count(usage.get("output_tokens")),
        reasoning=count(field(usage, "output_tokens_details", "reasoning_tokens")),
    )

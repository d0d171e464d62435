"""Chat Completions: chunks with deltas, and no order between a message's text and its calls.
Tests: tests/llm/test_streams.py."""

from typing import Any

from forkpoint.errors import AnswerMalformed, RequestRefused
from forkpoint.events import Reasoning, ToolCall, Usage
from forkpoint.llm.answers import Answer, Finish, Said
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.failures import error_in_answer
from forkpoint.llm.streams.parts import SplitText, as_json, count, field, name, objects, spoken, whole_answer, words
from forkpoint.updates import CallPiece, ReasoningPiece, TextPiece

_FINISH: dict[str, Finish] = {  # compatible servers have several words for each
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "filter",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
}
_THOUGHTS = ("reasoning_content", "reasoning")  # where compatible servers put thoughts


class ChatStream:
    """Makes an answer of chunks."""

    def __init__(self, *, origin: str, model: str, hearing: Hearing) -> None:
        self._origin = origin
        self._model = model
        self._hearing = hearing
        self._text = SplitText()
        self._refusal = SplitText()
        self._thoughts = SplitText()
        self._thoughts_in: str | None = None
        self._thinks = False  # whether thoughts came last
        self._has_thought = False  # whether a thought was told
        self._details: list[dict[str, Any]] = []
        self._calls: list[_ChatCall] = []
        self._at: dict[int, _ChatCall] = {}  # which call goes on at each index
        self._finish: str | None = None

    def feed(self, chunk: Any) -> None:
        """Takes the next chunk. Raises a `ModelError` if the chunk is one."""
        if field(chunk, "error"):
            raise error_in_answer(self._model, chunk["error"])
        hearing = self._hearing
        hearing.response_id = hearing.response_id or name(field(chunk, "id")) or None
        if isinstance(usage := field(chunk, "usage"), dict):
            hearing.usage = chat_usage(usage)
        for choice in objects(field(chunk, "choices"))[:1]:
            delta = choice.get("delta")
            self._said(delta)
            for call in objects(field(delta, "tool_calls")):
                self._called(call)
            self._finish = words(choice.get("finish_reason")) or self._finish

    def answer(self) -> Answer:
        """The whole answer. Raises a `ModelError` if there is none."""
        if self._finish is None:
            raise AnswerMalformed(self._model, "it ended without saying why")
        refusal = str(self._refusal)
        if refusal:
            raise RequestRefused.model_refused(self._model, refusal)
        if self._finish.lower() not in _FINISH:
            raise AnswerMalformed(self._model, f"it was broken off: {name(self._finish)[:80]}")
        said: list[Said] = []
        if thoughts := self._reasoning():
            said.append(thoughts)
        if message := spoken(str(self._text), self._origin):
            said.append(message)
        said += [call.body(self._origin) for call in sorted(self._calls, key=lambda call: call.index)]
        finish, id = _FINISH[self._finish.lower()], self._hearing.response_id
        return whole_answer(said, finish, model=self._model, response_id=id, thinks_last=self._thinks)

    def _said(self, delta: Any) -> None:
        if text := self._text.add(words(field(delta, "content"))):
            self._think_before()
            self._hearing.piece(TextPiece(text))
            self._thinks = False
        self._refusal.add(words(field(delta, "refusal")))
        for place in _THOUGHTS:
            if thought := words(field(delta, place)):
                self._thoughts_in, self._thinks = place, True
                if shown := self._thoughts.add(thought):
                    self._has_thought = True
                    self._hearing.piece(ReasoningPiece(shown))
                break  # a gateway may send the same thought under both names
        for detail in objects(field(delta, "reasoning_details")):
            self._detailed(detail)

    def _called(self, delta: dict[str, Any]) -> None:
        call, self._thinks = self._call_of(delta), False
        call.id = name(delta.get("id")) or call.id
        call.tool = name(field(delta, "function", "name")) or call.tool
        arguments = field(delta, "function", "arguments")
        shown = call.arguments.add(as_json(arguments) if isinstance(arguments, dict) else words(arguments))
        call.extra |= {key: value for key, value in delta.items() if key not in {"index", "id", "type", "function"}}
        self._think_before()
        self._hearing.piece(CallPiece(call.index, call.id, call.tool, shown))

    def _think_before(self) -> None:
        """Tells a thought that came without a word, so that whoever listens keeps its place."""
        if self._details and not self._has_thought:
            self._has_thought = True
            self._hearing.piece(ReasoningPiece(""))

    def _call_of(self, delta: dict[str, Any]) -> "_ChatCall":
        """The call that a delta goes on with, or a new one: its index says which, and if that is no help its id."""
        index, id = delta.get("index"), name(delta.get("id"))
        if not isinstance(index, int):  # some servers leave it out, and send each call whole
            index = len(self._calls) if id or not self._calls else self._calls[-1].index
        begun = self._at.get(index)
        if begun is not None and not (id and begun.id and id != begun.id):
            return begun
        taken = {call.index for call in self._calls}
        self._at[index] = call = _ChatCall(index if index not in taken else max(taken) + 1)
        self._calls.append(call)
        return call

    def _detailed(self, detail: dict[str, Any]) -> None:
        """Keeps a detail of the thoughts, which goes back whole although it may come in pieces."""
        for begun in self._details:
            same = all(begun.get(key) == detail.get(key) for key in ("type", "index"))
            if same and detail.get("index") is not None:
                for key, value in detail.items():
                    grows = key in {"text", "summary", "data"} and isinstance(value, str)
                    begun[key] = words(begun.get(key)) + value if grows else value
                return
        self._details.append(dict(detail))

    def _reasoning(self) -> Reasoning | None:
        text = str(self._thoughts) or None
        if self._details:
            return Reasoning(text, provider=self._origin, item=as_json({"reasoning_details": self._details}))
        if text is None or self._thoughts_in is None:
            return None
        return Reasoning(text, provider=self._origin, item=as_json({"in": self._thoughts_in}))


class _ChatCall:
    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.tool = ""
        self.arguments = SplitText()
        self.extra: dict[str, Any] = {}  # what the provider wants back with the call, such as a signature

    def body(self, origin: str) -> ToolCall:
        item = as_json(self.extra) if self.extra else None
        return ToolCall(self.id, self.tool, str(self.arguments), provider=origin, item=item)


def chat_usage(usage: dict[str, Any]) -> Usage:
    """What a chat server reported. Its input counts everything, cached tokens included."""
    cached = field(usage, "prompt_tokens_details", "cached_tokens")
    if cached is None:
        cached = usage.get("prompt_cache_hit_tokens")
    return Usage(
        calls=1,
        input=count(usage.get("prompt_tokens")),
        cached=count(cached),
        written=count(field(usage, "prompt_tokens_details", "cache_write_tokens")),
        output=count(usage.get("completion_tokens")),
        reasoning=count(field(usage, "completion_tokens_details", "reasoning_tokens")),
    )

"""Messages: blocks that are started, filled and stopped, with usage at both ends. Tests: tests/llm/test_streams.py."""

from typing import Any

import msgspec

from forkpoint.errors import AnswerMalformed, RequestRefused
from forkpoint.events import Reasoning, ToolCall, Usage
from forkpoint.llm.answers import Answer, Finish, Said
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.failures import error_in_answer
from forkpoint.llm.streams.parts import SplitText, as_json, count, field, mended, name, spoken, whole_answer, words
from forkpoint.updates import CallPiece, ReasoningPiece, TextPiece

_FINISH: dict[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class MessagesStream:
    """Makes an answer of a message's events."""

    def __init__(self, *, origin: str, model: str, hearing: Hearing) -> None:
        self._origin = origin
        self._model = model
        self._hearing = hearing
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._stop: str | None = None
        self._why_refused = ""
        self._ended = False

    def feed(self, event: Any) -> None:
        """Takes the next event. Raises a `ModelError` if the event is one."""
        kind = field(event, "type")
        index = field(event, "index")
        if not isinstance(index, int):  # then blocks come one after the other
            index = len(self._blocks) - (kind != "content_block_start")
        match kind:
            case "message_start":
                self._hearing.response_id = name(field(event, "message", "id")) or None
                self._count(field(event, "message", "usage"))
            case "content_block_start":
                self._blocks[index] = block = _Block(field(event, "content_block"))
                self._tell(index, block, block.first)
            case "content_block_delta":
                if index not in self._blocks:
                    raise AnswerMalformed(self._model, "a block went on that had not begun")
                block = self._blocks[index]
                self._tell(index, block, block.feed(field(event, "delta")))
            case "content_block_stop":
                if index in self._blocks:
                    self._blocks[index].closed = True
            case "message_delta":
                self._stop = words(field(event, "delta", "stop_reason")) or self._stop
                self._why_refused = name(field(event, "delta", "stop_details", "explanation")) or self._why_refused
                self._count(field(event, "usage"))
            case "message_stop":
                self._ended = True
            case "error":
                raise error_in_answer(self._model, field(event, "error"))
            case _:
                pass  # pings, and what later versions add

    def answer(self) -> Answer:
        """The whole answer. Raises a `ModelError` if there is none."""
        if not self._ended or self._stop is None:
            raise AnswerMalformed(self._model, "it ended without its last event")
        if self._stop == "refusal":
            # Never kept, also with text: the provider refuses whatever follows in a conversation that holds it.
            raise RequestRefused.model_refused(self._model, self._why_refused or "the model refused")
        if self._stop == "pause_turn":
            paused = "it paused in the work of a tool of its provider's (pause_turn)"
            raise AnswerMalformed(self._model, paused, lasting=True)
        if self._stop not in _FINISH:
            raise AnswerMalformed(self._model, f"it stopped for a reason nobody asked for: {name(self._stop)[:80]}")
        finish = _FINISH[self._stop]
        blocks = [block for _, block in sorted(self._blocks.items())]
        if any(not block.closed for block in blocks):
            raise AnswerMalformed(self._model, "a block was never closed", lasting=finish == "length")
        said = [body for block in blocks if (body := block.body(self._origin)) is not None]
        return whole_answer(said, finish, model=self._model, response_id=self._hearing.response_id)

    def _tell(self, index: int, block: "_Block", text: str) -> None:
        match block.kind:
            case "text" if text:
                self._think_before(index)
                self._hearing.piece(TextPiece(text))
            case "thinking" if text:
                block.is_told = True
                self._think_before(index)
                self._hearing.piece(ReasoningPiece(text, self._thoughts_before(index)))
            case "tool_use":
                self._think_before(index)
                self._hearing.piece(CallPiece(index, block.id, block.name, text))
            case _:
                pass

    def _think_before(self, index: int) -> None:
        """Tells the thoughts before a block that came without a word, so that whoever listens keeps their places."""
        for place, block in self._blocks.items():
            is_thought = block.kind in {"thinking", "redacted_thinking"} and not block.is_told
            if place < index and is_thought and block.body(self._origin) is not None:
                block.is_told = True
                self._hearing.piece(ReasoningPiece("", self._thoughts_before(place)))

    def _thoughts_before(self, index: int) -> int:
        """How many thoughts of the answer come before a block."""
        before = (block.body(self._origin) for place, block in self._blocks.items() if place < index)
        return sum(isinstance(body, Reasoning) for body in before)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}
            self._hearing.usage = messages_usage(self._usage)


class _Block:
    def __init__(self, start: Any) -> None:
        self.start: dict[str, Any] = start if isinstance(start, dict) else {}
        self.kind = words(self.start.get("type"))
        self.id = name(self.start.get("id"))
        self.name = name(self.start.get("name"))
        self.first = name(self.start.get("text")) or name(self.start.get("thinking"))
        self.text = SplitText(self.first)
        self.arguments = SplitText()
        self.signature = [words(self.start.get("signature"))]
        self.citations: list[Any] = []
        self.closed = False
        self.is_told = False  # as a thought

    def feed(self, delta: Any) -> str:
        """Takes a delta, and gives back what it adds to what is shown."""
        match field(delta, "type"):
            case "text_delta":
                return self.text.add(words(field(delta, "text")))
            case "thinking_delta":
                return self.text.add(words(field(delta, "thinking")))
            case "input_json_delta":
                return self.arguments.add(words(field(delta, "partial_json")))
            case "signature_delta":
                self.signature.append(words(field(delta, "signature")))
            case "citations_delta":
                self.citations.append(field(delta, "citation"))
            case _:
                pass
        return ""

    def body(self, origin: str) -> Said | None:
        text, arguments = str(self.text), str(self.arguments)
        match self.kind:
            case "text":
                cited = {"type": "text", "text": text, "citations": self.citations}
                return spoken(text, origin, as_json(cited) if self.citations else None)
            case "thinking":
                signature = mended("".join(self.signature)) or None
                return Reasoning(text or None, signature, provider=origin) if text or signature else None
            case "redacted_thinking":
                data = name(self.start.get("data"))
                return Reasoning(encrypted=data, provider=origin) if data else None
            case "tool_use":
                given = self.start.get("input")
                arguments = arguments or (as_json(given) if given else "")
                known = {"type", "id", "name", "input"}
                extra = {key: value for key, value in self.start.items() if key not in known and value is not None}
                item = as_json(extra) if extra else None
                return ToolCall(self.id, self.name, arguments, provider=origin, item=item)
            case _:  # the work of a provider's own tool: kept, and sent back where it stood
                item = as_json(self.start | ({"input": _decoded(arguments)} if arguments else {}))
                return Reasoning(provider=origin, item=item) if self.start else None


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def messages_usage(usage: dict[str, Any]) -> Usage:
    """What a Messages server reported. Its input leaves out what was cached or written; ours counts everything."""
    cached, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    return Usage(
        calls=1,
        input=count(usage.get("input_tokens")) + cached + written,
        cached=cached,
        written=written,
        output=count(usage.get("output_tokens")),
        reasoning=count(field(usage, "output_tokens_details", "thinking_tokens")),
    )

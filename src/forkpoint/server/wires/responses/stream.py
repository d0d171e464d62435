"""A response as a stream of events: what a model says as it says it, and the end only when it is on disk.

The events are numbered from 0 on without gaps and kept as long as the stream is, so that a client that was cut off can
ask for those after a number. Tests: tests/server/responses/test_stream.py.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Update
from forkpoint.backend.results import Turn
from forkpoint.clock import system_clock as now
from forkpoint.errors import (
    Busy,
    OutcomeUnknown,
    RequestRefused,
    ShuttingDown,
    StoreUnavailable,
    TurnCancelled,
    TurnFailed,
    TurnLost,
    TurnOpen,
)
from forkpoint.events import ToolResult
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.stream import frame
from forkpoint.server.wires.errors import document as error_document
from forkpoint.server.wires.responses.document import (
    ResponseDocument,
    ResponseError,
    ResponseStatus,
    begun_response,
    encode,
    failed_response,
    response_of,
)
from forkpoint.server.wires.responses.items.ids import call_item_id, message_id, reasoning_id
from forkpoint.server.wires.responses.items.output import (
    call_output,
    custom_call,
    function_call,
    message,
    output_text,
    reasoning,
    refusal,
    refusal_message,
)
from forkpoint.server.wires.responses.request import SERVER_CALLS, Echo
from forkpoint.updates import Answered, CallEnded, CallPiece, CallStarted, ReasoningPiece, TextPiece, TurnStarted

KEEP_ALIVE = b": keep-alive\n\n"
STILL_OPEN = ResponseError(
    "server_error",
    "The stream ends here, and nobody knows yet how the response ends: it may wait for an approval, go on in another "
    "server, or be committed already. Read it later.",
)
"""Why a stream ends before it is known how its response does."""

_OVERHEAD = 100  # bytes that an event takes beside its own: Python's, and the text that is put together at the end
SILENCE = 10.0
"""Seconds of silence after which a stream says that it is alive."""


class ResponseEvents:
    """The events of one response, in order and numbered. Any number of readers follow them."""

    def __init__(self) -> None:
        self._first = 0  # the number of the first frame
        self._frames: list[bytes] = []
        self.size = 0  # about how many bytes of memory the events take
        self._news: asyncio.Event | None = None  # only while somebody waits for it
        self._last: tuple[str, Raw] | None = None  # the kind of the last event, and its response

    def add(self, kind: str, **fields: Any) -> None:
        """Appends an event of this kind."""
        self._append(_frame(self.count, kind, fields))

    def add_delta(self, head: bytes, delta: str) -> None:
        """Appends an event with some more of a text. ``head`` is what `delta_head` gives for it."""
        said = b'%b,"sequence_number":%d,"delta":%b}\n\n' % (head, self.count, _on_one_line(encode(delta)))
        self._append(said)

    def _append(self, said: bytes) -> None:
        self._frames.append(said)
        self.size += len(said) + _OVERHEAD
        self._wake()

    def begin_at(self, number: int) -> None:
        """Forgets the events so far, and gives the next one this number: the only reader has heard all before it."""
        self._first, self._frames = number, []

    @property
    def count(self) -> int:
        """The number that the next event has."""
        return self._first + len(self._frames)

    def end(self, kind: str, response: ResponseDocument) -> None:
        """Appends the last event."""
        self._last = kind, Raw(encode(response))
        self.add(kind, response=self._last[1])

    async def read(self, feed: Feed | None, finish: Any, after: int = -1) -> AsyncIterator[bytes]:
        """The events after a number, to the end of the stream. ``finish`` is called when the feed has ended.

        A reader who has heard as many events as there are, or more since another server told the text in pieces, gets
        the last one again, under the number that it waits for.
        """
        place = after + 1
        end = None if feed is None else asyncio.ensure_future(feed.ended.wait())
        if end is not None:
            end.add_done_callback(lambda _: self._wake())
        try:
            while True:
                if feed is not None and feed.ended.is_set() and self._last is None:
                    finish(feed)
                if place < self.count:
                    yield b"".join(self._frames[max(place - self._first, 0) :])
                    place = self.count
                elif self._last is not None:
                    if place == after + 1:
                        kind, response = self._last
                        yield _frame(place, kind, {"response": response})
                    return
                elif not await self._wait():
                    yield KEEP_ALIVE
        finally:
            if end is not None:
                end.cancel()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _wait(self) -> bool:
        """Waits for something new. Returns False if it was silent for too long."""
        if self._news is None:
            self._news = asyncio.Event()
        try:
            async with asyncio.timeout(SILENCE):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


def delta_head(kind: str, **fields: Any) -> bytes:
    """What all events have in common that add to one text: it is encoded once, for there are many of them."""
    return b"event: %b\ndata: %b" % (kind.encode(), encode({"type": kind, **fields})[:-1])


class ResponseStream:
    """Tells a turn as the events of a response, while it runs.

    An answer that must have a form is held back until it has it: a client cannot take back words that it has read. So
    is a response in the background that nobody asked for as a stream, for its model is asked again after a cut. The
    answer of a turn that is resumed is held back too, since its first words were told when it ran before.
    """

    def __init__(self, echo: Echo, *, holds: bool, tells: bool) -> None:
        self.echo = echo
        self.agent: Agent | None = None  # who answers: it knows which tools are the client's
        self.events = ResponseEvents()
        self.spoke = asyncio.Event()  # a model said something
        self.ran_tools = False  # tools of ours, whose work stays done
        self.tried_again = False  # the model was asked again here after a failure
        self._holds = holds
        self._tells = tells  # whether anybody may read the events
        self._request_id = ""
        self._turn = ""
        self._started = 0
        self._response = 1  # the number of the model's response that is being told
        self._items: dict[str, _ToldItem] = {}
        self._blank: list[str] = []  # white space of this response that waits for words
        self._ours: dict[str, ToolResult | None] = {}  # own calls whose results are to be told: in the order of calls
        self._is_behind = False  # an item can only be told at the end: so are those after it, for their order is fixed
        self._owners: dict[str, int] = {}  # of this response: which call has an id, for a provider may give one twice

    def hear(self, update: Update) -> None:
        """The callback that the turn is run with."""
        match update:
            case TurnStarted(id=id, resumed=resumed):
                self._begin(id)
                self._holds = self._holds or resumed
                return
            case TextPiece(text=text):
                if self._is_telling:
                    self._text(text)
            case ReasoningPiece(text=text, index=index):
                if self._is_telling:
                    self._thought(text, index)
            case CallPiece():
                if self._is_telling:
                    self._call(update)
            case CallStarted():
                self.ran_tools = True
                return
            case CallEnded(result=result):
                self._result(result)
                return
            case Answered(called=called):
                self.tried_again = self.tried_again or called.attempts > 1
                self._owners.clear()
                self._blank.clear()
                if called.error is None:
                    self._response += 1
                return
            case _:
                return
        self.spoke.set()

    def frames(self, feed: Feed, request_id: str, after: int = -1) -> AsyncIterator[bytes]:
        """The stream after a number, to its end. ``feed`` says when that is."""
        self._request_id = request_id
        return self.events.read(feed, self._finish, after)

    @property
    def is_begun(self) -> bool:
        """Whether the turn has begun."""
        return bool(self._turn)

    @property
    def _is_telling(self) -> bool:
        return self._tells and not self._holds

    def _begin(self, turn: str) -> None:
        if self._turn:
            return
        self._turn, self._started = turn, now()
        if not self._tells:
            return
        response = Raw(encode(begun_response(turn, self._started, self.echo)))
        self.events.add("response.created", response=response)
        self.events.add("response.in_progress", response=response)

    # While the model speaks.

    def _text(self, text: str) -> None:
        item = self._items.get(id := message_id(self._turn, self._response))
        if item is None:
            if self._is_behind:
                return
            self._blank.append(text)
            if not text.strip():
                return  # white space at the beginning waits for the words that follow
            text = "".join(self._blank)
            item = self._item(id)
            self._open_message(item)
        self._text_delta(item, text)

    def _item(self, id: str) -> "_ToldItem":
        """An item that nothing was told of yet: the next one of the output."""
        item = self._items[id] = _ToldItem(id, len(self._items))
        return item

    def _open_message(self, item: "_ToldItem", part: dict[str, Any] | None = None) -> None:
        item.is_told = True
        opened = message(item.id, "", "in_progress") | {"content": []}
        self.events.add("response.output_item.added", output_index=item.index, item=opened)
        self.events.add("response.content_part.added", **item.place, content_index=0, part=part or output_text(""))

    def _text_delta(self, item: "_ToldItem", delta: str) -> None:
        if not item.said:
            item.head = delta_head("response.output_text.delta", **item.place, content_index=0, logprobs=[])
        item.said.append(delta)
        self.events.add_delta(item.head, delta)

    def _thought(self, text: str, index: int) -> None:
        item = self._items.get(id := reasoning_id(self._turn, self._response, index))
        if item is None:
            if self._is_behind:
                return
            item = self._item(id)
            self._open_thought(item)
        if text:
            self._thought_delta(item, text)

    def _open_thought(self, item: "_ToldItem") -> None:
        item.is_told = True
        self.events.add("response.output_item.added", output_index=item.index, item=reasoning(item.id))

    def _thought_delta(self, item: "_ToldItem", delta: str) -> None:
        if not item.said:
            part = {"type": "summary_text", "text": ""}
            self.events.add("response.reasoning_summary_part.added", **item.place, summary_index=0, part=part)
            item.head = delta_head("response.reasoning_summary_text.delta", **item.place, summary_index=0)
        item.said.append(delta)
        self.events.add_delta(item.head, delta)

    def _call(self, piece: CallPiece) -> None:
        is_clients = self.agent is not None and self.agent.is_client_tool(piece.tool)
        is_its_own = bool(piece.call_id) and self._owners.setdefault(piece.call_id, piece.index) == piece.index
        if not is_clients and SERVER_CALLS not in self.echo.include:
            return
        if not is_its_own:  # a call without an id, or with the id of another, gets its id with the history
            self._is_behind = True
            return
        custom = is_clients and piece.tool in self.echo.custom
        item = self._items.get(id := call_item_id(self._turn, self._response, piece.call_id, custom=custom))
        if item is None:
            if self._is_behind:
                return
            item = self._item(id)
            made = custom_call if custom else function_call
            self._open_call(item, made(id, piece.call_id, piece.tool, "", "in_progress"))
            if not is_clients:
                self._ours[piece.call_id] = None
        if piece.arguments and not custom:  # the input of a custom tool is told when all of it is there
            self._arguments(item, piece.arguments)

    def _result(self, result: ToolResult) -> None:
        if result.call_id not in self._ours or self._is_behind:
            return
        self._ours[result.call_id] = result
        for id, ended in list(self._ours.items()):
            if ended is None:
                return
            del self._ours[id]
            self._complete(call_output(self._turn, ended))

    def _open_call(self, item: "_ToldItem", opened: dict[str, Any]) -> None:
        item.is_told = True
        self.events.add("response.output_item.added", output_index=item.index, item=opened)

    def _arguments(self, item: "_ToldItem", delta: str) -> None:
        if not item.said:
            item.head = delta_head("response.function_call_arguments.delta", **item.place)
        item.said.append(delta)
        self.events.add_delta(item.head, delta)

    # The end.

    def _finish(self, feed: Feed) -> None:
        """Tells how the turn ended: what of the output was not told yet, and the last event."""
        turn = feed.result
        if feed.error is not None or not isinstance(turn, Turn):
            self._fail(feed, feed.error or RuntimeError("it did not end"))
        else:
            self._begin(turn.id)  # it was joined, and told nothing while it ran
            self.finish(response_of(turn, self.echo))

    def finish(self, response: ResponseDocument, after: int = -1) -> None:
        """Tells all items of a response that were not told yet, to their ends, and the last event.

        A reader who has heard the events up to ``after`` from another server, where the text came in more pieces, may
        have nothing of the item in which that number lies now: this item is told from its beginning under the next
        numbers.
        """
        if response.status == "in_progress":
            response = replace(response, status="failed", error=STILL_OPEN)
        for item in response.output:
            first = self.events.count
            self._complete(item)
            if first <= after < self.events.count - 1:
                self.events.begin_at(after + 1)
                del self._items[item["id"]]
                self._complete(item)
        self.events.end(_last(response), response)

    def tell_again(self, turn: str, response: ResponseDocument, after: int) -> None:
        """Tells a stored response from its beginning, to a reader who has heard the events up to ``after``."""
        self._begin(turn)
        self.finish(response, after)

    def _fail(self, feed: Feed, error: BaseException) -> None:
        turn = self._turn or feed.turn or feed.joined or "00000000-0000-0000-0000-000000000000"
        self._begin(turn)
        said = error_document(error, self._request_id)["error"]
        code = {"rate_limit_error": "rate_limit_exceeded"}.get(said["type"], "server_error")
        code = {"context_length_exceeded": said["code"], "content_filter": "invalid_prompt"}.get(said["code"], code)
        why_failed = STILL_OPEN if is_open(feed) and self.echo.store else ResponseError(code, said["message"])
        status: ResponseStatus = "cancelled" if isinstance(error, TurnCancelled) else "failed"
        output = []
        if (why := why_refused(error)) is not None:
            output = [refusal_message(turn, why)]
            self._complete(output[0])
        failed = failed_response(turn, self._started, self.echo, why_failed, status=status, output=output)
        self.events.end("response.failed", failed)

    def _complete(self, document: dict[str, Any]) -> None:
        item = self._items.get(document["id"]) or self._item(document["id"])
        if item.is_done:
            return
        item.is_done = True
        match document["type"]:
            case "message":
                self._complete_message(item, document)
            case "reasoning":
                self._complete_thought(item, document)
            case "function_call" | "custom_tool_call":
                self._complete_call(item, document)
            case _:
                self.events.add("response.output_item.added", output_index=item.index, item=document)
        self.events.add("response.output_item.done", output_index=item.index, item=document)

    def _complete_message(self, item: "_ToldItem", document: dict[str, Any]) -> None:
        part = document["content"][0]
        if part["type"] == "refusal":
            self._open_message(item, refusal(""))
            place = item.place | {"content_index": 0}
            self.events.add("response.refusal.delta", **place, delta=part["refusal"])
            self.events.add("response.refusal.done", **place, refusal=part["refusal"])
            self.events.add("response.content_part.done", **place, part=part)
            return
        if not item.is_told:
            self._open_message(item)
        if not item.said:
            self._text_delta(item, part["text"])
        self.events.add("response.output_text.done", **item.place, content_index=0, text=part["text"], logprobs=[])
        self.events.add("response.content_part.done", **item.place, content_index=0, part=part)

    def _complete_thought(self, item: "_ToldItem", document: dict[str, Any]) -> None:
        if not item.is_told:
            self._open_thought(item)
        texts = [part["text"] for part in document["summary"] if isinstance(part.get("text"), str)]
        if not item.said and not texts:
            return
        if not item.said:
            self._thought_delta(item, "\n\n".join(texts))
        text = "".join(item.said)
        part = {"type": "summary_text", "text": text}
        self.events.add("response.reasoning_summary_text.done", **item.place, summary_index=0, text=text)
        self.events.add("response.reasoning_summary_part.done", **item.place, summary_index=0, part=part)

    def _complete_call(self, item: "_ToldItem", document: dict[str, Any]) -> None:
        if document["type"] == "custom_tool_call":
            if not item.is_told:
                self._open_call(item, document | {"input": "", "status": "in_progress"})
            self.events.add("response.custom_tool_call_input.delta", **item.place, delta=document["input"])
            self.events.add("response.custom_tool_call_input.done", **item.place, input=document["input"])
            return
        if not item.is_told:
            self._open_call(item, document | {"arguments": "", "status": "in_progress"})
        if not item.said:
            self._arguments(item, document["arguments"])
        done = {"name": document["name"], "arguments": document["arguments"]}
        self.events.add("response.function_call_arguments.done", **item.place, **done)


def is_open(feed: Feed) -> bool:
    """Whether a feed has ended, and its turn may go on all the same."""
    return isinstance(feed.error, OutcomeUnknown | StoreUnavailable | ShuttingDown | TurnLost | TurnOpen | Busy)


def why_refused(error: BaseException) -> str | None:
    """What a model said that refused to answer; None if an error is another one."""
    cause = error.cause if isinstance(error, TurnFailed) and error.cause is not None else error
    return str(cause) if RequestRefused.model_refused.made(cause) else None


def _last(response: ResponseDocument) -> str:
    """The kind of the last event: there are three of them, whatever a response came to."""
    return f"response.{response.status if response.status in {'completed', 'incomplete'} else 'failed'}"


class _ToldItem:
    """An item as far as it was told."""

    def __init__(self, id: str, index: int) -> None:
        self.id = id
        self.index = index
        self.is_told = False
        self.is_done = False
        self.head = b""  # of the events that add to its text
        self.said: list[str] = []

    @property
    def place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}


def _frame(number: int, kind: str, fields: dict[str, Any]) -> bytes:
    return frame(kind, _on_one_line(encode({"type": kind, "sequence_number": number, **fields})))


def _on_one_line(said: bytes) -> bytes:
    """JSON without characters that some readers take for the end of a line."""
    for line_end, escaped in _LINE_ENDS if b"\xe2\x80" in said or b"\xc2\x85" in said else ():
        said = said.replace(line_end, escaped)
    return said


_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))

"""A chat completion as a stream: deltas as the model speaks, and the end only when it is on disk.
Tests: tests/server/chat/test_wire.py, test_odd_streams.py."""

import asyncio
from collections.abc import AsyncIterator

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Update
from forkpoint.backend.results import Turn
from forkpoint.server.live.feed import Feed
from forkpoint.server.wires.chat.answer import (
    BETWEEN,
    DONE,
    KEEP_ALIVE,
    Chunks,
    error_frame,
    finish_of,
    handed,
    visible,
)
from forkpoint.server.wires.errors import document
from forkpoint.updates import Answered, CallPiece, CallStarted, ReasoningPiece, TextPiece, TurnStarted

FIRST = 5.0
"""Seconds after which an answer begins, though no model has said anything."""

SILENCE = 10.0
"""Seconds of silence after which a stream says that it is alive."""


class ChunkStream:
    """What a turn tells while it runs, as chunks for a client.

    An answer that must have a form is held back until it has it: a client cannot take back words that it has read. The
    answer of a turn that is resumed is held back too, since its first words were told when it ran before.
    """

    def __init__(self, *, holds: bool) -> None:
        self.spoke = asyncio.Event()  # a model said something
        self.ran_tools = False  # tools of ours, whose work stays done
        self.tried_again = False  # the model was asked again here after a failure
        self.holds = holds
        self._is_resumed = False
        self._agent: Agent | None = None
        self._chunks: Chunks | None = None
        self._pieces: list[TextPiece | ReasoningPiece | CallPiece] = []
        self._news = asyncio.Event()
        self._words = _Row()
        self._thoughts = _Row()
        self._calls: dict[str, int] = {}  # that the client has been told of, with their numbers
        self._has_arguments: set[str] = set()  # calls of which it has been told arguments
        self._owners: dict[str, int] = {}  # of this response: which call has an id, for a provider may give one twice

    def hear(self, update: Update) -> None:
        """The callback that the turn is run with."""
        match update:
            case TurnStarted(resumed=True):
                self._is_resumed = True
                return
            case TextPiece() | ReasoningPiece() | CallPiece():
                if not self.holds and not self._is_resumed:
                    self._pieces.append(update)
                    self._news.set()
            case CallStarted():
                self.ran_tools = True
                return
            case Answered(called=called):  # comes for failed calls too; the words came in pieces before
                self.tried_again = self.tried_again or called.attempts > 1
                self._pieces.append(_PAUSE)
                return
            case _:
                return
        self.spoke.set()

    async def frames(
        self, feed: Feed, chunks: Chunks, agent: Agent | None, request_id: str, *, usage: bool
    ) -> AsyncIterator[bytes]:
        """The stream, to its end. ``feed`` says when that is; ``agent`` which of its tools are the client's."""
        self._agent, self._chunks = agent, chunks
        end = asyncio.ensure_future(feed.ended.wait())
        end.add_done_callback(lambda _: self._news.set())
        try:
            yield chunks.role()
            while not feed.ended.is_set():
                if not self._pieces and not await self._wait():
                    yield KEEP_ALIVE
                elif frames := self._take():
                    yield frames
            yield self._take() + self._last(feed, request_id, usage=usage)
        finally:
            end.cancel()

    async def _wait(self) -> bool:
        """Waits for something new. Returns False if it was silent for too long."""
        self._news.clear()
        try:
            async with asyncio.timeout(SILENCE):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(map(self._frame, pieces))

    def _frame(self, piece: TextPiece | ReasoningPiece | CallPiece) -> bytes:
        assert self._chunks is not None
        match piece:
            case CallPiece() if piece is _PAUSE:
                self._words.pause()
                self._thoughts.pause()
                self._owners.clear()
                return b""
            case TextPiece(text=text):
                said = self._words.next(text)
                return self._chunks.text(said) if said else b""
            case ReasoningPiece(text=text):
                thought = self._thoughts.next(text)
                return self._chunks.reasoning(thought) if thought else b""
            case CallPiece(call_id=id, tool=tool, index=index):
                # A call without an id, or with the id of another, comes at the end, with its id in the history.
                is_its_own = bool(id) and self._owners.setdefault(id, index) == index
                is_told = self._agent is not None and self._agent.is_client_tool(tool)  # our own tools are not shown
                return self._call(self._chunks, id, tool, piece.arguments) if is_its_own and is_told else b""

    def _call(self, chunks: Chunks, id: str, tool: str, arguments: str) -> bytes:
        if arguments:
            self._has_arguments.add(id)
        if (number := self._calls.get(id)) is not None:
            return chunks.arguments(number, arguments)
        self._calls[id] = number = len(self._calls)
        return chunks.call(number, id, tool, arguments)

    def _last(self, feed: Feed, request_id: str, *, usage: bool) -> bytes:
        """The end: why the answer ends, or what went wrong."""
        chunks, turn = self._chunks, feed.result
        assert chunks is not None
        if feed.error is not None or not isinstance(turn, Turn):
            return error_frame(document(feed.error or RuntimeError("it did not end"), request_id))
        end = self._rest(chunks, turn) + chunks.finish(finish_of(turn.events))
        return end + (chunks.usage(turn.usage) if usage else b"") + DONE

    def _rest(self, chunks: Chunks, turn: Turn) -> bytes:
        """The part of an answer that was not told while it came: it was held back, or the turn was joined later."""
        text, thoughts = visible(turn.events, only_last=self.holds)
        calls = [
            self._call(chunks, call.call_id, call.tool, call.arguments)
            for call in handed(turn.events)
            if call.call_id not in self._has_arguments  # told nothing of it, or a tool that takes no arguments
        ]
        said = b"" if self._words.any or not text else chunks.text(text)
        thought = b"" if self._thoughts.any or not thoughts else chunks.reasoning(thoughts)
        return b"".join((thought, said, *calls))


class _Row:
    """What several responses say one after the other, with a blank line between two of them.

    White space at the beginning of a response waits for the words that follow. Without words it is dropped.
    """

    def __init__(self) -> None:
        self.any = False
        self._is_new = True  # a response begins
        self._blank: list[str] = []

    def pause(self) -> None:
        self._is_new, self._blank = True, []

    def next(self, text: str) -> str:
        if not self._is_new:
            return text
        self._blank.append(text)
        if not text.strip():
            return ""
        text = (BETWEEN if self.any else "") + "".join(self._blank)
        self.any, self._is_new, self._blank = True, False, []
        return text


_PAUSE = CallPiece(-1, "", "", "")  # between two responses

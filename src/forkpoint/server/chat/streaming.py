"""A chat completion as a stream: deltas as the model speaks, and the end only when it is on disk."""

import asyncio
from collections.abc import AsyncIterator

from forkpoint.agent.agent import Agent
from forkpoint.agent.updates import Answered
from forkpoint.conversation.results import Turn
from forkpoint.conversation.updates import TurnStarted, Update
from forkpoint.llm.answers import CallPiece, ReasoningPiece, TextPiece
from forkpoint.server.chat.answers import BETWEEN, DONE, KEEP_ALIVE, Chunks, error_frame, finish_of, handed, visible
from forkpoint.server.chat.problems import document
from forkpoint.server.feed import Feed

FIRST = 5.0
"""Seconds after which an answer begins, though no model has said anything."""

SILENCE = 10.0
"""Seconds of silence after which a stream says that it is alive."""


class Speech:
    """What is heard of a turn while it runs, as chunks for a client.

    An answer that must have a form is not told before it has it: what is wrong with it would have been said already.
    """

    def __init__(self, *, holds: bool) -> None:
        self.turn: str | None = None
        self.spoke = asyncio.Event()  # a model said something
        self.holds = holds
        self._agent: Agent | None = None
        self._chunks: Chunks | None = None
        self._pieces: list[TextPiece | ReasoningPiece | CallPiece] = []
        self._news = asyncio.Event()
        self._words = _Row()
        self._thoughts = _Row()
        self._calls: dict[str, int] = {}  # calls that the client was told of, and their numbers

    def hear(self, update: Update) -> None:
        """The callback that the turn is run with."""
        match update:
            case TurnStarted(id=id):
                self.turn = id
                return
            case TextPiece() | ReasoningPiece() | CallPiece():
                if not self.holds:
                    self._pieces.append(update)
                    self._news.set()
            case Answered():  # told of failed calls too: what a model said came in pieces before
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
        """Waits for something new. Says whether anything came before it was silent for too long."""
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
                return b""
            case TextPiece(text=text):
                return self._chunks.text(self._words.next(text))
            case ReasoningPiece(text=text):
                return self._chunks.reasoning(self._thoughts.next(text))
            case CallPiece(tool=tool) if self._agent is not None and self._agent.is_client_tool(tool):
                return self._call(self._chunks, piece.call_id, tool, piece.arguments)
            case _:
                return b""  # a call of ours, which is nobody else's affair

    def _call(self, chunks: Chunks, id: str, tool: str, arguments: str) -> bytes:
        if not id:
            return b""  # its provider gives it none: it is told at the end, with the one that it has in the history
        if (number := self._calls.get(id)) is not None:
            return chunks.arguments(number, arguments)
        number = self._calls[id] = len(self._calls)
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
        """What of an answer was not told while it came: it was held back, or the turn is one that was joined."""
        text, thoughts = visible(turn.events, only_last=self.holds)
        untold = (call for call in handed(turn.events) if call.call_id not in self._calls)
        calls = [self._call(chunks, call.call_id, call.tool, call.arguments) for call in untold]
        said = b"" if self._words.any or not text else chunks.text(text)
        thought = b"" if self._thoughts.any or not thoughts else chunks.reasoning(thoughts)
        return b"".join((thought, said, *calls))


class _Row:
    """What several responses said one after the other: with a blank line between two of them."""

    def __init__(self) -> None:
        self.any = False
        self._is_new = True  # a response begins

    def pause(self) -> None:
        self._is_new = True

    def next(self, text: str) -> str:
        between = BETWEEN if self.any and self._is_new else ""
        self.any, self._is_new = True, False
        return between + text


_PAUSE = CallPiece(-1, "", "", "")  # between two responses

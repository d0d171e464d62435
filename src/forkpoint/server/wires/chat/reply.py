"""The HTTP answer to a request for a chat completion: whole, as a stream, or why there is none.
Tests: the files of tests/server/chat that speak HTTP.
"""

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress

from fastapi import Response

from forkpoint.backend.results import Turn
from forkpoint.errors import ForkpointError
from forkpoint.server.api.replies import first_of
from forkpoint.server.http.call import JSON, ApiCall
from forkpoint.server.http.door import GONE
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.stream import EventStream, until_gone
from forkpoint.server.wires.chat.answer import Chunks, FinishedAnswer, completion, finish_of, handed, visible
from forkpoint.server.wires.chat.stream import FIRST
from forkpoint.server.wires.chat.turn import ChatTurn
from forkpoint.server.wires.errors import refusal
from forkpoint.server.wires.identity import BRANCH, IGNORED, STATUS, TURN


async def answer(call: ApiCall, body: bytes) -> Response:
    """The answer to a request for a chat completion, or why it is refused, in OpenAI's words."""
    try:
        turn = ChatTurn(call, body)
    except ForkpointError as error:
        status, document, headers = refusal(error, call.id)
        return Response(document, status, headers)
    return await ChatReply(turn).answer()


class ChatReply:
    """Answers a request with the turn that it began."""

    def __init__(self, turn: ChatTurn) -> None:
        self._turn = turn
        self._settings = turn.call.services.settings
        self._feed: Feed | None = None

    async def answer(self) -> Response:
        """The answer, or why there is none."""
        try:
            feed, joined = await self._turn.start()
        except ForkpointError as error:
            return self._refused(error)
        self._feed = feed
        with feed.awaited():
            if joined:
                with suppress(ForkpointError):  # the answer is there, whatever keeps us from looking
                    await self._turn.see_where_it_stands(feed)
            return await (self._streamed(feed) if self._turn.request.stream else self._whole(feed))

    async def _streamed(self, feed: Feed) -> Response:
        """A stream. Until a model speaks, or for a few seconds, it can still be refused with a status of its own."""
        if await self._is_gone(feed, self._turn.stream.spoke.wait(), feed.ended.wait(), asyncio.sleep(FIRST)):
            return Response(status_code=GONE)
        if feed.error is not None:
            return self._refused(feed.error)
        turn, request, shown = self._turn, self._turn.request, self._settings.reasoning != "off"
        turn.has_begun = True
        id = f"chatcmpl-{feed.turn or feed.joined}"
        chunks = Chunks(id, request.model, int(time.time()), include_usage=request.include_usage, reasoning=shown)
        frames = turn.stream.frames(feed, chunks, turn.agent, turn.call.id, usage=request.include_usage)
        feed.enter()
        made = EventStream(frames, left=feed.leave)
        made.raw_headers += [(name.lower().encode(), value.encode()) for name, value in self._headers().items()]
        return made

    async def _whole(self, feed: Feed) -> Response:
        if await self._is_gone(feed, feed.ended.wait()):
            return Response(status_code=GONE)
        if feed.error is not None:
            return self._refused(feed.error)
        turn = feed.result
        assert isinstance(turn, Turn)
        text, reasoning = visible(turn.events, only_last=self._turn.stream.holds)
        finished = FinishedAnswer(
            id=f"chatcmpl-{turn.id}",
            model=self._turn.request.model,
            created=turn.started // 1_000_000,
            text=text,
            reasoning=reasoning,
            calls=handed(turn.events),
            finish=finish_of(turn.events),
            usage=turn.usage,
        )
        body = completion(finished, self._settings.reasoning != "off")
        return Response(body, headers=self._headers(), media_type=JSON)

    def _refused(self, error: BaseException) -> Response:
        status, body, headers = refusal(error, self._turn.call.id)
        stream = self._turn.stream
        if stream.ran_tools or stream.tried_again:  # no machine shall repeat what they did, or what we did
            headers["x-should-retry"] = "false"
        return Response(body, status, headers | self._names())

    async def _is_gone(self, feed: Feed, *waits: Awaitable[object]) -> bool:
        """Waits for one of these, or for the client to go. Returns whether it went before the turn ended."""
        gone = False

        async def watch() -> None:
            nonlocal gone
            await until_gone(self._turn.call.request.receive)
            gone = True

        await first_of(*waits, watch())
        return gone and not feed.ended.is_set()

    def _names(self) -> dict[str, str]:
        """Headers that name the conversation, the branch and the turn, as far as they are known and kept."""
        turn = self._turn
        if turn.named is None:
            return {}
        names = {turn.named.header: turn.named.name}
        id = None if self._feed is None else self._feed.turn or self._feed.joined
        if turn.is_kept and id is not None:
            names[TURN] = id
        if turn.branch is not None:
            names[BRANCH] = turn.branch
        return names

    def _headers(self) -> dict[str, str]:
        headers = self._names()
        if self._turn.named is not None:
            headers[STATUS] = self._turn.status
        if ignored := self._ignored():
            headers[IGNORED] = ", ".join(ignored)
        return headers

    def _ignored(self) -> list[str]:
        """Fields that had no effect."""
        turn, request = self._turn, self._turn.request
        ignored = [*request.ignored]
        if turn.agent is not None:
            ignored += request.options.unsent(turn.agent.llm.wire)
        if not turn.is_kept and request.store:
            ignored.append("store")
        if turn.named is not None and not turn.is_side and request.prompt_cache_key is not None:
            ignored.append("prompt_cache_key")
        return ignored

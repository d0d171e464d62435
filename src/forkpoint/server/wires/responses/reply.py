"""The HTTP answer to a request for a response: whole, as a stream, at once if it runs in the background, or why not.
Tests: the files of tests/server/responses that speak HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable

from fastapi import Response

from forkpoint.backend.messages import echo_of
from forkpoint.backend.results import Turn
from forkpoint.errors import ForkpointError, NotFound
from forkpoint.server.api.replies import ended, first_of
from forkpoint.server.http.call import JSON, ApiCall
from forkpoint.server.http.door import GONE
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.stream import EventStream, until_gone
from forkpoint.server.wires.errors import refusal
from forkpoint.server.wires.identity import IGNORED, STATUS, TURN
from forkpoint.server.wires.responses.document import ResponseDocument, encode, response_of
from forkpoint.server.wires.responses.items.ids import turn_of_response
from forkpoint.server.wires.responses.request import Echo
from forkpoint.server.wires.responses.stream import KEEP_ALIVE, ResponseStream, why_refused
from forkpoint.server.wires.responses.turn import ResponseTurn

FIRST = 5.0
"""Seconds after which an answer begins, though no model has said anything."""


async def answer(call: ApiCall, body: bytes) -> Response:
    """The answer to a request for a response, or why it is refused, in OpenAI's words."""
    try:
        turn = ResponseTurn(call, body)
    except ForkpointError as error:
        status, document, headers = refusal(error, call.id)
        return Response(document, status, headers)
    return await ResponseReply(turn).answer()


class ResponseReply:
    """Answers a request with the turn that it began."""

    def __init__(self, turn: ResponseTurn) -> None:
        self._turn = turn
        self._stream = turn.stream  # which is told; that of an earlier request, if this one joined its response
        self._feed: Feed | None = None

    async def answer(self) -> Response:
        """The answer, or why there is none."""
        turn = self._turn
        try:
            feed, is_joined = await turn.start()
        except ForkpointError as error:
            return self._refused(error)
        if turn.echo.background:
            feed = self._shared(feed, is_joined)
        self._feed = feed
        with feed.awaited():
            if turn.request.stream:
                return await self._streamed(feed)
            return await (self._background(feed) if turn.echo.background else self._whole(feed))

    def _shared(self, feed: Feed, is_joined: bool) -> Feed:
        """Keeps the stream of a background response for all who read it, or takes the one that hears a joined turn."""
        responses, place = self._turn.call.services.responses, (self._turn.call.tenant, feed.turn or feed.joined or "")
        if not is_joined:
            responses.keep(*place, (self._stream, feed))
        elif (running := responses.stream(*place)) is not None:
            self._stream, feed = running
        return feed

    async def _streamed(self, feed: Feed) -> Response:
        """A stream. Until a model speaks, or for a few seconds, it can still be refused with a status of its own."""
        turn = self._turn
        waits: list[Awaitable[object]] = [self._stream.spoke.wait(), feed.ended.wait(), asyncio.sleep(FIRST)]
        if await self._is_gone(feed, *waits):
            return Response(status_code=GONE)
        if feed.error is not None and why_refused(feed.error) is None:
            return self._refused(feed.error)
        turn.has_begun = True
        feed.enter()
        made = EventStream(self._stream.frames(feed, turn.call.id), left=feed.leave)
        made.raw_headers += [(name.lower().encode(), value.encode()) for name, value in self._headers().items()]
        return made

    async def _background(self, feed: Feed) -> Response:
        """The response as it stands, which goes on."""
        id = feed.turn or feed.joined
        assert id is not None
        found, echo = await read_response(self._turn.call, id)
        return Response(encode(found_document(self._turn.call, found, echo)), headers=self._headers(), media_type=JSON)

    async def _whole(self, feed: Feed) -> Response:
        if await self._is_gone(feed, feed.ended.wait()):
            return Response(status_code=GONE)
        if feed.error is not None:
            return self._refused(feed.error)
        turn = feed.result
        assert isinstance(turn, Turn)
        body = encode(response_of(turn, self._turn.echo))
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
        """Headers that name the conversation and the turn, as far as they are known and kept."""
        turn = self._turn
        id = None if self._feed is None else self._feed.turn or self._feed.joined
        if not turn.echo.store or id is None:
            return {}
        named = {} if turn.name is None else {"X-Conversation-Id": turn.name}
        return named | {TURN: id}

    def _headers(self) -> dict[str, str]:
        headers = self._names()
        if self._turn.echo.store:
            headers[STATUS] = self._turn.status
        ignored = [*self._turn.request.ignored]
        if self._turn.agent is not None:
            ignored += self._turn.request.options.unsent(self._turn.agent.llm.wire)
        if self._turn.echo.store and self._turn.echo.prompt_cache_key is not None:
            ignored.append("prompt_cache_key")
        if ignored:
            headers[IGNORED] = ", ".join(ignored)
        return headers


async def read_response(call: ApiCall, turn: str) -> tuple[Turn, Echo]:
    """A response that is stored: its turn, and what it repeats of its request. Raises `NotFound`."""
    stored = await call.backend.placement.turn(turn)
    if stored.kind != "turn":
        raise NotFound("turn", turn)
    if stored.outcome == "committed":
        await call.backend.placement.ended_turn(turn)  # or no branch has it any more
    record = await call.backend.placement.by_name(stored.conversation)
    if record is None or call.services.responses.is_hidden(record, turn):
        raise NotFound("turn", turn)
    return await call.backend.turns.read(stored.conversation, turn), Echo.from_json(echo_of(stored.input))


async def found_response(call: ApiCall, id: str) -> tuple[Turn, Echo]:
    """A response by the id that clients have. Raises `NotFound` for that id."""
    try:
        return await read_response(call, turn_of_response(id))
    except NotFound:
        raise NotFound("response", id[:200]) from None


def found_document(call: ApiCall, turn: Turn, echo: Echo) -> ResponseDocument:
    """The response object of a stored response."""
    return response_of(turn, echo, will_go_on=call.services.orphans.expects(turn))


def streamed_again(call: ApiCall, turn: Turn, echo: Echo, after: int) -> Response:
    """The events of a response after a number: as they were told, or made anew of what is stored."""
    running = call.services.responses.stream(call.tenant, turn.id)
    if running is not None:
        stream, feed = running
        feed.enter()
        return EventStream(stream.frames(feed, call.id, after), left=feed.leave)
    return EventStream(_told_anew(call, turn, echo, after))


async def _told_anew(call: ApiCall, turn: Turn, echo: Echo, after: int) -> AsyncIterator[bytes]:
    """The events of a response that this server has not told: only what is committed is known, and told whole."""
    end = asyncio.ensure_future(ended(call, turn.conversation, turn.id))
    try:
        while not (await asyncio.wait((end,), timeout=call.services.settings.heartbeat))[0]:
            yield KEEP_ALIVE
    finally:
        end.cancel()
    turn = end.result()
    stream = ResponseStream(echo, holds=True, tells=True)
    stream.tell_again(turn.id, found_document(call, turn, echo), after)
    async for some in stream.events.read(None, None, after):
        yield some

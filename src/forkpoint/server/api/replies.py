"""How a turn is answered: as JSON when it has ended, as a stream while it runs, or at once and read later.

The turn runs apart from the request either way; what differs is who waits for what. Tests: tests/server/test_turns.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from functools import partial

from fastapi import Response

from forkpoint.backend.callbacks import Callback
from forkpoint.backend.results import SideAnswer, Turn, raise_for
from forkpoint.errors import ForkpointError
from forkpoint.server.api.public import public_turn
from forkpoint.server.http.call import ApiCall, answer
from forkpoint.server.http.door import GONE
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.runs import Act
from forkpoint.server.live.stream import HEARTBEAT, OPENING, EventStream, until_gone
from forkpoint.wire.documents import side_answer_document


async def run(call: ApiCall, act: Act, *, stop: bool, is_turn: bool = True) -> Response:
    """Runs a turn or a side question apart from this request, and answers in the way that the client asked for."""
    turns, backend = call.services.turns, call.backend
    feed, joined = await turns.start(call.tenant, partial(_by_name, call.names, act), is_turn=is_turn)
    if call.wants_async and (turn := feed.turn or feed.joined) is not None and feed.conversation is not None:
        found = await backend.turns.accept(feed.conversation, turn)  # on disk before anybody is told
        if found.outcome == "running":  # or it is answered at once, as it ended
            place = f"/api/conversations/{feed.conversation}/turns/{turn}"
            return answer(public_turn(found, events=True), 202, Location=place, Preference_Applied="respond-async")
    if stop and not joined:
        feed.stop = partial(turns.abandon, call.tenant, feed, backend.turns.cancel)
    if call.wants_stream:
        return stream(call, feed, late=joined)
    with feed.awaited():
        await while_there(call, feed.ended.wait())
    if not feed.ended.is_set():
        return Response(status_code=GONE)
    if feed.error is not None:
        raise feed.error
    if isinstance(feed.result, SideAnswer):
        return answer(side_answer_document(feed.result))
    assert feed.result is not None
    return answer(public_turn(feed.result, events=True))


async def _by_name(names: Mapping[str, str], act: Act, tell: Callback) -> Turn | SideAnswer:
    """Runs what was asked for. Its error names conversations as the client does, also in a stream."""
    try:
        return await act(tell)
    except ForkpointError as error:
        error.use_names(names)
        raise


def stream(call: ApiCall, feed: Feed, *, late: bool) -> Response:
    """The updates of a turn, as a stream."""
    settings = call.services.settings
    frames = feed.frames(most=settings.buffer, heartbeat=settings.heartbeat, request_id=call.id, late=late)
    feed.enter()
    return EventStream(frames, left=feed.leave)


async def first_of(*waits: Awaitable[object]) -> None:
    """Waits for the first of these, and cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def while_there(call: ApiCall, end: Awaitable[object], seconds: float | None = None) -> None:
    """Waits for something, for as long as the client is there, and at most so many seconds."""
    await first_of(asyncio.wait_for(end, seconds), until_gone(call.request.receive))


def runs_here(call: ApiCall, conversation: str, turn: str) -> Feed | None:
    """The feed of a turn, or None if the turn does not run in this server."""
    feed = call.services.turns.feed(call.tenant, conversation)
    return feed if feed is not None and feed.turn == turn else None


async def ended(call: ApiCall, conversation: str, turn: str) -> Turn:
    """A turn once it has ended, whichever process runs it; or as it stands when this server stops.

    A turn whose process is gone, and that will go on by itself, has not ended.
    """
    while True:
        found = await call.backend.turns.read(conversation, turn)
        if found.outcome != "running" and not call.services.orphans.expects(found):
            break
        if call.services.turns.draining:
            break
        await asyncio.sleep(call.services.settings.poll)
    return found


async def from_elsewhere(call: ApiCall, conversation: str, turn: str) -> AsyncIterator[bytes]:
    """A turn of another process, as a stream: heartbeats, and then its end."""
    yield OPENING
    end = asyncio.ensure_future(ended(call, conversation, turn))
    try:
        while not (await asyncio.wait((end,), timeout=call.services.settings.heartbeat))[0]:
            yield HEARTBEAT
    finally:
        end.cancel()
    feed = Feed()
    try:
        feed.end(raise_for(end.result()), None)
    except ForkpointError as error:
        feed.end(None, error)
    yield feed.last(call.id)

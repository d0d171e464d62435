"""Mailboxes and pages: what waits for a reader is bounded, and never holds up anybody."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from forkpoint.events import NewEvent, Position
from forkpoint.ids import new_id
from forkpoint.server.api.public import event_frame
from forkpoint.server.http.timed_store import timed
from forkpoint.server.live.feed import ENDS, MOST_BYTES, Encoded, Item, Mailbox
from forkpoint.server.live.follower import PAGE, PAGE_BYTES, Follower, StreamReader
from forkpoint.server.live.stream import OPENING, EventStream, frame
from forkpoint.store.address import open_store
from forkpoint.store.values import NewConversation, NewFork
from forkpoint.testing.samples import says

pytestmark = pytest.mark.anyio

items: st.SearchStrategy[Item] = st.one_of(
    st.none(),
    st.builds(Encoded, st.binary(min_size=1, max_size=3), st.just("t"), st.booleans()),
    st.builds(Encoded, st.just(bytes(MOST_BYTES // 3)), st.just("t")),
)


@settings(deadline=None)
@given(st.lists(items, max_size=60), st.integers(1, 8))
def test_a_mailbox_is_bounded_and_counts_what_it_drops(put: list[Item], most: int) -> None:
    mailbox = Mailbox(most)
    for item in put:
        mailbox.put(item)
        assert mailbox.size <= 2 * MOST_BYTES
    taken, dropped = mailbox.take()
    assert len(taken) <= max(most, ENDS + 2)
    frames = [item for item in put if item is not None]
    assert dropped + sum(item is not None for item in taken) == len(frames), "each is there or counted"
    if dropped or None in put:
        assert None in taken, "one who missed something looks"
    ends = [item for item in frames if item.ends]
    kept = [item for item in taken if item is not None and item.ends]
    assert kept == ends[len(ends) - len(kept) :], "of ends the newest are kept"
    assert len(kept) >= min(len(ends), ENDS)
    assert mailbox.is_empty
    assert mailbox.size == 0


async def test_a_mailbox_wakes_its_reader_at_once_and_says_if_nothing_came() -> None:
    mailbox = Mailbox(4)
    assert not await mailbox.wait(0.001)
    asyncio.get_running_loop().call_soon(mailbox.put, None)
    with anyio.fail_after(5):
        assert await mailbox.wait(60)
    assert mailbox.take() == ([None], 0)


async def test_a_reader_that_wants_nothing_provisional_is_not_woken_for_it() -> None:
    mailbox = Mailbox(4, provisional=False)
    mailbox.put(Encoded(b"x", "t"))
    assert mailbox.is_empty
    mailbox.put(Encoded(b"x", "t", ends=True))
    assert not mailbox.is_empty


def reader(mailbox: Mailbox, *, closing: bool = False) -> StreamReader:
    return StreamReader(mailbox, 60, lambda _: None, allowed=lambda: True, closing=lambda: closing, slow=lambda: None)


@pytest.mark.parametrize(("count", "size"), [(1000, 100), (60, 100_000), (1, 3_000_000)])
async def test_a_long_history_is_read_page_by_page_as_it_is_taken(count: int, size: int) -> None:
    async with await open_store("memory:") as store:
        made = await store.create(NewConversation(id=new_id()))
        for first in range(0, count, 500):
            texts = [NewEvent(says("x" * size).body) for _ in range(first, min(first + 500, count))]
            await store.note(made.id, new_id(), texts)
        follower = Follower(reader(Mailbox(4), closing=True), store, made.id, None)
        pages = [page async for page in follower.frames() if b"event: event" in page]
    assert sum(page.count(b"event: event") for page in pages) == count
    assert max(page.count(b"event: event") for page in pages) <= PAGE
    assert max(map(len, pages[1:]), default=0) <= PAGE_BYTES + 2 * size
    assert len(pages[0]) <= PAGE // 10 * (size + 1000), "the first is small, since nothing is known yet"


async def test_what_was_told_on_the_way_to_events_is_no_news_after_them() -> None:
    mailbox = Mailbox(9)
    async with await open_store("memory:") as store:
        made = await store.create(NewConversation(id=new_id()))
        follower = Follower(reader(mailbox), store, made.id, None)
        frames = follower.frames()
        assert [await anext(frames) for _ in range(2)] == [OPENING, b""]
        turn = new_id()
        await store.note(made.id, turn, [NewEvent(says("x").body)])
        others = Encoded(b"others ", "next")
        for item in (None, Encoded(b"words ", turn), others, None, Encoded(b"end", turn, ends=True)):
            mailbox.put(item)
        told = b"".join([await anext(frames) for _ in range(3)])
        await frames.aclose()
    assert told.count(b"event: event") == 1
    assert told.endswith(b"others end")
    assert b"words" not in told


async def test_what_a_turn_committed_is_not_read_again_by_those_who_have_all_that_is_before_it() -> None:
    """And by others it is, from the store: after a rewind, or with a gap before it."""
    mailbox = Mailbox(9)
    async with await open_store("memory:") as store:
        made = await store.create(NewConversation(id=new_id()))
        read: list[str] = []
        watched = timed(store, lambda operation, _: read.append(operation))
        follower = Follower(reader(mailbox), watched, made.id, None)
        for text in ("a", "b", "c"):
            await store.note(made.id, new_id(), [NewEvent(says(text).body)])
        first, second, third = await store.events(made.id)
        await store.rewind(made.id, NewFork(id=new_id(), cache="{}"), at=first.id)
        frames = follower.frames()
        opening = b"".join([await anext(frames) for _ in range(3)])
        assert opening.count(b"event: event") == 1

        read.clear()
        mailbox.put(Encoded(b"end", second.turn, True, event_frame(second), second.id, second.id))
        assert await anext(frames) == event_frame(second) + b"end"
        assert read == []

        # It has been rewound all the while, so what follows there cannot be told as it comes.
        mailbox.put(Encoded(b"end", "x", True, b"never", Position(third.id.segment, 9), Position(third.id.segment, 9)))
        told = b"".join([await anext(frames) for _ in range(2)])
        await frames.aclose()
    assert told == b'id: 1-1\nevent: rewound\ndata: {"at":"1-1"}\n\n' + b"end"
    assert "path" in read


def test_data_never_breaks_a_frame() -> None:
    assert frame("x", b'{"a":\n1,\r\n"b": 2}', id="1-1") == b'id: 1-1\nevent: x\ndata: {"a": 1,  "b": 2}\n\n'


async def test_writing_waits_for_a_client_that_does_not_read() -> None:
    sent: list[bytes] = []
    room = asyncio.Semaphore(3)

    async def frames() -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"%d" % number

    async def send(message: Message) -> None:
        await room.acquire()
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    gone = asyncio.Event()
    ended: list[str] = []

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    stream = EventStream(frames(), left=lambda: ended.append("left"))
    following = asyncio.create_task(stream.follow(receive, send))
    for _ in range(40):
        await asyncio.sleep(0)
    assert sent == [b"0", b"1"], "what a client does not take is not read either"
    gone.set()
    await following
    assert ended == ["left"]
    assert not following.cancelled()
    assert not [task for task in asyncio.all_tasks() if "until_gone" in repr(task)]

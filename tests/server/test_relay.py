"""The relay: what a turn says on one node reaches the readers of another, in hints that may be lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import pytest

from forkpoint.errors import StoreUnavailable
from forkpoint.server.http.metrics import Metrics
from forkpoint.server.live.feed import Feed, Mailbox
from forkpoint.server.live.relay import MOST_BYTES, MOST_HINTS, Relay
from forkpoint.server.live.watch import Watching
from forkpoint.server.settings import ServerSettings
from forkpoint.updates import TextPiece, TurnStarted

pytestmark = pytest.mark.anyio

TURN = "0190d2f0-0000-7000-8000-000000000001"
ID = "0190d2f0-0000-7000-8000-000000000002"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Air:
    """A store that carries hints between the nodes of a test, and nothing else."""

    def __init__(self, *, notify: bool = True) -> None:
        self.capabilities = SimpleNamespace(notify=notify)
        self.heard: list[Callable[[str], None]] = []
        self.said: list[str] = []

    async def tell(self, text: str) -> None:
        assert len(text.encode()) < 8000
        self.said.append(text)
        for heard in self.heard:
            heard(text)

    @contextmanager
    def hear(self, heard: Callable[[str], None]) -> Iterator[None]:
        self.heard.append(heard)
        try:
            yield
        finally:
            self.heard.remove(heard)


class Node:
    """A server's streams, without the server."""

    def __init__(self, air: Air) -> None:
        store: Any = air
        self.feeds: dict[tuple[str, str], Feed] = {}
        self.watching = Watching(ServerSettings(), store, Metrics())
        self.relay = Relay(store, self.watching, lambda *key: self.feeds.get(key), period=0.001)

    def begin(self) -> Feed:
        feed = Feed(lambda: self.watching.mailboxes("default", ID))
        self.feeds["default", ID] = feed
        feed.tell(TurnStarted(TURN, ID, ()))
        return feed


@asynccontextmanager
async def nodes(air: Air) -> AsyncIterator[tuple[Node, Node]]:
    both = Node(air), Node(air)
    tasks = [asyncio.create_task(node.relay.run()) for node in both]
    try:
        yield both
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def read(mailbox: Mailbox, text: str) -> str:
    """What a mailbox gets, up to a text."""
    got = ""
    async with asyncio.timeout(20):
        while text not in got:
            await mailbox.wait(1)
            got += "".join(item.frame.decode() for item in mailbox.take()[0] if item is not None)
    return got


async def test_a_reader_of_one_node_hears_what_a_turn_says_on_another() -> None:
    async with nodes(Air()) as (one, two):
        mailbox = two.watching.watch("default", ID, 1)
        await until(lambda: ("default", ID) in one.relay.wishes)
        feed = one.begin()
        for word in ("Good", " mor", "ning"):
            feed.tell(TextPiece(word))
        got = await read(mailbox, "ning")
        assert got.index("Good") < got.index(" mor") < got.index("ning")
        assert TURN in got


async def test_a_reader_who_comes_late_gets_how_the_turn_stands() -> None:
    async with nodes(Air()) as (one, two):
        one.begin().tell(TextPiece("What was said before"))
        mailbox = two.watching.watch("default", ID, 1)
        got = await read(mailbox, "What was said before")
        assert got.startswith("event: snapshot")


async def test_many_small_updates_go_in_few_hints_and_what_does_not_fit_is_a_gap() -> None:
    air = Air()
    async with nodes(air) as (one, two):
        mailbox = two.watching.watch("default", ID, 1)
        await until(lambda: ("default", ID) in one.relay.wishes)
        feed = one.begin()
        before = len(air.said)
        for number in range(100):
            feed.tell(TextPiece(f"{number} "))
        feed.tell(TextPiece("x" * MOST_BYTES))  # no hint is large enough
        feed.tell(TextPiece("the end"))
        got = await read(mailbox, "the end")
        assert "event: gap" in got
        assert '"dropped":1' in got
        assert len(air.said) - before < MOST_HINTS


Loses: TypeAlias = Literal["nothing", "on the way", "with an error"]


class BadAir(Air):
    """Hints that are lost: on their way, or since the database refuses them."""

    def __init__(self) -> None:
        super().__init__()
        self.loses: Loses = "nothing"

    async def tell(self, text: str) -> None:
        how = self.loses if text.startswith('["said"') else "nothing"
        if how == "nothing":
            await super().tell(text)
        else:
            self.loses = "nothing"
        if how == "with an error":
            raise StoreUnavailable("the store", "it was away")


@pytest.mark.parametrize("how", ["on the way", "with an error"])
async def test_a_hint_that_is_lost_is_a_gap(how: Loses) -> None:
    air = BadAir()
    async with nodes(air) as (one, two):
        mailbox = two.watching.watch("default", ID, 1)
        await until(lambda: ("default", ID) in one.relay.wishes)
        feed = one.begin()
        feed.tell(TextPiece("Good"))
        await read(mailbox, "Good")
        air.loses = how
        feed.tell(TextPiece(" mor"))
        await until(lambda: air.loses == "nothing")
        feed.tell(TextPiece("ning"))
        got = await read(mailbox, "ning")
        assert got.startswith('event: gap\ndata: {"dropped":1}')


async def test_a_gap_is_told_though_the_turn_says_nothing_more() -> None:
    air = BadAir()
    async with nodes(air) as (one, two):
        mailbox = two.watching.watch("default", ID, 1)
        await until(lambda: ("default", ID) in one.relay.wishes)
        feed = one.begin()
        feed.tell(TextPiece("Good"))
        await read(mailbox, "Good")
        air.loses = "with an error"
        feed.tell(TextPiece(" morning"))
        assert "event: gap" in await read(mailbox, '"dropped":1')


async def test_a_wish_that_is_not_repeated_ends() -> None:
    async with nodes(Air()) as (one, two):
        mailbox = two.watching.watch("default", ID, 1)
        await until(lambda: one.relay.wishes)
        two.watching.leave("default", ID, mailbox)
        for wish in one.relay._wishes.values():
            wish.until = 0.0
        await until(lambda: not one.relay.wishes)
        assert one.watching.mailboxes("default", ID) == ()


async def test_what_nobody_here_watches_or_what_is_no_hint_is_left_alone() -> None:
    async with nodes(Air()) as (one, _):
        for text in ("", "{}", "[]", '["said","x","default","y",null,"z",0]', '["wish","x",[1]]'):
            one.relay.hear(text)
        assert not one.relay.wishes


async def test_a_store_without_hints_needs_no_relay() -> None:
    node = Node(Air(notify=False))
    await node.relay.run()

"""Servers that only read, and standbys that are promoted."""

import asyncio
from collections.abc import Callable
from urllib.parse import quote

import pytest
from tests.postgres.server import Server

from forkpoint.errors import ForkpointError, NotFound, StoreUnavailable, StoreUnusable
from forkpoint.ids import new_id
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import OpenTurn
from forkpoint.testing.conformance.base import create, run, texts
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio


async def test_a_standby_is_refused_for_writes_and_read_with_an_option(make_server: Callable[..., Server]) -> None:
    primary = make_server()
    async with await PostgresStore.open(primary.url()) as store:
        made = await create(store)
        await run(store, made.id, "hi")
    standby = primary.standby()
    with pytest.raises((StoreUnavailable, StoreUnusable)):
        await PostgresStore.open(standby.url())
    async with await PostgresStore.open(f"{standby.url()}?mode=ro") as store:
        assert texts(await store.events(made.id))[0] == "hi"
        with pytest.raises(StoreUnusable):
            await create(store)


async def test_a_server_that_becomes_read_only_refuses_writes_and_goes_on_afterwards(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    async with await PostgresStore.open(server.url()) as store:
        made = await create(store)
        turn = await accepted(store, made.id)
        await asyncio.to_thread(server.configure, default_transaction_read_only="on")
        with pytest.raises(ForkpointError):
            await store.commit(turn, exchange("hi"))
        await asyncio.to_thread(server.configure, default_transaction_read_only="off")
        assert (await store.read(made.id)).revision == 0
        await store.commit(turn, exchange("hi"))
        assert (await store.verify()).ok


async def test_a_store_goes_on_with_the_standby_that_is_promoted(make_server: Callable[..., Server]) -> None:
    primary = make_server()
    standby = primary.standby("second")
    primary.configure(synchronous_standby_names="second")
    hosts = ",".join(quote(str(server.folder), safe="") for server in (primary, standby))
    async with await PostgresStore.open(f"postgresql://postgres@{hosts}/postgres") as store:
        made, other = await create(store), new_id()
        turn = await accepted(store, made.id)
        await run(store, (await create(store)).id, "hi")
        anchor = await store.anchor()
        primary.stop("immediate")
        with pytest.raises(ForkpointError):
            await store.read(made.id)
        await asyncio.to_thread(standby.promote)
        await store.commit(turn, exchange("hi"))
        assert (await store.verify(anchors=[anchor])).ok
        with pytest.raises(NotFound):
            await store.read(other)


async def test_a_server_that_starts_anew_is_used_again(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with await PostgresStore.open(server.url()) as store:
        made = await create(store)
        turn = await accepted(store, made.id)
        await asyncio.to_thread(server.restart, "immediate")
        await store.commit(turn, exchange("hi"))
        assert (await store.read(made.id)).revision == 1


async def accepted(store: PostgresStore, conversation: str) -> OpenTurn:
    """A turn that is on disk as soon as it has begun."""
    turn = await store.begin(conversation, new_id(), accepted=True)
    assert isinstance(turn, OpenTurn)
    return turn

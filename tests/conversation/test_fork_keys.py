"""One key, one effect, for what is not a turn: creating, forking and rewinding, also after a restart."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.conversation.support.agents import agent_of
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, Budget, Conversation
from forkpoint.backend.options import Draft, ForkOptions
from forkpoint.backend.protocol import Backend
from forkpoint.backend.settings import Settings
from forkpoint.conversation import TurnJoined, Update
from forkpoint.engine.engine import Engine
from forkpoint.errors import AlreadyExists, KeyReused, NotFound, NotWhole, Stale, TooLarge
from forkpoint.events import Position
from forkpoint.ids import new_id
from forkpoint.remote.addresses import is_server
from forkpoint.remote.backend import RemoteBackend
from forkpoint.store import open_store

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo")
OTHER = Agent("scripted/echo", instructions="Be brief.")


@pytest.fixture
async def backend(home: Home) -> AsyncIterator[Backend]:
    opened = RemoteBackend(home.store) if is_server(home.store) else Engine(await open_store(home.store))
    yield opened
    await opened.close()


@pytest.fixture
async def source(home: Home) -> AsyncIterator[AsyncConversation]:
    async with AsyncConversation(home.agent(ECHO), store=home.store) as conversation:
        for word in ("one", "two"):
            await conversation.run(word)
        yield conversation


def a_draft(**more: Any) -> Draft:
    return Draft(**{"id": new_id(), "name": None, "settings": Settings.of(ECHO, None)} | more)


async def infos(home: Home) -> list[str]:
    return [info.id for info in (await AsyncConversation.list(store=home.store)).items]


# Creating.


async def test_a_conversation_is_made_once_for_a_key_whatever_id_the_repeat_has(backend: Backend) -> None:
    first = await backend.create(a_draft(title="t", tags={"a": "b", "c": "d"}), key="k")
    again = await backend.create(a_draft(title="t", tags={"c": "d", "a": "b"}), key="k")
    assert again == first
    assert [info.id for info in (await backend.conversations()).items] == [first.id]
    assert (await backend.create(a_draft(title="t"))).id != first.id


async def test_a_repeat_of_a_create_with_a_chosen_name_is_not_refused_as_taken(backend: Backend) -> None:
    first = await backend.create(a_draft(name="mine", chosen=True), key="k")
    assert await backend.create(a_draft(name="mine", chosen=True), key="k") == first
    with pytest.raises(AlreadyExists):
        await backend.create(a_draft(name="mine", chosen=True), key="another")


@pytest.mark.parametrize(
    "other",
    [
        {"title": "another"},
        {"tags": {"a": "c"}},
        {"name": "a-name", "chosen": True},
        {"id": new_id(), "chosen": True},
        {"settings": Settings.of(OTHER, None)},
        {"settings": Settings.of(ECHO, "/")},
        {"budget": Budget(turns=1)},
        {"family_budget": Budget(turns=1)},
    ],
    ids=lambda other: "-".join(other),
)
async def test_a_key_names_one_conversation_that_was_asked_for(backend: Backend, other: dict[str, Any]) -> None:
    asked = a_draft(title="t", tags={"a": "b"})
    await backend.create(asked, key="k")
    with pytest.raises(KeyReused):
        await backend.create(replace(asked, **{"id": new_id()} | other), key="k")
    assert len((await backend.conversations()).items) == 1


# Forking.


async def test_a_repeated_fork_is_the_first_one(home: Home, source: AsyncConversation) -> None:
    first = await source.fork(title="a try", key="k")
    await source.run("three")
    await first.run("on the fork")
    again = await source.fork(title="a try", key="k")
    assert await again.info() == await first.info()
    assert len(await again.events()) == len(await first.events())
    assert len(await infos(home)) == 2
    assert (await source.fork(title="a try")).id != first.id


@pytest.mark.parametrize("cache", ["own", "inherit"])
async def test_a_repeat_finds_the_fork_although_its_source_has_moved_or_is_gone(
    source: AsyncConversation, backend: Backend, cache: Any
) -> None:
    options = ForkOptions(id=new_id(), cache=cache, agent=OTHER)
    made = await backend.create(a_draft())
    first = await backend.branches.fork(made.id, options, ECHO, key="k", if_revision=0)
    await backend.update_state(made.id, {"a": 1}, ())
    assert await backend.branches.fork(made.id, replace(options, id=new_id()), ECHO, key="k", if_revision=0) == first
    await backend.delete(made.id)
    assert await backend.branches.fork(made.id, replace(options, id=new_id()), ECHO, key="k", if_revision=0) == first
    with pytest.raises(NotFound):
        await backend.branches.fork(made.id, replace(options, id=new_id()), ECHO, key="l")


async def test_a_key_without_a_fork_is_free_and_one_whose_fork_is_deleted_is_free_again(
    source: AsyncConversation,
) -> None:
    with pytest.raises(Stale):
        await source.fork(key="k", if_revision=0)
    with pytest.raises(AlreadyExists):
        await source.fork(conversation_id=source.id, key="k")
    first = await source.fork(key="k")
    await first.delete()
    assert (await source.fork(title="something else", key="k")).id != first.id


@pytest.mark.parametrize(
    "other",
    [
        {"conversation_id": "a-name"},
        {"conversation_id": new_id()},
        {"at": Position(1, 2)},
        {"before": Position(1, 3)},
        {"agent": OTHER},
        {"title": "another"},
        {"tags": {"a": "c"}},
        {"reset_metrics": False},
        {"cache": "inherit"},
        {"workspace": "/"},
        {"workspace": "copy"},
        {"at": Position(1, 2), "results": {"call": "x"}},
        {"state": {"a": 1}},
        {"budget": Budget(dollars=1)},
    ],
    ids=lambda other: "-".join(other),
)
async def test_a_key_names_one_fork_that_was_asked_for(
    home: Home, source: AsyncConversation, other: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"title": "t", "tags": {"a": "b"}}
    await source.fork(**asked, key="k")
    with pytest.raises(KeyReused):
        await source.fork(**asked | other, key="k")
    assert len(await infos(home)) == 2


def test_every_option_of_a_fork_is_tried_above() -> None:
    tried = {"id", "name", "chosen", "at", "before", "agent", "title", "tags", "reset_metrics", "cache", "workspace"}
    tried |= {"isolation", "results", "state", "budget"}
    elsewhere = {"server_agent"}  # which no store in this process is asked for
    assert set(ForkOptions.__struct_fields__) == tried | elsewhere, "say above that another one is another request"


async def test_many_who_fork_with_one_key_at_once_get_one_fork(source: AsyncConversation) -> None:
    found: list[str] = []

    async def fork() -> None:
        found.append((await source.fork(cache="inherit", key="k")).id)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(fork)
    assert len(found) == 10
    assert len(set(found)) == 1


async def test_a_name_that_is_chosen_counts_and_a_repeat_with_it_is_not_refused(source: AsyncConversation) -> None:
    first = await source.fork(conversation_id="mine", key="k")
    assert (await source.fork(conversation_id="mine", key="k")).id == first.id
    with pytest.raises(AlreadyExists):
        await source.fork(conversation_id="mine", key="l")


async def test_a_key_that_no_store_takes_is_refused_before_anything_is_made(
    home: Home, source: AsyncConversation
) -> None:
    last = (await source.turns()).items[-1]
    for key, why in (("x" * 10_000, TooLarge), ("\ud800", NotWhole)):
        with pytest.raises(why):
            await source.fork(key=key)
        with pytest.raises(why):
            await source.rewind(before=last, key=key)
    with pytest.raises(NotWhole):
        await source.fork(title="\ud800", key="k")
    assert len(await infos(home)) == 1


# Rewinding.


async def test_a_repeated_rewind_gives_the_same_branch_and_moves_nothing(source: AsyncConversation) -> None:
    first = (await source.turns()).items[0]
    aside = await source.rewind(at=first, key="k")
    assert aside is not None
    await source.run("another two")
    before = await source.info()
    again = await source.rewind(at=first, key="k", if_revision=2)
    assert again is not None
    assert await again.info() == await aside.info()
    assert await source.info() == before
    with pytest.raises(KeyReused):
        await source.rewind(before=first, key="k")
    with pytest.raises(KeyReused):
        await source.fork(at=first, key="k")
    assert await source.info() == before
    newer = await source.rewind(at=first)
    assert newer is not None
    assert newer.id != aside.id


async def test_a_rewind_that_set_nothing_aside_does_so_once(source: AsyncConversation) -> None:
    last = (await source.turns()).items[-1]
    assert await source.rewind(at=last, key="k") is None
    await source.run("three")
    assert await source.rewind(at=last, key="k") is None
    assert len((await source.turns()).items) == 3


# After a restart.


async def test_all_of_them_are_remembered_by_the_file(tmp_path: Path) -> None:
    address, seen = f"sqlite:///{tmp_path / 'a.db'}", list[tuple[str, ...]]()
    for _ in range(2):
        backend = Engine(await open_store(address))
        made = await backend.create(a_draft(title="t"), key="create")
        fork, _settings = await backend.branches.fork(made.id, ForkOptions(id=new_id()), ECHO, key="fork")
        if not seen:
            await backend.update_state(made.id, {"a": 1}, ())
            await backend.update_state(made.id, {"a": 2}, ())
        first = (await backend.events(made.id))[0].turn
        rewound = await backend.branches.rewind(made.id, at=first, before=None, key="rewind")
        assert rewound is not None
        seen.append((made.id, fork.id, rewound[0].id))
        await backend.close()
    assert seen[0] == seen[1]


def test_the_sync_conversation_has_keys_too(home: Home) -> None:
    with Conversation(home.agent(ECHO), store=home.store) as source:
        first = source.run("one")
        source.run("two")
        with source.fork(key="f") as fork, source.fork(key="f") as same:
            assert fork.id == same.id
        aside, again = source.rewind(at=first, key="r"), source.rewind(at=first, key="r")
        assert aside is not None
        assert again is not None
        assert aside.id == again.id
        aside.close()
        again.close()


# Joining.


async def test_whoever_joins_a_turn_is_told_so_once_and_of_no_start(home: Home) -> None:
    told: list[Update] = []
    async with AsyncConversation(home.agent(agent_of(["once"])), store=home.store) as conversation:
        turn = await conversation.run("go", key="k")
        async with await AsyncConversation.open(
            conversation.id, agent=conversation.agent, store=home.store, callbacks=[told.append]
        ) as other:
            other.send_message("go")
            assert await other.run(key="k") == turn
            assert told == [TurnJoined(turn.id, conversation.id)]
            assert other.pending == ()


async def test_whoever_joins_the_turn_that_made_its_conversation_stands_for_that_one(home: Home) -> None:
    told: list[Update] = []
    agent = agent_of(["once", "next"])
    async with (
        AsyncConversation(home.agent(agent), conversation_id="mine", store=home.store) as first,
        AsyncConversation(
            home.agent(agent), conversation_id="mine", store=home.store, callbacks=[told.append]
        ) as again,
    ):
        turn = await first.run("go", key="k")
        assert await again.run("go", key="k") == turn
        assert told == [TurnJoined(turn.id, first.id)]
        assert again.id == first.id
        assert (await again.run("on")).text == "next"

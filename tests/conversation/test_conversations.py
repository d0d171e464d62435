"""`Conversations` and `AsyncConversations`: all conversations of a store, in both homes."""

import inspect
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import assert_type

import pytest
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, AsyncConversations, Conversation, Conversations, Turn
from forkpoint.conversation import Info, Spending
from forkpoint.errors import AlreadyExists, BadArgument, BadName, NotFound, StoreUnavailable, UseAsync
from forkpoint.paging import Page
from forkpoint.store.values import Verification

ECHO = Agent("scripted/echo")


@pytest.mark.anyio
async def test_a_store_makes_opens_lists_counts_and_verifies(home: Home) -> None:
    async with AsyncConversations(home.store) as conversations:
        first = await conversations.create(home.agent(ECHO), conversation_id="first", tags={"team": "build"})
        async with first, await conversations.create(home.agent(ECHO), title="Second") as second:
            assert (first.name, await second.title()) == ("first", "Second")
            assert [info.id for info in (await conversations.list()).items] == [second.id, first.id]
            assert [info.name for info in (await conversations.list(tags={"team": "build"})).items] == ["first"]
            turn = await first.run("Hello")
        page = await conversations.list(limit=1)
        assert page.next is not None
        assert [info.id for info in (await conversations.list(limit=1, cursor=page.next)).items] == [first.id]
        async with await conversations.open("first", agent=home.agent(ECHO)) as again:
            assert (again.id, (await again.turn(turn.id)).text) == (first.id, "You said: Hello")
            spent = await conversations.usage()
            assert (spent.total, spent.beside.calls) == ((await again.stats()).family, 0)
            await again.delete()
        assert (await conversations.usage()).total == spent.total, "what a deleted conversation spent stays counted"
        checked = await conversations.verify()
        assert (checked.ok, checked.conversations) == (True, 1)


@pytest.mark.anyio
async def test_a_list_by_last_use_begins_with_what_was_run_last_and_its_pages_lead_on(home: Home) -> None:
    async with AsyncConversations(home.store) as conversations:
        for name in ("first", "second", "third"):
            await (await conversations.create(home.agent(ECHO), conversation_id=name)).close()
        with closing(sqlite3.connect(home.file)) as db, db:
            db.execute("UPDATE conversation SET used = used - 3600000000")  # nobody has used them for an hour
        async with await conversations.open("second", agent=home.agent(ECHO)) as second:
            await second.run("Hello")
        assert [info.name for info in (await conversations.list()).items] == ["third", "second", "first"]
        page = await conversations.list(order="used", limit=2)
        assert [info.name for info in page.items] == ["second", "third"]
        rest = await conversations.list(order="used", cursor=page.next)
        assert ([info.name for info in rest.items], rest.next) == (["first"], None)
        assert await AsyncConversation.list(store=home.store, order="used", limit=2) == page
        with pytest.raises(BadName, check=BadName.bad_cursor.made):
            await conversations.list(cursor=page.next)


def test_a_store_does_the_same_without_await(home: Home) -> None:
    with Conversations(home.store) as conversations:
        with conversations.create(home.agent(ECHO), conversation_id="first") as first:
            assert isinstance(first, Conversation)
            first.run("Hello")
        with conversations.open("second", create=home.agent(ECHO)) as second:
            assert isinstance(second, Conversation)
        assert [info.name for info in conversations.list().items] == ["second", "first"]
        assert {info.name for info in conversations.list(order="used").items} == {"second", "first"}
        assert conversations.usage().total.calls == 1
        assert conversations.verify().conversations == 2


@pytest.mark.anyio
async def test_what_is_made_is_in_the_store_at_once_and_a_name_is_given_once(home: Home) -> None:
    async with AsyncConversations(home.store) as conversations:
        async with await conversations.create(home.agent(ECHO), conversation_id="mine") as made:
            assert (await made.info()).events == 0
            assert (await AsyncConversation.list(store=home.store)).items == (await conversations.list()).items
            with pytest.raises(AlreadyExists):
                await conversations.create(home.agent(ECHO), conversation_id="mine")
            with pytest.raises(BadName):
                await conversations.create(home.agent(ECHO), conversation_id="not a name")
            with pytest.raises(NotFound):
                await conversations.open("theirs")
        assert [info.name for info in (await conversations.list()).items] == ["mine"]


@pytest.mark.anyio
async def test_conversations_of_a_store_outlive_its_face(home: Home) -> None:
    conversations = AsyncConversations(home.store)
    made = await conversations.create(home.agent(ECHO))
    await conversations.close()
    assert (await made.run("Hello")).outcome == "committed"
    await made.close()


@pytest.mark.anyio
async def test_what_could_not_be_made_or_opened_does_not_keep_the_store_open() -> None:
    async with AsyncConversations("memory:") as conversations:
        with pytest.raises(NotFound):
            await conversations.open("nobody")
        with pytest.raises(BadArgument, match="agent=3"):
            await conversations.create(3)  # type: ignore[arg-type]
        await (await conversations.create(ECHO, conversation_id="mine")).close()
        assert len((await conversations.list()).items) == 1
    async with AsyncConversations("memory:") as conversations:
        assert (await conversations.list()).items == (), "the store in memory was closed, and is gone"


@pytest.mark.anyio
async def test_a_closed_face_says_so_and_one_that_was_never_used_opens_nothing(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    async with AsyncConversations(file) as conversations:
        pass
    assert not file.exists(), "nothing was needed of the store"
    with pytest.raises(StoreUnavailable, check=StoreUnavailable.store_closed.made, match=r"new\.db"):
        await conversations.list()
    await conversations.close()
    address = AsyncConversations("postgresql://me:secret@127.0.0.1/forkpoint")
    await address.close()
    with pytest.raises(StoreUnavailable, check=StoreUnavailable.store_closed.made) as closed:
        await address.usage()
    assert "secret" not in str(closed.value)


def test_a_closed_face_without_await_says_so_too(tmp_path: Path) -> None:
    conversations = Conversations(tmp_path / "new.db")
    conversations.close()
    with pytest.raises(StoreUnavailable, check=StoreUnavailable.store_closed.made):
        conversations.list()
    with Conversations(tmp_path / "new.db") as conversations:
        assert conversations.list().items == ()
    with pytest.raises(StoreUnavailable, check=StoreUnavailable.store_closed.made):
        conversations.verify()


def test_the_default_store_is_the_one_of_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKPOINT_STORE", f"sqlite:///{tmp_path / 'default.db'}")
    with Conversation("scripted/echo", conversation_id="here") as conversation:
        conversation.run("Hello")
    with Conversations() as conversations:
        assert [info.name for info in conversations.list().items] == ["here"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_of_the_process_opens_the_store_again(tmp_path: Path) -> None:
    conversations = Conversations(tmp_path / "forkpoint.db")
    with conversations.create(ECHO, conversation_id="mine"):
        pass
    child = os.fork()
    if child == 0:
        found = False
        try:
            found = [info.name for info in conversations.list().items] == ["mine"]
            conversations.close()
        finally:
            os._exit(0 if found else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [info.name for info in conversations.list().items] == ["mine"], "the parent's is as it was"
    conversations.close()


def test_in_the_portal_s_own_thread_the_async_face_is_named() -> None:
    raised: list[BaseException] = []

    def callback(_: object) -> None:
        try:
            Conversations("memory:").list()
        except UseAsync as error:
            raised.append(error)

    with Conversation(ECHO, store="memory:", callbacks=[callback]) as conversation:
        conversation.run("Hello")
    assert raised
    assert "list()" in str(raised[0])


def test_both_faces_have_the_same_methods_with_the_same_words() -> None:
    names = {name for name in dir(AsyncConversations) if not name.startswith("_")}
    about_all = {"list", "usage", "verify", "anchor", "collect", "backup", "restore", "export", "import_"}
    assert names == {"open", "create", "close"} | about_all | {"erase", "erasures", "holds", "diff"}
    assert {name for name in dir(Conversations) if not name.startswith("_")} == names
    for name in names:
        ours, theirs = getattr(Conversations, name), getattr(AsyncConversations, name)
        assert ours.__doc__ == theirs.__doc__, name
        ours_taken, theirs_taken = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
        assert ours_taken == theirs_taken, name
        assert not inspect.iscoroutinefunction(inspect.unwrap(ours)), name
    one = inspect.signature(AsyncConversation.open).parameters.keys() - {"store"}
    assert inspect.signature(AsyncConversations.open).parameters.keys() - {"self"} == one
    one = inspect.signature(AsyncConversation).parameters.keys() - {"store"}
    assert inspect.signature(AsyncConversations.create).parameters.keys() - {"self"} == one


def test_a_type_checker_sees_what_each_method_takes_and_returns() -> None:
    """mypy checks this file, too: that a type is as asserted, and that each ignored error is there."""
    with Conversations("memory:") as conversations, conversations.create(ECHO, conversation_id="mine") as made:
        assert_type(made, Conversation)
        with conversations.open("mine", bind=False) as again:
            assert_type(again.id, str)
        assert_type(conversations.list(limit=3), Page[Info])
        assert_type(conversations.usage(), Spending)
        assert_type(conversations.verify(), Verification)
        assert_type(made.run("Hello", key="once"), Turn)
        with pytest.raises(TypeError, match="limits"):
            conversations.list(limits=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="agent"):
            conversations.create()  # type: ignore[call-arg]

"""Where conversations live: which store an address means, who shares it, and what is meant when nothing is said."""

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.conversation.support.agents import Watcher, agent_of, script_of, served

from forkpoint import Agent, AsyncConversation, AsyncConversations, TurnCancelled
from forkpoint.conversation.place import as_url
from forkpoint.errors import BadSetting, BadStoreUrl, ForkpointError, NotFound, StoreUnavailable, StoreUnusable
from forkpoint.llm import TextPiece
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing import Fault, ModelServer, Reply
from forkpoint.workspace.defaults import MODEL, default_model, default_store

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


async def ran(store: Any = None, text: str = "hi") -> AsyncConversation:
    """A conversation there, with one turn. It stays open."""
    conversation = AsyncConversation(agent_of(["hello", "again"]), store=store)
    await conversation.run(text)
    return conversation


async def listed(store: Any = None) -> list[str]:
    return [info.id for info in (await AsyncConversation.list(store=store)).items]


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the environment nor the settings of whoever runs the tests have a say."""
    for name in ("FORKPOINT_STORE", "FORKPOINT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def configure(tmp_path: Path, text: str) -> Path:
    """Writes the user's settings."""
    file = tmp_path / "config" / "forkpoint" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


# Sharing.


@both
async def test_conversations_of_one_address_share_a_store_and_the_last_closes_it() -> None:
    one, two = await ran("memory:"), await ran("memory:")
    assert set(await listed("memory:")) == {one.id, two.id}
    await one.close()
    assert set(await listed("memory:")) == {one.id, two.id}, "the other still holds it"
    await two.close()
    assert await listed("memory:") == [], "what is in memory is gone with the last"


async def test_a_store_in_memory_belongs_to_its_event_loop() -> None:
    conversation = await ran("memory:")

    def elsewhere() -> list[str]:
        return anyio.run(listed, "memory:")

    assert await anyio.to_thread.run_sync(elsewhere) == []
    await conversation.close()


async def test_a_fork_holds_the_place_open_too() -> None:
    conversation = await ran("memory:")
    fork = await conversation.fork()
    await conversation.close()
    assert (await fork.run("more")).text == "again"
    await fork.close()
    assert await listed("memory:") == []


async def test_a_conversation_that_could_not_be_opened_holds_nothing() -> None:
    conversation = await ran("memory:")
    for _ in range(3):
        with pytest.raises(NotFound):
            await AsyncConversation.open("nobody", store="memory:")
    await conversation.close()
    assert await listed("memory:") == []


async def test_many_first_uses_at_once_hold_the_place_once() -> None:
    conversation = AsyncConversation(agent_of(["hello"]), store="memory:")
    async with anyio.create_task_group() as tasks:
        for act in (conversation.stats, conversation.info, conversation.tree, conversation.verify):
            tasks.start_soon(act)
        tasks.start_soon(conversation.ask, "?")
    await conversation.close()
    assert await listed("memory:") == []


@pytest.mark.parametrize("moment", range(6))
async def test_a_first_use_that_is_cancelled_leaves_the_place_to_another_that_goes_on(moment: int) -> None:
    conversation = AsyncConversation(agent_of(["hello"]), store="memory:")
    scope = anyio.CancelScope()

    async def given_up() -> None:
        with scope:
            await conversation.info()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(given_up)
        tasks.start_soon(conversation.run, "hi")
        for _ in range(moment):
            await checkpoint()
        scope.cancel()
    assert (await conversation.info()).events == 4
    await conversation.close()
    assert await listed("memory:") == []


async def test_closing_twice_lets_go_once() -> None:
    one, two = await ran("memory:"), await ran("memory:")
    await one.close()
    await one.close()
    assert len(await listed("memory:")) == 2
    await two.close()


async def test_a_new_conversation_that_was_never_used_closes_nothing() -> None:
    conversation = await ran("memory:")
    unused = AsyncConversation(agent_of([]), store="memory:")
    await unused.close()
    assert await listed("memory:") == [conversation.id]
    await conversation.close()


async def test_a_file_is_the_same_place_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spelled: list[str | Path] = [
        tmp_path / "a.db",
        Path("a.db"),
        f"sqlite:///{tmp_path}/a.db",
        "sqlite:///a.db",
        "sqlite:///./x/../a.db",
        "sqlite:///%61.db",
        "a.db",
        "./a.db",
        f"{tmp_path}/a.db",
    ]
    assert len({as_url(one) for one in spelled}) == 1
    conversation = await ran(spelled[0])
    for one in spelled[1:]:
        assert await listed(one) == [conversation.id]
    await conversation.close()
    assert [name for name in os.listdir(tmp_path) if name.endswith(".db")] == ["a.db"]


@pytest.mark.parametrize("name", ["with space.db", "100%.db", "p%41.db", "ü?#&.db", "a+b.db"])
async def test_a_path_is_that_very_file(tmp_path: Path, name: str) -> None:
    conversation = await ran(tmp_path / name)
    await conversation.close()
    assert name in os.listdir(tmp_path)
    assert await listed(tmp_path / name) == [conversation.id]


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "sqlite:///",
        "sqlite:",
        "sqlite:a.db",
        "somewhere",
        "mysql://user:secret@host/db",
        "http//host",
        "host:8008/",
    ],
)
async def test_an_address_that_is_none_is_a_clear_error_and_can_be_mended(wrong: str) -> None:
    conversation = AsyncConversation(agent_of(["hello"]), store=wrong)
    with pytest.raises(BadStoreUrl) as refused:
        await conversation.run("hi")
    assert "secret" not in str(refused.value)
    await conversation.close()


async def test_a_folder_is_not_a_store_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(ForkpointError):
        await listed(tmp_path)
    assert os.listdir(tmp_path) == []


# A store that is given.


@both
async def test_a_store_that_was_given_is_used_and_not_closed(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "a.db") as store:
        one, two = await ran(store), await ran(store)
        await one.close()
        await two.close()
        assert len((await store.conversations()).items) == 2, "it still answers"
        three = await ran(store)
        await three.close()
    closed = AsyncConversation(agent_of(["hello"]), store=store)
    with pytest.raises(StoreUnavailable, check=StoreUnavailable.store_closed.made):
        await closed.run("hi")
    await closed.close()


async def test_the_last_conversation_of_a_given_store_cancels_what_runs_there() -> None:
    watcher = Watcher()
    agent = agent_of([Reply("x", piece=1, fault=Fault("hang", after=1))])
    async with await SqliteStore.open(None) as store:
        conversation = AsyncConversation(agent, store=store, callbacks=[watcher])

        async def run() -> None:
            with pytest.raises(TurnCancelled):
                await conversation.run("hi")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await watcher.until(TextPiece)
            await conversation.close()
        (turn,) = (await store.turns(conversation.id)).items
        assert turn.outcome == "cancelled"


async def test_conversations_of_one_place_share_their_connections_to_models() -> None:
    with ModelServer(script_of(["one", "two"])) as server:
        agent = Agent(served(server))
        async with AsyncConversation(agent, store="memory:") as one, AsyncConversation(agent, store="memory:") as two:
            await one.run("1")
            await two.run("2")
            assert server.connections == 1


# What is meant when nothing is said.


async def test_the_environment_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, 'store = "sqlite:///never.db"\n')
    monkeypatch.setenv("FORKPOINT_STORE", f"sqlite:///{tmp_path}/env.db")
    conversation = await ran()
    await conversation.close()
    assert "env.db" in os.listdir(tmp_path)
    assert await listed(tmp_path / "env.db") == [conversation.id]


async def test_an_environment_that_is_blank_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, f'store = "sqlite:///{tmp_path}/user.db"\nmodel = "scripted/echo"\n')
    monkeypatch.setenv("FORKPOINT_STORE", " ")
    monkeypatch.setenv("FORKPOINT_MODEL", "")
    assert default_store() == f"sqlite:///{tmp_path}/user.db"
    assert default_model() == "scripted/echo"


async def test_the_users_file_names_the_store_and_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, f'store = "sqlite:///{tmp_path}/user.db"\nmodel = "scripted/echo"\n')
    conversation = await ran()
    await conversation.close()
    assert "user.db" in os.listdir(tmp_path)
    assert default_model() == "scripted/echo"
    monkeypatch.setenv("FORKPOINT_MODEL", "openai/gpt-5.6")
    assert default_model() == "openai/gpt-5.6"


@pytest.mark.skipif(os.name == "nt", reason="the folders of this test are those of XDG")
async def test_otherwise_it_is_a_file_in_the_users_data_folder_which_nobody_else_can_read(tmp_path: Path) -> None:
    assert not (tmp_path / "data").exists()
    conversation = await ran()
    await conversation.close()
    folder = tmp_path / "data" / "forkpoint"
    assert "forkpoint.db" in os.listdir(folder)
    assert folder.stat().st_mode & 0o077 == 0
    assert await listed(folder / "forkpoint.db") == await listed() == [conversation.id]
    assert default_model() == MODEL


async def test_a_data_folder_with_odd_characters_is_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "50%41 ü"))
    await (await ran()).close()
    assert (tmp_path / "50%41 ü" / "forkpoint" / "forkpoint.db").exists()


async def test_nothing_is_read_or_made_before_it_is_needed(tmp_path: Path) -> None:
    configure(tmp_path, "this is no TOML")
    conversation = AsyncConversation(agent_of(["hello"]))
    conversation.send_message("hi")
    assert not (tmp_path / "data").exists()
    with pytest.raises(BadSetting):
        await conversation.run()
    assert len(conversation.pending) == 1
    configure(tmp_path, "")
    assert (await conversation.run()).text == "hello", "once it is mended, nothing was lost"
    await conversation.close()


@pytest.mark.parametrize(
    ("text", "named"), [("store = ", "config.toml"), ("store = 5", "store in"), ("model = ['a']", "model in")]
)
async def test_a_users_file_that_cannot_be_used_is_a_clear_error(tmp_path: Path, text: str, named: str) -> None:
    configure(tmp_path, text)
    with pytest.raises(BadSetting, match=named):
        default_model() if named.startswith("model") else default_store()


async def test_a_data_folder_that_cannot_be_made_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(BadStoreUrl, match="folder"):
        await listed()


async def test_looking_into_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path}/new.db"
    with pytest.raises(NotFound):
        await AsyncConversation.open("nope", store=where)
    async with AsyncConversations(where) as conversations:
        with pytest.raises(NotFound):
            await conversations.open("nope")
        assert (await conversations.list()).items == ()
        assert (await conversations.usage()).total.input == 0
        assert (await conversations.verify()).ok
        assert not [name for name in os.listdir(tmp_path) if name.startswith("new.db")]
        await (await conversations.create("scripted/unused", conversation_id="made")).close()
        assert (tmp_path / "new.db").is_file()
        assert [info.name for info in (await conversations.list()).items] == ["made"]


async def test_a_store_that_is_opened_to_read_is_another_place_than_the_same_store_opened_to_write(
    tmp_path: Path,
) -> None:
    where = f"sqlite:///{tmp_path}/store.db"
    conversation = await ran(where)
    async with AsyncConversations(f"{where}?mode=ro") as reading:
        again = await reading.open(conversation.id, bind=False)
        assert len(await again.events()) == len(await conversation.events())
        with pytest.raises(StoreUnusable) as refused:
            await again.describe(title="other")
        assert StoreUnusable.opened_to_read.made(refused.value)
        await conversation.describe(title="other")
        assert await again.title() == "other"
        await again.close()
    await conversation.close()

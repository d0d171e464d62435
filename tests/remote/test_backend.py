"""A server as a place: what a program sees is what it would see of a store of its own, whatever the network does."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.conversation.support.agents import PATIENCE, Watcher, agent_of, asks, call, scripted
from tests.conversation.support.network import answer, canned, line, problem
from tests.server.support.serving import Served, served

from forkpoint.agent import Agent, Limits, tool
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import How, NewTurn
from forkpoint.conversation import AsyncConversation, Conversation, Turn, TurnJoined, TurnStarted
from forkpoint.conversation.place import Place, as_url
from forkpoint.errors import (
    AlreadyExists,
    BadAgent,
    BadArgument,
    BadKeys,
    BadStoreUrl,
    NoSuchTurn,
    NotFound,
    ServerUnreachable,
    ShuttingDown,
    TurnCancelled,
    TurnFailed,
)
from forkpoint.events import AssistantMessage, ModelCalled, NewEvent, Reasoning, StagedEvent, Text, Usage, seal
from forkpoint.remote import connection as client
from forkpoint.remote.addresses import server_url
from forkpoint.remote.backend import RemoteBackend
from forkpoint.remote.connection import ServerConnection, ServerRequest
from forkpoint.remote.turn_log import LOST, TurnLog
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Fault, Reply
from forkpoint.updates import Answered, CallEnded, CallPiece, CallStarted, ReasoningPiece, Restarted, TextPiece

pytestmark = pytest.mark.anyio

HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))


@contextmanager
def serving(path: Path, agent: Agent) -> Iterator[Served]:
    """A real server, whose agent `support` is this one."""
    with served(f"sqlite:///{path}/server.db", Catalog({"support": agent})) as server:
        yield server


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORKPOINT_API_KEY", raising=False)


HELD = threading.Event()


@tool
def hold() -> str:
    """Waits until a test says so."""
    assert HELD.wait(PATIENCE)
    return "held"


@pytest.fixture
def held() -> Iterator[threading.Event]:
    HELD.clear()
    yield HELD
    HELD.set()


def text_of(watcher: Watcher) -> str:
    """What somebody who listens has on the screen: pieces since the last answer that was void."""
    shown = ""
    for update in watcher.told:
        shown = (
            "" if isinstance(update, Restarted) else shown + getattr(update, "text", "") * isinstance(update, TextPiece)
        )
    return shown


# The same as a store of one's own.


async def test_everything_that_is_told_of_a_turn_is_told_as_it_would_be_locally(tmp_path: Path) -> None:
    def answers() -> list[Reply]:
        return [Reply("let me see", piece=3, calls=(call("quick"),)), Reply("it is done", piece=4)]

    @tool
    def quick() -> str:
        """Does it."""
        return "done"

    here, there = Watcher(), Watcher()
    async with AsyncConversation(agent_of(answers(), tools=[quick]), store="memory:", callbacks=[here]) as local:
        own = await local.run("do it")
    with serving(tmp_path, agent_of(answers(), tools=[quick])) as server:
        async with AsyncConversation("support", store=server.url, callbacks=[there]) as remote:
            turn = await remote.run("do it")
            assert await remote.events() == list(turn.events)
    assert there.names == here.names
    assert there.of(TextPiece) == here.of(TextPiece)
    assert there.told[-1] == turn
    assert [one.result for one in turn.calls] == [one.result for one in own.calls] == ["done"]


async def test_an_id_and_its_cache_key_are_the_same_before_and_after_the_first_turn(tmp_path: Path) -> None:
    with serving(tmp_path, agent_of(["hello"])) as server:
        async with AsyncConversation("support", conversation_id="build-1234", store=server.url) as conversation:
            before = await conversation.info()
            await conversation.run("hi")
            after = await conversation.info()
            assert (before.id, before.name, before.cache.key) == (after.id, after.name, after.cache.key)
            assert after.name == "build-1234"
            async with AsyncConversation("support", conversation_id="build-1234", store=server.url) as again:
                with pytest.raises(AlreadyExists):
                    await again.run("hi")


async def test_a_fork_with_another_agent_has_the_same_history_its_own_tags_and_a_key_of_its_own(tmp_path: Path) -> None:
    llm = scripted(["one", "two", "three"])
    with serving(tmp_path, Agent(llm)) as server:
        async with AsyncConversation("support", store=server.url, tags={"kind": "debug"}) as source:
            first = await source.run("first")
            await source.run("second")
            critic = Agent(llm.model, instructions="You disagree.")
            async with await source.fork(at=first, agent=critic, title="No", tags={"kind": "review"}) as fork:
                assert await fork.tags() == {"kind": "review", "title": "No"}
                assert await source.tags() == {"kind": "debug"}
                assert len(await fork.events()) == len(first.events)
                assert (await fork.cache()).key != (await source.cache()).key
                assert (await fork.run("third")).text == "three"
                assert fork.agent is critic
                assert len(await fork.events()) == (await fork.info()).events
                [root] = await source.tree()
                assert [branch.info.id for branch in root.branches] == [fork.id]
            async with await source.fork(cache="inherit") as heir:
                assert (await heir.cache()).key == (await source.cache()).key


async def test_python_tools_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(BadAgent, match="hold"):
        AsyncConversation(agent_of([], tools=[hold]), store="http://127.0.0.1:9")


async def test_a_conversation_whose_tools_only_the_server_has_is_opened_without_them(tmp_path: Path) -> None:
    answers = [asks(call("hold")), Reply("after it"), Reply("again")]
    HELD.set()
    with serving(tmp_path, agent_of(answers, tools=[hold])) as server:
        async with AsyncConversation("support", conversation_id="mine", store=server.url) as made:
            await made.run("hold it")
        async with await AsyncConversation.open("mine", store=server.url) as opened:
            assert opened.agent is None
            assert (await opened.run("and again")).text == "again"


async def test_an_answer_has_the_type_that_the_agent_says(tmp_path: Path) -> None:
    class City(msgspec.Struct):
        name: str

    llm = scripted(['{"name": "Kyoto"}'])
    with serving(tmp_path, Agent(llm)) as server:
        async with AsyncConversation(Agent(llm.model, output=City), store=server.url) as conversation:
            assert (await conversation.run("where?")).output == City("Kyoto")


async def test_open_makes_what_is_not_there(tmp_path: Path) -> None:
    with serving(tmp_path, agent_of(["hello"])) as server:
        async with await AsyncConversation.open("new", create="support", store=server.url) as made:
            assert (await made.info()).name == "new"
            assert (await made.run("hi")).text == "hello"
        with pytest.raises(NotFound):
            await AsyncConversation.open("other", store=server.url)


async def test_a_failed_turn_is_told_raised_and_can_be_retried(tmp_path: Path) -> None:
    watcher = Watcher()
    with serving(tmp_path, agent_of([Reply("", fault=Fault("overloaded")), Reply("better")])) as server:
        async with AsyncConversation("support", store=server.url, callbacks=[watcher]) as conversation:
            with pytest.raises(TurnFailed) as failed:
                await conversation.run("hi")
            assert watcher.told[-1] == failed.value.turn
            assert failed.value.turn.outcome == "failed"
            assert failed.value.cause is not None
            assert (await conversation.retry()).text == "better"


async def test_an_approval_is_given_from_afar(tmp_path: Path) -> None:
    HELD.set()
    agent = agent_of([asks(call("hold")), Reply("done")], tools=[hold], approval="always")
    with serving(tmp_path, agent) as server:
        async with AsyncConversation("support", store=server.url) as conversation:
            turn = await conversation.run("do it")
            assert [one.tool for one in turn.waiting] == ["hold"]
            assert (await conversation.approve(by="ann")).text == "done"


async def test_side_questions_state_stats_requests_and_verification_are_the_servers(tmp_path: Path) -> None:
    with serving(tmp_path, agent_of(["one", "aside"])) as server:
        async with AsyncConversation("support", store=server.url) as conversation:
            preview = await conversation.request("hi")
            assert "hi" in preview.body
            await conversation.run("hi")
            assert (await conversation.ask("really?")).text == "aside"
            await conversation.update_state({"seen": 1})
            assert await conversation.agent_state() == {"seen": 1}
            assert (await conversation.stats()).spent.calls == 2
            assert (await conversation.request()).key == (await conversation.cache()).key
            told: list[tuple[int, int]] = []
            found = await conversation.verify(progress=lambda done, total: told.append((done, total)))
            assert found.ok
            assert told == [(found.events + found.records,) * 2]
            records = (await conversation.records()).items
            assert [record.kind for record in records] == ["born", "committed", "charged", "note"]
            assert records[1:] == (await conversation.records(cursor="0", limit=3)).items
            assert (await AsyncConversation.verify_store(store=server.url)).conversations == 1
            assert [one.id for one in (await AsyncConversation.list(store=server.url)).items] == [conversation.id]
            [turn] = (await conversation.turns()).items
            assert turn.text == "one"
            aside = await conversation.rewind(before=turn)
            assert aside is not None
            assert await conversation.events() == []
            await conversation.delete()
            with pytest.raises(NotFound):
                await AsyncConversation.open(conversation.id, store=server.url)


def test_a_program_that_is_not_async_talks_to_a_server_too(tmp_path: Path) -> None:
    with (
        serving(tmp_path, agent_of(["hello", "there"])) as server,
        Conversation("support", store=server.url) as conversation,
    ):
        assert conversation.run("hi").text == "hello"
        with conversation.run_stream("go on") as stream:
            assert isinstance([*stream][-1], Turn)


def test_it_works_on_trio(tmp_path: Path) -> None:
    async def talk(url: str) -> str:
        async with AsyncConversation("support", store=url) as conversation:
            return (await conversation.run("hi")).text

    with serving(tmp_path, agent_of(["hello"])) as server:
        assert anyio.run(talk, server.url, backend="trio") == "hello"


# Lost connections.


async def test_a_stream_that_breaks_in_an_answer_is_told_to_its_end_and_nothing_twice(tmp_path: Path) -> None:
    watcher = Watcher()
    with serving(tmp_path, agent_of([Reply("a quick brown fox", piece=3)])) as server:
        async with line(server) as wire:
            wire.after.append(b"event: text")
            async with AsyncConversation("support", store=wire.url, callbacks=[watcher]) as conversation:
                turn = await conversation.run("hi")
                assert len((await conversation.turns()).items) == 1
    assert not wire.after, "the line was not cut"
    assert (turn.text, text_of(watcher)) == ("a quick brown fox",) * 2
    assert len(watcher.of(TurnStarted)) == len(watcher.of(Answered)) == len(watcher.of(Turn)) == 1
    assert not watcher.of(TurnJoined)


async def test_a_turn_that_still_runs_is_joined_where_it_stands(tmp_path: Path, held: threading.Event) -> None:
    watcher = Watcher()
    answers = [Reply("let me hold this", piece=3, calls=(call("hold"),)), Reply("held it")]
    with serving(tmp_path, agent_of(answers, tools=[hold])) as server:
        async with line(server) as wire, anyio.create_task_group() as group:
            wire.after.append(b"event: text")

            async def release() -> None:
                await watcher.until(CallStarted)
                held.set()

            group.start_soon(release)
            async with AsyncConversation("support", store=wire.url, callbacks=[watcher]) as conversation:
                turn = await conversation.run("hi")
    assert turn.text == "held it"
    assert "".join(piece.text for piece in watcher.of(TextPiece)) == "let me hold thisheld it"
    for kind, count in ((TurnStarted, 1), (Answered, 2), (CallStarted, 1), (CallEnded, 1), (Turn, 1), (Restarted, 0)):
        assert len(watcher.of(kind)) == count, kind


async def test_a_request_whose_answer_never_came_is_sent_again_and_happens_once(tmp_path: Path) -> None:
    with serving(tmp_path, agent_of(["one", "two"])) as server:
        async with line(server) as wire, AsyncConversation("support", store=wire.url) as conversation:
            wire.lost.append(b"HTTP/1.1 2")
            assert (await conversation.run("hi")).text == "one"
            wire.lost.append(b"HTTP/1.1 2")
            async with await conversation.fork() as fork:
                wire.lost.append(b"HTTP/1.1 2")
                assert await conversation.rewind(before=(await conversation.events())[0]) is not None
                wire.lost.append(b"HTTP/1.1 2")
                await conversation.describe(title="t")
                assert len(await fork.events()) > 0
            found = await AsyncConversation.list(store=server.url)
            assert len(found.items) == 3, "the conversation, its fork, and what was set aside"
            wire.lost.append(b"HTTP/1.1 2")
            await conversation.delete()
    assert not wire.lost


async def test_an_approval_whose_answer_was_lost_is_not_given_twice(tmp_path: Path, held: threading.Event) -> None:
    watcher = Watcher()
    agent = agent_of([asks(call("hold")), Reply("done")], tools=[hold], approval="always")
    with serving(tmp_path, agent) as server:
        async with (
            line(server) as wire,
            anyio.create_task_group() as group,
            AsyncConversation("support", store=wire.url, callbacks=[watcher]) as conversation,
        ):
            await conversation.run("do it")
            wire.lost.append(b"HTTP/1.1 2")

            async def release() -> None:
                await watcher.until(CallStarted)
                held.set()

            group.start_soon(release)
            assert (await conversation.approve()).text == "done"
    assert sum("/approve" in one for one in wire.requests) == 1
    assert len(watcher.of(CallEnded)) == 1


async def test_an_approval_that_was_over_before_anybody_could_ask_is_the_result(tmp_path: Path) -> None:
    HELD.set()
    watcher = Watcher()
    agent = agent_of([asks(call("hold")), Reply("done at once")], tools=[hold], approval="always")
    with serving(tmp_path, agent) as server:
        async with (
            line(server) as wire,
            AsyncConversation("support", store=wire.url, callbacks=[watcher]) as conversation,
        ):
            await conversation.run("do it")
            wire.after.append(b"event: turn_started")
            assert (await conversation.approve()).text == "done at once"
    assert text_of(watcher) == "done at once"
    assert len(watcher.of(CallEnded)) == 1


async def test_a_side_question_is_never_asked_twice(tmp_path: Path) -> None:
    with serving(tmp_path, agent_of(["one", "aside", "aside again"])) as server:
        async with line(server) as wire, AsyncConversation("support", store=wire.url) as conversation:
            await conversation.run("hi")
            wire.lost.append(b"HTTP/1.1 2")
            with pytest.raises(ServerUnreachable):
                await conversation.ask("really?")
    assert sum("/ask" in one for one in wire.requests) == 1


async def test_a_server_that_stays_away_is_an_error_that_names_the_turn(
    tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.5)
    with serving(tmp_path, agent_of([asks(call("hold")), Reply("late")], tools=[hold])) as server:
        async with line(server) as wire:
            watcher = Watcher()

            def cut(update: Any) -> None:
                watcher(update)
                if isinstance(update, CallStarted):
                    wire.down = True

            wire.after.append(b"event: call_started")
            async with AsyncConversation("support", store=wire.url, callbacks=[cut]) as conversation:
                with pytest.raises(ServerUnreachable, match=r"turn [0-9a-f-]{36} may still run"):
                    await conversation.run("hi", key="once")
                held.set()
                wire.down = False
                assert (await conversation.run("hi", key="once")).text == "late", "it went on, and is there"


async def test_a_server_that_comes_back_is_waited_for_longer_than_one_that_never_answered(
    tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "AT_FIRST", 0.0)
    with serving(tmp_path, agent_of([asks(call("hold")), Reply("late")], tools=[hold])) as server:
        async with line(server) as wire:
            refused = 0

            def cut(update: Any) -> None:
                if isinstance(update, CallStarted):
                    wire.down = True
                    held.set()

            def asked_again() -> None:
                nonlocal refused
                refused += 1
                wire.down = refused < 3

            wire.refused = asked_again
            wire.after.append(b"event: call_started")
            async with AsyncConversation("support", store=wire.url, callbacks=[cut]) as conversation:
                assert (await conversation.run("hi")).text == "late"
            assert refused == 3


# Cancelling.


async def test_a_task_that_is_cancelled_leaves_a_cancelled_turn_and_nothing_that_runs(tmp_path: Path) -> None:
    watcher = Watcher()
    with serving(tmp_path, agent_of([HANGS, Reply("then")])) as server:
        async with AsyncConversation("support", store=server.url, callbacks=[watcher]) as conversation:
            running = asyncio.create_task(conversation.run("hi"))
            await watcher.until(TextPiece)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await conversation.info()).status == "idle"
            [turn] = (await conversation.turns()).items
            assert turn.outcome == "cancelled"
            assert (await conversation.run("again")).text == "then"


async def test_a_turn_that_was_only_just_asked_for_is_cancelled_too(tmp_path: Path) -> None:
    with serving(tmp_path, agent_of([HANGS, Reply("then")])) as server:
        async with line(server) as wire, AsyncConversation("support", store=wire.url) as conversation:
            running = asyncio.create_task(conversation.run("hi"))
            await wire.until(b"messages")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await conversation.info()).status == "idle"
            assert [turn.outcome for turn in (await conversation.turns()).items] == ["cancelled"]


async def test_what_was_never_sent_begins_nothing_when_it_is_cancelled(tmp_path: Path) -> None:
    with serving(tmp_path, agent_of(["never"])) as server:
        async with AsyncConversation("support", store=server.url) as conversation:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await conversation.run("hi")
            assert scope.cancelled_caught
        assert not (await AsyncConversation.list(store=server.url)).items


async def test_cancel_from_another_task_waits_for_the_outcome(tmp_path: Path) -> None:
    watcher = Watcher()
    with serving(tmp_path, agent_of([HANGS])) as server:
        async with AsyncConversation("support", store=server.url, callbacks=[watcher]) as conversation:
            running = asyncio.create_task(conversation.run("hi"))
            await watcher.until(TextPiece)
            assert (await conversation.cancel()).outcome == "cancelled"
            with pytest.raises(TurnCancelled):
                await running
            with pytest.raises(NoSuchTurn):
                await conversation.cancel()


async def test_closing_cancels_what_runs(tmp_path: Path) -> None:
    watcher = Watcher()
    with serving(tmp_path, agent_of([HANGS])) as server:
        conversation = AsyncConversation("support", store=server.url, callbacks=[watcher])
        running = asyncio.create_task(conversation.run("hi"))
        await watcher.until(TextPiece)
        await conversation.close()
        with pytest.raises(TurnCancelled):
            await running
        assert watcher.of(Turn)[0].outcome == "cancelled"


# What answers may be.


async def test_a_port_where_nobody_listens_is_a_clear_error_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with anyio.fail_after(PATIENCE), pytest.raises(ServerUnreachable, match=f"127.0.0.1:{port}"):
        await AsyncConversation.list(store=f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "found",
    [
        answer(b"<html>", kind="text/html"),
        answer(b"<html>", "404 Not Found", "text/html"),
        answer({"items": 5}),
        answer([]),
    ],
    ids=["page", "no page", "other JSON", "list"],
)
async def test_something_that_is_no_forkpoint_server_is_a_clear_error(found: bytes) -> None:
    async with canned(found) as (url, asked):
        with pytest.raises(ServerUnreachable, match="no server that we understand"):
            await AsyncConversation.list(store=url)
        assert len(asked) == 1


async def test_a_redirect_is_not_followed_and_the_key_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKPOINT_API_KEY", "secret-key")
    async with canned(answer({"items": [], "next": None})) as (other, asked_there):
        async with canned(answer(b"", "302 Found", "text/html", f"location: {other}/x")) as (url, asked):
            with pytest.raises(ServerUnreachable, match="sends us on"):
                await AsyncConversation.list(store=url)
            assert b"authorization: Bearer secret-key" in asked[0].lower().replace(b"bearer", b"Bearer")
        assert not asked_there


async def test_a_server_that_is_busy_or_stopping_is_asked_again_when_it_says_so() -> None:
    page = answer({"items": [], "next": None})
    busy = problem("too_many", "429 Too Many Requests", "retry-after: 0", what="turns", limit=1)
    stopping = problem("shutting_down", "503 Service Unavailable", "retry-after: 0")
    away = answer(b"<html>", "502 Bad Gateway", "text/html", "retry-after: 0")
    async with canned(busy, stopping, away, None, page) as (url, asked):
        assert (await AsyncConversation.list(store=url)).items == ()
        assert len(asked) == 5


async def test_patience_with_a_server_that_is_stopping_ends() -> None:
    stopping = problem("shutting_down", "503 Service Unavailable", "retry-after: 3600", retry_after=3600)
    async with canned(stopping) as (url, asked):
        with pytest.raises(ShuttingDown):
            await AsyncConversation.list(store=url)
        assert len(asked) == 1


async def test_a_prefix_in_the_address_is_kept() -> None:
    async with canned(answer({"items": [], "next": None})) as (url, asked):
        await AsyncConversation.list(store=f"{url}/forkpoint/", tags={"a": "b&c"})
        assert asked[0].startswith(b"GET /forkpoint/api/conversations?limit=50&tag=a%3Db%26c HTTP/1.1")


async def test_pages_of_events_are_of_one_path_and_begin_again_if_that_was_rewound(tmp_path: Path) -> None:
    def page(n: int, next: str | None, head: str) -> bytes:
        body = {"type": "system_message", "parts": [{"type": "text", "text": str(n)}]}
        item = {"id": f"1-{n}", "turn": "t", "kind": "system_message", "time": 1, "body": body}
        return answer({"items": [item], "next": next, "head": head})

    gone = problem("not_found", "404 Not Found", what="event", id="1-9")
    async with canned(page(1, "1000", "1-9"), gone, page(1, "1000", "1-8"), page(2, None, "1-8")) as (url, asked):
        backend = RemoteBackend(url)
        found = await backend.events("c")
        await backend.close()
    assert [str(event.id) for event in found] == ["1-1", "1-2"]
    assert [b"at=" in one for one in asked] == [False, True, False, True]
    assert b"after=1000&limit=1000&at=1-8" in asked[3]


async def test_a_thousand_events_and_more_are_all_read(tmp_path: Path) -> None:
    with serving(tmp_path, agent_of(["never"])) as server:
        async with AsyncConversation("support", store=server.url) as conversation:
            for n in range(12):
                await conversation.update_state({"n": n})
            backend = RemoteBackend(server.url)
            import forkpoint.remote.requests as remote

            small = remote.PAGE
            try:
                remote.PAGE = 5
                assert len(await backend.events(conversation.id)) == 12 == (await conversation.info()).events
                assert len(await backend.events(conversation.id, after=3, limit=7)) == 7
            finally:
                remote.PAGE = small
            await backend.close()


# Addresses and keys.


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("http://Host:8008", "http://host:8008"),
        ("HTTP://host:80/", "http://host"),
        ("https://host:443/Forkpoint/", "https://host/Forkpoint"),
        ("http://[::1]:8008", "http://[::1]:8008"),
        ("https://host:80", "https://host:80"),
    ],
)
def test_an_address_is_the_same_however_it_is_spelled(given: str, means: str) -> None:
    assert as_url(given) == server_url(means) == means


@pytest.mark.parametrize(
    "address",
    [
        "http://user:s3cret@host",
        "http://s3cret@host",
        "http://host/?key=s3cret",
        "http://host/#s3cret",
        "http://",
        "http://:80",
        "http://host:99999",
        "http://host:0",
        "http://ho st",
    ],
)
async def test_an_address_with_a_secret_or_without_a_host_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(BadStoreUrl) as refused:
        await AsyncConversation.list(store=address)
    assert "s3cret" not in str(refused.value)
    assert "http://host:8008" in str(refused.value)


@pytest.mark.parametrize("key", ["", "  ", "a b", "schlüssel"])
async def test_a_key_that_is_none_is_an_error_that_names_the_variable(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKPOINT_API_KEY", key)
    with pytest.raises(BadKeys, check=BadKeys.bad_api_key.made, match="FORKPOINT_API_KEY") as refused:
        await AsyncConversation.list(store="http://127.0.0.1:9")
    assert not key.strip() or key not in str(refused.value)


async def test_the_default_store_may_be_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, agent_of(["hello"])) as server:
        monkeypatch.setenv("FORKPOINT_STORE", server.url)
        assert Place().is_remote
        async with AsyncConversation("support") as conversation:
            assert (await conversation.run("hi")).text == "hello"


async def test_a_connection_says_whether_the_server_may_have_got_something() -> None:
    async with canned(None) as (url, asked):
        connection = ServerConnection(url, patience=0)
        with pytest.raises(ServerUnreachable):
            await connection.call(ServerRequest(method="POST", path="/x", body={}), twice=False)
        await connection.close()
        assert len(asked) == 1


# What was heard, and what is still to be told.


def heard(*updates: Any) -> tuple[TurnLog, list[Any]]:
    told: list[Any] = []
    made = TurnLog(told.append)
    for update in updates:
        made.hear(update)
    told.clear()
    return made, told


STARTED = TurnStarted("t", "c", ())
CASES: dict[str, tuple[list[Any], list[Any], list[Any]]] = {
    "more of the same": ([TextPiece("a"), TextPiece("b")], [TextPiece("abc")], [TextPiece("c")]),
    "nothing new": ([TextPiece("ab")], [TextPiece("ab")], []),
    "another answer": ([TextPiece("ab")], [TextPiece("xy")], [Restarted(LOST), TextPiece("xy")]),
    "void by now": ([TextPiece("ab")], [], [Restarted(LOST)]),
    "thoughts and then words": (
        [ReasoningPiece("hm")],
        [ReasoningPiece("hmm"), TextPiece("a")],
        [ReasoningPiece("m"), TextPiece("a")],
    ),
    "arguments of two calls": (
        [CallPiece(0, "x", "t", "{"), CallPiece(1, "y", "t", "{")],
        [CallPiece(0, "x", "t", "{}"), CallPiece(1, "y", "t", "{1")],
        [CallPiece(0, "x", "t", "}"), CallPiece(1, "y", "t", "1")],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_difference_of_what_was_told_and_what_stands_is_told(case: tuple[list[Any], list[Any], list[Any]]) -> None:
    before, now, missing = case
    made, told = heard(STARTED, *before)
    made.catch_up([STARTED, *now])
    assert told == missing
    made.catch_up([STARTED, *now])
    assert told == missing, "the second time there is nothing more to tell"


def test_one_who_joins_is_told_that_and_nothing_else() -> None:
    made, told = heard()
    made.hear(TurnJoined("t", "c"))
    made.catch_up([STARTED, TextPiece("a")])
    assert told == [TurnJoined("t", "c")]


@pytest.mark.parametrize(
    ("how", "name"),
    [(How(final=True), "final"), (How(attended=False), "attended"), (How(limits=Limits(steps=1)), "limits")],
)
async def test_what_a_server_decides_itself_is_refused_and_not_ignored(how: How, name: str) -> None:
    backend = RemoteBackend("http://127.0.0.1:1")  # nobody is asked
    new = NewTurn(given=(as_message("hi"),), how=how)
    with pytest.raises(BadArgument, match=rf"how\.{name}.*leave it out"):
        await backend.turns.run("c", None, new, lambda _: None)
    await backend.close()


def test_a_thought_without_a_word_makes_no_answer_another_one() -> None:
    made, told = heard(STARTED, ReasoningPiece(""), TextPiece("a"))
    made.lost = True
    called = ModelCalled("m", "p", Usage(), "stop")
    bodies = (called, Reasoning(encrypted="x=="), AssistantMessage((Text("ab"),)))
    events = tuple(StagedEvent(seal(NewEvent(body), 0), body) for body in bodies)
    made.end(Turn("t", "c", "committed", (), events, Usage()))
    assert told[:-1] == [TextPiece("b"), Answered(called)]

"""A turn commits whole, or nothing has moved: what `run`, `retry`, `cancel` and `discard` promise, from outside."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from tests.conversation.support.agents import (
    PATIENCE,
    Signal,
    Watcher,
    agent_of,
    asks,
    call,
    kinds,
    said,
    script_of,
    scripted,
    served,
)
from tests.conversation.support.homes import Home
from tests.store.conftest import WatchedConnection

from forkpoint import Agent, AsyncConversation, Limits, TurnCancelled, TurnFailed, tool
from forkpoint.conversation import Info, Turn
from forkpoint.errors import (
    AlreadyExists,
    AnswerMalformed,
    BadName,
    BadOutput,
    BadWorkspace,
    Busy,
    CannotResume,
    CommitFailed,
    ContextTooLong,
    ConversationClosed,
    ErrorKind,
    ForkpointError,
    LimitReached,
    MissingKey,
    ModelUnavailable,
    NoAgent,
    NoSuchTurn,
    NotFound,
    NothingToRun,
    RateLimited,
    RequestRefused,
    TurnOpen,
)
from forkpoint.events import Event, ManifestChanged, SettingsChanged, StagedEvent, Usage
from forkpoint.ids import new_id
from forkpoint.llm import LLM, Price, TextPiece, Timeouts
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Database, connect
from forkpoint.testing import Fault, ModelServer, Reply, Script
from forkpoint.updates import Answered

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

OVERLOADED = Reply("never heard", fault=Fault("overloaded"))
HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))  # says something first, so that a test can wait


def stands(info: Info) -> tuple[Any, ...]:
    """What a turn that does not commit must not move."""
    return info.revision, info.head, info.digest, info.events, info.status, info.open_turn


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is fine"


# A turn that commits.


@both
async def test_a_turn_commits_and_is_returned_with_all_that_came_of_it(home: Home) -> None:
    usage = Usage(calls=1, input=1000, cached=400, output=100)
    llm = scripted([Reply("Because.", usage=usage)], price=Price(input=2, cached=1, output=10))
    async with AsyncConversation(home.agent(Agent(llm)), store=home.store) as conversation:
        turn = await conversation.run("Why?")
        assert (turn.outcome, turn.text, turn.conversation, turn.error) == (
            "committed",
            "Because.",
            conversation.id,
            None,
        )
        assert (turn.usage.calls, turn.usage.input, turn.usage.cached, turn.usage.output) == (1, 1000, 400, 100)
        assert turn.cost == pytest.approx((600 * 2 + 400 * 1 + 100 * 10) / 1e6)
        assert said(turn.events) == [("user", "Why?"), ("assistant", "Because.")]
        assert list(turn.events) == await conversation.events(), "its events are history, with their ids"
        assert all(isinstance(event, Event) and event.turn == turn.id for event in turn.events)
        assert [step.usage for step in turn.steps] == [turn.usage]
        assert turn.ended is not None
        assert turn.started <= turn.ended
        assert await conversation.turn(turn.id) == turn
        info = await conversation.info()
        assert (info.status, info.open_turn, info.events) == ("idle", None, len(turn.events))
        assert info.head == str(turn.events[-1].id)  # type: ignore[union-attr]


async def test_a_turn_with_tools_says_what_each_of_its_calls_came_to(home: Home) -> None:
    agent = agent_of([asks(call("look", "c1", at="disk"), text="Let me see."), "It is fine."], tools=[look])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("And the disk?")
        (made,) = turn.calls
        assert (made.id, made.tool, made.arguments, made.status) == ("c1", "look", '{"at": "disk"}', "done")
        assert made.result == "disk is fine"
        assert made.duration is not None
        assert turn.text == "It is fine.", "what it said before its tools ran is not its answer"
        assert turn.usage.calls == 2
        assert turn.waiting == ()


async def test_the_next_turn_goes_on_from_the_last(home: Home) -> None:
    heard: list[Any] = []

    def answer(asked: Any) -> Reply:
        heard.append([message["content"] for message in asked.body["messages"]])
        return Reply(f"answer {asked.number}")

    async with AsyncConversation(home.agent(agent_of(answer)), store=home.store) as conversation:
        await conversation.run("one")
        await conversation.run("two")
        assert heard == [["one"], ["one", "answer 0", "two"]]
        assert [turn.text for turn in (await conversation.turns()).items] == ["answer 0", "answer 1"]


# A turn that fails.


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("authentication", RequestRefused.model_authentication),
        ("quota", RequestRefused.model_quota),
        ("rate_limit", RateLimited),
        ("context_too_long", ContextTooLong),
        ("refused", RequestRefused.model_refused),
        ("bad_request", RequestRefused),
        ("overloaded", ModelUnavailable),
        ("cut", ModelUnavailable.model_connection),
        ("malformed", AnswerMalformed),
        ("unfinished", AnswerMalformed),
        ("empty", AnswerMalformed.model_empty),
    ],
)
async def test_a_model_that_fails_fails_the_turn_with_its_typed_error_and_nothing_has_moved(
    home: Home, kind: Any, error: ErrorKind
) -> None:
    agent = agent_of(["first", Reply("some of an answer", piece=4, fault=Fault(kind, after=2)), "at last"])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("one")
        before, events = await conversation.info(), await conversation.events()
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("two")
        assert getattr(failed.value.cause, "code", None) == error.code
        assert failed.value.__cause__ is failed.value.cause
        turn = failed.value.turn
        assert isinstance(turn, Turn)
        assert (turn.id, turn.outcome, turn.text) == (failed.value.id, "failed", "")
        assert turn.error is not None
        assert turn.error.code == error.code
        assert turn.usage.calls == 1, "what it cost is counted"
        assert stands(await conversation.info()) == stands(before)
        assert await conversation.events() == events
        assert await conversation.turn(turn.id) == turn, "it stays readable"
        assert (await conversation.retry()).text == "at last"


async def test_a_model_that_never_answers_fails_the_turn_when_its_time_is_up(home: Home) -> None:
    llm = scripted([Reply("x", fault=Fault("hang"))], timeouts=Timeouts(first=0.01))
    async with AsyncConversation(home.agent(Agent(llm)), store=home.store) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("hello")
        assert ModelUnavailable.model_timeout.made(failed.value.cause)


async def test_a_failed_turn_says_what_its_tools_did_since_that_stays_done(home: Home) -> None:
    @tool
    def breaks() -> None:
        """Breaks."""
        raise OSError("no such disk")

    agent = agent_of([asks(call("look", at="a"), call("breaks")), OVERLOADED], tools=[look, breaks])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        with pytest.raises(TurnFailed, match=r"done: look; failed: breaks") as failed:
            await conversation.run("go")
        turn = failed.value.turn
        assert isinstance(turn, Turn)
        assert [(made.tool, made.status, made.result) for made in turn.calls] == [
            ("look", "done", "a is fine"),
            ("breaks", "failed", "OSError: no such disk"),
        ]
        assert all(isinstance(event, StagedEvent) for event in turn.events), "nothing of it has a place in history"
        assert turn.usage.calls == 2
        assert "retry()" in str(failed.value)
        assert "resume()" in str(failed.value)


async def test_a_limit_and_a_bad_form_are_typed_causes_too(home: Home) -> None:
    limited = agent_of([asks(call("look", at="a")), "never"], tools=[look], limits=Limits(steps=1))
    formless = agent_of(["no JSON"] * 3, output=dict[str, int])
    for agent, cause in ((limited, LimitReached), (formless, BadOutput)):
        async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
            with pytest.raises(TurnFailed) as failed:
                await conversation.run("go")
            assert type(failed.value.cause) is cause
            assert (await conversation.info()).events == 0


async def test_an_agent_that_another_process_changed_to_one_that_is_not_here_fails_the_turn(tmp_path: Path) -> None:
    @tool
    def elsewhere() -> str:
        """Is known to the other process only."""
        return "x"

    mine = agent_of(["first", "second"])
    async with (
        await SqliteStore.open(tmp_path / "a.db") as here,
        await SqliteStore.open(tmp_path / "a.db") as there,
        AsyncConversation(mine, store=here) as conversation,
    ):
        await conversation.run("one")
        other = await AsyncConversation.open(conversation.id, agent=mine, store=there)
        await other.change_agent(Agent(mine.llm, tools=[elsewhere]))
        before = await conversation.info()
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("two")
        assert isinstance(failed.value.cause, CannotResume)
        assert "elsewhere" in failed.value.cause.missing
        assert stands(await conversation.info()) == stands(before)
        await conversation.change_agent(mine)
        assert failed.value.turn is not None
        assert (await conversation.retry(failed.value.turn.id)).text == "second"


async def test_an_agent_that_another_process_changed_is_the_one_that_answers(tmp_path: Path) -> None:
    first, other = agent_of(["first"]), agent_of(["other"], instructions="Be brief.")
    async with (
        await SqliteStore.open(tmp_path / "a.db") as here,
        await SqliteStore.open(tmp_path / "a.db") as there,
        AsyncConversation(first, store=here) as conversation,
    ):
        await conversation.run("one")
        await (await AsyncConversation.open(conversation.id, store=there)).change_agent(other)
        assert (await conversation.run("two")).text == "other"


class Disk:
    """The disk of a store: its next COMMIT can be made to fail, or to wait."""

    def __init__(self) -> None:
        self.fails = False
        self.waits = threading.Event()
        self.waits.set()
        self.reached = threading.Event()

    def open(self, path: str) -> Database:
        db = connect(path)
        db.__class__ = WatchedConnection
        assert isinstance(db, WatchedConnection)
        db.watch = self._watch
        return db

    def _watch(self, db: Database, sql: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if sql.startswith("COMMIT"):
            if not self.waits.is_set():
                self.reached.set()
                assert self.waits.wait(PATIENCE)
            if self.fails:
                self.fails = False
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error
        return execute()


async def test_a_commit_that_does_not_reach_the_disk_fails_the_turn_and_it_can_go_on(tmp_path: Path) -> None:
    disk = Disk()
    agent = agent_of(["paid for", "and again"])
    answered: list[Any] = []

    def fail_the_first_commit(update: Any) -> None:
        if isinstance(update, Answered):
            disk.fails = not answered
            answered.append(update)

    async with (
        await SqliteStore.open(tmp_path / "a.db", connect=disk.open) as store,
        AsyncConversation(agent, store=store, callbacks=[fail_the_first_commit]) as conversation,
    ):
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("hello")
        assert isinstance(failed.value.cause, CommitFailed)
        assert await conversation.events() == []
        assert (await conversation.stats()).spent.calls == 1
        turn = await conversation.resume()
        assert (turn.outcome, turn.text) == ("committed", "and again")
        assert (await conversation.stats()).spent.calls == 2


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_retry_sends_byte_for_byte_what_the_failed_try_sent(home: Home, api: Any) -> None:
    answers = script_of(["Hello.", asks(call("look", at="disk")), OVERLOADED, asks(call("look", at="disk")), "Fine."])
    with ModelServer(answers) as server:
        agent = Agent(served(server, api=api), tools=[look], instructions="Be brief.")
        async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
            await conversation.run("Hi!")
            with pytest.raises(TurnFailed) as failed:
                await conversation.run("And the disk?")
            turn = await conversation.retry()
            assert turn.text == "Fine."
            assert turn.retry_of == failed.value.id
            _, first, second, first_again, second_again = server.requests
            assert first.body == first_again.body
            assert second.body != first.body
            calls_of = second.json["messages" if api == "chat" else "input"]
            assert len(calls_of) == len(second_again.json["messages" if api == "chat" else "input"])
            assert [h for h in first.headers if "session" in h[0]] == [
                h for h in first_again.headers if "session" in h[0]
            ]


async def test_a_retry_to_anthropic_sends_byte_for_byte_what_the_failed_try_sent(home: Home) -> None:
    with ModelServer(script_of(["Hello.", OVERLOADED, "Fine."])) as server:
        llm = LLM("anthropic/test", base_url=server.root, retries=served(server).retries)
        async with AsyncConversation(home.agent(Agent(llm)), store=home.store) as conversation:
            await conversation.run("Hi!")
            with pytest.raises(TurnFailed):
                await conversation.run("And the disk?")
            await conversation.retry()
            _, failed, retried = server.requests
            assert failed.body == retried.body


async def test_nothing_is_pending_after_a_failed_turn_and_a_plain_run_names_what_there_is(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([OVERLOADED, "at last"])), store=home.store) as conversation:
        conversation.send_message("one")
        with pytest.raises(TurnFailed):
            await conversation.run("two")
        assert conversation.pending == ()
        with pytest.raises(NothingToRun, match=r"retry\(\) or resume\(\)"):
            await conversation.run()
        turn = await conversation.retry()
        assert said(turn.events) == [("user", "one"), ("user", "two"), ("assistant", "at last")]


async def test_a_new_message_after_a_failed_turn_is_a_turn_of_its_own(home: Home) -> None:
    heard: list[str] = []

    def answer(asked: Any) -> Reply:
        heard.append(asked.text)
        return Reply("ok", fault=None if asked.number else Fault("overloaded"))

    async with AsyncConversation(home.agent(agent_of(answer)), store=home.store) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("lost")
        turn = await conversation.run("kept")
        assert said(await conversation.events()) == [("user", "kept"), ("assistant", "ok")]
        assert turn.retry_of is None
        with pytest.raises(NoSuchTurn):
            await conversation.retry()


async def test_a_retry_that_fails_can_be_retried_and_each_try_names_the_one_before(home: Home) -> None:
    async with AsyncConversation(
        home.agent(agent_of([OVERLOADED, OVERLOADED, "third"])), store=home.store
    ) as conversation:
        with pytest.raises(TurnFailed) as first:
            await conversation.run("hello")
        with pytest.raises(TurnFailed) as second:
            await conversation.retry()
        assert second.value.turn is not None
        assert second.value.turn.retry_of == first.value.id
        turn = await conversation.retry()
        assert turn.retry_of == second.value.id
        tries = (await conversation.turns()).items
        assert [one.outcome for one in tries] == ["failed", "failed", "committed"]
        assert [said(one.events) for one in tries] == [
            [("user", "hello")],
            [("user", "hello")],
            [("user", "hello"), ("assistant", "third")],
        ]


async def test_there_is_nothing_to_retry_in_a_conversation_where_nothing_failed(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["fine"])), store=home.store) as conversation:
        acts: list[Any] = [conversation.retry, conversation.resume, conversation.discard]
        for act in (*acts, conversation.approve, conversation.deny):
            with pytest.raises(NoSuchTurn):
                await act()
        await conversation.run("hello")
        for act in (*acts, conversation.approve, conversation.deny):
            with pytest.raises(NoSuchTurn):
                await act()


async def test_a_turn_of_another_conversation_is_none_of_this_one(home: Home) -> None:
    async with (
        AsyncConversation(home.agent(agent_of([OVERLOADED])), store=home.store) as one,
        AsyncConversation(home.agent(agent_of(["fine"])), store=home.store) as other,
    ):
        with pytest.raises(TurnFailed) as failed:
            await one.run("hello")
        await other.run("hello")
        with pytest.raises((NoSuchTurn, NotFound)):
            await other.resume(failed.value.id)
        with pytest.raises((NoSuchTurn, NotFound)):
            await other.discard(failed.value.id)
        with pytest.raises((NoSuchTurn, NotFound)):
            await other.retry(failed.value.id)
        with pytest.raises((NoSuchTurn, NotFound)):
            await other.turn(failed.value.id)
        assert len((await other.turns()).items) == 1


# A conversation that is not there yet.


async def test_a_new_conversation_does_no_io_until_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "not" / "yet.db"
    conversation = AsyncConversation(agent_of(["hi"]), store=file, title="New", tags={"kind": "test"})
    conversation.send_message("hello")
    assert (await conversation.title(), await conversation.tags(), await conversation.status()) == (
        "New",
        {"kind": "test", "title": "New"},
        "idle",
    )
    assert (await conversation.events(), (await conversation.turns()).items) == ([], ())
    assert await conversation.agent_state() == {}
    assert (await conversation.cache()).key
    assert os.listdir(tmp_path) == []
    await conversation.close()
    assert os.listdir(tmp_path) == []


async def test_a_conversation_has_the_cache_key_before_its_first_turn_that_it_then_sends(home: Home) -> None:
    with ModelServer(script_of(["hi"])) as server:
        async with AsyncConversation(home.agent(Agent(served(server))), store=home.store) as conversation:
            before = await conversation.cache()
            await conversation.run("hello")
            assert server.last.key == before.key == (await conversation.cache()).key


async def test_what_a_new_conversation_was_given_is_there_after_its_first_turn(home: Home) -> None:
    async with AsyncConversation(
        home.agent(agent_of(["hi"], name="helper")),
        conversation_id="build-1234",
        store=home.store,
        title="T",
        tags={"a": "b"},
    ) as conversation:
        assert conversation.name == "build-1234"
        await conversation.run("hello")
        info = await conversation.info()
        assert (info.id, info.name, info.title, info.tags) == (
            conversation.id,
            "build-1234",
            "T",
            {"a": "b", "title": "T"},
        )
        assert (info.agent, info.workspace) == ("helper", None)
        assert [one.id for one in (await AsyncConversation.list(store=home.store)).items] == [conversation.id]


@pytest.mark.parametrize("how", ["here", "by id", "by name"])
@pytest.mark.parametrize("act", ["retry", "resume"])
async def test_a_first_turn_that_failed_leaves_a_draft_that_goes_on(tmp_path: Path, how: str, act: str) -> None:
    agent = agent_of([OVERLOADED, "at last"])
    file = tmp_path / "a.db"
    async with AsyncConversation(agent, conversation_id="mine", store=file) as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("hello")
        assert (await AsyncConversation.list(store=file)).items == (), "a draft is not listed"
        assert (await conversation.stats()).spent.calls == 1
        if how == "here":
            turn = await (conversation.retry() if act == "retry" else conversation.resume())
            assert turn.text == "at last"
            return
    async with await AsyncConversation.open(conversation.id if how == "by id" else "mine", store=file) as again:
        assert again.id == conversation.id
        turn = await (again.retry() if act == "retry" else again.resume())
        assert turn.text == "at last"
        assert [one.name for one in (await AsyncConversation.list(store=file)).items] == ["mine"]


async def test_an_id_or_name_that_exists_is_refused_at_the_first_run_and_nothing_is_lost(home: Home) -> None:
    id = new_id()
    async with (
        AsyncConversation(home.agent(agent_of(["hi"])), conversation_id=id, store=home.store) as by_id,
        AsyncConversation(home.agent(agent_of(["hi"])), conversation_id="taken", store=home.store) as by_name,
    ):
        await by_id.run("hello")
        await by_name.run("hello")
        for taken in (id, "taken"):
            second = AsyncConversation(home.agent(agent_of(["never"])), conversation_id=taken, store=home.store)
            second.send_message("kept")
            with pytest.raises(AlreadyExists):
                await second.run("not kept")
            assert len(second.pending) == 1
            with pytest.raises(AlreadyExists):
                await second.ask("no")
            await second.close()
        assert len(await by_id.events()) == len(await by_name.events()) == 4
        assert len((await AsyncConversation.list(store=home.store)).items) == 2


async def test_a_bad_name_or_workspace_is_refused_at_once(tmp_path: Path) -> None:
    agent = agent_of([])
    for name in ("", "two words", "a/b", "x" * 129, "ünder"):
        with pytest.raises(BadName):
            AsyncConversation(agent, conversation_id=name)
    (tmp_path / "file").touch()
    for folder in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(BadWorkspace):
            AsyncConversation(agent, workspace=folder)


async def test_a_workspace_is_kept_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's folders are the server's to name."""
    (tmp_path / "repo").mkdir()
    monkeypatch.chdir(tmp_path)
    async with AsyncConversation(agent_of(["hi"]), workspace="repo", store="memory:") as conversation:
        monkeypatch.chdir("/")
        assert conversation.workspace == tmp_path / "repo"
        await conversation.run("hello")
        async with await AsyncConversation.open(conversation.id, store="memory:") as again:
            assert again.workspace == tmp_path / "repo"


async def test_a_tag_called_title_is_the_title_unless_one_is_given(home: Home) -> None:
    agent = agent_of(["hi"])
    tagged = AsyncConversation(home.agent(agent), store=home.store, tags={"title": "From a tag", "a": "b"})
    assert (await tagged.title(), await tagged.tags()) == ("From a tag", {"title": "From a tag", "a": "b"})
    both_given = AsyncConversation(home.agent(agent), store=home.store, title="Wins", tags={"title": "From a tag"})
    assert (await both_given.title(), await both_given.tags()) == ("Wins", {"title": "Wins"})


# Opening.


async def test_what_does_not_exist_cannot_be_opened_and_nothing_stays_open(home: Home, tmp_path: Path) -> None:
    for id in (new_id(), "nobody"):
        with pytest.raises(NotFound):
            await AsyncConversation.open(id, store=tmp_path / "a.db")
    with pytest.raises(NotFound):
        await AsyncConversation.open("", store=home.store)


async def test_open_with_create_opens_what_is_there_and_makes_what_is_not(home: Home) -> None:
    agent = agent_of(["one", "two"])
    async with await AsyncConversation.open("daily", create=home.agent(agent), store=home.store) as conversation:
        assert [one.name for one in (await AsyncConversation.list(store=home.store)).items] == ["daily"]
        await conversation.run("hello")
        async with await AsyncConversation.open("daily", create=home.agent(agent), store=home.store) as again:
            assert again.id == conversation.id
            assert (await again.run("more")).text == "two"
    with pytest.raises(BadName):
        await AsyncConversation.open("no name", create=home.agent(agent), store=home.store)


async def test_of_two_who_open_or_create_at_once_both_have_the_same_conversation(home: Home) -> None:
    agent = agent_of(["one", "two"])
    opened: list[AsyncConversation] = []

    async def open_it() -> None:
        opened.append(await AsyncConversation.open("daily", create=home.agent(agent), store=home.store))

    async with AsyncConversation(home.agent(agent), store=home.store) as keeper:
        await keeper.run("so that the store stays open")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(open_it)
            tasks.start_soon(open_it)
        assert opened[0].id == opened[1].id
        for one in opened:
            await one.close()


async def test_what_is_opened_without_its_functions_can_be_read_and_not_run() -> None:
    """A server always has them."""
    agent = agent_of(["hi"], tools=[look])
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("hello")
        async with await AsyncConversation.open(conversation.id, bind=False, store="memory:") as reader:
            assert reader.agent is None
            assert await reader.events() == await conversation.events()
            for act in (reader.run, reader.ask, reader.request):
                with pytest.raises(NoAgent):
                    await act("more")


async def test_a_tool_that_cannot_be_found_again_is_said_on_opening_with_all_others() -> None:
    """A server says so when it is to run."""

    @tool
    def local() -> str:
        """Is nowhere to be imported."""
        return "x"

    @tool
    def other() -> str:
        """Neither is this."""
        return "x"

    agent = agent_of(["hi", "again"], tools=[local, other, look])
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("hello")
        with pytest.raises(CannotResume, match=r"local.*other"):
            await AsyncConversation.open(conversation.id, store="memory:")
        async with await AsyncConversation.open(conversation.id, agent=agent, store="memory:") as again:
            assert (await again.run("more")).text == "again"


# Somebody else is there first.


async def test_while_a_turn_runs_another_hears_busy_and_its_message_is_not_kept(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS, "ok"])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expecting(TurnCancelled), conversation.run, "first")
            await watcher.until(TextPiece)
            assert await conversation.status() == "running"
            conversation.send_message("queued")
            with pytest.raises(Busy):
                await conversation.run("passed")
            assert [message.parts[0].text for message in conversation.pending] == ["queued"]  # type: ignore[union-attr]
            await conversation.cancel()
        turn = await conversation.run()
        assert said(turn.events) == [("user", "queued"), ("assistant", "ok")]


async def test_a_run_without_its_key_does_not_begin_and_keeps_what_was_queued(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with AsyncConversation(home.agent(Agent("openai/gpt-5.6")), store=home.store) as conversation:
        conversation.send_message("queued")
        with pytest.raises(MissingKey):
            await conversation.run("passed")
        assert len(conversation.pending) == 1
        assert (await conversation.turns()).items == ()
        assert await conversation.events() == []


async def test_a_turn_that_waits_refuses_a_new_message_and_names_what_can_be_done(home: Home) -> None:
    agent = agent_of([asks(call("look", at="x")), "ok"], tools=[look], approval="always")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        waiting = await conversation.run("go")
        conversation.send_message("queued")
        with pytest.raises(TurnOpen, match="supersede=True") as refused:
            await conversation.run("passed")
        assert refused.value.turn == waiting.id
        assert len(conversation.pending) == 1


# Cancelling.


def expecting(error: type[BaseException]) -> Callable[..., Any]:
    """Runs something that must raise this."""

    async def run(act: Callable[..., Any], *args: Any) -> None:
        with pytest.raises(error):
            await act(*args)

    return run


@both
async def test_a_turn_is_cancelled_from_another_task_and_both_hear_it(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of(["first", HANGS, "again"])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        await conversation.run("one")
        before = await conversation.info()
        watcher.told.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expecting(TurnCancelled), conversation.run, "two")
            await watcher.until(TextPiece)
            turn = await conversation.cancel()
        assert turn.outcome == "cancelled"
        assert watcher.told[-1] == turn
        assert stands(await conversation.info()) == stands(before)
        assert (await conversation.retry()).text == "again"


async def test_another_object_of_the_same_conversation_can_cancel_it(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS])
    async with (
        AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(expecting(TurnCancelled), conversation.run, "two")
        await watcher.until(TextPiece)
        async with await AsyncConversation.open(conversation.id, store=home.store) as other:
            assert (await other.cancel()).outcome == "cancelled"


async def test_another_object_of_the_same_conversation_can_cancel_it_over_a_store_that_was_given() -> None:
    watcher = Watcher()
    agent = agent_of([HANGS])
    async with (
        await SqliteStore.open(None) as store,
        AsyncConversation(agent, store=store, callbacks=[watcher]) as conversation,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(expecting(TurnCancelled), conversation.run, "two")
        await watcher.until(TextPiece)
        try:
            async with await AsyncConversation.open(conversation.id, store=store) as other:
                assert (await other.cancel()).outcome == "cancelled"
        finally:
            tasks.cancel_scope.cancel()


async def test_a_cancelled_turn_carries_its_turn_and_no_cause(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        heard: list[TurnCancelled] = []

        async def run() -> None:
            with pytest.raises(TurnCancelled) as cancelled:
                await conversation.run("hello")
            heard.append(cancelled.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await watcher.until(TextPiece)
            turn = await conversation.cancel()
        (cancelled,) = heard
        assert cancelled.turn == turn
        assert cancelled.cause is None
        assert isinstance(cancelled, TurnFailed)
        assert cancelled.code == "turn_cancelled"


async def test_there_is_nothing_to_cancel_where_nothing_runs(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["hi"])), store=home.store) as conversation:
        await conversation.run("hello")
        with pytest.raises(NoSuchTurn):
            await conversation.cancel()


@pytest.mark.parametrize("who", ["cancel", "task"])
async def test_a_cancellation_that_comes_too_late_says_committed(tmp_path: Path, who: str) -> None:
    disk, watcher = Disk(), Watcher()
    agent = agent_of(["paid for", "and on"])

    def hold_the_commit(update: Any) -> None:
        if isinstance(update, Answered):
            disk.waits.clear()

    async with (
        await SqliteStore.open(tmp_path / "a.db", connect=disk.open) as store,
        AsyncConversation(agent_of([HANGS]), store=store, callbacks=[watcher]) as other,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(other.run, "so that the store does not write in the thread of the loop")
        await watcher.until(TextPiece)
        conversation = AsyncConversation(agent, store=store, callbacks=[hold_the_commit])
        running = asyncio.create_task(conversation.run("hello"))
        await anyio.to_thread.run_sync(disk.reached.wait, PATIENCE)
        if who == "cancel":
            cancelling = asyncio.create_task(conversation.cancel())
        else:
            running.cancel()
        for _ in range(5):
            await checkpoint()
        disk.waits.set()
        if who == "cancel":
            assert (await cancelling).outcome == "committed"
            assert (await running).outcome == "committed"
        else:
            with pytest.raises(asyncio.CancelledError):
                await running
        (turn,) = (await conversation.turns()).items
        assert (turn.outcome, turn.text) == ("committed", "paid for")
        again = await AsyncConversation.open(conversation.id, agent=agent, store=store)
        assert said((await again.run("more")).events)[-1] == ("assistant", "and on")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("inside", ["model", "tool"])
async def test_a_task_that_is_cancelled_from_outside_ends_its_turn_and_stays_cancelled(home: Home, inside: str) -> None:
    started = Signal()

    @tool
    async def waits() -> None:
        """Waits."""
        started.set()
        await anyio.sleep_forever()

    def heard(update: Any) -> None:
        if inside == "model" and isinstance(update, TextPiece):
            started.set()

    reply = HANGS if inside == "model" else asks(call("waits"))
    agent = agent_of([reply, "again"], tools=[waits])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[heard]) as conversation:
        running = asyncio.create_task(conversation.run("hello"))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        (turn,) = (await conversation.turns()).items
        assert turn.outcome == "cancelled"
        assert turn.usage.calls == 1, "what was asked was paid for"
        assert await conversation.status() == "idle"
        assert (await conversation.retry()).text == "again"


@both
async def test_a_scope_that_is_cancelled_ends_its_turn_and_stays_cancelled(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS, "again"])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        reached = False
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                nonlocal reached
                await conversation.run("hello")
                reached = True

            tasks.start_soon(run)
            await watcher.until(TextPiece)
            tasks.cancel_scope.cancel()
        assert not reached
        assert [turn.outcome for turn in (await conversation.turns()).items] == ["cancelled"]
        assert (await conversation.retry()).text == "again"


async def test_a_timeout_around_a_run_cancels_it(home: Home) -> None:
    agent = agent_of([HANGS])
    loop = asyncio.get_running_loop()

    def heard(update: Any) -> None:
        if isinstance(update, TextPiece):
            limit.reschedule(loop.time())

    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[heard]) as conversation:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                await conversation.run("hello")
        assert [turn.outcome for turn in (await conversation.turns()).items] == ["cancelled"]


async def test_closing_the_store_cancels_what_runs_there(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS])
    conversation = AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(expecting(TurnCancelled), conversation.run, "hello")
        await watcher.until(TextPiece)
        await conversation.close()
    assert watcher.told[-1].outcome == "cancelled"  # type: ignore[union-attr]


# Discarding.


async def test_a_discarded_turn_is_over_and_what_its_tools_did_stays_visible(home: Home) -> None:
    agent = agent_of([asks(call("look", "free", at="a"), call("delete", "risky")), "on"], tools=[look, delete])
    async with AsyncConversation(
        home.agent(Agent(agent.llm, tools=agent.tools, approval="risky")), store=home.store
    ) as conversation:
        waiting = await conversation.run("go")
        assert waiting.outcome == "awaiting_approval"
        discarded = await conversation.discard()
        assert (discarded.id, discarded.outcome) == (waiting.id, "cancelled")
        assert (discarded.calls[0].id, discarded.calls[0].status) == ("free", "done")
        assert await conversation.status() == "idle"
        assert await conversation.events() == []
        assert (await conversation.run("next")).text == "on"


@tool(risky=True)
def delete() -> str:
    """Deletes."""
    return "gone"


# Another agent.


async def test_another_agent_answers_from_here_on_and_the_change_is_recorded_with_its_reason(home: Home) -> None:
    first = agent_of(["first"], instructions="Be long.")
    second = agent_of(["second"], instructions="Be brief.", tools=[look])
    async with AsyncConversation(home.agent(first), store=home.store) as conversation:
        await conversation.run("one")
        await conversation.change_agent(home.agent(second))
        assert conversation.agent is home.at_hand(second)
        note = (await conversation.events())[4:]
        assert kinds(note) == ["settings_changed", "settings_changed", "manifest_changed"], "as it was, and as it is"
        before, after, manifest = (event.body for event in note)
        assert isinstance(before, SettingsChanged)
        assert first.to_json() in before.settings
        assert isinstance(after, SettingsChanged)
        assert '"instructions":"Be brief."' in after.settings
        assert '"name":"look"' in after.settings
        assert isinstance(manifest, ManifestChanged)
        assert manifest.hash == second.manifest.hash
        assert "instructions" in (manifest.reason or "")
        assert "tool look added" in (manifest.reason or "")
        assert (await conversation.run("two")).text == "second"
        assert kinds(await conversation.events()).count("manifest_changed") == 2, "it is recorded once"
        async with await AsyncConversation.open(conversation.id, store=home.store) as again:
            assert (await again.info()).model == second.llm.model
            assert again.agent is None or again.agent.to_json() == second.to_json(), "a server's stays there"


async def test_an_agent_that_sends_the_same_is_changed_without_a_new_manifest(home: Home) -> None:
    first = agent_of(["first", "second"])
    async with AsyncConversation(home.agent(first), store=home.store) as conversation:
        await conversation.run("one")
        await conversation.change_agent(home.agent(Agent(first.llm, limits=Limits(steps=3))))
        assert kinds((await conversation.events())[4:]) == ["settings_changed", "settings_changed"]
        assert (await conversation.run("two")).text == "second"


async def test_an_agent_changed_before_the_first_turn_is_simply_the_agent(tmp_path: Path) -> None:
    async with AsyncConversation(agent_of([]), store=tmp_path / "a.db") as conversation:
        await conversation.change_agent(agent_of(["second"]))
        assert os.listdir(tmp_path) == []
        turn = await conversation.run("hello")
        assert turn.text == "second"
        assert kinds(turn.events).count("settings_changed") == 0
        assert (await conversation.info()).model == conversation.agent.llm.model  # type: ignore[union-attr]


async def test_an_agent_can_be_changed_after_a_first_turn_that_failed(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([OVERLOADED])), store=home.store) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("hello")
        await conversation.change_agent(home.agent(agent_of(["better"])))
        assert (await conversation.retry(failed.value.id)).text == "better"


async def test_an_agent_is_not_changed_while_a_turn_is_open(home: Home) -> None:
    watcher = Watcher()
    first = agent_of([asks(call("look", at="x")), HANGS], tools=[look], approval="always")
    other = agent_of([])
    async with AsyncConversation(home.agent(first), store=home.store, callbacks=[watcher]) as conversation:
        await conversation.run("go")
        with pytest.raises(TurnOpen):
            await conversation.change_agent(home.agent(other))
        watcher.told.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expecting(TurnCancelled), conversation.approve)
            await watcher.until(TextPiece)
            with pytest.raises(Busy):
                await conversation.change_agent(home.agent(other))
            await conversation.cancel()
        assert conversation.agent is home.at_hand(first), "a change that was refused has no effect here either"
        assert kinds(await conversation.events()) == []


# State from outside.


async def test_state_set_from_outside_is_a_note_that_the_next_tool_sees(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["hi", "ho"])), store=home.store) as conversation:
        await conversation.update_state({"a": [1, 2], "b": None})
        assert await conversation.agent_state() == {"a": [1, 2], "b": None}
        await conversation.run("hello")
        await conversation.update_state({"c": "x"}, remove=["a", "never there"])
        assert await conversation.agent_state() == {"b": None, "c": "x"}
        assert kinds(await conversation.events()).count("state_change") == 2
        events = len(await conversation.events())
        await conversation.update_state({"c": "x"})
        await conversation.update_state(remove=["gone"])
        assert len(await conversation.events()) == events, "what changes nothing is no note"


async def test_state_is_not_set_from_outside_while_a_turn_is_open(home: Home) -> None:
    agent = agent_of([asks(call("look", at="x"))], tools=[look], approval="always")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("go")
        with pytest.raises(TurnOpen):
            await conversation.update_state({"a": 1})
        assert await conversation.agent_state() == {}


async def test_a_value_that_is_no_json_is_refused_and_nothing_is_set(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of([])), store=home.store) as conversation:
        for value in (object(), float("nan"), "\ud800"):
            with pytest.raises(ForkpointError):
                await conversation.update_state({"good": 1, "bad": value})
        assert await conversation.agent_state() == {}


# Reading.


async def test_events_are_read_in_parts_and_by_kind(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["one", "two"])), store=home.store) as conversation:
        await conversation.run("1")
        await conversation.run("2")
        events = await conversation.events()
        assert [event.id.ordinal for event in events] == list(range(1, len(events) + 1))
        assert await conversation.events(after=4) == events[4:]
        assert await conversation.events(after=1, limit=2) == events[1:3]
        assert kinds(await conversation.events(kinds=["user_message"])) == ["user_message"] * 2


async def test_turns_are_read_page_by_page(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["x"] * 5)), store=home.store) as conversation:
        made = [(await conversation.run(str(n))).id for n in range(5)]
        found: list[str] = []
        cursor = None
        while True:
            page = await conversation.turns(cursor=cursor, limit=2)
            found += [turn.id for turn in page.items]
            if (cursor := page.next) is None:
                break
        assert found == made


async def test_title_and_tags_are_set_at_any_time_also_while_a_turn_runs(home: Home) -> None:
    watcher = Watcher()
    agent = agent_of([HANGS])
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expecting(TurnCancelled), conversation.run, "hello")
            await watcher.until(TextPiece)
            info = await conversation.describe(title="New", tags={"a": "b"})
            assert (info.title, info.tags) == ("New", {"a": "b", "title": "New"})
            await conversation.cancel()
        await conversation.describe(tags={"title": "Tagged"})
        assert await conversation.tags() == {"title": "Tagged"}
        await conversation.describe(title="")
        assert (await conversation.title(), await conversation.tags()) == (None, {})


async def test_conversations_are_listed_by_tag_and_status_the_newest_first(home: Home) -> None:
    waits = agent_of([asks(call("look", at="x"))], tools=[look], approval="always")
    async with (
        AsyncConversation(home.agent(agent_of(["hi"])), store=home.store, tags={"kind": "a"}) as one,
        AsyncConversation(home.agent(agent_of(["hi"])), store=home.store, tags={"kind": "a", "more": "b"}) as two,
        AsyncConversation(home.agent(waits), store=home.store) as three,
    ):
        await one.run("hello")
        await two.run("hello")
        await three.run("hello")

        async def listed(**asked: Any) -> list[str]:
            return [info.id for info in (await AsyncConversation.list(store=home.store, **asked)).items]

        assert await listed(tags={"kind": "a"}) == [two.id, one.id]
        assert await listed(tags={"kind": "a", "more": "b"}) == [two.id]
        assert await listed(status="idle") == [two.id, one.id]
        assert await listed(status="awaiting_approval") == [three.id], "whoever is to approve it finds it"
        assert await listed(limit=1) == [three.id]


async def test_a_history_verifies_also_against_a_digest_kept_elsewhere(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["one", "two"])), store=home.store) as conversation:
        await conversation.run("1")
        kept = (await conversation.info()).digest
        await conversation.run("2")
        assert (await conversation.verify(head_digest=kept)).ok
        assert not (await conversation.verify(head_digest="00" * 32)).ok


async def test_a_deleted_conversation_is_gone(home: Home) -> None:
    async with AsyncConversation(home.agent(agent_of(["hi"])), store=home.store) as conversation:
        await conversation.run("hello")
        other = await AsyncConversation.open(conversation.id, store=home.store)
        await conversation.delete()
        for act in (other.events, other.info, other.stats, other.delete):
            with pytest.raises(NotFound):
                await act()
        with pytest.raises(NotFound):
            await other.run("more")
        with pytest.raises(NotFound):
            await AsyncConversation.open(conversation.id, store=home.store)
        assert (await AsyncConversation.list(store=home.store)).items == ()
        await other.close()


# Closing.


async def test_a_closed_conversation_says_so_and_can_be_closed_again(tmp_path: Path) -> None:
    conversation = AsyncConversation(agent_of(["hi", "ho"]), store=tmp_path / "a.db")
    await conversation.run("hello")
    await conversation.close()
    await conversation.close()
    for act in (conversation.events, conversation.info, conversation.stats, conversation.retry, conversation.fork):
        with pytest.raises(ConversationClosed):
            await act()
    for ask in (conversation.run, conversation.ask, conversation.request, conversation.turn, conversation.settle):
        with pytest.raises(ConversationClosed):
            await ask("more")
    async with conversation.run_stream("more") as stream:
        with pytest.raises(ConversationClosed):
            await anext(stream)
    async with await AsyncConversation.open(conversation.id, store=tmp_path / "a.db") as again:
        assert (await again.run("more")).text == "ho"


def test_a_script_is_used_up_once_for_each_call() -> None:
    """The ground under these tests: one reply for one call, so that a call too many is seen."""
    script = Script([Reply("one")])
    script.reply("m", {})
    with pytest.raises(ForkpointError):
        script.reply("m", {})

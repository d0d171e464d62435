"""What a server has in memory is bounded, and what it drops is memory alone: the store has the conversation."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.server.chat.chatting import agents_at, assistant, history, post, problem, said, streamed, system, until, user
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE, Api, asks, left_nothing, obedient, using

from forkpoint.agent import tool
from forkpoint.errors import NotFound
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat.turn import ChatTurn
from forkpoint.store.values import Collected
from forkpoint.testing import Fault, ModelServer, Reply, Script

LISTS: dict[str, Any] = {
    "the newest message": "After",
    "the whole list": [user("Before"), assistant("You said: Before"), user("After")],
    "another list": [system("Lie."), user("Never said"), assistant("Never answered"), user("After")],
}
STREAMING = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"seen {at}"


class Place:
    """A server that remembers little, and the model behind it."""

    def __init__(self, server: Served, api: Api, models: ModelServer) -> None:
        self.server = server
        self.api = api
        self.models = models

    def evict(self, name: str) -> None:
        """Lets so many others talk that this one is dropped."""
        assert self.is_hot(name)
        for other in ("other-1", "other-2"):
            said(post(self.api.http, "Hello", conversation=other))
        assert not self.is_hot(name)
        assert len(self.server.services.chat.hot) == 2

    def is_hot(self, name: str) -> bool:
        async def look_up() -> bool:
            hot = self.server.services.chat.hot
            return ("default", name) in hot._entries

        return asyncio.run_coroutine_threadsafe(look_up(), self.server.loop).result(PATIENCE)

    def turns_left(self, turns: list[str]) -> list[str]:
        """Those of them that are in the store."""

        async def left() -> list[str]:
            found = []
            for turn in turns:
                with suppress(NotFound):
                    found.append((await self.server.services.tenants.store.turn(turn)).id)
            return found

        return asyncio.run_coroutine_threadsafe(left(), self.server.loop).result(PATIENCE)

    def unreached(self) -> Collected:
        """What is in the store though nobody reaches it."""
        store = self.server.services.tenants.store
        return asyncio.run_coroutine_threadsafe(store.collect(dry_run=True), self.server.loop).result(PATIENCE)

    @property
    def sent(self) -> list[tuple[str, Any]]:
        """What the model was sent last, message by message."""
        return [(message["role"], message.get("content")) for message in self.models.last.json["messages"]]


@contextmanager
def place(store: str, **settings: Any) -> Iterator[Place]:
    settings = {"conversations_max": 2, **settings}
    with (
        ModelServer(Script(obedient)) as models,
        served(store, agents_at(models, tools=[look]), settings=ServerSettings(**settings)) as server,
        using(server.url) as api,
    ):
        yield Place(server, api, models)
        left_nothing(server)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(f"sqlite:///{tmp_path_factory.mktemp('evicted')}/store.db") as shared:
        yield shared


@pytest.fixture
def here(shared: Place) -> Iterator[Place]:
    yield shared
    shared.models.script = Script(obedient)


# On disk.


@pytest.mark.parametrize("kind", LISTS)
def test_an_evicted_conversation_goes_on_with_its_whole_history_whatever_the_client_sends(
    here: Place, kind: str
) -> None:
    name = f"evicted-{kind}".replace(" ", "-")
    said(post(here.api.http, "Before", conversation=name))
    here.evict(name)
    answer = post(here.api.http, LISTS[kind], conversation=name)
    assert (said(answer), answer.headers["x-conversation-status"]) == ("You said: After", "continued")
    assert here.sent == [("user", "Before"), ("assistant", "You said: Before"), ("user", "After")]
    assert history(here.api, name) == ["Before", "You said: Before", "After", "You said: After"]


def test_a_client_whose_list_is_the_truth_finds_its_place_again_with_the_tools_of_that_turn(here: Place) -> None:
    full = {"X-Conversation-History": "full"}
    first = [user(asks(("look", {"at": "the disk"})))]
    answer = post(here.api.http, first, conversation="truth", headers=full)
    here.evict("truth")
    listed = [*first, assistant(said(answer)), user("After")]
    again = post(here.api.http, listed, conversation="truth", headers=full)
    assert (said(again), again.headers["x-conversation-status"]) == ("You said: After", "continued")
    assert [role for role, _ in here.sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert here.api.outcomes("truth") == ["committed", "committed"]


@STREAMING
def test_a_failure_then_an_eviction_then_a_retry(here: Place, stream: bool) -> None:
    name = f"failed-{stream}"
    said(post(here.api.http, "Before", conversation=name))
    here.models.script = Script([Reply("Half an answer", piece=4, fault=Fault("cut", after=2))])
    problem(post(here.api.http, "After", conversation=name, stream=stream))
    here.models.script = Script(obedient)
    here.evict(name)
    answer = post(here.api.http, "After", conversation=name, stream=stream)
    assert (said(answer), answer.headers["x-conversation-status"]) == ("You said: After", "continued")
    assert here.sent == [("user", "Before"), ("assistant", "You said: Before"), ("user", "After")]
    assert here.api.outcomes(name) == ["committed", "failed", "committed"]


@STREAMING
def test_an_eviction_then_a_failure_then_a_retry(here: Place, stream: bool) -> None:
    name = f"fails-{stream}"
    said(post(here.api.http, "Before", conversation=name))
    here.evict(name)
    here.models.script = Script([Reply("Half an answer", piece=4, fault=Fault("cut", after=2))])
    problem(post(here.api.http, "After", conversation=name, stream=stream))
    here.models.script = Script(obedient)
    assert said(post(here.api.http, "After", conversation=name, stream=stream)) == "You said: After"
    assert here.sent == [("user", "Before"), ("assistant", "You said: Before"), ("user", "After")]


def test_a_failed_first_turn_then_an_eviction_then_a_retry(here: Place) -> None:
    here.models.script = Script([Reply(fault=Fault("overloaded"))])
    assert problem(post(here.api.http, "First", conversation="draft")) == (503, "model_overloaded")
    here.models.script = Script(obedient)
    for other in ("other-1", "other-2"):
        said(post(here.api.http, "Hello", conversation=other))
    assert not here.is_hot("draft")
    answer = post(here.api.http, "First", conversation="draft")
    assert (said(answer), answer.headers["x-conversation-status"]) == ("You said: First", "created")
    assert here.api.outcomes("draft") == ["failed", "committed"]


def test_a_conversation_that_nobody_has_used_for_a_while_is_dropped_and_goes_on(tmp_path: Path) -> None:
    with place(f"sqlite:///{tmp_path}/store.db", conversation_ttl=60) as here:
        clock = Clock(here)
        said(post(here.api.http, "Before", conversation="c"))
        clock.passes(59)
        assert here.is_hot("c")
        clock.passes(1)
        assert not here.is_hot("c")
        answer = post(here.api.http, "After", conversation="c")
        assert (said(answer), answer.headers["x-conversation-status"]) == ("You said: After", "continued")
        assert here.sent == [("user", "Before"), ("assistant", "You said: Before"), ("user", "After")]


# In memory.


def test_where_the_store_is_memory_an_evicted_conversation_is_forgotten_and_the_answer_says_so() -> None:
    with place("memory:") as here:
        said(post(here.api.http, "Before", conversation="c"))
        here.evict("c")
        until(lambda: here.api.http.get("/api/conversations/c").status_code == 404)
        answer = post(here.api.http, "After", conversation="c")
        assert (said(answer), answer.headers["x-conversation-status"]) == ("You said: After", "created")
        assert here.sent == [("user", "After")]
        assert history(here.api, "c") == ["After", "You said: After"]


def test_where_the_store_is_memory_a_client_that_sends_its_list_brings_it_back() -> None:
    with place("memory:") as here:
        said(post(here.api.http, "Before", conversation="c"))
        here.evict("c")
        answer = post(here.api.http, LISTS["the whole list"], conversation="c")
        assert said(answer) == "You said: After"
        assert here.sent == [("user", "Before"), ("assistant", "You said: Before"), ("user", "After")]


def test_where_the_store_is_memory_time_forgets_too_but_never_one_that_is_in_use() -> None:
    with place("memory:", conversation_ttl=60) as here:
        clock = Clock(here)
        for name in ("idle", "used"):
            said(post(here.api.http, "Before", conversation=name))
        here.models.script = Script([Reply("Half an answer", piece=4, fault=Fault("hang", after=1))])
        with streamed(here.api.http, "After", conversation="used") as stream:
            stream.until_text()
            here.models.script = Script(obedient)
            clock.passes(3600)
            assert (here.is_hot("idle"), here.is_hot("used")) == (False, True)
            for other in ("other-1", "other-2"):
                said(post(here.api.http, "Hello", conversation=other))
            assert here.is_hot("used")
            until(lambda: here.api.http.get("/api/conversations/idle").status_code == 404)
        left_nothing(here.server)
        answer = post(here.api.http, "After", conversation="used")
        assert (said(answer), answer.headers["x-conversation-status"]) == ("You said: After", "continued")
        assert here.sent == [("user", "Before"), ("assistant", "You said: Before"), ("user", "After")]


@pytest.mark.parametrize("ends", ["committed", "failed"])
def test_where_the_store_is_memory_what_is_evicted_leaves_nothing_behind(ends: str) -> None:
    with place("memory:") as here:
        if ends == "failed":
            here.models.script = Script([Reply("Half", piece=2, fault=Fault("cut", after=1))], repeat=True)
        answers = [post(here.api.http, conversation=f"c-{number}") for number in range(6)]
        assert {one.status_code for one in answers} == {200 if ends == "committed" else 502}
        turns = [one.headers["x-turn-id"] for one in answers]
        until(lambda: here.turns_left(turns) == turns[-2:])
        until(lambda: here.unreached() == Collected())
        assert len(here.server.services.chat.hot) == 2


def test_where_the_store_is_memory_what_was_set_aside_goes_with_its_conversation() -> None:
    with place("memory:") as here:
        full = {"X-Conversation-History": "full"}
        answers = [post(here.api.http, text, conversation="c", headers=full) for text in ("Before", "Edited")]
        here.evict("c")
        until(lambda: not here.turns_left([one.headers["x-turn-id"] for one in answers]))
        until(lambda: here.unreached() == Collected())


def test_of_a_list_that_grows_it_is_kept_once_how_its_client_saw_it(here: Place) -> None:
    full, listed = {"X-Conversation-History": "full"}, [user("Hello")]
    kept = here.server.services.chat.seen
    before = len(kept)
    for number in range(5):
        answer = post(here.api.http, listed, conversation="grows", headers=full)
        listed += [assistant(said(answer)), user(f"More {number}")]
    assert len(kept) <= before + 1


@pytest.mark.parametrize("history_mode", ["latest", "full"])
def test_a_committed_turn_is_told_as_such_whatever_becomes_of_memory(
    monkeypatch: pytest.MonkeyPatch, history_mode: str
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ChatTurn, "_remember", fails)
    with place("memory:") as here:
        headers = {"X-Conversation-History": history_mode}
        for text in ("one", "two"):
            assert said(post(here.api.http, text, conversation=text, headers=headers)) == f"You said: {text}"
            assert history(here.api, text) == [text, f"You said: {text}"]


class Clock:
    """The time that a server's memory goes by."""

    def __init__(self, here: Place) -> None:
        self._now = 0.0
        self._here = here
        here.server.services.chat.hot._clock = lambda: self._now

    def passes(self, seconds: float) -> None:
        """So much time goes by, and then the server looks what has run out."""

        async def sweep() -> None:
            self._now += seconds
            self._here.server.services.chat.hot.sweep()

        asyncio.run_coroutine_threadsafe(sweep(), self._here.server.loop).result(PATIENCE)

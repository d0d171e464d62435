"""Conversations that are being made: each name has one, and what was acknowledged under a name is there under it."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.chat.chatting import agents_at, held, history, post, problem, said, tries, until, writing
from tests.server.support.serving import Served, served
from tests.server.support.turning import Api, left_nothing, using

from forkpoint.testing import Fault, ModelServer, Reply, Script

ECHO = Script(lambda heard: Reply(f"You said: {heard.text}"))
FAILS = Script([Reply(fault=Fault("status", status=500))], repeat=True)
STATUS = "x-conversation-status"


class Two:
    """Two servers on one file, and the model behind both."""

    def __init__(self, file: Path, server: Served, one: Api, two: Api, models: ModelServer) -> None:
        self.file = file
        self.server = server
        self.one = one
        self.two = two
        self.models = models

    def fail(self, name: str, origin: str | None = None, **fields: Any) -> None:
        """The first turn of a name fails, and leaves a draft that the first server knows."""
        self.models.script = FAILS
        try:
            assert ask(self.one, name, "Fails", origin, **fields).status_code == 502
        finally:
            self.models.script = ECHO

    def race(self, name: str, *asked: tuple[str, str | None]) -> list[httpx2.Response]:
        """Asks all at once, each with its text and its origin, and gives their answers.

        Each looks before any can write; then they write in this order. Nothing is answered well before the others are.
        """
        jobs = self.server.services.tenants.store._view.opened.writer._jobs  # type: ignore[attr-defined]
        count = len(self.models.requests)
        with self.models.holding():
            with held(self.file):
                asking: list[Future[httpx2.Response]] = []
                for number, (text, origin) in enumerate(asked):
                    asking.append(self.one.soon(ask, self.one, name, text, origin))
                    writing(self.file)
                    until(lambda behind=number: jobs.qsize() == behind)  # type: ignore[misc]
            lost = len(asked) - 1
            until(lambda: sum(one.done() for one in asking) == lost or len(self.models.requests) > count + 1)
        return [one.result() for one in asking]

    def names(self) -> set[str]:
        """Of all that is listed. What lost its name has its id instead."""
        found: list[dict[str, Any]] = self.one.http.get("/api/conversations", params={"limit": 1000}).json()["items"]
        return {one["name"] for one in found}


def ask(api: Api, name: str, text: str, origin: str | None = None, **fields: Any) -> httpx2.Response:
    headers = {} if origin is None else {"X-Fork-From": origin}
    return post(api.http, text, conversation=name, headers=headers, **fields)


def lived(text: str) -> list[str]:
    return [text, f"You said: {text}"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    file = tmp_path_factory.mktemp("drafts") / "store.db"
    with (
        ModelServer(ECHO) as models,
        served(f"sqlite:///{file}", agents_at(models)) as here,
        served(f"sqlite:///{file}", agents_at(models)) as there,
        using(here.url) as one,
        using(there.url) as other,
    ):
        for origin in ("a", "b"):
            said(ask(one, origin, f"From {origin}"))
        yield Two(file, here, one, other, models)
        left_nothing(here)
        left_nothing(there)
        assert one.http.post("/api/verify", json={}).json()["ok"]


# Several at once.


def test_of_several_forks_of_one_new_name_at_once_one_is_made_and_the_others_are_busy(two: Two) -> None:
    answers = two.race("forked", *((f"Message {number}", "a") for number in range(5)))
    (well,) = [number for number, one in enumerate(answers) if one.status_code == 200]
    others = [one for one in answers if one.status_code != 200]
    assert [problem(one) for one in others] == [(409, "conversation_busy")] * 4
    assert answers[well].headers[STATUS] == "created"
    assert history(two.one, "forked") == [*lived("From a"), *lived(f"Message {well}")]
    assert two.names() >= {"a", "b", "forked"}
    assert not any(id_like(name) for name in two.names()), "nothing was committed under no name"


@pytest.mark.parametrize("first", [0, 1], ids=["begun first", "unnamed first"])
def test_a_draft_whose_turn_begins_just_when_its_name_is_wanted_for_another_keeps_it_or_never_began(
    two: Two, first: int
) -> None:
    """One request goes on with the draft of a fork that failed, and another wants the name for another fork."""
    name = f"wanted-{first}"
    two.fail(name, "a")
    asked = [("Of a", "a"), ("Of b", "b")]
    answers = two.race(name, *(asked if first == 0 else reversed(asked)))
    assert sorted(one.status_code for one in answers) == [200, 409]
    text, origin = (asked if first == 0 else asked[::-1])[answers[0].status_code == 409]
    assert history(two.one, name) == [*lived(f"From {origin}"), *lived(text)]
    assert not any(id_like(name) for name in two.names())


def test_a_draft_without_an_origin_is_not_taken_away_from_a_turn_that_begins(two: Two) -> None:
    two.fail("plain")
    answers = two.race("plain", ("Alone", None), ("Of b", "b"))
    assert [one.status_code for one in answers] == [200, 409]
    assert problem(answers[1]) == (409, "conversation_busy")
    assert (history(two.one, "plain"), tries(two.one, "plain")) == (lived("Alone"), ["failed", "committed"])


@pytest.mark.parametrize("at", ["", "@"], ids=["its end", "a turn"])
def test_a_fork_that_failed_goes_on_with_its_draft_when_it_is_wanted_again(two: Two, at: str) -> None:
    name, source = f"again-{len(at)}", f"source-{len(at)}"
    turns = [ask(two.one, source, text).headers["x-turn-id"] for text in ("One", "Two")]
    origin = f"{source}@{turns[0]}" if at else source
    for _ in range(2):
        two.fail(name, origin)
    assert ask(two.two, name, "Three", origin).headers[STATUS] == "created"
    assert tries(two.one, name)[-3:] == ["failed", "failed", "committed"]
    assert history(two.one, name) == [*lived("One"), *(() if at else lived("Two")), *lived("Three")]


def test_a_fork_that_failed_is_made_anew_once_its_source_has_moved(two: Two) -> None:
    said(ask(two.one, "moves", "One"))
    two.fail("later", "moves")
    said(ask(two.two, "moves", "Two"))
    assert ask(two.one, "later", "Three", "moves").headers[STATUS] == "created"
    assert history(two.one, "later") == [*lived("One"), *lived("Two"), *lived("Three")]


# Two servers.


@pytest.mark.parametrize(
    ("origin", "again", "fields"),
    [("a", None, {}), ("a", "a", {}), (None, None, {"metadata": {"title": "Another"}}), (None, None, {"user": "bob"})],
    ids=["a fork", "a fork that is named again", "another title", "another user"],
)
def test_a_draft_that_another_server_has_committed_since_goes_on_under_its_name(
    two: Two, origin: str | None, again: str | None, fields: dict[str, Any]
) -> None:
    name = f"elsewhere-{origin}-{again}-{len(fields)}-{''.join(fields)}"
    two.fail(name, origin)
    assert ask(two.two, name, "There", origin).headers[STATUS] == "created"
    id = two.two.get(name)["id"]  # the first one does not look before it is asked
    answer = ask(two.one, name, "Here", again, **fields)
    assert (said(answer), answer.headers[STATUS]) == ("You said: Here", "continued")
    before = [] if origin is None else lived(f"From {origin}")
    assert history(two.two, name) == [*before, *lived("There"), *lived("Here")]
    info = two.one.get(name)
    assert (info["id"], info["title"], info["tags"]) == (id, None, {}), "and it is described as it was"


def test_a_draft_that_another_server_has_committed_since_is_no_fork_of_something_else(two: Two) -> None:
    two.fail("settled", "a")
    said(ask(two.two, "settled", "There", "a"))
    assert problem(ask(two.one, "settled", "Here", "b")) == (409, "exists")
    assert history(two.one, "settled") == [*lived("From a"), *lived("There")]


def test_a_draft_that_lost_its_name_on_another_server_is_not_gone_on_with(two: Two) -> None:
    two.fail("replaced", "a")
    said(ask(two.two, "replaced", "There", "b"))
    answer = ask(two.one, "replaced", "Here")
    assert (said(answer), answer.headers[STATUS]) == ("You said: Here", "continued")
    assert history(two.one, "replaced") == [*lived("From b"), *lived("There"), *lived("Here")]


# What is said of it.


@pytest.mark.parametrize("server", ["the same server", "another server"])
def test_a_conversation_is_described_by_the_request_that_is_answered(two: Two, server: str) -> None:
    name, api = f"described-{server[0]}", two.one if server == "the same server" else two.two
    two.fail(name, user="alice", metadata={"title": "Alice's", "team": "red"})
    answer = ask(api, name, "Fine", user="bob", metadata={"title": "Bob's", "floor": "3"})
    assert (said(answer), answer.headers[STATUS]) == ("You said: Fine", "created")
    info = two.one.get(name)
    bobs = {"user": "bob", "title": "Bob's", "floor": "3"}
    assert (info["title"], info["tags"]) == ("Bob's", bobs)
    said(ask(api, name, "More", user="carol", metadata={"title": "Carol's"}))
    info = two.one.get(name)
    assert (info["title"], info["tags"]) == ("Bob's", bobs), "the one that made it"


def test_a_request_that_says_nothing_of_it_leaves_nothing_of_one_that_failed(two: Two) -> None:
    two.fail("undescribed", user="alice", metadata={"title": "Alice's"})
    assert ask(two.one, "undescribed", "Fine").headers[STATUS] == "created"
    info = two.one.get("undescribed")
    assert (info["title"], info["tags"]) == (None, {})


# Natively.


@pytest.mark.parametrize("server", ["the same server", "another server"])
def test_a_conversation_can_be_made_natively_under_the_name_of_a_draft_that_was_left(two: Two, server: str) -> None:
    name, api = f"native-{server[0]}", two.one if server == "the same server" else two.two
    two.fail(name, user="alice")
    assert api.http.get(f"/api/conversations/{name}").status_code == 404
    id = api.create(name=name)
    info = api.get(name)
    assert (info["id"], info["tags"]) == (id, {})
    for way in (two.one, two.two):
        said(ask(way, name, "Hello"))
    assert history(two.one, id) == lived("Hello") * 2
    made = two.one.http.post("/api/conversations", json={"name": name})
    assert (made.status_code, made.json()["error"]["code"]) == (409, "exists"), "that one is there to be seen"


def test_a_draft_whose_first_turn_runs_keeps_its_name(two: Two) -> None:
    count = len(two.models.requests)
    with two.models.holding():
        asking = two.one.soon(ask, two.one, "running", "Hello")
        two.models.wait_for(count + 1)
        made = [api.http.post("/api/conversations", json={"name": "running"}).status_code for api in (two.one, two.two)]
    assert made == [409, 409]
    said(asking.result())
    assert history(two.one, "running") == lived("Hello")


@pytest.mark.parametrize("server", ["the same server", "another server"])
def test_a_first_turn_that_runs_is_read_and_cancelled_under_its_name(two: Two, server: str) -> None:
    """As a first turn of the native API is: the message about a busy name has the turn's id."""
    name, api = f"first-{server[0]}", two.one if server == "the same server" else two.two
    count = len(two.models.requests)
    with two.models.holding():
        asking = two.one.soon(ask, two.one, name, "Hello")
        two.models.wait_for(count + 1)
        info = api.get(name)
        turn = info["open_turn"]
        assert info["status"] == "running"
        assert turn in ask(api, name, "Me too").json()["error"]["message"]
        assert api.turn(name, turn)["outcome"] == "running"
        assert name not in two.names(), "a draft is not listed, whoever makes it"
        assert api.post(f"{name}/turns/{turn}/cancel").json()["outcome"] == "cancelled"
        assert problem(asking.result()) == (409, "turn_cancelled")
    assert api.http.get(f"/api/conversations/{name}").status_code == 404, "nobody has answered there"


def id_like(name: str) -> bool:
    return len(name) > 24 and name.isalnum()


def test_a_native_turn_that_makes_its_conversation_takes_the_name_of_what_was_left_behind(tmp_path: Path) -> None:
    with (
        ModelServer(Script([Reply(fault=Fault("status", status=500)), Reply("There.")])) as models,
        served(f"sqlite:///{tmp_path}/s.db", agents_at(models)) as server,
        using(server.url) as api,
    ):
        assert post(api.http, "one", conversation="wanted").status_code == 502
        made = api.http.post("/api/conversations/wanted/turns", json={"message": "Hello", "create": {}})
        assert (made.status_code, made.json()["text"]) == (200, "There.")
        assert history(api, "wanted") == ["Hello", "There."]

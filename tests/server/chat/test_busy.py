"""Two requests for one conversation: the second is refused at once, or it is the same request and then it is the same
turn.
"""

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from itertools import chain, islice
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.server.chat.chatting import (
    PATH,
    Leaver,
    Messages,
    agents_at,
    assistant,
    body,
    history,
    named,
    post,
    problem,
    said,
    streamed,
    until,
    user,
)
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE, Api, Visits, left_nothing, using

from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Fault, ModelServer, Reply, Script

STREAMING = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ECHO = Script(lambda heard: Reply(f"You said: {heard.text}", piece=4))
FAILS = Script([Reply("Half an answer", piece=4, fault=Fault("cut", after=2))], repeat=True)
AGAIN: dict[str, Any] = {"X-Stainless-Retry-Count": "1"}


class Two:
    """Two servers on one file, and the model behind both."""

    def __init__(self, servers: tuple[Served, Served], one: Api, two: Api, models: ModelServer) -> None:
        self.servers = servers
        self.one = one
        self.two = two
        self.models = models
        self._names = iter(range(1_000_000))

    def name(self) -> str:
        """Of a conversation that nobody has used."""
        return f"c-{next(self._names)}"

    def joined(self, count: int, *, there: bool = False) -> None:
        """Waits until so many requests wait for a turn of somebody else's."""
        turns = self.servers[there].services.turns
        until(
            lambda: sum(feed is not None and feed.joined is not None for feed in list(turns._tasks.values())) == count
        )

    def asked(self) -> int:
        """How often the model was asked."""
        return len(self.models.requests)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    store = f"sqlite:///{tmp_path_factory.mktemp('two')}/store.db"
    with (
        ModelServer(ECHO) as models,
        served(store, agents_at(models)) as here,
        served(store, agents_at(models)) as there,
        using(here.url) as one,
        using(there.url) as two,
    ):
        yield Two((here, there), one, two, models)
        left_nothing(here)
        left_nothing(there)


@pytest.fixture
def both(shared: Two) -> Iterator[Two]:
    yield shared
    shared.models.script = ECHO


@pytest.fixture
def visits() -> Iterator[Visits]:
    with Visits() as visits:
        yield visits


def ask(api: Api, name: str, text: Messages = "Hello", *, stream: bool = False, **headers: Any) -> httpx2.Response:
    return post(api.http, text, conversation=name, stream=stream, headers=headers)


def begun(both: Two, name: str, text: str = "Hello", *, stream: bool = False, **headers: Any) -> Any:
    """A request at the first server, which waits for the model by now."""
    count = both.asked()
    asking = both.one.soon(ask, both.one, name, text, stream=stream, **headers)
    both.models.wait_for(count + 1)
    return asking


# Another request.


@pytest.mark.parametrize(("there", "stream"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("new", [True, False], ids=["new", "continued"])
def test_a_second_request_is_refused_at_once_and_changes_nothing(
    both: Two, new: bool, there: bool, stream: bool
) -> None:
    name, other = both.name(), both.two if there else both.one
    if not new:
        said(ask(both.one, name, "Zero"))
    with both.models.holding():
        first = begun(both, name, "One", stream=stream)
        count = both.asked()
        for again in ("Two", "One"):  # the same body too: nobody says that it is the same request
            refused = ask(other, name, again, stream=stream)
            assert problem(refused) == (409, "conversation_busy"), refused.text
            assert refused.headers["x-should-retry"] == "false", "the official clients would retry by themselves"
            assert refused.json()["error"]["type"] == "invalid_request_error"
            assert refused.headers["x-conversation-id"] == name
        assert both.asked() == count
        assert not first.done()
    assert said(first.result()) == "You said: One"
    assert said(ask(other, name, "Two", stream=stream)) == "You said: Two"
    assert both.two.outcomes(name) == ["committed"] * (2 if new else 3)


def test_a_conversation_is_free_again_whatever_became_of_a_turn_also_for_another_server(both: Two) -> None:
    kinds: list[Any] = ["status", "rate_limit", "cut", "malformed", "refused", "empty", "context_too_long"]
    name = both.name()
    said(ask(both.one, name, "One"))
    for kind in kinds:
        status = 500 if kind == "status" else None
        both.models.script = Script([Reply(fault=Fault(kind, status=status))])
        assert ask(both.one, name, "Two").status_code >= 400
        both.models.script = ECHO
        assert said(ask(both.two, name, f"After {kind}")) == f"You said: After {kind}"
        said(ask(both.one, name, "And back"))
    assert both.two.outcomes(name) == ["committed", *["failed", "committed", "committed"] * len(kinds)]


def test_a_turn_in_one_server_is_cancelled_and_the_other_takes_the_conversation(both: Two) -> None:
    name = both.name()
    both.models.script = Script([Reply("Half an answer", piece=4, fault=Fault("hang", after=1))])
    with streamed(both.one.http, "One", conversation=name) as stream:
        stream.until_text()
        assert problem(ask(both.two, name, "Two")) == (409, "conversation_busy")
    both.models.script = ECHO
    left_nothing(both.servers[0])
    assert said(ask(both.two, name, "Two")) == "You said: Two"
    assert history(both.two, name) == ["Two", "You said: Two"]


@pytest.mark.parametrize("new", [True, False], ids=["new", "continued"])
def test_of_fifty_at_once_one_commits_and_all_others_are_refused(both: Two, new: bool) -> None:
    name = both.name()
    if not new:
        said(ask(both.one, name, "Zero"))
    count = both.asked()
    with ThreadPoolExecutor(50) as threads:
        with both.models.holding():
            asking = [threads.submit(ask, (both.one, both.two)[n % 2], name, f"I am {n}") for n in range(50)]
            both.models.wait_for(count + 1)
            refused = list(islice(as_completed(asking, PATIENCE), 49))
            assert {one.result().status_code for one in refused} == {409}
        answers = [one.result() for one in asking]
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: 49}
    assert both.asked() == count + 1
    winner = next(n for n, answer in enumerate(answers) if answer.status_code == 200)
    committed = [f"I am {winner}", f"You said: I am {winner}"]
    assert history(both.one, name)[-2:] == history(both.two, name)[-2:] == committed
    if not new:
        return
    losers = [n for n in range(50) if n != winner]
    for n in losers:
        said(ask((both.two, both.one)[n % 2], name, f"I am {n}"))
    turns = both.one.get(f"{name}/turns", limit=100)["items"]
    assert [turn["outcome"] for turn in turns] == ["committed"] * 50, "and nothing else was begun"
    told = [message["content"] for message in both.models.last.json["messages"] if message["role"] == "user"]
    assert told[-50:] == [f"I am {n}" for n in (winner, *losers)]


def test_a_thousand_names_are_a_thousand_conversations() -> None:
    def talk(url: str, names: range) -> list[str]:
        """Asks in each of these conversations, one after the other, with a client that costs little."""
        answers: list[str] = []
        with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)) as connection:
            for n in names:
                sent = json.dumps(body(f"I am {n}", model="echo"))
                connection.request("POST", PATH, sent, {"Content-Type": "application/json", **named(f"name-{n}")})
                answer = connection.getresponse()
                content = json.loads(answer.read())["choices"][0]["message"]["content"]
                answers.append(f"{content}, {answer.headers['x-conversation-status']}")
        return answers

    with served(agents=Catalog.of_model("scripted/echo")) as server, using(server.url) as api:
        with ThreadPoolExecutor(2) as threads:
            answers = [*threads.map(talk, [server.url] * 10, [range(n, n + 100) for n in range(0, 1000, 100)])]
        assert [*chain(*answers)] == [f"You said: I am {n}, created" for n in range(1000)]
        assert talk(server.url, range(0, 1000, 100)) == [f"You said: I am {n}, continued" for n in range(0, 1000, 100)]
        for n in range(0, 1000, 100):
            assert history(api, f"name-{n}") == [f"I am {n}", f"You said: I am {n}"] * 2
            assert history(api, f"name-{n + 1}") == [f"I am {n + 1}", f"You said: I am {n + 1}"]


# The same request once more, as a client's library sends it.


@STREAMING
@pytest.mark.parametrize("there", [False, True], ids=["same server", "other server"])
@pytest.mark.parametrize("by", [AGAIN, {"Idempotency-Key": "k-{name}"}], ids=["retry", "key"])
def test_a_retry_of_a_running_turn_is_that_turn(both: Two, by: dict[str, Any], there: bool, stream: bool) -> None:
    name, other = both.name(), both.two if there else both.one
    mark = {header: value.format(name=name) for header, value in by.items()}
    first = mark if "Idempotency-Key" in mark else {}
    with both.models.holding():
        count = both.asked()
        asking = begun(both, name, stream=stream, **first)
        joining = [other.soon(ask, other, name, stream=stream, **mark) for _ in range(2)]
        both.joined(2, there=there)
    answers = [asking.result(), *(one.result() for one in joining)]
    assert [said(answer) for answer in answers] == ["You said: Hello"] * 3
    assert len({answer.headers["x-turn-id"] for answer in answers}) == 1
    assert both.asked() == count + 1
    assert both.one.outcomes(name) == ["committed"]


@pytest.mark.parametrize(
    ("there", "stream", "mode"), [(False, False, "latest"), (True, True, "latest"), (True, False, "full")]
)
@pytest.mark.parametrize("by", [AGAIN, {"Idempotency-Key": "d-{name}"}], ids=["retry", "key"])
def test_a_retry_of_a_committed_turn_gets_the_stored_answer(
    both: Two, by: dict[str, Any], there: bool, stream: bool, mode: str
) -> None:
    name, other = both.name(), both.two if there else both.one
    mark = {header: value.format(name=name) for header, value in by.items()} | {"X-Conversation-History": mode}
    said(ask(both.one, name, "Before"))
    messages = [user("Before"), assistant("You said: Before"), user("Hello")]
    answer = ask(both.one, name, messages, stream=stream, **mark)  # nothing to join: it is a turn
    count = both.asked()
    for _ in range(2):
        again = ask(other, name, messages, stream=stream, **mark)
        assert said(again) == said(answer) == "You said: Hello"
        assert again.headers["x-turn-id"] == answer.headers["x-turn-id"]
        if not stream:
            assert again.json() == answer.json()
    assert both.asked() == count
    assert both.one.outcomes(name) == ["committed", "committed"]


@pytest.mark.parametrize("mark", [{}, {"X-Stainless-Retry-Count": "0"}, {"X-Stainless-Retry-Count": "x"}])
def test_what_is_not_said_to_be_a_retry_is_a_new_turn(both: Two, mark: dict[str, Any]) -> None:
    name = both.name()
    with both.models.holding():
        first = begun(both, name)
        assert problem(ask(both.one, name, **mark)) == (409, "conversation_busy")
    said(first.result())
    answer = ask(both.one, name, **mark)
    assert (said(answer), answer.headers["x-turn-id"] != first.result().headers["x-turn-id"]) == (
        "You said: Hello",
        True,
    )
    assert both.one.outcomes(name) == ["committed", "committed"]


def test_a_retry_with_another_body_is_another_request(both: Two) -> None:
    name = both.name()
    with both.models.holding():
        first = begun(both, name)
        assert problem(ask(both.one, name, "Something else", **AGAIN)) == (409, "conversation_busy")
    said(first.result())
    assert said(ask(both.one, name, "Something else", **AGAIN)) == "You said: Something else"
    assert said(ask(both.one, name, **AGAIN)) == "You said: Hello", "which is no longer the last turn"
    assert both.one.outcomes(name) == ["committed"] * 3


@STREAMING
@pytest.mark.parametrize("by", [AGAIN, {"Idempotency-Key": "f-{name}"}], ids=["retry", "key"])
@pytest.mark.parametrize("new", [True, False], ids=["new", "continued"])
def test_a_retry_of_a_turn_that_failed_runs_anew(both: Two, by: dict[str, Any], new: bool, stream: bool) -> None:
    name = both.name()
    mark = {header: value.format(name=name) for header, value in by.items()}
    if not new:
        said(ask(both.one, name, "Before"))
    both.models.script = FAILS
    problem(ask(both.one, name, stream=stream, **mark))
    problem(ask(both.two, name, stream=stream, **mark))
    both.models.script = ECHO
    answer = ask(both.one, name, stream=stream, **mark)
    assert (said(answer), answer.headers["x-conversation-status"]) == (
        "You said: Hello",
        "created" if new else "continued",
    )
    assert said(ask(both.two, name, stream=stream, **mark)) == "You said: Hello"
    assert both.two.outcomes(name)[-3:] == ["failed", "failed", "committed"]


def test_a_retry_that_joined_a_turn_which_fails_hears_of_it_and_may_try_again(both: Two) -> None:
    name = both.name()
    both.models.script = FAILS
    with both.models.holding():
        first = begun(both, name)
        joining = both.one.soon(ask, both.one, name, **AGAIN)
        both.joined(1)
    assert problem(first.result()) == problem(joining.result()) == (502, "model_connection")
    assert joining.result().headers["x-should-retry"] == "true"


@pytest.mark.parametrize("there", [False, True], ids=["same server", "other server"])
def test_a_client_that_gives_up_and_sends_the_same_again_gets_an_answer(both: Two, visits: Visits, there: bool) -> None:
    """What the official clients do by themselves when they have waited for too long."""
    name, other = both.name(), both.two if there else both.one
    with both.models.holding():
        count = both.asked()
        client = Leaver(both.one, body("Hello", stream=False), named(name))
        both.models.wait_for(count + 1)
        joining = other.soon(ask, other, name, **AGAIN)
        both.joined(1, there=there)
        client.leave()
        visits.until(f"POST {PATH} 499")
    assert said(joining.result()) == "You said: Hello"
    assert both.one.outcomes(name) == (["cancelled", "committed"] if there else ["committed"])
    assert history(both.one, name) == ["Hello", "You said: Hello"]


def test_a_client_that_gives_up_and_comes_again_while_its_turn_is_being_stopped_gets_an_answer(both: Two) -> None:
    name = both.name()
    for n in range(10):
        text = f"This is {n}"
        with both.models.holding():
            count = both.asked()
            client = Leaver(both.one, body(text, stream=False), named(name))
            both.models.wait_for(count + 1)
            client.leave()
            coming = both.one.soon(ask, both.one, name, text, **AGAIN)
            both.models.wait_for(count + 2)
        assert said(coming.result()) == f"You said: {text}"
    told = history(both.one, name)
    assert told == [line for n in range(10) for line in (f"This is {n}", f"You said: This is {n}")]


def test_when_all_who_wait_for_a_turn_have_gone_it_is_stopped(both: Two, visits: Visits) -> None:
    name, sent = both.name(), body("Hello", stream=False)
    with both.models.holding():
        count = both.asked()
        first = Leaver(both.one, sent, named(name))
        both.models.wait_for(count + 1)
        second = Leaver(both.one, sent, named(name, AGAIN))
        both.joined(1)
        first.leave()
        visits.until(f"POST {PATH} 499")
        second.leave()
        visits.until(f"POST {PATH} 499")
        left_nothing(both.servers[0])
    assert said(ask(both.one, name)) == "You said: Hello"
    assert both.one.outcomes(name) == ["cancelled", "committed"]


def test_a_key_with_another_body_is_refused_and_changes_nothing(both: Two) -> None:
    name = both.name()
    mark: dict[str, Any] = {"Idempotency-Key": "one-thing"}
    with both.models.holding():
        first = begun(both, name, **mark)
        assert problem(ask(both.one, name, "Something else", **mark)) == (400, "key_reused")
    said(first.result())
    refused = ask(both.two, name, "Something else", **mark)
    assert problem(refused) == (400, "key_reused")
    assert refused.headers["x-should-retry"] == "false"
    assert history(both.one, name) == ["Hello", "You said: Hello"]


def test_a_key_is_for_one_conversation(both: Two) -> None:
    one, other = both.name(), both.name()
    mark: dict[str, Any] = {"Idempotency-Key": "two-names"}
    said(ask(both.one, one, **mark))
    assert problem(ask(both.one, other, **mark)) == (400, "key_reused")
    assert history(both.one, other) == []

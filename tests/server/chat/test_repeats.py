"""The same message twice: what a client's library repeats is the same turn, what its user repeats is another."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.chat.chatting import (
    agents_at,
    held,
    history,
    post,
    problem,
    said,
    streamed,
    tries,
    until,
    user,
    writing,
)
from tests.server.chat.lists_of_messages import answer, assistant, function, result
from tests.server.support.serving import Served, served
from tests.server.support.turning import Api, left_nothing, using

from forkpoint.engine.placement import Placement
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat.turn import ChatTurn
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script, ScriptedCall

FIRST, SECOND = ({"X-Stainless-Retry-Count": count} for count in ("1", "2"))
FAILS = Script([Reply(fault=Fault("status", status=500))], repeat=True)
MODES = pytest.mark.parametrize("mode", ["latest", "full"])


def reply(heard: Heard) -> Reply:
    """Calls the client's tool if it is told to. No two of its answers are the same."""
    if heard.body["messages"][-1]["role"] == "user" and heard.text == "call":
        return Reply(calls=(ScriptedCall("weather", '{"at":"sea"}', f"call-{heard.number}"),))
    return Reply(f"Answer {heard.number}")


class Place:
    """A server that runs one turn at a time, and the model behind it."""

    def __init__(self, api: Api, models: ModelServer) -> None:
        self.api = api
        self.models = models
        self.script = models.script

    def ask(self, name: str, text: Any = "continue", **headers: str) -> httpx2.Response:
        return post(self.api.http, text, conversation=name, headers=headers)

    def fail(self, name: str, text: Any = "continue", **headers: str) -> None:
        """The same, but the model fails."""
        self.models.script = FAILS
        try:
            failed = self.ask(name, text, **headers)
        finally:
            self.models.script = self.script
        assert (failed.status_code, failed.headers["x-should-retry"]) == (502, "true")

    def refuse(self, name: str, text: Any = "continue", **headers: str) -> None:
        """The same, while the server has its hands full."""
        with self.models.holding():
            count = len(self.models.requests)
            other = self.api.soon(self.ask, f"{name}-other", "Hello")
            self.models.wait_for(count + 1)
            refused = self.ask(name, text, **headers)
        assert (*problem(refused), refused.headers["x-should-retry"]) == (429, "too_many", "true")
        said(other.result())


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with (
        ModelServer(Script(reply)) as models,
        served("memory:", agents_at(models), settings=ServerSettings(max_turns=1)) as server,
        using(server.url) as api,
    ):
        yield Place(api, models)
        left_nothing(server)


# A user says the same again, and the client's library retries that.


def test_the_retry_of_a_repeated_message_that_failed_is_that_message(place: Place) -> None:
    """Not the one before it, which is equal to the byte, and was answered."""
    first = place.ask("failed")
    place.fail("failed")
    second = place.ask("failed", **FIRST)
    assert said(second) != said(first)
    assert second.headers["x-turn-id"] != first.headers["x-turn-id"]
    assert history(place.api, "failed") == ["continue", said(first), "continue", said(second)]
    assert tries(place.api, "failed") == ["committed", "failed", "committed"]


def test_once_it_is_committed_a_further_retry_gets_its_answer(place: Place) -> None:
    said(place.ask("again"))
    place.fail("again")
    place.fail("again", **FIRST)
    second = place.ask("again", **SECOND)
    for _ in range(2):
        third = place.ask("again", **SECOND)
        assert (said(third), third.headers["x-turn-id"]) == (said(second), second.headers["x-turn-id"])
    assert tries(place.api, "again") == ["committed", "failed", "failed", "committed"]


@pytest.mark.parametrize("trouble", ["fail", "refuse"])
@pytest.mark.parametrize("before", [0, 1])
def test_the_retry_of_a_regenerated_answer_is_another_answer(place: Place, trouble: str, before: int) -> None:
    """To regenerate, a client whose list is the truth sends the same once more, and the first answer is there."""
    name, full = f"regenerated-{trouble}-{before}", {"X-Conversation-History": "full"}
    messages = [user("continue")]
    if before:
        messages = [user("Hello"), assistant(said(place.ask(name, "Hello", **full))), *messages]
    first = place.ask(name, messages, **full)
    (place.fail if trouble == "fail" else place.refuse)(name, messages, **full)
    second = place.ask(name, messages, **full, **FIRST)
    assert said(second) != said(first)
    assert history(place.api, name)[-2:] == ["continue", said(second)]
    assert said(place.ask(name, messages, **full, **SECOND)) == said(second)


def test_that_another_message_failed_in_between_changes_nothing_for_a_retry(place: Place) -> None:
    first = place.ask("other")
    place.models.script = FAILS
    assert problem(place.ask("other", "Something else"))[0] == 502
    place.models.script = place.script
    assert said(place.ask("other", **FIRST)) == said(first)
    assert tries(place.api, "other") == ["committed", "failed"]


def test_the_retry_of_a_repeated_message_that_was_refused_before_it_began_is_that_message(place: Place) -> None:
    first = place.ask("refused")
    place.refuse("refused")
    second = place.ask("refused", **FIRST)
    assert history(place.api, "refused") == ["continue", said(first), "continue", said(second)]
    assert tries(place.api, "refused") == ["committed", "committed"]
    assert said(place.ask("refused", **SECOND)) == said(second), "which is committed by now"


def test_it_is_that_message_also_if_its_retry_was_refused_too(place: Place) -> None:
    first = place.ask("refused-twice")
    place.refuse("refused-twice")
    place.refuse("refused-twice", **FIRST)
    second = place.ask("refused-twice", **SECOND)
    assert history(place.api, "refused-twice") == ["continue", said(first), "continue", said(second)]


def test_a_committed_message_whose_retry_was_refused_is_not_run_again_by_the_next_retry(place: Place) -> None:
    """Its answer was lost on the way, and then the server had its hands full for a while."""
    first = place.ask("lost")
    place.refuse("lost", **FIRST)
    assert said(place.ask("lost", **SECOND)) == said(first)
    assert tries(place.api, "lost") == ["committed"]


def test_that_a_message_was_refused_once_is_over_when_it_is_sent_anew(place: Place) -> None:
    place.refuse("anew")
    anew = place.ask("anew")
    assert said(place.ask("anew", **FIRST)) == said(anew)
    assert tries(place.api, "anew") == ["committed"]


# Keys.


@MODES
def test_a_key_with_results_of_the_clients_tools_gives_the_stored_answer_again(place: Place, mode: str) -> None:
    """The calls are no longer open then, but nothing is asked of them."""
    name, tools = f"results-{mode}", [function("weather", at="string")]
    headers = {"X-Conversation-History": mode}
    called = answer(post(place.api.http, "call", conversation=name, tools=tools, headers=headers))
    (call,) = called["tool_calls"]
    asked = [user("call"), assistant(None, (call["id"], "weather", '{"at":"sea"}')), result(call["id"], "sunny")]
    count = len(place.models.requests)
    keyed = headers | {"Idempotency-Key": f"key-of-{name}"}
    first, *others = (post(place.api.http, asked, conversation=name, tools=tools, headers=keyed) for _ in range(3))
    assert [other.json() for other in others] == [first.json()] * 2
    assert len(place.models.requests) == count + 1
    stranger = post(place.api.http, asked, conversation=name, tools=tools, headers=headers | {"Idempotency-Key": "new"})
    if mode == "latest":
        assert problem(stranger) == (400, "call_not_open"), "a key that nobody has used opens nothing"
    else:
        assert said(stranger) != said(first), "in a list that is the truth, it is another answer to the same results"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Served, Api, ModelServer]]:
    file = tmp_path_factory.mktemp("repeats") / "store.db"
    with (
        ModelServer(Script(reply)) as models,
        served(f"sqlite:///{file}", agents_at(models)) as server,
        using(server.url) as api,
    ):
        yield file, server, api, models
        left_nothing(server)


@MODES
def test_of_several_at_once_with_one_key_for_a_new_name_one_is_run_and_the_others_join_it(
    stored: tuple[Path, Served, Api, ModelServer], mode: str
) -> None:
    """All of them find no such conversation, for none can be written until all have looked."""
    file, server, api, models = stored
    headers, count = {"Idempotency-Key": f"race-{mode}", "X-Conversation-History": mode}, len(models.requests)
    with ThreadPoolExecutor(6) as threads:
        with held(file):
            name = f"race-{mode}"
            asking = [threads.submit(post, api.http, conversation=name, headers=headers) for _ in range(6)]
            until(lambda: server.services.turns._count.total() == 6)
            writing(file)
        answers = [one.result() for one in asking]
    assert [said(one) for one in answers] == [f"Answer {count}"] * 6
    assert len({one.headers["x-turn-id"] for one in answers}) == 1
    assert len(models.requests) == count + 1
    assert (tries(api, name), history(api, name)) == (["committed"], ["Hello", f"Answer {count}"])


def test_a_double_click_that_is_busy_does_not_keep_a_retry_from_its_turn(
    stored: tuple[Path, Served, Api, ModelServer],
) -> None:
    """It was refused before it began; but the turn of the same words runs, and it is what the retry is of."""
    _, server, api, models = stored
    count, turns = len(models.requests), server.services.turns
    with models.holding():
        first = api.soon(post, api.http, "yes", conversation="clicked")
        models.wait_for(count + 1)
        second = post(api.http, "yes", conversation="clicked")
        assert (*problem(second), second.headers["x-should-retry"]) == (409, "conversation_busy", "false")
        third = api.soon(post, api.http, "yes", conversation="clicked", headers=FIRST)
        until(lambda: third.done() or any(one is not None and one.joined for one in list(turns._tasks.values())))
    for one in (first.result(), third.result(), post(api.http, "yes", conversation="clicked", headers=SECOND)):
        assert said(one) == f"Answer {count}"
    assert (tries(api, "clicked"), len(models.requests)) == (["committed"], count + 1)


def test_a_key_of_another_conversation_is_refused_for_a_new_name(stored: tuple[Path, Served, Api, ModelServer]) -> None:
    _, _, api, models = stored
    headers = {"Idempotency-Key": "taken"}
    said(post(api.http, conversation="taker", headers=headers))
    count = len(models.requests)
    refused = post(api.http, conversation="latecomer", headers=headers)
    assert problem(refused) == (400, "key_reused")
    assert (len(models.requests), history(api, "latecomer")) == (count, [])


# The first try, on another server, while its retry looks for it.


FORK = {"X-Fork-From": "source"}


@pytest.mark.parametrize(
    ("owner", "step", "after", "headers"),
    [
        (ChatTurn, "_repeated", False, {}),
        (ChatTurn, "_repeated", True, {}),
        (ChatTurn, "_start", False, {}),
        (ChatTurn, "_start", False, FORK),
    ],
    ids=["before it is looked for", "after that", "before it begins", "before it begins in a fork"],
)
def test_a_turn_that_commits_while_its_retry_looks_is_found_by_it(
    stored: tuple[Path, Served, Api, ModelServer],
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    step: str,
    after: bool,
    headers: dict[str, str],
) -> None:
    file, _, api, models = stored
    name = f"looked-{step.strip('_')}-{after}-{len(headers)}"
    if not history(api, "source"):
        said(post(api.http, "one", conversation="source"))
    if not headers:  # one that is there already; the fork is made by whoever is first
        said(post(api.http, "Hello", conversation=name))
    look = getattr(owner, step)
    with served(f"sqlite:///{file}", agents_at(models)) as other, using(other.url) as late:
        first: list[httpx2.Response] = []

        async def looks(self: Any, *args: Any) -> Any:
            monkeypatch.setattr(owner, step, look)
            found = await look(self, *args) if after else None
            ask = partial(post, late.http, "two", conversation=name, headers=headers)
            first.append(await asyncio.to_thread(ask))
            return found if after else await look(self, *args)

        monkeypatch.setattr(owner, step, looks)
        retried = post(api.http, "two", conversation=name, headers=headers | FIRST)
    assert said(retried) == said(first[0])
    assert retried.headers["x-turn-id"] == first[0].headers["x-turn-id"]
    assert history(api, name).count("two") == 1


def test_a_turn_that_commits_between_two_reads_of_its_retry_is_joined(
    stored: tuple[Path, Served, Api, ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _, api, models = stored
    said(post(api.http, "Hello", conversation="between"))
    look, holding = Placement.repeated, ExitStack()
    with served(f"sqlite:///{file}", agents_at(models)) as other, using(other.url) as late, holding:
        holding.enter_context(models.holding())
        count = len(models.requests)
        first = late.soon(post, late.http, "two", conversation="between")
        models.wait_for(count + 1)

        async def looks(self: Placement, record: Any, request: str) -> Any:
            assert record.open_turn is not None
            holding.close()
            await asyncio.to_thread(first.result)
            return await look(self, record, request)

        monkeypatch.setattr(Placement, "repeated", looks)
        retried = post(api.http, "two", conversation="between", headers=FIRST)
    assert retried.headers["x-turn-id"] == first.result().headers["x-turn-id"]
    assert history(api, "between").count("two") == 1


# A key finds its turn, wherever the name points by then.

FULL = {"X-Conversation-History": "full"}
HANGS = Reply("slowly", piece=1, fault=Fault("hang", after=1))


def test_a_key_finds_its_turn_after_the_name_has_moved_to_another_branch(place: Place) -> None:
    keyed = FULL | {"Idempotency-Key": "moved-1"}
    first = place.ask("moved", [user("A")], **keyed)
    other = place.ask("moved", [user("B")], **FULL)
    said(place.ask("moved", [user("B"), assistant(said(other)), user("C")], **FULL))
    again = place.ask("moved", [user("A")], **keyed)
    assert (said(again), again.headers["x-turn-id"]) == (said(first), first.headers["x-turn-id"])
    assert history(place.api, "moved")[0] == "B", "the name stays where it is"


@pytest.mark.parametrize("headers", [{}, {"X-Fork-From": "origin"}], ids=["new", "a fork"])
def test_a_request_that_leaves_its_name_to_the_server_gets_the_same_name_again(
    place: Place, headers: dict[str, str]
) -> None:
    if not history(place.api, "origin"):
        said(place.ask("origin"))
    asked = headers | {"X-Conversation-Create": "true", "Idempotency-Key": f"made-up-{len(headers)}"}
    answers = [post(place.api.http, "Hello", headers=asked) for _ in range(3)]
    assert len({(said(one), one.headers["x-turn-id"], one.headers["x-conversation-id"]) for one in answers}) == 1
    name = answers[0].headers["x-conversation-id"]
    assert history(place.api, name)[-2:] == ["Hello", said(answers[0])]


def test_a_request_whose_conversation_was_deleted_begins_it_anew_with_its_key(place: Place) -> None:
    keyed = {"Idempotency-Key": "deleted-1"}
    first = place.ask("soon-deleted", "Hello", **keyed)
    assert place.api.http.delete("/api/conversations/soon-deleted").status_code == 204
    again = place.ask("soon-deleted", "Hello", **keyed)
    assert said(again) != said(first)
    assert again.headers["x-conversation-status"] == "created"


def test_a_side_with_a_key_is_found_after_the_name_has_moved(place: Place) -> None:
    aside = {"X-Conversation-Side": "true", "Idempotency-Key": "side-1"}
    said(place.ask("sided", [user("A")], **FULL))
    first = place.ask("sided", "A title, please", **aside)
    other = place.ask("sided", [user("B")], **FULL)
    said(place.ask("sided", [user("B"), assistant(said(other)), user("C")], **FULL))
    again = place.ask("sided", "A title, please", **aside)
    assert (said(again), again.headers["x-turn-id"]) == (said(first), first.headers["x-turn-id"])


def test_what_was_answered_beside_a_first_message_that_never_committed_is_found_by_its_key(
    stored: tuple[Path, Served, Api, ModelServer],
) -> None:
    _, server, api, models = stored
    before, keyed = models.script, FULL | {"Idempotency-Key": "beside-left"}
    models.script = Script(lambda heard: HANGS if heard.text == "A" else Reply("beside"))
    try:
        with streamed(api.http, [user("A")], conversation="left", headers=FULL, metadata={"m": "1"}) as stream:
            stream.until_text()
            first = post(api.http, [user("B")], conversation="left", headers=keyed)
            assert first.headers["x-conversation-status"] == "branched"
        until(lambda: server.services.turns._count.total() == 0)
        again = post(api.http, [user("B")], conversation="left", headers=keyed)
        assert (said(again), again.headers["x-turn-id"]) == (said(first), first.headers["x-turn-id"])
        more = post(api.http, [user("B"), assistant("beside"), user("C")], conversation="left", headers=FULL)
        said(more)
        events = api.http.get("/api/conversations/left/events").json()["items"]
        assert "imported" not in [one["kind"] for one in events], "the branch is found, and not copied"
    finally:
        models.script = before

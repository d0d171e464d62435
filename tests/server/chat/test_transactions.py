"""A turn of a conversation commits, or leaves it as it was: then a retry is the same request against the same state.

Each failure is compared with a conversation in which it never happened: what the model is sent must be the same, block
for block, on the retry and ever after.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from msgspec import Struct
from tests.server.chat.chatting import agents_at, assistant, history, post, problem, said, system, user
from tests.server.support.serving import Served, served
from tests.server.support.turning import Api, asks, left_nothing, obedient, using
from tests.server.support.wires import Client, client_of

from forkpoint.agent import Agent, Limits, tool
from forkpoint.llm import LLM, Retries, Timeouts
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Fault, ModelServer, Reply, Script, ScriptedCall

WIRES = pytest.mark.parametrize("mode", ["latest", "previous"])
STREAMING = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TOOL = asks(("look", {"at": "the disk"}))  # a first turn with more in it than a client sees


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"seen {at}"


class Place(Struct):
    """Where a conversation fails: a server, and the model behind it."""

    server: Served
    api: Api
    models: ModelServer
    controls: dict[tuple[bool, str], tuple[list[dict[str, Any]], list[str]]] = {}

    def answers(self, *replies: Reply) -> None:
        """What the model says from now on; without replies it obeys again."""
        self.models.script = Script(replies or obedient, repeat=True)

    def control(self, stream: bool, mode: str) -> tuple[list[dict[str, Any]], list[str]]:
        """What a conversation in which nothing fails sends to the model, and what it comes to."""
        if (kind := (stream, mode)) not in self.controls:
            self.answers()
            start = len(self.models.requests)
            client = client_of(self.api, mode, f"control-{stream}-{mode}", stream=stream)
            for text in (TOOL, "Two", "Three"):
                client.said(client.ask(text))
            self.controls[kind] = self.sent(start), history(self.api, client.name)
        return self.controls[kind]

    def sent(self, since: int) -> list[dict[str, Any]]:
        """The bodies of all model calls since then, without the name that a provider's cache knows each by."""
        bodies = [one.json for one in self.models.requests[since:]]
        return [{name: value for name, value in body.items() if name != "prompt_cache_key"} for body in bodies]


@contextmanager
def place(agents: Catalog, models: ModelServer, store: str = "memory:", **settings: Any) -> Iterator[Place]:
    with served(store, agents, settings=ServerSettings(**settings)) as server, using(server.url) as api:
        yield Place(server, api, models)


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    """One server for all: each test has conversations of its own."""
    with ModelServer(Script(obedient)) as models, closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))  # the port is taken, and nobody listens

        def agent(timeouts: Timeouts = Timeouts(), url: str = models.url, **more: Any) -> Agent:
            llm = LLM("openai/test", base_url=url, retries=Retries(attempts=1), timeouts=timeouts)
            return Agent(llm, tools=[look], instructions="You help.", **more)

        agents = {
            "helper": agent(),
            "hasty": agent(Timeouts(first=0.1)),
            "restless": agent(Timeouts(idle=0.1)),
            "bounded": agent(limits=Limits(steps=2)),
            "gone": agent(url=f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"),
        }
        with place(Catalog(agents), models) as shared:
            yield shared


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """Two servers on one file: the second gives no turn much time."""
    store = f"sqlite:///{tmp_path_factory.mktemp('slow')}/store.db"
    with ModelServer(Script(obedient)) as models:
        agents = agents_at(models, tools=[look])
        with place(agents, models, store) as here, place(agents, models, store, request_timeout=0.1) as hasty:
            yield here, hasty


@pytest.fixture
def here(shared: Place) -> Iterator[Place]:
    yield shared
    shared.answers()


def as_if_it_had_never_been(
    here: Place,
    name: str,
    fail: Callable[[Client], None],
    *,
    stream: bool,
    mode: str = "latest",
    outcome: str = "failed",
) -> None:
    """Runs a conversation in which something fails, and compares it with one in which nothing does."""
    expected, whole = here.control(stream, mode)
    assert len(expected) == 4
    here.answers()
    start = len(here.models.requests)
    client = client_of(here.api, mode, name, stream=stream)
    client.said(client.ask(TOOL))
    name = client.name
    before = here.api.get(name)
    fail(client)
    client.http, client.model = here.api.http, "helper"
    left_nothing(here.server)
    after = here.api.get(name)
    assert after | {"updated": 0} == before | {"updated": 0}
    assert history(here.api, name) == whole[:2]
    failed = here.sent(start)[2:]
    here.answers()
    start_again = len(here.models.requests)
    assert client.said(client.ask("Two")) == "You said: Two"
    assert client.said(client.ask("Three")) == "You said: Three"
    again = here.sent(start_again)
    assert again == expected[2:], "the retry and what follows are what they would have been"
    assert failed[:1] in ([], expected[2:3]), "so was the try that failed, if it came to the model"
    assert here.api.outcomes(name) == ["committed", outcome, "committed", "committed"]
    assert history(here.api, name) == whole
    assert client.statuses[1:] == ["continued", "continued"]


class Failure(Struct):
    """Something that goes wrong upstream, and what a client hears of it."""

    reply: Reply
    status: int
    code: str
    begins: bool = False  # whether a stream has begun by then
    retry: str = "true"
    model: str = "helper"  # of the request that fails; all others are the helper's
    costs: bool = False


LOOKS = ScriptedCall("look", '{"at": "it"}')
FAILURES = {
    "an upstream failure": Failure(Reply(fault=Fault("status", status=500)), 502, "model_overloaded"),
    "an upstream rate limit": Failure(Reply(fault=Fault("rate_limit", retry_after=7)), 429, "model_rate_limit"),
    "a spent quota": Failure(Reply(fault=Fault("quota")), 429, "model_quota", retry="false"),
    "a model that never speaks": Failure(Reply(fault=Fault("hang")), 504, "model_timeout", model="hasty"),
    "a model that falls silent": Failure(
        Reply("Half an answer", piece=2, fault=Fault("hang", after=2)), 504, "model_timeout", True, model="restless"
    ),
    "a connection that breaks at once": Failure(Reply(fault=Fault("cut")), 502, "model_connection"),
    "a stream that is cut": Failure(
        Reply("Half an answer", piece=2, fault=Fault("cut", after=3)), 502, "model_connection", True
    ),
    "an error within the stream": Failure(
        Reply("Half an answer", piece=2, fault=Fault("overloaded", after=3)), 502, "model_overloaded", True
    ),
    "a malformed stream": Failure(
        Reply("Half an answer", piece=2, fault=Fault("malformed", after=3)), 502, "model_malformed", True
    ),
    "an answer without an end": Failure(
        Reply("Half an answer", piece=2, fault=Fault("unfinished", after=3)), 502, "model_malformed", True
    ),
    "a refused prompt": Failure(Reply(fault=Fault("refused")), 400, "content_filter", retry="false"),
    "a refused answer": Failure(
        Reply(reasoning="Half a thought", piece=2, fault=Fault("refused", after=3)),
        400,
        "content_filter",
        True,
        "false",
        costs=True,
    ),
    "an empty answer": Failure(Reply(fault=Fault("empty")), 502, "model_empty", costs=True),
    "a prompt that is too long": Failure(
        Reply(fault=Fault("context_too_long")), 400, "context_length_exceeded", retry="false"
    ),
    "a limit of steps": Failure(
        Reply("I look", calls=(LOOKS,)), 400, "limit_reached", True, "false", model="bounded", costs=True
    ),
}
FEW = ("a stream that is cut", "an upstream failure")


@STREAMING
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((kind, mode) for kind in FAILURES for mode in ("latest", "previous")),
        *((kind, mode) for kind in FEW for mode in ("full", "conversation")),
    ],
)
def test_after_each_failure_a_retry_is_the_same_request_against_the_last_good_state(
    here: Place, kind: str, stream: bool, mode: str
) -> None:
    failure = FAILURES[kind]
    name = f"{kind}-{stream}-{mode}".replace(" ", "-")

    def fail(client: Client) -> None:
        here.answers(failure.reply)
        client.model = failure.model
        answer = client.ask("Two")
        status, code = client.problem(answer)
        is_told = failure.begins or (failure.code == "content_filter" and client.tells_refusals)
        begun = status == 200 and stream and is_told  # or it failed before anything of it was passed on
        assert begun or status == failure.status, answer.text
        assert code == (client.told(failure.code) if begun else failure.code), answer.text
        assert answer.headers["x-conversation-id"] == client.name
        if not begun:
            assert answer.headers["x-should-retry"] == failure.retry
            assert answer.headers.get("retry-after") == ("7" if code == "model_rate_limit" else None)
        turn = here.api.turn(client.name, answer.headers["x-turn-id"])
        assert (turn["outcome"], bool(turn["usage"]["input"])) == ("failed", failure.costs)

    as_if_it_had_never_been(here, name, fail, stream=stream, mode=mode)


@STREAMING
@WIRES
def test_a_turn_that_took_too_long_for_the_server_never_was(slow: tuple[Place, Place], stream: bool, mode: str) -> None:
    here, hasty = slow

    def fail(client: Client) -> None:
        here.answers(Reply(fault=Fault("hang")))
        client.http = hasty.api.http
        answer = client.ask("Two")
        assert client.problem(answer) == (504, "limit_reached")
        assert answer.headers["x-should-retry"] == "true"

    as_if_it_had_never_been(here, f"late-{stream}", fail, stream=stream, mode=mode)


@STREAMING
@WIRES
def test_a_model_that_is_not_there_never_was_asked(here: Place, stream: bool, mode: str) -> None:
    def fail(client: Client) -> None:
        client.model = "gone"
        answer = client.ask("Two")
        assert client.problem(answer) == (502, "model_connection")
        assert answer.headers["x-should-retry"] == "true"

    as_if_it_had_never_been(here, f"gone-{stream}", fail, stream=stream, mode=mode)


@STREAMING
@WIRES
def test_a_turn_that_is_cancelled_through_the_native_api_never_was(here: Place, stream: bool, mode: str) -> None:
    def fail(client: Client) -> None:
        here.answers(Reply("Half an answer", piece=2, fault=Fault("hang", after=2)))
        count = len(here.models.requests)
        asking = here.api.soon(client.ask, "Two")
        here.models.wait_for(count + 1)
        running = here.api.get(client.name)
        cancelled = here.api.post(f"{running['id']}/turns/{running['open_turn']}/cancel")
        assert cancelled.status_code == 200, cancelled.text
        status, code = client.problem(asking.result())
        assert (status, code) in ((409, "turn_cancelled"), (200 if stream else 409, client.told("turn_cancelled")))

    as_if_it_had_never_been(here, f"cancelled-{stream}", fail, stream=stream, mode=mode, outcome="cancelled")


@WIRES
def test_a_turn_whose_client_has_gone_never_was(here: Place, mode: str) -> None:
    def fail(client: Client) -> None:
        here.answers(Reply("Half an answer", piece=2, fault=Fault("hang", after=2)))
        with client.begin("Two") as stream:
            assert stream.until_text(2) == ["Ha", "lf"]
        left_nothing(here.server)

    as_if_it_had_never_been(here, "left", fail, stream=True, mode=mode, outcome="cancelled")


@STREAMING
@pytest.mark.parametrize("mode", ["latest", "previous", "conversation"])
def test_ten_failures_in_a_row_leave_no_more_than_one(here: Place, stream: bool, mode: str) -> None:
    """The seeds' own case: the message that failed is in the next prompt once."""
    client = client_of(here.api, mode, f"ten-{stream}", stream=stream)
    client.said(client.ask("One"))
    here.answers(Reply("Half an answer", piece=2, fault=Fault("cut", after=2)))
    for _ in range(10):
        client.problem(client.ask("Two"))
    here.answers()
    client.said(client.ask("Two"))
    sent = [message["content"] for message in here.models.last.json["messages"] if message["role"] == "user"]
    assert sent == ["One", "Two"]
    assert here.api.outcomes(client.name) == ["committed", *["failed"] * 10, "committed"]


@WIRES
def test_instead_of_a_retry_another_message_may_come(here: Place, mode: str) -> None:
    client = client_of(here.api, mode, "instead")
    client.said(client.ask("One"))
    here.answers(Reply(fault=Fault("overloaded")))
    assert client.ask("Two").status_code == 503
    here.answers()
    client.said(client.ask("Something else"))
    assert history(here.api, client.name) == ["One", "You said: One", "Something else", "You said: Something else"]
    assert "Two" not in here.models.last.body.decode()


# The first turn.


@STREAMING
@pytest.mark.parametrize(
    ("kind", "mode"),
    [*((kind, "latest") for kind in (*FEW, "an empty answer", "a limit of steps")), *((kind, "named") for kind in FEW)],
)
def test_a_failed_first_turn_leaves_a_draft_that_nobody_sees_and_everything_that_it_cost(
    here: Place, kind: str, stream: bool, mode: str
) -> None:
    failure = FAILURES[kind]
    name = f"first-{kind}-{stream}-{mode}".replace(" ", "-")
    client = client_of(here.api, mode, name, stream=stream)
    client.model = failure.model
    here.answers(failure.reply)
    spent = _spent(here)
    answer = client.ask("One")
    client.problem(answer)
    listed = here.api.http.get("/api/conversations", params={"limit": 500}).json()["items"]
    assert name not in {one["name"] for one in listed}
    for path in ("", "/turns", "/events"):
        found = here.api.http.get(f"/api/conversations/{name}{path}")
        assert (found.status_code, found.json()["error"]["code"]) == (404, "not_found"), path
    assert (_spent(here) > spent) is failure.costs

    here.answers()
    client.model = "helper"
    count = len(here.models.requests)
    client.said(client.ask("One"))
    assert client.statuses == ["created"], "for its client it begins now"
    control = client_of(here.api, mode, f"{name}-control", stream=stream)
    control.said(control.ask("One"))
    again, expected = here.sent(count)
    assert again == expected
    assert here.api.outcomes(name) == ["failed", "committed"]
    tried, done = here.api.get(f"{name}/turns")["items"]
    assert tried["id"] == answer.headers["x-turn-id"]
    assert (bool(tried["usage"]["input"]), bool(done["usage"]["input"])) == (failure.costs, True)
    assert history(here.api, name) == ["One", "You said: One"]
    client.said(client.ask("Two"))
    assert client.statuses == ["created", "continued"]


def test_a_first_request_that_brings_a_history_and_fails_brings_it_again(here: Place) -> None:
    earlier = [system("Be brief."), user("Before"), assistant("Indeed.")]
    names = ("brings", "brings-control")
    here.answers(Reply(fault=Fault("overloaded")))
    assert post(here.api.http, [*earlier, user("Now")], conversation="brings").status_code == 503
    here.answers()
    count = len(here.models.requests)
    for name in names:
        answer = post(here.api.http, [*earlier, user("Now")], conversation=name)
        assert (said(answer), answer.headers["x-conversation-status"]) == ("You said: Now", "created")
    again, expected = here.sent(count)
    assert again == expected
    assert [message["content"] for message in again["messages"]][-3:] == ["Before", "Indeed.", "Now"]
    assert history(here.api, "brings") == ["Before", "Indeed.", "Now", "You said: Now"]


# A message that is none.


LISTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "the assistant speaks last": ([user("One"), assistant("Yes."), assistant("And?")], "no_new_user_message"),
    "the whole list is old": ([user("One"), assistant("You said: One")], "no_new_user_message"),
    "a blank message": ([user("One"), assistant("Yes."), user(" \n\t ")], "no_new_user_message"),
    "a message of blank parts": ([user([{"type": "text", "text": "  "}])], "no_new_user_message"),
    "only the system speaks": ([system("Be brief."), {"role": "developer", "content": "Now."}], "no_new_user_message"),
    "the system speaks after the assistant": ([user("One"), assistant("Yes."), system("Go on")], "no_new_user_message"),
    "a result that nobody asked for": (
        [user("One"), assistant("Yes."), {"role": "tool", "tool_call_id": "c1", "content": "It is so."}],
        "call_not_open",
    ),
    "a role that nobody knows": ([user("One"), {"role": "critic", "content": "Well."}], "invalid"),
}


@pytest.mark.parametrize(("mode", "stream"), [("latest", True), ("full", False)])
@pytest.mark.parametrize("there", [True, False], ids=["continued", "new"])
@pytest.mark.parametrize("kind", LISTS)
def test_without_a_new_message_nothing_is_asked_nothing_older_is_used_and_nothing_changes(
    here: Place, kind: str, there: bool, mode: str, stream: bool
) -> None:
    messages, code = LISTS[kind]
    name = f"none-{kind}-{there}-{mode}-{stream}".replace(" ", "-")
    if there:
        said(post(here.api.http, "One", conversation=name))
    before, count = history(here.api, name), len(here.models.requests)
    headers = {"X-Conversation-History": mode}
    answer = post(here.api.http, messages, conversation=name, headers=headers, stream=stream)
    assert problem(answer) == (400, code), answer.text
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert len(here.models.requests) == count
    assert history(here.api, name) == before
    if there:
        assert here.api.outcomes(name) == ["committed"], "not even a turn was begun"
    else:
        assert here.api.http.get(f"/api/conversations/{name}").status_code == 404


def test_system_messages_after_the_new_one_do_not_hide_it(here: Place) -> None:
    answer = post(here.api.http, [user("One"), system("Be brief.")], conversation="hidden")
    assert said(answer) == "You said: One"


def _spent(here: Place) -> int:
    """All tokens that were ever asked for at this server."""
    backend = here.server.services.tenants.backend("default")
    total, _ = asyncio.run_coroutine_threadsafe(backend.usage(), here.server.loop).result(20)
    return total.input + total.output

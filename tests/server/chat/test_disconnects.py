"""A client that goes, at each point of an answer: its turn is cancelled, unless its commit has begun by then."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.server.chat.chatting import (
    PATH,
    Leaver,
    agents_at,
    assistant,
    body,
    held,
    history,
    named,
    post,
    problem,
    said,
    streamed,
    until,
    user,
    writing,
)
from tests.server.support import doing
from tests.server.support.doing import start, steps
from tests.server.support.serving import Served, served
from tests.server.support.turning import (
    PATIENCE,
    Api,
    Gate,
    SlowEnd,
    Visits,
    agents_of,
    asked_for,
    holds,
    left_nothing,
    using,
)

from forkpoint.errors import ForkpointError, TurnOpen
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat.turn import ChatTurn
from forkpoint.testing import Fault, ModelServer, Reply, Script

PIECES = ["You ", "said", ": He", "llo"]
ECHO = Script(lambda heard: Reply(f"You said: {heard.text}", piece=4))
ASKED = f"POST {PATH}"


def stops_after(pieces: int) -> Script:
    """A model that says so many pieces, and no more."""
    return Script([Reply("You said: Hello", piece=4, fault=Fault("hang", after=pieces))])


class Place:
    """A server and its model, with names that nobody has used."""

    def __init__(self, server: Served, api: Api, models: ModelServer) -> None:
        self.server = server
        self.api = api
        self.models = models
        self._names = iter(range(1_000_000))

    def name(self) -> str:
        """Of a conversation with a turn in it."""
        name = f"c-{next(self._names)}"
        said(post(self.api.http, "Before", conversation=name))
        return name


@contextmanager
def place(store: str = "memory:", **settings: Any) -> Iterator[Place]:
    with (
        ModelServer(ECHO) as models,
        served(store, agents_at(models), settings=ServerSettings(**settings)) as server,
        using(server.url) as api,
    ):
        yield Place(server, api, models)


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    with place() as shared:
        yield shared


@pytest.fixture(scope="module")
def finishing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(on_disconnect="finish") as finishing:
        yield finishing


@pytest.fixture
def here(shared: Place) -> Iterator[Place]:
    yield shared
    shared.models.script = ECHO


@pytest.fixture
def visits() -> Iterator[Visits]:
    with Visits() as visits:
        yield visits
        assert not visits.errors


def usable(here: Place, name: str) -> None:
    """The conversation is as it was, and free as soon as the turn has ended."""
    left_nothing(here.server)
    assert history(here.api, name) == ["Before", "You said: Before"]
    assert here.api.outcomes(name) == ["committed", "cancelled"]
    here.models.wait_idle()  # the model's own connection was closed too
    here.models.script = ECHO
    assert said(post(here.api.http, "After", conversation=name)) == "You said: After"
    assert [message["content"] for message in here.models.last.json["messages"]][-1:] == ["After"]
    assert "Hello" not in here.models.last.body.decode()


@pytest.mark.parametrize("pieces", range(1, len(PIECES) + 1))
def test_a_client_that_goes_after_any_piece_of_a_stream_takes_its_turn_with_it(here: Place, pieces: int) -> None:
    name = here.name()
    here.models.script = stops_after(pieces)
    with streamed(here.api.http, "Hello", conversation=name) as stream:
        assert stream.until_text(pieces) == PIECES[:pieces]
    usable(here, name)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("pieces", [0, 2])
def test_a_client_that_goes_before_it_has_heard_anything_takes_its_turn_with_it(
    here: Place, visits: Visits, stream: bool, pieces: int
) -> None:
    name = here.name()
    here.models.script = stops_after(0 if stream else pieces)
    count = len(here.models.requests)
    client = Leaver(here.api, body("Hello", stream=stream), named(name))
    here.models.wait_for(count + 1)
    client.leave()
    visits.until(f"{ASKED} 499")
    usable(here, name)


def test_a_client_that_goes_after_the_first_seconds_in_which_no_model_spoke_takes_its_turn_with_it(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.server.wires.chat.reply.FIRST", 0.01)
    name = here.name()
    here.models.script = stops_after(0)
    with streamed(here.api.http, "Hello", conversation=name) as stream:
        assert next(iter(stream))["choices"][0]["delta"]["role"] == "assistant"
    usable(here, name)


def test_a_client_that_goes_while_a_tool_runs_takes_its_turn_with_it() -> None:
    gate = Gate()
    with served(agents=agents_of(gate.tool)) as server, using(server.url) as api:
        said(post(api.http, "Before", conversation="c"))
        client = Leaver(api, body(holds("x")), named("c"))
        gate.reached()
        client.leave()
        left_nothing(server)
        gate.open()
        assert history(api, "c") == ["Before", "You said: Before"]
        assert api.outcomes("c") == ["committed", "cancelled"]
        assert api.get("c/turns")["items"][1]["calls"][0]["status"] == "unknown"
        assert said(post(api.http, "After", conversation="c")) == "You said: After"


@pytest.mark.parametrize("model", ["helper", "helper:side"])
def test_the_same_key_again_while_its_turn_is_being_stopped_runs_anew(model: str) -> None:
    slow, asked, key = SlowEnd(), {**body(holds("x")), "model": model}, {"Idempotency-Key": "k"}
    with served(agents=agents_of(slow.tool)) as server, using(server.url) as api:
        said(post(api.http, "Before", conversation="c"))
        client = Leaver(api, asked, named("c") | key)
        slow.reached()
        client.leave()
        slow.stopping()
        again = api.soon(api.http.post, PATH, json=asked, headers=named("c") | key)
        asked_for(server, 2)
        slow.end()
        assert said(again.result()) == "Done: held x"
        assert slow.runs == 2


def test_a_first_turn_whose_client_goes_leaves_a_draft(here: Place) -> None:
    here.models.script = stops_after(1)
    with streamed(here.api.http, "Hello", conversation="never-begun") as stream:
        stream.until_text()
    left_nothing(here.server)
    assert here.api.http.get("/api/conversations/never-begun").status_code == 404
    here.models.script = ECHO
    answer = post(here.api.http, "Hello", conversation="never-begun")
    assert (said(answer), answer.headers["x-conversation-status"]) == ("You said: Hello", "created")
    assert here.api.outcomes("never-begun") == ["cancelled", "committed"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_without_a_conversation_it_is_cancelled_too(here: Place, visits: Visits, stream: bool) -> None:
    here.models.script = stops_after(1)
    if stream:
        with streamed(here.api.http, "Hello") as answer:
            answer.until_text()
        visits.until(f"{ASKED} 200")
    else:
        count = len(here.models.requests)
        client = Leaver(here.api, body("Hello"), {})
        here.models.wait_for(count + 1)
        client.leave()
        visits.until(f"{ASKED} 499")
    left_nothing(here.server)
    here.models.wait_idle()


# When it is finished all the same.


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_where_the_server_finishes_turns_one_is_committed_though_its_client_has_gone(
    finishing: Place, visits: Visits, stream: bool
) -> None:
    here, name = finishing, finishing.name()
    with here.models.holding():
        count = len(here.models.requests)
        client = Leaver(here.api, body("Hello", stream=stream), named(name))
        here.models.wait_for(count + 1)
        client.leave()
        visits.until(f"{ASKED} 499")
    left_nothing(here.server)
    assert history(here.api, name)[2:] == ["Hello", "You said: Hello"]
    again = post(here.api.http, "Hello", conversation=name, stream=stream, headers={"X-Stainless-Retry-Count": "1"})
    assert said(again) == "You said: Hello"
    assert here.api.outcomes(name) == ["committed", "committed"]


def test_where_the_server_finishes_turns_a_stream_that_is_left_in_the_middle_is_committed(
    finishing: Place, visits: Visits
) -> None:
    here, name = finishing, finishing.name()
    here.models.script = Script([Reply("You said: Hello", piece=4, pace=0.02)])
    with streamed(here.api.http, "Hello", conversation=name) as stream:
        stream.until_text()
    visits.until(f"{ASKED} 200")
    left_nothing(here.server)
    assert history(here.api, name)[2:] == ["Hello", "You said: Hello"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_commit_that_has_begun_is_finished_though_the_client_has_gone(
    tmp_path: Path, visits: Visits, stream: bool
) -> None:
    file = tmp_path / "s.db"
    with (
        ModelServer(ECHO) as models,
        served(f"sqlite:///{file}", agents_at(models)) as server,
        using(server.url) as api,
    ):
        with ExitStack() as waiting:
            with models.holding():
                client = Leaver(api, body("Hello", stream=stream), named("c"))
                models.wait_for(1)
                waiting.enter_context(held(file))
            writing(file)
            client.leave()
            visits.until(f"{ASKED} {200 if stream else 499}")
            assert not server.services.turns.is_idle
        left_nothing(server)
        assert history(api, "c") == ["Hello", "You said: Hello"]
        assert api.outcomes("c") == ["committed"]


# A server that is gone.


def test_a_turn_that_died_with_its_server_is_no_hindrance(tmp_path: Path) -> None:
    names = ("old", "new", "keyed", "retried", "full")
    headers = {"keyed": {"Idempotency-Key": "mine"}, "full": {"X-Conversation-History": "full"}}
    with start(tmp_path) as server, using(server.url) as api, ExitStack() as open:
        for name in names:
            if name != "new":
                said(post(api.http, "Before", conversation=name, model="doing"))
        for name in names:
            asked: dict[str, Any] = {"conversation": name, "model": "doing", "headers": headers.get(name)}
            earlier = [user("Before"), assistant("You said: Before")] if name == "full" else []
            hang = [*earlier, user(steps("hang"))]
            open.enter_context(streamed(api.http, hang, **asked)).until_text()
        server.kill()
    headers["retried"] = {"X-Stainless-Retry-Count": "2"}
    with start(tmp_path) as server, using(server.url) as api:
        for name in names:
            # In "keyed" it is the very request that was interrupted; elsewhere the user has thought of something else.
            text = steps("hang") if name == "keyed" else "After"
            messages = [user("Before"), assistant("You said: Before"), user(text)] if name == "full" else text
            asked = {"conversation": name, "model": "doing", "headers": headers.get(name)}
            if name == "keyed":
                with streamed(api.http, messages, **asked) as stream:
                    assert stream.until_text() == ["Well"], "it runs anew"
                continue
            answer = post(api.http, messages, **asked)
            assert said(answer) == "You said: After"
            assert answer.headers["x-conversation-status"] == ("created" if name == "new" else "continued")
            before = [] if name == "new" else ["Before", "You said: Before"]
            assert history(api, name) == [*before, "After", "You said: After"]
            assert api.outcomes(name)[-2:] == ["cancelled", "committed"]


def test_a_turn_that_died_with_its_server_is_kept_if_somebody_has_gone_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then it waits for an approval, and that is not to be thrown away by a chat client."""
    gate = doing.Gate(tmp_path)
    with start(tmp_path) as server, using(server.url) as api:
        api.create(name="c", agent="doing")
        asked = steps(gate.step(), [["erase", {"file": "x"}]])
        turn = api.run("c", asked, prefer="respond-async").json()["id"]
        with gate.reached():
            server.kill()
    agents = Catalog({"doing": doing.agent})
    with served(f"sqlite:///{tmp_path}/server.db", agents) as here, using(here.url) as api:
        look = ChatTurn._is_worth_another_look

        async def looks(self: ChatTurn, error: ForkpointError) -> bool:
            monkeypatch.setattr(ChatTurn, "_is_worth_another_look", look)
            assert isinstance(error, TurnOpen)
            resumed = await asyncio.to_thread(api.post, f"c/turns/{turn}/resume")
            assert resumed.json()["outcome"] == "awaiting_approval"
            return await look(self, error)

        monkeypatch.setattr(ChatTurn, "_is_worth_another_look", looks)
        assert problem(post(api.http, "After", conversation="c", model="doing")) == (409, "turn_open")
        assert api.turn("c", turn)["outcome"] == "awaiting_approval"


def test_a_branch_and_a_side_that_died_with_their_server_are_run_anew_by_the_same_request(tmp_path: Path) -> None:
    full, earlier = {"X-Conversation-History": "full"}, [user("Before"), assistant("You said: Before")]
    hang = [*earlier, user(steps("hang"))]
    beside = {
        "branched": full | {"Idempotency-Key": "branch"},
        "side": full | {"Idempotency-Key": "side", "X-Conversation-Side": "true"},
    }
    with start(tmp_path) as server, using(server.url) as api:
        said(post(api.http, "Before", conversation="c", model="doing"))
        waiting = [Leaver(api, body(hang, model="doing"), named("c", full))]
        until(partial(is_running, tmp_path, 1))
        for number, headers in enumerate(beside.values(), start=2):
            waiting.append(Leaver(api, body(hang, model="doing", stream=True, seed=number), named("c", headers)))
            until(partial(is_running, tmp_path, number))
        server.kill()
        for client in waiting:
            client.leave()
    with start(tmp_path) as server, using(server.url) as api:
        for number, (status, headers) in enumerate(beside.items(), start=2):
            asked: dict[str, Any] = {"conversation": "c", "model": "doing", "headers": headers, "seed": number}
            with streamed(api.http, hang, **asked) as stream:
                assert stream.response.status_code == 200, stream.response.read()
                assert stream.response.headers["x-conversation-status"] == status
                assert stream.until_text() == ["Well"], "it runs anew"
        assert history(api, "c") == ["Before", "You said: Before"]


def is_running(folder: Path, turns: int) -> bool:
    """Whether the store says that this number of turns runs."""
    (file,) = folder.glob("*.db")
    with closing(sqlite3.connect(file, timeout=PATIENCE)) as db:
        (count,) = db.execute("SELECT count(*) FROM turn WHERE outcome = 'running'").fetchone()
    return bool(count == turns)

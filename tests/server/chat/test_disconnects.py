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
from tests.server.support.wires import Client, client_of

from forkpoint.errors import ForkpointError, TurnOpen
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat.turn import ChatTurn
from forkpoint.testing import Fault, ModelServer, Reply, Script

PIECES = ["You ", "said", ": He", "llo"]
ECHO = Script(lambda heard: Reply(f"You said: {heard.text}", piece=4))
ASKED = f"POST {PATH}"
WIRES = pytest.mark.parametrize("mode", ["latest", "previous"])


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

    def client(self, mode: str = "latest") -> Client:
        """A client of a conversation with a turn in it."""
        client = client_of(self.api, mode, f"c-{next(self._names)}")
        client.said(client.ask("Before"))
        return client


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
def all_finishing() -> Iterator[Place]:
    with place(on_disconnect="finish") as finishing:
        yield finishing


@pytest.fixture
def finishing(all_finishing: Place) -> Iterator[Place]:
    yield all_finishing
    all_finishing.models.script = ECHO


@pytest.fixture
def here(shared: Place) -> Iterator[Place]:
    yield shared
    shared.models.script = ECHO


@pytest.fixture
def visits() -> Iterator[Visits]:
    with Visits() as visits:
        yield visits
        assert not visits.errors


def usable(here: Place, client: Client) -> None:
    """The conversation is as it was, and free as soon as the turn has ended."""
    left_nothing(here.server)
    assert history(here.api, client.name) == ["Before", "You said: Before"]
    assert here.api.outcomes(client.name) == ["committed", "cancelled"]
    here.models.wait_idle()  # the model's own connection was closed too
    here.models.script = ECHO
    assert client.said(client.ask("After")) == "You said: After"
    assert client.statuses == ["created", "continued"]
    assert [message["content"] for message in here.models.last.json["messages"]][-1:] == ["After"]
    assert "Hello" not in here.models.last.body.decode()


@WIRES
@pytest.mark.parametrize("pieces", range(1, len(PIECES) + 1))
def test_a_client_that_goes_after_any_piece_of_a_stream_takes_its_turn_with_it(
    here: Place, pieces: int, mode: str
) -> None:
    client = here.client(mode)
    here.models.script = stops_after(pieces)
    with client.begin("Hello") as stream:
        assert stream.until_text(pieces) == PIECES[:pieces]
    usable(here, client)


@WIRES
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("pieces", [0, 2])
def test_a_client_that_goes_before_it_has_heard_anything_takes_its_turn_with_it(
    here: Place, visits: Visits, stream: bool, pieces: int, mode: str
) -> None:
    client = here.client(mode)
    here.models.script = stops_after(0 if stream else pieces)
    count = len(here.models.requests)
    leaver = client.leaver("Hello", stream=stream)
    here.models.wait_for(count + 1)
    leaver.leave()
    visits.until(f"POST {client.path} 499")
    usable(here, client)


@pytest.mark.parametrize(("mode", "wire"), [("latest", "chat"), ("previous", "responses")])
def test_a_client_that_goes_after_the_first_seconds_in_which_no_model_spoke_takes_its_turn_with_it(
    here: Place, monkeypatch: pytest.MonkeyPatch, mode: str, wire: str
) -> None:
    monkeypatch.setattr(f"forkpoint.server.wires.{wire}.reply.FIRST", 0.01)
    client = here.client(mode)
    here.models.script = stops_after(0)
    with client.begin("Hello") as stream:
        assert next(iter(stream))["object" if wire == "chat" else "type"] in {
            "chat.completion.chunk",
            "response.created",
        }
    usable(here, client)


@WIRES
def test_a_client_that_goes_while_a_tool_runs_takes_its_turn_with_it(mode: str) -> None:
    gate = Gate()
    with served(agents=agents_of(gate.tool)) as server, using(server.url) as api:
        client = client_of(api, mode, "c")
        client.said(client.ask("Before"))
        leaver = client.leaver(holds("x"), stream=False)
        gate.reached()
        leaver.leave()
        left_nothing(server)
        gate.open()
        assert history(api, client.name) == ["Before", "You said: Before"]
        assert api.outcomes(client.name) == ["committed", "cancelled"]
        assert api.get(f"{client.name}/turns")["items"][1]["calls"][0]["status"] == "unknown"
        assert client.said(client.ask("After")) == "You said: After"


@pytest.mark.parametrize("marked", [{"Idempotency-Key": "k"}, {"X-Stainless-Retry-Count": "1"}], ids=["key", "retry"])
@pytest.mark.parametrize(
    ("mode", "model"),
    [("latest", "helper"), ("latest", "helper:side"), ("previous", "helper"), ("conversation", "helper")],
)
def test_the_same_request_again_while_its_turn_is_being_stopped_runs_anew(
    mode: str, model: str, marked: dict[str, str]
) -> None:
    slow = SlowEnd()
    with served(agents=agents_of(slow.tool)) as server, using(server.url) as api:
        client = client_of(api, mode, "c")
        client.said(client.ask("Before"))
        client.model = model
        leaver = client.leaver(holds("x"), stream=False, headers=marked)
        slow.reached()
        leaver.leave()
        slow.stopping()
        again = api.soon(client.ask, holds("x"), headers=marked)
        asked_for(server, 2)
        slow.end()
        assert client.said(again.result()) == "Done: held x"
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


@pytest.mark.parametrize("mode", ["latest", "previous", "conversation"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_where_the_server_finishes_turns_one_is_committed_though_its_client_has_gone(
    finishing: Place, visits: Visits, stream: bool, mode: str
) -> None:
    here, client = finishing, finishing.client(mode)
    with here.models.holding():
        count = len(here.models.requests)
        leaver = client.leaver("Hello", stream=stream)
        here.models.wait_for(count + 1)
        leaver.leave()
        visits.until(f"POST {client.path} 499")
    left_nothing(here.server)
    assert history(here.api, client.name)[2:] == ["Hello", "You said: Hello"]
    again = client.ask("Hello", stream=stream, headers={"X-Stainless-Retry-Count": "1"})
    assert client.said(again) == "You said: Hello"
    assert client.statuses[1:] == ["continued"]
    assert here.api.outcomes(client.name) == ["committed", "committed"]


@WIRES
def test_where_the_server_finishes_turns_a_stream_that_is_left_in_the_middle_is_committed(
    finishing: Place, visits: Visits, mode: str
) -> None:
    here, client = finishing, finishing.client(mode)
    here.models.script = Script([Reply("You said: Hello", piece=4, pace=0.02)])
    with client.begin("Hello") as stream:
        stream.until_text()
    visits.until(f"POST {client.path} 200")
    left_nothing(here.server)
    assert history(here.api, client.name)[2:] == ["Hello", "You said: Hello"]


@pytest.mark.parametrize("mode", ["latest", "named"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_commit_that_has_begun_is_finished_though_the_client_has_gone(
    tmp_path: Path, visits: Visits, stream: bool, mode: str
) -> None:
    file = tmp_path / "s.db"
    with (
        ModelServer(ECHO) as models,
        served(f"sqlite:///{file}", agents_at(models)) as server,
        using(server.url) as api,
    ):
        with ExitStack() as waiting:
            with models.holding():
                client = client_of(api, mode, "c")
                leaver = client.leaver("Hello", stream=stream)
                models.wait_for(1)
                waiting.enter_context(held(file))
            writing(file)
            leaver.leave()
            visits.until(f"POST {client.path} {200 if stream else 499}")
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

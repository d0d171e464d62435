"""A server that lacks what a conversation was made with: what it says, and how a turn goes on without."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.conversation.support.homes import new_file
from tests.server.support.serving import Served
from tests.server.support.turning import Api, asks, model, obedient, using

from forkpoint.agent import Agent, Limits, tool
from forkpoint.conversation import AsyncConversation
from forkpoint.errors import BadArgument, CannotResume, Item
from forkpoint.llm import LLM
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings

UNTOLD = "it is not on the server as it was"


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def looking() -> Any:
    @tool
    def look() -> str:
        """Looks."""
        return "saw it"

    return look


class Place:
    """A store, and the servers on it: each begins when the one before has ended."""

    def __init__(self, folder: Path) -> None:
        self._store = f"sqlite:///{new_file(folder)}"
        self._left = ExitStack()
        self.llm: LLM = model(obedient, f"allow-{folder.name}")
        self.root = folder / "root"
        self.root.mkdir()

    def serve(self, *tools: Any, **options: Any) -> tuple[Served, Api]:
        """A server whose agent ``worker`` has these tools."""
        self.leave()
        agents = Catalog(
            {"worker": Agent(self.llm, tools=tools, **options)}, allow_models=["scripted/*"], roots=[self.root]
        )
        server = Served(self._store, agents, settings=ServerSettings(grace=0)).start()
        self._left.callback(server.stop)
        return server, self._left.enter_context(using(server.url))

    def leave(self) -> None:
        self._left.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.leave()


def begun(place: Place, *tools: Any, **options: Any) -> str:
    """A conversation that was made by a server with these tools, in a folder, and has one turn."""
    (place.root / "work").mkdir()
    _, api = place.serve(*tools, **options)
    id = api.create(agent="worker", workspace=str(place.root / "work"))
    assert api.run(id).status_code == 200
    return id


def test_a_refusal_lists_everything_that_is_missing_and_nothing_begins(place: Place) -> None:
    id = begun(place, add, looking())
    _, api = place.serve(add)
    (place.root / "work").rmdir()
    before = api.get(id), api.get(f"{id}/turns", events=True)
    error = api.run(id).json()["error"]
    assert error["code"] == "cannot_resume"
    assert error["details"]["items"] == [
        {"kind": "workspace", "name": str(place.root / "work"), "why": "there is no such folder"},
        {"kind": "tool", "name": "look", "why": UNTOLD},
    ]
    assert f"tool look: {UNTOLD}" in error["message"]
    for path in (f"{id}/turns", f"{id}/ask", f"{id}/request"):
        refused = api.post(path, message="Hello", allow=["tools"])
        assert refused.status_code == 409
        assert [item["kind"] for item in refused.json()["error"]["details"]["items"]] == ["workspace"]
    assert (api.get(id), api.get(f"{id}/turns", events=True)) == before
    assert "look" in str(api.get(f"{id}/events")), "it can be read all the same"


def test_a_turn_goes_on_without_and_records_that_it_does(place: Place) -> None:
    id = begun(place, add, looking())
    _, api = place.serve(add)
    (place.root / "work").rmdir()
    asked = api.post(f"{id}/ask", message="By the way?", allow=["tools", "workspace"])
    assert asked.json()["text"] == "You said: By the way?"
    assert api.get(id)["workspace"] == str(place.root / "work")
    shown = api.post(f"{id}/request", message="Hello", allow=["tools", "workspace"])
    assert '"look"' not in shown.json()["body"]
    turn = api.run(id, asks(("add", {"a": 2, "b": 3})), allow=["tool:look", "workspace"])
    assert (turn.status_code, turn.json()["text"]) == (200, "Done: 5")
    assert api.get(id)["workspace"] is None
    assert api.run(id, "Hello").json()["text"] == "You said: Hello", "from here on nothing is missing"


def test_a_request_that_was_sent_can_be_looked_at_without_the_tools(place: Place) -> None:
    id = begun(place, looking())
    _, api = place.serve()
    assert api.http.get(f"/api/conversations/{id}/request").status_code == 409
    assert api.get(f"{id}/request", allow=["tools"])["body"]


@pytest.mark.parametrize("verb", ["approve", "deny", "resume", "retry"])
def test_a_turn_that_waits_goes_on_without(place: Place, verb: str) -> None:
    id = begun(place, looking(), approval="always")
    _, api = place.serve(looking(), approval="always")
    waiting = api.run(id, asks(("look", {}))).json()
    assert waiting["outcome"] == "awaiting_approval"
    _, api = place.serve(approval="always")
    before = api.get(id)
    path = f"{id}/turns/{waiting['id']}/{verb}"
    seen: dict[str, Any] = {"calls": api.seen(id, waiting["id"])} if verb == "approve" else {}
    refused = api.post(path, **seen)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "cannot_resume")
    assert api.get(id) == before, "the turn still waits"
    gone_on = api.post(path, **seen, allow=["tools"])
    assert gone_on.status_code == 200, gone_on.text
    assert gone_on.json()["outcome"] in {"committed", "awaiting_approval"}


def test_another_model_is_refused_and_if_it_may_be_answers(place: Place) -> None:
    id = begun(place)
    _, api = place.serve()
    other = {"llm": {"model": "scripted/echo"}}
    (item,) = api.run(id, agent=other).json()["error"]["details"]["items"]
    assert (item["kind"], item["name"]) == ("model", place.llm.model)
    assert api.run(id, agent="worker").status_code == 200, "it is the same"
    turn = api.run(id, "Hello", agent=other, allow=["model"])
    assert turn.status_code == 200, turn.text
    assert api.get(id)["model"] == "scripted/echo"
    refused = api.run(id, agent={"llm": {"model": "openai/nobody-offers-this"}}, allow=["model"])
    assert refused.json()["error"]["code"] == "bad_agent"


def test_what_cannot_be_allowed_is_refused(place: Place) -> None:
    id = begun(place)
    _, api = place.serve()
    for allow in (["everything"], ["agent"], [""]):
        refused = api.run(id, allow=allow)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_argument")
    assert api.run(id, allow="tools").json()["error"]["code"] == "invalid"
    assert len(api.outcomes(id)) == 1


# The same from Python.


@pytest.mark.anyio
async def test_a_client_gets_the_same_error_and_goes_on_with_the_same_words(place: Place) -> None:
    id = begun(place, add, looking())
    server, _ = place.serve(add)
    (place.root / "work").rmdir()
    async with await AsyncConversation.open(id, store=server.url) as opened:
        with pytest.raises(CannotResume) as refused:
            await opened.run("Hello")
        items = Item("workspace", str(place.root / "work"), "there is no such folder"), Item("tool", "look", UNTOLD)
        assert refused.value.items == items
        assert await opened.status() == "idle"
    async with await AsyncConversation.open(id, allow={"tools", "workspace"}, store=server.url) as opened:
        assert (await opened.ask("By the way?")).text == "You said: By the way?"
        assert (await opened.request()).body
        assert '"look"' not in (await opened.request("Hello")).body
        turn = await opened.run(asks(("add", {"a": 2, "b": 3})))
        assert turn.text == "Done: 5"
        async with await opened.fork() as fork:
            assert (await fork.run("Hello")).text == "You said: Hello"
    async with await AsyncConversation.open(id, store=server.url) as again:
        assert (await again.run("Hello")).text == "You said: Hello"
    with pytest.raises(BadArgument):
        await AsyncConversation.open(id, allow={"everything"}, store=server.url)


@pytest.mark.anyio
async def test_a_client_goes_on_with_another_model(place: Place) -> None:
    id = begun(place)
    server, _ = place.serve()
    other = Agent("scripted/echo")
    with pytest.raises(CannotResume) as refused:
        await AsyncConversation.open(id, agent=other, store=server.url)
    assert [(item.kind, item.name) for item in refused.value.items] == [("model", place.llm.model)]
    async with await AsyncConversation.open(id, agent=other, allow="model", store=server.url) as opened:
        assert (await opened.info()).model == place.llm.model
        await opened.run("Hello")
        assert (await opened.info()).model == "scripted/echo"


def test_another_model_does_not_lift_the_limits_of_the_servers_own_agent(place: Place) -> None:
    _, api = place.serve(add, limits=Limits(steps=1))
    id = api.create(agent="worker")
    turn = api.run(id, asks(("add", {"a": 1, "b": 2}))).json()["turn"]["id"]
    more = {"limits": {"steps": 50}}
    other = {"agent": {"llm": {"model": "scripted/echo"}}, "allow": ["model"]}
    for body in (more, more | other):
        refused = api.post(f"{id}/turns/{turn}/resume", **body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_argument"), refused.text
    assert "the limits of agent 'worker' are the server's" in refused.json()["error"]["message"]

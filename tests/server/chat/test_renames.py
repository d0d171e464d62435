"""A conversation that was renamed or has kept a branch, as a chat client finds it: by its new name, at its new head."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.server.chat.chatting import agents_at, history, post, said
from tests.server.support.serving import served
from tests.server.support.turning import Api, using

from forkpoint.testing import ModelServer, Reply, Script

ECHO = Script(lambda heard: Reply(f"You said: {heard.text}"))
STATUS = "x-conversation-status"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, Api]]:
    """Two servers on one file."""
    file = tmp_path_factory.mktemp("renames") / "store.db"
    with (
        ModelServer(ECHO) as models,
        served(f"sqlite:///{file}", agents_at(models)) as here,
        served(f"sqlite:///{file}", agents_at(models)) as there,
        using(here.url) as one,
        using(there.url) as other,
    ):
        yield one, other


def ask(api: Api, name: str, text: str) -> httpx2.Response:
    return post(api.http, text, conversation=name)


def lived(*texts: str) -> list[str]:
    return [line for text in texts for line in (text, f"You said: {text}")]


@pytest.mark.parametrize("server", ["the same server", "another server"])
def test_the_old_name_is_free_and_the_new_name_goes_on(two: tuple[Api, Api], server: str) -> None:
    """The server that the client speaks with has the conversation in memory, under its old name."""
    one, other = two
    old, new = f"old-{server[0]}", f"new-{server[0]}"
    for number in range(2):
        said(ask(one, old, f"message {number}"))
    id = one.get(old)["id"]
    renaming = one if server == "the same server" else other
    assert renaming.http.patch(f"/api/conversations/{old}", json={"name": new}).json()["name"] == new
    fresh = ask(one, old, "hello")
    assert (said(fresh), fresh.headers[STATUS]) == ("You said: hello", "created")
    assert history(one, old) == lived("hello")
    on = ask(one, new, "on")
    assert (said(on), on.headers[STATUS]) == ("You said: on", "continued")
    assert (one.get(new)["id"], one.get(old)["id"] == id) == (id, False)
    assert history(one, new) == lived("message 0", "message 1", "on")


@pytest.mark.parametrize("server", ["the same server", "another server"])
def test_a_client_goes_on_from_the_branch_that_was_kept(two: tuple[Api, Api], server: str) -> None:
    one, other = two
    name = f"kept-{server[0]}"
    for text in ("one", "two"):
        said(ask(one, name, text))
    first = one.get(f"{name}/turns")["items"][0]["id"]
    branch = one.post(f"{name}/fork", at=first).json()["id"]
    one.run(branch, "other")
    keeping = one if server == "the same server" else other
    assert keeping.post(f"{name}/keep", branch=branch).status_code == 200
    assert said(ask(one, name, "on")) == "You said: on"
    assert history(one, name) == lived("one", "other", "on")
    assert history(one, branch) == lived("one", "other")


def test_in_a_store_of_memory_a_renamed_conversation_is_not_forgotten(tmp_path: Path) -> None:
    with ModelServer(ECHO) as models, served("memory:", agents_at(models)) as server, using(server.url) as api:
        said(ask(api, "old", "one"))
        assert api.http.patch("/api/conversations/old", json={"name": "new"}).status_code == 200
        said(ask(api, "old", "another"))
        said(ask(api, "new", "two"))
        assert history(api, "new") == lived("one", "two")
        assert history(api, "old") == lived("another")

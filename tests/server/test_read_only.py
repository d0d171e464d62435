"""A server on a store that nothing may be written to: it serves what there is to read, and refuses the rest."""

from pathlib import Path

import pytest
from tests.server.support.serving import served

from forkpoint import Conversation
from forkpoint.errors import StoreUnusable


def everything(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_reads_are_served_and_whatever_would_change_something_is_refused(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path}/store.db"
    with Conversation("scripted/echo", conversation_id="it", store=where) as made:
        made.run("hi")
    before = everything(tmp_path)
    with served(f"{where}?mode=ro") as server, server.client() as client:
        assert client.get("/ready").status_code == 200
        assert [one["name"] for one in client.get("/api/conversations").json()["items"]] == ["it"]
        assert client.get("/api/conversations/it/events").json()["items"]
        assert client.post("/api/verify", json={}).json()["ok"]
        chat = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
        for answer in (
            client.post("/api/conversations", json={}),
            client.post("/api/conversations/it/turns", json={"message": "more"}),
            client.post("/api/conversations/it/fork"),
            client.patch("/api/conversations/it", json={"title": "other"}),
            client.delete("/api/conversations/it"),
            client.post("/v1/chat/completions", json=chat),
        ):
            refused = answer.json()["error"]
            assert (answer.status_code, refused["code"]) == (403, "opened_to_read"), answer.text
            assert str(tmp_path) not in answer.text
    assert everything(tmp_path) == before


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="there is no /proc here")
def test_a_server_does_not_start_where_it_could_not_write_unless_that_is_asked_for() -> None:
    with pytest.raises(StoreUnusable) as refused, served("sqlite:////proc/forkpoint-test.db"):
        pass
    assert StoreUnusable.read_only.made(refused.value)

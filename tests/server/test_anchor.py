"""The anchor of a tenant, over HTTP and through the library."""

from pathlib import Path

import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import served
from tests.server.support.turning import two_tenants

from forkpoint import AsyncConversations, Conversations
from forkpoint.conversation import Anchor
from forkpoint.errors import BadArgument


def test_a_key_gets_the_anchor_of_its_tenant_and_of_no_other(tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path / 'store.db'}", keyring=two_tenants()) as server, checked(server) as client:
        one, two = ({"authorization": f"Bearer key-of-{name}"} for name in ("one", "two"))
        assert client.get("/api/anchor").status_code == 401
        id = client.post("/api/conversations", headers=one).json()["id"]
        assert client.post(f"/api/conversations/{id}/turns", json={"message": "Hi."}, headers=one).status_code == 200
        mine, theirs = (client.get("/api/anchor", headers=key) for key in (one, two))
        assert len(mine.content) < 500
        assert (mine.json()["tenant"], theirs.json()["tenant"]) == ("one", "two")
        assert (mine.json()["number"], theirs.json()["number"], theirs.json()["count"]) == (1, 0, 0)
        for key, ok in ((one, True), (two, False)):
            found = client.post("/api/verify", json={"anchors": [mine.json()]}, headers=key).json()
            assert (found["ok"], found["seals"]) == (ok, int(ok))
        whole = mine.json() | {"tenant": None}
        assert client.post("/api/verify", json={"anchors": [whole]}, headers=one).status_code == 422
        assert client.post("/api/verify", json={"anchors": [{}]}, headers=one).status_code == 422
        on_one = client.post(f"/api/conversations/{id}/verify", json={"anchors": [mine.json()]}, headers=one)
        assert on_one.status_code == 422, "anchors cover the whole tenant; they are not ignored here"


def test_the_library_gets_the_same_anchor_from_a_server_and_from_its_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with served(store) as server, Conversations(server.url) as remote:
        with remote.create("scripted/echo") as conversation:
            conversation.run("Hi.")
        anchor = remote.anchor()
        assert isinstance(anchor, Anchor)
        assert remote.verify(anchors=[anchor]).seals == 1
        with pytest.raises(BadArgument):
            remote.anchor(all_tenants=True)
    with Conversations(store) as local:
        assert local.anchor() == anchor
        assert local.verify(anchors=[anchor, local.anchor(all_tenants=True)]).ok


@pytest.mark.anyio
async def test_the_async_library_has_it_too(tmp_path: Path) -> None:
    async with AsyncConversations(f"sqlite:///{tmp_path / 'store.db'}") as conversations:
        await (await conversations.create("scripted/echo")).run("Hi.")
        assert (await conversations.verify(anchors=[await conversations.anchor()])).ok

"""Standing approvals over HTTP: listed and revoked, by whoever may see the conversation."""

from collections.abc import Iterator

import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import Api, using

from forkpoint import Agent, Conversation, tool
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Reply, Script, ScriptedCall


@tool(risky=True)
def deploy(version: str) -> str:
    """Deploys."""
    return f"{version} is live"


@pytest.fixture
def server() -> Iterator[Served]:
    script = Script([Reply(calls=(ScriptedCall("deploy", '{"version": "1"}', "d1"),)), Reply("done")], repeat=True)
    agent = Agent(script.register("deploys"), tools=[deploy], approval="risky")
    with served(agents=Catalog({"deployer": agent})) as server:
        yield server


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    with using(server.url) as api:
        yield api


def test_what_was_allowed_for_good_is_listed_revoked_once_and_asked_about_again(server: Served, api: Api) -> None:
    with Conversation("deployer", conversation_id="release", store=server.url) as conversation:
        turn = conversation.run("Ship it.")
        conversation.approve(*turn.waiting, always="tool", by="ann")
        assert conversation.run("Again.").outcome == "committed"
        (item,) = api.get("release/approvals")["items"]
        assert (item["kind"], item["tool"], item["by"]) == ("tool", "deploy", "ann")
        for _ in range(2):
            revoked = api.http.delete(f"/api/conversations/release/approvals/{item['id']}", params={"by": "ben"})
            assert (revoked.status_code, revoked.json()["revoked_by"]) == (200, "ben")
        assert api.get("release/approvals") == {"items": []}
        assert api.get("release/approvals", revoked=True)["items"] == [revoked.json()]
        assert conversation.run("Once more.").outcome == "awaiting_approval"
    for path in ("release/approvals/none", "nobody/approvals/none"):
        assert api.http.delete(f"/api/conversations/{path}").json()["error"]["code"] == "not_found"

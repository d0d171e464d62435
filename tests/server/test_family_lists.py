"""Sub-agents in lists and trees: left out, asked for, or those of one parent. Over HTTP, and in Python."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.support.families import spawn
from tests.server.support.serving import Served, served
from tests.server.support.turning import Api, agents_of, two_tenants, using

from forkpoint import Conversation
from forkpoint.errors import NotFound


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(agents=agents_of(name="lists-of-families")) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: Served) -> Iterator[Api]:
    with using(server.url) as api:
        yield api


class Made:
    """A conversation with two sub-agents, one below the first, and a fork of that one."""

    def __init__(self, server: Served, api: Api, name: str) -> None:
        self.root = api.create(name=name, tags={"of": name})
        self.child = spawn(server, self.root, "scout")
        self.second = spawn(server, self.root, "second")
        self.below = spawn(server, self.child, "digger", path="/root/scout")
        self.fork = str(api.post(f"{self.child}/fork").json()["id"])


def test_sub_agents_are_listed_only_if_they_are_asked_for(server: Served, api: Api) -> None:
    made = Made(server, api, "asked")

    def listed(**query: str) -> list[str]:
        items = api.http.get("/api/conversations", params=query).json()["items"]
        ours = [info["id"] for info in items if info["family"] == made.root]
        assert [
            info.id for info in Conversation.list(store=server.url, **_asked(query)).items if info.family == made.root
        ] == ours
        return ours

    everybody = [made.fork, made.below, made.second, made.child, made.root]
    assert listed() == [made.fork, made.root], "a fork of a sub-agent is nobody's sub-agent"
    assert listed(sub_agents="true") == everybody
    assert listed(sub_agents="false") == [made.fork, made.root]
    assert listed(parent=made.root) == [made.second, made.child]
    assert listed(parent="asked", sub_agents="false") == [made.second, made.child]
    assert listed(parent=made.child) == [made.below]
    assert listed(parent=made.fork) == []
    first = api.http.get("/api/conversations", params={"parent": made.root, "limit": "1"}).json()
    rest = api.http.get("/api/conversations", params={"parent": made.root, "cursor": first["next"]}).json()
    assert [info["id"] for page in (first, rest) for info in page["items"]] == [made.second, made.child]


def _asked(query: dict[str, str]) -> dict[str, Any]:
    """The same in Python."""
    return {name: value == "true" if name == "sub_agents" else value for name, value in query.items()}


def test_the_sub_agents_of_what_is_not_there_are_not_found(server: Served, api: Api) -> None:
    assert api.http.get("/api/conversations", params={"parent": "nobody"}).status_code == 404
    with pytest.raises(NotFound):
        Conversation.list(store=server.url, parent="nobody")


def test_a_tenant_does_not_see_anothers_sub_agents() -> None:
    with (
        served(agents=agents_of(name="apart"), keyring=two_tenants()) as server,
        using(server.url, "key-of-one") as one,
        using(server.url, "key-of-two") as two,
    ):
        root = one.create()
        spawn(server, root, "mine", tenant="one")
        assert two.http.get("/api/conversations", params={"sub_agents": "true"}).json()["items"] == []
        assert two.http.get("/api/conversations", params={"parent": root}).status_code == 404


def test_a_sub_agent_says_whose_it_is_and_a_fork_of_it_does_not(server: Served, api: Api) -> None:
    made = Made(server, api, "whose")
    of = {"parent": made.child, "path": "/root/scout/digger", "nickname": "digger", "role": "explorer", "depth": 2}
    nobody = {"parent": None, "path": None, "nickname": None, "role": None, "depth": 0}
    assert api.get(made.below).items() >= of.items()
    assert api.get(made.fork).items() >= nobody.items()
    assert api.get(made.root).items() >= nobody.items()
    with Conversation.open(made.below, store=server.url) as digger:
        info = digger.info()
        assert {name: getattr(info, name) for name in of} == of


def test_a_tree_tells_sub_agents_from_forks_and_can_leave_them_out(server: Served, api: Api) -> None:
    made = Made(server, api, "drawn")
    fork = api.post(f"{made.root}/fork").json()["id"]
    kinds = {info["id"]: info["lineage"]["kind"] for info in api.get(f"{made.root}/tree")["items"]}
    assert kinds == {
        made.root: "root",
        made.child: "sub_agent",
        made.second: "sub_agent",
        made.below: "sub_agent",
        made.fork: "fork",
        fork: "fork",
    }
    without = [info["id"] for info in api.get(f"{made.root}/tree", agents="false")["items"]]
    assert without == [made.root, fork], "nor what branched off them"
    with Conversation.open(made.root, store=server.url) as root:
        (branch,) = root.tree()
        assert [(one.info.id, one.is_sub_agent) for one in branch.branches] == [
            (made.child, True),
            (made.second, True),
            (fork, False),
        ]

"""Roles of keys: each call says which role it needs, and a key without that role is refused before anything is read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from tests.server.support.contract import checked, contract
from tests.server.support.serving import Served, served

from forkpoint.agent import Agent
from forkpoint.conversation import Conversation
from forkpoint.errors import Forbidden
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.app import FAMILIES, create_app
from forkpoint.server.http import door
from forkpoint.server.http.keys import ROLES, ApiKey, Keyring, Keys, OneKey, Role, add_key, change_role, revoke_key
from forkpoint.store.address import open_store
from forkpoint.testing.clock import ManualClock

pytestmark = pytest.mark.anyio

NEEDED = {
    "read": """
        list_agents list_conversations get_conversation list_turns get_turn list_events list_messages follow_events
        follow_family get_tree get_diff list_members get_member get_stats get_usage get_state get_request explain_cache
        verify_conversation verify_all get_budget list_models get_model list_approvals list_records get_anchor
        list_holds list_all_holds get_response list_input_items get_openai_conversation list_items get_item
    """,
    "use": """
        create_conversation describe_conversation change_agent run_turn steer_turn cancel_turn discard_turn settle_turn
        approve_turn deny_turn retry_turn resume_turn ask condense fork_conversation rewind_conversation
        keep_branch bring_from_branch spawn_agent tell_agent reach_agent close_agent change_state preview_request
        create_chat_completion revoke_approval create_response cancel_response create_openai_conversation
        update_openai_conversation create_items
    """,
    "operate": """
        delete_conversation collect hold_family release_family release_hold erase_conversation erase_many list_erasures
        export_conversation export_all import_export set_budget remove_budget delete_response
        delete_openai_conversation delete_item
    """,
    None: "health ready metrics",
}
"""Which role each call needs. Whoever adds a call decides it here too."""

ROUTES = [
    (family.described[route.endpoint.__name__].role, method, route.path)
    for family in FAMILIES
    for route in family.router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods or ())
]


class Ring:
    """A key for each role, in a file that a server reads again after a second."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.json"
        self.tokens: dict[Role, str] = {role: add_key(self.file, f"{role}er", role=role).token for role in ROLES}
        self._clock = ManualClock()
        self.keyring = Keyring([Keys(self.file, clock=self._clock)])

    def change(self, name: str, role: Role) -> None:
        """Gives a key another role, and waits until a server knows it."""
        change_role(self.file, name, role)
        self._clock.pass_by(1)

    def revoke(self, name: str) -> None:
        """Revokes a key, and waits until a server knows it."""
        revoke_key(self.file, name)
        self._clock.pass_by(1)


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path)


@pytest.fixture
def server(ring: Ring) -> Iterator[Served]:
    with served(keyring=ring.keyring) as running:
        yield running


def test_every_call_of_the_server_has_the_role_that_was_decided_for_it() -> None:
    declared = {name: about.role for family in FAMILIES for name, about in family.described.items()}
    assert declared == {name: role for role, names in NEEDED.items() for name in names.split()}


async def test_every_route_of_the_app_is_a_call_with_a_role_or_open_to_everybody() -> None:
    async with await open_store("memory:") as store:
        routes = create_app(store, Catalog.of_model("scripted/echo")).routes
    known = {id(route) for family in FAMILIES for route in family.router.routes}
    others = {getattr(route, "path", "") for route in routes if id(route) not in known}
    assert others == {"/openapi.json"}
    assert {path for role, _, path in ROUTES if role is None} | others == door._OPEN


def test_the_document_says_the_role_of_each_call() -> None:
    for path, calls in contract().document["paths"].items():
        for method, call in calls.items():
            role = next(role for role, names in NEEDED.items() if call["operationId"] in names.split())
            assert call.get("x-role") == role, f"{method} {path}"
            refused = call["responses"].get("403", {}).get("content", {}).get("application/json", {})
            assert ("forbidden" in refused.get("examples", {})) == (role in {"use", "operate"})


@pytest.mark.parametrize("role", ROLES)
def test_a_key_does_what_its_role_allows_and_gets_403_for_the_rest(server: Served, ring: Ring, role: Role) -> None:
    with checked(server, ring.tokens[role]) as client:
        for needed, method, path in ROUTES:
            answer = client.request(method, re.sub(r"\{[^}]*\}", "nobody", path))
            where = f"{method} {path} with a key for {role}"
            if needed is None or ROLES.index(role) >= ROLES.index(needed):
                assert answer.status_code != 403, where
                continue
            assert answer.status_code == 403, where
            error = answer.json()["error"]
            assert error["code"] == "forbidden", where
            assert f"needs a key with the role {needed}" in error["message"]
            assert f"the key '{role}er' has the role {role}" in error["message"]


def test_a_key_without_the_right_learns_nothing_of_what_there_is(server: Served, ring: Ring) -> None:
    with server.client(ring.tokens["operate"]) as operator, server.client(ring.tokens["use"]) as user:
        operator.post("/api/conversations", json={"id": "there"})
        answers = [user.delete(f"/api/conversations/{id}").json()["error"]["message"] for id in ("there", "gone")]
        assert answers[0] == answers[1]
        assert operator.get("/api/conversations/there").status_code == 200


def test_a_call_that_is_forbidden_is_not_read(server: Served, ring: Ring) -> None:
    with server.client(ring.tokens["read"]) as reader:
        answer = reader.post("/api/conversations", content=b"{", headers={"Content-Type": "text/plain"})
        assert answer.json()["error"]["code"] == "forbidden"
        chat = reader.post("/v1/chat/completions", content=b"{").json()["error"]
        assert (chat["code"], chat["type"]) == ("forbidden", "permission_error")


def test_the_log_names_the_key_of_each_request(server: Served, ring: Ring, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="forkpoint.server"):
        with server.client(ring.tokens["read"]) as reader:
            reader.get("/api/conversations")
            reader.delete("/api/conversations/nobody")
            reader.get("/api/conversations", headers={"Authorization": "Bearer nobody"})
        server.stop()  # a line is written when its request has been answered
    told = [record for record in caplog.records if " /api/" in record.getMessage() or "no such" in record.getMessage()]
    assert [getattr(one, "fields", {}).get("key") for one in told] == ["reader", "reader", None]


def test_a_method_that_is_not_there_is_405_whatever_the_key_may_do(server: Served, ring: Ring) -> None:
    with server.client(ring.tokens["read"]) as reader:
        assert reader.put("/api/conversations/nobody").status_code == 405


def test_a_role_that_changes_holds_for_the_next_call(server: Served, ring: Ring) -> None:
    with server.client(ring.tokens["use"]) as client:
        assert client.post("/api/conversations", json={"id": "mine"}).status_code == 201
        assert client.delete("/api/conversations/mine").status_code == 403
        ring.change("useer", "operate")
        assert client.delete("/api/conversations/mine").status_code == 204
        ring.change("useer", "read")
        assert client.post("/api/conversations", json={"id": "mine"}).status_code == 403


def test_a_stream_ends_with_its_key(server: Served, ring: Ring) -> None:
    stream = "/api/conversations/c/events/stream"
    with server.client(ring.tokens["operate"]) as owner, server.client(ring.tokens["read"]) as reader:
        owner.post("/api/conversations", json={"id": "c"})
        with reader.stream("GET", stream) as following:
            lines = following.iter_lines()
            assert next(lines) == "retry: 1000"
            ring.change("reader", "use")  # another role may read too
            owner.post("/api/conversations/c/turns", json={"message": "before"})
            while "You said: before" not in next(lines):
                pass
            while next(lines) != "event: turn":
                pass
            ring.revoke("reader")
            owner.post("/api/conversations/c/turns", json={"message": "a secret"})
            assert "a secret" not in "".join(lines)
        assert reader.get(stream).status_code == 401


def test_without_keys_and_with_a_key_of_the_environment_everything_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "k" * 32)
    single: dict[str, Any] = {"keyring": Keyring([OneKey.from_environment("SERVER_KEY")])}
    for options, key in ((single, "k" * 32), ({}, None)):
        with served(**options) as server, server.client(key) as client:
            client.post("/api/conversations", json={"id": "a"})
            assert client.delete("/api/conversations/a").status_code == 204


def test_a_program_gets_forbidden_with_what_it_needs(
    server: Served, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKPOINT_API_KEY", ring.tokens["use"])
    with Conversation(agent=Agent("scripted/echo"), store=server.url) as conversation:
        conversation.run("Hello")
        with pytest.raises(Forbidden) as refused:
            conversation.delete()
    assert (refused.value.key, refused.value.role, refused.value.needed) == ("useer", "use", "operate")
    assert "forkpoint keys add NAME --role operate" in str(refused.value)


@pytest.mark.parametrize("has", ROLES)
@pytest.mark.parametrize("needed", ROLES)
def test_each_role_has_the_rights_of_those_before_it(has: Role, needed: Role) -> None:
    key = ApiKey("a" * 8, "ann", "default", role=has)
    if ROLES.index(has) >= ROLES.index(needed):
        key.check_role(needed)
    else:
        with pytest.raises(Forbidden):
            key.check_role(needed)

"""A deleted response is not known any more; what others stand on stays as it is."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI, PermissionDeniedError
from tests.server.responses.responding import Place, problem, responding
from tests.server.support.turning import Gate, left_nothing

from forkpoint.engine import Engine
from forkpoint.server.http.keys import Keyring, Keys, add_key
from forkpoint.server.wires.responses.items.ids import conversation_id
from forkpoint.testing import Heard, Reply, Script, ScriptedCall


def echo(heard: Heard) -> Reply:
    if heard.text == "Hold" and heard.body["messages"][-1]["role"] == "user":
        return Reply(calls=(ScriptedCall("hold", '{"line":"1"}', "w1"),))
    return Reply(f"You said: {heard.text}")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def place(gate: Gate) -> Iterator[Place]:
    with responding(tools=[gate.tool]) as place:
        place.models.script = Script(echo)
        yield place
        gate.open()
        left_nothing(place.server)


def delete(place: Place, id: str) -> None:
    gone = place.api.http.delete(f"/v1/responses/{id}")
    assert gone.json() == {"id": id, "object": "response", "deleted": True}
    assert place.api.http.get(f"/v1/responses/{id}").status_code == 404
    assert place.api.http.get(f"/v1/responses/{id}/input_items").status_code == 404
    assert problem(place.post("On", previous_response_id=id))[1] == "previous_response_not_found"
    assert place.api.http.delete(f"/v1/responses/{id}").status_code == 404


def beforehand(monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], object]) -> None:
    """Does something in the moment before the server writes."""
    write, left = getattr(Engine, method), [act]

    async def late(self: Engine, id: str, **options: Any) -> Any:
        if left:
            await asyncio.to_thread(left.pop())
        return await write(self, id, **options)

    monkeypatch.setattr(Engine, method, late)


def test_the_only_response_of_a_branch_takes_the_branch_along(place: Place) -> None:
    made = place.ask("One")
    delete(place, made["id"])
    assert place.api.http.get("/api/conversations").json()["items"] == []


def test_the_last_response_is_taken_back(place: Place) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    delete(place, second["id"])
    assert place.said(first["id"]) == ["One", "You said: One"]
    assert len(place.api.http.get("/api/conversations").json()["items"]) == 1


def test_one_in_the_middle_is_hidden_and_what_follows_it_stays(place: Place) -> None:
    first = place.ask("One")
    second = place.ask("Two", previous_response_id=first["id"])
    delete(place, first["id"])
    assert place.get(second["id"])["status"] == "completed"
    third = place.ask("Three", previous_response_id=second["id"])
    assert place.said(third["id"])[:2] == ["One", "You said: One"]


def test_a_response_that_another_one_goes_on_from_meanwhile_is_hidden_and_that_one_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.ask("One")
    after = list[dict[str, Any]]()
    beforehand(monkeypatch, "delete", lambda: after.append(place.ask("Two", previous_response_id=first["id"])))
    delete(place, first["id"])
    (second,) = after
    assert place.get(second["id"])["status"] == "completed"
    assert place.said(second["id"]) == ["One", "You said: One", "Two", "You said: Two"]


def test_responses_that_are_deleted_at_once_are_all_unknown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    id = place.api.http.post("/v1/conversations", json={}).json()["id"]
    first, second = (place.ask(text, conversation=id)["id"] for text in ("One", "Two"))
    beforehand(monkeypatch, "describe", lambda: delete(place, second))
    delete(place, first)
    assert place.api.http.get(f"/v1/responses/{second}").status_code == 404


def test_metadata_that_changes_while_a_response_is_deleted_is_kept_and_so_is_the_deletion(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = place.api.http.post("/v1/conversations", json={}).json()["id"]
    first, second = (place.ask(text, conversation=id)["id"] for text in ("One", "Two"))
    path = f"/v1/conversations/{id}"

    def change(team: str) -> None:
        assert place.api.http.post(path, json={"metadata": {"team": team}}).json()["metadata"] == {"team": team}

    beforehand(monkeypatch, "describe", lambda: change("builds"))
    delete(place, first)
    assert place.api.http.get(path).json()["metadata"] == {"team": "builds"}
    monkeypatch.undo()
    beforehand(monkeypatch, "describe", lambda: delete(place, second))
    change("tests")
    assert place.api.http.get(f"/v1/responses/{second}").status_code == 404


def test_a_key_without_the_role_is_told_which_one_it_needs(tmp_path: Path) -> None:
    token = add_key(tmp_path / "keys", "app", role="use").token
    with responding(keyring=Keyring([Keys(tmp_path / "keys")])) as place:
        client = OpenAI(base_url=f"{place.server.url}/v1", api_key=token, max_retries=0)
        id = client.conversations.create(items=[{"role": "user", "content": "One"}]).id
        last = next(iter(client.conversations.items.list(id))).id
        deletions = (
            lambda: client.conversations.items.delete(str(last), conversation_id=id),  # pop_item of the Agents SDK
            lambda: client.conversations.delete(id),  # its clear_session
        )
        for delete_it in deletions:
            with pytest.raises(PermissionDeniedError) as refused:
                delete_it()
            assert "needs a key with the role operate" in refused.value.message
            assert "forkpoint keys add NAME --role operate" in refused.value.message
        assert [item.id for item in client.conversations.items.list(id)] == [last]


def test_nothing_is_deleted_while_a_turn_runs_on_it(place: Place, gate: Gate) -> None:
    first = place.ask("One")
    made = place.ask("Hold", previous_response_id=first["id"], background=True)
    gate.reached()
    path = f"/v1/conversations/{conversation_id(place.conversation(first['id']))}"
    for busy in (f"/v1/responses/{first['id']}", path):
        assert problem(place.api.http.delete(busy)) == (400, "conversation_locked", "conversation")
    gate.open()
    left_nothing(place.server)
    assert place.get(made["id"])["status"] == "completed"
    assert place.api.http.delete(path).status_code == 200


def test_one_that_runs_is_cancelled_first(place: Place, gate: Gate) -> None:
    made = place.ask("Hold", background=True)
    gate.reached()
    gate.open()
    delete(place, made["id"])

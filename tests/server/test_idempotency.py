"""One idempotency key, one effect: while it runs, after it ended, after a restart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE, Api, Gate, agents_of, asks, holds, two_tenants, using

from forkpoint.agent import tool
from forkpoint.testing import Fault, Heard, Reply

ran: list[str] = []


@tool
def note(line: str) -> str:
    """Notes something down."""
    ran.append(line)
    return f"noted {line}"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def server(gate: Gate) -> Iterator[Served]:
    ran.clear()
    with served(agents=agents_of(note, gate.tool), keyring=two_tenants()) as server:
        yield server
        gate.open()


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    with using(server.url, "key-of-one") as api:
        yield api


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_same_key_again_gives_the_stored_turn_and_runs_nothing(api: Api) -> None:
    id = api.create()
    first = api.run(id, asks(("note", {"line": "x"})), key="k")
    again = api.run(id, asks(("note", {"line": "x"})), key="k")
    assert (again.status_code, again.json()) == (200, first.json())
    with api.stream(id, asks(("note", {"line": "x"})), key="k") as stream:
        *_, last = list(stream)
    assert last == ("turn", first.json())
    promptly = api.run(id, asks(("note", {"line": "x"})), key="k", prefer="respond-async")
    assert (promptly.status_code, promptly.json()) == (200, first.json())
    assert ran == ["x"]
    assert api.outcomes(id) == ["committed"]


def test_the_same_key_while_it_runs_joins_it_in_whatever_form_it_is_asked_for(
    server: Served, api: Api, gate: Gate
) -> None:
    id = api.create()
    first = api.soon(api.run, id, holds("x"), key="k")
    gate.reached()
    turn = api.get(id)["open_turn"]
    promptly = api.run(id, holds("x"), key="k", prefer="respond-async")
    assert (promptly.status_code, promptly.json()["id"]) == (202, turn)
    as_json = [api.soon(api.run, id, holds("x"), key="k") for _ in range(3)]
    with api.stream(id, holds("x"), key="k") as stream:
        ((_, snapshot),) = stream.until("snapshot")
        assert snapshot["turn"] == turn
        assert [update["type"] for update in snapshot["updates"]][-1] == "call_started"
        gate.open()
        frames = list(stream)
    assert frames[0][0] == "call_ended"
    assert frames[-1] == ("turn", first.result().json())
    assert all(one.result().json() == first.result().json() for one in as_json)
    assert gate.runs == ["x"]
    assert api.outcomes(id) == ["committed"]


def test_the_same_key_with_another_body_is_refused(api: Api, gate: Gate) -> None:
    id = api.create()
    turn = api.run(id, holds("x"), key="k", prefer="respond-async").json()["id"]
    gate.reached()
    assert code(api.run(id, "Something else", key="k")) == (422, "key_reused")  # while it runs
    gate.open()
    assert api.turn(id, turn, wait=PATIENCE)["outcome"] == "committed"
    assert code(api.run(id, "Something else", key="k")) == (422, "key_reused")  # and after
    assert code(api.run(api.create(), holds("x"), key="k")) == (
        422,
        "key_reused",
    )  # another conversation is another request
    assert api.outcomes(id) == ["committed"]


@pytest.mark.parametrize("other", ["supersede", "retry_of"])
def test_the_same_key_to_supersede_or_retry_something_else_is_another_request(api: Api, gate: Gate, other: str) -> None:
    id = api.create()
    before = api.run(id, "Hello").json()["id"]
    said: dict[str, Any] = {other: True if other == "supersede" else before}
    turn = api.run(id, holds("x"), key="plain", prefer="respond-async").json()["id"]
    gate.reached()
    assert code(api.run(id, holds("x"), key="plain", **said)) == (422, "key_reused")  # while it runs
    gate.open()
    assert api.turn(id, turn, wait=PATIENCE)["outcome"] == "committed", "nothing was superseded"
    assert code(api.run(id, holds("x"), key="plain", **said)) == (422, "key_reused")  # and after
    first = api.run(id, "Again", key="said", **said)
    assert first.status_code == 200, first.text
    assert code(api.run(id, "Again", key="said")) == (422, "key_reused")  # and the other way round
    assert api.run(id, "Again", key="said", **said).json() == first.json()
    assert api.outcomes(id) == ["committed"] * 3
    assert gate.runs == ["x"]


def test_a_turn_that_was_cancelled_frees_its_key(api: Api, gate: Gate) -> None:
    id = api.create()
    first = api.run(id, holds("x"), key="k", prefer="respond-async").json()["id"]
    gate.reached()
    assert api.post(f"{id}/turns/{first}/cancel").json()["outcome"] == "cancelled"
    gate.open()
    second = api.run(id, holds("x"), key="k")
    assert (second.status_code, second.json()["outcome"]) == (200, "committed")
    assert second.json()["id"] != first


def test_a_turn_that_failed_frees_its_key() -> None:
    def answers(heard: Heard) -> Reply:
        return Reply("Good") if heard.number else Reply(fault=Fault("overloaded"))

    with served(agents=agents_of(answers=answers, name="once-bad")) as server, using(server.url) as api:
        id = api.create()
        assert api.run(id, key="k").status_code == 502
        again = api.run(id, key="k")
        assert (again.status_code, again.json()["text"]) == (200, "Good")


def test_keys_are_a_tenants_own(server: Served, api: Api) -> None:
    with using(server.url, "key-of-two") as other:
        mine, theirs = api.create(id="same"), other.create(id="same")
        first, second = api.run("same", "One", key="k"), other.run("same", "Two", key="k")
        assert (first.json()["text"], second.json()["text"]) == ("You said: One", "You said: Two")
        assert first.json()["conversation"] == mine != theirs == second.json()["conversation"]


def test_a_key_that_is_no_text_of_a_sane_length_is_refused(api: Api) -> None:
    id = api.create()
    assert code(api.run(id, key="k" * 256)) == (400, "bad_request")
    assert api.outcomes(id) == []


def test_keys_hold_across_a_restart(tmp_path: Path) -> None:
    ran.clear()
    store, agents = f"sqlite:///{tmp_path / 's.db'}", agents_of(note, name="restarted")

    def requests(api: Api) -> dict[str, Any]:
        """The same requests each time."""
        made = api.http.post("/api/conversations", json={"title": "Once"}, headers={"Idempotency-Key": "create"})
        id = made.json()["id"]
        turn = api.run(id, asks(("note", {"line": "x"})), key="turn")
        first = api.run("by-turn", "Hello", key="first", create={"title": "Made by its turn"})
        fork = api.post(f"{id}/fork", key="fork", title="Fork")
        back = api.post(f"{id}/rewind", key="rewind", before=turn.json()["id"])
        for answer, status in ((made, 201), (turn, 200), (first, 200), (fork, 201), (back, 200)):
            assert answer.status_code == status, answer.text
        aside = back.json()["aside"]["id"]
        return {
            "made": made.json()["id"],
            "turn": turn.json(),
            "first": first.json(),
            "fork": fork.json()["id"],
            "aside": aside,
        }

    with served(store, agents) as server, using(server.url) as api:
        before = requests(api)
        assert requests(api) == before
        there = sorted(info["id"] for info in api.http.get("/api/conversations").json()["items"])
    with served(store, agents) as server, using(server.url) as api:
        assert requests(api) == before
        assert sorted(info["id"] for info in api.http.get("/api/conversations").json()["items"]) == there
        assert code(api.post(f"{before['made']}/fork", key="fork", title="Another")) == (422, "key_reused")
        assert code(api.post(f"{before['made']}/rewind", key="rewind", at="1-1")) == (422, "key_reused")
        other = api.http.post("/api/conversations", json={"title": "Other"}, headers={"Idempotency-Key": "create"})
        assert code(other) == (422, "key_reused")
        assert code(api.run(before["made"], "Other", key="turn")) == (422, "key_reused")
    assert ran == ["x"]


def test_several_who_send_the_same_request_at_once_are_one_turn(api: Api, gate: Gate) -> None:
    id = api.create()
    gate.open()
    answers = [api.soon(api.run, id, holds("x"), key="k") for _ in range(8)]
    turns = {answer.result().json()["id"] for answer in answers}
    assert len(turns) == 1
    assert gate.runs == ["x"]
    assert [answer.result().status_code for answer in answers] == [200] * 8


@pytest.mark.parametrize("chosen", [False, True])
def test_several_who_send_the_same_first_turn_at_once_make_one_conversation(api: Api, gate: Gate, chosen: bool) -> None:
    gate.open()
    answers = [api.soon(api.run, "new", holds("x"), key="k", create={"chosen": chosen}) for _ in range(8)]
    assert {answer.result().status_code for answer in answers} == {200}, [answer.result().text for answer in answers]
    assert len({answer.result().json()["id"] for answer in answers}) == 1
    assert len(api.http.get("/api/conversations").json()["items"]) == 1
    assert gate.runs == ["x"]

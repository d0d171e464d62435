"""Turns that wait for somebody's approval, over HTTP."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.support.serving import Served, served
from tests.server.support.turning import Api, agents_of, asks, left_nothing, using

from forkpoint.agent import tool

erased: list[str] = []


@tool(risky=True)
def erase(file: str) -> str:
    """Erases a file."""
    erased.append(file)
    return f"erased {file}"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(agents=agents_of(erase, approval="risky", name="asking")) as server:
        yield server


@pytest.fixture
def api(server: Served) -> Iterator[Api]:
    erased.clear()
    with using(server.url) as api:
        yield api
    left_nothing(server)


def waiting(api: Api, *files: str) -> tuple[str, str, list[dict[str, Any]]]:
    """A conversation whose turn waits, the turn, and the calls that wait in it."""
    id = api.create()
    turn = api.run(id, asks(*[("erase", {"file": file}) for file in files]))
    assert (turn.status_code, turn.json()["outcome"]) == (200, "awaiting_approval")
    return id, turn.json()["id"], [call for call in turn.json()["calls"] if call["status"] == "waiting"]


def seen(calls: list[dict[str, Any]], **otherwise: Any) -> list[dict[str, Any]]:
    return [{"id": call["id"], "digest": call["digest"]} | otherwise for call in calls]


def test_a_turn_that_waits_is_answered_as_such_and_refuses_another_message(api: Api) -> None:
    id, turn, calls = waiting(api, "a")
    assert [call["tool"] for call in calls] == ["erase"]
    assert api.get(id)["open_turn"] == turn
    assert api.get(id)["status"] == "awaiting_approval"
    assert api.turn(id, turn, wait=5)["outcome"] == "awaiting_approval"  # nobody waits for what does not run
    refused = api.run(id, "Forget it")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "turn_open")
    assert refused.json()["error"]["details"]["turn"] == turn
    assert erased == []


def test_a_stream_of_a_turn_that_waits_says_what_for_and_ends(api: Api) -> None:
    id = api.create()
    with api.stream(id, asks(("erase", {"file": "a"}))) as stream:
        frames = list(stream)
    assert "call_waits" in [kind for kind, _ in frames]
    assert (frames[-1][0], frames[-1][1]["outcome"]) == ("turn", "awaiting_approval")


def test_what_waits_is_approved_by_its_content(api: Api) -> None:
    id, turn, calls = waiting(api, "a", "b")
    done = api.post(f"{id}/turns/{turn}/approve", by="me", calls=seen(calls))
    assert (done.status_code, done.json()["outcome"]) == (200, "committed")
    assert done.json()["text"] == "Done: erased a | erased b"
    assert sorted(erased) == ["a", "b"]
    given = [event for event in done.json()["events"] if event["kind"] == "approval_given"]
    assert [event["body"]["by"] for event in given] == ["me", "me"]


def test_the_digest_of_a_call_can_be_made_from_its_document(api: Api) -> None:
    _, _, (call,) = waiting(api, "a")
    fields = [str(call["response"]), call["id"], call["tool"], call["arguments"]]
    framed = "".join(f"{len(field.encode())}:{field}," for field in fields)
    assert call["digest"] == f"sha256:{hashlib.sha256(framed.encode()).hexdigest()}"


@pytest.mark.parametrize(
    "body",
    [{}, {"calls": []}, {"calls": ["c0"]}, {"calls": [{"id": "c0"}]}, {"calls": [{"id": "c0", "digest": "1234"}]}],
)
def test_an_approval_that_does_not_say_what_was_seen_is_refused_with_where_to_look(
    api: Api, body: dict[str, Any]
) -> None:
    id, turn, _ = waiting(api, "a")
    refused = api.post(f"{id}/turns/{turn}/approve", **body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "digest_missing")
    assert "each waiting call in the turn's document" in refused.json()["error"]["message"]
    assert api.get(id)["status"] == "awaiting_approval"
    assert erased == []


def test_one_of_two_is_approved_and_the_turn_waits_for_the_other(api: Api) -> None:
    id, turn, calls = waiting(api, "a", "b")
    some = api.post(f"{id}/turns/{turn}/approve", calls=seen(calls[1:]))
    assert (some.status_code, some.json()["outcome"], some.json()["waiting"]) == (200, "awaiting_approval", ["c0"])
    rest = api.post(f"{id}/turns/{turn}/deny", reason="It is needed")
    assert rest.json()["outcome"] == "committed"
    assert erased == ["b"]
    assert "It is needed" in rest.json()["text"]


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_a_digest_of_other_content_is_refused_and_the_turn_still_waits(api: Api, verb: str) -> None:
    id, turn, calls = waiting(api, "a")
    _, _, others = waiting(api, "other")
    refused = api.post(f"{id}/turns/{turn}/{verb}", calls=seen(calls, digest=others[0]["digest"]))
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "call_changed")
    gone = api.post(f"{id}/turns/{turn}/{verb}", calls=seen(calls, id="c7"))
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "no_such_turn")
    assert api.get(id)["status"] == "awaiting_approval"
    assert erased == []


def test_a_denial_may_name_calls_without_their_digests(api: Api) -> None:
    id, turn, _ = waiting(api, "a", "b")
    some = api.post(f"{id}/turns/{turn}/deny", calls=[{"id": "c0"}])
    assert (some.status_code, some.json()["waiting"]) == (200, ["c1"])
    assert erased == []


@pytest.mark.parametrize("arguments", [{"file": "b"}, '{"file":  "b"}'])
def test_a_call_is_approved_with_other_arguments_and_the_document_shows_both(api: Api, arguments: Any) -> None:
    id, turn, calls = waiting(api, "a")
    done = api.post(f"{id}/turns/{turn}/approve", calls=seen(calls, arguments=arguments)).json()
    assert (done["outcome"], erased) == ("committed", ["b"])
    (call,) = done["calls"]
    text = arguments if isinstance(arguments, str) else '{"file":"b"}'
    assert (call["arguments"], call["approved_arguments"]) == (calls[0]["arguments"], text)
    assert call["digest"] == calls[0]["digest"]
    assert text in call["result"]


def test_other_arguments_that_do_not_fit_are_refused_and_nothing_is_recorded(api: Api) -> None:
    id, turn, calls = waiting(api, "a")
    refused = api.post(f"{id}/turns/{turn}/approve", calls=seen(calls, arguments={"folder": "b"}))
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_argument")
    assert "folder" in refused.json()["error"]["message"]
    assert "approval_given" not in [event["kind"] for event in api.turn(id, turn)["events"]]
    assert erased == []


@pytest.mark.parametrize(("verb", "more"), [("approve", {}), ("approve", {"always": "call"}), ("deny", {})])
def test_a_call_that_is_named_twice_is_refused_and_the_turn_still_waits(
    api: Api, verb: str, more: dict[str, Any]
) -> None:
    id, turn, calls = waiting(api, "a", "b")
    twice = seen(calls) + seen(calls[:1], **({"arguments": {"file": "c"}} if verb == "approve" and not more else {}))
    refused = api.post(f"{id}/turns/{turn}/{verb}", calls=twice, **more)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_argument")
    assert "it stands there twice" in refused.json()["error"]["message"]
    assert api.get(id)["status"] == "awaiting_approval"
    assert erased == []


def test_another_turn_than_the_open_one_cannot_be_approved(api: Api) -> None:
    id, turn, calls = waiting(api, "a")
    then = api.run(id, asks(("erase", {"file": "b"})), supersede=True).json()
    other, others = then["id"], seen(then["calls"])
    refused = api.post(f"{id}/turns/{turn}/approve", calls=seen(calls))
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_such_turn")
    missing = api.post(f"{id}/turns/nothing/approve", calls=seen(calls))
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert erased == []
    assert api.post(f"{id}/turns/{other}/approve", calls=others).json()["outcome"] == "committed"
    assert api.post(f"{id}/turns/{other}/approve", calls=others).status_code == 409


def test_two_who_approve_at_once_run_it_once(api: Api) -> None:
    for _ in range(5):
        erased.clear()
        id, turn, calls = waiting(api, "a")
        both = [api.soon(api.post, f"{id}/turns/{turn}/approve", calls=seen(calls)) for _ in range(2)]
        statuses = sorted(one.result().status_code for one in both)
        assert statuses == [200, 409], [one.result().text for one in both]
        assert erased == ["a"]
        assert api.outcomes(id) == ["committed"]


def test_one_approves_while_another_denies_and_one_of_them_wins_whole(api: Api) -> None:
    for _ in range(5):
        erased.clear()
        id, turn, calls = waiting(api, "a", "b")
        both = [api.soon(api.post, f"{id}/turns/{turn}/{verb}", calls=seen(calls)) for verb in ("approve", "deny")]
        assert sorted(one.result().status_code for one in both) == [200, 409]
        assert len(erased) in {0, 2}
        assert api.outcomes(id) == ["committed"]


def test_a_new_message_may_supersede_what_waits(api: Api) -> None:
    id, turn, _ = waiting(api, "a")
    instead = api.run(id, "Forget it", supersede=True)
    assert (instead.status_code, instead.json()["text"]) == (200, "You said: Forget it")
    assert api.turn(id, turn)["outcome"] == "cancelled"
    assert erased == []
    assert api.said(id) == ["Forget it", "You said: Forget it"]


def test_what_waits_can_be_discarded_but_not_cancelled_and_retried(api: Api) -> None:
    id, turn, _ = waiting(api, "a")
    cancelled = api.post(f"{id}/turns/{turn}/cancel")
    assert (cancelled.status_code, cancelled.json()["error"]["code"]) == (409, "no_such_turn")
    discarded = api.post(f"{id}/turns/{turn}/discard")
    assert (discarded.status_code, discarded.json()["outcome"]) == (200, "cancelled")
    again = api.post(f"{id}/turns/{turn}/retry", key="again")
    assert (again.json()["outcome"], again.json()["retry_of"]) == ("awaiting_approval", turn)
    assert api.post(f"{id}/turns/{turn}/retry", key="again").json()["id"] == again.json()["id"]


def test_an_approval_can_be_asynchronous_or_a_stream(api: Api) -> None:
    id, turn, calls = waiting(api, "a")
    with api.streamed("POST", f"{id}/turns/{turn}/approve", calls=seen(calls)) as stream:
        frames = list(stream)
    assert (frames[0][0], frames[0][1]["resumed"]) == ("turn_started", True)
    assert (frames[-1][0], frames[-1][1]["outcome"]) == ("turn", "committed")
    id, turn, calls = waiting(api, "b")
    begun = api.post(f"{id}/turns/{turn}/approve", prefer="respond-async", calls=seen(calls))
    assert begun.status_code in {200, 202}
    assert api.turn(id, turn, wait=5)["outcome"] == "committed"

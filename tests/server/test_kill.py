"""A server that is killed during turns, and started again: all that was acknowledged is there, and work goes on."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
from tests.server.support.doing import Gate, logged, start, steps
from tests.server.support.turning import PATIENCE, Api, using


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_what_was_acknowledged_survives_a_kill_and_what_ran_can_be_resumed_or_discarded(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with start(tmp_path) as server, using(server.url) as api:
        done, in_tool, in_model, promptly, waits, sleeps = (api.create() for _ in range(6))
        committed = api.run(done, "Remember me", key="done").json()
        fork = api.post(f"{done}/fork", key="fork", title="A branch").json()["id"]
        api.soon(_ignoring, api, in_tool, steps([["note", {"line": "finished"}]], gate.step()), "tool")
        waiting = api.run(waits, steps([["erase", {"file": "x"}]])).json()
        with api.stream(in_model, steps("hang")) as stream, gate.reached():
            stream.until("text")
            acknowledged = api.run(promptly, steps("hang"), prefer="respond-async", key="promptly")
            server.kill()  # the moment that this was said
    assert acknowledged.status_code == 202

    with start(tmp_path) as server, using(server.url) as api:
        there = {info["id"] for info in api.http.get("/api/conversations").json()["items"]}
        assert there == {done, in_tool, in_model, promptly, waits, sleeps, fork}
        assert api.turn(done, committed["id"]) == committed
        assert api.run(done, "Remember me", key="done").json() == committed
        assert api.post(f"{done}/fork", key="fork", title="A branch").json()["id"] == fork
        assert api.said(fork) == ["Remember me", "You said: Remember me"]
        assert api.get(sleeps)["status"] == "idle"
        interrupted = {id: api.get(id)["open_turn"] for id in (in_tool, in_model, promptly)}
        assert {api.get(id)["status"] for id in interrupted} == {"interrupted"}
        assert interrupted[promptly] == acknowledged.json()["id"]

        # Whoever repeats a request hears which turn is open, and nothing runs.
        message = steps([["note", {"line": "finished"}]], gate.step())
        repeated = api.run(in_tool, message, key="tool")
        assert code(repeated) == (409, "turn_open")
        assert repeated.json()["error"]["details"] == {
            "conversation": in_tool,
            "turn": interrupted[in_tool],
            "outcome": "interrupted",
        }
        assert code(api.run(in_tool, "Something else", key="tool")) == (422, "key_reused")
        assert code(api.run(in_model, "Something else")) == (409, "turn_open")
        assert api.turn(in_model, interrupted[in_model], wait=PATIENCE)["outcome"] == "interrupted"
        assert logged(tmp_path) == ["finished", "at gate"]

        # It is resumed: what had finished does not run again, and what may have been done is said to be unknown.
        resumed = api.post(f"{in_tool}/turns/{interrupted[in_tool]}/resume")
        assert (resumed.status_code, resumed.json()["outcome"]) == (200, "committed"), resumed.text
        assert [call["status"] for call in resumed.json()["calls"]] == ["done", "unknown"]
        assert logged(tmp_path) == ["finished", "at gate"]
        assert api.run(in_tool, message, key="tool").json() == resumed.json()

        discarded = api.post(f"{in_model}/turns/{interrupted[in_model]}/discard")
        assert (discarded.status_code, discarded.json()["outcome"]) == (200, "cancelled")
        assert api.run(in_model, "Again").json()["text"] == "You said: Again"
        assert api.run(promptly, "Instead", supersede=True).json()["text"] == "You said: Instead"

        approved = api.post(f"{waits}/turns/{waiting['id']}/approve")
        assert (approved.json()["outcome"], logged(tmp_path)[-1]) == ("committed", "erased x")
        verified = api.http.post("/api/verify")
        assert (verified.status_code, verified.json()["ok"]) == (200, True)
        assert server.terminate() == 0


def _ignoring(api: Api, id: str, message: str, key: str) -> None:
    """A request that nobody will answer."""
    with suppress(httpx2.TransportError):
        api.run(id, message, key=key)

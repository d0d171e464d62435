"""Several servers on one store: what a server was doing when it died goes on in another, once, by promise."""

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
from tests.server.support.doing import Gate, logged, start, steps
from tests.server.support.serving import ServerProcess
from tests.server.support.turning import PATIENCE, Api, using


def several(stack: ExitStack, folder: Path, count: int, *options: str) -> list[ServerProcess]:
    """Servers on one store, started at once."""
    with ThreadPoolExecutor(count) as threads:
        started = [threads.submit(start, folder, *options) for _ in range(count)]
    return [stack.enter_context(one.result()) for one in started]


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"it never came that {what}"
        time.sleep(0.01)


def accepted(api: Api, message: str, **options: Any) -> tuple[str, str]:
    """A turn in a new conversation that was answered with 202: both ids."""
    id = api.create()
    answer = api.run(id, message, prefer="respond-async", **options)
    assert answer.status_code == 202, answer.text
    return id, answer.json()["id"]


def metric(api: Api, done: str) -> float:
    """How many orphans a server says it has dealt with so."""
    lines = api.http.get("/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith(f'forkpoint_orphaned_turns_total{{done="{done}"}}')]
    return float(line.split()[-1])


def said_by_user(api: Api, id: str) -> list[str]:
    """The messages of users in a history."""
    found = api.get(f"{id}/events")["items"]
    return [event["body"]["parts"][0]["text"] for event in found if event["kind"] == "user_message"]


def test_what_a_server_had_promised_goes_on_in_another_when_it_is_killed(tmp_path: Path) -> None:
    """In the first call of a model, in a later one, in a tool that has no result, and in one that may run again."""
    once, again = Gate(tmp_path, "once"), Gate(tmp_path, "again")
    with ExitStack() as stack:
        first, second = several(stack, tmp_path, 2)
        one, two = stack.enter_context(using(first.url)), stack.enter_context(using(second.url))
        in_model = accepted(one, steps("hang"), key="in-model")
        between = accepted(one, steps([["note", {"line": "finished"}]], "hang"))
        in_tool = accepted(one, steps(once.step()))
        repeatable = accepted(one, steps([["look", {"gate": "again"}]]))
        attended = one.create()
        with one.stream(attended, steps("hang")) as stream, once.reached(), again.reached():
            stream.until("text")
            until("the note is journalled", lambda: "finished" in logged(tmp_path))
            until("its result is", lambda: bool(_results(two, *between)))
            waits = [two.soon(two.turn, *turn, wait=PATIENCE) for turn in (in_model, between, in_tool, repeatable)]
            (tmp_path / "awake").touch()
            first.kill()
        with again.reached() as held:  # in the other server
            held.go("at last")
        ended = [wait.result() for wait in waits]
        assert [turn["outcome"] for turn in ended] == ["committed"] * 4
        assert ended[0]["text"] == ended[1]["text"] == "Awake."
        assert [call["status"] for call in ended[1]["calls"]] == ["done"]
        assert [call["status"] for call in ended[2]["calls"]] == ["unknown"], "what may have been done is not repeated"
        assert [call["status"] for call in ended[3]["calls"]] == ["done"]
        assert sorted(logged(tmp_path)) == ["at again", "at again", "at once", "finished"]
        for id, turn in (in_model, between, in_tool, repeatable):
            assert len(said_by_user(two, id)) == 1
            assert two.outcomes(id) == ["committed"], turn
        repeated = two.run(in_model[0], steps("hang"), key="in-model")
        assert repeated.json() == ended[0], "a request with its key gets the turn that went on"

        # Nobody was promised the other turn: it is there, and goes on when somebody asks for it.
        assert two.get(attended)["status"] == "interrupted"
        resumed = two.post(f"{attended}/turns/{two.get(attended)['open_turn']}/resume")
        assert (resumed.status_code, resumed.json()["text"]) == (200, "Awake.")
        assert (metric(two, "taken_over"), metric(two, "given_up")) == (4, 0)
        assert two.http.post("/api/verify").json()["ok"]


def _results(api: Api, id: str, turn: str) -> list[Any]:
    return [call for call in api.turn(id, turn)["calls"] if call["status"] == "done"]


def test_a_server_that_was_stopped_and_wakes_up_does_nothing_more_in_a_turn_that_another_took(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with ExitStack() as stack:
        first, second = several(stack, tmp_path, 2, "--lease", "1")
        one, two = stack.enter_context(using(first.url)), stack.enter_context(using(second.url))
        id, turn = accepted(one, steps(gate.step(), [["note", {"line": "afterwards"}]]))
        with gate.reached() as held:
            os.kill(first.process.pid, signal.SIGSTOP)
            try:
                ended = two.turn(id, turn, wait=PATIENCE)
                assert (ended["outcome"], logged(tmp_path)) == ("committed", ["at gate", "afterwards"])
                assert [call["status"] for call in ended["calls"]] == ["unknown", "done"]
            finally:
                os.kill(first.process.pid, signal.SIGCONT)
            held.go()
        until("the first server has let go of the turn", lambda: _running(one) == 0)
        assert one.turn(id, turn) == ended
        assert logged(tmp_path) == ["at gate", "afterwards"]
        assert len(said_by_user(one, id)) == 1
        assert one.run(id, "Next").json()["text"] == "You said: Next"


def _running(api: Api) -> float:
    lines = api.http.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("forkpoint_turns_running ")).split()[-1])


def test_a_turn_that_kills_each_server_is_given_up_and_says_why(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = several(stack, tmp_path, 4)
        with using(servers[0].url) as api:
            id = api.create()
            with suppress(httpx2.TransportError):  # the promise may be heard, or the server is dead already
                api.run(id, steps("die"), prefer="respond-async")
        for server in servers:
            server.process.wait(PATIENCE)
        [last] = several(stack, tmp_path, 1)
        api = stack.enter_context(using(last.url))
        turn = api.get(id)["open_turn"]
        until("the turn is given up", lambda: api.turn(id, turn)["error"] is not None)
        found = api.turn(id, turn, wait=PATIENCE)
        assert (found["outcome"], found["error"]["code"]) == ("interrupted", "given_up")
        assert "so did 3 others" in found["error"]["message"]
        assert (metric(api, "given_up"), metric(api, "taken_over")) == (1, 0)
        lines = [json.loads(line) for line in last.log.read_text().splitlines() if line.startswith("{")]
        [told] = [line for line in lines if "given up" in line.get("message", line.get("event", ""))]
        assert (told["turn"], told["level"]) == (turn, "error")
        (tmp_path / "awake").touch()
        resumed = api.post(f"{id}/turns/{turn}/resume")
        assert (resumed.json()["outcome"], resumed.json()["error"]) == ("committed", None)


def test_a_server_goes_on_only_with_what_it_may_and_can(tmp_path: Path) -> None:
    """One that knows no such agent leaves a turn alone, and so does one that is told to; ``all`` takes the rest too."""
    with ExitStack() as stack:
        with start(tmp_path) as server, using(server.url) as api:
            promised = accepted(api, steps("hang"))
            attended = api.create()
            with api.stream(attended, steps("hang")) as stream:
                stream.until("text")
                server.kill()
        (tmp_path / "awake").touch()
        with ServerProcess("--model", "scripted/echo", folder=tmp_path) as server, using(server.url) as api:
            until("the server has said why", lambda: "turn left interrupted" in server.log.read_text())
            assert api.turn(*promised, wait=PATIENCE)["outcome"] == "interrupted", "and nobody waits for it here"
        with start(tmp_path, "--resume-orphans", "none") as server, using(server.url) as api:
            assert api.turn(*promised, wait=PATIENCE)["outcome"] == "interrupted"
        [server] = several(stack, tmp_path, 1, "--resume-orphans", "all")
        api = stack.enter_context(using(server.url))
        turn = api.get(attended)["open_turn"] or api.get(f"{attended}/turns")["items"][0]["id"]
        assert api.turn(attended, turn, wait=PATIENCE)["text"] == "Awake."
        assert api.turn(*promised, wait=PATIENCE)["text"] == "Awake."

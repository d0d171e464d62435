"""A server that is told to stop: it begins nothing more, lets turns finish for a while, and answers everybody.

A second signal is in `test_two_servers`, where a server has an hour to stop. Servers that go on with each other's turns
are in `test_rolling`.
"""

import asyncio
import os
import queue
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from tests.server.support.doing import Gate, logged, start, steps
from tests.server.support.serving import ServerProcess, served
from tests.server.support.turning import PATIENCE, Visits, agents_of, asks, stopping, using

from forkpoint import Conversation
from forkpoint.agent import tool
from forkpoint.server.settings import ServerSettings


def outcomes(folder: Path, *ids: str) -> list[str]:
    """Of the turns of conversations, as the store has them when the server has gone."""
    found: list[str] = []
    for id in ids:
        with Conversation.open(id, store=f"sqlite:///{folder / 'server.db'}", bind=False) as conversation:
            found += [turn.outcome for turn in conversation.turns().items]
    return found


def is_free(server: ServerProcess) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", urlsplit(server.url).port or 0))
        probe.listen()
    return True


def test_running_turns_finish_and_are_answered_while_nothing_new_begins(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, name) for name in ("a", "b", "c")]
    with start(tmp_path) as server, using(server.url) as api:
        a, b, c, idle = (api.create() for _ in range(4))
        as_json = api.soon(api.run, a, steps(gates[0].step()))
        promptly = api.run(c, steps(gates[2].step()), prefer="respond-async")
        assert promptly.status_code == 202
        with (
            api.stream(b, steps(gates[1].step())) as stream,
            api.streamed("GET", f"{b}/events/stream") as events,
            gates[0].reached() as first,
            gates[1].reached() as second,
            gates[2].reached() as third,
        ):
            server.process.send_signal(signal.SIGTERM)
            stopping(api)
            ready = api.http.get("/ready")
            assert (ready.status_code, ready.json()["error"]["code"]) == (503, "shutting_down")
            assert api.http.get("/health").status_code == 200
            for refused in (api.run(idle), api.post(f"{idle}/ask", message="Why?")):
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.headers["connection"] == "close"  # the next request goes elsewhere
            assert api.get(idle)["status"] == "idle"  # what is there can be read
            assert server.process.poll() is None
            first.go("one")
            assert as_json.result().json()["text"] == "Done: was told one"
            second.go("two")
            *_, (last, turn) = list(stream)
            assert (last, turn["text"]) == ("turn", "Done: was told two")
            third.go("three")
            *_, (last, _) = list(events)
            assert last == "closing"
        assert server.process.wait(PATIENCE) == 0, server.log.read_text()
        assert is_free(server)
    assert outcomes(tmp_path, a, b, c, idle) == ["committed"] * 3


def test_after_the_grace_time_turns_are_handed_over_and_everybody_hears_so(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with start(tmp_path, "--drain", "0.2") as server, using(server.url) as api:
        a, b, c = (api.create() for _ in range(3))
        in_tool = api.soon(api.run, a, steps([["note", {"line": "done"}]], gate.step()))
        with api.stream(b, steps("hang")) as in_model, gate.reached():
            in_model.until("text")
            with api.streamed("POST", f"{c}/ask", message=steps("hang")) as aside:
                aside.until("text")
                server.process.send_signal(signal.SIGINT)  # Ctrl-C
                *_, (last, problem) = list(in_model)
                assert (last, problem["error"]["code"]) == ("error", "turn_handed_over")
                *_, (last, problem) = list(aside)
                assert (last, problem["error"]["code"]) == ("error", "shutting_down")
            heard = in_tool.result()
            assert (heard.status_code, heard.json()["error"]["code"]) == (503, "turn_handed_over")
            assert int(heard.headers["retry-after"]) >= 1
            assert server.process.wait(PATIENCE) == 0, server.log.read_text()  # though a tool still waits there
        assert is_free(server)
    assert outcomes(tmp_path, a, b, c) == ["interrupted", "interrupted"]
    assert logged(tmp_path) == ["done", "at gate"]
    with Conversation.open(a, store=f"sqlite:///{tmp_path / 'server.db'}", bind=False) as conversation:
        [turn] = conversation.turns().items
        assert [call.status for call in turn.calls] == ["done", "unknown"]  # what was finished is on disk
    assert "Traceback" not in server.log.read_text()


def test_a_third_signal_ends_the_process_though_a_turn_does_not_let_itself_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a thread of this process, which must not end: what would end it is only noted."""
    exits: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(os, "_exit", exits.put)
    waiting: queue.Queue[asyncio.Event] = queue.Queue()

    @tool
    async def refuse() -> str:
        """Goes on, whoever cancels it."""
        waiting.put(let_go := asyncio.Event())
        with anyio.CancelScope(shield=True):
            await let_go.wait()
        return "done"

    agents = agents_of(refuse, name="stubborn")
    silent = ServerSettings(heartbeat=3600)  # a stream that does not end is noticed
    with Visits() as log, served(agents=agents, settings=silent) as server, using(server.url) as api:
        id = api.create()
        with api.streamed("GET", f"{id}/events/stream") as events, api.stream(id, asks(("refuse", {}))) as turn:
            let_go = waiting.get(timeout=PATIENCE)
            try:
                server._server.handle_exit(signal.SIGTERM, None)
                stopping(api)
                server._server.handle_exit(signal.SIGTERM, None)
                events.until("closing")  # the turn was to be handed over with this one, and goes on
                assert exits.empty()
                server._server.handle_exit(signal.SIGTERM, None)
                assert exits.get(timeout=PATIENCE) == 1
                assert log.errors == ["stopped at once: turns that still ran are interrupted, and can be resumed"]
            finally:
                server.loop.call_soon_threadsafe(let_go.set)
            *_, (last, problem) = list(turn)
            assert (last, problem["error"]["code"]) == ("error", "turn_handed_over")

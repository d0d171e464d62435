"""A server that is killed during turns, and started again: all that was acknowledged is there, and work goes on."""

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
from tests.server.responses.responding import events_of
from tests.server.support.doing import Gate, logged, start, steps
from tests.server.support.turning import PATIENCE, Api, using
from tests.server.support.wires import ResponsesClient


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_what_was_acknowledged_survives_a_kill_and_what_ran_can_be_resumed_or_discarded(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with start(tmp_path, "--resume-orphans", "none") as server, using(server.url) as api:
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

    with start(tmp_path, "--resume-orphans", "none") as server, using(server.url) as api:
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

        # Whoever asks for something else hears which turn is open, and nothing runs.
        message = steps([["note", {"line": "finished"}]], gate.step())
        refused = api.run(in_tool, "Something else")
        assert code(refused) == (409, "turn_open")
        assert refused.json()["error"]["details"] == {
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

        seen = api.seen(waits, waiting["id"])
        approved = api.post(f"{waits}/turns/{waiting['id']}/approve", calls=seen)
        assert (approved.json()["outcome"], logged(tmp_path)[-1]) == ("committed", "erased x")
        verified = api.http.post("/api/verify")
        assert (verified.status_code, verified.json()["ok"]) == (200, True)
        assert server.terminate() == 0


def test_a_request_with_its_key_gets_its_turn_after_a_kill_however_often_it_is_sent(tmp_path: Path) -> None:
    """Native and chat, as JSON and as a stream, with tools and without: all were in the middle when the server died."""
    gates = {name: Gate(tmp_path, name) for name in ("native", "streamed", "chat", "chat-stream", "retried")}
    tools = {name: steps([["note", {"line": f"for {name}"}]], gate.step()) for name, gate in gates.items()}
    hangs, erases = steps("hang"), steps([["erase", {"file": "x"}]])
    with start(tmp_path, "--resume-orphans", "none") as server, using(server.url) as api, ExitStack() as held:
        ids = {name: api.create() for name in ("native", "streamed", "plain", "waits")}
        waiting = api.run(ids["waits"], erases, key="waits").json()
        for name in ("chat", "chat-stream", "retried", "chat-plain"):
            assert _chat(api, name, "Hello").status_code == 200
        for name in ("native", "streamed"):
            api.soon(_ignoring, api, ids[name], tools[name], name)
        for name in ("chat", "chat-stream"):
            api.soon(_chat, api, name, tools[name], key=name, stream=name == "chat-stream")
        api.soon(_chat, api, "retried", tools["retried"])
        api.soon(_chat, api, "chat-plain", hangs, key="chat-plain")
        with api.stream(ids["plain"], hangs, key="plain") as stream:
            stream.until("text")
            for gate in gates.values():
                held.enter_context(gate.reached())
            while api.get("chat-plain")["open_turn"] is None:
                time.sleep(0.01)
            server.kill()
    done = logged(tmp_path)
    assert len(done) == 2 * len(gates)
    (tmp_path / "awake").touch()

    with start(tmp_path, "--resume-orphans", "none") as server, using(server.url) as api:
        turns = {name: api.get(ids.get(name, name))["open_turn"] for name in (*ids, *gates, "chat-plain")}
        assert api.run(ids["waits"], erases, key="waits").json() == waiting
        assert api.run(ids["plain"], hangs, key="plain").json()["text"] == "Awake."
        again = [api.soon(api.run, ids["native"], tools["native"], key="native") for _ in range(3)]
        answers = [one.result().json() for one in again]
        assert {(one["id"], one["outcome"]) for one in answers} == {(turns["native"], "committed")}
        assert [call["status"] for call in answers[0]["calls"]] == ["done", "unknown"]
        with api.stream(ids["streamed"], tools["streamed"], key="streamed") as stream:
            *_, (kind, last) = list(stream)
        assert (kind, last["id"], last["outcome"]) == ("turn", turns["streamed"], "committed")

        answered = [api.soon(_chat, api, "chat", tools["chat"], key="chat") for _ in range(3)]
        texts = {_text(one.result(), turns["chat"]) for one in answered}
        assert len(texts) == 1
        assert texts.pop().startswith("Done: noted for chat | ")
        streamed = _chat(api, "chat-stream", tools["chat-stream"], stream=True, key="chat-stream")
        assert (streamed.status_code, streamed.headers["x-turn-id"]) == (200, turns["chat-stream"]), streamed.text
        assert '"content":"Done: noted for chat-stream | ' in streamed.text
        assert streamed.text.endswith("data: [DONE]\n\n")
        plain = _chat(api, "chat-plain", hangs, key="chat-plain")
        assert _text(plain, turns["chat-plain"]) == "Awake."
        retried = _chat(api, "retried", tools["retried"], retry=True)
        assert _text(retried, turns["retried"]).startswith("Done: noted for retried | ")
        assert logged(tmp_path) == done, "no tool ran again"
        assert _text(_chat(api, "chat-plain", hangs, key="chat-plain"), turns["chat-plain"])
        assert api.http.post("/api/verify").json()["ok"] is True


def test_a_response_that_died_with_its_server_reads_as_failed_and_its_retry_leaves_one_message(tmp_path: Path) -> None:
    modes, hangs, died = ("previous", "forked", "conversation", "named"), steps("hang"), {}
    stood: dict[ResponsesClient, str] = {}
    marks: dict[tuple[str, str], dict[str, str]] = {}
    for mode in modes:
        marks[mode, "plain"] = {}
        marks[mode, "keyed"] = {"Idempotency-Key": mode}
        marks[mode, "retried"] = {"X-Stainless-Retry-Count": "1"}
    with start(tmp_path, "--resume-orphans", "none") as server, using(server.url) as api, ExitStack() as open:
        clients = {
            (mode, mark): ResponsesClient(api, f"{mode}-{mark}", mode=mode, stream=True, model="doing")
            for mode, mark in marks
        }
        for (mode, mark), client in clients.items():
            client.said(client.ask("Before"))
            if mode == "forked":
                api.http.patch(f"/api/conversations/{client.name}", json={"title": "Mine"})
            stream = open.enter_context(client.begin(hangs, headers=marks[mode, mark] if mark == "keyed" else {}))
            assert stream.until_text() == ["Well"]
            died[client] = stream.response.headers["x-turn-id"]
            stood[client] = stream.response.headers["x-conversation-id"]
        server.kill()
    assert len(died) == len(clients), "each of them was in the middle"
    (tmp_path / "awake").touch()

    with start(tmp_path, "--resume-orphans", "none") as server, using(server.url) as api:
        for (mode, mark), client in clients.items():
            client.connect(api)
            dead = f"resp_{died[client].replace('-', '')}"
            assert client.read(dead)["status"] == "failed", (mode, mark)
            told = events_of(api.http.get(f"/v1/responses/{dead}", params={"stream": "true"}))
            assert told[-1]["type"] == "response.failed"
            source = client.name
            answer = client.ask(hangs, headers=marks[mode, mark])
            assert client.said(answer) == "Awake.", (mode, mark)
            if mark != "plain":
                assert answer.headers["x-conversation-id"] == stood[client], (mode, mark)
            assert api.said(client.name) == ["Before", "You said: Before", hangs, "Awake."], (mode, mark)
            again = client.repeat(hangs, headers=marks[mode, mark]) if mark != "plain" else answer
            assert again.headers["x-turn-id"] == answer.headers["x-turn-id"], (mode, mark)
            if mode == "forked":
                assert api.said(source) == ["Before", "You said: Before"]
        assert api.http.post("/api/verify").json()["ok"] is True


def _chat(
    api: Api, name: str, message: str, *, key: str | None = None, retry: bool = False, stream: bool = False
) -> Any:
    """A chat completion; None if the server dies before it answers."""
    body = {"model": "doing", "messages": [{"role": "user", "content": message}], "stream": stream}
    headers = {"X-Conversation-Id": name} | ({} if key is None else {"Idempotency-Key": key})
    with suppress(httpx2.TransportError):
        headers |= {"X-Stainless-Retry-Count": "1"} if retry else {}
        return api.http.post("/v1/chat/completions", json=body, headers=headers)
    return None


def _text(answer: Any, turn: str) -> str:
    """What a chat completion says, which is this turn."""
    assert (answer.status_code, answer.headers.get("x-turn-id")) == (200, turn), answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def _ignoring(api: Api, id: str, message: str, key: str) -> None:
    """A request that nobody will answer."""
    with suppress(httpx2.TransportError):
        api.run(id, message, key=key)

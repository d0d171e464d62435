"""What a client of chat completions sees on the wire, and when: above all, the end comes after the commit."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct
from tests.server.chat.chatting import (
    PATH,
    Disk,
    Stream,
    agents_at,
    body,
    held,
    history,
    named,
    post,
    problem,
    said,
    spoken,
    streamed,
    text_of,
    writing,
)
from tests.server.support.serving import served
from tests.server.support.turning import Api, asks, left_nothing, obedient, using

from forkpoint.agent import tool
from forkpoint.events import Usage
from forkpoint.testing import Fault, ModelServer, Reply, Script, ScriptedCall

ECHO = Script(lambda heard: Reply(f"You said: {heard.text}", piece=4))
HANGS = Script([Reply("Half an answer", piece=4, fault=Fault("hang", after=2))], repeat=True)
STREAMING = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"seen {at}"


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer(ECHO) as models:
        yield models


@pytest.fixture(autouse=True)
def echoes(models: ModelServer) -> None:
    models.script = ECHO


@pytest.fixture(scope="module")
def api(models: ModelServer) -> Iterator[Api]:
    with served(agents=agents_at(models, tools=[look])) as server, using(server.url) as api:
        yield api
        left_nothing(server)


class OnDisk(Struct):
    """A server whose disk can be made to fail."""

    disk: Disk
    file: Path
    api: Api


@pytest.fixture(scope="module")
def stored(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnDisk]:
    file = tmp_path_factory.mktemp("stored") / "store.db"
    with pytest.MonkeyPatch.context() as patching:
        disk = Disk(patching)
        with served(f"sqlite:///{file}", agents_at(models)) as server, using(server.url) as api:
            yield OnDisk(disk, file, api)
            left_nothing(server)


# The shape of a stream.


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_is_a_role_then_pieces_then_a_reason_then_done(api: Api, usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    answer = post(api.http, "Hello", conversation=f"shape-{usage}", stream=True, **options)
    whole = spoken(answer)
    first, *pieces = whole.chunks
    assert first["choices"][0]["delta"]["role"] == "assistant"
    if usage:
        *pieces, counted = pieces
        assert (counted["choices"], counted["usage"]["completion_tokens"] > 0) == ([], True)
        assert all(chunk.get("usage", None) is None for chunk in (first, *pieces))
    else:
        assert not any("usage" in chunk for chunk in whole.chunks)
    *pieces, last = pieces
    assert [text_of(chunk) for chunk in pieces] == ["You ", "said", ": He", "llo"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in (first, *pieces)] == [None] * 5
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["delta"]) == ("stop", {})
    assert whole.items[-1] == "[DONE]"
    assert {chunk["id"] for chunk in whole.chunks} == {f"chatcmpl-{answer.headers['x-turn-id']}"}
    assert {(chunk["object"], chunk["model"]) for chunk in whole.chunks} == {("chat.completion.chunk", "helper")}
    assert len({chunk["created"] for chunk in whole.chunks}) == 1


@STREAMING
def test_the_usage_is_that_of_all_model_calls_of_the_turn(api: Api, models: ModelServer, stream: bool) -> None:
    looks = (ScriptedCall("look", '{"at": "it"}'),)
    models.script = Script(
        [
            Reply(calls=looks, usage=Usage(calls=1, input=100, cached=10, output=5)),
            Reply("Seen.", usage=Usage(calls=1, input=120, cached=100, output=7, reasoning=3)),
        ]
    )
    answer = post(
        api.http, "Look", conversation=f"usage-{stream}", stream=stream, stream_options={"include_usage": stream}
    )
    used = spoken(answer).chunks[-1]["usage"] if stream else answer.json()["usage"]
    assert (used["prompt_tokens"], used["completion_tokens"], used["total_tokens"]) == (220, 12, 232)
    assert used["prompt_tokens_details"]["cached_tokens"] == 110
    assert used["completion_tokens_details"]["reasoning_tokens"] == 3


def test_the_work_of_the_servers_own_tools_is_not_shown(api: Api, models: ModelServer) -> None:
    models.script = Script(obedient)
    whole = spoken(post(api.http, asks(("look", {"at": "the disk"})), conversation="own", stream=True))
    assert (whole.text, whole.calls, whole.finishes) == ("Done: seen the disk", [], ["stop"])
    assert "look" not in str(whole.items)


# Before the model speaks.


def test_until_a_model_speaks_a_failure_has_a_status_of_its_own(api: Api, models: ModelServer) -> None:
    models.script = Script([Reply(fault=Fault("status", status=500))])
    count = len(models.requests)
    with models.holding():
        asking = api.soon(post, api.http, "Hello", conversation="early", stream=True)
        models.wait_for(count + 1)
        assert not asking.done()
    answer = asking.result()
    assert problem(answer) == (502, "model_overloaded")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-should-retry"] == "true"


def test_after_the_first_seconds_an_answer_begins_though_no_model_has_spoken(
    api: Api, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.server.wires.chat.reply.FIRST", 0.01)
    monkeypatch.setattr("forkpoint.server.wires.chat.stream.SILENCE", 0.01)
    said(post(api.http, "Before", conversation="late"))
    count = len(models.requests)
    with ExitStack() as held_back:
        held_back.enter_context(models.holding())
        with streamed(api.http, "Hello", conversation="late") as stream:
            assert stream.response.status_code == 200
            assert stream.response.headers["x-turn-id"] == api.get("late")["open_turn"]
            begun = [next(iter(stream)) for _ in range(3)]
            assert begun[0]["choices"][0]["delta"]["role"] == "assistant"
            assert begun[1:] == [": keep-alive", ": keep-alive"]
            held_back.close()
            whole = stream.rest()
    assert (whole.text, whole.finishes, whole.done) == ("You said: Hello", ["stop"], True)
    assert len(models.requests) == count + 1


def test_a_failure_after_the_first_seconds_is_one_line_and_the_end(
    api: Api, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.server.wires.chat.reply.FIRST", 0.01)
    said(post(api.http, "Before", conversation="failing"))
    models.script = Script([Reply(fault=Fault("rate_limit", retry_after=3))])
    with ExitStack() as held_back:
        held_back.enter_context(models.holding())
        with streamed(api.http, "Hello", conversation="failing") as stream:
            held_back.close()
            whole = stream.rest()
    assert (whole.text, whole.finishes, whole.done) == ("", [], False)
    (error,) = whole.errors
    assert whole.items[-1] == {"error": error}
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "model_rate_limit", None)
    assert error["request_id"] == stream.response.headers["x-request-id"]
    assert "The conversation is as it was." in error["message"]
    assert history(api, "failing") == ["Before", "You said: Before"]


def test_a_failure_after_the_model_has_spoken_is_one_line_and_the_end(api: Api, models: ModelServer) -> None:
    said(post(api.http, "Before", conversation="spoken"))
    models.script = HANGS
    with streamed(api.http, "Hello", conversation="spoken") as stream:
        assert stream.until_text(2) == ["Half", " an "]
        running = api.get("spoken")
        api.post(f"{running['id']}/turns/{running['open_turn']}/cancel")
        whole = stream.rest()
    assert stream.response.status_code == 200
    assert (whole.chunks, whole.done, [error["code"] for error in whole.errors]) == ([], False, ["turn_cancelled"])
    assert history(api, "spoken") == ["Before", "You said: Before"]


def test_a_stream_that_falls_silent_says_that_it_is_alive(
    api: Api, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.server.wires.chat.stream.SILENCE", 0.01)
    models.script = HANGS
    with streamed(api.http, "Hello", conversation="silent") as stream:
        stream.until_text(2)
        assert [next(iter(stream)) for _ in range(3)] == [": keep-alive"] * 3


# The end comes after the commit.


def test_the_end_of_an_answer_is_held_back_until_the_commit_is_on_disk(stored: OnDisk, models: ModelServer) -> None:
    file, api = stored.file, stored.api
    with ExitStack() as disk:
        for name in ("streamed", "whole"):
            said(post(api.http, "Before", conversation=name))
        count = len(models.requests)
        request = api.http.build_request("POST", PATH, json=body("Hello", stream=True), headers=named("streamed"))
        with models.holding():
            opening = api.soon(api.http.send, request, stream=True)
            asking = api.soon(post, api.http, "Hello", conversation="whole")
            models.wait_for(count + 2)
            disk.enter_context(held(file))
        with closing(opening.result()) as response:
            stream = Stream(response)
            assert "".join(stream.until_text(4)) == "You said: Hello"
            writing(file)
            coming = api.soon(next, iter(stream))
            with pytest.raises(TimeoutError):
                coming.result(0.05)
            assert not asking.done()
            assert [api.outcomes(name)[-1] for name in ("streamed", "whole")] == ["running", "running"]
            disk.close()
            assert coming.result()["choices"][0]["finish_reason"] == "stop"
            assert api.outcomes("streamed") == ["committed", "committed"], "who has heard the end can rely on it"
            assert stream.rest().items == ["[DONE]"]
        assert said(asking.result()) == "You said: Hello"


@STREAMING
@pytest.mark.parametrize(
    ("fails", "code"), [("lost", "commit_failed"), ("landed", None), ("unknown", "outcome_unknown")]
)
def test_a_commit_that_fails_is_an_error_and_never_an_answer(
    stored: OnDisk, models: ModelServer, fails: Literal["lost", "landed", "unknown"], code: str | None, stream: bool
) -> None:
    disk, api, name = stored.disk, stored.api, f"{fails}-{stream}"
    said(post(api.http, "Before", conversation=name))
    count = len(models.requests)
    with models.holding():
        asking = api.soon(post, api.http, "Hello", conversation=name, stream=stream)
        models.wait_for(count + 1)
        disk.fails = fails
    answer = asking.result()
    if code is None:
        assert said(answer) == "You said: Hello", "it is on disk after all"
    else:
        status, told = problem(answer)
        assert (status in ({200, 503} if stream else {503}), told) == (True, code), answer.text
    disk.mend()
    for number in range(1, 3):  # as the official clients do
        headers = {"X-Stainless-Retry-Count": str(number)}
        again = post(api.http, "Hello", conversation=name, stream=stream, headers=headers)
        if again.status_code == 200:
            break
        assert again.headers["x-should-retry"] == "true"
    assert said(again) == "You said: Hello"
    assert history(api, name) == ["Before", "You said: Before", "Hello", "You said: Hello"]
    assert api.outcomes(name).count("committed") == 2
    assert len(models.requests) == count + (1 if code is None else 2)


def test_after_a_commit_of_which_nobody_knows_another_message_goes_on_from_what_is_true(
    stored: OnDisk, models: ModelServer
) -> None:
    disk, api = stored.disk, stored.api
    said(post(api.http, "Before", conversation="c"))
    count = len(models.requests)
    with models.holding():
        asking = api.soon(post, api.http, "Hello", conversation="c")
        models.wait_for(count + 1)
        disk.fails = "unknown"
    refused = asking.result()
    assert problem(refused) == (503, "outcome_unknown")
    assert refused.headers["x-should-retry"] == "true"
    disk.mend()
    assert said(post(api.http, "Something else", conversation="c")) == "You said: Something else"
    told = history(api, "c")
    assert told == ["Before", "You said: Before", "Something else", "You said: Something else"]

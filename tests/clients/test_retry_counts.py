"""Retries of the server and of a client do not multiply: how often a provider is asked for one request of a program.

The official `openai` package tries twice more by itself, and so does Forkpoint. Only one of them does.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.server.chat.chatting import agents_at, post
from tests.server.support.serving import Served, served

from forkpoint.agent import tool
from forkpoint.llm import Timeouts
from forkpoint.testing import Fault, ModelServer, Reply, Script, ScriptedCall

ALONE = 3
"""How often either side asks if it is alone."""

FAILS = {
    "429": Fault("rate_limit"),
    "500": Fault("status", status=500),
    "503": Fault("overloaded"),
    "a lost connection": Fault("cut"),
}


@tool(repeatable=True)
def look() -> str:
    """Looks."""
    return "seen"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own pauses between two tries are too long for a test."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer(Script([])) as running:
        yield running


@contextmanager
def forkpoint(url: ModelServer | str) -> Iterator[Served]:
    """A server whose model is tried as often as by default, with short pauses, and which is soon given up on."""
    settings = {"timeouts": Timeouts(first=0.3)}
    with served(agents=agents_at(url, attempts=ALONE, llm=settings, tools=[look])) as running:
        yield running


@pytest.fixture(scope="module")
def server(models: ModelServer) -> Iterator[Served]:
    models.script = Script([Reply("Hello")])
    with forkpoint(models) as running, running.client() as client:
        post(client, "Hello")  # what the first call loads counts as waiting
        yield running


def asks(server: Served, **options: Any) -> Any:
    """What the package gives for one request; of a stream all chunks."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        headers = {"X-Conversation-Id": options.pop("conversation", "")}
        answer = client.chat.completions.create(
            model="helper", messages=[{"role": "user", "content": "Hi"}], extra_headers=headers, **options
        )
        return list(answer) if options.get("stream") else answer


def asked_for(models: ModelServer, *replies: Reply, repeat: bool = True) -> int:
    """How many requests there were before these replies are given."""
    models.script = Script(replies, repeat=repeat)
    return len(models.requests)


@pytest.mark.parametrize(
    ("fault", "conversation", "stream"),
    [
        *((fault, name, stream) for fault in FAILS.values() for name, stream in (("", True), ("counted", False))),
        (Fault("hang"), "", False),  # a time-out takes its time: once is enough
    ],
)
def test_one_request_of_the_package_asks_a_failing_provider_as_often_as_the_package_alone_would(
    server: Served, models: ModelServer, fault: Fault, conversation: str, stream: bool
) -> None:
    before = asked_for(models, Reply(fault=fault))
    with pytest.raises(openai.APIStatusError) as caught:
        asks(server, stream=stream, conversation=conversation)
    assert len(models.requests) - before == ALONE
    assert caught.value.response.headers["x-should-retry"] == "true"


def test_a_provider_that_nobody_listens_at_is_tried_as_often() -> None:
    with ModelServer(Script([])) as gone:
        url = gone.url
    with forkpoint(url) as server:
        with pytest.raises(openai.InternalServerError):
            asks(server)
        with server.client() as client:
            counted = client.get("/metrics").text
    calls = re.findall(r'^forkpoint_model_calls_total\{outcome="model_connection"\} (\S+)|', counted, re.MULTILINE)
    retries = re.findall(r"^forkpoint_model_retries_total (\S+)", counted, re.MULTILINE)
    assert sum(map(float, filter(None, [*calls, *retries]))) == ALONE


def test_another_client_gets_our_retries_and_is_told_not_to_add_its_own(server: Served, models: ModelServer) -> None:
    before = asked_for(models, Reply(fault=Fault("overloaded")))
    with server.client() as client:
        refused = post(client, "Hi")
    assert len(models.requests) - before == ALONE
    assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")


def test_once_tools_have_run_the_retries_are_ours_since_the_package_makes_none(
    server: Served, models: ModelServer
) -> None:
    fails = Reply(fault=Fault("overloaded"))
    before = asked_for(models, Reply(calls=(ScriptedCall("look", "{}"),)), fails, Reply("Seen."), repeat=False)
    assert asks(server).choices[0].message.content == "Seen."
    assert len(models.requests) - before == 3
    before = asked_for(models, Reply(calls=(ScriptedCall("look", "{}"),)), *[fails] * ALONE, repeat=False)
    with pytest.raises(openai.InternalServerError) as caught:
        asks(server)
    assert len(models.requests) - before == 1 + ALONE
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_once_a_stream_has_begun_the_retries_are_ours_since_the_package_makes_none(
    server: Served, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.server.wires.chat.reply.FIRST", 0.01)
    before = asked_for(models, Reply(fault=Fault("overloaded"), delay=0.1), Reply("At last."), repeat=False)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in asks(server, stream=True))
    assert text == "At last."
    assert len(models.requests) - before == 2

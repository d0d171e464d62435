"""What the official `openai` package makes of failures: which error it raises, and what its own retries do.

Its defaults are kept: it tries 408, 409, 429, 5xx and lost connections twice more by itself, unless it is told not to.
"""

import secrets
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from tests.clients.support.world import KEY, MODEL, World, orders, world

from forkpoint.testing import Fault, Reply


class Counting(httpx2.HTTPTransport):
    """A connection that counts what an SDK sends."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: list[str] = []  # the SDK's own count of its retries, request by request

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.tries.append(request.headers["x-stainless-retry-count"])
        return super().handle_request(request)


@pytest.fixture(scope="module")
def servers() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture
def sent() -> Counting:
    return Counting()


@pytest.fixture
def name() -> str:
    return f"retry-{secrets.token_hex(4)}"


@pytest.fixture
def talk(servers: World, sent: Counting, name: str) -> Iterator[OpenAI]:
    with _client(servers.url, sent, name) as made:
        yield made


def _client(url: str, sent: Counting, name: str) -> OpenAI:
    http = httpx2.Client(transport=sent)
    return OpenAI(base_url=url, api_key=KEY, default_headers={"X-Conversation-Id": name}, http_client=http)


def say(client: OpenAI, text: str, **settings: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **settings)


def fails(kind: Any, **more: Any) -> Reply:
    return Reply("Never said to its end.", piece=4, fault=Fault(kind, **more))


# Retries.


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_upstream_that_fails_once_ends_in_one_committed_turn(
    talk: OpenAI, servers: World, sent: Counting, name: str, stream: bool
) -> None:
    say(talk, "Hello")
    before = servers.models.last.blocks
    answer = say(talk, orders(fails("status", status=500), Reply("At last.")), stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    assert text == "At last."
    assert sent.tries == ["0", "0", "1"]
    assert servers.api.outcomes(name) == ["committed", "failed", "committed"]
    failed, retried = servers.models.requests[-2:]
    assert failed.blocks == retried.blocks
    assert retried.blocks[: len(before)] == before


def test_a_busy_conversation_is_a_conflict_that_is_not_retried(
    talk: OpenAI, servers: World, sent: Counting, name: str
) -> None:
    say(talk, "Hello")
    waiting = talk.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": orders(fails("hang", after=2))}], stream=True
    )
    stream = waiting.parse()
    assert next(iter(stream)).choices[0].delta.role == "assistant"
    del sent.tries[:]
    with pytest.raises(openai.ConflictError) as caught:
        say(talk, "Me too")
    assert sent.tries == ["0"]
    assert caught.value.code == "conversation_busy"
    assert caught.value.response.headers["x-should-retry"] == "false"

    stream.close()  # its reader goes, and so does its turn
    assert servers.ended(name, waiting.headers["x-turn-id"]) == "cancelled"
    say(talk, "Now?")
    assert servers.api.outcomes(name) == ["committed", "cancelled", "committed"]
    assert servers.api.said(name) == ["Hello", "You said: Hello", "Now?", "You said: Now?"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_that_got_lost_is_given_again(servers: World, sent: Counting, name: str, stream: bool) -> None:
    message = orders(Reply("Here.", reasoning="Where was it?", piece=2))
    with _client(servers.lossy_url, sent, name) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": message}], stream=stream
        )
        assert sent.tries == ["0", "1"]
        parsed: Any = raw.parse()
        if stream:
            chunks = list(parsed)
            assert chunks[-1].choices[0].finish_reason == "stop"
            said = [chunk.choices[0].delta for chunk in chunks]
        else:
            said = [parsed.choices[0].message]
    assert "".join(one.content or "" for one in said) == "Here."
    assert "".join(getattr(one, "reasoning_content", None) or "" for one in said) == "Where was it?"
    (turn,) = servers.api.get(f"{name}/turns")["items"]
    assert (turn["outcome"], turn["id"]) == ("committed", raw.headers["x-turn-id"])
    assert servers.api.said(name) == [message, "Here."]


def test_a_client_that_loses_patience_tries_again(talk: OpenAI, servers: World, sent: Counting, name: str) -> None:
    say(talk, "Hello")
    answer = say(talk, orders(fails("hang"), Reply("At last.")), timeout=2)
    assert answer.choices[0].message.content == "At last."
    assert sent.tries == ["0", "0", "1"]
    assert servers.api.outcomes(name) == ["committed", "cancelled", "committed"]


def test_the_same_idempotency_key_is_the_same_turn(talk: OpenAI, servers: World, name: str) -> None:
    first, again = (say(talk, "Once", extra_headers={"Idempotency-Key": f"key-{name}"}) for _ in "ab")
    assert first.id == again.id
    assert again.choices[0].message.content == "You said: Once"
    assert servers.api.outcomes(name) == ["committed"]


# Errors.


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("fault", "raised", "type", "code"),
    [
        (Fault("rate_limit", retry_after=7), openai.RateLimitError, "rate_limit_error", "model_rate_limit"),
        (Fault("status", status=500), openai.InternalServerError, "server_error", None),
        (Fault("overloaded"), openai.InternalServerError, "server_error", None),
        (Fault("context_too_long"), openai.BadRequestError, "invalid_request_error", "context_length_exceeded"),
        (Fault("refused"), openai.BadRequestError, "invalid_request_error", "content_filter"),
    ],
    ids=["rate limit", "500", "overloaded", "too long", "refused"],
)
def test_a_failing_model_is_an_error_of_its_class(
    talk: OpenAI, servers: World, name: str, fault: Fault, raised: Any, type: str, code: str | None, stream: bool
) -> None:
    say(talk, "Hello")
    with pytest.raises(raised) as caught:
        say(talk.with_options(max_retries=0), orders(Reply("No", fault=fault)), stream=stream)
    error: openai.APIStatusError = caught.value
    assert error.type == type
    assert error.code == code or (code is None and error.code)
    assert error.request_id == error.response.headers["x-request-id"]
    assert error.response.headers["x-should-retry"] == ("false" if error.status_code == 400 else "true")
    assert error.response.headers.get("retry-after") == ("7" if fault.kind == "rate_limit" else None)
    assert error.message
    assert servers.api.outcomes(name) == ["committed", "failed"]
    assert say(talk, "Go on").choices[0].message.content == "You said: Go on"
    assert servers.api.said(name) == ["Hello", "You said: Hello", "Go on", "You said: Go on"]


def test_a_spent_quota_is_not_tried_again(talk: OpenAI, sent: Counting) -> None:
    with pytest.raises(openai.APIStatusError):
        say(talk, orders(fails("quota"), fails("quota")))
    assert sent.tries == ["0"]


def test_an_error_in_the_middle_of_a_stream_is_raised_and_commits_nothing(
    talk: OpenAI, servers: World, sent: Counting, name: str
) -> None:
    say(talk, "Hello")
    chunks: list[Any] = []
    with pytest.raises(openai.APIError) as caught:
        chunks.extend(say(talk, orders(fails("status", status=500, after=2)), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Never sa"
    assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}
    assert not isinstance(caught.value, openai.APIStatusError)
    assert caught.value.type == "server_error"
    assert caught.value.code
    assert sent.tries == ["0", "0"]
    assert servers.api.outcomes(name) == ["committed", "failed"]
    assert servers.api.said(name) == ["Hello", "You said: Hello"]


def test_what_does_not_fit_is_refused_by_name(talk: OpenAI, servers: World, sent: Counting, name: str) -> None:
    say(talk, "Hello")
    with pytest.raises(openai.BadRequestError) as several:
        say(talk, "Hello", n=2)
    assert (several.value.type, several.value.param) == ("invalid_request_error", "n")

    said: Any = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    with pytest.raises(openai.BadRequestError) as nothing_new:
        talk.chat.completions.create(model=MODEL, messages=said)
    assert nothing_new.value.code == "no_new_user_message"

    with pytest.raises(openai.NotFoundError) as nobody:
        talk.chat.completions.create(model="nobody", messages=said[:1])
    assert (nobody.value.code, nobody.value.param) == ("model_not_found", "model")
    assert sent.tries == ["0"] * 4
    assert servers.api.outcomes(name) == ["committed"]


def test_a_wrong_key_is_an_authentication_error(talk: OpenAI, sent: Counting) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        say(talk.with_options(api_key="wrong"), "Hello")
    assert (caught.value.code, caught.value.type) == ("invalid_api_key", "authentication_error")
    assert sent.tries == ["0"]


def test_a_conversation_of_another_tenant_is_another_conversation(talk: OpenAI, servers: World, name: str) -> None:
    say(talk, "Hello")
    say(talk.with_options(api_key="key-of-two"), "Who is there?")
    assert [message["content"] for message in servers.prompt] == ["Who is there?"]
    assert servers.api.outcomes(name) == ["committed"]

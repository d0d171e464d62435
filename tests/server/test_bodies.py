"""Bodies that cannot be read: each is refused in words that say what is wrong with it, native and in chat."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

PLACE = "/api/conversations"
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
HUGE = "1" + "0" * 400


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


def refused(answer: httpx2.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


WRONG: dict[str, tuple[bytes, str]] = {
    "cut off": (b'{"title": "a"', "not JSON: input data was truncated"),
    "no JSON": (b"<title>", "not JSON: invalid character (byte 0)"),
    "Latin-1": ('{"title": "a"} ä'.encode("latin-1"), "not UTF-8, from byte 15 on"),
    "UTF-16": ('{"title": "a"}'.encode("utf-16"), "not UTF-8, from byte 0 on"),
    "deep": (b'{"agent": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "nested too deep"),
}


@pytest.mark.parametrize("path", [PLACE, CHAT])
@pytest.mark.parametrize(("body", "why"), WRONG.values(), ids=WRONG)
def test_a_body_that_is_not_json_is_400_and_says_why(client: httpx2.Client, path: str, body: bytes, why: str) -> None:
    status, code, message = refused(client.post(path, content=body, headers=JSON))
    assert (status, code) == (400, "bad_request")
    assert why in message


def test_a_text_of_a_chat_completion_that_is_not_utf_8_is_400_by_name(client: httpx2.Client) -> None:
    answer = client.post(CHAT, content='{"model": "ä"}'.encode("latin-1"), headers=JSON)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "not valid Unicode" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [PLACE, CHAT])
@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", None])
def test_a_compressed_body_is_415_and_says_what_to_do(client: httpx2.Client, path: str, encoding: str | None) -> None:
    headers = JSON if encoding is None else JSON | {"Content-Encoding": encoding}
    status, code, message = refused(client.post(path, content=gzip.compress(b"{}"), headers=headers))
    assert (status, code) == (415, "encoded_body")
    assert "Send it without Content-Encoding" in message


def test_a_body_that_says_it_is_not_compressed_is_read(client: httpx2.Client) -> None:
    assert client.post(PLACE, content=b"{}", headers=JSON | {"Content-Encoding": "identity"}).status_code == 201


CHATS: list[tuple[str, str]] = [
    *((name, HUGE) for name in ("max_tokens", "max_completion_tokens", "seed", "top_k", "temperature", "top_p")),
    *((name, HUGE) for name in ("presence_penalty", "frequency_penalty")),
    *((name, f"-{HUGE}") for name in ("max_tokens", "seed", "top_k", "temperature", "presence_penalty")),
    *((name, "1e400") for name in ("max_tokens", "seed", "temperature", "frequency_penalty")),
    *((name, "NaN") for name in ("max_tokens", "temperature")),
    *((name, "true") for name in ("max_tokens", "seed", "top_k", "temperature", "top_p")),
    *((name, "1.5") for name in ("max_tokens", "seed", "top_k")),
    *(("max_tokens", number) for number in ("0", "-1", "2147483648")),
    *(("seed", number) for number in ("9223372036854775808", "-9223372036854775809")),
    *(("top_k", number) for number in ("-2", "2147483648")),
    *(("temperature", number) for number in ("-0.1", "1000.5")),
    *(("top_p", number) for number in ("-0.1", "1.1")),
]


@pytest.mark.parametrize(("name", "number"), CHATS)
def test_a_number_of_a_chat_completion_that_is_out_of_range_is_400_by_name(
    client: httpx2.Client, name: str, number: str
) -> None:
    body = f'{{"model": "scripted/echo", "messages": [{{"role": "user", "content": "a"}}], "{name}": {number}}}'
    answer = client.post(CHAT, content=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert number[:50] not in answer.json()["error"]["message"].replace(name, "") or len(number) < 25


@pytest.mark.parametrize(
    ("name", "number"),
    [("max_tokens", 2**31 - 1), ("seed", 2**63 - 1), ("seed", -(2**63)), ("top_k", -1), ("temperature", 0)],
)
def test_a_number_at_the_edge_is_taken(client: httpx2.Client, name: str, number: int) -> None:
    body = {"model": "scripted/echo", "messages": [{"role": "user", "content": "a"}], name: number}
    assert client.post(CHAT, json=body).status_code == 200


NATIVE: list[tuple[str, str, str]] = [
    ("/turns", "message", HUGE),
    *(("/turns/x/resume", f"limits.{name}", number) for name in ("steps", "seconds") for number in ("1e400", "NaN")),
    ("/turns/x/resume", "limits.steps", "true"),
    ("/turns/x/resume", "limits.steps", "1.5"),
]


@pytest.mark.parametrize(("path", "name", "number"), NATIVE)
def test_a_number_of_the_native_api_that_cannot_be_is_422_by_name(
    client: httpx2.Client, path: str, name: str, number: str
) -> None:
    client.post(PLACE, json={"id": "here"})
    first, _, then = name.partition(".")
    value = f'{{"{then}": {number}}}' if then else number
    answer = client.post(f"{PLACE}/here{path}", content=f'{{"{first}": {value}}}', headers=JSON)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, name)


@pytest.mark.parametrize(
    "limits", [{"steps": int(HUGE)}, {"tokens": int(HUGE)}, {"seconds": 1e300}, {"steps": 0}, {"dollars": -1}]
)
def test_a_limit_that_is_out_of_range_is_refused_by_name(client: httpx2.Client, limits: dict[str, Any]) -> None:
    client.post(PLACE, json={"id": "here"})
    (name,) = limits
    for path, body in (
        (f"{PLACE}/here/turns/x/resume", {"limits": limits}),
        (PLACE, {"agent": {"llm": {"model": "scripted/echo"}, "limits": limits}}),
    ):
        answer = client.post(path, content=json.dumps(body), headers=JSON)
        assert answer.status_code == 422
        assert name in answer.json()["error"]["message"]


@pytest.mark.parametrize("setting", ["max_tokens", "seed", "temperature", "top_k", "timeouts.first", "context_tokens"])
def test_a_number_of_an_agent_that_is_out_of_range_is_refused_by_name(client: httpx2.Client, setting: str) -> None:
    first, _, then = setting.partition(".")
    value: Any = {then: int(HUGE)} if then else int(HUGE)
    body = {"agent": {"llm": {"model": "scripted/echo", first: value}}}
    answer = client.post(PLACE, content=json.dumps(body), headers=JSON)
    assert answer.status_code == 422
    assert first in answer.text


@pytest.mark.parametrize("wait", ["NaN", "inf", "-1", "61", HUGE, "1e400"])
def test_a_number_in_an_address_that_is_out_of_range_is_422_by_name(client: httpx2.Client, wait: str) -> None:
    client.post(PLACE, json={"id": "here"})
    answer = client.get(f"{PLACE}/here/turns/x", params={"wait": wait})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "wait")

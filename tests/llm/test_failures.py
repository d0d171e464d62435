"""What a provider says went wrong is one of our errors, whatever shape it says it in."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import ContextTooLong, ErrorKind, ModelError, ModelUnavailable, RateLimited, RequestRefused
from forkpoint.llm.failures import error_for_status, error_in_answer, names_the_cache_key, retry_after

many = settings(max_examples=200, deadline=None, database=None)
MODEL = "openai/some-model"


def openai(message: str, type: str = "invalid_request_error", code: str | None = None, param: str | None = None) -> Any:
    """As OpenAI's SDK gives it: what stands in ``error``."""
    return {"message": message, "type": type, "param": param, "code": code}


def anthropic(type: str, message: str = "m") -> Any:
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_1"}


def llama(code: int, type: str, message: str = "m") -> Any:
    return {"error": {"code": code, "message": message, "type": type}}


def vllm(code: int, message: str, type: str = "BadRequestError") -> Any:
    return {"object": "error", "message": message, "type": type, "param": None, "code": code}


def openrouter(code: int, message: str = "m", **metadata: Any) -> Any:
    return {"error": {"code": code, "message": message, "metadata": metadata}, "user_id": "user_1"}


TOO_LONG = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
HTML = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad Gateway</h1></body>\r\n</html>"

CASES: list[tuple[int, Any, ErrorKind]] = [
    # OpenAI
    (401, openai("Incorrect API key provided: sk-x.", code="invalid_api_key"), RequestRefused.model_authentication),
    (
        403,
        openai("Country not supported", "request_forbidden", "unsupported_country_region_territory"),
        RequestRefused.model_authentication,
    ),
    (429, openai("Rate limit reached", "requests", "rate_limit_exceeded"), RateLimited),
    (
        429,
        openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
        RequestRefused.model_quota,
    ),
    (400, openai(TOO_LONG, code="context_length_exceeded", param="messages"), ContextTooLong),
    (400, openai("Your input exceeds the context window of this model.", param="input"), ContextTooLong),
    (400, openai("Invalid prompt: flagged", code="invalid_prompt"), RequestRefused.model_refused),
    (
        400,
        openai("Rejected by the safety system", "image_generation_user_error", "content_policy_violation"),
        RequestRefused.model_refused,
    ),
    (400, openai("Unsupported value: 'temperature'", code="unsupported_value", param="temperature"), RequestRefused),
    (404, openai("The model does not exist", code="model_not_found"), RequestRefused.model_unknown),
    (500, openai("The server had an error", "server_error"), ModelUnavailable),
    (503, openai("Slow down", "server_error", "slow_down"), ModelUnavailable),
    # Anthropic
    (400, anthropic("invalid_request_error", "messages: roles must alternate"), RequestRefused),
    (400, anthropic("invalid_request_error", "prompt is too long: 200251 tokens > 200000 maximum"), ContextTooLong),
    (
        400,
        anthropic(
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length or"
            " `max_tokens` and try again",
        ),
        ContextTooLong,
    ),
    (
        400,
        anthropic("invalid_request_error", "Your credit balance is too low to access the API."),
        RequestRefused.model_quota,
    ),
    (
        400,
        anthropic("invalid_request_error", "Output blocked by content filtering policy"),
        RequestRefused.model_refused,
    ),
    (401, anthropic("authentication_error", "invalid x-api-key"), RequestRefused.model_authentication),
    (402, anthropic("billing_error"), RequestRefused.model_quota),
    (403, anthropic("permission_error"), RequestRefused.model_authentication),
    (404, anthropic("not_found_error", "model: claude-x"), RequestRefused.model_unknown),
    (413, anthropic("request_too_large"), ContextTooLong),
    (429, anthropic("rate_limit_error"), RateLimited),
    (500, anthropic("api_error"), ModelUnavailable),
    (504, anthropic("timeout_error"), ModelUnavailable.model_timeout),
    (529, anthropic("overloaded_error", "Overloaded"), ModelUnavailable),
    # llama.cpp
    (400, llama(400, "exceed_context_size_error", "the request exceeds the available context size"), ContextTooLong),
    (400, llama(400, "invalid_request_error", "'messages' is required"), RequestRefused),
    (401, llama(401, "authentication_error", "Invalid API Key"), RequestRefused.model_authentication),
    (500, llama(500, "server_error"), ModelUnavailable),
    (503, llama(503, "unavailable_error", "Loading model"), ModelUnavailable),
    # vLLM, old and new
    (400, vllm(400, TOO_LONG), ContextTooLong),
    (400, {"error": vllm(400, TOO_LONG)}, ContextTooLong),
    (400, vllm(400, "extra_forbidden"), RequestRefused),
    (404, vllm(404, "The model `x` does not exist.", "NotFoundError"), RequestRefused.model_unknown),
    (401, {"error": "Unauthorized"}, RequestRefused.model_authentication),
    # OpenRouter
    (400, openrouter(400, "This endpoint's maximum context length is 8192 tokens."), ContextTooLong),
    (401, openrouter(401, "No auth credentials found"), RequestRefused.model_authentication),
    (402, openrouter(402, "Insufficient credits"), RequestRefused.model_quota),
    (408, openrouter(408), ModelUnavailable.model_timeout),
    (429, openrouter(429, "Provider returned error", raw="slow", provider_name="x"), RateLimited),
    (502, openrouter(502, "Provider returned error"), ModelUnavailable),
    # Ollama, and what stands in its place
    (404, {"error": "model 'x' not found, try pulling it first"}, RequestRefused.model_unknown),
    (404, "model 'x' not found", RequestRefused.model_unknown),
    (404, "404 page not found", RequestRefused.model_wrong_address),
    (500, {"error": "llama runner process has terminated"}, ModelUnavailable),
    # Anything else
    (502, HTML, ModelUnavailable),
    (400, HTML, RequestRefused),
    (401, None, RequestRefused.model_authentication),
    (404, None, RequestRefused.model_wrong_address),
    (404, HTML.replace("502 Bad Gateway", "No model here"), RequestRefused.model_wrong_address),
    (404, {"detail": "Not Found"}, RequestRefused.model_wrong_address),
    (404, llama(404, "not_found_error", "File Not Found"), RequestRefused.model_wrong_address),
    (405, {"detail": "Method Not Allowed"}, RequestRefused.model_wrong_address),
    (429, [], RateLimited),
    (429, [{"error": {"code": 429, "message": "Resource exhausted", "status": "RESOURCE_EXHAUSTED"}}], RateLimited),
    (500, {}, ModelUnavailable),
    (418, {"error": None}, RequestRefused),
    (422, {"detail": [{"loc": ["body", "x"], "msg": "field required"}]}, RequestRefused),
]


@pytest.mark.parametrize(("status", "body", "expected"), CASES, ids=lambda value: json.dumps(value, default=str)[:70])
def test_an_error_status_is_the_error_that_it_stands_for(status: int, body: Any, expected: ErrorKind) -> None:
    error = error_for_status(MODEL, status, body, {})
    assert error.code == expected.code, f"{status} {body} became {error!r}"
    assert error.model == MODEL
    assert error.retry_after is None


def test_content_that_a_gateway_s_moderation_flagged_is_refused_content_and_not_a_bad_key() -> None:
    """OpenRouter documents 403 for this; whoever is told to check the key looks in the wrong place."""
    message = "openai/gpt-4o requires moderation. Your input was flagged for 'violence'."
    body = openrouter(403, message, reasons=["violence"], flagged_input="...", provider_name="OpenAI")
    assert RequestRefused.model_refused.made(error_for_status(MODEL, 403, body, {}))


def test_a_message_is_the_provider_s_own_and_names_the_field_that_it_is_about() -> None:
    assert error_for_status(MODEL, 400, openai("Too hot", param="temperature"), {}).detail == "Too hot (temperature)"
    assert error_for_status(MODEL, 400, openai("top_p is odd", param="top_p"), {}).detail == "top_p is odd"
    assert error_for_status(MODEL, 500, anthropic("api_error", "Internal\nserver error"), {}).detail == (
        "Internal server error"
    )
    assert "not found" in error_for_status(MODEL, 404, {"error": "model 'x' not found"}, {}).detail


@pytest.mark.parametrize(
    "body", [None, {}, [], "", " ", 7, {"error": {}}, {"error": {"message": " "}}, "...", {"error": "."}]
)
def test_an_error_without_words_still_says_its_status(body: Any) -> None:
    assert "502" in error_for_status(MODEL, 502, body, {}).detail


@pytest.mark.parametrize("body", [None, {}, [], "", {"message": ""}, {"message": "."}])
def test_an_error_within_an_answer_that_has_no_words_still_says_something(body: Any) -> None:
    assert error_in_answer(MODEL, body).detail.strip()


def test_a_huge_message_is_shortened() -> None:
    detail = error_for_status(MODEL, 400, openai("x" * 1_000_000, param="y" * 1_000_000), {}).detail
    assert len(detail) <= 500
    assert detail.endswith("...")


texts = st.text(max_size=30) | st.sampled_from(["x" * 5000, "a\nb\u2028c\x85d\x1ce", "\ud800", "...", "server_error"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("message", "type", "code", "param", "details", "metadata", "status")
objects = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, values))
bodies = values | objects | st.fixed_dictionaries({"error": objects | values})


@many
@given(status=st.integers(0, 999), body=bodies)
def test_any_status_with_any_body_is_an_error_of_ours_in_one_short_line(status: int, body: Any) -> None:
    for error in (error_for_status(MODEL, status, body, {}), error_in_answer(MODEL, body)):
        assert isinstance(error, ModelError)
        assert type(error) is not ModelError, "nobody can be told what to do"
        assert 0 < len(error.detail) <= 500
        assert error.detail.strip()
        assert len(error.detail.splitlines()) == 1, f"a message of several lines: {error.detail!r}"
        assert str(error).encode()


# How long to wait.


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "-1", "retry-after": "2"}, 2.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "-inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
    ],
    ids=str,
)
def test_the_wait_that_a_provider_asks_for_is_told_if_it_makes_sense(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(headers) == seconds
    error = error_for_status(MODEL, 429, None, headers)
    assert error.retry_after == seconds
    assert isinstance(error, RateLimited)


@many
@given(value=st.text(max_size=20) | st.floats().map(str))
def test_any_header_gives_a_wait_that_can_be_waited_or_none(value: str) -> None:
    for name in ("retry-after", "retry-after-ms"):
        seconds = retry_after({name: value})
        assert seconds is None or 0 <= seconds < float("inf")


# The cache key.


@pytest.mark.parametrize(
    ("status", "body", "named"),
    [
        (400, openai("Unknown parameter: 'prompt_cache_key'.", code="unknown_parameter"), True),
        (400, openai("Unrecognized request argument supplied: prompt_cache_key"), True),
        (400, openai("Unknown parameter.", param="prompt_cache_key"), True),
        (422, openai("prompt_cache_key: Extra inputs are not permitted"), True),
        (400, {"error": "json: unknown field prompt_cache_key"}, True),
        (400, openai("Unknown parameter: 'seed'."), False),
        (500, openai("prompt_cache_key", "server_error"), False),
        (401, openai("prompt_cache_key", code="invalid_api_key"), False),
        (400, None, False),
    ],
)
def test_a_server_that_does_not_know_the_cache_key_is_recognised_by_its_name(
    status: int, body: Any, named: bool
) -> None:
    assert names_the_cache_key(error_for_status(MODEL, status, body, {})) is named


def test_a_server_that_lists_what_it_does_not_know_is_recognised() -> None:
    """FastAPI's form, as servers that are built on it answer."""
    refusal = {"type": "extra_forbidden", "loc": ["body", "prompt_cache_key"], "msg": "Extra inputs are not permitted"}
    assert names_the_cache_key(error_for_status(MODEL, 422, {"detail": [refusal]}, {}))


# Which of them are worth another try.


def test_only_errors_that_may_pass_are_tried_again() -> None:
    passing = {error_for_status(MODEL, status, None, {}).code for status in (408, 409, 425, 429, 500, 502, 503, 529)}
    lasting = {error_for_status(MODEL, status, None, {}).code for status in (400, 401, 402, 403, 404, 413, 422)}
    assert passing == {"model_timeout", "model_overloaded", "model_rate_limit"}
    assert ModelUnavailable.passing
    assert RateLimited.passing
    assert not passing & lasting


def test_a_date_to_wait_for_is_read_by_the_server_s_own_clock() -> None:
    dates = {"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT", "date": "Sun, 15 Nov 2026 12:00:00 GMT"}
    assert retry_after(dates) == 30
    assert retry_after({"retry-after": dates["retry-after"]}) is None, "without the server's clock it means nothing"
    assert retry_after({"retry-after": dates["date"], "date": dates["retry-after"]}) is None


def test_a_list_of_errors_says_what_its_first_says() -> None:
    error = error_for_status("m", 400, [{"error": {"code": 400, "message": "API key not valid.", "status": "X"}}], {})
    assert error.detail == "API key not valid"


def test_a_server_that_repeats_the_request_in_an_error_about_something_else_has_not_refused_the_key() -> None:
    body = {"detail": [{"loc": ["body", "top_k"], "msg": "extra", "input": {"prompt_cache_key": "fp_1"}}]}
    assert not names_the_cache_key(error_for_status("m", 422, body, {}))
    refused = {"message": {"detail": [{"loc": ["body", "prompt_cache_key"], "msg": "Extra inputs"}]}}
    assert names_the_cache_key(error_for_status("m", 422, refused, {}))
    late = {"error": {"message": "x" * 600 + " prompt_cache_key is not known"}}
    assert names_the_cache_key(error_for_status("m", 400, late, {}))

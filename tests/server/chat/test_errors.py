"""Whatever goes wrong comes in OpenAI's envelope, hides what is nobody's business, and says whether to try again."""

import json
from typing import Any, Literal

import pytest

from forkpoint import errors
from forkpoint.backend.results import Turn
from forkpoint.errors import (
    KINDS,
    ErrorKind,
    ForkpointError,
    ModelError,
    StoreError,
    TurnCancelled,
    TurnFailed,
    class_of,
    fields_of,
)
from forkpoint.events import AnyBody, NewEvent, StagedEvent, ToolCall, ToolResult, Usage, seal
from forkpoint.server.wires.errors import document, refusal, should_retry
from forkpoint.store.values import TurnError

SECRET = "sk-" + "verysecret" * 3
PLACE = "/srv/private/forkpoint.db"
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


ALL = [made for made in KINDS.values() if class_of(made).__module__.startswith(errors.__name__)]
each_error = pytest.mark.parametrize("made", ALL, ids=lambda made: made.code)


def sample(made: ErrorKind, text: str = "sample", **fields: Any) -> ForkpointError:
    """An error whose fields are all filled in."""
    samples: dict[Any, Any] = {str: text, int: 1234567, float: 12.5, bool: False, int | str: 1234567}
    typed = {name: field.annotation for name, field in fields_of(made).items()}
    return made(**{name: samples[kind] for name, kind in typed.items() if kind in samples} | fields)


def failed(cause: Exception | None, *bodies: AnyBody, kept: TurnError | None = None) -> TurnFailed:
    """A turn that failed for this reason, after these events."""
    events = tuple(StagedEvent(seal(NewEvent(body), 0), body) for body in bodies)
    if cause is not None:
        kept = TurnError(cause.code if isinstance(cause, ForkpointError) else "error", str(cause))
    turn = Turn("t1", "c1", "failed", (), events, Usage(), error=kept)
    return TurnFailed("t1", str(cause), turn=turn, cause=cause)


def told(error: BaseException) -> tuple[int, dict[str, Any], dict[str, str]]:
    status, body, headers = refusal(error, "r1")
    return status, json.loads(body)["error"], headers


# Every error there is.


@each_error
def test_every_error_has_its_place_in_the_envelope(made: ErrorKind) -> None:
    for error in (sample(made), failed(sample(made))):
        status, body, headers = told(error)
        assert 400 <= status < 600
        assert status != 422, "clients of OpenAI's know no 422 for what they can mend"
        assert set(body) - {"turn"} == {"message", "type", "param", "code", "request_id"}
        assert body["type"] == TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        assert body["message"]
        assert body["code"]
        assert body["request_id"] == "r1"
        assert headers["Content-Type"] == "application/json"
        assert headers["x-should-retry"] == ("true" if should_retry(error) else "false")
        assert document(error, "r1") == {"error": body}, "a stream tells of an error as a refusal does"


@each_error
def test_no_error_tells_a_secret(made: ErrorKind) -> None:
    for error in (sample(made, f"key {SECRET}"), failed(sample(made, f"key {SECRET}"))):
        assert "verysecret" not in str(refusal(error, "r1"))


@pytest.mark.parametrize(
    "made", [made for made in ALL if issubclass(class_of(made), StoreError)], ids=lambda made: made.code
)
def test_no_error_of_the_store_tells_where_it_stands(made: ErrorKind) -> None:
    names = {"path", "detail", "kind"} & set(fields_of(made))
    cause = sample(made, **dict.fromkeys(names, PLACE))
    assert PLACE in str(cause)
    kept = TurnError(cause.code, str(cause))
    for error in (cause, failed(cause), failed(None, kept=kept)):
        assert PLACE not in str(refusal(error, "r1"))


@pytest.mark.parametrize(
    "made", [made for made in ALL if not issubclass(class_of(made), TurnFailed)], ids=lambda made: made.code
)
def test_a_failed_turn_is_told_as_its_reason_and_says_how_things_stand(made: ErrorKind) -> None:
    cause = sample(made)
    alone, in_turn = told(cause), told(failed(cause))
    assert in_turn[0] == alone[0]
    assert (in_turn[1]["code"], in_turn[1]["type"]) == (alone[1]["code"], alone[1]["type"])
    assert in_turn[1]["message"].startswith(alone[1]["message"])
    assert in_turn[1]["message"].endswith("The conversation is as it was.")
    assert in_turn[1]["turn"] == "t1"
    assert "turn" not in alone[1]


PASSING = {
    "model_empty", "model_malformed", "commit_failed", "model_connection", "disk_full", "model_timeout",
    "outcome_unknown", "model_overloaded", "model_rate_limit", "shutting_down", "store_closed", "store_error",
    "store_away", "store_unavailable", "too_many", "too_many_connections", "too_slow", "turn_handed_over",
}  # fmt: skip


def test_only_what_passes_by_itself_is_to_be_tried_again() -> None:
    assert {made.code for made in ALL if should_retry(sample(made))} == PASSING
    assert {made.code for made in ALL if should_retry(failed(sample(made)))} == PASSING


@each_error
def test_what_is_refused_for_good_is_never_to_be_tried_again(made: ErrorKind) -> None:
    status, _, headers = told(sample(made))
    if status in {400, 401, 403, 404, 405, 409, 412, 413}:
        assert headers["x-should-retry"] == "false"


# Statuses and codes that clients know.


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.Busy("c", "t"), 409, "conversation_busy"),
        (errors.NotFound.model_not_found("m"), 404, "model_not_found"),
        (errors.Invalid.no_new_user_message("it is blank"), 400, "no_new_user_message"),
        (errors.Invalid("messages[0].role", "it is missing"), 400, "invalid"),
        (errors.Invalid.unsupported("n", "no"), 400, "unsupported"),
        (errors.BadRequest("no JSON"), 400, "bad_request"),
        (errors.Unpaired.call_not_open("c1", "c", "it is answered"), 400, "call_not_open"),
        (errors.Unauthorized("there is none"), 401, "invalid_api_key"),
        (errors.Unauthorized.foreign_origin("https://a.example"), 403, "foreign_origin"),
        (errors.TooLarge("request", 2, 1), 413, "too_large"),
        (errors.TooMany("turns", 3), 429, "too_many"),
        (errors.TooSlow("body", 60), 408, "too_slow"),
        (errors.ShuttingDown(), 503, "shutting_down"),
        (errors.OutcomeUnknown("", "turn", "t", "disk"), 503, "outcome_unknown"),
        (errors.RateLimited("m", "429"), 429, "model_rate_limit"),
        (errors.ModelUnavailable.model_timeout("m", "late"), 504, "model_timeout"),
        (errors.ModelUnavailable("m", "503"), 502, "model_overloaded"),
        (errors.RequestRefused.model_quota("m", "paid up"), 502, "model_quota"),
        (errors.ContextTooLong("m", "long"), 400, "context_length_exceeded"),
        (errors.RequestRefused.model_refused("m", "no"), 400, "content_filter"),
        (errors.LimitReached("steps", "3"), 400, "limit_reached"),
        (errors.LimitReached("seconds", "3"), 504, "limit_reached"),
        (errors.HookBlocked("start", "not today"), 400, "hook_blocked"),
        (RuntimeError("a bug"), 500, "internal"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_statuses_and_codes_are_those_that_clients_know(error: Exception, status: int, code: str) -> None:
    assert (told(error)[0], told(error)[1]["code"]) == (status, code)
    assert (told(failed(error))[0], told(failed(error))[1]["code"]) == (status, code)


def test_what_nobody_foresaw_is_not_told() -> None:
    for error in (RuntimeError("the bug's own words"), failed(RuntimeError("the bug's own words"))):
        assert "own words" not in str(refusal(error, "r1"))
        assert not should_retry(error)


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (errors.Invalid("messages[2].content", "no"), "messages[2].content"),
        (errors.Invalid.unsupported("n", "no"), "n"),
        (errors.NotFound.model_not_found("m"), "model"),
        (errors.Invalid.no_new_user_message("blank"), "messages"),
        (failed(errors.ContextTooLong("m", "long")), "messages"),
        (failed(errors.RequestRefused("m", "no", field="temperature")), "temperature"),
        (errors.Busy("c", "t"), None),
    ],
)
def test_the_field_that_is_to_blame_is_named(error: Exception, param: str | None) -> None:
    assert told(error)[1]["param"] == param


def test_how_long_to_wait_is_told_where_it_is_known() -> None:
    assert told(errors.TooMany("turns", 3, retry_after=4))[2]["Retry-After"] == "4"
    assert told(failed(errors.RateLimited("m", "429", retry_after=20.0)))[2]["Retry-After"] == "20"
    assert "Retry-After" not in told(errors.RateLimited("m", "429"))[2]


def test_who_needs_a_key_is_told_how_to_send_it() -> None:
    assert told(errors.Unauthorized("there is none"))[2]["WWW-Authenticate"] == "Bearer"


def test_a_turn_that_ran_out_of_its_seconds_may_be_tried_again_but_not_one_that_reached_another_limit() -> None:
    assert should_retry(failed(errors.LimitReached("seconds", "3")))
    assert not should_retry(failed(errors.LimitReached("steps", "3")))


def test_a_models_failure_that_lasts_is_not_to_be_tried_again() -> None:
    assert should_retry(errors.RateLimited("m", "429", retry_after=900.0))
    assert not should_retry(errors.RateLimited("m", "the day's quota is spent", lasting=True))
    assert not should_retry(failed(errors.ModelUnavailable("m", "gone for good", lasting=True)))


# What tools have done is not repeated by a machine.

OURS = ToolCall("o1", "deploy", "{}")
CLIENTS = ToolCall("c1", "weather", "{}", client=True)
PASSES = errors.ModelUnavailable("m", "503")


@pytest.mark.parametrize("status", ["done", "failed", "unknown"])
def test_a_turn_that_ran_tools_of_ours_is_not_to_be_tried_again(status: Literal["done", "failed", "unknown"]) -> None:
    assert not should_retry(failed(PASSES, OURS, ToolResult("o1", "deploy", status=status)))
    assert not should_retry(failed(PASSES, OURS)), "one without a result may have been started"


@pytest.mark.parametrize("status", ["denied", "not_run", "not_answered"])
def test_calls_that_did_not_run_are_no_reason(status: Literal["denied", "not_run", "not_answered"]) -> None:
    assert should_retry(failed(PASSES, OURS, ToolResult("o1", "deploy", status=status)))


def test_the_clients_own_calls_are_no_reason() -> None:
    assert should_retry(failed(PASSES, CLIENTS))
    assert should_retry(failed(PASSES, ToolResult("c0", "weather"), CLIENTS, ToolResult("c1", "weather")))


def test_a_client_is_told_what_tools_have_done() -> None:
    error = TurnFailed("t1", "why", "What its tools did stays done (done: deploy).", cause=PASSES)
    assert told(error)[1]["message"].endswith(
        "The conversation is as it was. What its tools did stays done (done: deploy)."
    )


# Turns of which only the store knows.


def test_a_turn_that_was_read_from_the_store_is_told_by_what_was_kept_of_it() -> None:
    status, body, headers = told(failed(None, kept=TurnError("model_refused", f"m refused the content: {SECRET}")))
    assert (status, body["code"], body["turn"]) == (400, "content_filter", "t1")
    assert "m refused the content" in body["message"]
    assert "verysecret" not in body["message"]
    assert headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("code", "again"),
    [
        ("model_overloaded", True),
        ("model_rate_limit", True),
        ("disk_full", True),
        ("model_quota", False),
        ("store_damaged", False),
        ("limit_reached", False),
        ("error", False),
        ("of_a_newer_version", False),
    ],
)
def test_whether_to_try_such_a_turn_again_is_known_by_its_code(code: str, again: bool) -> None:
    assert should_retry(failed(None, kept=TurnError(code, "why"))) is again


def test_a_turn_that_failed_in_a_way_nobody_foresaw_is_internal_also_when_it_is_read_again() -> None:
    status, body, _ = told(failed(None, kept=TurnError("error", "KeyError: the bug's own words")))
    assert (status, body["code"]) == (500, "internal")
    assert "own words" not in body["message"]


def test_a_cancelled_turn_is_no_success_and_is_not_tried_again() -> None:
    turn = Turn("t1", "c1", "cancelled", (), (), Usage())
    status, body, headers = told(TurnCancelled("t1", "it was stopped before its commit.", turn=turn))
    assert (status, body["code"], body["turn"]) == (409, "turn_cancelled", "t1")
    assert body["message"] == (
        "The turn was cancelled: it was stopped before its commit. The conversation is as it was."
    )
    assert headers["x-should-retry"] == "false"


def test_every_kind_of_model_failure_says_for_itself_whether_it_passes() -> None:
    for made in ALL:
        cls = class_of(made)
        if issubclass(cls, ModelError):
            assert should_retry(sample(made)) is cls.passing

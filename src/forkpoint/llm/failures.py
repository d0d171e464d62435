"""From what a provider says went wrong to one of our errors.

Providers tell errors apart by status, by a code, and sometimes only in words. Codes come first. Words are looked at
only where no provider has a code for the case, and only in this file. What looks like a key is hidden in the words that
are kept, after the error was judged by them.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

from forkpoint.errors import ContextTooLong, ModelError, ModelUnavailable, RateLimited, RequestRefused
from forkpoint.errors.form import Form
from forkpoint.masking import masked

CACHE_KEY = "prompt_cache_key"

_LONGEST = 500  # characters of a provider's message that are shown

ModelErrorKind: TypeAlias = type[ModelError] | Form[..., ModelError]

_CODES: dict[str, ModelErrorKind] = {
    "invalid_api_key": RequestRefused.model_authentication,
    "authentication_error": RequestRefused.model_authentication,
    "permission_error": RequestRefused.model_authentication,
    "permission_denied": RequestRefused.model_authentication,
    "insufficient_quota": RequestRefused.model_quota,
    "billing_error": RequestRefused.model_quota,
    "billing_hard_limit_reached": RequestRefused.model_quota,
    "credit_balance_too_low": RequestRefused.model_quota,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "context_length_exceeded": ContextTooLong,
    "exceed_context_size_error": ContextTooLong,
    "request_too_large": ContextTooLong,
    "content_filter": RequestRefused.model_refused,
    "content_policy_violation": RequestRefused.model_refused,
    "invalid_prompt": RequestRefused.model_refused,
    "invalid_request_error": RequestRefused,
    "not_found_error": RequestRefused,
    "model_not_found": RequestRefused.model_unknown,
    "overloaded_error": ModelUnavailable,
    "server_error": ModelUnavailable,
    "api_error": ModelUnavailable,
    "server_overloaded": ModelUnavailable,
    "slow_down": ModelUnavailable,
    "timeout_error": ModelUnavailable.model_timeout,
    "gateway_timeout_error": ModelUnavailable.model_timeout,
}

_STATUS: dict[int, ModelErrorKind] = {
    401: RequestRefused.model_authentication,
    402: RequestRefused.model_quota,
    403: RequestRefused.model_authentication,
    405: RequestRefused.model_wrong_address,
    408: ModelUnavailable.model_timeout,
    409: ModelUnavailable,
    413: ContextTooLong,
    425: ModelUnavailable,
    429: RateLimited,
}

_WORDS: tuple[tuple[str, ModelErrorKind], ...] = (
    ("prompt is too long", ContextTooLong),
    ("maximum context length", ContextTooLong),
    ("context window", ContextTooLong),
    ("context length", ContextTooLong),
    ("exceed context limit", ContextTooLong),
    ("blocked by content filtering", RequestRefused.model_refused),
    ("credit balance is too low", RequestRefused.model_quota),
)


def error_for_status(model: str, status: int, body: Any, headers: Mapping[str, str]) -> ModelError:
    """The error that an answer with an error status stands for."""
    flagged = "flagged_input" in _metadata(body)  # OpenRouter's moderation, with a 403
    cls = RequestRefused.model_refused if flagged else _named(body)
    if cls is None or cls is RequestRefused:  # servers say "invalid request" for much that has a status of its own
        cls = _STATUS.get(status) or (ModelUnavailable if status >= 500 else RequestRefused)
    if cls is RequestRefused:
        cls = _not_found(body) if status == 404 else _worded(body) or cls
    detail, wait = _detail(body, f"HTTP status {status}"), retry_after(headers)
    return cls(model, detail, retry_after=wait, field=_field(body), status=status)


def error_in_answer(model: str, body: Any) -> ModelError:
    """The error that came in the middle of an answer that had begun well."""
    code = body.get("code") if isinstance(body, dict) else None
    by_status = error_for_status(model, code, body, {}) if isinstance(code, int) and 400 <= code < 600 else None
    if by_status is not None:
        return by_status
    cls = _named(body)
    if cls is None or cls is RequestRefused:
        cls = _worded(body) or cls or ModelUnavailable
    return cls(model, _detail(body, "the answer broke off with an error"), field=_field(body))


def names_the_cache_key(error: ModelError) -> bool:
    """Whether a server refused a request because it does not know the field ``prompt_cache_key``."""
    return error.code == RequestRefused.code and error.field == CACHE_KEY


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds a provider asks to wait, if it said so in a way that makes sense."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return _until(headers.get("retry-after"), headers.get("date"))


def _until(then: str | None, now: str | None) -> float | None:
    """The seconds between two HTTP dates: both by the server's clock, since ours may be another."""
    try:
        seconds = (parsedate_to_datetime(then or "") - parsedate_to_datetime(now or "")).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _named(body: Any) -> ModelErrorKind | None:
    error = _error(body)
    names = (error.get("code"), error.get("type"), (error.get("details") or {}).get("error_code"))
    known = (_by_code(name) for name in names if isinstance(name, str))
    return next((cls for cls in known if cls is not None), None)


def _by_code(code: str) -> ModelErrorKind | None:
    """The error of a code, or of the family that its name is of."""
    if code in _CODES:
        return _CODES[code]
    if code.endswith(("_policy", "_policy_violation")):
        return RequestRefused.model_refused
    return RequestRefused if code.startswith(("invalid_", "unsupported_", "image_")) else None


def _worded(body: Any) -> ModelErrorKind | None:
    message = _one_line(_message(body)).lower()
    return next((cls for words, cls in _WORDS if words in message), None)


def _not_found(body: Any) -> ModelErrorKind:
    """What a 404 means. Some servers say only in words that they do not have the model."""
    message = _message(body).strip().lower()
    is_model = _field(body) == "model" or ("model" in message and not message.startswith("<"))  # "<": a page of a proxy
    return RequestRefused.model_unknown if is_model else RequestRefused.model_wrong_address


def _error(body: Any) -> dict[str, Any]:
    if isinstance(body, list):  # as Google sends them
        body = next((item for item in body if isinstance(item, dict)), None)
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    error = inner if isinstance(inner, dict) else body
    details = error.get("details")
    return error if details is None or isinstance(details, dict) else {**error, "details": None}


def _detail(body: Any, otherwise: str) -> str:
    error = _error(body)
    message = _one_line(_message(body)) or otherwise
    if isinstance(param := error.get("param"), str) and param and param not in message:
        message = _one_line(f"{message} ({param})")
    message = masked(message)  # before it is cut, for a cut could leave half of a key
    return message if len(message) <= _LONGEST else message[: _LONGEST - 3] + "..."


def _field(body: Any) -> str | None:
    """Which field of the request is objected to: as the error says in a place of its own, or in its words."""
    param = _error(body).get("param")
    if isinstance(param, str) and param:
        return param
    return CACHE_KEY if CACHE_KEY in _message(body) else None


def _message(body: Any) -> str:
    """What an error says, wherever its server puts it. What it repeats of the request is not among it."""
    match body:
        case str():
            return body
        case {"error": inner} if not isinstance(inner, dict) or inner:
            return _message(inner)
        case {"message": str(message)} if _one_line(message):
            return message
        case {"message": dict(inner)}:
            return _message(inner)
        case {"detail": str(message)}:
            return message
        case {"detail": list(items)} | list(items):
            return "; ".join(filter(None, (_item(item) for item in items)))
        case _:
            return ""


def _item(item: Any) -> str:
    """One entry of a list of errors, as FastAPI and others make them: where, and what."""
    if not isinstance(item, dict):
        return item if isinstance(item, str) else ""
    where = ".".join(map(str, item["loc"])) if isinstance(item.get("loc"), list) else ""
    said = next((item[name] for name in ("msg", "message") if isinstance(item.get(name), str)), "") or _message(item)
    return f"{where}: {said}" if where and said else where or said


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(". ")


def _metadata(body: Any) -> dict[str, Any]:
    metadata = _error(body).get("metadata")
    return metadata if isinstance(metadata, dict) else {}

"""Which HTTP status an error is. The one place where that is decided. Tests: tests/server/test_statuses.py.

What a model's provider says of the *request* keeps its status: too long, not understood, no such model, too often.
What it says of the server's own key, account or address is a 502: the client's key is another, and is good.
"""

import math
from collections.abc import Set as AbstractSet
from http import HTTPStatus

from forkpoint import errors
from forkpoint.errors import KINDS, ErrorKind, ForkpointError, ModelError, TurnFailed, class_of

_BY_KIND: dict[ErrorKind, int] = {
    errors.BadRequest: 400,
    errors.BadRequest.encoded_body: 415,
    errors.BadName.bad_cursor: 400,
    errors.Unauthorized: 401,
    errors.Unauthorized.foreign_origin: 403,
    errors.Forbidden: 403,
    errors.BadWorkspace.trust_refused: 403,
    errors.NotFound: 404,
    errors.NotFound.method_not_allowed: 405,
    errors.NotFound.previous_response_not_found: 400,
    errors.TooSlow: 408,
    errors.AlreadyExists: 409,
    errors.ImportRefused: 409,
    errors.SecretInside: 409,
    errors.Busy: 409,
    errors.Busy.conversation_locked: 400,
    errors.CannotKeep: 422,
    errors.CannotKeep.branch_not_ready: 409,
    errors.Held: 409,
    errors.TurnOpen: 409,
    errors.TurnLost: 409,
    errors.TurnBehind: 409,
    errors.TurnSteered: 409,
    errors.NotResumable: 409,
    errors.NoSuchTurn: 409,
    errors.NotShown: 409,
    errors.CallChanged: 409,
    errors.NoAgent: 409,
    errors.CannotResume: 409,
    errors.TrustChanged: 409,
    errors.BadSetting.broken_settings: 409,
    errors.BadSetting.unsafe_settings: 409,
    errors.SpawnRefused: 409,
    errors.BringRefused: 409,
    errors.ConversationClosed: 409,
    errors.Stale: 412,
    errors.TooLarge: 413,
    errors.TooMany: 429,
    errors.TurnFailed: 502,
    errors.TurnCancelled: 409,
    errors.LimitReached: 422,
    errors.BudgetExceeded: 402,
    errors.HookBlocked: 422,
    errors.BadOutput: 502,
    errors.ModelError: 502,
    errors.RateLimited: 429,
    errors.ModelUnavailable.model_timeout: 504,
    errors.ContextTooLong: 400,
    errors.RequestRefused: 400,
    errors.RequestRefused.model_unknown: 404,
    errors.RequestRefused.model_refused: 422,
    errors.RequestRefused.model_authentication: 502,
    errors.RequestRefused.model_quota: 502,
    errors.RequestRefused.model_wrong_address: 502,
    errors.MissingKey: 503,
    errors.ShuttingDown: 503,
    errors.StoreError: 503,
    errors.StoreUnusable.opened_to_read: 403,
    errors.StoreDamaged: 500,
    errors.CopyRefused: 409,
    errors.NoWeights: 503,
    errors.ExtraMissing: 503,
    errors.LibraryMissing: 503,
    errors.ExtraBroken: 503,
    errors.McpFailed: 502,
    errors.NoSecret: 503,
}

_OF_THE_REQUEST = frozenset({400, 404, 413, 422, 429})
_KEPT: dict[ErrorKind, AbstractSet[int]] = {
    errors.ContextTooLong: _OF_THE_REQUEST,
    errors.RequestRefused: _OF_THE_REQUEST,
    errors.RequestRefused.model_refused: _OF_THE_REQUEST,
    errors.RequestRefused.model_quota: frozenset({429}),
    errors.ModelUnavailable: frozenset({503, 504}),
}
"""Which statuses of a provider are the client's to see, by what they stand for."""

STORE_WAIT = 2
"""Seconds after which a store that did not answer may well be asked again."""

_OF_THE_STORE = (errors.StoreUnavailable, errors.OutcomeUnknown, errors.CommitFailed)
_OVERLOADED = 529  # Anthropic's own; nobody else knows it


def status_of(error: BaseException) -> int:
    """The status of an error: 500 for an exception that is not Forkpoint's, 422 for an error that is not listed."""
    if isinstance(error, TurnFailed) and type(error) is TurnFailed:
        return _status_of_turn(error)
    if not isinstance(error, ForkpointError):
        return HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, ModelError) and error.status is not None:
        said = HTTPStatus.SERVICE_UNAVAILABLE if error.status == _OVERLOADED else error.status
        if said in _KEPT.get(KINDS[error.code], ()):
            return said
    return _status_of_class(type(error), error.code)


def is_upstream(error: BaseException) -> bool:
    """Whether an error has the status that the model's provider answered with."""
    cause = error.cause if isinstance(error, TurnFailed) else error
    return isinstance(cause, ModelError) and cause.status == status_of(cause)


def retry_after(error: BaseException) -> int | None:
    """The seconds after which another try makes sense, or None if that is not known."""
    cause = error.cause if isinstance(error, TurnFailed) else error
    kind = _noted_kind(error) if isinstance(error, TurnFailed) and cause is None else type(cause)
    said = getattr(cause, "retry_after", STORE_WAIT if issubclass(kind, _OF_THE_STORE) else None)
    return None if said is None else max(1, math.ceil(said))


def _status_of_turn(failed: TurnFailed) -> int:
    """The status of the reason why a turn failed, if the reason is known."""
    if failed.cause is not None:
        return status_of(failed.cause)
    return _status_of_class(_noted_kind(failed), _noted_code(failed))


def _noted_kind(failed: TurnFailed) -> type[ForkpointError]:
    """The class of the error that is written down with a turn: it may have failed in another process."""
    return class_of(KINDS.get(_noted_code(failed), ForkpointError))


def _noted_code(failed: TurnFailed) -> str:
    return failed.turn.error.code if getattr(failed.turn, "error", None) is not None else ""


def _status_of_class(cls: type[ForkpointError], code: str) -> int:
    for kind in (KINDS.get(code), *cls.__mro__):
        if kind in _BY_KIND:
            return _BY_KIND[kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR if cls is ForkpointError else HTTPStatus.UNPROCESSABLE_ENTITY

"""Which HTTP status an error is. The one place where that is decided. Tests: tests/server/test_errors.py."""

from http import HTTPStatus

from forkpoint import errors
from forkpoint.errors import KINDS, ErrorKind, ForkpointError, TurnFailed, class_of

_BY_KIND: dict[ErrorKind, int] = {
    errors.BadRequest: 400,
    errors.BadName.bad_cursor: 400,
    errors.Unauthorized: 401,
    errors.Unauthorized.foreign_origin: 403,
    errors.BadWorkspace.trust_refused: 403,
    errors.NotFound: 404,
    errors.NotFound.method_not_allowed: 405,
    errors.TooSlow: 408,
    errors.AlreadyExists: 409,
    errors.Busy: 409,
    errors.TurnOpen: 409,
    errors.TurnLost: 409,
    errors.TurnBehind: 409,
    errors.NotResumable: 409,
    errors.NoSuchTurn: 409,
    errors.NoAgent: 409,
    errors.CannotResume: 409,
    errors.SpawnRefused: 409,
    errors.ConversationClosed: 409,
    errors.Stale: 412,
    errors.TooLarge: 413,
    errors.TooMany: 429,
    errors.TurnFailed: 502,
    errors.TurnCancelled: 409,
    errors.LimitReached: 422,
    errors.HookBlocked: 422,
    errors.BadOutput: 502,
    errors.ModelError: 502,
    errors.RateLimited: 429,
    errors.ModelUnavailable.model_timeout: 504,
    errors.ContextTooLong: 422,
    errors.RequestRefused.model_refused: 422,
    errors.MissingKey: 503,
    errors.ShuttingDown: 503,
    errors.StoreError: 503,
    errors.StoreDamaged: 500,
    errors.NoWeights: 503,
    errors.ExtraMissing: 503,
    errors.LibraryMissing: 503,
    errors.ExtraBroken: 503,
    errors.McpFailed: 502,
    errors.NoSecret: 503,
}


def status_of(error: BaseException) -> int:
    """The status of an error: 500 for an exception that is not Forkpoint's, 422 for an error that is not listed."""
    if isinstance(error, TurnFailed) and type(error) is TurnFailed:
        return _status_of_turn(error)
    if not isinstance(error, ForkpointError):
        return HTTPStatus.INTERNAL_SERVER_ERROR
    return _status_of_class(type(error), error.code)


def retry_after(error: BaseException) -> int | None:
    """The seconds after which another try makes sense, or None if that is not known."""
    cause = error.cause if isinstance(error, TurnFailed) else error
    said = getattr(cause, "retry_after", None)
    return None if said is None else max(1, round(said))


def _status_of_turn(failed: TurnFailed) -> int:
    """The status of the reason why a turn failed, if the reason is known."""
    if failed.cause is not None:
        return status_of(failed.cause)
    code = failed.turn.error.code if getattr(failed.turn, "error", None) is not None else ""
    kind = KINDS.get(code, ForkpointError)
    return _status_of_class(class_of(kind), code)


def _status_of_class(cls: type[ForkpointError], code: str) -> int:
    for kind in (KINDS.get(code), *cls.__mro__):
        if kind in _BY_KIND:
            return _BY_KIND[kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR if cls is ForkpointError else HTTPStatus.UNPROCESSABLE_ENTITY

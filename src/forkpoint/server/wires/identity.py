"""The conversation that a request is for, as its headers name it. Tests: tests/server/chat/test_identity.py."""

from collections.abc import Mapping
from typing import cast, get_args

from msgspec import Struct

from forkpoint.backend.names import check_chosen_name
from forkpoint.engine import ForkPoint
from forkpoint.errors import BadRequest
from forkpoint.ids import new_id
from forkpoint.server.settings import ConversationHeader, History

CREATE, FORK_FROM, HISTORY, SIDE, RETRIES = (
    "X-Conversation-Create",
    "X-Fork-From",
    "X-Conversation-History",
    "X-Conversation-Side",
    "X-Stainless-Retry-Count",
)
STATUS, BRANCH, TURN, IGNORED = "X-Conversation-Status", "X-Conversation-Branch", "X-Turn-Id", "X-Ignored-Fields"

_YES, _NO = {"true", "1", "yes"}, {"", "false", "0", "no"}


class Identity(Struct, frozen=True):
    """A conversation, by its outer name, and how the client uses it."""

    name: str
    header: str  # the header that names it, which the answer repeats
    history: History
    fork_of: ForkPoint | None = None
    is_made_up: bool = False  # whether the client leaves the name to the server
    is_retry: bool = False  # whether the client's own library says that it sends the same request once more
    is_side: bool | None = None  # whether it is asked beside the conversation; None: the client does not say


def read_identity(
    headers: Mapping[str, str], named_by: tuple[ConversationHeader, ...], default: History | None
) -> Identity | None:
    """The conversation that a request names, or None. Raises `BadRequest` or `BadName`.

    ``default`` is how clients with the caller's key send their lists, unless a header says it.
    """
    if not named_by:  # this server has no conversations for such clients
        return None
    given = {header: value for header in named_by if (value := headers.get(header.name, "").strip())}
    if len(set(given.values())) > 1:
        said = " and ".join(header.name for header in given)
        raise BadRequest(f"{said} name two conversations, and it can be in one only")
    fork_of = _fork_point(headers.get(FORK_FROM, "").strip())
    history = _history(headers.get(HISTORY, "").strip().lower())
    create = _is_true(CREATE, headers.get(CREATE, "").strip().lower())
    side = headers.get(SIDE, "").strip().lower()
    is_side = _is_true(SIDE, side) if side else None  # checked without a conversation too, where it has no effect
    header = next(iter(given), named_by[0])
    name = given[header] if given else new_id() if create else None
    if name is None:
        if fork_of is not None:
            raise BadRequest(f"{FORK_FROM} needs a name for the fork: {header.name}, or {CREATE}: true")
        return None
    return Identity(
        name=check_chosen_name("conversation's name", name),
        header=header.name,
        history=history or header.history or default or "latest",
        fork_of=fork_of,
        is_made_up=not given,
        is_retry=is_retry(headers),
        is_side=is_side,
    )


def is_retry(headers: Mapping[str, str]) -> bool:
    """Whether the client's own library says that it sends the same request once more."""
    return _count(headers.get(RETRIES, "")) > 0


def _fork_point(given: str) -> ForkPoint | None:
    if not given:
        return None
    name, _, turn = given.partition("@")
    return ForkPoint(check_chosen_name("name of a conversation to fork", name), turn or None)


def _is_true(header: str, given: str) -> bool:
    if given not in _YES | _NO:
        raise BadRequest(f"{header} must be true or false")
    return given in _YES


def _history(given: str) -> History | None:
    if given and given not in get_args(History):
        raise BadRequest(f"{HISTORY} must be latest or full")
    return cast("History", given) if given else None


def _count(given: str) -> int:
    return int(given) if given.isascii() and given.isdigit() and len(given) < 9 else 0

"""How callers name things: a conversation by an id or a name, a place in history by a turn or an event.
Tests: tests/conversation/test_conversations.py, test_fork.py."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Protocol, TypeAlias
from uuid import UUID

from forkpoint.agent.agent import Agent
from forkpoint.backend.results import Call, Turn
from forkpoint.errors import BadAgent, BadName, BadPosition
from forkpoint.events import Event, Position
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.llm.model import LLM
from forkpoint.parameters import Words
from forkpoint.store.values import check_name


class Identified(Protocol):
    """A conversation as an object, of either face."""

    @property
    def id(self) -> str: ...


Id: TypeAlias = str | UUID
"""An id, as a text or as a UUID. Where a conversation is meant, a text may also be its name."""

Named: TypeAlias = Id | Annotated[Identified, Words("a conversation")]
"""A conversation: its id or name, or an object that stands for it."""

TurnId: TypeAlias = Id | Turn
"""A turn: its id, or the turn itself."""

Point: TypeAlias = Id | Position | Turn | Event | Call
"""A place in history: a turn or its id, an event or its id, a call of a committed turn."""


def as_id(given: Id | None) -> tuple[str, str | None]:
    """The id and the name that somebody means by an id: an id is one, anything else is a name for a fresh one."""
    if given is None:
        return new_id(), None
    text = as_text(given)
    try:
        id_to_bytes(text)
    except (ValueError, TypeError):
        return new_id(), check_chosen_name("name", text)
    return text, None


def as_text(given: Id) -> str:
    """An id as a text."""
    return str(given) if isinstance(given, UUID) else given


def check_chosen_name(what: str, name: str) -> str:
    """Returns the name that a client chose for a conversation. Raises `BadName` if it is malformed, or a placeholder.

    A client that has no name yet often sends what its language makes of that: ``None``, ``chat-undefined``, a template
    that nobody filled in. All its conversations would be one.
    """
    if not isinstance(name, str):
        raise BadName(what, str(name)[:200], f"it is of the class {type(name).__name__}, and must be a text")
    if _PLACEHOLDER.fullmatch(name) or _is_joined_placeholder(name):
        raise BadName(what, name[:200], _UNFILLED)
    return check_name(what, name)


_PLACEHOLDER = re.compile(
    r"none|nan|null|nil|undefined|true|false"  # what a language writes where there is no text
    r"|\[object .*\]|object object"
    r"|\{.*\}|\$\{?\w+\}?|<.*>|%[sdr]|%\(\w+\)s|%\w+%|:[a-z_]\w*",  # templates that nobody filled in
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_TEMPLATE = re.compile(r"__[A-Z][A-Z0-9_]*__")
_NOTHING = {"None", "NaN", "null", "undefined"}  # as languages write them
_NOTHING_IN_ANY_CASE = {word.lower() for word in _NOTHING}
_UNFILLED = (
    "it looks like a placeholder that the client did not fill in, so all of its conversations would be one. Send the "
    "client's own id of this conversation, or no name at all for a new one"
)


def _is_joined_placeholder(name: str) -> bool:
    """Whether a client has put a name together, and had nothing to put in: ``chat-None``, ``null:null``, ``__ID__``.

    The last part alone counts only as a language writes it, since ``user:none`` may be somebody's choice.
    """
    if _TEMPLATE.fullmatch(name):
        return True
    parts = [part for part in re.split("[-_:.]", name) if part]
    return bool(parts) and (parts[-1] in _NOTHING or all(part.lower() in _NOTHING_IN_ANY_CASE for part in parts))


def as_agent(given: Agent | LLM | str) -> Agent:
    """An agent, or one that is nothing but a model. Raises `BadAgent` for anything else."""
    if isinstance(given, str | LLM):
        return Agent(given)
    if not isinstance(given, Agent):
        raise BadAgent(f"it is of the class {type(given).__name__}, and must be an Agent, an LLM or a model's name")
    return given


def as_answerer(given: Agent | LLM | str, *, remote: bool) -> Agent | str:
    """The same, or the name of one of the server's own agents: a model's name has a slash, and theirs have none."""
    return given if remote and isinstance(given, str) and "/" not in given else as_agent(given)


def as_name(given: Named) -> str:
    """The id or the name of a conversation. Raises `BadName` for anything else."""
    name: Any = as_text(given) if isinstance(given, str | UUID) else getattr(given, "id", None)
    if not isinstance(name, str):  # Python does not check
        raise BadName("conversation", str(given)[:200], "it is a conversation, or its id or name")
    return name


def as_turn(given: TurnId) -> str:
    """The id of a turn."""
    return given.id if isinstance(given, Turn) else as_text(given)


def as_position(given: "str | Position | Event") -> Position:
    """The position of an event. Raises `BadPosition`."""
    if isinstance(given, Event):
        return given.id
    if isinstance(given, Position):
        return given
    try:
        return Position.parse(given)
    except (ValueError, AttributeError):
        raise BadPosition(str(given)[:200], "it is not an event's id", use="an id like 1-4") from None


def as_point(given: Point | None) -> str | Position | None:
    """A place in history as the store knows it: a turn's id, or an event's position."""
    match given:
        case Turn(id=turn, outcome="committed"):
            return turn
        case Turn(id=turn, outcome=outcome):
            why = f"it is {outcome}, and only what is committed is history"
            raise BadPosition(f"turn {turn}", why, use="its base")
        case Event(id=position):
            return position
        case Call(event=Position() as position):
            return position
        case Call(id=call):
            raise BadPosition(f"call {call}", "its turn is not committed", use="a call of a committed turn")
        case UUID():
            return str(given)
        case str():
            try:
                return Position.parse(given)
            except ValueError:
                return given
        case _:
            return given


def with_title(title: str | None, tags: Mapping[str, str] | None) -> tuple[str | None, dict[str, str]]:
    """A title and the other tags. A tag of that name is the title, unless one is given.

    Raises `BadName` for a tag without a name, and for what no screen can show: a NUL.
    """
    others = dict(tags or {})
    if "" in others:
        raise BadName("name of a tag", "", "it is empty")
    for what, text in [("title", title or ""), *(("tag", text) for tag in others.items() for text in tag)]:
        if "\0" in text:
            raise BadName(what, text[:200], "it has a NUL in it")
    tagged = others.pop("title", None)
    return (tagged if title is None else title), others

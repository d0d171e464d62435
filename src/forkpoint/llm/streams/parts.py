"""What the streams of all wires have in common. Tests: tests/llm/test_streams.py."""

from typing import Any

import msgspec
from msgspec.structs import replace

from forkpoint.errors import AnswerMalformed, RequestRefused
from forkpoint.events import AssistantMessage, Reasoning, Text, ToolCall
from forkpoint.history.wholeness import read_json
from forkpoint.ids import new_id
from forkpoint.llm.answers import Answer, Finish, Said

FILTERED = "its provider's filter stopped the answer"
"""The detail of the error for an answer that a filter has stopped."""


def whole_answer(
    said: list[Said], finish: Finish, *, model: str, response_id: str | None, thinks_last: bool | None = None
) -> Answer:
    """The answer made of what was said, if it is one. docs/failed-turns.md has the rule as a table.

    Text that was ended at a limit or by a filter is an answer, and its finish says so. A cut inside the arguments of a
    call or inside thoughts is no answer, and neither is an empty one. ``thinks_last`` says whether thoughts came last,
    if the order of what was said does not. Raises `AnswerMalformed`, or `RequestRefused` if a filter left no answer.
    """
    calls = [body for body in said if isinstance(body, ToolCall)]
    has_text = any(isinstance(body, AssistantMessage) for body in said)
    if thinks_last is None:
        thinks_last = bool(said) and isinstance(said[-1], Reasoning)
    if finish == "filter" and (calls or thinks_last or not has_text):
        raise RequestRefused.model_refused(model, FILTERED)
    if not calls and not has_text:
        why = "there is no text and no call"
        if finish == "length":
            why = f"{'all its tokens went into thoughts' if said else why}, so raise max_tokens"
        raise AnswerMalformed.model_empty(model, why, lasting=finish == "length")
    for call in calls:
        if not call.tool:
            raise AnswerMalformed(model, "a tool call names no tool")
    if finish == "length" and (thinks_last or (calls and not _is_object(calls[-1].arguments))):
        where = "in its thoughts" if thinks_last else f"in its call of {calls[-1].tool!r}"
        raise AnswerMalformed(model, f"it was cut off {where} by the token limit, so raise max_tokens", lasting=True)
    if calls:
        finish = "tool_calls"
    elif finish == "tool_calls":
        finish = "stop"  # nobody is waited for
    return Answer(tuple(_with_calls_in_order(said)), finish, response_id)


def _is_object(arguments: str) -> bool:
    """Whether arguments are whole: what is cut off is never an object."""
    try:
        return isinstance(read_json(arguments), dict)
    except ValueError:
        return False


def spoken(text: str, provider: str, item: str | None = None) -> AssistantMessage | None:
    """A message of these words, or None if they are blank: a blank one would be refused by every provider."""
    text = mended(text)
    return AssistantMessage((Text(text),), provider=provider, item=item) if text.strip() else None


class SplitText:
    """Text that comes in pieces. A character that is split over two of them is held back until it is whole."""

    def __init__(self, start: str = "") -> None:
        self._pieces = [start]
        self._half = ""

    def add(self, piece: str) -> str:
        """Takes a piece, and gives what can be shown of it now."""
        self._pieces.append(piece)
        piece = self._half + piece
        self._half = piece[-1] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        return mended(piece[: len(piece) - len(self._half)])

    def __str__(self) -> str:
        return mended("".join(self._pieces))


def mended(text: str) -> str:
    """The same text with each pair of surrogates as the character that it is; half a pair is replaced."""
    if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def as_json(value: Any) -> str:
    """A JSON value as text, in its own order. Half characters, which cannot be stored, are replaced."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended_value(value)).decode()


def field(value: Any, *names: str) -> Any:
    """What stands at ``value[name][name]...``, or None where anything is missing or not an object."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; none, if it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def words(value: Any) -> str:
    """A text, or nothing for whatever else stands there. It may end in half a character."""
    return value if isinstance(value, str) else ""


def name(value: Any) -> str:
    """A text that comes whole, such as an id; nothing for whatever else stands there."""
    return mended(words(value))


def count(value: Any) -> int:
    """A number of tokens, or 0 for whatever else stands there."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53 else 0


def _with_calls_in_order(said: list[Said]) -> list[Said]:
    """The same, with an id for each call that came without one, or with another's, and arguments for each."""
    seen: set[str] = set()
    result: list[Said] = []
    for body in said:
        if isinstance(body, ToolCall):
            if not body.call_id or body.call_id in seen:
                body = replace(body, call_id=f"call_{new_id()}", item=None)
            if not body.arguments:
                body = replace(body, arguments="{}")
            seen.add(body.call_id)
        result.append(body)
    return result


def _mended_value(value: Any) -> Any:
    match value:
        case str():
            return mended(value)
        case list():
            return [_mended_value(item) for item in value]
        case dict():
            return {mended(key) if isinstance(key, str) else key: _mended_value(item) for key, item in value.items()}
        case _:
            return value

"""A client's list of messages: what of it is new, and what it says was before."""

from collections.abc import Sequence

from msgspec import Struct

from forkpoint.backend.messages import Given
from forkpoint.errors import CallNotOpen, Invalid, NoNewMessage
from forkpoint.events import AssistantMessage, Imported, SystemMessage, Text, ToolCall, ToolResult, UserMessage
from forkpoint.server.wires.chat.heard import Heard, Said

SOURCE = "chat completions"
"""How history is marked that a client brought along."""


class Listed(Struct, frozen=True):
    """A list, taken apart: the instructions, what was before, and what is new."""

    system: str  # of all system and developer messages, wherever they stand
    before: tuple[Said, ...]
    results: tuple[ToolResult, ...]  # of calls that were handed to the client
    message: UserMessage | None


def read_list(messages: Sequence[Heard]) -> Listed:
    """The list with its new part set apart. Raises `NoNewMessage`: nothing older is ever used instead; or `Invalid`."""
    system = "\n\n".join(message.text for message in messages if message.role == "system" and message.bodies)
    others = [message for message in messages if message.role != "system"]
    if not others:
        raise NoNewMessage("there are only system messages")
    last, message = others[-1], None
    if last.role == "user":
        if not last.bodies:
            raise NoNewMessage("the last message is blank")
        message = next(body for body in last.bodies if isinstance(body, UserMessage))
        others.pop()
    elif last.role == "assistant":
        raise NoNewMessage("the last message is the assistant's own")
    results: list[ToolResult] = []
    while others and others[-1].role == "tool":
        results[:0] = [body for body in others.pop().bodies if isinstance(body, ToolResult)]
    if len({one.call_id for one in results}) < len(results):
        raise Invalid("messages", "a call has two results")
    before = tuple([body for one in others for body in one.bodies])
    return Listed(system, before, tuple(results), message)


def outline_of(before: Sequence[Said]) -> int | None:
    """A number for a list that is nothing but texts, the same for the same list; None for any other.

    A list of thousands is told from another in no time, as long as this process lives.
    """
    texts: list[str] = []
    for body in before:
        if not isinstance(body, UserMessage | AssistantMessage) or len(body.parts) != 1:
            return None
        (part,) = body.parts
        if not isinstance(part, Text):
            return None
        texts += ("user" if isinstance(body, UserMessage) else "assistant", part.text)
    return hash(tuple(texts))


def as_asked(messages: Sequence[Heard]) -> tuple[Given, ...]:
    """A list as it is, for an answer without a conversation. Raises `NoNewMessage` for one that says nothing.

    Some clients ask for a title with a system message alone: then it is the question.
    """
    given = paired([body for message in messages for body in message.bodies])
    if not given:
        raise NoNewMessage("all messages are blank")
    if all(isinstance(body, SystemMessage) for body in given):
        last = given.pop()
        assert isinstance(last, SystemMessage)
        given.append(UserMessage(last.parts))
    return tuple(given)


def imported(before: Sequence[Said], results: Sequence[ToolResult] = ()) -> list[Given]:
    """History that a client brings along, as events that say so; with new results, of calls that it ends with.

    Raises `CallNotOpen` for results whose calls are not there.
    """
    given = paired([*before, *results])
    taken = {id(one) for one in given}
    if strangers := [one for one in results if id(one) not in taken]:
        raise CallNotOpen(strangers[0].call_id[:200], "(new)", "the list does not end with such a call")
    if not given:
        return []
    left_out = len(before) + len(results) - sum(not _is_missing(body) for body in given)
    source = f"{SOURCE} ({left_out} results without their calls left out)" if left_out else SOURCE
    return [Imported(source, len(given)), *given]


def paired(bodies: Sequence[Said]) -> list[Given]:
    """The same with a result for each call: one that the list has none for was not answered.

    A result whose call was trimmed away is left out, for no model would take it.
    """
    given: list[Given] = []
    open: dict[str, ToolCall] = {}
    for body in bodies:
        if isinstance(body, ToolResult):
            if open.pop(body.call_id, None) is None:
                continue
        elif open and not (isinstance(body, ToolCall) and isinstance(given[-1], ToolCall)):
            given += _missing(open)
        if isinstance(body, ToolCall):
            open[body.call_id] = body
        given.append(body)
    return given + _missing(open)


def _missing(open: dict[str, ToolCall]) -> list[ToolResult]:
    made = [ToolResult(call.call_id, call.tool, (), "not_answered") for call in open.values()]
    open.clear()
    return made


def _is_missing(body: Given) -> bool:
    return isinstance(body, ToolResult) and body.status == "not_answered"

"""A client's list of messages: what of it is new, and what is history from elsewhere.
Tests: tests/server/chat/test_request.py, test_bounds.py."""

from collections.abc import Sequence

from forkpoint.backend.messages import Given, MessageBody
from forkpoint.engine import ClientList, paired
from forkpoint.errors import Invalid
from forkpoint.events import AssistantMessage, Imported, SystemMessage, Text, ToolResult, UserMessage
from forkpoint.wire.chat_messages import ClientMessage

SOURCE = "chat completions"
"""How history is marked that a client brought along."""


def read_list(messages: Sequence[ClientMessage], *, is_whole: bool = False) -> ClientList:
    """The list with its new part set apart. System and developer messages count wherever they stand.

    Raises `Invalid` if a call has two results, or if the end is not new (`no_new_user_message`): nothing older is ever
    used instead.
    """
    system = "\n\n".join(message.text for message in messages if message.role == "system" and message.bodies)
    others = [message for message in messages if message.role != "system"]
    if not others:
        raise Invalid.no_new_user_message("there are only system messages")
    last, message = others[-1], None
    if last.role == "user":
        if not last.bodies:
            raise Invalid.no_new_user_message("the last message is blank")
        message = next(body for body in last.bodies if isinstance(body, UserMessage))
        others.pop()
    elif last.role == "assistant":
        raise Invalid.no_new_user_message("the last message is the assistant's own")
    results: list[ToolResult] = []
    while others and others[-1].role == "tool":
        results[:0] = [body for body in others.pop().bodies if isinstance(body, ToolResult)]
    if len({one.call_id for one in results}) < len(results):
        raise Invalid("messages", "a call has two results")
    before = tuple([body for one in others for body in one.bodies])
    return ClientList(
        source=SOURCE, system=system, before=before, results=tuple(results), message=message, is_whole=is_whole
    )


def outline_of(before: Sequence[MessageBody]) -> int | None:
    """A number that is the same for the same list of texts, in this process. None if the list has anything but texts.

    It tells a list of thousands from another at once.
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


def kept(given: Sequence[Given]) -> tuple[Given, ...]:
    """What `as_asked` gives, for a turn that is kept: all but the question at the end is history from elsewhere."""
    before = given[:-1] if isinstance(given[-1], UserMessage) else given
    return (Imported(SOURCE, len(before)), *given) if before else tuple(given)


def as_asked(messages: Sequence[ClientMessage]) -> tuple[Given, ...]:
    """A list as it is, for an answer beside any conversation. Raises `Invalid` if all messages are blank.

    Some clients ask for a title with a system message alone: then that message is the question.
    """
    given = paired([body for message in messages for body in message.bodies])
    if not given:
        raise Invalid.no_new_user_message("all messages are blank")
    if all(isinstance(body, SystemMessage) for body in given):
        last = given.pop()
        assert isinstance(last, SystemMessage)
        given.append(UserMessage(last.parts))
    return tuple(given)

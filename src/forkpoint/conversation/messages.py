"""Messages: what a caller may pass as one, and how a turn's input is stored."""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from forkpoint.errors import NotWhole
from forkpoint.events import File, Image, JsonText, NewEvent, Part, Text, UserMessage
from forkpoint.history.wholeness import check_whole

Message: TypeAlias = str | Part | list[Part] | tuple[Part, ...] | UserMessage
"""What a user says: a text, a picture, a file, or several of these."""


def as_message(message: Message) -> UserMessage:
    """The event that a message becomes. Raises `NotWhole` for one that is blank, or is none."""
    match message:
        case UserMessage():
            made = message
        case str():
            made = UserMessage((Text(message),))
        case Text() | Image() | File():
            made = UserMessage((message,))
        case list() | tuple():
            made = UserMessage(tuple(message))
        case _:
            raise NotWhole("user_message", f"it is of the class {type(message).__name__}, and no text or part")
    try:
        again = msgspec.convert(msgspec.to_builtins(made), UserMessage)  # types that Python does not check
    except (msgspec.ValidationError, TypeError) as error:
        raise NotWhole("user_message", f"its parts must be of the classes Text, Image or File ({error})") from None
    check_whole(NewEvent(again))
    write_input([again])
    return again


def write_input(messages: Sequence[UserMessage]) -> JsonText:
    """What a turn was asked, as it is stored with it. Raises `NotWhole` for text that is not valid Unicode."""
    try:
        return msgspec.json.encode(messages).decode()
    except UnicodeEncodeError as error:
        raise NotWhole("user_message", f"its text is not valid Unicode ({error.reason})") from None


def read_input(text: JsonText | None) -> tuple[UserMessage, ...]:
    """The messages that a turn was asked. A turn that was begun without any has none."""
    return () if text is None else msgspec.json.decode(text, type=tuple[UserMessage, ...])

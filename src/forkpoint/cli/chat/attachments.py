"""``@file`` in a message of a chat: the file becomes part of the message. Tests: tests/cli/test_chat_input.py."""

import os
import re
from collections.abc import Iterable, Iterator

from forkpoint.attachments import attachment
from forkpoint.backend.results import words
from forkpoint.cli import figures
from forkpoint.cli.chat.shell import COMMAND
from forkpoint.events import Part, Text, UserMessage

_FILE = "[file "  # what `attachment` puts before a text
_NAMED = re.compile(r"""(?<!\S)@(?:"([^"]+)"|(\S+))""")
_AFTER = ".,;:!?)]}'\""


def named_files(message: str) -> tuple[str, ...]:
    """The files that a message names with @, each once. An @ that names no file is text."""
    return tuple(dict.fromkeys(_files(message)))


def attached(path: str) -> tuple[Part, str]:
    """The part that a file becomes, and a sentence about it. Raises `BadFile` or `TooLarge`."""
    part = attachment(os.path.expanduser(path))
    return part, f"attached {path} ({figures.size(os.path.getsize(os.path.expanduser(path)))})"


def is_own_words(part: Part) -> bool:
    """Whether a part of a message is what the user typed, and nothing that was attached to it."""
    return isinstance(part, Text) and not part.text.startswith((_FILE, COMMAND))


def own_words(messages: Iterable[UserMessage]) -> str:
    """What the user typed in messages; all of them in words, if that is nothing."""
    messages = tuple(messages)
    typed = [part for message in messages for part in message.parts if is_own_words(part)]
    return words(typed) or "\n".join(words(message.parts) for message in messages)


def _files(message: str) -> Iterator[str]:
    for quoted, plain in _NAMED.findall(message):
        for path in (quoted or plain, plain.rstrip(_AFTER)):
            if path and os.path.isfile(os.path.expanduser(path)):
                yield path
                break

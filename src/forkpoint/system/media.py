"""Media types by content, and the files that become part of a message.

A file's name says nothing certain about what is in the file, and a provider refuses a picture that is not of the type
that the request says. So the first bytes decide. Tests: tests/test_attachments.py.
"""

import binascii
import os

from forkpoint.errors import BadFile, TooLarge

PICTURE_LIMIT = 10_000_000
"""Bytes of a picture or a document that may be part of a message. Some providers take less, and say so."""
TEXT_LIMIT = 1_000_000
"""Bytes of a text file that may be part of a message: some 250,000 tokens."""
PDF = "application/pdf"

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)


def media_type(start: bytes) -> str | None:
    """The type of a picture or a PDF document that begins so; None if it is neither, or no model could see it."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _BEGINNINGS if start.startswith(begin)), None)


def is_base64(data: str) -> bool:
    """Whether a text is base64, as providers read it: one run of it, with its padding."""
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except ValueError:  # also of characters that are not ASCII
        return False
    return True


def read_start(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a file: all of it, or its first ``limit + 1`` bytes. Raises `BadFile` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL in it
        raise BadFile(os.fsdecode(path), _why(error)) from None


def check_size(path: str | os.PathLike[str], content: bytes, limit: int) -> None:
    """Raises `TooLarge` if the content that `read_start` gave is more than ``limit`` bytes."""
    if len(content) > limit:
        size = os.stat(path).st_size if os.path.isfile(path) else 0  # a pipe does not say its size
        raise TooLarge(f"file {shown_path(path)!r}", max(size, len(content)), limit)


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path on one line, in characters that can be shown and stored."""
    text = os.fsdecode(path).encode(errors="backslashreplace").decode()
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _why(error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such file"
        case IsADirectoryError():
            return "it is a folder"
        case PermissionError():
            return "it may not be read"
        case OSError(strerror=str(words)):
            return f"it cannot be read ({words})"
        case _:
            return f"it cannot be read ({error})"

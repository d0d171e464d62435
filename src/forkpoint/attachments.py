"""Files as parts of a message.

::

    from forkpoint import Conversation, attachment

    conversation.run(["Why does this fail?", attachment("build.log"), attachment("screen.png")])
"""

import base64
import os

from forkpoint.errors import BadFile
from forkpoint.events import File, Image, Part, Text
from forkpoint.system.media import PDF, PICTURE_LIMIT, TEXT_LIMIT, check_size, media_type, read_start, shown_path


def attachment(path: str | os.PathLike[str], *, limit: int | None = None) -> Part:
    """A file as a part of a message. The file's content, not its name, says what it becomes.

    - A picture (PNG, JPEG, GIF or WebP) becomes an `Image`, and a PDF document a `File`.
    - Text in UTF-8 becomes a `Text`: a line ``[file NAME]`` with the path as it was given, and the content.

    ``limit``: how many bytes the file may have. Default: `PICTURE_LIMIT` for pictures and documents, `TEXT_LIMIT` for
    text. Raises `BadFile` if the file cannot be read or is of another kind, and `TooLarge` if it has more bytes.
    """
    content = read_start(path, PICTURE_LIMIT if limit is None else limit)
    kind = media_type(content)
    check_size(path, content, limit if limit is not None else TEXT_LIMIT if kind is None else PICTURE_LIMIT)
    if kind is None:
        return Text(f"[file {shown_path(path)}]\n{_text(path, content)}")
    data = base64.b64encode(content).decode()
    return File(os.path.basename(shown_path(path)), kind, data) if kind == PDF else Image(kind, data)


def _text(path: str | os.PathLike[str], content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(os.fsdecode(path), f"it is no picture, no PDF document and no text in UTF-8 ({error})") from None
    if "\0" in text:
        raise BadFile(os.fsdecode(path), "it is no picture and no PDF document, and text has no NUL in it")
    return text

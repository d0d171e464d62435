"""``--image`` and ``--file``: files that are part of a message. Tests: tests/cli/test_attachments_given.py."""

from collections.abc import Iterable
from typing import Annotated, TypeAlias

from forkpoint.attachments import attachment
from forkpoint.cli.options import option
from forkpoint.events import Image, Part

Images: TypeAlias = Annotated[
    list[str] | None, option("--image FILE", "A picture that belongs to the message: PNG, JPEG, GIF, WebP. Repeatable.")
]

Files: TypeAlias = Annotated[
    list[str] | None,
    option("--file FILE", "A file that belongs to the message: a picture, a PDF document, a text. Repeatable."),
]


def attached(images: Iterable[str] | None, files: Iterable[str] | None) -> list[Part]:
    """The parts that the files become, pictures first. Raises `BadFile` or `TooLarge`."""
    return [*(Image.from_file(path) for path in images or ()), *(attachment(path) for path in files or ())]

"""The formats of exports, by name. A new one is a function that writes it, and a row here.
Tests: tests/conversation/test_copies.py."""

from collections.abc import AsyncGenerator, Callable

from msgspec import Struct

from forkpoint.engine.exports.archive import write_archive
from forkpoint.engine.exports.markdown import write_markdown
from forkpoint.engine.exports.selection import Selection
from forkpoint.errors import BadArgument
from forkpoint.store.protocol import Store


class ExportFormat(Struct, frozen=True):
    """How an export can be written."""

    media_type: str
    suffix: str
    write: Callable[[Store, Selection], AsyncGenerator[bytes, None]]


FORMATS = {
    "forkpoint": ExportFormat("application/x-ndjson", ".jsonl", write_archive),
    "md": ExportFormat("text/markdown; charset=utf-8", ".md", write_markdown),
}


def format_named(name: str) -> ExportFormat:
    """The format with this name. Raises `BadArgument`."""
    try:
        return FORMATS[name]
    except KeyError:
        raise BadArgument("export()", f"format={name!r}", f"there are {', '.join(FORMATS)}") from None

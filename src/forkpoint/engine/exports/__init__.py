"""Exports: conversations that leave a store as a file, and files that come into one."""

from forkpoint.engine.exports.archive import import_archive
from forkpoint.engine.exports.formats import FORMATS, format_named

__all__ = ["FORMATS", "format_named", "import_archive"]

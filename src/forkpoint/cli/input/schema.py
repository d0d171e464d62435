"""``--schema``: the form that an answer must have, from a file or from the command line.
Tests: tests/cli/test_schema_given.py."""

from pathlib import Path
from typing import Any

import typer

from forkpoint.history.wholeness import read_json

OPTION = "--schema"


def schema_from(given: str, hint: str = OPTION) -> dict[str, Any]:
    """The JSON schema in a file, or the schema itself if the text begins with ``{``. Raises `typer.BadParameter`."""
    text, where = (given, "it") if given.lstrip().startswith("{") else (_content(given, hint), given)
    try:
        schema = read_json(text)
    except ValueError as error:
        raise typer.BadParameter(f"{where} is no JSON schema: it {error}", param_hint=hint) from None
    if not isinstance(schema, dict):
        raise typer.BadParameter(f"{where} is no JSON schema: that is an object, {{...}}", param_hint=hint)
    return schema


def _content(path: str, hint: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise typer.BadParameter(f"{path} cannot be read: {why}", param_hint=hint) from None

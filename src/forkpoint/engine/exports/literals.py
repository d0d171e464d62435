"""Literal secrets: an export has none, and what looks like one in an agent's settings keeps the export from leaving.

Agents hold references to secrets. But a program may have written a key itself where a reference belongs: into the
variables, the headers or the address of an MCP server, or into further fields of a model's requests. The text cannot be
left out of a file, since its digest is on record; so the file is not written.
Tests: tests/conversation/test_copies.py.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from forkpoint.agent.secrets.withheld import looks_secret
from forkpoint.events import JsonText

_REFERENCE = re.compile(r"\$\{[^}]*\}")
_HOLDERS = {"env", "headers", "extra"}  # where names and values of a user's own stand
_TEXTS = {"url", "base_url"}


def literal_secret(settings: JsonText) -> str | None:
    """The name of the first setting that holds what looks like a secret, or None."""
    return next(_found(msgspec.json.decode(settings), "", held=False), None)


def _found(value: Any, name: str, *, held: bool) -> Iterator[str]:
    match value:
        case dict():
            for key, inner in value.items():
                yield from _found(inner, key, held=held or key in _HOLDERS)
        case [str() as key, str() as inner] if held:
            yield from _found(inner, key, held=True)
        case list():
            for inner in value:
                yield from _found(inner, name, held=held)
        case str() if held or name in _TEXTS:
            if name == "extra":
                yield from _found(msgspec.json.decode(value), name, held=True)
            elif (rest := _REFERENCE.sub("", value).strip()) and _tells(name, rest, value):
                yield name
        case _:
            return


def _tells(name: str, rest: str, value: str) -> bool:
    """Whether a text is a secret of its own. ``rest`` is what it has besides references."""
    if rest != value.strip() and len(rest) < 12:
        return False  # as in "Bearer ${NAME}"
    return looks_secret(name, rest)

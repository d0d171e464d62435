"""How results and errors look: tables and lines for people, one JSON document for programs."""

import sys
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from forkpoint.errors import ForkpointError

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]


def print_json(document: Any) -> None:
    """The result, for programs."""
    print(msgspec.json.format(msgspec.json.encode(document)).decode())


def print_error(error: ForkpointError, *, as_json: bool) -> None:
    """What went wrong, on stderr."""
    if as_json:
        document = {"error": {"code": error.code, "message": str(error)}}
        print(msgspec.json.encode(document).decode(), file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)


def tell(line: str) -> None:
    """What is being done, on stderr, so that stdout holds the result alone."""
    print(line, file=sys.stderr, flush=True)

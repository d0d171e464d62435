"""Tables of a settings file, read field by field, so that everything that is wrong with them is found in one go.
Tests: tests/workspace/test_models.py, tests/server/test_agents.py."""

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from forkpoint.errors import ForkpointError
from forkpoint.llm.model import LLM

MODEL: dict[str, Any] = {name: kind for name, kind in typing.get_type_hints(LLM).items() if name != "api_key"} | {
    "model": str,
    "stop": str | tuple[str, ...],
    "session_headers": str | tuple[str, ...],
    "headers": dict[str, str],
    "extra": dict[str, Any],
}
"""The fields of a model, and what each must be. A literal key is not among them."""


def typed(
    table: Any, kinds: dict[str, Any], where: str, problems: list[str], *, elsewhere: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The fields of a table that have a value of their kind. For each of the others a problem is added.

    ``elsewhere`` says of fields that stand in another table of the file where that is.
    """
    if not isinstance(table, dict):
        problems.append(f"{where or 'it'}: it must be a table")
        return {}
    said: dict[str, Any] = {}
    for name, value in table.items():
        place = f"{where}.{name}" if where else name
        if name == "api_key":
            problems.append(f"{place}: a literal key does not belong in a file; name its variable with api_key_env")
        elif name not in kinds:
            home = (elsewhere or {}).get(name)
            why = f"it belongs {home}" if home else f"there is no such field; {_known(name, kinds)}"
            problems.append(f"{place}: {why}")
        else:
            try:
                said[name] = msgspec.convert(value, kinds[name])
            except msgspec.ValidationError as error:
                problems.append(f"{place}: {error}")
            except ForkpointError as error:
                problems.append(f"{place}: {getattr(error, 'why', error)}")
    return said


def fields_of(said: dict[str, Any]) -> dict[str, Any]:
    """What a table's fields say of a model, as an `LLM` has it."""
    fields = {field: said[field] for field in said.keys() & MODEL.keys()}
    if "headers" in fields:
        fields["headers"] = tuple(fields["headers"].items())
    if "extra" in fields:
        fields["extra"] = msgspec.json.encode(fields["extra"]).decode()
    return fields


def _known(name: str, kinds: Iterable[str]) -> str:
    """The known name that is most like this one; or all of them if no name is."""
    near = difflib.get_close_matches(name, kinds, n=1)
    return f"did you mean {near[0]}?" if near else f"use {', '.join(sorted(kinds))}"

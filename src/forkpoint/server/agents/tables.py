"""Tables of a file of agents, read field by field, so that all that is wrong with them is found in one go."""

import typing
from collections.abc import Iterable
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
"""The fields of a model, and what each must be. A literal key is none of them."""


def typed(table: Any, kinds: dict[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
    """Those fields of a table that are as they should be. The others are complained about."""
    if not isinstance(table, dict):
        problems.append(f"{where or 'it'}: it must be a table")
        return {}
    said: dict[str, Any] = {}
    for name, value in table.items():
        place = f"{where}.{name}" if where else name
        if name == "api_key":
            problems.append(f"{place}: a literal key does not belong in a file; name its variable with api_key_env")
        elif name not in kinds:
            problems.append(f"{place}: there is no such field; {_known(kinds)}")
        else:
            try:
                said[name] = msgspec.convert(value, kinds[name])
            except msgspec.ValidationError as error:
                problems.append(f"{place}: {error}")
            except ForkpointError as error:
                problems.append(f"{place}: {getattr(error, 'why', error)}")
    return said


def llm_of(said: dict[str, Any]) -> LLM:
    """The model that a table says. Raises `BadSetting`."""
    fields = {field: said[field] for field in said.keys() & MODEL.keys()}
    if "headers" in fields:
        fields["headers"] = tuple(fields["headers"].items())
    if "extra" in fields:
        fields["extra"] = msgspec.json.encode(fields["extra"]).decode()
    return LLM(**fields)


def _known(kinds: Iterable[str]) -> str:
    return f"use {', '.join(sorted(kinds))}"

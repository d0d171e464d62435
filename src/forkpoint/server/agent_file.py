"""The file of a server's agents, TOML or JSON. Everything that is wrong with it is found in one go."""

import functools
import importlib
import json
import os
import sys
import tomllib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.output import OutputSchema
from forkpoint.errors import BadSetting, ForkpointError
from forkpoint.llm.manifest import ToolSchema
from forkpoint.llm.model import LLM


class _ClientTool(Struct, frozen=True, forbid_unknown_fields=True):
    """A client's tool as a file has it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False

    def schema(self) -> ToolSchema:
        schema = ToolSchema(self.name, self.description, strict=self.strict)
        if self.parameters is None:
            return schema
        return msgspec.structs.replace(schema, parameters=msgspec.json.encode(self.parameters).decode())


_TOP: dict[str, Any] = {
    "agents": dict[str, dict[str, Any]],
    "default": str,
    "allow_models": tuple[str, ...],
    "workspaces": tuple[str, ...],
}
_MODEL: dict[str, Any] = {name: kind for name, kind in typing.get_type_hints(LLM).items() if name != "api_key"} | {
    "model": str,
    "stop": str | tuple[str, ...],
    "session_headers": str | tuple[str, ...],
    "headers": dict[str, str],
    "extra": dict[str, Any],
}
_TABLE: dict[str, Any] = _MODEL | {
    "agent": str,
    "instructions": str,
    "instructions_file": str,
    "output": dict[str, Any],
    "output_file": str,
    "limits": Limits,
    "approval": Literal["never", "always", "risky"],
    "client_tools": tuple[_ClientTool, ...],
    "unattended": Literal["deny", "run"],
    "workspace": str,
}


class AgentsFile(Struct, frozen=True):
    """What stands in a file of agents, as far as it can be used, and what is wrong with the rest."""

    agents: dict[str, Agent]
    named: frozenset[str]  # also those that cannot be used
    default: str | None
    allow_models: tuple[str, ...]
    roots: tuple[str, ...]
    workspaces: dict[str, str]
    problems: tuple[str, ...]


def read_agents(path: str | os.PathLike[str]) -> AgentsFile:
    """What stands in a file. Paths in it are relative to its folder."""
    file = Path(path)
    problems: list[str] = []
    fields = _typed(_read(file, problems), _TOP, "", problems)
    tables: dict[str, dict[str, Any]] = fields.get("agents", {})
    folder = file.absolute().parent
    agents: dict[str, Agent] = {}
    workspaces: dict[str, str] = {}
    for name, table in tables.items():
        where = f"agents.{name}"
        before = len(problems)
        said = _typed(table, _TABLE, where, problems)
        if "workspace" in said:
            workspaces[name] = str(folder / Path(said.pop("workspace")).expanduser())
        made = _agent(name, said, folder, where, problems, whole=len(problems) == before)
        if made is not None:
            agents[name] = made
    default = fields.get("default")
    if default is not None and default not in tables:
        problems.append(f"default: there is no agent {default!r}")
    roots = tuple(str(folder / Path(root).expanduser()) for root in fields.get("workspaces", ()))
    return AgentsFile(
        agents, frozenset(tables), default, fields.get("allow_models", ()), roots, workspaces, tuple(problems)
    )


def _read(file: Path, problems: list[str]) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            return json.loads(text, object_pairs_hook=_once)
        return tomllib.loads(text)
    except OSError as error:
        problems.append(f"it cannot be read ({error.strerror})")
    except (ValueError, RecursionError) as error:
        problems.append(f"it is not {'JSON' if file.suffix == '.json' else 'TOML'} ({error})")
    return {}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands there twice")
    return made


def _typed(table: Any, kinds: dict[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
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


def _known(kinds: Iterable[str]) -> str:
    return f"use {', '.join(sorted(kinds))}"


def _agent(
    name: str, said: dict[str, Any], folder: Path, where: str, problems: list[str], *, whole: bool
) -> Agent | None:
    before = len(problems)
    if "agent" in said:
        if others := sorted(said.keys() - {"agent"}):
            problems.append(f"{where}: agent names all of it already; leave out {', '.join(others)}")
        return _imported(said["agent"], folder, f"{where}.agent", problems)
    instructions = _instructions(said, folder, where, problems)
    schema = _schema(name, said, folder, where, problems)
    llm = {field: said[field] for field in said.keys() & _MODEL.keys()}
    if "model" not in llm and whole:
        problems.append(f"{where}: it has neither model nor agent")
    if "headers" in llm:
        llm["headers"] = tuple(llm["headers"].items())
    if "extra" in llm:
        llm["extra"] = msgspec.json.encode(llm["extra"]).decode()
    if "model" not in llm or not whole:
        return None
    try:
        model = LLM(**llm)
        output = OutputSchema(*schema) if schema is not None else None
        made = Agent(
            model,
            instructions=instructions,
            output=output,
            limits=said.get("limits", Limits()),
            approval=said.get("approval", "never"),
            name=name,
            client_tools=[tool.schema() for tool in said.get("client_tools", ())],
            unattended=said.get("unattended", "deny"),
        )
    except BadSetting as error:
        problems.append(f"{where}.{error.setting}: {error.why}")
        return None
    except ForkpointError as error:
        problems.append(f"{where}: {error}")
        return None
    return made if len(problems) == before else None


def _instructions(said: dict[str, Any], folder: Path, where: str, problems: list[str]) -> str:
    if "instructions_file" not in said:
        return str(said.get("instructions", ""))
    if "instructions" in said:
        problems.append(f"{where}: instructions and instructions_file are both there, and one must decide")
    return _text(folder / said["instructions_file"], f"{where}.instructions_file", problems) or ""


def _schema(name: str, said: dict[str, Any], folder: Path, where: str, problems: list[str]) -> tuple[str, str] | None:
    """What the form of the answer is called, and its JSON schema, written in one way however the file has it."""
    schema: Any = said.get("output")
    if "output_file" in said:
        if schema is not None:
            problems.append(f"{where}: output and output_file are both there, and one must decide")
        text = _text(folder / said["output_file"], f"{where}.output_file", problems)
        if text is None:
            return None
        try:
            schema = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            problems.append(f"{where}.output_file: it is not JSON ({error})")
            return None
    if schema is None:
        return None
    title = schema.get("title") if isinstance(schema, dict) else None
    return title if isinstance(title, str) and title else name, msgspec.json.encode(schema).decode()


def _text(file: Path, where: str, problems: list[str]) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        problems.append(f"{where}: {file} cannot be read ({error.strerror})")
    except ValueError:
        problems.append(f"{where}: {file} is not a text in UTF-8")
    return None


def _imported(path: str, folder: Path, where: str, problems: list[str]) -> Agent | None:
    """The agent at ``module:name``, in the operator's own code."""
    module, _, names = path.partition(":")
    if not module or not names:
        problems.append(f"{where}: {path!r} is not of the form MODULE:NAME")
        return None
    for place in (str(folder), os.getcwd()):  # last, so that no file that lies there takes the place of a library
        if place not in sys.path:
            sys.path.append(place)
    try:
        found = functools.reduce(getattr, names.split("."), importlib.import_module(module))
    except (Exception, SystemExit) as error:  # somebody's module may raise anything while it is imported
        problems.append(f"{where}: {path} cannot be imported ({type(error).__name__}: {error})")
        return None
    if not isinstance(found, Agent):
        problems.append(f"{where}: {path} is of the class {type(found).__name__}, and not an Agent")
        return None
    return found

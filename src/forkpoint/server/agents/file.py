"""A server's file, TOML or JSON: its agents, and its settings. Everything that is wrong with it is found in one go.
Tests: tests/server/test_agents.py."""

import functools
import importlib
import json
import os
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent, Limits
from forkpoint.agent.arguments import object_of
from forkpoint.agent.condense.condenser import Condenser, Window
from forkpoint.agent.hooks.hook import Hook, StoredHook, from_stored, rooted_hook
from forkpoint.agent.mcp import McpServer, rooted
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.secrets.secret import Secret
from forkpoint.agent.skills.files import Found, skills_in, together
from forkpoint.agent.skills.skill import Skill
from forkpoint.errors import BadConfig, BadSetting, ForkpointError
from forkpoint.llm.catalog import KEYS, WIRES
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.server.agents.team_file import TeamTable, read_team, without_end
from forkpoint.server.config import FIELDS, ServerConfig, read_server
from forkpoint.workspace.models.names import model_from
from forkpoint.workspace.models.tables import MODEL, fields_of, typed


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


TOP: dict[str, Any] = {
    "server": dict[str, Any],
    "agents": dict[str, dict[str, Any]],
    "default": str,
    "allow_models": tuple[str, ...],
    "workspaces": tuple[str, ...],
    "allow_isolation": bool,
}
"""The fields at the top of the file, and what each must be."""

_TABLE: dict[str, Any] = MODEL | {
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
    "sub_agents": bool | dict[str, Any],
    "hooks": tuple[StoredHook, ...],
    "skills": tuple[Skill, ...],
    "skills_folder": str,
    "condenser": dict[str, Any],
    "mcp": tuple[McpServer, ...],
    "secrets": dict[str, Secret],
}


class ServerFile(Struct, frozen=True):
    """What stands in a server's file, as far as it can be used, and what is wrong with the rest."""

    path: str = ""
    server: ServerConfig = ServerConfig()
    agents: dict[str, Agent] = {}
    named: frozenset[str] = frozenset()  # also agents that cannot be used
    default: str | None = None
    allow_models: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    workspaces: dict[str, str] = {}
    allow_isolation: bool = False
    problems: tuple[str, ...] = ()

    def check(self, more: Iterable[str] = ()) -> None:
        """Raises `BadConfig` with everything that is wrong with the file, ``more`` problems too, if there are any."""
        if problems := dict.fromkeys([*self.problems, *more]):
            raise BadConfig(f"{self.path}: " + "; ".join(problems))


def read_file(path: str | os.PathLike[str]) -> ServerFile:
    """What stands in a file. Paths in it are relative to its folder."""
    file = Path(path)
    problems: list[str] = []
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        problems.append(f"it cannot be read ({error.strerror})")
        text = ""
    except ValueError as error:
        problems.append(f"it is not {'JSON' if file.suffix == '.json' else 'TOML'} ({error})")
        text = ""
    said = {} if problems else _parsed(text, problems, is_json=file.suffix == ".json")
    return _found(os.fspath(path), file.absolute().parent, said, problems)


def read_text(text: str, place: str) -> ServerFile:
    """What stands in the text of a file that is kept elsewhere, TOML or JSON. Paths are relative to the working folder.

    It cannot say where the store is, for it is in the store.
    """
    problems: list[str] = []
    found = _found(place, Path.cwd(), _parsed(text, problems, is_json=text.lstrip().startswith("{")), problems)
    if found.server.store is None:
        return found
    why = "server.store: it stands in the store itself, and cannot say where that is"
    return msgspec.structs.replace(found, problems=(*found.problems, why))


def _found(path: str, folder: Path, said: Any, problems: list[str]) -> ServerFile:
    fields = typed(said, TOP, "", problems, elsewhere=dict.fromkeys(FIELDS, "in the table [server]"))
    tables: dict[str, dict[str, Any]] = fields.get("agents", {})
    top = dict.fromkeys(TOP, "at the top of the file, before any table")
    server = read_server(fields.get("server", {}), folder, problems, elsewhere=top)
    workspaces: dict[str, str] = {}
    tabled: dict[str, _Tabled] = {}
    for name, table in tables.items():
        before = len(problems)
        said = typed(table, _TABLE, f"agents.{name}", problems)
        if "workspace" in said:
            workspaces[name] = str(folder / Path(said.pop("workspace")).expanduser())
        team = read_team(said.pop("sub_agents", False), name, tables, problems)
        tabled[name] = _Tabled(said, team, len(problems) == before)
    problems += without_end({name: one.team for name, one in tabled.items()})
    made: dict[str, Agent | None] = {}
    for name in tables:
        _make(name, tabled, folder, problems, made)
    agents = {name: agent for name in tables if (agent := made[name]) is not None}
    default = fields.get("default")
    if default is not None and default not in tables:
        problems.append(f"default: there is no agent {default!r}")
    roots = tuple(str(folder / Path(root).expanduser()) for root in fields.get("workspaces", ()))
    patterns = fields.get("allow_models", ())
    problems += offer_problems(patterns, roots)
    return ServerFile(
        path,
        server,
        agents,
        frozenset(tables),
        default,
        patterns,
        roots,
        workspaces,
        fields.get("allow_isolation", False),
        tuple(problems),
    )


def offer_problems(patterns: Iterable[str], roots: Iterable[str]) -> list[str]:
    """What is wrong with the models and the folders that clients may choose."""
    problems: list[str] = []
    for pattern in patterns:
        kind, slash, name = pattern.partition("/")
        if not slash or not name or kind not in WIRES:
            problems.append(f"allow_models: {pattern!r} is not of the form PROVIDER/NAME, of {', '.join(WIRES)}")
        elif kind in KEYS and not os.environ.get(KEYS[kind], "").strip():
            problems.append(f"allow_models: {pattern!r} needs the environment variable {KEYS[kind]}, not set or empty")
    return problems + [f"workspaces: {root} is not a folder" for root in roots if not os.path.isdir(root)]


class _Tabled(Struct, frozen=True):
    """An agent's table, as far as it can be used."""

    said: dict[str, Any]
    team: TeamTable | None
    whole: bool  # nothing of it was wrong


def _make(
    name: str, tabled: dict[str, _Tabled], folder: Path, problems: list[str], made: dict[str, Agent | None]
) -> Agent | None:
    """The agent of this name, after those that it names. One that cannot be made has been complained about."""
    if name not in made:
        made[name] = None  # so that what leads back to it, and is complained about, ends here
        team = tabled[name].team
        for other in team.names() if team is not None else ():
            _make(other, tabled, folder, problems, made)
        made[name] = _agent(name, tabled[name], folder, problems, made)
    return made[name]


def _parsed(text: str, problems: list[str], *, is_json: bool) -> Any:
    try:
        return json.loads(text, object_pairs_hook=object_of) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"it is not {'JSON' if is_json else 'TOML'} ({error})")
    return {}


def _agent(
    name: str, table: _Tabled, folder: Path, problems: list[str], others: dict[str, Agent | None]
) -> Agent | None:
    said, where = table.said, f"agents.{name}"
    before = len(problems)
    if "agent" in said:
        if more := sorted((said.keys() | ({"sub_agents"} if table.team is not None else set())) - {"agent"}):
            problems.append(f"{where}: agent names all of it already; leave out {', '.join(more)}")
        found = _imported(said["agent"], folder, f"{where}.agent", problems)
        return found if found is None or found.name == name else found.replace(name=name)
    instructions = _instructions(said, folder, where, problems)
    schema = _schema(name, said, folder, where, problems)
    skills = _skills(said, folder, where, problems)
    condenser = _condenser(said, where, problems)
    hooks = _hooks(said.get("hooks", ()), folder, f"{where}.hooks", problems)
    if "model" not in said and table.whole:
        problems.append(f"{where}: it has neither model nor agent")
    if "model" not in said or not table.whole:
        return None
    try:
        model = model_from(fields_of(said))
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
            sub_agents=table.team.sub_agents(others) if table.team is not None else None,
            hooks=hooks,
            skills=skills,
            condenser=condenser,
            mcp=[rooted(server, folder) for server in said.get("mcp", ())],
            secrets=said.get("secrets", {}),
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


def _skills(said: dict[str, Any], folder: Path, where: str, problems: list[str]) -> tuple[Skill, ...]:
    """The skills of its tables, and those of its folder, which is read now. What cannot be used is complained about."""
    own = Found(said.get("skills", ()))
    if "skills_folder" not in said:
        return own.skills
    place = folder / Path(said["skills_folder"]).expanduser()
    if not place.is_dir():
        problems.append(f"{where}.skills_folder: there is no folder {place}")
    found = together(own, skills_in(place))
    problems += [f"{where}.skills_folder: {problem}" for problem in found.problems]
    return found.skills


def _condenser(said: dict[str, Any], where: str, problems: list[str]) -> Condenser | Window | None:
    """The condenser in a table. Without a kind it is a `Condenser`, which asks a model."""
    if "condenser" not in said:
        return None
    table, before = {"kind": "condenser"} | said["condenser"], len(problems)
    if isinstance(table.get("llm"), dict):
        model = typed(table["llm"], MODEL, f"{where}.condenser.llm", problems)
    try:
        if isinstance(table.get("llm"), dict) and len(problems) == before:
            table["llm"] = model_from(fields_of(model))
        if len(problems) == before:
            return msgspec.convert(table, Condenser | Window)
    except msgspec.ValidationError as error:
        problems.append(f"{where}.condenser: {error}")
    except ForkpointError as error:
        problems.append(f"{where}.condenser: {getattr(error, 'why', error)}")
    return None


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


def _hooks(stored: Iterable[StoredHook], folder: Path, where: str, problems: list[str]) -> list[Hook]:
    """The hooks of a table. A program with a relative path is in the file's folder, a function in operators' code."""
    made: list[Hook] = []
    for one in stored:
        try:
            made.append(rooted_hook(from_stored(one), folder))
            if one.function is not None:
                _can_import(folder)
                made[-1].find()
        except ForkpointError as error:
            problems.append(f"{where}: {getattr(error, 'why', error)}")
        except (Exception, SystemExit) as error:  # somebody's module may raise anything while it is imported
            problems.append(f"{where}: {one.function} cannot be imported ({type(error).__name__}: {error})")
    return made


def _can_import(folder: Path) -> None:
    for place in (str(folder), os.getcwd()):  # last, so that no file that lies there takes the place of a library
        if place not in sys.path:
            sys.path.append(place)


def _imported(path: str, folder: Path, where: str, problems: list[str]) -> Agent | None:
    """The agent at ``module:name``, in the operator's own code."""
    module, _, names = path.partition(":")
    if not module or not names:
        problems.append(f"{where}: {path!r} is not of the form MODULE:NAME")
        return None
    _can_import(folder)
    try:
        found = functools.reduce(getattr, names.split("."), importlib.import_module(module))
    except (Exception, SystemExit) as error:  # somebody's module may raise anything while it is imported
        problems.append(f"{where}: {path} cannot be imported ({type(error).__name__}: {error})")
        return None
    if not isinstance(found, Agent):
        problems.append(f"{where}: {path} is of the class {type(found).__name__}, and not an Agent")
        return None
    return found

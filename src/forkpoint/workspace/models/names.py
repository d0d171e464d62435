"""The model that a name means: ``openai/NAME`` as it stands, and ``NAME`` as a settings file has it.

.. code-block:: toml

    [models.fast]
    model = "openai/qwen3"
    base_url = "http://localhost:11434/v1"

A name that the user's own file has always means that, so no project can take a name of the user's for another place.
What a project itself names, in its setting ``model``, is looked up in its own tables first.
Tests: tests/workspace/test_models.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from forkpoint.errors import BadModel, BadSetting, ForkpointError
from forkpoint.events import JsonText
from forkpoint.llm.model import LLM, as_llm
from forkpoint.workspace import Trust, config
from forkpoint.workspace.defaults import Workspace, named_model, project_of, settings_file
from forkpoint.workspace.folders import origin_of
from forkpoint.workspace.models.tables import MODEL, fields_of, typed
from forkpoint.workspace.project import settings_of
from forkpoint.workspace.roots import project_root


def as_model(model: str | LLM, workspace: Workspace = None, *, trust: Trust | None = None) -> LLM:
    """The model that a name means: of a provider, of the user's settings, or of the workspace's trusted project.

    Raises `BadModel` if nothing has this name, and `BadSetting` if its table cannot be used.
    """
    if isinstance(model, LLM) or "/" in model:
        return as_llm(model)
    users = _users_tables()
    if model in users:
        return model_in(users, model, settings_file())
    if (tables := _projects_tables(workspace, trust)) and model in tables:
        return model_in(tables, model, _file_of(workspace))
    raise BadModel.model_not_named(model, ", ".join(sorted({*users, *tables})) or "none", str(settings_file()))


def default_llm(workspace: Workspace = None, *, trust: Trust | None = None) -> LLM:
    """The model that is meant if none is given: `defaults.default_model`, with what the settings say of it."""
    name, source = named_model(workspace, trust=trust)
    if source == "project" and name in (tables := _projects_tables(workspace, trust)):
        return model_in(tables, name, _file_of(workspace))
    return as_model(name, workspace, trust=trust)


def model_from(fields: Mapping[str, Any], workspace: Workspace = None, *, trust: Trust | None = None) -> LLM:
    """The model of fields that an `LLM` has. Its name may be one of the settings: the other fields then change that.

    With a base URL a name without a slash is the server's own, and is not looked up. Raises as `as_model` does.
    """
    said = dict(fields)
    if "/" in said["model"] or said.get("base_url") is not None:
        return LLM(**said)
    return as_model(said.pop("model"), workspace, trust=trust).replace(**said)


def users_models() -> dict[str, LLM | ForkpointError]:
    """Each model that the user's file names; the error if its table cannot be used. Raises `BadSetting`."""
    return _each(_users_tables(), settings_file())


def projects_models(workspace: Workspace, *, trust: Trust | None = None) -> dict[str, LLM | ForkpointError]:
    """The same for the trusted project of a workspace."""
    return _each(tables, _file_of(workspace)) if (tables := _projects_tables(workspace, trust)) else {}


def model_in(tables: Mapping[str, Any], name: str, file: Path) -> LLM:
    """The model of a table. Raises `BadSetting` with the file, the table, the field, and what it takes."""
    problems: list[str] = []
    where = f"models.{name}"
    said = typed(tables[name], MODEL, where, problems)
    if not name or "/" in name:
        problems.append(f"{where}: its name must have no slash, since that is where a provider's name ends")
    if not problems and "model" not in said:
        problems.append(f'{where}.model: it is missing; write model = "openai/NAME", as its provider calls it')
    if not problems and "/" not in said["model"] and "base_url" not in said:
        problems.append(f"{where}.model: {said['model']!r} has no provider before a slash; use openai/NAME")
    if not problems:
        try:
            return LLM(**fields_of(said))
        except BadSetting as error:
            problems.append(f"{where}.{error.setting}: {error.why}")
        except BadModel as error:
            problems.append(f"{where}.model: {error.why}")
    raise BadSetting.broken_settings(str(file), "; ".join(problems))


def _each(tables: Mapping[str, Any], file: Path) -> dict[str, LLM | ForkpointError]:
    found: dict[str, LLM | ForkpointError] = {}
    for name in tables:
        try:
            found[name] = model_in(tables, name, file)
        except ForkpointError as error:
            found[name] = error
    return found


def _users_tables() -> dict[str, Any]:
    path = settings_file()
    try:
        tables = config.read(path).get("models", {})
    except config.Unreadable as error:
        raise BadSetting.broken_settings(str(path), f"it cannot be read ({error})") from None
    if not isinstance(tables, dict):
        raise BadSetting.broken_settings(f"models in {path}", "it must be tables, each of which begins [models.NAME]")
    return tables


def _projects_tables(workspace: Workspace, trust: Trust | None) -> dict[str, Any]:
    said: JsonText | None = project_of(workspace, trust=trust).models
    return {} if said is None else dict(msgspec.json.decode(said))


def _file_of(workspace: Workspace) -> Path:
    return settings_of(project_root(origin_of(workspace or ".")))

"""Templates: what is said often, kept in settings under a name.

::

    [templates.review]
    message = "Review this change. Answer in {language}."
    instructions = "You review changes, and are brief."
    defaults = { language = "English" }

They stand in the user's file and in that of a trusted project, which wins. A project's templates are pinned, as its
other settings are, and name no code: its ``agent`` is one that is built in, or a server's.
Tests: tests/cli/test_templates.py.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from forkpoint.errors import BadArgument, BadSetting, NotFound
from forkpoint.events import JsonText
from forkpoint.workspace import Trust, config
from forkpoint.workspace.defaults import project_of, settings_file
from forkpoint.workspace.folders import origin_of
from forkpoint.workspace.project import settings_of
from forkpoint.workspace.roots import project_root

INPUT = "input"
"""The parameter that stands for what is piped, or said on the command line."""

_PLACE = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")
_TEXTS = ("message", "instructions", "model", "agent")


class Template(Struct, frozen=True, kw_only=True):
    """A message with places for parameters, and who answers it, where the command line does not say.

    - ``message``: ``{input}`` is what is piped or said, ``{name}`` a parameter, ``{{name}}`` the text {name}.
    - ``instructions``, ``model``, ``agent``, ``schema``, ``extract``: as the options of ``forkpoint run``.
      ``schema`` is a table, a JSON text, or a file; a relative file is one in the folder of the settings.
    - ``defaults``: the parameters that need not be given.
    """

    name: str
    source: str  # the settings file that has it
    message: str | None = None
    instructions: str | None = None
    model: str | None = None
    agent: str | None = None
    schema: str | None = None
    extract: bool = False
    defaults: Mapping[str, str] = {}

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of its message, in order, without the input."""
        found = (place[2] for place in _PLACE.finditer(self.message or ""))
        return tuple(dict.fromkeys(name for name in found if name and name != INPUT))

    def filled(self, input: str | None, given: Mapping[str, str]) -> str | None:
        """The message. None if it has none, and there is no input. Raises `BadArgument`.

        Input follows the message after a blank line if the message has no place for it.
        """
        if unknown := [name for name in given if name not in self.parameters]:
            known = ", ".join(self.parameters) or "none"
            raise self._refused("given", f"it has no parameter {', '.join(unknown)}; it has {known}")
        values = {**self.defaults, **given}
        if missing := [name for name in self.parameters if name not in values]:
            ways = " ".join(f"-p {name}=VALUE" for name in missing)
            raise self._refused("given", f"it needs parameters: give {ways}")
        takes_input = any(place[2] == INPUT for place in _PLACE.finditer(self.message or ""))
        if takes_input and input is None:
            raise self._refused("input", "it needs an input: pipe a text, or give it as the message")
        values[INPUT] = input or ""
        said = _PLACE.sub(lambda place: f"{{{place[1]}}}" if place[1] else values[place[2]], self.message or "")
        return "\n\n".join(filter(None, (said, None if takes_input else input))) or None

    def _refused(self, argument: str, why: str) -> BadArgument:
        return BadArgument(f"template {self.name}", argument, why)


def templates_of(folder: str | os.PathLike[str] | None, *, trust: Trust | None = None) -> dict[str, Template]:
    """All templates, by name: the user's, and those of the trusted project that a folder belongs to.

    Raises `BadSetting` for a file that cannot be used, and `TrustChanged`.
    """
    path = settings_file()
    try:
        said = config.read(path).get("templates")
    except config.Unreadable as error:
        raise BadSetting.broken_settings(str(path), f"it cannot be read ({error})") from None
    found = _read(said, path, is_project=False)
    if folder is not None and (theirs := project_of(folder, trust=trust).templates) is not None:
        found |= read_tables(theirs, settings_of(project_root(origin_of(folder))))
    return found


def template_of(name: str, folder: str | os.PathLike[str] | None, *, trust: Trust | None = None) -> Template:
    """The template with this name. Raises `NotFound`, and what `templates_of` raises."""
    found = templates_of(folder, trust=trust)
    if name not in found:
        raise NotFound.none_named("template", name, ", ".join(sorted(found)) or "none")
    return found[name]


def read_tables(tables: JsonText, file: Path) -> dict[str, Template]:
    """The templates of a project, whose tables are these. Raises `BadSetting`."""
    return _read(msgspec.json.decode(tables), file, is_project=True)


def _read(said: Any, file: Path, *, is_project: bool) -> dict[str, Template]:
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise _broken("templates", file, "it must be tables, each of which begins with [templates.NAME]")
    return {name: _template(name, table, file, is_project=is_project) for name, table in said.items()}


def _template(name: str, table: Any, file: Path, *, is_project: bool) -> Template:
    place = f"templates.{name}"
    if not isinstance(table, dict):
        raise _broken(place, file, f"it must be a table, which begins with [{place}]")
    known = Template.__struct_fields__[2:]
    if unknown := [field for field in table if field not in known]:
        raise _broken(f"{place}.{unknown[0]}", file, f"it is not known, and what is known is {', '.join(known)}")
    for field in _TEXTS:
        if not isinstance(table.get(field, ""), str):
            raise _broken(f"{place}.{field}", file, "it must be a text")
    if not isinstance(table.get("extract", False), bool):
        raise _broken(f"{place}.extract", file, "it must be true or false")
    defaults = table.get("defaults", {})
    if not isinstance(defaults, dict) or not all(isinstance(value, str) for value in defaults.values()):
        raise _broken(f"{place}.defaults", file, "it must be a table of texts")
    if is_project and ":" in table.get("agent", ""):
        why = "a project's template names no code; write it into your own settings file"
        raise _broken(f"{place}.agent", file, why)
    given = table | ({"schema": _schema(f"{place}.schema", table["schema"], file)} if "schema" in table else {})
    if given.get("extract") and "schema" in given:
        raise _broken(f"{place}.extract", file, "an answer with a schema has no code block")
    made = Template(name=name, source=str(file), **given)
    if INPUT in defaults or (lost := [each for each in defaults if each not in made.parameters]):
        raise _broken(
            f"{place}.defaults", file, f"its message has no parameter {INPUT if INPUT in defaults else lost[0]}"
        )
    return made


def _schema(field: str, said: Any, file: Path) -> str:
    """A schema as ``--schema`` takes it: JSON, or the whole path of a file."""
    if isinstance(said, dict):
        return msgspec.json.encode(said).decode()
    if not isinstance(said, str) or not said.strip():
        raise _broken(field, file, "it must be a table, a text of JSON, or the name of a file")
    return said if said.lstrip().startswith("{") else str(file.parent / os.path.expanduser(said))


def _broken(field: str, file: Path, why: str) -> BadSetting:
    return BadSetting.broken_settings(f"{field} in {file}", why)

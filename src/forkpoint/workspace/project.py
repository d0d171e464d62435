"""What a trusted project says of itself, in ``.forkpoint/config.toml`` in its root. Of any other nothing is read."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote

import msgspec
from msgspec import Struct

from forkpoint.errors import BadSetting, BadStoreUrl
from forkpoint.events import JsonText
from forkpoint.store.address import READ_ONLY, file_address
from forkpoint.workspace import config
from forkpoint.workspace.folders import origin_of
from forkpoint.workspace.roots import project_root

if TYPE_CHECKING:
    from forkpoint.workspace.trust import Trust

_Approval = Literal["never", "risky", "always"]

_FILE = "sqlite:///"


class ProjectSettings(Struct, frozen=True):
    """What a project sets: all of it is None where it says nothing.

    - ``model``, ``store``: what is meant where neither the caller nor the environment says. A relative file in
      ``store`` is one in the project's root; here it is absolute.
    - ``instructions``: what an agent is told in this project, beside its own instructions.
    - ``approval``: which calls need an approval here, beside those that the agent's own policy asks about: it can only
      make that stricter.
    - ``hooks``: what runs at certain moments of a turn here, after the agent's own hooks, as a JSON list. It is read
      where hooks are known.
    - ``models``: models by the names that are used for them here, as a JSON object of tables. It is read where a name
      is looked up.
    - ``mcp``: MCP servers whose tools an agent has here, beside its own, as a JSON list. It is read where those are
      known.
    - ``templates``: messages that are said often, by name, as a JSON object: `forkpoint.workspace.templates` reads it.
    """

    model: str | None = None
    store: str | None = None
    instructions: str | None = None
    approval: _Approval | None = None
    hooks: JsonText | None = None
    mcp: JsonText | None = None
    templates: JsonText | None = None
    models: JsonText | None = None


def settings_of(root: Path) -> Path:
    """The file with the settings of a project."""
    return root / ".forkpoint" / "config.toml"


def project_settings(path: str | os.PathLike[str], trust: "Trust") -> ProjectSettings:
    """What the project that a folder belongs to sets, if it is trusted. Of any other nothing is read.

    Whether its user has approved that is for the caller to ask. Raises `BadSetting` if the file cannot be used.
    """
    return settings_at(project_root(origin_of(path))) if trust == "trusted" else ProjectSettings()


def settings_at(root: Path) -> ProjectSettings:
    """What the trusted project with this root sets. Raises `BadSetting`.

    A root is looked up once: that of a bare repository may well stand inside of another project.
    """
    file = settings_of(root)
    try:
        said = config.read(file, _owners(root))
    except config.Unsafe as error:
        raise BadSetting.unsafe_settings(str(file), str(error)) from None
    except config.Unreadable as error:
        raise BadSetting.broken_settings(str(file), str(error)) from None
    known = ProjectSettings.__struct_fields__
    if unknown := [name for name in said if name not in known]:
        why = f"it sets what is not known ({', '.join(unknown)}), and what is known is {', '.join(known)}"
        raise BadSetting.broken_settings(str(file), why)
    tables = {name: said.pop(name) for name in ("hooks", "mcp", "models") if name in said}
    templates = said.pop("templates", None)
    for name, value in said.items():
        _check(file, name, value)
    said = {name: value for name, value in said.items() if value.strip()}
    said |= {name: _tables(file, name, value) for name, value in tables.items()}
    said |= {} if templates is None else {"templates": msgspec.json.encode(templates).decode()}
    return ProjectSettings(**said | ({"store": address_within(root, said["store"])} if "store" in said else {}))


def _owners(root: Path) -> tuple[int, ...]:
    """Who may own a project's file besides us. Root often works in a checkout of another user, as containers and
    builds do: then the owner of the project's folder counts."""
    if os.name == "nt" or os.geteuid() != 0:
        return ()
    try:
        return (os.stat(root).st_uid,)
    except OSError:  # reading the file will say why
        return ()


def _check(file: Path, name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadSetting.broken_settings(f"{name} in {file}", "it must be a text")
    if name == "approval" and value not in get_args(_Approval):
        raise BadSetting.broken_settings(f"{name} in {file}", f"it is {value!r}, and must be never, risky or always")


def _tables(file: Path, name: str, value: Any) -> JsonText:
    is_named = name == "models"
    tables = list(value.values()) if isinstance(value, dict) else value
    kind = dict if is_named else list
    if not isinstance(value, kind) or not all(isinstance(one, dict) for one in tables):
        begins = "[models.NAME]" if is_named else f"[[{name}]]"
        raise BadSetting.broken_settings(f"{name} in {file}", f"it must be tables, each of which begins with {begins}")
    return msgspec.json.encode(value).decode()


def address_within(folder: Path, address: str) -> str:
    """A store's address that means the same wherever a process stands. A relative path begins at ``folder``."""
    with suppress(BadStoreUrl):  # opening it raises the reason
        if (file := file_address(address, folder)) is not None:
            return file_url(folder / file.path) + (READ_ONLY if file.read_only else "")
    return address


def file_url(path: str | os.PathLike[str]) -> str:
    """The address of a SQLite file, absolute, so that it means the same wherever a process stands."""
    return _FILE + quote(os.path.abspath(path), safe="/:\\", errors="surrogateescape")

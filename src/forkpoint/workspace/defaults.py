"""What is meant when nothing is said: the same for the Python API and for the program.

What is said where it is used wins, then the environment (``FORKPOINT_*``), then the settings of the project that the
workspace belongs to if its user trusts that, then the user's file, then what stands here.
Tests: tests/workspace/test_project.py.
"""

import os
from pathlib import Path
from typing import TypeAlias

import platformdirs

from forkpoint.errors import BadSetting, BadStoreUrl
from forkpoint.workspace import ProjectSettings, Trust, config, project_settings, trust_of
from forkpoint.workspace.folders import origin_of
from forkpoint.workspace.project import address_within as address_within
from forkpoint.workspace.project import file_url as file_url
from forkpoint.workspace.roots import checkout_and_root
from forkpoint.workspace.trust import check_approved

Workspace: TypeAlias = str | os.PathLike[str] | None

MODEL = "local/smollm2"
"""The model that needs no account: it is in the box."""


def default_model(workspace: Workspace = None, *, trust: Trust | None = None) -> str:
    """The model that is meant if none is given: FORKPOINT_MODEL, else what the project or the user's file says, else
    the one in the box.
    """
    return named_model(workspace, trust=trust)[0]


def named_model(workspace: Workspace = None, *, trust: Trust | None = None) -> tuple[str, str]:
    """The same and who says so: FORKPOINT_MODEL, project, settings file, or default."""
    if named := os.environ.get("FORKPOINT_MODEL", "").strip():
        return named, "FORKPOINT_MODEL"
    if (chosen := project_of(workspace, trust=trust).model) is not None:
        return chosen, "project"
    if chosen := user_setting("model"):
        return chosen, "settings file"
    return MODEL, "default"


def default_title_model() -> str | None:
    """The model that writes titles: FORKPOINT_TITLE_MODEL, else what the user's file says, else None."""
    return os.environ.get("FORKPOINT_TITLE_MODEL", "").strip() or user_setting("title_model")


def default_store(workspace: Workspace = None, *, trust: Trust | None = None) -> str:
    """The address that is meant if none is given. The user's data folder is made if that is where it is."""
    address, source = named_store(workspace, trust=trust)
    if source == "default":
        folder = _data_folder()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadStoreUrl(str(folder), f"the folder for your data cannot be made ({error.strerror})") from None
    return address


def named_store(workspace: Workspace = None, *, trust: Trust | None = None) -> tuple[str, str]:
    """The same address and who says so, with nothing made: FORKPOINT_STORE, project, settings file, or default."""
    if named := os.environ.get("FORKPOINT_STORE", "").strip():
        return named, "FORKPOINT_STORE"
    if (chosen := project_of(workspace, trust=trust).store) is not None:
        return chosen, "project"
    if (chosen := user_setting("store")) is not None:
        return chosen, "settings file"
    return file_url(_data_folder() / "forkpoint.db"), "default"


def project_of(workspace: Workspace, *, trust: Trust | None = None) -> ProjectSettings:
    """What the project of a workspace sets: nothing if there is no workspace, or if it is not trusted.

    ``trust`` is how the workspace stands where somebody says so now; else the user's file says, and what is there must
    be approved. Raises `BadSetting` if a trusted project's file cannot be used, and `TrustChanged`.
    """
    if workspace is None:
        return ProjectSettings()
    if trust is None:
        trust = trust_of(workspace, settings_file())
        check_approved(workspace, settings_file())
    return project_settings(workspace, trust)


def trusted_project(workspace: Workspace) -> tuple[Path, ...]:
    """The folders of the project that a workspace belongs to: its checkout, then its root. Empty unless trusted."""
    if workspace is None or trust_of(workspace, settings_file()) != "trusted":
        return ()
    return tuple(dict.fromkeys(checkout_and_root(origin_of(workspace))))


def settings_file() -> Path:
    """The user's own settings: ``config.toml`` in the folder that the system has for settings."""
    return platformdirs.user_config_path("forkpoint", appauthor=False) / "config.toml"


def skills_folder() -> Path:
    """Where the user's own skills are."""
    return settings_file().parent / "skills"


def user_setting(name: str) -> str | None:
    """A setting from the user's file; None if it is not there."""
    path = settings_file()
    try:
        value = config.read(path).get(name)
    except config.Unreadable as error:
        raise BadSetting.broken_settings(str(path), f"it cannot be read ({error})") from None
    if value is not None and not isinstance(value, str):
        raise BadSetting.broken_settings(f"{name} in {path}", "it must be a text")
    return value


def _data_folder() -> Path:
    return platformdirs.user_data_path("forkpoint", appauthor=False)

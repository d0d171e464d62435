"""Whether a user trusts a project, which the user's own settings file says.

.. code-block:: toml

    [projects."/home/ann/builds"]
    trust = "trusted"

**Trust goes to one project and no further; distrust goes to all that is below.** A folder in a trusted one that is a
repository of its own, or in a trusted folder that is no repository, is undecided until its user decides. What is in an
untrusted folder is untrusted, unless its user says otherwise of that project itself.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from forkpoint.workspace import config as settings
from forkpoint.workspace.edits import with_trust
from forkpoint.workspace.folders import origin_of, sources_of
from forkpoint.workspace.roots import checkout_and_root
from forkpoint.workspace.roots import project_root as project_root

Trust: TypeAlias = Literal["trusted", "untrusted", "undecided"]
"""How a workspace stands: its user trusts it, does not trust it, or has not said."""

Decision: TypeAlias = Literal["trusted", "untrusted"]
"""What a user can say of a project."""

_log = logging.getLogger("forkpoint")


class TrustRecord(Struct, frozen=True):
    """What became of keeping a decision.

    - ``written``: the file was changed. False without a warning: it said so already.
    - ``warning``: what could not be written and why; None if the file says now what it should.
    """

    written: bool
    warning: str | None = None


class TrustStand(Struct, frozen=True):
    """How a workspace stands, and why.

    - ``root``: the project that it belongs to.
    - ``decided_for``: the folder that the user has decided about: the root, or an untrusted folder on the way up. None
      if nothing was decided.
    - ``warning``: what in the user's file could not be understood, and so decides nothing.
    """

    trust: Trust
    root: str
    decided_for: str | None = None
    warning: str | None = None


def trust_of(path: str | os.PathLike[str], config: Path) -> Trust:
    """How a workspace stands. What cannot be read decides nothing: that is logged, and never raised."""
    found = standing(path, config)
    if found.warning is not None:
        _log.warning("%s", found.warning)
    return found.trust


def standing(path: str | os.PathLike[str], config: Path) -> TrustStand:
    """The same with its reason, and with nothing logged."""
    here = origin_of(path)  # a folder that was made for a fork is trusted like its source
    checkout, root = checkout_and_root(here)
    try:
        projects = _projects(settings.read(config))
    except settings.Unreadable as error:
        return TrustStand("undecided", str(root), None, f"{config} does not say which projects are trusted: {error}.")
    within = [folder for folder in (here, *here.parents) if folder.is_relative_to(checkout)]
    if (folder := _distrusted(within, projects)) is not None:
        return TrustStand("untrusted", str(root), folder)
    said = _said_of(root, projects)
    if said == "trusted" or said == "untrusted":
        return TrustStand(said, str(root), str(root))
    warning = None
    if str(root) in projects and said is not None:
        warning = f'In {config} {root} is neither "trusted" nor "untrusted", so it is undecided.'
    beside = [folder for source in sources_of(path) for folder in (source, *source.parents)]
    if (folder := _distrusted((*checkout.parents, *root.parents, *beside), projects)) is not None:
        return TrustStand("untrusted", str(root), folder, warning)
    return TrustStand("undecided", str(root), None, warning)


def set_trust(path: str | os.PathLike[str], trust: Decision | None, config: Path) -> TrustRecord:
    """Keeps what the user says of the project that a folder belongs to; None makes it undecided again.

    It is best effort, and raises nothing if the file cannot be changed: then `TrustRecord.warning` says why, and the
    file is as it was. The caller decides whether an explicit "untrusted" may be changed.
    """
    root = str(checkout_and_root(origin_of(path))[1])
    try:
        return TrustRecord(settings.change(config, lambda text: with_trust(text, root, trust)))
    except settings.Unreadable as error:
        what = "is undecided" if trust is None else f"is {trust}"
        shown = root.encode(errors="backslashreplace").decode()
        return TrustRecord(False, f"That {shown} {what} could not be kept in {config}: {error}. The file is as it was.")


def _projects(document: dict[str, Any]) -> dict[str, Any]:
    projects = document.get("projects", {})
    if not isinstance(projects, dict):
        raise settings.Unreadable("`projects` in it is not a table")
    spelled = {os.path.realpath(os.path.expanduser(name)): said for name, said in projects.items() if "\0" not in name}
    distrusted = {name: said for name, said in spelled.items() if _trust_in(said) == "untrusted"}
    return projects | distrusted  # however somebody has spelled what is not to be trusted


def _said_of(folder: Path, projects: dict[str, Any]) -> Any:
    """What stands there for a folder, whatever it is; None if nothing does."""
    return _trust_in(projects.get(str(folder)))


def _trust_in(entry: Any) -> Any:
    return entry.get("trust") if isinstance(entry, dict) else entry


def _distrusted(folders: Iterable[Path], projects: dict[str, Any]) -> str | None:
    """The first folder that its user does not trust."""
    return next((str(folder) for folder in folders if _said_of(folder, projects) == "untrusted"), None)

"""Whether a user trusts a project, which the user's own settings file says.

.. code-block:: toml

    [projects."/home/ann/builds"]
    trust = "trusted"
    pinned = [
        "sha256:5c2f...",
    ]

**Trust is of content**: ``pinned`` are the digests that the user has approved of what the project runs (`pins`). There
may be several, as of several branches.

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

from forkpoint.errors import BadSetting, TrustChanged
from forkpoint.workspace import config as settings
from forkpoint.workspace.edits import with_trust
from forkpoint.workspace.folders import origin_of, sources_of
from forkpoint.workspace.pins.pin_records import recall, remember, what_changed
from forkpoint.workspace.pins.pins import (
    NOTHING,
    Pinned,
    approved_in_environment,
    digest_of,
    is_approved_here,
    pinned_at,
    trust_changed,
)
from forkpoint.workspace.roots import checkout_and_root
from forkpoint.workspace.roots import project_root as project_root

Trust: TypeAlias = Literal["trusted", "untrusted", "undecided"]
"""How a workspace stands: its user trusts it, does not trust it, or has not said."""

Decision: TypeAlias = Literal["trusted", "untrusted"]
"""What a user can say of a project."""

_MOST_PINNED = 32  # digests of a project; the oldest is forgotten, and asked about again

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
    - ``pinned``: the digests of what the user has approved of a trusted project, the newest last.
    """

    trust: Trust
    root: str
    decided_for: str | None = None
    warning: str | None = None
    pinned: tuple[str, ...] = ()


def trust_of(path: str | os.PathLike[str], config: Path) -> Trust:
    """How a workspace stands. What cannot be read decides nothing: that is logged.

    Raises `BadSetting` if others can write the user's file: then it may say what the user never said.
    """
    found = standing(path, config)
    if found.warning is not None:
        _log.warning("%s", found.warning)
    return found.trust


def check_approved(path: str | os.PathLike[str], config: Path) -> None:
    """Raises `TrustChanged` if a trusted project is not what its user has approved. Raises `BadSetting`."""
    found = standing(path, config)
    if found.trust == "trusted":
        pinned = pinned_at(path)
        if not is_approved_here(pinned.digest, found.pinned):
            raise unapproved(pinned, found.pinned, config)


def unapproved(pinned: Pinned, approved: tuple[str, ...], config: Path) -> TrustChanged:
    """The error that says what of a project changed since it was approved."""
    before = recall(pinned.root, approved, config)
    return trust_changed(pinned.root, pinned.folder, what_changed(before, pinned), pinned.digest)


def standing(path: str | os.PathLike[str], config: Path) -> TrustStand:
    """How a workspace stands, with its reason, and with nothing logged. Raises as `trust_of` does.

    A project that nobody has decided about is trusted if the environment approves exactly what it runs.
    """
    found = _standing(path, config)
    if found.trust != "undecided" or not (approved := approved_in_environment() - {NOTHING}):
        return found
    try:
        digest = pinned_at(path).digest
    except BadSetting:
        return found
    return TrustStand("trusted", found.root, None, found.warning, (digest,)) if digest in approved else found


def _standing(path: str | os.PathLike[str], config: Path) -> TrustStand:
    here = origin_of(path)  # a folder that was made for a fork is trusted like its source
    checkout, root = checkout_and_root(here)
    try:
        projects = _projects(settings.read(config))
    except settings.Unsafe as error:
        raise BadSetting.unsafe_settings(str(config), str(error)) from None
    except settings.Unreadable as error:
        return TrustStand("undecided", str(root), None, f"{config} does not say which projects are trusted: {error}.")
    within = [folder for folder in (here, *here.parents) if folder.is_relative_to(checkout)]
    if (folder := _distrusted(within, projects)) is not None:
        return TrustStand("untrusted", str(root), folder)
    said = _said_of(root, projects)
    if said == "trusted" or said == "untrusted":
        return TrustStand(said, str(root), str(root), None, _pinned_in(projects.get(str(root))))
    warning = None
    if str(root) in projects and said is not None:
        warning = f'In {config} {root} is neither "trusted" nor "untrusted", so it is undecided.'
    beside = [folder for source in sources_of(path) for folder in (source, *source.parents)]
    if (folder := _distrusted((*checkout.parents, *root.parents, *beside), projects)) is not None:
        return TrustStand("untrusted", str(root), folder, warning)
    return TrustStand("undecided", str(root), None, warning)


def set_trust(
    path: str | os.PathLike[str], trust: Decision | None, config: Path, pinned: Pinned | None = None
) -> TrustRecord:
    """Keeps what the user says of the project that a folder belongs to; None makes it undecided again.

    A trusted project is trusted with what it runs: ``pinned``, or else what is there now. It is best effort, and raises
    nothing if the file cannot be changed: then `TrustRecord.warning` says why, and the file is as it was. The caller
    decides whether an explicit "untrusted" may be changed.
    """
    root = str(checkout_and_root(origin_of(path))[1])
    if trust == "trusted" and pinned is None:
        pinned = _pinned_now(path)

    def changed(text: str) -> str:
        entry = _projects(settings.parsed(text)).get(root)
        had = _pinned_in(entry) if _trust_in(entry) == "trusted" else ()
        return with_trust(text, root, trust, () if pinned is None else with_digest(had, pinned.digest))

    try:
        written = settings.change(config, changed)
    except settings.Unreadable as error:
        what = "is undecided" if trust is None else f"is {trust}"
        shown = root.encode(errors="backslashreplace").decode()
        return TrustRecord(False, f"That {shown} {what} could not be kept in {config}: {error}. The file is as it was.")
    if pinned is not None:
        remember(pinned, config)
    return TrustRecord(written)


def with_digest(approved: tuple[str, ...], digest: str) -> tuple[str, ...]:
    """What is approved, and this too. If that is nothing at all, nothing has to be said of it."""
    if digest in approved or (digest == NOTHING and not approved):
        return approved
    return (*approved, digest)[-_MOST_PINNED:]


def _pinned_now(path: str | os.PathLike[str]) -> Pinned | None:
    """What is pinned of a project; None if its settings cannot be used, and then nothing of it is approved."""
    try:
        return pinned_at(path)
    except BadSetting:
        return None


def _pinned_in(entry: Any) -> tuple[str, ...]:
    said = entry.get("pinned") if isinstance(entry, dict) else None
    return tuple(one for one in said if isinstance(one, str) and digest_of(one)) if isinstance(said, list) else ()


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

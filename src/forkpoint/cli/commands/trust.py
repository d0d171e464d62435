"""``forkpoint trust``: whether the project here may say how Forkpoint works in it."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from forkpoint.agent.skills.files import ProjectText, instructions_in
from forkpoint.backend.settings import as_workspace
from forkpoint.cli.commands.skills import places
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, display, facts, one_line, print_json, tell
from forkpoint.errors import ForkpointError, NotKept
from forkpoint.workspace import Decision, TrustStand, set_trust, standing
from forkpoint.workspace.defaults import settings_file
from forkpoint.workspace.folders import origin_of
from forkpoint.workspace.project import settings_at, settings_of
from forkpoint.workspace.roots import checkout_and_root


def trust(
    path: Annotated[str | None, argument("PATH", "A folder of the project. Default: this one.")] = None,
    revoke: Annotated[bool, option("--revoke", "Do not trust it: remember it as untrusted.")] = False,
    forget: Annotated[bool, option("--forget", "Decide nothing: forget what was said of it.")] = False,
    show: Annotated[bool, option("--show", "Change nothing: show how it stands, and why.")] = False,
    json: Json = False,
) -> None:
    """Trust the project that a folder belongs to.

    A trusted project's settings are used (.forkpoint/config.toml), its skills (.forkpoint/skills), and what it tells
    agents (AGENTS.md). An untrusted one's are not, and tools that can do harm ask first there. Nothing of a project is
    read that is undecided.

    The project is the repository that the folder is in, with all its worktrees, or the folder itself. What you say is
    kept in your settings file, and the exit status is 1 if it cannot be.

    \b
    Examples:
      forkpoint trust
      forkpoint trust ~/work/builds --revoke
      forkpoint trust --show
    """
    if revoke + forget + show > 1:
        raise typer.BadParameter("--revoke, --forget and --show are three things to do; choose one")
    folder = as_workspace(path or ".")
    assert folder is not None
    config = settings_file()
    if show:
        _show(standing(folder, config), config, json, folder)
        return
    decision: Decision | None = "untrusted" if revoke else None if forget else "trusted"
    if path is None and decision == "trusted":
        _check_not_home(folder)
    kept = set_trust(folder, decision, config)
    if kept.warning is not None:
        raise NotKept(kept.warning)
    now = standing(folder, config)
    if json:
        print_json(_document(now, config, folder) | {"written": kept.written})
        return
    print(f"{one_line(now.root)} is {_word(now, decision)}{' now' if kept.written else ' already'}.")
    if now.trust != (decision or "undecided"):
        tell(f"But this folder is {now.trust}, because {one_line(now.decided_for or '')} is.")
    elif decision == "trusted":
        tell(f"Its settings: {one_line(_project_file(now))}")
        for what, said in _told(folder):
            tell(f"Its {what}: {one_line(', '.join(said))}")


def instructions_here(folder: str) -> ProjectText:
    """What the files ``AGENTS.md`` say, from the root of the folder's project down to the folder."""
    here = origin_of(folder)
    return instructions_in(checkout_and_root(here)[0], here)


def _told(folder: str) -> list[tuple[str, list[str]]]:
    """What agents get in a trusted project in addition to its settings, each with its files."""
    told, (*found, _) = instructions_here(folder), places(folder)
    skills = [skill.source or skill.name for place in found for skill in place.skills]
    problems = [str(one) for one in (*told.problems, *(problem for place in found for problem in place.problems))]
    rows = [("instructions", told.sources), ("skills", skills), ("problems", problems)]
    return [(what, list(said)) for what, said in rows if said]


def _check_not_home(folder: str) -> None:
    """Refuses to trust the home folder unless the user names it."""
    real = os.path.realpath(folder)
    if real in (os.path.realpath(os.path.expanduser("~")), Path(real).anchor):
        why = f"this is {one_line(real)}, hardly a project. Name it if you mean it: forkpoint trust {one_line(real)}"
        raise typer.BadParameter(why, param_hint="PATH")


def _word(now: TrustStand, decision: Decision | None) -> str:
    return now.trust if decision is None and now.trust == "undecided" else decision or "undecided by itself"


def _show(now: TrustStand, config: Path, json: bool, folder: str) -> None:
    if json:
        print_json(_document(now, config, folder))
    else:
        why = f"nothing in {config} is about it"
        if now.warning is not None:
            why = now.warning
        elif now.decided_for is not None:
            other = "" if now.decided_for == now.root else f" about {now.decided_for}"
            why = f"{config} says so{other}"
        shown = [("project", now.root), ("trust", now.trust), ("why", why), ("settings", _project_file(now))]
        told = _told(folder) if now.trust == "trusted" else []
        display(facts(shown + [(what, ", ".join(said)) for what, said in told]))


def _document(now: TrustStand, config: Path, folder: str) -> dict[str, Any]:
    told = dict(_told(folder)) if now.trust == "trusted" else {}
    return told | {
        "root": now.root,
        "trust": now.trust,
        "decided_for": now.decided_for,
        "file": str(config),
        "project_file": str(settings_of(Path(now.root))),
        "warning": now.warning,
    }


def _project_file(now: TrustStand) -> str:
    """Which of the project's own settings are used, on one line."""
    file = settings_of(Path(now.root))
    if now.trust != "trusted":
        return f"none of {file} is read"
    if not file.exists():
        return f"none, {file} is not there"
    try:
        found = settings_at(Path(now.root))
    except ForkpointError as error:
        return f"they cannot be used. {error}"
    names = [name for name in found.__struct_fields__ if getattr(found, name) is not None]
    return f"{file} sets {', '.join(names) or 'nothing'}"

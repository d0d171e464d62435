"""``forkpoint trust``: whether the project here may say how Forkpoint works in it."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from forkpoint.agent.skills.files import ProjectText, instructions_in
from forkpoint.backend.settings import as_workspace
from forkpoint.cli.commands.skills import places
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, display, facts, one_line, print_json, tell
from forkpoint.cli.questions.keyboard import says_yes
from forkpoint.cli.questions.pin_view import PinView
from forkpoint.errors import ForkpointError, NotKept
from forkpoint.workspace import Decision, TrustStand, set_trust, standing
from forkpoint.workspace.defaults import settings_file
from forkpoint.workspace.folders import origin_of
from forkpoint.workspace.pins.pins import Pinned, digest_of, pinned_at, trust_changed
from forkpoint.workspace.project import settings_at, settings_of
from forkpoint.workspace.roots import checkout_and_root


def trust(
    path: Annotated[str | None, argument("PATH", "A folder of the project. Default: this one.")] = None,
    revoke: Annotated[bool, option("--revoke", "Do not trust it: remember it as untrusted.")] = False,
    forget: Annotated[bool, option("--forget", "Decide nothing: forget what was said of it.")] = False,
    show: Annotated[bool, option("--show", "Change nothing: show how it stands, and why.")] = False,
    yes: Annotated[bool, option("--yes", "Trust it without a question.")] = False,
    trust_digest: Annotated[
        str | None, option("--trust-digest DIGEST", "Trust it if this is the digest of what it runs, and fail if not.")
    ] = None,
    print_digest: Annotated[
        bool, option("--print-digest", "Change nothing: print the digest of what it runs.")
    ] = False,
    json: Json = False,
) -> None:
    """Trust the project that a folder belongs to, with what it runs now.

    A trusted project's settings are used (.forkpoint/config.toml), its skills (.forkpoint/skills), and what it tells
    agents (AGENTS.md). An untrusted one's are not, and tools that can do harm ask first there. Nothing is read of
    a project that you have not decided on.

    Every command that the project would run is shown, with the project's files that it names, and then you are asked.
    If any of that changes later, nothing of it runs until you approve the change, with this command. Without a
    terminal, say --yes, or --trust-digest for exactly what you have seen.

    The project is the repository that the folder is in, with all its worktrees, or the folder itself. What you say is
    kept in your settings file, and the exit status is 1 if it cannot be.

    \b
    Examples:
      forkpoint trust
      forkpoint trust ~/work/builds --revoke
      forkpoint trust --show
      forkpoint trust --trust-digest "$(forkpoint trust --print-digest)"
    """
    _check_options(revoke + forget + show + print_digest, yes, trust_digest)
    folder = as_workspace(path or ".")
    assert folder is not None
    config = settings_file()
    if print_digest:
        digest = pinned_at(folder).digest
        print_json({"digest": digest}) if json else print(digest)
        return
    if show:
        _show(standing(folder, config), config, json, folder)
        return
    decision: Decision | None = "untrusted" if revoke else None if forget else "trusted"
    pinned = None
    if decision == "trusted":
        if path is None:
            _check_not_home(folder)
        pinned = _seen(folder, config, trust_digest, is_agreed=yes, as_json=json)
    kept = set_trust(folder, decision, config, pinned)
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


def _check_options(others: int, yes: bool, trust_digest: str | None) -> None:
    """Raises `typer.BadParameter` if the options do not go together. ``others``: how many do another thing."""
    if others > 1:
        raise typer.BadParameter("--revoke, --forget, --show and --print-digest are four things to do; choose one")
    if others and (yes or trust_digest is not None):
        raise typer.BadParameter("--yes and --trust-digest are for trusting a project; leave the other option out")
    if trust_digest is not None and digest_of(trust_digest) is None:
        why = "it is not a digest, as `forkpoint trust --print-digest` prints it"
        raise typer.BadParameter(why, param_hint="--trust-digest")


def _seen(folder: str, config: Path, digest: str | None, *, is_agreed: bool, as_json: bool) -> Pinned:
    """What the user trusts: it was shown, and the user has agreed, or the digest is its own."""
    view = PinView(folder, standing(folder, config), config)
    if digest is not None:
        if digest.strip() != view.digest:
            what = f"its digest is {view.digest}, and not {digest.strip()}"
            raise trust_changed(view.pinned.root, folder, what, view.digest)
        return view.pinned
    if view.is_approved:
        return view.pinned
    asks = not is_agreed and not as_json and sys.stdin.isatty() and sys.stderr.isatty()
    for line in () if as_json or asks else view.lines():
        tell(line)
    if is_agreed:
        return view.pinned
    if not asks:
        exactly = f"forkpoint trust {shlex.quote(folder)} --trust-digest {view.digest}"
        why = f"nobody can be asked here. Pass --yes, or trust exactly what there is now: {exactly}"
        raise typer.BadParameter(one_line(why))
    if not says_yes(f"Do you trust {one_line(view.pinned.root)} with this?", show=view.above):
        tell("Nothing was changed.")
        raise typer.Exit(1)
    return view.pinned


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
        if (view := _view(now, config, folder)) is not None:
            shown.append(("pinned", view.summary))
            shown += [("changed", one_line(name)) for name in view.prose]
        display(facts(shown + [(what, ", ".join(said)) for what, said in told]))


def _document(now: TrustStand, config: Path, folder: str) -> dict[str, Any]:
    told: dict[str, Any] = dict(_told(folder)) if now.trust == "trusted" else {}
    if (view := _view(now, config, folder)) is not None:
        told["pinned"] = view.document()
    return told | {
        "root": now.root,
        "trust": now.trust,
        "decided_for": now.decided_for,
        "file": str(config),
        "project_file": str(settings_of(Path(now.root))),
        "warning": now.warning,
    }


def _view(now: TrustStand, config: Path, folder: str) -> PinView | None:
    """How what a trusted project runs stands to what was approved; None if its settings cannot be used."""
    if now.trust != "trusted":
        return None
    try:
        return PinView(folder, now, config)
    except ForkpointError:  # its settings say why
        return None


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

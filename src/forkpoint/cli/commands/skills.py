"""``forkpoint skills``: instructions that a model gets when a message or a file calls for them."""

from pathlib import Path
from typing import Annotated, Any

from forkpoint.agent.skills import skill as matching
from forkpoint.agent.skills.files import Found, skills_in, together
from forkpoint.backend.settings import as_workspace
from forkpoint.cli.cells import brief
from forkpoint.cli.common import Store, opened
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, clean, display, grid, one_line, print_json, tell
from forkpoint.errors import NotFound
from forkpoint.events import SkillActivated
from forkpoint.workspace.defaults import skills_folder, trusted_project

Workspace = Annotated[str | None, option("--workspace PATH", "The folder that is worked in. Default: this one.")]


def list_skills(workspace: Workspace = None, json: Json = False) -> None:
    """List all skills, and what cannot be used.

    What cannot be used is told on stderr, with the reason. The exit status is 0 all the same, for no turn fails because
    of it.

    \b
    Examples:
      forkpoint skills
      forkpoint skills list --workspace ~/work/builds --json
    """
    found = _found(workspace)
    if json:
        print_json({"skills": [_document(skill) for skill in found.skills], "problems": found.problems})
        return
    table = grid()
    for column in ("skill", "description", "source"):
        table.add_column(column, overflow="fold")
    for skill in found.skills:
        table.add_row(skill.name, brief(skill.description, 60), one_line(skill.source or ""))
    display(table)
    _tell_problems(found)


def show(
    name: Annotated[str, argument("SKILL", "Its name, as `forkpoint skills` lists it.")],
    workspace: Workspace = None,
    json: Json = False,
) -> None:
    """Show a skill: what calls for it, and what a model is told.

    \b
    Example:
      forkpoint skills show release-notes
    """
    found = _found(workspace)
    skill = next((one for one in found.skills if one.name == name), None)
    if skill is None:
        raise NotFound("skill", name)
    if json:
        print_json(_document(skill) | {"content": skill.content})
        return
    tell(f"{skill.source}, called for by {', '.join((*map(repr, skill.triggers), *skill.files))}")
    print(clean(skill.content))


def explain(
    message: Annotated[str, argument("MESSAGE", "What you would say.")],
    conversation: Annotated[
        str | None,
        option("--conversation CONVERSATION", "Leave out the skills that this conversation has activated already."),
    ] = None,
    workspace: Workspace = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Say which skills a message would activate, and why.

    \b
    Examples:
      forkpoint skills explain "Write the release notes."
      forkpoint skills explain "Write the release notes." --conversation build-1234
    """
    found = _found(workspace)
    already = _activated(conversation, store) if conversation is not None else set()
    folder = Path(workspace or ".").absolute()
    new = {skill.name for skill in matching.triggered(found.skills, message, (), already, workspace=folder)}
    rows: list[dict[str, Any]] = []
    for skill, why in matching.explain(found.skills, message, workspace=folder):
        rows.append({"name": skill.name, "activated": skill.name in new, "already": skill.name in already, "why": why})
    if json:
        print_json({"skills": rows, "problems": found.problems})
        return
    table = grid()
    for column in ("skill", "activation"):
        table.add_column(column, overflow="fold")
    for row in rows:
        said = f"would be activated: {row['why']}" if row["activated"] else "nothing calls for it"
        if row["already"]:
            said = "was activated before"
        elif row["why"] is not None and not row["activated"]:
            said = f"has no room beside the others: {row['why']}"
        table.add_row(row["name"], one_line(said))
    display(table)
    _tell_problems(found)


def places(workspace: str | None = None) -> list[Found]:
    """The skills that a conversation here has in addition to its agent's own: the trusted project's, then the user's.

    There is one item for each folder that skills are read from.
    """
    projects = trusted_project(as_workspace(workspace or "."))
    return [*(skills_in(one / ".forkpoint" / "skills", one) for one in projects), skills_in(skills_folder())]


def _found(workspace: str | None) -> Found:
    """All skills, each name once."""
    return together(*places(workspace))


def _activated(conversation: str, store: str | None) -> set[str]:
    with opened(conversation, store, bind=False) as found:
        return {event.body.name for event in found.events() if isinstance(event.body, SkillActivated)}


def _document(skill: Any) -> dict[str, Any]:
    return {
        "name": skill.name,
        "description": skill.description,
        "words": skill.triggers,
        "files": skill.files,
        "source": skill.source,
    }


def _tell_problems(found: Found) -> None:
    for problem in found.problems:
        tell(f"not used: {one_line(str(problem))}")

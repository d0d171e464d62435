"""``forkpoint templates``: what ``forkpoint run --template`` can say, and where each one stands.
Tests: tests/cli/test_templates.py."""

from typing import Annotated

from msgspec.structs import asdict

from forkpoint.cli.cells import brief
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, display, facts, grid, one_line, print_json, tell
from forkpoint.workspace.defaults import settings_file
from forkpoint.workspace.templates import Template, template_of, templates_of


def templates(
    name: Annotated[str | None, argument("TEMPLATE", "Show this one, whole. Default: list all.")] = None,
    workspace: Annotated[
        str | None, option("--workspace FOLDER", "The folder whose trusted project is looked at. Default: this one.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the templates for `forkpoint run`.

    They stand in your settings file, and in .forkpoint/config.toml of a project that you trust, each in a table
    [templates.NAME] with a message. docs/command-line.md lists the fields.

    \b
    Examples:
      forkpoint templates
      forkpoint templates review
      git diff | forkpoint run --template review -p language=German
    """
    folder = workspace or "."
    if name is not None:
        _show(template_of(name, folder), as_json=json)
        return
    found = sorted(templates_of(folder).values(), key=lambda one: one.name)
    if json:
        print_json({"items": [asdict(one) for one in found]})
    elif not found:
        tell(f"No templates. A table [templates.NAME] with a message in {settings_file()} makes one.")
    else:
        table = grid(header=True)
        for column in ("template", "parameters", "message", "from"):
            table.add_column(column, no_wrap=column != "from", overflow="fold" if column == "from" else "ellipsis")
        for one in found:
            said = brief(one.message or one.instructions or "", 60)
            table.add_row(one_line(one.name), ", ".join(one.parameters), said, one_line(one.source))
        display(table)


def _show(template: Template, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(template))
        return
    fields = asdict(template) | {"extract": "yes" if template.extract else None}
    fields["defaults"] = ", ".join(f"{name}={value}" for name, value in template.defaults.items())
    display(facts((name, value) for name, value in fields.items() if value))

"""``--template``: the options of ``forkpoint run`` that a template gives, where the command line says nothing.
Tests: tests/cli/test_templates.py."""

from typing import Annotated, TypeAlias

import typer

from forkpoint.cli.common import pairs_from
from forkpoint.cli.options import option
from forkpoint.cli.questions.project import in_approved_project, is_here, trust_wished
from forkpoint.errors import BadArgument
from forkpoint.workspace.templates import Template, template_of

TemplateName: TypeAlias = Annotated[
    str | None,
    option("--template -t NAME", "Say what this template of your settings says. `forkpoint templates` lists them."),
]

Parameters: TypeAlias = Annotated[
    list[str] | None, option("--param -p NAME=VALUE", "A parameter of the template. Repeatable.")
]


def template_from(name: str, workspace: str | None, store: str | None, trust: bool | None) -> Template:
    """The template with this name. Raises `NotFound`, `BadSetting` or `TrustChanged`."""
    folder = workspace or "."
    here = folder if is_here(folder, None) else None
    return in_approved_project(lambda: template_of(name, here, trust=trust_wished(here, trust)), here, None)


def filled(template: Template, said: str | None, given: list[str] | None) -> str | None:
    """The message of a template with its parameters. Raises `typer.BadParameter`."""
    try:
        return template.filled(said, pairs_from("--param", given))
    except BadArgument as error:
        raise typer.BadParameter(f"template {template.name} in {template.source}: {error.why}") from None

"""All commands, and what the program does with an error: a line on stderr, and an exit status."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from forkpoint.cli import chat
from forkpoint.cli.commands import (
    agents,
    conversations,
    demo,
    doctor,
    keys,
    local,
    request,
    run,
    serve,
    show,
    skills,
    tree,
    trust,
    turns,
    usage,
)
from forkpoint.cli.output import print_error
from forkpoint.errors import ForkpointError
from forkpoint.version import __version__


class _Sections(TyperGroup):
    """Help with the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, names in _SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(f"{name:10}", command.get_short_help_str(80)) for name, command in found if command is not None]
            with formatter.section(section):
                formatter.write_dl(rows)


app = typer.Typer(
    name="forkpoint",
    cls=_Sections,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it is there at once
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit status:
  0    it worked; a turn has committed
  1    it did not work; a turn has failed, or what was checked is not as it should be
  2    the command line makes no sense
  3    a turn waits for an approval
  130  Ctrl-C""",
)
app.add_typer(agents.app, name="agents")
app.add_typer(keys.app, name="keys")
app.add_typer(local.app, name="local")
app.add_typer(skills.app, name="skills")

_SECTIONS: dict[str, list[str]] = {}


def _add(section: str, cls: type[TyperCommand] = TyperCommand, **commands: Callable[..., None]) -> None:
    for name, command in commands.items():
        app.command(name, cls=cls)(command)
    _SECTIONS.setdefault(section, []).extend(commands)


_add("Talk", demo=demo.demo, run=run.run, chat=chat.chat, ask=turns.ask)
_add("Look", list=conversations.list_conversations, show=show.show, tree=tree.tree, request=request.request)
_add("Look", usage=usage.usage)
_SECTIONS["Look"].append("skills")
_add("Branch", fork=tree.fork, rewind=tree.rewind)
_SECTIONS["Branch"].append("agents")
_add("Steer", retry=turns.retry, resume=turns.resume, approve=turns.approve, deny=turns.deny, discard=turns.discard)
_add("Steer", condense=turns.condense)
_add("Keep", describe=conversations.describe, delete=conversations.delete, verify=doctor.verify, doctor=doctor.doctor)
_add("Keep", trust=trust.trust)
_SECTIONS["Keep"].append("local")
_add("Serve", cls=serve.ServeCommand, serve=serve.serve)
_SECTIONS["Serve"].append("keys")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program, and exits."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # somebody may have put something else in its place
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(given, prog_name="forkpoint")
    except ForkpointError as error:
        print_error(error, as_json="--json" in given)
        sys.exit(1)
    finally:
        _flush()


def _flush() -> None:
    """Says what is left to say. Whoever read it may have gone (``| head``), which is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"forkpoint {__version__}")
        raise typer.Exit


@app.callback()
def _forkpoint(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Conversations for AI agents: every turn is a transaction, every commit a fork point."""

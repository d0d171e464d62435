"""Which commands there are, and what each takes, as data: read from commands.json, which costs no import of a command.

`described` makes that data of the commands themselves. ``./run python -m tests.cli.test_completion --write`` writes it.
Tests: tests/cli/test_completion.py.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, get_args, get_origin

FILE = Path(__file__).with_name("commands.json")

Value: TypeAlias = list[str] | str
"""What a parameter takes: one of these words, or a kind of thing."""


class Parameter(TypedDict, total=False):
    """An option, or an argument if it has no names. Without a value it is a switch."""

    names: list[str]
    help: str
    value: Value
    repeat: bool


class Command(TypedDict, total=False):
    """A command, or a group of commands."""

    help: str
    parameters: list[Parameter]
    commands: dict[str, "Command"]
    default: str


@cache
def program() -> Command:
    """The program with all its commands."""
    read: Command = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def described(command: Any) -> Command:
    """A command of typer's as data, with the commands that it has."""
    real = getattr(command, "imported", command)
    told = Command(help=command.get_short_help_str(200))
    told["parameters"] = [_parameter(one) for one in real.params if not getattr(one, "hidden", False)]
    told["parameters"].append(Parameter(names=["--help"], help="Show this message and exit"))
    if default := getattr(real, "default", None):
        told["default"] = default
    if commands := getattr(real, "commands", None):
        told["commands"] = {name: described(one) for name, one in commands.items()}
    return told


def written(command: Command, indent: str = "") -> str:
    """The data as JSON, with a line for each parameter, so that a change of one is a change of one line."""
    inner = indent + "  "
    lines = [f'{inner}"help": {_json(command["help"])}']
    if "default" in command:
        lines.append(f'{inner}"default": {_json(command["default"])}')
    parameters = ",\n".join(f"{inner}  {_json(one)}" for one in command["parameters"])
    lines.append(f'{inner}"parameters": [\n{parameters}\n{inner}]')
    if "commands" in command:
        rows = [f"{inner}  {_json(name)}: {written(one, inner + '  ')}" for name, one in command["commands"].items()]
        lines.append(f'{inner}"commands": {{\n' + ",\n".join(rows) + f"\n{inner}}}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _parameter(one: Any) -> Parameter:
    is_option = one.param_type_name == "option"
    told = Parameter(help=(one.help or "").partition(". ")[0].rstrip("."))
    if is_option:
        told["names"] = [*one.opts, *one.secondary_opts]
    if not (is_option and one.is_flag):
        told["value"] = _value(one)
    if one.multiple if is_option else one.nargs == -1:
        told["repeat"] = True
    return told


def _value(one: Any) -> Value:
    """What a parameter takes, which its type, its name or its metavar says."""
    annotation = one.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return _BY_NAME.get(one.opts[0]) or _BY_METAVAR.get((one.metavar or "").strip("[]"), "text")


_BY_NAME: dict[str, Value] = {
    "--conversation": "conversation",
    "--model": "model",
    "--template": "template",
    "--title-model": "model",
    "--store": "store",
    "--workspace": "folder",
}

_BY_METAVAR: dict[str, Value] = {
    "BRANCH": "conversation",
    "CONVERSATION": "conversation",
    "FILE": "file",
    "FOLDER": "folder",
    "MODULE:NAME": "agent",
    "OTHER": "conversation",
    "PATH": "folder",
    "TEMPLATE": "template",
}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

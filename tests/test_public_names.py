"""Public names change together with the changelog, or this fails. ``public_names.txt`` lists them all.

``python tests/test_public_names.py --write`` writes the list anew. It refuses while CHANGELOG.md says nothing new: the
list holds a digest of what stood under "Unreleased" when it was last written, and a seal over both, so that neither
can be left out by hand.
"""

import difflib
import hashlib
import importlib
import inspect
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tests" / "public_names.txt"
CHANGELOG = ROOT / "CHANGELOG.md"
MODULES = [f"forkpoint.{part}" for part in ("agent", "conversation", "llm", "store", "testing")]

WHAT_TO_DO = "add a line to CHANGELOG.md under Unreleased and run `python tests/test_public_names.py --write`"


# The names, as text.


def names() -> str:
    """Every public name with what it is called with, a line each, the same for the same code."""
    homes: dict[Any, str] = {}
    lines: list[str] = []
    for module in MODULES:
        here = importlib.import_module(module)
        for name in sorted(here.__all__):
            value = getattr(here, name)
            lines += _described(f"{module}.{name}", value)
            if isinstance(value, type | types.FunctionType):
                homes[value] = f"{module}.{name}"
    forkpoint = importlib.import_module("forkpoint")
    for name in sorted(forkpoint.__all__):
        value = getattr(forkpoint, name)
        again = homes.get(value) if isinstance(value, type | types.FunctionType) else None
        lines += [f"forkpoint.{name} is {again}"] if again else _described(f"forkpoint.{name}", value)
    lines += _errors()
    return "\n".join(lines) + "\n"


def _described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield f"class {name}{_signature(value)}"
        yield from (f"{name}.{line}" for line in _members(value))
    elif callable(value) and not typing.get_origin(value):
        yield from (f"function {name}{_signature(one)}" for one in typing.get_overloads(value) or [value])
    else:
        yield f"alias {name} = {_alias(value)}"


def _members(kind: type) -> Iterator[str]:
    """The public methods and properties that a class has from us, and not from Python or a library."""
    fields = getattr(kind, "__struct_fields__", ())
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] == "forkpoint":
            found |= vars(base)
    for name, member in sorted(found.items()):
        if name.startswith("_") or name in fields:
            continue
        if isinstance(member, property | cached_property):
            yield f"{name} (property)"
        elif isinstance(member, classmethod | staticmethod | types.FunctionType):
            yield f"{name}{_signature(getattr(kind, name))}"


def _signature(value: Any) -> str:
    """Names, kinds and defaults of parameters. Types are left out: their text is not the same in every Python."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    empty = inspect.Parameter.empty
    plain = [
        parameter.replace(annotation=empty, default=empty if parameter.default is empty else _Shown(parameter.default))
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


class _Shown:
    """A default, in a form that does not depend on where it stands in memory, nor on what its class has inside."""

    def __init__(self, value: Any) -> None:
        if callable(value):
            self._text = str(getattr(value, "__name__", type(value).__name__))
        elif type(value).__module__.partition(".")[0] == "forkpoint":
            self._text = f"{type(value).__name__}()" if value == type(value)() else repr(value)
        else:
            self._text = repr(value)

    def __repr__(self) -> str:
        return self._text


def _alias(value: Any) -> str:
    origin = typing.get_origin(value)
    if origin is typing.Literal:
        return " | ".join(map(repr, typing.get_args(value)))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_alias, typing.get_args(value)))
    return str(getattr(origin or value, "__name__", value))


def _errors() -> Iterator[str]:
    """Every code of an error, with its class or its form, what it is a kind of, and its fields."""
    errors: Any = importlib.import_module("forkpoint.errors")
    found: dict[str, str] = {}
    for code, kind in errors.KINDS.items():
        cls = errors.class_of(kind)
        if cls.__module__.startswith(errors.__name__):
            name, base = (cls.__name__, cls.__mro__[1]) if kind is cls else (f"{cls.__name__}.{code}", cls)
            fields = _signature(kind) if kind is not errors.ForkpointError else "()"
            found[name] = f"error {code}: forkpoint.errors.{name}{fields}, a {base.__name__}"
    yield from (line for _, line in sorted(found.items()))


# The list, and its tie to the changelog.


class SaysNothingNew(Exception):
    """The names have changed, and the changelog has not."""


def unreleased(changelog: str) -> str:
    """A digest of what stands under Unreleased, however its lines are broken."""
    found = re.search(r"^## Unreleased$(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    return _digest(" ".join((found.group(1) if found else "").split()))


def written(listed: str | None, names: str, changelog: str) -> str:
    """The list with these names. Raises `SaysNothingNew` if they have changed since the changelog last did."""
    said = unreleased(changelog)
    if listed is not None:
        before, said_before = read(listed), _header(listed, "changelog")
        if before == names:
            said = said_before or said  # nothing has changed, so the next change needs a line of its own
        elif said == said_before:
            raise SaysNothingNew
    return f"# changelog: {said}\n# seal: {_digest(said + names)}\n\n{names}"


def read(listed: str) -> str:
    """The names in a list."""
    return listed.partition("\n\n")[2]


def is_sealed(listed: str) -> bool:
    """Whether a list is as it was written, and not as somebody edited it."""
    return _header(listed, "seal") == _digest((_header(listed, "changelog") or "") + read(listed))


def _header(listed: str, name: str) -> str | None:
    found = re.search(rf"^# {name}: (\w+)$", listed.partition("\n\n")[0], re.MULTILINE)
    return found.group(1) if found else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _at_head(file: Path) -> str | None:
    """A file as it was last committed; None if there is no git, no commit, or no such file in it."""
    command = ["git", "-C", str(ROOT), "show", f"HEAD:{file.relative_to(ROOT).as_posix()}"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return shown.stdout if shown.returncode == 0 else None


# What must hold.


def test_every_public_name_is_listed_and_every_listed_name_is_there() -> None:
    listed, now = read(LIST.read_text()), names()
    diff = "\n".join(difflib.unified_diff(listed.splitlines(), now.splitlines(), "listed", "now", lineterm="", n=0))
    assert listed == now, f"public names have changed:\n{diff}\nIf that is meant, {WHAT_TO_DO}"


def test_the_list_was_written_together_with_the_changelog_and_not_by_hand() -> None:
    assert is_sealed(LIST.read_text()), f"{LIST.name} was edited by hand: restore it; to change a name, {WHAT_TO_DO}"


def test_names_that_differ_from_those_of_the_last_commit_have_a_line_in_the_changelog() -> None:
    before, changelog = _at_head(LIST), _at_head(CHANGELOG)
    if before is None or changelog is None:
        pytest.skip("there is no commit to compare with")
    if read(before) != read(LIST.read_text()):
        assert unreleased(changelog) != unreleased(CHANGELOG.read_text()), f"public names have changed: {WHAT_TO_DO}"


# That the above can fail.


OLD, NEW = "class A()\n", "class A()\nclass B()\n"
BEFORE, AFTER = (
    "# Changelog\n\n## Unreleased\n\n- A.\n\n## 1\n\n- Z.\n",
    "## Unreleased\n\n- A.\n- B.\n\n## 1\n\n- Z.\n",
)


def test_a_changed_name_needs_a_new_line_under_unreleased() -> None:
    listed = written(None, OLD, BEFORE)
    with pytest.raises(SaysNothingNew):
        written(listed, NEW, BEFORE)
    with pytest.raises(SaysNothingNew):
        written(listed, NEW, BEFORE.replace("- Z.", "- Z, in other words."))
    with pytest.raises(SaysNothingNew):
        written(listed, NEW, BEFORE.replace("- A.", "-\n  A."))
    again = written(listed, NEW, AFTER)
    assert read(again) == NEW
    with pytest.raises(SaysNothingNew):
        written(again, OLD, AFTER)


def test_writing_the_same_names_does_not_use_up_a_line_or_save_one_for_later() -> None:
    listed = written(None, OLD, BEFORE)
    assert written(listed, OLD, BEFORE) == listed
    assert written(written(listed, OLD, AFTER), NEW, AFTER) == written(listed, NEW, AFTER)


def test_a_list_that_was_edited_by_hand_is_not_sealed() -> None:
    listed = written(None, OLD, BEFORE)
    assert is_sealed(listed)
    assert not is_sealed(listed.replace("class A()", "class A(b)"))
    assert not is_sealed(listed.replace(unreleased(BEFORE), unreleased(AFTER)))
    assert not is_sealed(OLD)


def test_the_list_has_what_a_program_uses() -> None:
    now = names()
    for line in (
        "forkpoint.Conversation is forkpoint.conversation.Conversation",
        "forkpoint.conversation.Conversation.run(self, message=None, *, results=None, supersede=False, key=None, ",
        "forkpoint.conversation.Turn.text (property)",
        "error turn_failed: forkpoint.errors.TurnFailed",
        "alias forkpoint.llm.Outcome = Complete | Failed",
    ):
        assert any(one.startswith(line) for one in now.splitlines()), line
    assert " at 0x" not in now, "a default would be listed by its place in memory"
    assert now == names()


def main() -> None:
    """Writes the list, if the changelog has something to say about it."""
    listed = LIST.read_text() if LIST.exists() else None
    try:
        LIST.write_text(written(listed, names(), CHANGELOG.read_text()))
    except SaysNothingNew:
        sys.exit(f"public names have changed, and the changelog says nothing new: {WHAT_TO_DO}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_public_names.py --write")
    main()

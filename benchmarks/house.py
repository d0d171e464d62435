"""Measures the shape of the code base, and says which targets it meets: `python -m benchmarks.house [SRC]`.

    ./run python -m benchmarks.house                   # this clone's src
    ./run python -m benchmarks.house ../other/src      # the src folder of another clone
    ./run python -m benchmarks.house --walks           # also the files that a turn, a fork and a chat completion use

The figures are read from the syntax trees of the source, so nothing of it is imported. Only `--walks` runs the code:
the module `walks` does that, in another process that imports the package from SRC.
"""

import argparse
import ast
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import msgspec
from msgspec import Struct

from benchmarks.report import table_text
from benchmarks.results import Table

PACKAGE = "forkpoint"
LINES = 54_200
MODULES = 15  # of one folder
METHODS = 40
PARAMETERS = 6
FACES = frozenset({"AsyncConversation", "Conversation", "AsyncConversations", "Conversations"})
"""The classes that a program uses. They may have many methods: each is one thing that a conversation can do."""
PARTICIPLES = frozenset(
    {"told", "heard", "asked", "kept", "made", "shown", "wanted", "seen", "timed", "hot", "failed", "once"}
)

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_ROOT = Path(__file__).parents[1]


class Figure(Struct, frozen=True):
    """One number about the code base. It meets its target if it is less than `below`; None means no target."""

    name: str
    measured: int
    below: int | None = None
    items: tuple[str, ...] = ()  # what was counted, if that is worth a list

    @property
    def target(self) -> str:
        if self.below is None:
            return ""
        return "none" if self.below == 1 else f"fewer than {self.below:,}"

    @property
    def met(self) -> bool | None:
        return None if self.below is None else self.measured < self.below


class Walk(Struct, frozen=True):
    """The part of the package that one operation passed through."""

    name: str
    files: int
    functions: int
    folders: dict[str, int]  # how many of the files are in each top-level folder, the most first


class Module:
    """A Python file of the package. Its name is its path inside the package, without the suffix: ``agent/loop``."""

    def __init__(self, path: Path, package: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.name = path.relative_to(package).with_suffix("").as_posix()
        self.lines = len(text.splitlines())
        self.tree = ast.parse(text, str(path))

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).name

    @property
    def folder(self) -> str:
        return PurePosixPath(self.name).parent.as_posix()

    @property
    def is_special(self) -> bool:
        """Whether Python chose the file's name: ``__init__`` or ``__main__``."""
        return self.stem.startswith("__")

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        """All classes of the module, also those inside classes and functions."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    @property
    def exports(self) -> list[str]:
        """The names in ``__all__``."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and _last_name(node.targets[0]) == "__all__":
                return list(ast.literal_eval(node.value))
        return []

    @cached_property
    def imports(self) -> dict[str, str]:
        """The module that each ``from ... import`` name comes from, in the form of `Module.name`."""
        return {
            alias.asname or alias.name: node.module.removeprefix(f"{PACKAGE}.").replace(".", "/")
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }


class House:
    """All modules of a package, and the classes in them by name."""

    def __init__(self, package: Path) -> None:
        self.modules = [Module(path, package) for path in sorted(package.rglob("*.py"))]
        self._homes: defaultdict[str, list[tuple[Module, ast.ClassDef]]] = defaultdict(list)
        for module in self.modules:
            for node in module.classes:
                self._homes[node.name].append((module, node))

    @property
    def homes(self) -> Mapping[str, Sequence[tuple[Module, ast.ClassDef]]]:
        """The classes of each name, with their modules."""
        return self._homes

    def methods(self, module: Module, node: ast.ClassDef) -> set[str]:
        """The names of a class's methods, also of those that it inherits from classes of this package."""
        own = {statement.name for statement in node.body if isinstance(statement, Function)}
        bases = (self._base(module, node, name) for name in _base_names(node))
        return own.union(*(self.methods(*base) for base in bases if base is not None))

    def _base(self, module: Module, child: ast.ClassDef, name: str) -> tuple[Module, ast.ClassDef] | None:
        """The class that a module means by the name of a base, or None if that class is not of this package."""
        found = [(home, node) for home, node in self._homes.get(name, ()) if node is not child]
        source = module.imports.get(name)
        for home, node in found:
            if home is module or home.name == source:
                return home, node
        return found[0] if len(found) == 1 else None


def figures(package: Path) -> list[Figure]:
    """All figures that can be read from the source."""
    house = House(package)
    named = [module for module in house.modules if not module.is_special]
    return [
        Figure("lines of src", sum(module.lines for module in house.modules), LINES),
        Figure("modules", len(house.modules)),
        _listed(f"folders with more than {MODULES} modules", _large_folders(named), target=True),
        _listed("class names defined more than once", _shared_class_names(house), target=True),
        _listed("module file names used more than once", _shared_file_names(named)),
        *_large_classes(house),
        *_many_parameters(house.modules),
        Figure("exception classes in errors", sum(len([*module.classes]) for module in named if _is_errors(module))),
        *_public_names(package.parents[1] / "tests" / "public_names.txt"),
        _listed("module names that are participles", (module.name for module in named if _is_participle(module.stem))),
    ]


def _listed(name: str, items: Iterable[str], *, target: bool = False) -> Figure:
    """The number of items, with the items. The target, if there is one, is to have none."""
    found = tuple(items)
    return Figure(name, len(found), 1 if target else None, found)


def _large_folders(modules: Iterable[Module]) -> Iterator[str]:
    folders = _grouped((module.folder, module.stem) for module in modules)
    return (f"{folder}: {len(found)}" for folder, found in folders.items() if len(found) > MODULES)


def _shared_class_names(house: House) -> Iterator[str]:
    for name, homes in sorted(house.homes.items()):
        if len(homes) > 1:
            yield f"{name} x{len(homes)}: {', '.join(module.name for module, _ in homes)}"


def _shared_file_names(modules: Iterable[Module]) -> Iterator[str]:
    names = _grouped((module.stem, module.folder) for module in modules)
    return (f"{name} x{len(found)}: {', '.join(found)}" for name, found in names.items() if len(found) > 1)


def _large_classes(house: House) -> Iterator[Figure]:
    """The classes with too many methods; the protocols with as many, apart, since they only describe.

    The tests of a suite do not count: nobody calls them.
    """
    classes, protocols, faces = list[str](), list[str](), list[str]()
    for name, homes in sorted(house.homes.items()):
        for module, node in homes:
            if (count := sum(not name.startswith("test_") for name in house.methods(module, node))) > METHODS:
                kind = faces if name in FACES else protocols if "Protocol" in _base_names(node) else classes
                kind.append(f"{name}: {count}, {module.name}")
    yield _listed(f"classes with more than {METHODS} methods", classes, target=True)
    yield _listed(f"protocols with more than {METHODS} methods", protocols)
    yield _listed(f"faces with more than {METHODS} methods (allowed)", faces)


def _many_parameters(modules: Sequence[Module]) -> Iterator[Figure]:
    """Functions of the agent and of the engine. An older tree has no engine, but conversation/ in its place.

    Apart are those whose parameters users or models see: tools, and constructors of public data.
    """
    first = [module.name.partition("/")[0] for module in modules]
    folders = ("agent", "engine" if "engine" in first else "conversation")
    public = {f"{name}.__init__" for module in modules if module.name == "agent/__init__" for name in module.exports}
    found, shown = list[str](), list[str]()
    for module, folder in zip(modules, first, strict=True):
        if folder in folders:
            for name, count, is_tool in _parameters(module.tree):
                if count > PARAMETERS:
                    (shown if is_tool or name in public else found).append(f"{name}: {count}, {module.name}")
    place = " and ".join(f"{folder}/" for folder in folders)
    yield _listed(f"functions in {place} with more than {PARAMETERS} parameters", found, target=True)
    yield _listed("tools and constructors of public data with as many (allowed)", shown)


def _parameters(node: ast.AST, inside: str = "") -> Iterator[tuple[str, int, bool]]:
    """The qualified name, the number of parameters and whether it is a tool, of all functions below a node; without
    overloads."""
    for child in ast.iter_child_nodes(node):
        name = f"{inside}{child.name}" if isinstance(child, Function | ast.ClassDef) else ""
        if isinstance(child, Function) and "overload" not in (marks := [*map(_last_name, child.decorator_list)]):
            yield name, _parameter_count(child.args), "tool" in marks
        yield from _parameters(child, f"{name}." if name else inside)


def _parameter_count(arguments: ast.arguments) -> int:
    """How many parameters there are without self and cls; ``*args`` and ``**options`` are one each."""
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if positional and positional[0] in {"self", "cls"}:
        del positional[0]
    variable = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return len(positional) + len(arguments.kwonlyargs) + len(variable)


def _public_names(file: Path) -> Iterator[Figure]:
    if file.is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
        yield Figure("public names", sum(bool(line) and not line.startswith("#") for line in lines))


def _is_errors(module: Module) -> bool:
    return module.name == "errors" or module.folder == "errors"


def _is_participle(stem: str) -> bool:
    return stem.endswith("ing") or stem.rpartition("_")[2] in PARTICIPLES


def _base_names(node: ast.ClassDef) -> list[str]:
    return [_last_name(base) for base in node.bases]


def _last_name(node: ast.expr) -> str:
    """The name that an expression ends in: ``Store`` of ``protocol.Store[T]``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return _last_name(inner)
        case _:
            return ""


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(sorted(groups.items()))


# The walks, the output and the command.


def measure_walks(src: Path) -> list[Walk]:
    """Runs the walks in a process that imports the package from this src folder."""
    path = os.pathsep.join(filter(None, (str(src), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "benchmarks.walks", str(src)]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=list[Walk])


def text(measured: Sequence[Figure], walks: Sequence[Walk]) -> str:
    """Everything as tables, then the lists of what was counted."""
    rows = tuple((one.name, f"{one.measured:,}", one.target, _answer(one.met)) for one in measured)
    parts = [table_text(Table("House", ("figure", "measured", "target", "met"), rows))]
    if walks:
        steps = tuple((walk.name, str(walk.files), str(walk.functions), _folders(walk)) for walk in walks)
        parts.append(table_text(Table("Walks", ("walk", "files", "functions", "files of each folder"), steps)))
    parts += ["\n".join((f"{one.name}:", *(f"  {item}" for item in one.items))) for one in measured if one.items]
    return "\n\n".join(parts)


def document(measured: Sequence[Figure], walks: Sequence[Walk]) -> bytes:
    """The same as JSON."""
    shown = [{**msgspec.structs.asdict(one), "target": one.target, "met": one.met} for one in measured]
    return msgspec.json.format(msgspec.json.encode({"figures": shown, "walks": walks}))


def _answer(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "NO"


def _folders(walk: Walk) -> str:
    return ", ".join(f"{folder} {count}" for folder, count in walk.folders.items())


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the shape of the code base against its targets.")
    parser.add_argument("src", nargs="?", type=Path, default=_ROOT / "src", help="default: the src of this clone")
    parser.add_argument("--walks", action="store_true", help="also run a turn, a fork, a sub-agent, a chat completion")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    src = given.src.resolve()
    if not (src / PACKAGE / "__init__.py").is_file():
        parser.error(f"there is no {PACKAGE} package in {given.src}")
    measured, walks = figures(src / PACKAGE), measure_walks(src) if given.walks else []
    print(document(measured, walks).decode() if given.json else text(measured, walks))


if __name__ == "__main__":
    main()

"""Optional parts: packages that an extra of Forkpoint brings, imported when they are first needed.

An import can fail for three reasons, and each has another remedy. The package is not installed: the extra brings it
(`ExtraMissing`). The system lacks a library that the package was built with: the system's package manager brings it
(`LibraryMissing`). Or the package is there and broken (`ExtraBroken`). A part counts as ready only once it is imported.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from typing import Any, TypeAlias

from forkpoint.errors import ExtraBroken, ExtraMissing, LibraryMissing
from forkpoint.system.libraries import installation_of, missing_in

MODULES: dict[str, Sequence[str]] = {
    "local": ("xllamacpp",),
    "mcp": ("mcp", "jsonschema"),
    "postgres": ("psycopg",),
    "server": (
        "fastapi",
        "httptools",
        "jsonschema",
        "prometheus_client",
        "uvicorn",
        *(["uvloop"] if sys.platform != "win32" else []),
    ),
}
"""What each extra brings, by the names of its modules."""

Unusable: TypeAlias = ExtraMissing | LibraryMissing | ExtraBroken
"""Why an optional part cannot be used."""

UNUSABLE = (ExtraMissing, LibraryMissing, ExtraBroken)


def is_loaded(extra: str) -> bool:
    """Whether all that an extra brings has been imported, so that `load` has nothing to do."""
    return all(sys.modules.get(module) is not None for module in MODULES[extra])


def load(extra: str, what: str) -> None:
    """Imports all that an extra brings. Raises what `load_module` raises."""
    for module in MODULES[extra]:
        load_module(module, extra, what)


def load_module(module: str, extra: str, what: str) -> Any:
    """Imports a module that an extra brings; ``what`` is the part of Forkpoint that needs it, for the message.

    Raises `ExtraMissing` if a package is not installed, `LibraryMissing` if the system lacks a library, and
    `ExtraBroken` if the import fails for any other reason.
    """
    if module not in sys.modules:
        importlib.invalidate_caches()  # somebody may just have installed it
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        raise _reason(error, module, extra, what) from error
    if loaded.__file__ is None:  # an empty folder is left of it, which Python takes for a package
        del sys.modules[module]
        raise ExtraMissing(what, extra)
    return loaded


def _reason(error: Exception, module: str, extra: str, what: str) -> Unusable:
    if isinstance(error, ModuleNotFoundError) and _can_be_installed(error.name or module):
        return ExtraMissing(what, extra)
    if isinstance(error, ImportError | OSError) and (library := missing_in(str(error))):
        known = installation_of(library)
        where = "with the package manager of your system" if known is None else f"with: {known.command}"
        return LibraryMissing(what, library, where)
    return ExtraBroken(
        what, _broken_in(error) or _package(module), f"{type(error).__name__}: {error}".removesuffix(": ")
    )


def _can_be_installed(module: str) -> bool:
    """Whether a module that was not found belongs to a package that is not there, and not to Python itself."""
    package = _package(module)
    try:
        return package not in sys.stdlib_module_names and importlib.util.find_spec(package) is None
    except (ImportError, ValueError):
        return True


def _broken_in(error: Exception) -> str | None:
    """The package whose own code failed last: the one that was asked for may only need it."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    packages = [_package(name) for name in frames]
    return next((name for name in reversed(packages) if name not in sys.stdlib_module_names | {"forkpoint", ""}), None)


def _package(module: str) -> str:
    return module.partition(".")[0]

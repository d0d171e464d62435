"""Optional parts: packages that an extra of Forkpoint brings, imported when they are first needed.

An import can fail for three reasons, and each has another remedy. The package is not installed: the extra brings it
(`ExtraMissing`). The system lacks a library that the package was built with: the system's package manager brings it
(`LibraryMissing`). Or the package is there and broken (`ExtraBroken`). A part counts as ready only once it is imported.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

from forkpoint.errors import ExtraBroken, ExtraMissing, LibraryMissing
from forkpoint.libraries import installation_of, missing_in

MODULES: dict[str, Sequence[str]] = {
    "local": ("xllamacpp",),
    "mcp": ("mcp", "jsonschema"),
    "server": ("fastapi", "httptools", "jsonschema", "prometheus_client", "uvicorn"),
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
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise _reason(error, module, extra, what) from error


def _reason(error: Exception, module: str, extra: str, what: str) -> Unusable:
    if isinstance(error, ModuleNotFoundError) and not _is_installed(error.name or module):
        return ExtraMissing(what, extra)
    if isinstance(error, ImportError | OSError) and (library := missing_in(str(error))):
        known = installation_of(library)
        where = "with the package manager of your system" if known is None else f"with: {known.command}"
        return LibraryMissing(what, library, where)
    return ExtraBroken(what, module.partition(".")[0], f"{type(error).__name__}: {error}".removesuffix(": "))


def _is_installed(module: str) -> bool:
    """Whether the package that a module belongs to is there, usable or not."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False

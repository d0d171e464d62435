"""llama.cpp as a Python package: the extra ``local``, loaded when somebody needs it.
Tests: tests/llm/local/test_engine.py."""

from typing import Any

from forkpoint.errors import ExtraBroken, ExtraMissing
from forkpoint.system import extras

PACKAGE = "xllamacpp"
_NEEDED = ("CommonParams", "Server")


def load(what: str, *, then: str = "") -> Any:
    """The package, ready to be used by ``what``. Raises what `extras.load_module` raises.

    ``then`` is what else must be run once the package is there, as `` && COMMAND``.
    """
    try:
        llama = extras.load_module(PACKAGE, "local", what)
    except ExtraMissing as error:
        raise ExtraMissing(what, error.extra, then) from error.__cause__
    if missing := [name for name in _NEEDED if not hasattr(llama, name)]:
        raise ExtraBroken(what, PACKAGE, f"it has no {' and no '.join(missing)}")
    return llama

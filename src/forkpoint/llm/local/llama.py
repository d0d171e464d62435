"""llama.cpp as a Python package: the extra ``local``, loaded when somebody needs it.
Tests: tests/llm/local/test_engine.py."""

from typing import Any

from forkpoint.errors import ExtraBroken
from forkpoint.system import extras

PACKAGE = "xllamacpp"
_NEEDED = ("CommonParams", "Server")


def load(what: str) -> Any:
    """The package, ready to be used by ``what``. Raises what `extras.load_module` raises."""
    llama = extras.load_module(PACKAGE, "local", what)
    if missing := [name for name in _NEEDED if not hasattr(llama, name)]:
        raise ExtraBroken(what, PACKAGE, f"it has no {' and no '.join(missing)}")
    return llama

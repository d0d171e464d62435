"""A module whose import takes an hour of the event loop's clock, and no time of anybody else's."""

import asyncio
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

HOUR = 3600.0


class SlowImport(MetaPathFinder, Loader):
    """Lets a module be imported anew. The running event loop's clock is an hour later when it is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.imported = 0
        self._module = sys.modules[module]
        loop = asyncio.get_running_loop()
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + HOUR * self.imported)
        monkeypatch.delitem(sys.modules, module)
        monkeypatch.setattr(sys, "meta_path", [self, *sys.meta_path])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module.__name__:
            return None
        self.imported += 1
        return ModuleSpec(fullname, self, origin=self._module.__file__, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass

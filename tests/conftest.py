"""Every test that is a coroutine runs on asyncio; those that care about the loop ask for both."""

import sys
from contextlib import suppress

import pytest

from forkpoint.cli.local import bring_library
from forkpoint.errors import LibraryMissing


def pytest_configure(config: pytest.Config) -> None:
    """Root gets the system library that the model in the box needs. For others, its tests fail and say how."""
    if sys.platform == "linux" and not hasattr(config, "workerinput"):
        with suppress(LibraryMissing):
            bring_library(["local/smollm2"], yes=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"

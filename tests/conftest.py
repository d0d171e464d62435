"""Every test that is a coroutine runs on asyncio; those that care about the loop ask for both."""

from contextlib import suppress

import pytest

from forkpoint.cli.commands.local import bring_library
from forkpoint.errors import LibraryMissing


def pytest_sessionstart(session: pytest.Session) -> None:
    """Root gets the system library that the model in the box needs, after a question at a terminal.

    For others, and after a no, the tests of that model fail and say how to get it.
    """
    if session.config.option.collectonly or hasattr(session.config, "workerinput"):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled(), suppress(LibraryMissing):
        bring_library(["local/smollm2"])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"

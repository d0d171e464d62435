"""Every test that is a coroutine runs on asyncio; those that care about the loop ask for both."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"

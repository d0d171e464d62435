"""The two homes of a conversation: what callers see is the same in both."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.conversation.support.homes import Home, all_stopped, home_of

from forkpoint.conversation.place import close_all


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what would be tried twice, for servers take their time.

    How a model is spoken to is tried in the local home: a server does the same, and does it on asyncio. That a client
    may run on trio is tried in test_turns.py.
    """
    twice = [item for item in items if _is_tried_twice(item)]
    config.hook.pytest_deselected(items=twice)
    items[:] = [item for item in items if item not in twice]


def _is_tried_twice(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    given = item.callspec.params
    wires = {given.get("wire"), given.get("api")} & {"responses", "messages"}
    trio = given.get("anyio_backend") == "trio" and item.path.name != "test_turns.py"
    return given.get("home") == "remote" and bool(wires or trio)


@pytest.fixture(params=["local", "remote"])
def home(request: pytest.FixtureRequest, tmp_path: Path, _servers: None) -> Iterator[Home]:
    """A place where conversations live, fresh for this test: a SQLite file, or a server on one."""
    with home_of(request.param, tmp_path) as home:
        yield home


@pytest.fixture(scope="session")
def _servers() -> Iterator[None]:
    """All servers that were started have stopped at the end."""
    yield
    all_stopped()


@pytest.fixture
async def places() -> AsyncIterator[None]:
    """For tests that leave conversations open: closes what they left."""
    yield
    await close_all()

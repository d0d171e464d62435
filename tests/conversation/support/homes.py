"""Where conversations live, for tests of what callers see: each runs in a store of this process and on a server.

A test takes the fixture ``home``, and says ``AsyncConversation(home.agent(agent), store=home.store)``. What it then
sees must be the same in both homes. A test that is about the inside of this process does not take it.
"""

import functools
import itertools
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import anyio
from tests.server.support.serving import Served

from forkpoint.agent import Agent
from forkpoint.agent.stored.document import portable_document
from forkpoint.errors import BadAgent
from forkpoint.llm import LLM
from forkpoint.server.agents.catalog import Catalog, _called
from forkpoint.server.http.keys import Keyring
from forkpoint.server.settings import ServerSettings
from forkpoint.store import open_store
from forkpoint.store.protocol import Store


class Home(Protocol):
    """A place where conversations live, fresh for each test."""

    store: str  # its address
    file: Path  # what stands behind it, for whoever looks at what is stored

    def agent(self, agent: Agent | LLM | str, /) -> Agent | LLM | str:
        """The agent as it is named there: itself, or the name of one that only the server has."""
        ...

    def at_hand(self, agent: Agent, /) -> Agent | None:
        """The agent as a conversation there has it: None if only the server has it."""
        ...

    async def opened(self) -> Store:
        """The store itself, beside whoever else uses it."""
        ...


class LocalHome:
    """A SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.file = new_file(folder)
        self.store = f"sqlite:///{self.file}"

    def agent(self, agent: Agent | LLM | str, /) -> Agent | LLM | str:
        return agent

    def at_hand(self, agent: Agent, /) -> Agent | None:
        return agent

    async def opened(self) -> Store:
        return await open_store(self.store)


class RemoteHome:
    """A server on a SQLite file. An agent that cannot be sent as data is one of the server's own."""

    def __init__(self, folder: Path, keyring: Keyring | None = None) -> None:
        self.file = new_file(folder)
        self._agents = _Growing(
            {"echo": Agent("scripted/echo")}, allow_models=["scripted/*"], roots=["/"], allow_isolation=True
        )
        self.server = Served(
            f"sqlite:///{self.file}", self._agents, keyring=keyring, settings=ServerSettings(grace=0)
        ).start()
        self.store = self.server.url

    def agent(self, agent: Agent | LLM | str, /) -> Agent | LLM | str:
        given = agent if isinstance(agent, Agent) else Agent(agent)
        try:
            self._agents.received(portable_document(given))
        except BadAgent:
            return self._agents.add(given)
        return agent

    def at_hand(self, agent: Agent, /) -> Agent | None:
        return agent if self.agent(agent) is agent else None

    async def opened(self) -> Store:
        return await open_store(f"sqlite:///{self.file}")

    def leave(self) -> None:
        """Stops the server. Nobody waits for it: all of them are waited for at the end."""
        stopping = threading.Thread(target=self.server.stop, name="a server's end")
        stopping.start()
        _stopping.append(stopping)


@contextmanager
def home_of(kind: str, folder: Path, keyring: Keyring | None = None) -> Iterator[LocalHome | RemoteHome]:
    """A fresh home of a kind: local or remote."""
    if kind == "local":
        yield LocalHome(folder)
        return
    home = RemoteHome(folder, keyring)
    try:
        yield home
    finally:
        home.leave()


def new_file(folder: Path) -> Path:
    """A store without anything in it. It is a copy, for making one anew takes most of a short test."""
    file = folder / "forkpoint.db"
    if not file.exists():
        file.write_bytes(_empty())
    return file


@functools.cache
def _empty() -> bytes:
    async def make(path: str) -> None:
        async with await open_store(f"sqlite:///{path}"):
            pass

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:  # a loop may run in this thread
        thread.submit(anyio.run, make, f"{folder}/empty.db").result()
        return Path(folder, "empty.db").read_bytes()


def all_stopped() -> None:
    """Waits for the servers that are still stopping."""
    while _stopping:
        _stopping.pop().join(60)


_stopping: list[threading.Thread] = []
_numbers = itertools.count()


class _Growing(Catalog):
    """A server's agents, to which a test can add its own while the server runs."""

    def add(self, agent: Agent) -> str:
        """The name under which the server has an agent from now on: its own, if no other has it."""
        for name, known in self._added.items():
            if known is agent:
                return name
        name = agent.name if agent.name is not None and agent.name not in self._agents else f"agent-{next(_numbers)}"
        self._agents[name] = _called(name, agent)
        self._added[name] = agent
        return name

    @property
    def _added(self) -> dict[str, Agent]:
        added: dict[str, Agent] = self.__dict__.setdefault("added", {})
        return added

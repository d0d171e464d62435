"""Peers on the same server: LangGraph's AsyncPostgresSaver, and the SQLAlchemySession of OpenAI's Agents SDK."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

from agents.extensions.memory import SQLAlchemySession
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.peers import Native
from benchmarks.peers_langgraph import native_message
from benchmarks.peers_openai import native_item
from benchmarks.samples import Message
from forkpoint.ids import new_id


class PostgresPeer(Protocol):
    """Conversations of another product in a PostgreSQL database."""

    name: str

    def native(self, found: Sequence[Message]) -> Native:
        """Messages in its own form, made before the clock starts."""
        ...

    async def append(self, conversation: str, turn: Native) -> None:
        """Adds messages."""
        ...

    async def fork(self, conversation: str) -> str:
        """Another conversation with the same history; returns its name."""
        ...

    async def load(self, conversation: str) -> Sequence[object]:
        """All messages."""
        ...


class LangGraphPostgres:
    """A turn is one `aupdate_state`: one checkpoint, the least that it can write. A fork copies the state."""

    name = "LangGraph AsyncPostgresSaver"

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    @classmethod
    async def open(cls, url: str, exits: AsyncExitStack, connections: int) -> PostgresPeer:
        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool: Any = AsyncConnectionPool(url, min_size=1, max_size=connections, kwargs=options, open=False)
        await exits.enter_async_context(pool)
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        graph = StateGraph(MessagesState)
        graph.add_node("agent", lambda state: {})
        graph.add_edge(START, "agent")
        graph.add_edge("agent", END)
        return cls(graph.compile(checkpointer=saver))

    def native(self, found: Sequence[Message]) -> Native:
        return [native_message(message) for message in found]

    async def append(self, conversation: str, turn: Native) -> None:
        await self._graph.aupdate_state(_thread(conversation), {"messages": turn}, as_node="agent")

    async def fork(self, conversation: str) -> str:
        fork = new_id()
        await self.append(fork, await self.load(conversation))
        return fork

    async def load(self, conversation: str) -> Sequence[object]:
        found: list[object] = (await self._graph.aget_state(_thread(conversation))).values["messages"]
        return found


class SqlAlchemyPeer:
    """`SQLAlchemySession`: a fork is all items, read and added to a new session."""

    name = "OpenAI SQLAlchemySession"

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._sessions: dict[str, Any] = {}

    @classmethod
    async def open(cls, url: str, exits: AsyncExitStack, connections: int) -> PostgresPeer:
        engine = create_async_engine(
            url.replace("postgresql://", "postgresql+psycopg://"), pool_size=connections, max_overflow=0
        )
        exits.push_async_callback(engine.dispose)
        return cls(engine)

    def native(self, found: Sequence[Message]) -> Native:
        return [native_item(message) for message in found]

    async def append(self, conversation: str, turn: Native) -> None:
        await self._session(conversation).add_items(turn)

    async def fork(self, conversation: str) -> str:
        fork = new_id()
        await self.append(fork, await self.load(conversation))
        return fork

    async def load(self, conversation: str) -> Sequence[object]:
        found: list[object] = await self._session(conversation).get_items()
        return found

    def _session(self, conversation: str) -> Any:
        if conversation not in self._sessions:
            made = SQLAlchemySession(conversation, engine=self._engine, create_tables=True)
            self._sessions[conversation] = made
        return self._sessions[conversation]


async def opened(url: str, exits: AsyncExitStack, connections: int) -> list[PostgresPeer]:
    kinds = (LangGraphPostgres, SqlAlchemyPeer)
    return [await kind.open(url, exits, connections) for kind in kinds]


def _thread(conversation: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": conversation}}

"""LangGraph with its SqliteSaver: every checkpoint holds the whole list of messages.

A fork is the state of one thread written to another: the saver has no `copy_thread`, and going on from an earlier
checkpoint would be a branch inside the same thread. Two writes make each history; a checkpoint for every turn, as
in use, would make the file hundreds of times larger.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.peers import Append, Native
from benchmarks.samples import Message, number_of
from forkpoint.ids import new_id


class LangGraph:
    """A turn is one `update_state`: one checkpoint, the least that it can write."""

    name = "LangGraph SqliteSaver"

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._answers: dict[str, list[Any]] = {}
        graph = StateGraph(MessagesState)
        graph.add_node("agent", self._answer)
        graph.add_edge(START, "agent")
        graph.add_edge("agent", END)
        self._graph = graph.compile(checkpointer=SqliteSaver(self._db))
        self._middles: dict[str, Any] = {}

    def native(self, found: Sequence[Message]) -> Native:
        return [native_message(message) for message in found]

    async def fill(self, conversation: str, found: Sequence[Message]) -> None:
        half = len(found) // 2
        self._middles[conversation] = self._update(conversation, self.native(found[:half]))
        self._update(conversation, self.native(found[half:]))

    async def fork(self, conversation: str, *, middle: bool = False) -> str:
        source = self._middles[conversation] if middle else _thread(conversation)
        fork = new_id()
        self._update(fork, self._graph.get_state(source).values["messages"])
        return fork

    def open(self, conversation: str) -> None:
        pass

    async def select(self, conversation: str) -> None:
        pass

    async def append(self, conversation: str, turn: Native) -> None:
        self._append(conversation, turn)

    async def load(self, conversation: str) -> Sequence[object]:
        found: list[object] = self._graph.get_state(_thread(conversation)).values["messages"]
        return found

    async def tail(self, conversation: str, count: int) -> Sequence[object]:
        return (await self.load(conversation))[-count:]  # it cannot read a part

    async def numbers(self, conversation: str) -> list[int]:
        return [number_of(str(message)) for message in await self.load(conversation)]

    def writer(self, conversation: str) -> Append:
        async def append(turn: Native) -> None:
            await anyio.to_thread.run_sync(self._append, conversation, turn)

        return append

    def close(self) -> None:
        self._db.close()

    def _append(self, conversation: str, turn: Native) -> None:
        self._update(conversation, turn)

    def _update(self, conversation: str, found: Native) -> Any:
        return self._graph.update_state(_thread(conversation), {"messages": found}, as_node="agent")

    def _answer(self, state: Any) -> dict[str, Any]:
        """The only node: its "model" answers with what stands ready for the question."""
        return {"messages": self._answers.pop(state["messages"][-1].id)}


class LangGraphInvoke(LangGraph):
    """A turn is one `invoke`, as in use: the question goes in, a node answers with the rest."""

    name = "LangGraph SqliteSaver, invoke"

    def _append(self, conversation: str, turn: Native) -> None:
        question, *answer = turn
        self._answers[question.id] = answer
        self._graph.invoke({"messages": [question]}, _thread(conversation))


def _thread(conversation: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": conversation}}


def native_message(message: Message) -> Any:
    """A message in LangGraph's own form."""
    id = f"m{message.number}-{new_id()}"
    match message.kind:
        case "user":
            return HumanMessage(message.text, id=id)
        case "call":
            call = {"name": "look", "args": {"at": message.text}, "id": message.call_id}
            return AIMessage("", tool_calls=[call], id=id)
        case "result":
            return ToolMessage(message.text, tool_call_id=message.call_id, id=id)
        case "answer":
            return AIMessage(message.text, id=id)

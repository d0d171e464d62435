"""Peers that run turns: the OpenAI Agents SDK's `Runner` with its SQLite session, LangGraph's prebuilt agent with its
`SqliteSaver`. Both ask for whole answers, as they do by default, over chat completions.

The histories repeat, with other words, what a real turn of theirs has left.
"""

import sqlite3
import warnings
from pathlib import Path
from typing import Any

import openai
from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from agents.extensions.memory import AdvancedSQLiteSession
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.prebuilt import create_react_agent

from benchmarks.runners import INSTRUCTIONS, exchanges, look, trusted
from benchmarks.scripted_model import MODEL, PLAIN
from forkpoint.ids import new_id

set_tracing_disabled(True)

_KEY = "none"  # the SDKs insist on one


class OpenAIRunner:
    """`Runner.run` with a `SQLiteSession`. A fork is all items, read and added to another session."""

    name = "OpenAI Agents SDK, SQLiteSession"
    streams = False

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        http = openai.DefaultAsyncHttpxClient(verify=trusted())
        self._client = openai.AsyncOpenAI(base_url=url, api_key=_KEY, http_client=http)
        model = OpenAIChatCompletionsModel(MODEL, self._client)
        self._agent = Agent("it", instructions=INSTRUCTIONS, tools=[function_tool(look)], model=model)
        self._sessions: dict[str, Any] = {}

    async def fill(self, conversation: str, count: int) -> None:
        await self.turn(conversation, PLAIN)
        session = self._session(conversation)
        question, answer = await session.get_items()
        items = []
        for asked, answered in exchanges(count - 2):
            items += [question | {"content": asked}, answer | {"content": [answer["content"][0] | {"text": answered}]}]
        if items:
            await session.add_items(items)

    async def turn(self, conversation: str, question: str) -> Any:
        return await Runner.run(self._agent, question, session=self._session(conversation))

    def shown(self, result: Any) -> int:
        return int(result.context_wrapper.usage.input_tokens)

    async def fork(self, conversation: str) -> Any:
        fork = self._open(new_id())
        await fork.add_items(await self._session(conversation).get_items())
        return fork

    async def after_fork(self, conversation: str, made: Any) -> None:
        made.close()

    async def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        await self._client.close()

    def _session(self, conversation: str) -> Any:
        if conversation not in self._sessions:
            self._sessions[conversation] = self._open(conversation)
        return self._sessions[conversation]

    def _open(self, conversation: str) -> Any:
        return SQLiteSession(conversation, self._path)


class OpenAIBranches(OpenAIRunner):
    """The same with an `AdvancedSQLiteSession`. A fork is a branch, whose last place is before the last turn."""

    name = "OpenAI Agents SDK, AdvancedSQLiteSession"

    def __init__(self, path: Path, url: str) -> None:
        super().__init__(path, url)
        self._turns: dict[str, int] = {}

    async def fill(self, conversation: str, count: int) -> None:
        await super().fill(conversation, count)
        self._turns[conversation] = count // 2

    async def fork(self, conversation: str) -> Any:
        return await self._session(conversation).create_branch_from_turn(self._turns[conversation])

    async def after_fork(self, conversation: str, made: Any) -> None:
        await self._session(conversation).switch_to_branch("main")

    def _open(self, conversation: str) -> Any:
        return AdvancedSQLiteSession(session_id=conversation, db_path=self._path, create_tables=True)


class LangGraphAgent:
    """`invoke` of the prebuilt agent. A fork is the state of one thread, written to another."""

    name = "LangGraph prebuilt agent, SqliteSaver"
    streams = False

    def __init__(self, path: Path, url: str) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._client = openai.DefaultHttpxClient(verify=trusted())
        model = ChatOpenAI(model=MODEL, base_url=url, api_key=_KEY, http_client=self._client)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it moves to another package, and is the same there
            saver = SqliteSaver(self._db)
            self._graph = create_react_agent(model, [tool(look)], prompt=INSTRUCTIONS, checkpointer=saver)

    async def fill(self, conversation: str, count: int) -> None:
        question, answer = (await self.turn(conversation, PLAIN))["messages"]
        found = []
        for asked, answered in exchanges(count - 2):
            found.append(question.model_copy(update={"content": asked, "id": new_id()}))
            found.append(answer.model_copy(update={"content": answered, "id": f"lc_run--{new_id()}-0"}))
        if found:
            self._update(conversation, found)

    async def turn(self, conversation: str, question: str) -> Any:
        return self._graph.invoke({"messages": [HumanMessage(question)]}, _thread(conversation))

    def shown(self, result: Any) -> int:
        shown = 0
        for message in reversed(result["messages"]):
            if message.type == "human":
                break
            shown += message.usage_metadata["input_tokens"] if message.type == "ai" else 0
        return shown

    async def fork(self, conversation: str) -> Any:
        self._update(new_id(), self._graph.get_state(_thread(conversation)).values["messages"])

    async def after_fork(self, conversation: str, made: Any) -> None:
        pass

    async def close(self) -> None:
        self._client.close()
        self._db.close()

    def _update(self, conversation: str, found: list[Any]) -> None:
        self._graph.update_state(_thread(conversation), {"messages": found}, as_node="agent")


def _thread(conversation: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": conversation}}

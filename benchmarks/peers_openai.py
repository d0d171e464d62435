"""The OpenAI Agents SDK: `SQLiteSession`, and `AdvancedSQLiteSession` with its branches."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession

from benchmarks.peers import Append, Native
from benchmarks.samples import TURN, Message, number_of
from forkpoint.ids import new_id


class Session:
    """`SQLiteSession`: a fork is all items, or half of them, read and added to a new session."""

    name = "OpenAI SQLiteSession"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sessions: dict[str, Any] = {}
        self._opened: list[Any] = []

    def native(self, found: Sequence[Message]) -> Native:
        return [native_item(message) for message in found]

    async def fill(self, conversation: str, found: Sequence[Message]) -> None:
        await self._session(conversation).add_items(self.native(found))

    async def fork(self, conversation: str, *, middle: bool = False) -> str:
        fork = new_id()
        items = await self._session(conversation).get_items()
        await self._session(fork).add_items(items[: len(items) // 2] if middle else items)
        return fork

    def open(self, conversation: str) -> None:
        self._session(conversation)

    async def select(self, conversation: str) -> None:
        await self._session(conversation).get_items(limit=1)  # every session has a connection of its own

    async def append(self, conversation: str, turn: Native) -> None:
        await self._session(conversation).add_items(turn)

    async def load(self, conversation: str) -> Sequence[object]:
        found: list[object] = await self._session(conversation).get_items()
        return found

    async def tail(self, conversation: str, count: int) -> Sequence[object]:
        found: list[object] = await self._session(conversation).get_items(limit=count)
        return found

    async def numbers(self, conversation: str) -> list[int]:
        return [number_of(_text(item)) for item in await self._session(conversation).get_items()]

    def writer(self, conversation: str) -> Append:
        session = self._open(conversation)

        async def append(turn: Native) -> None:
            await session.add_items(turn)

        return append

    def close(self) -> None:
        for session in self._opened:
            session.close()

    def _session(self, conversation: str) -> Any:
        if conversation not in self._sessions:
            self._sessions[conversation] = self._open(conversation)
        return self._sessions[conversation]

    def _open(self, conversation: str) -> Any:
        session = SQLiteSession(conversation, self._path)
        self._opened.append(session)
        return session


class SessionInTwo(Session):
    """The same, with a turn stored as its `Runner` does: the question before the model is asked, the rest after."""

    name = "OpenAI SQLiteSession, in two calls"

    def writer(self, conversation: str) -> Append:
        session = self._open(conversation)

        async def append(turn: Native) -> None:
            await session.add_items(turn[:1])
            await session.add_items(turn[1:])

        return append


class AdvancedSession(Session):
    """`AdvancedSQLiteSession`: a fork is a branch of the session.

    It branches before a turn that exists, so one "at the head" lacks the last turn. A branch's name here is the
    session's and the branch's.
    """

    name = "OpenAI AdvancedSQLiteSession"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._turns: dict[str, int] = {}

    async def fill(self, conversation: str, found: Sequence[Message]) -> None:
        await super().fill(conversation, found)
        self._turns[conversation] = len(found) // TURN

    async def fork(self, conversation: str, *, middle: bool = False) -> str:
        turns = self._turns[conversation]
        branch = await self._session(conversation).create_branch_from_turn(turns // 2 + 1 if middle else turns)
        return f"{conversation}/{branch}"

    async def select(self, conversation: str) -> None:
        await self._session(conversation).switch_to_branch(conversation.partition("/")[2] or "main")

    def _session(self, conversation: str) -> Any:
        return super()._session(conversation.partition("/")[0])

    def _open(self, conversation: str) -> Any:
        session = AdvancedSQLiteSession(session_id=conversation, db_path=self._path, create_tables=True)
        self._opened.append(session)
        return session


def native_item(message: Message) -> dict[str, Any]:
    """A message in the form of OpenAI's responses."""
    match message.kind:
        case "user":
            return {"role": "user", "content": message.text}
        case "call":
            call = {"call_id": message.call_id, "name": "look", "arguments": message.text}
            return {"type": "function_call", **call}
        case "result":
            return {"type": "function_call_output", "call_id": message.call_id, "output": message.text}
        case "answer":
            content = [{"type": "output_text", "text": message.text, "annotations": []}]
            return {"type": "message", "role": "assistant", "content": content}


def _text(item: Any) -> str:
    return json.dumps(item)

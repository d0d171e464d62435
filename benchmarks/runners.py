"""What runs a turn: Forkpoint's `AsyncConversation` here, peers in `peers_runners`, a bare HTTP call as the floor.

Each is driven as its documentation shows, with the same instructions, one trivial tool, and the same model.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import httpx2
import msgspec
import openai
from msgspec.structs import replace

from benchmarks import ours
from benchmarks.samples import messages
from benchmarks.scripted_model import LOOK, MODEL, PLAIN
from forkpoint import LLM, Agent, AsyncConversation
from forkpoint.conversation import Turn
from forkpoint.events import AssistantMessage, Event, ModelCalled, NewEvent, Text, UserMessage
from forkpoint.ids import new_id
from forkpoint.store import open_store

INSTRUCTIONS = "You say what is in a log."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks at something.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
        },
    }
]
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "log"}'}}
_CALLED: list[dict[str, Any]] = [
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "nothing unusual"},
]
_ROLES = ("user", "assistant")
_TEXT = 200  # characters in a message
_NOTE = 1_500  # events in one commit while a history is made


def look(at: str) -> str:
    """Looks at something.

    Args:
        at: what to look at
    """
    return "nothing unusual"


def exchanges(count: int) -> list[tuple[str, str]]:
    """What was asked and answered before, in so many messages."""
    texts = [message.text[:_TEXT] for message in messages(0, count)]
    return list(zip(texts[::2], texts[1::2], strict=True))


class Runner(Protocol):
    """Conversations of one product in a SQLite file, and an agent that goes on with them. Freshly made."""

    name: str
    streams: bool  # whether it has the model's answer streamed, by default

    async def fill(self, conversation: str, count: int) -> None:
        """Makes a conversation of so many messages, as its own turns would have left them."""
        ...

    async def turn(self, conversation: str, question: str) -> Any:
        """Runs a turn; returns whatever it returns."""
        ...

    def shown(self, result: Any) -> int:
        """How many messages the model was sent in that turn, in all its calls."""
        ...

    async def fork(self, conversation: str) -> Any:
        """Another conversation with the same history."""
        ...

    async def after_fork(self, conversation: str, made: Any) -> None:
        """Whatever puts things in order for the next fork."""
        ...

    async def close(self) -> None: ...


class RunnerKind(Protocol):
    """Makes everything that a new process has to make, imports aside: agent, client, store."""

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> bool: ...

    def __call__(self, path: Path, url: str) -> Runner: ...


class Forkpoint:
    """`AsyncConversation` on a SQLite store."""

    name = ours.NAME
    streams = True

    def __init__(self, path: Path, url: str) -> None:
        self._store = f"sqlite:///{path}"
        self._agent = Agent(LLM(f"openai/{MODEL}", base_url=url), instructions=INSTRUCTIONS, tools=[look])
        self._opened: dict[str, AsyncConversation] = {}

    async def fill(self, conversation: str, count: int) -> None:
        async with await open_store(self._store) as store:
            made = AsyncConversation(self._agent, conversation_id=conversation, store=store)
            first = await made.run(PLAIN)
            kinds = [event for event in first.events if isinstance(event, Event)]
            rest = [event for said in exchanges(count - 2) for event in _exchange(kinds, *said)]
            for start in range(0, len(rest), _NOTE):
                await store.note(made.id, new_id(), rest[start : start + _NOTE])
            await made.close()

    async def turn(self, conversation: str, question: str) -> Turn:
        return await (await self._conversation(conversation)).run(question)

    def shown(self, result: Turn) -> int:
        return result.usage.input

    async def fork(self, conversation: str) -> AsyncConversation:
        return await (await self._conversation(conversation)).fork()

    async def after_fork(self, conversation: str, made: AsyncConversation) -> None:
        await made.close()

    async def close(self) -> None:
        for conversation in self._opened.values():
            await conversation.close()

    async def _conversation(self, name: str) -> AsyncConversation:
        if name not in self._opened:
            self._opened[name] = await AsyncConversation.open(name, agent=self._agent, store=self._store)
        return self._opened[name]


def _exchange(kinds: Sequence[Event], asked: str, answered: str) -> Iterator[NewEvent]:
    """The events of one turn again, with other words: the question, the call's record, the answer."""
    for event in kinds:
        match event.body:
            case UserMessage():
                yield NewEvent(UserMessage((Text(asked),)))
            case AssistantMessage() as answer:
                yield NewEvent(replace(answer, parts=(Text(answered),)), response=event.envelope.response)
            case ModelCalled() as called:
                yield NewEvent(called)
            case _:
                pass  # the manifest is recorded once


class BareCall:
    """The floor: nothing but the HTTP calls of a turn, with bodies of the same size that were made before."""

    def __init__(self, url: str, count: int, *, streams: bool, question: str) -> None:
        self._client = httpx2.AsyncClient(verify=trusted(), timeout=60)
        self._url = f"{url}/chat/completions"
        more = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
        prompts = [_prompt(count, question)]
        if question == LOOK:
            prompts.append([*prompts[0], *_CALLED])
        self._bodies = [
            msgspec.json.encode({"model": MODEL, "tools": TOOLS, "messages": each} | more) for each in prompts
        ]

    async def run(self) -> None:
        for body in self._bodies:
            headers = {"content-type": "application/json"}
            async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                async for _ in response.aiter_bytes():
                    pass
            assert response.status_code == 200

    async def close(self) -> None:
        await self._client.aclose()


class SdkCall:
    """The same call through OpenAI's SDK, as peers make it: `create()` with messages that were made before."""

    name = "OpenAI SDK alone, create()"

    def __init__(self, url: str, count: int) -> None:
        http = openai.DefaultAsyncHttpxClient(verify=trusted())
        self._client = openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http)
        self._prompt: Any = _prompt(count, PLAIN)
        self._tools: Any = TOOLS

    async def run(self) -> None:
        answer = await self._client.chat.completions.create(model=MODEL, messages=self._prompt, tools=self._tools)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(self._prompt)

    async def close(self) -> None:
        await self._client.close()


@cache
def trusted() -> Any:
    """The certificates to trust. Reading them takes longer than a turn, and every program does it once."""
    return httpx2.create_ssl_context()


def _prompt(count: int, question: str) -> list[dict[str, Any]]:
    """What the model is sent after so many messages."""
    said = (
        {"role": role, "content": text} for pair in exchanges(count) for role, text in zip(_ROLES, pair, strict=True)
    )
    return [{"role": "system", "content": INSTRUCTIONS}, *said, {"role": "user", "content": question}]

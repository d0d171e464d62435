"""A fork with another result in a call's place and with another state, struck at every statement."""

from pathlib import Path
from typing import Any

from tests.conversation.faults.statements import FILE

from forkpoint import Agent, AsyncConversation, ToolContext, tool
from forkpoint.engine.engine import Engine
from forkpoint.events import Usage
from forkpoint.testing import Heard, Reply, Script, ScriptedCall

SOURCE, FORK, KEY = "source", "what-if", "the key of the fork"


def _answer(heard: Heard) -> Reply:
    messages: list[dict[str, Any]] = heard.body["messages"]
    told = [str(one["content"]) for one in messages if one["role"] == "tool"]
    calls = tuple(ScriptedCall("look", f'{{"at": "{at}"}}', f"call_{at}") for at in ("disk", "net"))
    return Reply(" and ".join(told), calls=() if told else calls, usage=Usage(calls=1, input=100, output=10))


@tool
def look(ctx: ToolContext, at: str) -> str:
    """Looks at something."""
    ctx.state[at] = "seen"
    return f"the {at} is full"


AGENT = Agent(Script(_answer).register("substituting"), tools=[look])


async def prepare(folder: Path) -> None:
    """A conversation whose turn has made two calls at once."""
    async with AsyncConversation(AGENT, conversation_id=SOURCE, store=folder / FILE) as source:
        await source.run("Why did it fail?")


async def opened(engine: Engine, name: str) -> AsyncConversation:
    return AsyncConversation.over(engine, *await engine.find(name), AGENT)


async def fork(engine: Engine) -> AsyncConversation:
    """Forks with another result for the second call, and with another state."""
    source = await opened(engine, SOURCE)
    (turn,) = (await source.turns()).items
    return await source.fork(
        at=turn.calls[1], conversation_id=FORK, results={"call_net": "the net is fine"}, state={"by": "ann"}, key=KEY
    )

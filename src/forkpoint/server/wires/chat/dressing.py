"""Who answers a chat completion: one of the server's agents, with what the client asks for put on."""

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.output import OutputSchema
from forkpoint.backend.settings import Settings
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.wires.chat.kept import Kept

KEPT = 32 * 1024 * 1024
"""Bytes that all agents have that are kept at hand with what clients asked for."""


_FIXED = 4096  # bytes of an agent besides its texts, of which there are some copies


class Wish(Struct, frozen=True):
    """What a client asks of an agent, besides an answer: all that changes what stands before the history."""

    agent: str
    system: str = ""
    tools: tuple[ToolSchema, ...] = ()
    output: OutputSchema | None = None
    effort: str | None = None


class Dressed(Struct, frozen=True):
    """An agent as it answers, and the document of it."""

    agent: Agent
    document: msgspec.Raw
    system: str

    def settings(self, workspace: str | None) -> Settings:
        """What a conversation is run with that this agent answers in."""
        return Settings(self.document, workspace, self.system or None)


class Wardrobe:
    """The server's agents, dressed as clients want them. Most want the same again."""

    def __init__(self, agents: Catalog) -> None:
        self._agents = agents
        self._dressed: Kept[Wish, Dressed] = Kept(KEPT)

    def dress(self, wish: Wish) -> Dressed:
        """The agent that is meant. Raises `BadTool` or `BadAgent` for tools that cannot be put beside its own."""
        if (found := self._dressed.get(wish)) is None:
            found = self._dress(wish)
            self._dressed.put(wish, found, _FIXED + 4 * len(bytes(found.document)))
        return found

    def workspace(self, wish: Wish) -> str | None:
        """The folder of a new conversation with this agent."""
        return self._agents.workspace_for(None, self._agents.named(wish.agent))

    def _dress(self, wish: Wish) -> Dressed:
        agent = self._agents.named(wish.agent)
        instructions = "\n\n".join(text for text in (agent.instructions, wish.system) if text)
        llm = agent.llm if wish.effort is None else replace(agent.llm, reasoning_effort=wish.effort)
        dressed = agent.but(
            llm=llm,
            instructions=instructions,
            client_tools=(*agent.client_tools, *wish.tools),
            output=agent.output if wish.output is None else wish.output,
        )
        return Dressed(dressed, msgspec.Raw(dressed.to_json().encode()), wish.system)

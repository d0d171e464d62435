"""Who answers a request on a wire: the models that clients see, the agents behind them, and what a client asks of one.

A client's ``model`` is the name of an agent. If no agent has that name, it is the name of a model that an agent has,
so that a client which insists on ``gpt-5.6`` finds an agent that speaks with it. Each of these names exists once more
with ``:side`` after it: the same agent, for a client's own small requests (a title), which never are turns of the
conversation that they name. Tests: tests/server/chat/test_service.py.
"""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.output import OutputSchema
from forkpoint.backend.settings import Settings
from forkpoint.clock import Clock, system_clock
from forkpoint.errors import NotFound
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.lru import Lru
from forkpoint.server.agents.catalog import Catalog

SIDE = ":side"
"""The end of a name that always means a request beside a conversation."""

_SHOWN = 200  # characters of a name that nobody has


class ModelNames:
    """The names of all agents of a server, as models."""

    def __init__(self, agents: Catalog, *, clock: Clock = system_clock) -> None:
        self._since = clock() // 1_000_000  # nobody knows when a model was made; this is when it was offered here
        order = sorted(agents.names(), key=lambda name: name != agents.default)  # the default first
        llms = {name: agents.named(name).llm for name in order}
        self._agents: dict[str, tuple[str, bool]] = {}
        # The first to come has a name: agents before models, and a plain name before the same name on the side.
        self._add((name, name) for name in order)
        self._add((plain, name) for name, llm in llms.items() for plain in (_shown(llm), llm.name, llm.model))
        shown = (*order, *(_shown(llm) for llm in llms.values()))
        listed = dict.fromkeys(one for name in shown for one in (name, name + SIDE))
        self._listed = tuple(name for name in listed if name in self._agents)

    def find(self, asked: str) -> tuple[str, bool]:
        """The name of the agent, and whether the request is on the side. Raises `NotFound`."""
        try:
            return self._agents[asked]
        except KeyError:
            raise NotFound.model_not_found(asked if len(asked) <= _SHOWN else asked[:_SHOWN] + "...") from None

    def listed(self) -> list[dict[str, Any]]:
        """All models as OpenAI lists them: agents first, the default agent before the others, each with its side."""
        return [self._document(name) for name in self._listed]

    def one(self, id: str) -> dict[str, Any]:
        """A model by any of its names. Raises `NotFound`."""
        self.find(id)
        return self._document(id)

    def _add(self, names: Iterator[tuple[str, str]]) -> None:
        """Takes in the names that are free, and then the same names on the side."""
        found = list(names)
        for name, agent in found:
            self._agents.setdefault(name, (agent, False))
        for name, agent in found:
            if self._agents[name] == (agent, False):
                self._agents.setdefault(name + SIDE, (agent, True))

    def _document(self, id: str) -> dict[str, Any]:
        return {"id": id, "object": "model", "created": self._since, "owned_by": "forkpoint"}


def _shown(llm: LLM) -> str:
    """A model's plain name. Of a file only its name: clients need not know where it lies."""
    return PurePath(llm.name).name if llm.kind in {"local", "scripted"} else llm.name


KEPT = 32 * 1024 * 1024
"""Bytes of all dressed agents that are kept at hand."""

_FIXED = 4096  # bytes of an agent besides its texts, of which memory has some copies


class Wish(Struct, frozen=True):
    """What a client asks of an agent besides an answer: all that changes what stands before the history."""

    agent: str
    system: str = ""
    tools: tuple[ToolSchema, ...] = ()
    output: OutputSchema | None = None
    effort: str | None = None


class Wardrobe:
    """The server's agents, dressed as clients want them. Most clients want the same again."""

    def __init__(self, agents: Catalog) -> None:
        self._agents = agents
        self._dressed: Lru[Wish, tuple[Agent, Settings]] = Lru(None, KEPT)

    def dress(self, wish: Wish) -> tuple[Agent, Settings]:
        """The agent for a wish, and the settings of a conversation in which it answers, without a workspace.

        Raises `BadTool` or `BadAgent` for tools that do not go together with the agent's own.
        """
        if (found := self._dressed.get(wish)) is None:
            agent = self._dress(wish)
            document = agent.to_json().encode()
            found = agent, Settings(msgspec.Raw(document), None, wish.system or None)
            self._dressed.put(wish, found, _FIXED + 4 * len(document))
        return found

    def workspace(self, wish: Wish) -> str | None:
        """The folder of a new conversation with this agent."""
        return self._agents.workspace_for(None, self._agents.named(wish.agent))

    def _dress(self, wish: Wish) -> Agent:
        agent = self._agents.named(wish.agent)
        return agent.replace(
            llm=agent.llm if wish.effort is None else agent.llm.replace(reasoning_effort=wish.effort),
            instructions="\n\n".join(text for text in (agent.instructions, wish.system) if text),
            client_tools=(*agent.client_tools, *wish.tools),
            output=agent.output if wish.output is None else wish.output,
        )

"""What all chat completions of a server share: the models that clients see, who answers for them, and memory.

A client's ``model`` is the name of an agent. If no agent has that name, it is the name of a model that an agent has,
so that a client which insists on ``gpt-5.6`` finds an agent that speaks with it. Each of these names exists once more
with ``:side`` after it: the same agent, for a client's own small requests (a title), which never are turns of the
conversation that they name.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.output import OutputSchema
from forkpoint.backend.settings import Settings
from forkpoint.clock import Clock, system_clock
from forkpoint.errors import ForkpointError, NotFound
from forkpoint.history.client_view import Seen
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.lru import Lru
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.tenants import Tenants
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat.memory import Aside, Entry, HotSet, Key
from forkpoint.server.wires.chat.side_rules import SideRules

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


EXCHANGES = 500_000
"""How many questions and answers are in memory as clients saw them: some 150 MB."""

_LOOK = 60.0  # seconds between two looks through memory, at most


class ChatService:
    """The models that clients see, who stands behind them, and which conversations are in memory."""

    def __init__(self, agents: Catalog, tenants: Tenants, settings: ServerSettings) -> None:
        self.models = ModelNames(agents)
        self.wardrobe = Wardrobe(agents)
        self.hot = HotSet(settings.conversations_max, settings.conversation_ttl, dropped=self._dropped)
        # Paths as clients saw them, by tenant and digest; and the last request of each name that did not begin.
        self.seen: Lru[tuple[str, bytes], Sequence[Seen]] = Lru(None, EXCHANGES)
        self.refused: Lru[Key, str] = Lru(settings.conversations_max)
        # By name and digest of a request: the branch beside the conversation that answers it.
        self.aside: Lru[tuple[str, str, str], Aside] = Lru(settings.conversations_max)
        self.side_rules = SideRules(settings.side_rules)
        self._tenants = tenants
        self._forgotten: dict[str, list[str]] = {}  # conversations to delete, by tenant
        self._forgetting: asyncio.Task[None] | None = None

    def forget_texts(self) -> None:
        """Something was erased: the digests of texts that memory has go too."""
        for path in list(self.seen):
            self.seen.pop(path)
        for name in list(self.refused):
            self.refused.pop(name)
        for request in list(self.aside):
            self.aside.pop(request)

    def renamed(self, tenant: str, old: str, new: str) -> None:
        """A conversation has another name: nothing in memory leads to it under the old one."""
        self.hot.move((tenant, old), (tenant, new))
        self.refused.pop((tenant, old))
        for request in [one for one in self.aside if one[:2] == (tenant, old)]:
            self.aside.pop(request)

    async def sweep(self) -> None:
        """Drops what nobody uses any more, for as long as the server runs."""
        while True:
            wait = self.hot.sweep()
            await asyncio.sleep(_LOOK if wait is None else min(max(wait, 0.05), _LOOK))

    async def stop(self) -> None:
        """Waits until all dropped conversations are deleted."""
        if self._forgetting is not None:
            await self._forgetting

    def _dropped(self, key: Key, entry: Entry) -> None:
        """Only memory goes. But if the store is memory too, the conversation goes with it."""
        tenant, _ = key
        backend = self._tenants.backend(tenant)
        if (record := backend.placement.known(entry.id)) is not None:
            self.seen.pop((tenant, record.head.digest))
        backend.forget(entry.id)
        if not self._tenants.store.capabilities.durable:
            self._forgotten.setdefault(tenant, []).append(entry.id)
            if self._forgetting is None or self._forgetting.done():
                self._forgetting = asyncio.ensure_future(self._forget())

    async def _forget(self) -> None:
        """Deletes dropped conversations, and then what no conversation reaches any more."""
        while self._forgotten:
            tenant, ids = self._forgotten.popitem()
            for id in ids:
                await self._delete(tenant, id)
            with suppress(ForkpointError):
                await self._tenants.store.within(tenant).collect()

    async def _delete(self, tenant: str, id: str) -> None:
        backend = self._tenants.backend(tenant)
        with suppress(ForkpointError):  # somebody deleted it, or uses it in another way
            branches = await backend.placement.set_aside(id)
            await backend.delete(id)
            for branch in branches:
                with suppress(ForkpointError):
                    await backend.delete(branch.id)

"""Which models a client of chat completions sees, and which agent each of them is.

A client says ``model``. That is an agent's name; or, where no agent is called so, the name of a model that an agent
has, so that a client which insists on ``gpt-5.6`` finds whoever speaks with it. Each of these names exists once more
with ``:side`` after it: the same agent, always without a conversation, for a client's own small requests (a title).
"""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from forkpoint.clock import Clock, system_clock
from forkpoint.errors import NoSuchModel
from forkpoint.llm.model import LLM
from forkpoint.server.agents.catalog import Catalog

SIDE = ":side"
"""What a name ends with that always means a request without a conversation."""

_OWNER = "forkpoint"
_SHOWN = 200  # characters of a name that nobody has


class ModelNames:
    """The names of all agents of a server, as models. They are worked out once."""

    def __init__(self, agents: Catalog, *, clock: Clock = system_clock) -> None:
        self._since = clock() // 1_000_000  # nobody knows when a model was made; this is when it was offered here
        order = sorted(agents.names(), key=lambda name: name != agents.default)  # the others stay as they were
        llms = {name: agents.named(name).llm for name in order}
        self._agents: dict[str, tuple[str, bool]] = {}
        # Whoever comes first has a name: agents, then models, and what is called so before what is so on the side.
        self._add((name, name) for name in order)
        self._add((plain, name) for name, llm in llms.items() for plain in (_shown(llm), llm.name, llm.model))
        shown = (*order, *(_shown(llm) for llm in llms.values()))
        listed = dict.fromkeys(one for name in shown for one in (name, name + SIDE))
        self._listed = tuple(name for name in listed if name in self._agents)

    def find(self, asked: str) -> tuple[str, bool]:
        """The name of the agent that is meant, and whether it is asked on the side. Raises `NoSuchModel`."""
        try:
            return self._agents[asked]
        except KeyError:
            raise NoSuchModel(asked if len(asked) <= _SHOWN else asked[:_SHOWN] + "...") from None

    def listed(self) -> list[dict[str, Any]]:
        """All of them as OpenAI lists models: agents first, of these the default, each with its side."""
        return [self._document(name) for name in self._listed]

    def one(self, id: str) -> dict[str, Any]:
        """One of them, by any name that it can be asked for. Raises `NoSuchModel`."""
        self.find(id)
        return self._document(id)

    def _add(self, names: Iterator[tuple[str, str]]) -> None:
        """Takes names in, as far as they are free, and then those on the side."""
        found = list(names)
        for name, agent in found:
            self._agents.setdefault(name, (agent, False))
        for name, agent in found:
            if self._agents[name] == (agent, False):
                self._agents.setdefault(name + SIDE, (agent, True))

    def _document(self, id: str) -> dict[str, Any]:
        return {"id": id, "object": "model", "created": self._since, "owned_by": _OWNER}


def _shown(llm: LLM) -> str:
    """A model's plain name. Of a file only what it is called: where it lies is the server's own affair."""
    return PurePath(llm.name).name if llm.kind in {"local", "scripted"} else llm.name

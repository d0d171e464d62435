"""`Catalog`: who may answer on a server. Its own agents, by name, and what clients may send instead of a name.

What is wrong with any of them is said before anything starts, all of it at once. Tests: tests/server/test_agents.py.
"""

import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import PurePath

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.approval import Approval, approval_of
from forkpoint.agent.secrets.secret import not_at_hand
from forkpoint.agent.stored.document import bind
from forkpoint.agent.team.offer import everyone
from forkpoint.errors import BadAgent, BadWorkspace, ForkpointError, Item, MissingKey, NotFound
from forkpoint.events import JsonText
from forkpoint.llm.model import LLM
from forkpoint.server.agents.file import ServerFile, offer_problems, read_file
from forkpoint.server.agents.sent import ServerOffer, received
from forkpoint.store import check_name

BOUND = 1024
"""Agents of stored conversations that are kept at hand."""


class AgentItem(Struct, frozen=True):
    """An agent as clients see it in the list of agents."""

    name: str
    model: str
    tools: tuple[str, ...]
    default: bool


class Catalog:
    """The agents that a server offers. Raises `BadAgent` with everything that is wrong with them.

    - ``agents``: each by its name. Without ``default`` the first is taken where nobody says which.
    - ``allow_models``: patterns (``openai/*``) of models that an agent from a client may have besides theirs.
    - ``roots``: folders under which clients may choose a workspace.
    - ``workspaces``: the folder of each agent that has one.
    - ``allow_isolation``: whether a client's fork may have a worktree or a copy, which costs the server's disk.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        *,
        default: str | None = None,
        allow_models: Iterable[str] = (),
        roots: Iterable[str | os.PathLike[str]] = (),
        workspaces: Mapping[str, str | os.PathLike[str]] | None = None,
        allow_isolation: bool = False,
    ) -> None:
        folders = {name: os.path.realpath(folder) for name, folder in (workspaces or {}).items()}
        self._roots = tuple(os.path.realpath(root) for root in roots)
        self._patterns = tuple(allow_models)
        if problems := _problems(agents, default, self._patterns, self._roots, folders):
            raise BadAgent("; ".join(problems))
        self._agents = {name: _called(name, agent) for name, agent in agents.items()}
        self._folders = folders
        self.allow_isolation = allow_isolation
        self.default = default if default is not None else next(iter(self._agents))
        self._bound = functools.lru_cache(maxsize=BOUND)(self._bind)

    @classmethod
    def from_file(cls, source: str | os.PathLike[str] | ServerFile) -> "Catalog":
        """The agents of a TOML or JSON file, read now or before. Raises `BadConfig` with all that is wrong with it."""
        file = source if isinstance(source, ServerFile) else read_file(source)
        if file.agents or not file.problems:
            default = file.default if file.default in file.named else None  # else the file's problems name it
            file.check(_problems(file.agents, default, file.allow_models, file.roots, file.workspaces))
        file.check()
        return cls(
            file.agents,
            default=file.default,
            allow_models=file.allow_models,
            roots=file.roots,
            workspaces=file.workspaces,
            allow_isolation=file.allow_isolation,
        )

    @classmethod
    def of_model(
        cls,
        model: str | LLM,
        *,
        instructions: str = "",
        allow_models: Iterable[str] = (),
        roots: Iterable[str | os.PathLike[str]] = (),
        allow_isolation: bool = False,
    ) -> "Catalog":
        """One agent that is little more than a model. ``openai/gpt-5.6`` is called ``gpt-5.6``."""
        agent = Agent(model, instructions=instructions)
        return cls(
            {name_of_model(agent.llm): agent}, allow_models=allow_models, roots=roots, allow_isolation=allow_isolation
        )

    def names(self) -> tuple[str, ...]:
        return tuple(self._agents)

    def items(self) -> tuple[AgentItem, ...]:
        """All agents, as clients see them."""
        return tuple(
            AgentItem(name, agent.llm.model, tuple(tool.name for tool in agent.tools), name == self.default)
            for name, agent in self._agents.items()
        )

    def named(self, name: str) -> Agent:
        """The agent of this name. Raises `NotFound`."""
        try:
            return self._agents[name]
        except KeyError:
            raise NotFound("agent", name if len(name) <= 200 else name[:200] + "...") from None

    def received(self, document: bytes | str) -> Agent:
        """The agent that a client means by a JSON text: an agent's name, or a document of its own.

        What comes back is what will run and be stored: data of the client, with the server's own settings for where
        its model is. Raises `NotFound` for a name that no agent has, and `BadAgent` with what a client may not say.
        """
        found = received(document, ServerOffer(self._agents, self.default, self._patterns))
        return self.named(found) if isinstance(found, str) else found

    def bound(self, document: JsonText) -> Agent:
        """The agent of a stored conversation, with this server's own functions. Raises `CannotResume`, as `bind`."""
        return self._bound(document)

    def bound_without(self, document: JsonText, without: Callable[[Item], bool]) -> Agent:
        """The same, but for what may be missing of it: ``without`` says of each item whether it may."""
        return bind(document, self.lender(document), lender=self.lender, without=without)

    def lender(self, document: JsonText) -> Agent | None:
        """The agent whose functions, and whose literal key, the agent of a document may have."""
        try:
            said = msgspec.json.decode(document, type=_AgentSummary)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None  # `bind` says what is wrong with it
        named = _by_name(self._agents).get(said.name or "")
        place = (said.llm.model, said.llm.base_url)
        if named is not None and (named.llm.model, named.llm.base_url) == place:
            return named
        models = (llm for agent in self._agents.values() for _, llm in _models(agent))
        keyed = (llm for llm in models if (llm.model, llm.base_url) == place)
        keeper = next((llm for llm in keyed if llm.api_key is not None), None)
        if keeper is None:
            return named
        return named.replace(llm=keeper) if named is not None else Agent(keeper)

    def workspace_for(self, path: str | None, agent: Agent) -> str | None:
        """The folder of a new conversation: the agent's own, or what a client chose under one of the roots.

        Raises `BadWorkspace`, and says the same of a folder that is elsewhere as of one that does not exist.
        """
        if path is None:
            own = self._agents.get(agent.name or "")
            return self._folders.get(agent.name or "") if own is agent else None
        try:
            folder = os.path.realpath(path) if os.path.isabs(path) else None
        except (OSError, ValueError):  # no path at all
            folder = None
        if folder is None or not any(PurePath(folder).is_relative_to(root) for root in self._roots):
            raise _elsewhere(path)
        if not os.path.isdir(folder):
            raise _elsewhere(path)
        return folder

    def _bind(self, document: JsonText) -> Agent:
        return bind(document, self.lender(document), lender=self.lender)


class _ModelSummary(Struct, frozen=True):
    model: str
    base_url: str | None = None


class _AgentSummary(Struct, frozen=True):
    """What a document says that tells whose functions are meant."""

    llm: _ModelSummary
    name: str | None = None


def name_of_model(llm: LLM) -> str:
    """What an agent that is only a model is called: the model's name, in the characters that a name may have."""
    name = PurePath(llm.name).name if llm.kind == "local" else llm.name
    return re.sub(r"[^A-Za-z0-9._:-]", "-", name)[:128]


def _called(name: str, agent: Agent) -> Agent:
    """The agent under the name that the server knows it by, for that is how its functions are found again."""
    return agent if agent.name == name else agent.replace(name=name)


def _by_name(agents: Mapping[str, Agent]) -> dict[str, Agent]:
    """The server's agents, and those in them whose name says which is meant.

    A sub-agent asks whenever one of those above it would, so these lend their policies too.
    """
    within: dict[str, list[Agent]] = {}
    policies: dict[str, Approval] = {}
    for agent in agents.values():
        for one, above in _within(agent, agent.approval):
            name = one.name or ""
            policies[name] = approval_of((policies.get(name, ()), above, one.approval))
            if one not in within.setdefault(name, []):
                within[name].append(one)
    alone = {name: namesakes[0] for name, namesakes in within.items() if name and len(namesakes) == 1}
    return {name: one.replace(approval=policies[name]) for name, one in alone.items()} | dict(agents)


def _within(agent: Agent, above: Approval) -> Iterator[tuple[Agent, Approval]]:
    """All that the sub-agents of an agent may be, and theirs, each with the policies that hold above it."""
    for _, one in agent.sub_agents.nested() if agent.sub_agents is not None else ():
        yield one, above
        yield from _within(one, approval_of((above, one.approval)))


def _models(agent: Agent, but: Collection[Agent] = ()) -> Iterator[tuple[str, LLM]]:
    """All models that an agent or its sub-agents may ask, each with a word on where it stands.

    Sub-agents that are in ``but`` are left out: their models are checked on their own.
    """
    within = [(f" {place}:", one) for place, one in everyone(agent) if one not in but]
    for place, one in (("", agent), *within):
        yield place, one.llm
        for llm in one.sub_agents.models if one.sub_agents is not None else ():
            yield f"{place} model {llm.model}:", llm


def _problems(
    agents: Mapping[str, Agent],
    default: str | None,
    patterns: Iterable[str],
    roots: Iterable[str],
    folders: Mapping[str, str],
) -> list[str]:
    problems: list[str] = []
    for name, agent in agents.items():
        try:
            check_name("name of an agent", name)
        except ForkpointError as error:
            problems.append(f"agents.{name}: {error}")
        for place, llm in _models(agent, but=agents.values()):
            try:
                llm.key()
            except MissingKey as error:
                why = f"the environment variable {error.variable}, its key, is not set or empty"
                problems.append(f"agents.{name}:{place} {why}")
            except ForkpointError as error:
                problems.append(f"agents.{name}:{place} {error}")
        within = [one for _, one in everyone(agent) if one not in agents.values()]
        missing = dict.fromkeys(why for one in (agent, *within) for why in not_at_hand(one.secrets))
        problems += [f"agents.{name}.secrets.{why}" for why in missing]
    if not agents:
        problems.append("there are no agents; at least one is needed")
    elif default is not None and default not in agents:
        problems.append(f"default: there is no agent {default!r}")
    problems += offer_problems(patterns, roots)
    problems += [
        f"agents.{name}.workspace: {folder} is not a folder"
        for name, folder in folders.items()
        if not os.path.isdir(folder)
    ]
    return problems


def _elsewhere(path: str) -> BadWorkspace:
    shown = path if len(path) <= 200 else path[:200] + "..."
    return BadWorkspace(shown, "it is not a folder under one of the roots that this server allows for workspaces")

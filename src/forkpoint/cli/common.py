"""What many commands share: where conversations live, which conversation an argument names, and agents in code.
Tests: tests/cli/test_program.py."""

import functools
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import typer

from forkpoint.agent.agent import Agent
from forkpoint.backend.allowance import as_allowed
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import one_line
from forkpoint.conversation import Conversation, Conversations, Info, Turn
from forkpoint.conversation.look import is_remote, is_there
from forkpoint.errors import BadAgent, BadArgument, BadName, NotFound
from forkpoint.history.wholeness import read_json
from forkpoint.llm.model import LLM
from forkpoint.paging import LIMIT, Page, every_sync
from forkpoint.workspace.models.names import default_llm

SHORTEST = 6
"""How many characters of an id are enough to be taken for its start."""

_SHOWN = 13  # of an id, in lists: the moment it was made, to the millisecond


Store: TypeAlias = Annotated[
    str | None,
    option(
        "--store ADDRESS",
        "Where conversations live: a file (talks.db), a database (postgresql://...), or a server (http://host:8008). "
        "Default: FORKPOINT_STORE, else `store` of your settings, else a file in your data folder.",
    ),
]

FileStore: TypeAlias = Annotated[
    str | None,
    option(
        "--store FILE",
        "The file of the store, such as talks.db. "
        "Default: FORKPOINT_STORE, else `store` of your settings, else a file in your data folder.",
    ),
]

Id: TypeAlias = Annotated[str, argument("CONVERSATION", "Its name, its id, or the start of its id.")]

Model: TypeAlias = Annotated[
    str | None,
    option(
        "--model NAME",
        "openai/NAME, anthropic/NAME, local/smollm2, or NAME of [models.NAME] in your settings. "
        "Default: FORKPOINT_MODEL, else local/smollm2.",
    ),
]

Instructions: TypeAlias = Annotated[
    str | None, option("--instructions TEXT", "What the model is told before everything else.")
]

AgentPath: TypeAlias = Annotated[
    str | None,
    option(
        "--agent MODULE:NAME",
        "coder, which works in a repository; an Agent in your own code; or NAME, an agent of the server.",
    ),
]

Approval: TypeAlias = Annotated[
    Literal["never", "risky", "always"] | None,
    option(
        "--approval WHEN",
        "Which calls of a new conversation wait for you: never, risky or always. Default: as its agent says.",
    ),
]

BUILT_IN = {"coder": "forkpoint.agent.coder:coder"}
"""Agents that need no code of yours: what makes each of a model."""

Tools: TypeAlias = Annotated[
    str | None,
    option("--agent MODULE:NAME", "An Agent in your own code that has the tools, if they cannot be imported any more."),
]

Allow: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--allow KIND",
        "Go on without what is missing: tools, output, approval, hooks, condenser, workspace, model, or one: "
        "tool:NAME. Repeatable.",
    ),
]

Last: TypeAlias = Annotated[bool, option("--last -l", "Go on with the conversation that was used last.")]

Key: TypeAlias = Annotated[
    str | None, option("--key TEXT", "Do it once: the same command with the same key changes nothing again.")
]

Tags: TypeAlias = Annotated[list[str] | None, option("--tag KEY=VALUE", "A tag. Repeatable.")]


def tags_from(given: Iterable[str] | None) -> dict[str, str]:
    """The tags of ``--tag KEY=VALUE``."""
    return pairs_from("--tag", given)


def pairs_from(option: str, given: Iterable[str] | None) -> dict[str, str]:
    """What an option of the form ``KEY=VALUE`` was given, each time that it was."""
    pairs = {}
    for one in given or ():
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{one!r} is not of the form KEY=VALUE", param_hint=option)
        if key in pairs:
            raise typer.BadParameter(f"{key!r} is given twice; give it once", param_hint=option)
        pairs[key] = value
    return pairs


def value_from(option: str, key: str, text: str) -> Any:
    """The JSON value that an option has for a key."""
    try:
        return read_json(text)
    except ValueError as error:
        raise typer.BadParameter(f"the value of {key!r} {error}", param_hint=option) from None


def allowed(given: Iterable[str]) -> frozenset[str]:
    """The kinds of ``--allow``."""
    try:
        return as_allowed(tuple(given))
    except BadArgument as error:
        why = f"{error.argument.removeprefix('allow=')} is not known: {error.why}"
        raise typer.BadParameter(why, param_hint="--allow") from None


def only_one(given: Mapping[str, Any], *, needed: bool = False) -> None:
    """Refuses a command line with more than one of these options; with ``needed``, also a command line with none."""
    named = [name for name, value in given.items() if value is not None and value is not False]
    if len(named) > 1:
        raise typer.BadParameter(f"it cannot be given together with {named[0]}", param_hint=named[1])
    if needed and not named:
        raise typer.BadParameter("give one of them", param_hint=" / ".join(given))


# Which conversation.


def opened(
    given: str,
    store: str | None,
    *,
    bind: bool = False,
    agent: str | None = None,
    llm: LLM | None = None,
    allow: Iterable[str] | None = None,
    **options: Any,
) -> Conversation:
    """Opens the conversation with this name, id, or start of an id. Raises `NotFound` or `BadName`.

    With ``bind`` it can run: its tools are imported, also from the folder that the program was started in, or taken
    from the agent at the path ``agent``. It goes on without what ``allow`` names, and with the model ``llm`` if given.
    """
    if not is_there(store):
        raise NotFound("conversation", given)
    options |= {"bind": bind, "store": store}
    if bind and not is_remote(store):  # a server has its own functions
        _look_here()
        options["agent"] = None if agent is None or agent in BUILT_IN else imported_agent(agent)  # ours are found
    if llm is not None:
        options["agent"] = Agent(llm)
    if allow:
        options["allow"] = allowed(allow)
    try:
        return Conversation.open(given, **options)
    except NotFound:
        return Conversation.open(_starting_with(given, store), **options)


def listed(store: str | None, **options: Any) -> Page[Info]:
    """A page of conversations. Empty if the store does not exist; the store is not made."""
    if not is_there(store):
        return Page(())
    with Conversations(store) as conversations:
        return conversations.list(**options)


def last_used(store: str | None) -> str:
    """The id of the conversation that was used last: by a turn, or otherwise. Raises `NotFound` if the store is empty.

    A list by last use goes by minutes, so the last change decides among those at its front. A branch that was set
    aside counts only if something has happened in it since.
    """
    front = listed(store, order="used", limit=50, drafts=True).items
    used = [info for info in front if info.lineage.kind != "aside" or info.updated > info.created]
    if not used:
        raise NotFound("conversation", "--last")
    return max(used, key=lambda info: info.updated).id


def short_names(infos: Iterable[Info]) -> dict[str, str]:
    """The names of conversations in a list, by id. Without a name: as much of the id as tells them apart."""
    infos = list(infos)
    nameless = {info.id for info in infos if info.name == info.id}
    length = _SHOWN
    while length < 36 and len({id[:length] for id in nameless}) < len(nameless):
        length += 5
    return {info.id: info.id[:length].rstrip("-") if info.id in nameless else info.name for info in infos}


def newest_turns(conversation: Conversation, most: int, *, committed: bool = False) -> list[Turn]:
    """The newest turns of a conversation, the newest last. With ``committed``, only those that are history."""
    read = functools.partial(conversation.turns, newest_first=True, committed=committed)
    return list(islice(every_sync(read, limit=min(most, LIMIT)), most))[::-1]


def all_turns(conversation: Conversation) -> list[Turn]:
    """All turns of a conversation, in order."""
    return list(every_sync(conversation.turns))


def _starting_with(given: str, store: str | None) -> str:
    """The only id that starts with these characters. Raises `NotFound` or `BadName`."""
    start = given.lower()
    if len(start) < SHORTEST or set(start) - set("0123456789abcdef-"):
        raise NotFound("conversation", given)
    infos = every_sync(functools.partial(listed, store, sub_agents=True, sides=True, drafts=True))
    found = [info for info in infos if info.id.startswith(start)]
    if not found:
        raise NotFound("conversation", given)
    if len(found) > 1:
        some = [info.id + (f" ({one_line(info.title, 40)})" if info.title else "") for info in found[:5]]
        raise BadName.ambiguous(given, len(found), ", ".join(some))
    return found[0].id


# Agents.


def is_built_in(agent: str | None, store: str | None) -> bool:
    """Whether an agent is built in. At a server, the same name is an agent of the server."""
    return agent in BUILT_IN and not is_remote(store)


def imported_agent(path: str) -> Agent:
    """The agent at ``module:name``, or a built-in agent. Raises `BadAgent`."""
    if path in BUILT_IN:
        made: Agent = imported(BUILT_IN[path])(default_llm())
        return made
    found = imported(path)
    if not isinstance(found, Agent):
        raise BadAgent(f"{path} is of the class {type(found).__name__}, and not an Agent")
    return found


def imported(path: str) -> Any:
    """The object at ``module:name``, also from the folder that the program was started in. Raises `BadAgent`."""
    module, colon, names = path.partition(":")
    if not colon or not module or not names:
        built_in = ", ".join(BUILT_IN)
        raise BadAgent(f"{path!r} is not of the form MODULE:NAME, and no agent that is built in, as {built_in} is")
    _look_here()
    try:
        return functools.reduce(getattr, names.split("."), importlib.import_module(module))
    except (Exception, SystemExit) as error:  # somebody's module may raise anything while it is imported
        raise BadAgent(f"{path} cannot be imported ({type(error).__name__}: {error})") from error


def _look_here() -> None:
    """Lets modules be imported from the folder that the program was started in.

    It comes last: no file that lies there takes the place of a library.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)

"""What two conversations are run with, compared in words.

Only what a server tells its clients anyway is said: of hooks and secrets how many there are, and nothing of where
models and MCP servers are. So it is the same in a program and at a server. Tests: tests/conversation/test_diff.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from forkpoint.backend.diff import SettingDifference
from forkpoint.backend.settings import Settings
from forkpoint.history.branches.diff import Work, text_diff

_LLM = (
    *(
        "model",
        "api",
        "reasoning_effort",
        "reasoning_tokens",
        "reasoning_back",
        "temperature",
        "top_p",
        "top_k",
        "seed",
    ),
    *("stop", "presence_penalty", "frequency_penalty", "max_tokens", "timeouts", "retries", "cache_key", "cache_ttl"),
)
_LONG = {"instructions", "system messages", "project instructions"}
_OTHER = ("one", "another")  # of what is not shown


def setting_differences(a: Settings, b: Settings, work: Work) -> tuple[SettingDifference, ...]:
    """In which settings two conversations differ."""
    ours, theirs = _words(a), _words(b)
    found = []
    for name in dict.fromkeys((*ours, *theirs)):
        (said, value), (other, another) = ours.get(name, (None, None)), theirs.get(name, (None, None))
        if value == another:
            continue
        if said == other:  # the same words for things that differ
            said, other = f"{said} ({_OTHER[0]})", f"{other} ({_OTHER[1]})"
        compared = text_diff(said, other, work) if name in _LONG and said and other else None
        found.append(SettingDifference(name, said, other, compared))
    return tuple(found)


def _words(settings: Settings) -> dict[str, tuple[str, Any]]:
    """Each setting in words, with the value that is compared."""
    agent: Any = msgspec.json.decode(settings.agent_json) if settings.agent_json else {}
    if not isinstance(agent, dict):
        agent = {"name": agent}  # one of a server's own, not looked up yet
    said: dict[str, tuple[str, Any]] = {}
    llm = agent.get("llm")
    llm = llm if isinstance(llm, dict) else {"model": llm}
    for name in _LLM:
        if llm.get(name) is not None:
            said[name.replace("_", " ")] = _plain(llm[name]), llm[name]
    for name, value in agent.items():
        if name != "llm" and value not in (None, "", [], {}):
            words = _AGENT.get(name, lambda value: "set")(value)
            said[_NAMES.get(name, name.replace("_", " "))] = words, value
    beside = {
        "workspace": settings.workspace,
        "system messages": settings.system,
        "project instructions": settings.project,
    }
    return said | {name: (text, text) for name, text in beside.items() if text}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _named(value: Any) -> str:
    """The names of things, sorted; those that stand in the document as a mapping by their keys."""
    if isinstance(value, Mapping):
        return ", ".join(sorted(map(str, value)))
    return ", ".join(sorted(_name_of(one) for one in value))


def _name_of(one: Any) -> str:
    return str(one.get("name", "unnamed")) if isinstance(one, Mapping) else str(one)


def _counted(what: str) -> Callable[[Any], str]:
    return lambda value: f"{len(value)} {what}" + ("" if len(value) == 1 else "s")


def _policy(value: Any) -> str:
    """An approval policy: its word, or the name of a function; or several."""
    if isinstance(value, list):
        return ", ".join(map(_policy, value))
    return _name_of(value)


def _limits(value: Any) -> str:
    return ", ".join(f"{name} {_plain(limit)}" for name, limit in value.items())


def _served(value: Any) -> str:
    """MCP servers by their names, without where they are."""
    return ", ".join(sorted(_name_of(one.get("server", {})) for one in value))


def _team(value: Any) -> str:
    offered = [*value.get("roles", {}), *value.get("agents", {})]
    return ", ".join(sorted(offered)) or "set"


def _condenser(value: Any) -> str:
    kind = str(value.get("kind") or value.get("name") or "set")
    limits = [f"{name} {value[name]}" for name in ("tokens", "events", "keep") if value.get(name) is not None]
    return ", ".join([kind, *limits])


_AGENT: dict[str, Callable[[Any], str]] = {
    "name": _plain,
    "instructions": _plain,
    "tools": _named,
    "client_tools": _named,
    "mcp": _served,
    "output": _name_of,
    "approval": _policy,
    "unattended": _plain,
    "limits": _limits,
    "sub_agents": _team,
    "hooks": _counted("hook"),
    "skills": _named,
    "condenser": _condenser,
    "secrets": _counted("secret"),
}
_NAMES = {"name": "agent", "client_tools": "client tools", "sub_agents": "sub-agents", "mcp": "MCP servers"}

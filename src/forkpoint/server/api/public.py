"""What tenants see of events: all of it, but for where the server's models and MCP servers are, and how it speaks to
them, and what its hooks and secrets are. Tests: tests/server/test_inspection.py."""

from typing import Any

import msgspec
from msgspec.structs import replace

from forkpoint.agent.hooks.hook import NAME
from forkpoint.agent.secrets.masking import STARS
from forkpoint.backend.results import Turn
from forkpoint.errors import TurnFailed
from forkpoint.events import Event, HookRun, JsonText, SettingsChanged, StagedEvent
from forkpoint.server.agents.sent import SERVERS
from forkpoint.server.live.stream import frame
from forkpoint.wire import problems
from forkpoint.wire.documents import EventDocument, TurnDocument, event_document
from forkpoint.wire.problems import Problem

_OWN = ("hooks", "secrets")
_UNNAMED = "a hook of the server"  # one without a name is called what its command is


def public_event(event: Event | StagedEvent) -> EventDocument:
    """An event for the outside. One that changes settings holds the agent as it is stored, with the server's part; one
    of a hook has its command."""
    body = event.body
    if isinstance(body, HookRun) and body.command is not None:
        is_unnamed = body.hook.startswith(body.command.partition(STARS)[0][:NAME])
        return event_document(
            replace(event, body=replace(body, hook=_UNNAMED if is_unnamed else body.hook, command=None))
        )
    if isinstance(body, SettingsChanged) and (settings := _without_servers(body.settings)) is not None:
        return event_document(replace(event, body=replace(body, settings=settings)))
    return event_document(event)


def public_turn(turn: Turn, *, events: bool = False) -> TurnDocument:
    """A turn for the outside, with what is public of its events."""
    document = problems.public_turn(turn)
    return replace(document, events=tuple(map(public_event, turn.events))) if events else document


def problem_of(error: BaseException, *, request_id: str | None = None) -> Problem:
    """The answer to a request that an error ended."""
    problem = problems.problem_of(error, request_id=request_id)
    if isinstance(error, TurnFailed) and isinstance(error.turn, Turn):
        return replace(problem, turn=public_turn(error.turn, events=True))
    return problem


def event_frame(event: Event) -> bytes:
    """An event in a stream. Its id is its position: a reader that reconnects says how far it has come."""
    return frame("event", msgspec.json.encode(public_event(event)), id=str(event.id))


def _without_servers(settings: JsonText) -> JsonText | None:
    """Settings without what is the server's alone; None if nothing of that is in there, so that no byte changes."""
    read: Any = msgspec.json.decode(settings)
    if not isinstance(read, dict) or "agent" not in read:
        return None
    shown = _public_agent(read["agent"])
    return None if shown == read["agent"] else msgspec.json.encode(read | {"agent": shown}).decode()


def _public_agent(agent: Any) -> Any:
    """An agent's document for the outside: of an MCP server its name and its tools. So with the agents in it."""
    if not isinstance(agent, dict):
        return agent
    shown = {name: value for name, value in agent.items() if name not in _OWN}
    if "llm" in shown:
        shown["llm"] = _public_model(shown["llm"])
    if isinstance(shown.get("condenser"), dict) and "llm" in shown["condenser"]:
        shown["condenser"] = shown["condenser"] | {"llm": _public_model(shown["condenser"]["llm"])}
    if "mcp" in shown:
        shown["mcp"] = [one | {"server": {"name": one["server"]["name"]}} for one in shown["mcp"]]
    team = shown.get("sub_agents")
    if isinstance(team, dict):
        team = dict(team)
        if "roles" in team:
            team["roles"] = {name: _public_role(role) for name, role in team["roles"].items()}
        if "agents" in team:
            team["agents"] = {name: _public_agent(one) for name, one in team["agents"].items()}
        if "models" in team:
            team["models"] = [_public_model(one) for one in team["models"]]
        shown["sub_agents"] = team
    return shown


def _public_role(role: Any) -> Any:
    return role | {"agent": _public_agent(role["agent"])} if "agent" in role else role


def _public_model(llm: Any) -> Any:
    return {name: value for name, value in llm.items() if name not in SERVERS} if isinstance(llm, dict) else llm

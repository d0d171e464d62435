"""The roster: which sub-agents a path knows of, and what was last heard of each.

It is read off the path's own events, so a fork has exactly the sub-agents of the history that it shares, and a rewind
brings back those of the place that it goes back to. Tests: tests/conversation/test_sub_agents.py.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import NotFound
from forkpoint.events import Content, SubAgentFinished, SubAgentSpawned

ROOT = "/root"
"""The path of a conversation that is nobody's sub-agent."""


class SubAgent(Protocol):
    """What a sub-agent is found by."""

    @property
    def conversation(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def nickname(self) -> str: ...
    @property
    def closed(self) -> bool: ...


A = TypeVar("A", bound=SubAgent)


class Known(Struct, frozen=True):
    """A sub-agent as a path knows it. ``turn`` is the one that it was set to work in last."""

    conversation: str
    path: str
    nickname: str
    role: str | None
    task: str
    turn: str | None = None
    heard: str | None = None  # the turn whose end its parent's model was told
    closed: bool = False
    first: str | None = None  # the conversation that it was, if it has been forked since

    @property
    def made(self) -> str:
        """What tells which one was made first: ids tell the time."""
        return self.first or self.conversation


def roster(events: Iterable[Content], before: Mapping[str, Known] = {}) -> dict[str, Known]:
    """The sub-agents by their paths, in the order they were made, after these events."""
    known = dict(before)
    for event in events:
        match event:
            case SubAgentSpawned() as spawned:
                nickname = spawned.nickname or spawned.conversation
                path = spawned.path or f"/root/{nickname}"
                there = known.get(path)
                known[path] = Known(
                    conversation=spawned.conversation,
                    path=path,
                    nickname=nickname,
                    role=spawned.agent_role,
                    task=spawned.task if there is None or there.closed else there.task,
                    turn=spawned.turn or (there.turn if there is not None else None),
                    heard=there.heard if there is not None else None,
                    first=there.made if there is not None else None,
                )
            case SubAgentFinished(conversation=id) as finished:
                for path, one in known.items():
                    if one.conversation == id:
                        is_closed = one.closed or finished.outcome == "closed"
                        heard = finished.turn if finished.call_id is not None else None  # by the model, in a result
                        known[path] = replace(one, heard=heard or one.heard, closed=is_closed)
            case _:
                pass
    return in_order(known)


def in_order(known: Mapping[str, Known]) -> dict[str, Known]:
    """The same in the order in which they were made, whichever order they were recorded in."""
    return dict(sorted(known.items(), key=lambda item: item[1].made))


def find(team: Iterable[A], name: str, conversation: str) -> A:
    """The sub-agent of a conversation with this nickname, path or id. Raises `NotFound`.

    A nickname may be given again once a sub-agent is closed: then the one that is not closed is meant.
    """
    team = tuple(team)
    fits = [one for one in team if name in (one.path, one.nickname, one.conversation)]
    if not fits:
        there = ", ".join(one.nickname for one in team if not one.closed) or "none"
        raise NotFound.no_such_agent(name[:200], conversation, there)
    return next((one for one in fits if not one.closed), fits[-1])


def free_nickname(known: Mapping[str, Known], wanted: str) -> str:
    """The nickname, with a number if another has it."""
    taken = {one.nickname for one in known.values()}
    number, nickname = 1, wanted
    while nickname in taken:
        number += 1
        nickname = f"{wanted}-{number}"
    return nickname

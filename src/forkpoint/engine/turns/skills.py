"""Which skills can become active in a conversation: the agent's, the user's, and the project's if it is trusted.
Tests: tests/conversation/test_skills_in_turns.py."""

import logging
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio.to_thread

from forkpoint.agent.agent import Agent
from forkpoint.agent.skills.files import Found, skills_in, together
from forkpoint.agent.skills.skill import Skill, triggered
from forkpoint.engine.trust import Trusting
from forkpoint.events import NewEvent, Text, UserMessage
from forkpoint.lru import Lru
from forkpoint.workspace.defaults import skills_folder

_log = logging.getLogger("forkpoint")

_REMEMBERED = 64  # folders
_LITTLE = 100_000  # characters by words and patterns: that is done sooner than a thread begins

_Signature: TypeAlias = tuple[tuple[str, int, int, int], ...]


class Skills:
    """Skills, read again when their files change. What cannot be used is logged once, and fails nothing."""

    def __init__(self, trusting: Trusting, folder: Callable[[], Path] = skills_folder) -> None:
        self._trusting = trusting
        self._folder = folder
        self._known: Lru[tuple[Path, Path | None], tuple[_Signature, Found]] = Lru(_REMEMBERED)

    async def of(self, agent: Agent, folder: Path | None, family: str | None = None) -> tuple[Skill, ...]:
        """All that may be activated. Where there are no folders with skills, it costs a look for each."""
        there = self._there(folder, family)
        if not there:
            return agent.skills
        found = [await anyio.to_thread.run_sync(self._read, place, within) for place, within in there]
        return together(Found(agent.skills), *found).skills

    def _there(self, folder: Path | None, family: str | None) -> list[tuple[Path, Path | None]]:
        """The folders with skills that there are, each with what no link may lead out of."""
        places: list[tuple[Path, Path | None]] = []
        places += [(one / ".forkpoint" / "skills", one) for one in self._trusting.projects(folder, family)]
        if not self._trusting.is_shared:
            places.append((self._folder(), None))
        return [one for one in places if os.path.isdir(one[0])]

    def _read(self, place: Path, within: Path | None) -> Found:
        signature = _signature(place)
        known = self._known.get((place, within))
        if known is None or known[0] != signature:
            known = (signature, skills_in(place, within))
            for problem in known[1].problems:
                _log.warning("%s", problem)
            self._known.put((place, within), known)
        return known[1]


async def called_for(
    skills: Sequence[Skill], messages: Sequence[UserMessage], already: Collection[str], folder: Path | None
) -> list[NewEvent]:
    """The skills that messages call for, as the events that stand before them."""
    text = "\n".join(part.text for message in messages for part in message.parts if isinstance(part, Text))
    if not skills:
        return []
    found = partial(triggered, skills, text, (), already, workspace=folder)
    work = len(text) * sum(len(skill.triggers) + len(skill.files) for skill in skills)
    called = found() if work < _LITTLE else await anyio.to_thread.run_sync(found)
    return [NewEvent(one.activated()) for one in called]


def _signature(folder: Path) -> _Signature:
    """What changes when a skill does."""
    seen: list[tuple[str, int, int, int]] = []
    for name in sorted(os.listdir(folder))[:5001]:
        path = folder / name
        for one in (path, path / "SKILL.md"):
            try:
                found = os.stat(one)
            except (OSError, ValueError):
                continue
            seen.append((str(one), found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(seen)

"""An answer without a conversation: the same loop, over a journal that is only in memory."""

from collections.abc import Sequence
from pathlib import Path

from forkpoint.agent.agent import Agent
from forkpoint.agent.hooks.point import Hooking
from forkpoint.agent.loop import Done, Loop
from forkpoint.agent.skills.skill import Skill
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import Given, said_in
from forkpoint.backend.protocol import How
from forkpoint.engine.turns.journal import staged
from forkpoint.engine.turns.skills import called_for
from forkpoint.events import NewEvent, StagedEvent, Usage
from forkpoint.history.state import EMPTY, State, fold
from forkpoint.llm.call import Models
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.rendering import render


class Passing:
    """What happens while a question is answered of which nothing is kept. The loop's journal."""

    def __init__(self) -> None:
        self._so_far: list[StagedEvent] = []
        self._state = EMPTY
        self._spent = Usage()

    @property
    def so_far(self) -> Sequence[StagedEvent]:
        return self._so_far

    @property
    def state(self) -> State:
        return self._state

    @property
    def spent(self) -> Usage:
        return self._spent

    def add(self, events: Sequence[NewEvent], usage: Usage = Usage()) -> None:
        self._so_far += staged(events)
        self._spent += usage
        self._state = fold((event.body for event in events), self._state)

    async def flush(self) -> None:
        """There is nowhere to put it."""


async def answer(
    agent: Agent,
    models: Models,
    context: CallContext,
    given: Sequence[Given],
    journal: Passing,
    *,
    turn: str,
    how: How,
    workspace: Path | None,
    tell: Callback,
    skills: Sequence[Skill] = (),
) -> None:
    """Answers what is given, into a journal. Raises the typed reason if it cannot be answered."""
    limits = agent.limits if how.limits is None else how.limits
    called = await called_for(skills, said_in(given), (), workspace)
    loop = Loop(
        agent,
        models,
        context,
        journal,
        render(agent.manifest, staged((*called, *map(NewEvent, given)))),
        turn=turn,
        limits=limits,
        workspace=workspace,
        tell=tell,
        options=how.options,
        attended=False,  # nothing is kept, so nothing could wait
        final=how.final,
        skills=[skill for skill in skills if all(one.body != skill.activated() for one in called)],
        hooks=Hooking(agent.hooks, journal, turn=turn, workspace=workspace, agent=agent.name, messages=said_in(given)),
    )
    ended = await loop.run()
    assert isinstance(ended, Done), "nobody is asked, so nothing waits"

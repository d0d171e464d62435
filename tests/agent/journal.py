"""A journal in memory, and the loop over it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from tests.conversation.support.agents import PATIENCE

from forkpoint.agent import Agent, tool
from forkpoint.agent.loop import Done, Loop, Tell, Waiting
from forkpoint.agent.run import Run, Terms
from forkpoint.errors import TurnLost
from forkpoint.events import ModelCalled, NewEvent, StagedEvent, Text, ToolCall, Usage, UserMessage, seal
from forkpoint.history.state import EMPTY, State, fold
from forkpoint.history.steers import Steer, steers_among
from forkpoint.llm import Models, own_identity, render
from forkpoint.llm.catalog import Wire
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.request import Provider


class Memory:
    """A journal in memory that knows what is on disk, and can refuse like a store."""

    def __init__(self, *already: NewEvent, refuse: Callable[[Sequence[StagedEvent]], bool] | None = None) -> None:
        self.so_far: list[StagedEvent] = []
        self.state: State = EMPTY
        self.spent = Usage()
        self.on_disk = 0
        self.steered: list[Steer] = []
        self._refuse = refuse
        self.add(already)
        self.on_disk = len(self.so_far)

    @property
    def arrived(self) -> Sequence[Steer]:
        taken = steers_among([step.envelope for step in self.so_far])
        return [one for one in self.steered if one.id not in taken]

    def add(self, events: Sequence[NewEvent], usage: Usage = Usage()) -> None:
        self.so_far += [StagedEvent(seal(event, 0), event.body) for event in events]
        self.state = fold((event.body for event in events), self.state)
        self.spent += usage

    async def flush(self) -> None:
        await checkpoint()
        if self._refuse is not None and self._refuse(self.so_far[self.on_disk :]):
            raise TurnLost("turn", "running elsewhere")
        self.on_disk = len(self.so_far)

    @property
    def bodies(self) -> list[Any]:
        return [step.body for step in self.so_far]

    @property
    def flushed(self) -> list[Any]:
        return self.bodies[: self.on_disk]


def says(text: str) -> NewEvent:
    return NewEvent(UserMessage((Text(text),)))


def asked(*ids: str, tool: str = "work", response: int = 1) -> list[NewEvent]:
    called = NewEvent(ModelCalled("scripted/x", "scripted/scripted", Usage(calls=1)))
    return [called, *(NewEvent(ToolCall(id, tool, "{}"), response=response) for id in ids)]


async def run(
    agent: Agent,
    journal: Memory,
    *,
    path: Sequence[StagedEvent] = (),
    providers: Mapping[Wire, Provider] | None = None,
    tell: Tell | None = None,
    **settings: Any,
) -> Done | Waiting:
    """How the loop ends for a turn with this journal, after a path. The settings are those of its run or its terms."""
    terms = Terms(**{name: settings.pop(name) for name in Terms.__struct_fields__ if name in settings})
    context = CallContext(own_identity("conversation"))
    run = Run(agent=agent, context=context, base=render(agent.manifest, path), terms=terms, **settings)
    async with Models(providers) as models:
        with anyio.fail_after(PATIENCE):
            return await Loop(run, models, journal, tell).run()


@tool
def work() -> str:
    """Works."""
    return "worked"

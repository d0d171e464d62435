"""Looking at requests: what a turn sent or would send, next to the request before it.

Nothing of what was sent is kept, for all of it can be made again: a prompt is a function of a path and a manifest, and
both are history.
"""

from collections.abc import Sequence

from forkpoint.agent.agent import Agent
from forkpoint.errors import NoSuchTurn
from forkpoint.events import Event, ManifestChanged, ModelCalled, StagedEvent
from forkpoint.llm.calling import Models
from forkpoint.llm.identity import CallContext
from forkpoint.llm.inspecting import Inspection, inspect_request
from forkpoint.llm.manifest import Manifest
from forkpoint.llm.rendering import render
from forkpoint.llm.request import Request


class Requests:
    """The requests of one path, made again."""

    def __init__(self, models: Models, agent: Agent, context: CallContext, events: Sequence[Event]) -> None:
        self._models = models
        self._agent = agent
        self._context = context
        self._events = events
        self._calls = [
            (n, event.turn, event.body)
            for n, event in enumerate(events)
            if isinstance(event.body, ModelCalled) and event.body.error is None
        ]

    def next(self, steps: Sequence[StagedEvent]) -> Inspection:
        """What a turn that begins with these steps would send first, beside what was sent last."""
        prompt = render(self._agent.manifest, [*self._events, *steps])
        request = self._models.request(self._agent.llm, prompt, self._context)
        return inspect_request(request, self._made(len(self._calls) - 1))

    def sent(self, conversation: str, turn: str | None) -> Inspection:
        """What was sent last, by a turn or at all, beside what was sent before that."""
        for place in range(len(self._calls) - 1, -1, -1):
            if turn is None or self._calls[place][1] == turn:
                request = self._made(place)
                assert request is not None
                return inspect_request(request, self._made(place - 1), self._calls[place][2].usage)
        why = "no model was asked yet" if turn is None else f"turn {turn} is not part of its history, or asked no model"
        raise NoSuchTurn(conversation, "show", why)

    def _made(self, place: int) -> Request | None:
        """The request of a call, made again; None if there was none."""
        if place < 0:
            return None
        until = self._calls[place][0]
        manifest = self._agent.manifest
        for event in reversed(self._events[:until]):
            if isinstance(event.body, ManifestChanged):
                manifest = Manifest.from_json(event.body.manifest)
                break
        prompt = render(manifest, self._events[:until])
        return self._models.request(self._agent.llm, prompt, self._context)

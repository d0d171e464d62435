"""Shows the request that a turn sent or would send, next to the request before it.

Requests are not stored: they are made again from the path and the manifest, which are history. So are the settings,
from their first change on. Tests: tests/conversation/test_requests.py.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.settings import Settings
from forkpoint.errors import NoSuchTurn
from forkpoint.events import Event, JsonText, ManifestChanged, ModelCalled, SettingsChanged, StagedEvent
from forkpoint.llm.call import Models
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.inspection import Inspection, inspect_request
from forkpoint.llm.prompt.manifest import Manifest, manifest_of
from forkpoint.llm.prompt.rendering import render
from forkpoint.llm.request import Request


class Requests:
    """The requests of one path, made again. ``stored`` is the agent's document that ``agent`` stands in for, if so."""

    def __init__(
        self,
        models: Models,
        agent: Agent,
        context: CallContext,
        events: Sequence[Event],
        stored: JsonText | None = None,
    ) -> None:
        self._models = models
        self._agent = agent
        self._context = context
        self._events = events
        self._was = _model_in(stored) or agent.llm
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
        until, _, called = self._calls[place]
        manifest = self._manifest_before(until)
        prompt = render(manifest, self._events[:until])
        llm = self._model_before(until, called, manifest)
        return self._models.request(llm, prompt, _context_of(called, self._context))

    def _manifest_before(self, until: int) -> Manifest:
        for event in reversed(self._events[:until]):
            if isinstance(event.body, ManifestChanged):
                return Manifest.from_json(event.body.manifest)
        return self._agent.manifest

    def _model_before(self, until: int, called: ModelCalled, manifest: Manifest) -> LLM:
        """The model as it was asked: as settings of that time say, or else as far as the call's own record does."""
        changes = [(n, event.body) for n, event in enumerate(self._events) if isinstance(event.body, SettingsChanged)]
        before = [body for n, body in changes if n < until]
        if before or changes:  # the first change says how it was until there
            document = Settings.from_json((before[-1] if before else changes[0][1]).settings).agent_json
            llm = _model_in(document) or self._was
        else:
            llm = self._was
        known = manifest_of(llm, renderer=manifest.renderer)
        if (known.model, known.wire, known.provider) == (manifest.model, manifest.wire, manifest.provider):
            return llm
        return LLM(
            called.model,
            api=manifest.wire,
            provider=manifest.provider,
            reasoning_effort=manifest.reasoning_effort,
            reasoning_tokens=manifest.reasoning_tokens,
            reasoning_back=manifest.reasoning_back,
        )


def _context_of(called: ModelCalled, today: CallContext) -> CallContext:
    """The context of a call: with the key that it was made with, which is not that of a fork with a key of its own."""
    if called.key is None or called.key == today.identity.key:
        return today
    return replace(today, identity=replace(today.identity, key=called.key))


class _RequestDocument(Struct, frozen=True):
    llm: Raw


def _model_in(agent: JsonText | None) -> LLM | None:
    """The model of a stored agent; its functions are not needed for that."""
    return None if agent is None else LLM.from_json(bytes(msgspec.json.decode(agent, type=_RequestDocument).llm))

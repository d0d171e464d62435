"""Shows the request that a turn sent or would send, next to the request before it.

Requests are not stored: they are made again from the path and the manifest, which are history. So are the settings,
from their first change on. Tests: tests/conversation/test_requests.py.
"""

from contextlib import aclosing

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.settings import Settings
from forkpoint.engine.turns.path import backwards, newest, rendered
from forkpoint.errors import NoSuchTurn, NotFound
from forkpoint.events import Event, JsonText, ManifestChanged, ModelCalled, Position, SettingsChanged
from forkpoint.llm.call import Models
from forkpoint.llm.model import LLM
from forkpoint.llm.prices import load_prices
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.inspection import Inspection, inspect_request
from forkpoint.llm.prompt.manifest import Manifest, manifest_of
from forkpoint.llm.prompt.rendering import Rendering
from forkpoint.llm.request import Request
from forkpoint.store.protocol import Store
from forkpoint.store.values import StoredConversation


class _Call(Struct, frozen=True):
    """A call of a model, and the ordinal of its event."""

    at: int
    body: ModelCalled


class Requests:
    """The requests of a conversation's path, made again. Of the path no more is read than they show.

    ``stored`` is the agent's document that ``agent`` stands in for, if so.
    """

    def __init__(
        self,
        store: Store,
        models: Models,
        record: StoredConversation,
        agent: Agent,
        context: CallContext,
        stored: JsonText | None = None,
    ) -> None:
        self._store = store
        self._models = models
        self._id = record.id
        self._head = record.head.position
        self._agent = agent
        self._context = context
        self._was = model_in(stored) or agent.llm

    async def next(self, prompt: Rendering) -> Inspection:
        """What a turn with this prompt would send first, beside what was sent last."""
        request = self._models.request(self._agent.llm, prompt, self._context)
        before = await self._call_before(None)
        await load_prices(self._agent.llm)
        used = None if before is None else before.body.usage
        return inspect_request(request, await self._made(before), usage_before=used)

    async def sent(self, turn: str | None) -> Inspection:
        """What was sent last, by a turn or at all, beside what was sent before that."""
        call = await (self._call_before(None) if turn is None else self._call_of(turn))
        if call is None:
            why = "no model was asked yet"
            if turn is not None:
                why = f"turn {turn} is not part of its history, or asked no model"
            raise NoSuchTurn(self._id, "show", why)
        request = await self._made(call)
        assert request is not None
        before = await self._call_before(call.at)
        await load_prices(request.llm)
        used = None if before is None else before.body.usage
        return inspect_request(request, await self._made(before), call.body.usage, usage_before=used)

    async def _call_before(self, ordinal: int | None) -> _Call | None:
        """The last answered model call before an ordinal, or on the whole path; None if no call was answered."""
        events = backwards(self._store, self._id, self._head, before=ordinal)
        async with aclosing(events):
            async for event in events:
                if (call := _answered(event)) is not None:
                    return call
        return None

    async def _call_of(self, turn: str) -> _Call | None:
        """The last call of a turn, as far as the turn is on the path."""
        try:
            record = await self._store.turn(turn)
        except NotFound:
            return None
        if record.end is None or self._head is None:
            return None
        base = 0 if record.base is None else record.base.ordinal
        events = await self._store.events(self._id, at=self._head, after=base, limit=record.end.ordinal - base)
        return next((call for event in reversed(events) if event.turn == turn and (call := _answered(event))), None)

    async def _made(self, call: _Call | None) -> Request | None:
        """The request of a call, made again; None if there was none."""
        if call is None:
            return None
        at = (await self._store.path(self._id)).at(call.at - 1)
        manifest = await self._manifest_at(at)
        prompt = await rendered(self._store, self._id, at, manifest)
        llm = await self._model_at(at, call.body, manifest)
        return self._models.request(llm, prompt, _context_of(call.body, self._context))

    async def _manifest_at(self, at: Position | None) -> Manifest:
        change = await newest(self._store, self._id, "manifest_changed", at)
        if change is None or not isinstance(change.body, ManifestChanged):
            return self._agent.manifest
        return Manifest.from_json(change.body.manifest)

    async def _model_at(self, at: Position | None, called: ModelCalled, manifest: Manifest) -> LLM:
        """The model as it was asked: as settings of that time say, or else as far as the call's own record does."""
        change = await newest(self._store, self._id, "settings_changed", at)
        if change is None:  # the first change says how it was until there
            changes = await self._store.events(self._id, at=self._head, kinds=("settings_changed",))
            change = next((event for event in changes if isinstance(event.body, SettingsChanged)), None)
        llm = self._was
        if change is not None and isinstance(change.body, SettingsChanged):
            llm = model_in(Settings.from_json(change.body.settings).agent_json) or self._was
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


def _answered(event: Event) -> _Call | None:
    """The call of a model that an event records, if it was answered."""
    body = event.body
    return _Call(event.id.ordinal, body) if isinstance(body, ModelCalled) and body.error is None else None


def _context_of(called: ModelCalled, today: CallContext) -> CallContext:
    """The context of a call: with the key that it was made with, which is not that of a fork with a key of its own."""
    if called.key is None or called.key == today.identity.key:
        return today
    return replace(today, identity=replace(today.identity, key=called.key))


class _RequestDocument(Struct, frozen=True):
    llm: Raw


def model_in(agent: JsonText | None) -> LLM | None:
    """The model of a stored agent; its functions are not needed for that."""
    return None if agent is None else LLM.from_json(bytes(msgspec.json.decode(agent, type=_RequestDocument).llm))

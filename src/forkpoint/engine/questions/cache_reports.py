"""Says why the calls of a turn missed their provider's cache: each is compared with the request before it.

Requests are made again from the path and the manifests on it, so neither an agent nor its functions are needed. Of a
path no more is read than the prompts of the turn show. Tests: tests/conversation/test_why.py.
"""

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice, takewhile

import msgspec
from msgspec import Struct

from forkpoint.backend.settings import Settings
from forkpoint.engine.questions.requests import model_in
from forkpoint.engine.resources import Resources
from forkpoint.engine.turns.path import backwards, newest, rendered
from forkpoint.engine.views import identity_of
from forkpoint.errors import BadSetting, NoSuchTurn, NotFound
from forkpoint.events import Event, ManifestChanged, ModelCalled, Position, SettingsChanged, StagedEvent
from forkpoint.history.shown import newest_condensation
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.blocks import Blocks
from forkpoint.llm.prompt.manifest import Manifest
from forkpoint.llm.prompt.misses import CacheReport, CallCache, Interlude, MissReason, SentCall, explain
from forkpoint.llm.prompt.rendering import Rendering
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import StoredConversation, StoredTurn

_FAR = 4096  # events before what prompts show, among which the request before is looked for
_MANY = 500  # branches of a family, among which one is looked for that a rewind has set aside

AnyEvent = Event | StagedEvent

AGENT_UNKNOWN = "how the model was asked (its address, the time to live): the settings of its agent cannot be read here"
BASE_LEFT = "the prompts: the conversation has left the place at which this turn was tried"
NO_MANIFEST = "the prompts: what stood before the history is not stored"
NEWER = "the prompts: only a newer version can make them"


class CacheReports:
    """Explains how the calls of a store's turns were served by their providers' caches."""

    def __init__(self, resources: Resources) -> None:
        self._store = resources.store

    async def of(self, id: str, turn: str | None) -> CacheReport:
        """The report of a turn; None: of the newest turn of the path that asked a model.

        Raises `NotFound` if there is no such turn, and `NoSuchTurn` if it is not this conversation's or asked no model.
        """
        record = await self._store.read(id)
        if turn is None:
            newest_call = await _call_before(self._store, record, None, own=True)
            if newest_call is None:
                raise NoSuchTurn(id, "explain", "no turn of its history asked a model")
            turn = newest_call.turn
        return await _TurnReading(self._store, record, await self._turn(turn)).report()

    async def _turn(self, id: str) -> StoredTurn:
        turn = await self._store.turn(id)
        if turn.kind != "turn":
            raise NotFound("turn", id)  # a note is not a turn
        return turn


class _Prompt(Struct, frozen=True):
    """A prompt that was made again of the events of a turn up to a place."""

    manifest: Manifest
    rendering: Rendering
    upto: int


class _TurnReading:
    """One turn of a conversation, as it is read to explain its calls."""

    def __init__(self, store: Store, record: StoredConversation, turn: StoredTurn) -> None:
        self._store = store
        self._record = record
        self._turn = turn
        self._events: Sequence[AnyEvent] = ()
        self._base: Position | None = turn.base
        self._is_there = True  # whether the turn's base is on the path
        self._prompt: _Prompt | None = None
        self._unknown: list[str] = []

    async def report(self) -> CacheReport:
        self._events = await self._read()
        places = [n for n, event in enumerate(self._events) if event.envelope.kind == "model_called"]
        if not places:
            raise NoSuchTurn(self._record.id, "explain", f"turn {self._turn.id} asked no model")
        reports = self._reports()
        calls: list[CallCache] = []
        before: SentCall | None = None
        between = Interlude()
        for number, place in enumerate(places, 1):
            sent = await self._sent(place)
            if number == 1:
                before, between = await self._before(sent)
            elif sent is not None:
                between = self._since(place, between)
            calls.append(self._explained(number, place, sent, before, between, reports))
            if sent is None:
                before, between = None, Interlude(record_erased=True, kept_blocks=self._asked())
            elif sent.called.error is None:
                before, between = sent, Interlude()
        return CacheReport(self._record.id, self._turn.id, self._turn.outcome, tuple(calls))

    async def _read(self) -> Sequence[AnyEvent]:
        """The events of the turn, or its steps."""
        turn, record = self._turn, self._record
        path = await self._store.path(record.id)
        self._is_there = turn.base is None or turn.base in path
        if turn.outcome != "committed":
            if turn.conversation != record.id:
                raise NoSuchTurn(record.id, "explain", f"turn {turn.id} is another conversation's")
            return (await self._store.whole_turn(turn.id))[1]
        after = 0 if turn.base is None else turn.base.ordinal
        events: list[Event] = []
        if self._is_there and turn.end is not None:
            events = await self._store.events(record.id, after=after, limit=turn.end.ordinal - after)
        mine = [event for event in events if event.turn == turn.id]
        if not mine:
            raise NoSuchTurn(record.id, "explain", f"turn {turn.id} is not part of its history")
        return mine

    def _reports(self) -> bool:
        """Whether the provider has ever reported cached or written tokens here."""
        totals = self._record.head.totals + self._turn.usage
        return bool(totals.cached or totals.written)

    async def _sent(self, place: int) -> SentCall | None:
        """The call at a place of the turn with its prompt; None if the record of the call was erased."""
        event = self._events[place]
        if not isinstance(event.body, ModelCalled):
            return None
        prompt = await self._prompt_at(place)
        llm = await self._model(place, None if prompt is None else prompt.manifest)
        marks = () if prompt is None else prompt.rendering.marks(self._fork_base())
        sent = SentCall(event.body, event.envelope.time, self._turn.id, llm=llm, marks=marks)
        if prompt is None:
            return sent
        exact = prompt.rendering.prefix == event.body.prefix
        blocks = prompt.rendering.blocks if exact else None
        return msgspec.structs.replace(sent, manifest=prompt.manifest, blocks=blocks)

    async def _prompt_at(self, place: int) -> _Prompt | None:
        """The prompt of the path and the turn's events before a place; None if it cannot be made."""
        manifest = await self._manifest(place)
        if not self._is_there or manifest is None:
            self._say(NO_MANIFEST if self._is_there else BASE_LEFT)
            return None
        last = self._prompt
        try:
            if last is None or last.manifest != manifest:
                start = await rendered(self._store, self._record.id, self._base, manifest)
                last = _Prompt(manifest, start, 0)
            grown = last.rendering.then(self._events[last.upto : place])
        except BadSetting:
            self._say(NEWER)
            return None
        self._prompt = _Prompt(manifest, grown, place)
        return self._prompt

    async def _manifest(self, place: int) -> Manifest | None:
        for event in reversed(self._events[:place]):
            if isinstance(event.body, ManifestChanged):
                return _manifest_in(event.body)
        return await _manifest_at(self._store, self._record.id, self._base) if self._is_there else None

    async def _model(self, place: int, manifest: Manifest | None) -> LLM | None:
        for event in reversed(self._events[:place]):
            if isinstance(event.body, SettingsChanged):
                llm = _model_of(event.body.settings)
                break
        else:
            is_own = self._turn.conversation == self._record.id
            llm = await _model_at(self._store, self._record, self._base if self._is_there else None, own=is_own)
        if llm is None or not _fits(llm, manifest):
            self._say(AGENT_UNKNOWN)
            return None
        return llm

    def _fork_base(self) -> int | None:
        base = 0 if self._base is None else self._base.ordinal
        return min(self._record.own_from, base) or None

    def _asked(self) -> int:
        return 0 if self._prompt is None else self._prompt.rendering.asked

    def _say(self, unknown: str) -> None:
        if unknown not in self._unknown:
            self._unknown.append(unknown)

    async def _before(self, sent: SentCall | None) -> tuple[SentCall | None, Interlude]:
        """The request before the first of the turn, and what happened between the two."""
        if not self._is_there:
            return None, Interlude(record_erased=False)
        first = 1 if self._base is None else self._base.ordinal + 1
        event = await _call_before(self._store, self._record, first)
        if event is None:
            return None, Interlude()
        landmarks = await self._store.landmarks(self._record.id, ("condensation",), at=self._base)
        condensed = any(one.position.ordinal > event.id.ordinal for one in landmarks)
        opening = takewhile(lambda one: one.envelope.kind != "model_called", self._events)
        condensed = condensed or any(one.envelope.kind == "condensation" for one in opening)
        if not isinstance(event.body, ModelCalled):
            return None, Interlude(condensed=condensed, record_erased=True, kept_blocks=self._asked())
        made_by = self._record.lineage.source
        if event.envelope.origin is None:
            made_by = (await self._store.turn(event.turn)).conversation
        identity = identity_of(self._record)
        between = Interlude(
            condensed=condensed,
            rewound=await self._is_rewound(),
            source=made_by if made_by != self._record.id else None,
            inherits=identity.inherited_from is not None,
            dropped=identity.dropped,
        )
        return await self._made_before(event, event.body, sent, condensed=condensed), between

    async def _made_before(
        self, event: Event, called: ModelCalled, sent: SentCall | None, *, condensed: bool
    ) -> SentCall:
        """The call of an event of the path before the turn. Its prompt is made only if this one's does not have it."""
        path = await self._store.path(self._record.id)
        at = path.at(event.id.ordinal - 1)
        manifest = await _manifest_at(self._store, self._record.id, at)
        llm = await _model_at(self._store, self._record, at, own=at is not None and at.ordinal > self._record.own_from)
        before = SentCall(called, event.envelope.time, event.turn, manifest, llm=llm if _fits(llm, manifest) else None)
        if condensed or manifest is None:
            return before  # nothing of it is worth comparing: it may have been of any length
        blocks = None if sent is None or sent.blocks is None else _start(sent.blocks, called)
        if blocks is None:
            try:
                prompt = await rendered(self._store, self._record.id, at, manifest)
            except BadSetting:
                return before
            blocks = prompt.blocks if prompt.prefix == called.prefix else None
        return msgspec.structs.replace(before, blocks=blocks)

    async def _is_rewound(self) -> bool:
        """Whether the turn is the first after a rewind: a branch that was set aside parts from the path here.

        The first turn after a rewind begins a segment, so only then the family is looked at. After a keep, what was set
        aside parts there too; but then another conversation ran the turn.
        """
        first = self._events[0]
        if self._base is None or not isinstance(first, Event) or first.id.segment == self._base.segment:
            return False
        if (await self._store.turn(first.turn)).conversation != self._record.id:
            return False
        count = 0
        async for branch in every(partial(self._store.conversations, family=self._record.family)):
            lineage = branch.lineage
            if (lineage.kind, lineage.source, lineage.at) == ("aside", self._record.id, self._base):
                return True
            if (count := count + 1) >= _MANY:
                break
        return False

    def _since(self, place: int, between: Interlude) -> Interlude:
        """What happened since the call before in the same turn."""
        start = next((n for n in range(place - 1, -1, -1) if self._events[n].envelope.kind == "model_called"), 0)
        condensed = any(event.envelope.kind == "condensation" for event in self._events[start:place])
        return msgspec.structs.replace(between, condensed=between.condensed or condensed)

    def _explained(
        self, number: int, place: int, sent: SentCall | None, before: SentCall | None, between: Interlude, reports: bool
    ) -> CallCache:
        event = self._events[place]
        unknown = tuple(self._unknown)
        if sent is None:
            gone = "what was cached: the record of this call was erased"
            return CallCache(number, "", "", event.envelope.time, unknown=(gone,))
        called, used = sent.called, sent.called.usage
        told = CallCache(
            call=number,
            model=called.model,
            provider=called.provider,
            time=event.envelope.time,
            input=used.input,
            cached=used.cached,
            written=used.written,
            fresh=max(used.input - used.cached - used.written, 0),
            blocks=called.blocks,
            key=called.key,
            error=called.error,
            before=None if before is None else before.turn,
            unknown=unknown,
        )
        if not used.input:
            if called.error is not None:
                failed = "what was cached: the call failed before the provider counted its prompt"
                return msgspec.structs.replace(told, unknown=(*unknown, failed))
            words = "the provider reports no tokens, so nobody knows what was cached"
            return msgspec.structs.replace(told, reasons=(MissReason("not_reported", words),))
        if before is None and not self._is_there:
            return told
        found = explain(sent, before, between, reports=reports)
        if sent.manifest is not None and sent.blocks is None:
            told = msgspec.structs.replace(told, unknown=(*unknown, "the exact prompt: it cannot be made again"))
        return msgspec.structs.replace(
            told,
            possible=found.possible,
            possible_estimated=found.possible_estimated,
            shared=found.shared,
            reasons=found.reasons,
        )


async def _call_before(
    store: Store, record: StoredConversation, ordinal: int | None, *, own: bool = False
) -> Event | None:
    """The last answered call of a model before an ordinal, or on the whole path. Its record may be erased.

    ``own`` leaves out copies of another conversation's calls. It is looked for in what prompts show, and not much
    further: however long the path is, no more of it is read.
    """
    head = record.head.position
    if head is None:
        return None
    condensation = newest_condensation(await store.landmarks(record.id, ("condensation",), at=head))
    end = 0
    if condensation is not None:
        shown = min(condensation.position.ordinal, condensation.kept_from or condensation.position.ordinal)
        end = max(min(shown, ordinal or shown) - _FAR, 0)
    events = backwards(store, record.id, head, before=ordinal)
    async with aclosing(events):
        async for event in events:
            if event.id.ordinal <= end:
                return None
            if event.kind != "model_called" or (own and event.envelope.origin is not None):
                continue
            if not isinstance(event.body, ModelCalled) or event.body.error is None or own:
                return event
    return None


async def _manifest_at(store: Store, id: str, at: Position | None) -> Manifest | None:
    change = await newest(store, id, "manifest_changed", at)
    return _manifest_in(change.body) if change is not None and isinstance(change.body, ManifestChanged) else None


def _manifest_in(change: ManifestChanged) -> Manifest | None:
    try:
        return Manifest.from_json(change.manifest)
    except BadSetting:
        return None


async def _model_at(store: Store, record: StoredConversation, at: Position | None, *, own: bool) -> LLM | None:
    """The model as the settings of that time say; None if they are not known or cannot be read.

    ``own`` if the conversation itself asked: a fork may have begun with other settings than its source's.
    """
    changes = [one.position.ordinal for one in await store.landmarks(record.id, ("settings_changed",))]
    here, start = 0 if at is None else at.ordinal, record.own_from if own else 0
    place = next((ordinal for ordinal in reversed(changes) if start < ordinal <= here), None)
    if place is None and changes and changes[0] > here:
        place = changes[0]  # the first change says how it was until there
    if place is not None:
        (event,) = await store.events(record.id, after=place - 1, limit=1)
        return _model_of(event.body.settings) if isinstance(event.body, SettingsChanged) else None
    if any(ordinal > max(here, start) for ordinal in changes):
        return None
    return _model_of(record.settings)


def _model_of(settings: str) -> LLM | None:
    try:
        return model_in(Settings.from_json(settings).agent_json)
    except (BadSetting, msgspec.DecodeError):
        return None


def _fits(llm: LLM | None, manifest: Manifest | None) -> bool:
    """Whether a model is the one that a manifest is of."""
    if llm is None or manifest is None:
        return llm is not None
    return (llm.name, llm.wire, llm.served_by) == (manifest.model, manifest.wire, manifest.provider)


def _start(blocks: Blocks, called: ModelCalled) -> Blocks | None:
    """The blocks of a request that this prompt starts with; None if it does not start with them."""
    if not 0 < called.blocks <= len(blocks) or blocks[called.blocks - 1].digest.hex() != called.prefix:
        return None
    shared = tuple(islice(blocks, called.blocks))
    return Blocks((shared,), sum(len(block.text) for block in shared))

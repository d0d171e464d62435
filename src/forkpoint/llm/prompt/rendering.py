"""Rendering: from a manifest and a path to the blocks of a prompt. A pure function, folded over events.

**The promise kept here: the blocks of a longer path start with those of the shorter one**, cache marks aside, until a
condensation, another manifest or an erasure. So whatever a provider has in its cache for a path stays good for every
turn that follows and for every fork. Nothing volatile is in a block: no id of a conversation, no time, no folder.

Rendering goes forward only: `Rendering.then` takes the new events and shares everything else with the rendering it grew
from, so a turn costs its own events however long the history, and a fork costs nothing.

Calls and results are never separated. Results are shown in the order of their calls, as history has them, in whatever
order the tools end. A condensation that would cut an exchange keeps the whole of it, and what is said between a call
and its result (a skill, a picture that a tool returned) is shown after the last result.
"""

import hashlib
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import BadSetting
from forkpoint.events import (
    AssistantMessage,
    Condensation,
    Content,
    Event,
    Gone,
    HookRun,
    Opaque,
    Reasoning,
    SkillActivated,
    StagedEvent,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    TurnStopped,
    UserMessage,
)
from forkpoint.history.shown import ShownPath
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.blocks import Blocks, PromptBlock, chained
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.manifest import Manifest
from forkpoint.llm.wires.body import is_plain
from forkpoint.llm.wires.chat import ChatWire
from forkpoint.llm.wires.messages import MessagesWire, marked
from forkpoint.llm.wires.responses import ResponsesWire
from forkpoint.llm.wires.wire import RequestDraft, Response, Sending, Wire
from forkpoint.llm.wires.wording import (
    ERASED,
    UNREADABLE,
    hook_words,
    lost_part,
    skill_words,
    stopped_words,
    summary_words,
)

RENDERERS: dict[int, dict[str, Wire]] = {
    1: {
        "chat": ChatWire(),
        "local": ChatWire(),
        "scripted": ChatWire(),
        "responses": ResponsesWire(),
        "messages": MessagesWire(),
    }
}


class Awaited(Struct, frozen=True):
    """A call whose result is not shown yet: its id, the id that it is sent with, and its result if that is in."""

    id: str
    sent_as: str
    result: tuple[RequestDraft, ...] | None = None
    later: tuple[RequestDraft, ...] = ()  # what of the result is said once no call is open


class Rendering(Struct, frozen=True):
    """A prompt so far. Share it freely: nothing in it ever changes."""

    manifest: Manifest
    blocks: Blocks
    head: int  # how many blocks stand before the history
    events: int = 0  # how many events of the path it has seen
    asked: int = 0  # how many blocks the last request had: all before the newest response
    exchange: tuple[Awaited, ...] = ()  # calls of the newest response, from the first whose result is not in
    later: tuple[RequestDraft, ...] = ()  # what is to be said of results once no call is open
    held: tuple[RequestDraft, ...] = ()  # and what else is to be said then
    lost: tuple[tuple[str, int], ...] = ()  # what could not be carried over to this wire, and how often

    @property
    def open(self) -> tuple[str, ...]:
        """The calls that wait for a result."""
        return tuple(call.id for call in self.exchange if call.result is None)

    @property
    def losses(self) -> tuple[str, ...]:
        """What of the history this wire cannot carry, in words."""
        return tuple(what if count == 1 else f"{count} times {what}" for what, count in self.lost)

    @property
    def prefix(self) -> str:
        """The digest of the whole prompt."""
        return self.blocks.digest.hex()

    def then(self, events: Iterable[Event | StagedEvent]) -> "Rendering":
        """The prompt of the path with these events after it. They must end where a model response ends."""
        fold = _Fold(self)
        for event in events:
            fold.take(event)
        return fold.done()

    def body(self, llm: LLM, context: CallContext, options: Options = Options(), *, key: str | None = None) -> bytes:
        """The exact bytes of a request with this prompt."""
        base = self.blocks.count_until(context.fork_base) if context.fork_base else 0
        asked, sent = options.over(llm), options.sent(llm.wire)
        sending = Sending(asked, self.manifest, self.blocks, base, self.asked, context, sent, key)
        return _wire(self.manifest).body(sending)

    def marks(self, fork_base: int | None) -> tuple[int, ...]:
        """The blocks of a request with this prompt that carry a cache mark. ``fork_base`` is as in a `CallContext`."""
        if self.manifest.wire != "messages":
            return ()
        base = self.blocks.count_until(fork_base) if fork_base else 0
        head = sum(block.place != "history" for block in self.blocks)
        return tuple(marked(self.blocks, (head, base, self.asked, len(self.blocks))))


def render(manifest: Manifest, path: Iterable[Event | StagedEvent] = ()) -> Rendering:
    """The prompt of a path. Raises `BadSetting` if only a newer version can make it."""
    drafts = _wire(manifest).head(manifest)
    fold = _Fold(Rendering(manifest, Blocks(), head=len(drafts)))
    fold.add(drafts, ordinal=0)
    start = fold.done()
    return start.then(path)


def render_shown(manifest: Manifest, path: ShownPath) -> Rendering | None:
    """The prompt of a path of which only that was read which prompts show: the same as `render` makes of all of it.

    What could not be carried over is counted in what was read. Returns None if all of the path is needed, since an id
    that is made for a call depends on all that stands before it.
    """
    start = render(manifest)
    opening, leads = _Fold(start), []
    for event in path.opening:
        if event.kind == "system_message":
            leads.append(opening.is_leading())
        opening.take(event)
    fold = _Fold(start, partial_until=path.condensed_at)
    try:
        for n, event in enumerate(path.instructions):
            fold.may_lead = n < len(leads) and leads[n]
            fold.take(event)
        fold.may_lead = not path.opening or opening.is_leading()
        for event in path.rest:
            fold.take(event)
        return fold.done()
    except _WholePathNeeded:
        return None


class _WholePathNeeded(Exception):
    """A prompt cannot be made of a part of its path."""


def _wire(manifest: Manifest) -> Wire:
    if manifest.renderer not in RENDERERS:
        raise BadSetting.unknown_renderer(manifest.renderer, max(RENDERERS))
    return RENDERERS[manifest.renderer][manifest.wire]


_RANDOM = 20  # characters of an id from which it is a random one; a shorter one may come again in the next response

_Said = Reasoning | AssistantMessage | ToolCall


class _Fold:
    """Takes events one by one, and gathers what one model response said until it is whole."""

    def __init__(self, start: Rendering, *, partial_until: int = 0) -> None:
        self.may_lead = True  # whether a system message may lead: it must not if history began in what was not read
        self._partial_until = partial_until  # the ordinal up to which not all events are taken
        self._start = start
        self._manifest = start.manifest
        self._origin = start.manifest.origin
        self._wire = _wire(start.manifest)
        self._blocks = start.blocks
        self._shared = len(start.blocks)
        self._new: list[PromptBlock] = []
        self._last = start.blocks.last
        self._events = start.events
        self._asked = start.asked
        self._digest = start.blocks.digest
        self._exchange = list(start.exchange)
        self._later = list(start.later)
        self._held = list(start.held)
        self._lost = dict(start.lost)
        self._response: tuple[str | None, int | None] | None = None  # the turn and the number of what is gathered
        self._said: list[_Said] = []
        self._said_until = 0
        self._verbatim = True  # whether all that is gathered came from this origin, and is there

    def take(self, event: Event | StagedEvent) -> None:
        if isinstance(event, Event):
            self._events, turn = event.id.ordinal, event.turn
        else:
            self._events, turn = self._events + 1, None
        missing = isinstance(event.body, Gone | Opaque)
        body = _standing_in(event) if missing else event.body
        match body:
            case Reasoning() | AssistantMessage() | ToolCall():
                own = not missing and body.provider == self._origin
                self._gather(body, (turn, event.envelope.response), own=own)
            case Gone() if event.envelope.kind == "reasoning":
                self._gather(None, (turn, event.envelope.response), own=False)
            case UserMessage():
                self._close()
                self.add(self._wire.user(body.parts, self._lose), self._events)
            case SystemMessage():
                self._close()
                self._instruct(body)
            case ToolResult():
                self._close()
                self._answer(body)
            case SkillActivated():
                self._hold(self._wire.user([Text(skill_words(body.name, body.content))], self._lose))
            case HookRun() if (told := hook_words(body)) is not None:
                self._hold(self._wire.user([Text(told)], self._lose))
            case TurnStopped():
                self._hold(self._wire.user([Text(stopped_words(body))], self._lose))
            case Condensation():
                self._close()
                self._condense(body)
            case _:
                pass  # of state, settings, approvals and the like a model hears only through other events

    def add(self, drafts: Sequence[RequestDraft], ordinal: int, *, cut: bool = True) -> None:
        cut = cut and not self._exchange
        for draft in drafts:
            self._append(draft, ordinal, cut)
            cut = False  # within one event or response there is no place to start at

    def done(self) -> Rendering:
        self._close()
        return replace(
            self._start,
            blocks=self._blocks.plus(self._new),
            events=self._events,
            asked=self._asked,
            exchange=tuple(self._exchange),
            later=tuple(self._later),
            held=tuple(self._held),
            lost=tuple(self._lost.items()),
        )

    def _append(self, draft: RequestDraft, ordinal: int, cut: bool) -> None:
        lead = self._wire.lead(draft, self._last) if draft.place == "history" else b""
        self._digest = chained(self._digest, draft.place, draft.role, draft.text)
        self._last = PromptBlock(
            draft.place, draft.role, draft.text, ordinal, cut, draft.stays, draft.markable, lead, self._digest
        )
        self._new.append(self._last)

    def is_leading(self) -> bool:
        """Whether a system message that came next would lead: nothing but such came before it."""
        self._close()
        return self.may_lead and (self._last is None or self._last.place != "history")

    def _instruct(self, body: SystemMessage) -> None:
        leading = self.is_leading()
        for part in body.parts:
            if isinstance(part, Text):
                self.add([self._wire.system(part.text, leading=leading)], self._events)
            else:
                self._lose(f"{lost_part(part)} in a system message")

    def _gather(self, body: _Said | None, response: tuple[str | None, int | None], *, own: bool) -> None:
        if response != self._response:
            self._close()
            self._response = response
        if body is not None:
            self._said.append(body)
        self._said_until = self._events
        self._verbatim = self._verbatim and own

    def _close(self) -> None:
        """What was gathered is a whole response: it becomes blocks."""
        if self._response is None:
            return
        said, self._said = self._said, []
        verbatim, self._verbatim = self._verbatim, True
        self._response = None
        while said and isinstance(said[-1], Reasoning):
            said.pop()  # a thought that nothing follows would be refused
            self._lose("a thought that nothing followed")
        if not said:
            return
        asked = self._shared + len(self._new)
        calls = [body for body in said if isinstance(body, ToolCall)]
        ids = {call.call_id: self._id_of(call, verbatim) for call in calls}
        drafts = self._wire.response(Response(tuple(said), verbatim, ids), self._manifest, self._lose)
        self.add(drafts, self._said_until)
        if calls:
            calls.sort(key=lambda call: call.client)  # ours are answered first, the client's with the next turn
            self._exchange += [Awaited(call.call_id, ids[call.call_id]) for call in calls]
        if drafts:
            self._asked = asked

    def _id_of(self, call: ToolCall, verbatim: bool) -> str:
        """A call's id as it is sent: the provider's own, or one that is plain, and different at each place."""
        id, plain = call.call_id, is_plain(call.call_id)
        counted = self._manifest.wire in {"responses", "messages"} and len(id) < _RANDOM
        if verbatim or (plain and not counted):
            return id
        if self._events <= self._partial_until:
            raise _WholePathNeeded
        here = hashlib.blake2b(self._digest + id.encode(), digest_size=12).hexdigest()
        return f"{id}_{here[:8]}" if plain else f"call_{here}"

    def _answer(self, result: ToolResult) -> None:
        """A result is in. It is shown when those of the calls before it are."""
        place = next((n for n, call in enumerate(self._exchange) if call.id == result.call_id), None)
        if place is None:
            return  # its call is not on the path, so no provider would take it
        call = self._exchange[place]
        drafts, later = self._wire.result(result, call.sent_as, self._lose)
        self._exchange[place] = Awaited(call.id, call.sent_as, tuple(drafts), tuple(later))
        while self._exchange and (shown := self._exchange[0]).result is not None:
            del self._exchange[0]
            self.add(shown.result, self._events, cut=False)
            self._later += shown.later
        if not self._exchange and (self._later or self._held):
            self._hold([])

    def _hold(self, drafts: Sequence[RequestDraft]) -> None:
        """Says this when no call is open any more: at once, or after the last result and what belongs to results."""
        self._close()
        self._held += drafts
        if not self._exchange:
            self.add(self._later + self._held, self._events)
            self._later, self._held = [], []

    def _condense(self, body: Condensation) -> None:
        """What stood before the kept part gives way to the summary; system messages stay where they are."""
        blocks = [*self._blocks, *self._new]
        head = next((n for n, block in enumerate(blocks) if block.place == "history"), len(blocks))
        head = max(head, self._start.head)
        kept = next((n for n, block in enumerate(blocks) if n >= head and block.last >= body.kept_from), len(blocks))
        inside = bool(self._exchange) if kept == len(blocks) else not blocks[kept].cut
        while inside and kept > head:
            kept -= 1  # of an exchange or a response all is kept, or nothing
            inside = not blocks[kept].cut
        staying = blocks[:head] + [block for block in blocks[head:kept] if block.stays]
        self._blocks, self._shared, self._new, self._last, self._digest = Blocks(), 0, [], None, b""
        for block in staying:
            self._again(block)
        covered = min([body.kept_from - 1, *(block.last for block in blocks[kept : kept + 1])])
        summary = self._wire.user([Text(summary_words(body.summary))], self._lose)
        self.add(summary, max([covered, *(block.last for block in staying)]), cut=False)
        self._new[-1] = self._last = replace(self._new[-1], cut=True)
        for block in blocks[kept:]:
            self._again(block)
        self._asked = 0  # no request ended anywhere in a prompt that begins anew

    def _again(self, block: PromptBlock) -> None:
        draft = RequestDraft(block.role, block.text, block.markable, block.place, block.stays)
        self._append(draft, block.last, block.cut)

    def _lose(self, what: str) -> None:
        self._lost[what] = self._lost.get(what, 0) + 1


def _standing_in(event: Event | StagedEvent) -> Content:
    """What is shown in the place of an event that was erased or cannot be read, so that calls stay paired."""
    envelope = event.envelope
    erased = (Text(ERASED if isinstance(event.body, Gone) else UNREADABLE),)
    match envelope.kind:
        case "user_message":
            return UserMessage(erased)
        case "assistant_message":
            return AssistantMessage(erased)
        case "system_message":
            return SystemMessage(erased)
        case "tool_call":
            return ToolCall(envelope.call_id or "", envelope.tool or "", "{}", envelope.client)
        case "tool_result":
            return ToolResult(envelope.call_id or "", envelope.tool or "", erased)
        case "condensation" if isinstance(event.body, Gone) and event.body.kept_from is not None:
            return Condensation(ERASED, event.body.kept_from)
        case _:
            return Gone()

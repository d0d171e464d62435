"""Why a call missed its provider's cache: the reasons, each with a stable code, in words and as data.

A call is compared with the request before it. A provider's cache can give back what that request had sent, as far as
this one starts with the same blocks, shows the same key and comes in time. Whatever of this does not hold is a reason.
Nothing here reads a store or asks anybody: `forkpoint.engine.questions.cache_reports` puts the two calls together.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from forkpoint.events import ModelCalled
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.blocks import Blocks, common_prefix
from forkpoint.llm.prompt.cache_facts import CacheFacts, facts_of, ttl_of
from forkpoint.llm.prompt.manifest import Manifest, ToolSchema
from forkpoint.llm.prompt.volatile_text import VolatileSpot, spots_in_words, volatile_spots

MissCode: TypeAlias = Literal[
    "first_request",
    "prompt_too_short",
    "another_provider",
    "another_model",
    "another_renderer",
    "tool_added",
    "tool_removed",
    "tool_changed",
    "instructions_changed",
    "reasoning_changed",
    "output_changed",
    "condensed",
    "erased",
    "history_changed",
    "rewound",
    "another_server",
    "fork_with_own_key",
    "another_key",
    "idle",
    "look_back",
    "not_comparable",
    "not_reported",
    "unexplained",
]
"""The kinds of reasons. A code never changes its meaning; there may be more of them in a later version."""


class MissReason(Struct, frozen=True):
    """One reason for which a prompt, or a part of it, was not found in the cache.

    ``facts`` is what the words are made of, as data: the name of the tool, the seconds, what was and what is.
    """

    code: MissCode
    words: str
    facts: dict[str, Any] = {}


class CallCache(Struct, frozen=True):
    """How a provider's cache served one call of a model.

    ``input`` is all tokens of its prompt: ``cached``, ``written`` and ``fresh`` together. ``possible`` is how many of
    them could have been cached at most: those of the request before it, had this one gone on from there unchanged. It
    is ``possible_estimated`` if the provider has not counted them, and None if nothing is known of them. ``shared`` is
    how many of its ``blocks`` this prompt really has in common with the request before it; None if that cannot be told.
    ``reasons`` say why less was cached than possible, the most likely first; empty if as much was
    cached as possible. ``unknown`` says what could not be looked at.
    """

    call: int  # which call of its turn, from 1
    model: str
    provider: str
    time: int  # when it was recorded: microseconds since 1970, UTC
    input: int = 0
    cached: int = 0
    written: int = 0
    fresh: int = 0
    possible: int | None = None
    possible_estimated: bool = False
    blocks: int = 0
    shared: int | None = None
    key: str | None = None  # the prompt-cache key that was sent
    error: str | None = None  # the code of the error that the call failed with
    before: str | None = None  # the turn of the request that it is compared with, or None if no request came before
    reasons: tuple[MissReason, ...] = ()
    unknown: tuple[str, ...] = ()


class CacheReport(Struct, frozen=True):
    """How a provider's cache served each call of a turn, and why less was cached than possible."""

    conversation: str
    turn: str
    outcome: str
    calls: tuple[CallCache, ...]


class SentCall(Struct, frozen=True):
    """A call that was made, with its prompt as far as it can be made again.

    ``blocks`` is None if the exact prompt cannot be made again, and ``manifest`` if it is not stored. ``llm`` is the
    model as it was asked; None if that is not known. ``marks`` are the blocks that carried a cache mark.
    """

    called: ModelCalled
    ended: int  # microseconds since 1970, UTC
    turn: str
    manifest: Manifest | None = None
    blocks: Blocks | None = None
    marks: tuple[int, ...] = ()
    llm: LLM | None = None

    @property
    def tokens(self) -> int:
        """The tokens of its prompt, once: a call that was tried again has counted them several times."""
        return self.called.usage.input // max(self.called.usage.calls, 1)

    @property
    def facts(self) -> CacheFacts | None:
        """What is known of the cache that it was made with."""
        if self.manifest is None:
            return None
        return facts_of(self.manifest.provider, self.manifest.wire, self.manifest.model)


class Interlude(Struct, frozen=True):
    """What happened to a conversation between two calls.

    ``source`` is the conversation that this one was forked off, if that one made the call before. ``dropped`` is why an
    inherited cache identity was given up. ``record_erased`` if the record of the call before is gone, and
    ``kept_blocks`` is then how many blocks that request had, as far as it can be made again.
    """

    condensed: bool = False
    rewound: bool = False
    record_erased: bool = False
    source: str | None = None
    inherits: bool = False
    dropped: str | None = None
    kept_blocks: int = 0


class Finding(Struct, frozen=True):
    """What the comparison of two calls gives: how much could have been cached, and why it was not."""

    possible: int | None
    possible_estimated: bool
    shared: int | None
    reasons: tuple[MissReason, ...]


def explain(call: SentCall, before: SentCall | None, between: Interlude, *, reports: bool) -> Finding:
    """How much of a call's prompt could have been cached, and the reasons if less was.

    ``reports`` says whether the provider has ever reported cached or written tokens on this path.
    """
    used = call.called.usage
    if before is None and not between.record_erased:
        first = MissReason("first_request", "the first request of this conversation")
        reasons = (
            (first, *_too_short(call, call.tokens, "the prompt")) if _is_less(used.cached, used.input, call) else ()
        )
        return Finding(0, False, 0, reasons)
    shared = None
    if before is not None and call.blocks is not None and before.blocks is not None:
        shared = common_prefix(call.blocks, before.blocks)
    possible, estimated = _possible(call, before, between)
    if possible is not None and not _is_less(used.cached, possible, call):
        return Finding(possible, estimated, shared, ())
    reasons = tuple(_reasons(call, before, between, shared))
    return Finding(possible, estimated, shared, reasons or (_otherwise(call, reports),))


def _is_less(cached: int, possible: int, call: SentCall) -> bool:
    """Whether less was cached than possible, apart from the end of a prompt, which providers cache in steps."""
    step = call.facts.step if call.facts is not None else 1
    return cached < possible and (cached == 0 or cached < 0.95 * possible - step)


def _possible(call: SentCall, before: SentCall | None, between: Interlude) -> tuple[int | None, bool]:
    """How many tokens could have been cached at most, and whether that is an estimate."""
    times = max(call.called.usage.calls, 1)
    if before is not None and before.tokens:
        return min(before.tokens, call.tokens) * times, False
    end = between.kept_blocks if before is None else before.called.blocks
    if call.blocks is None or not call.blocks.size or not end:
        return None, True
    size = sum(len(block.text) for n, block in enumerate(call.blocks) if n < end)
    return round(call.called.usage.input * size / call.blocks.size), True


def _reasons(call: SentCall, before: SentCall | None, between: Interlude, shared: int | None) -> Iterator[MissReason]:
    if between.record_erased:
        words = "content that the request before it had sent was erased since, and the record of that request with it"
        yield MissReason("erased", words)
    if before is None:
        return
    yield from _too_short(call, min(call.tokens, before.tokens or call.tokens), "the request before it")
    if call.manifest is not None and before.manifest is not None:
        yield from _changes(before.manifest, call.manifest)
    yield from _history(call, before, between, shared)
    late = tuple(_idle(call, before))
    if late and call.facts is not None and not call.facts.ttl_is_least:
        yield from late  # it is certain, and a key is not
    yield from _route(call, before, between)
    if late and (call.facts is None or call.facts.ttl_is_least):
        yield from late
    yield from _out_of_sight(call, before, shared)
    if shared is None and not between.condensed and not _is_other_head(call, before):
        words = "what was sent cannot be made again to the byte, so the two prompts were not compared"
        yield MissReason("not_comparable", words)


def _is_other_head(call: SentCall, before: SentCall) -> bool:
    return call.called.manifest != before.called.manifest


def _too_short(call: SentCall, tokens: int, what: str) -> Iterator[MissReason]:
    facts = call.facts
    if facts is None or facts.smallest is None or not 0 < tokens < facts.smallest:
        return
    what = "the prompt" if call.tokens < facts.smallest else what
    words = f"{what} is shorter than the smallest that this provider caches ({facts.smallest:,} tokens)"
    yield MissReason("prompt_too_short", words, {"tokens": tokens, "smallest": facts.smallest})


# What stands before the history.


def _changes(old: Manifest, new: Manifest) -> Iterator[MissReason]:
    """What changed before the history, in the order in which it stands there."""
    if (old.provider, old.wire) != (new.provider, new.wire):
        words = f"another provider: {new.origin}, it was {old.origin}"
        yield MissReason("another_provider", words, {"before": old.origin, "now": new.origin})
    if old.model != new.model:
        words = f"another model: {new.model}, it was {old.model}"
        yield MissReason("another_model", words, {"before": old.model, "now": new.model})
    if old.renderer != new.renderer:
        words = "prompts are rendered by another version since"
        yield MissReason("another_renderer", words, {"before": old.renderer, "now": new.renderer})
    before, now = ({tool.name: tool for tool in one.tools} for one in (old, new))
    for name in sorted(before.keys() | now.keys()):
        if name not in before:
            yield MissReason("tool_added", f"tool `{name}` was added", {"tool": name})
        elif name not in now:
            yield MissReason("tool_removed", f"tool `{name}` was removed", {"tool": name})
        elif before[name] != now[name]:
            yield _changed_tool(before[name], now[name])
    if old.instructions != new.instructions:
        yield _changed_instructions(old.instructions, new.instructions)
    for name, what in _REASONING.items():
        was, is_now = getattr(old, name), getattr(new, name)
        if was != is_now:
            words = f"{what} changed: {is_now}, it was {was}"
            yield MissReason("reasoning_changed", words, {"setting": name, "before": was, "now": is_now})
    if old.output != new.output:
        yield MissReason("output_changed", "the form that the answer must have changed")


_REASONING = {
    "reasoning_effort": "the effort of reasoning",
    "reasoning_tokens": "the tokens for reasoning",
    "reasoning_back": "whether thoughts are sent back",
}


def _changed_tool(old: ToolSchema, new: ToolSchema) -> MissReason:
    parts = [name for name in ("description", "parameters", "strict") if getattr(old, name) != getattr(new, name)]
    spots = volatile_spots(old.description, new.description) or volatile_spots(old.parameters, new.parameters)
    words = " and ".join("strictness" if part == "strict" else part for part in parts)
    plural = len(parts) > 1 or parts == ["parameters"]
    said = f"the {words} of tool `{new.name}` changed"
    if spots:
        said += f": {'they have' if plural else 'it has'} {spots_in_words(spots)} in {'them' if plural else 'it'}"
    return MissReason("tool_changed", said, {"tool": new.name, "changed": parts} | _differing(spots))


def _changed_instructions(old: str, new: str) -> MissReason:
    if not old or not new:
        return MissReason("instructions_changed", f"the instructions were {'removed' if old else 'added'}")
    spots = volatile_spots(old, new)
    said = f": they have {spots_in_words(spots)} in them" if spots else ""
    return MissReason("instructions_changed", f"the instructions changed{said}", _differing(spots))


_MOST_SPOTS = 5
_LONGEST_SPOT = 200


def _differing(spots: tuple[VolatileSpot, ...]) -> dict[str, Any]:
    """The places that differ, as data: the first few, and of each the beginning."""
    shown = [
        {"kind": spot.kind, "before": spot.before[:_LONGEST_SPOT], "now": spot.now[:_LONGEST_SPOT]}
        for spot in spots[:_MOST_SPOTS]
    ]
    return {"differs": shown} if shown else {}


# The history, the route, the time.


def _history(call: SentCall, before: SentCall, between: Interlude, shared: int | None) -> Iterator[MissReason]:
    if between.condensed:
        yield MissReason("condensed", "the history was condensed here: the prompt begins with a summary instead")
    elif (
        before.blocks is not None
        and shared is not None
        and shared < len(before.blocks)
        and not _is_other_head(call, before)
    ):
        block = before.blocks[shared]
        words = f"the history changed at block {shared + 1} ({block.role})"
        yield MissReason("history_changed", words, {"block": shared, "role": block.role, "place": block.place})
    if between.rewound:
        words = "the history was rewound here: the request that this one goes on from is not the newest"
        yield MissReason("rewound", words)


def _route(call: SentCall, before: SentCall, between: Interlude) -> Iterator[MissReason]:
    """Whatever sends the request to another place than the one before it."""
    if call.llm is not None and before.llm is not None and call.llm.base_url != before.llm.base_url:
        was, now = _host(before.llm), _host(call.llm)
        words = f"another server is asked: {now}, it was {was}"
        yield MissReason("another_server", words, {"before": was, "now": now})
    facts, key, old = call.facts, call.called.key, before.called.key
    if facts is not None and facts.found_by == "bytes":
        return
    routed = facts is None and call.llm is not None and bool(call.llm.session_headers)
    routed = routed and call.manifest is not None and call.manifest.wire == "messages"
    if between.source is not None and not between.inherits and (key != old or routed):
        told = {"key": key, "before": old, "source": between.source}
        if between.dropped is not None:
            words = f"another key: {between.dropped}"
            yield MissReason("another_key", words, told | {"dropped": between.dropped})
            return
        words = "a fork with a key of its own: its source's cache is found only by bytes"
        yield MissReason("fork_with_own_key", words, told)
    elif key != old:
        words = "another key" if key and old else "a key is sent, as it was not before" if key else "no key is sent now"
        yield MissReason("another_key", words, {"key": key, "before": old})


def _host(llm: LLM) -> str:
    """Where a model is asked, without what an address may say beyond the host: a path or a password is nobody's."""
    if llm.base_url is None:
        return llm.kind
    address = urlsplit(llm.base_url)
    return f"{address.hostname}:{address.port}" if address.port else str(address.hostname)


def _idle(call: SentCall, before: SentCall) -> Iterator[MissReason]:
    ttl = ttl_of(call.facts, None if before.llm is None else before.llm.cache_ttl)
    idle = (call.ended - before.ended) / 1e6 - call.called.duration
    if ttl is None or idle <= ttl:
        return
    words = f"the provider's time to live ({in_words(ttl)}) had passed"
    if call.facts is not None and call.facts.ttl_is_least:
        words = f"the provider keeps a prompt for {in_words(ttl)}, and forgets it some time after that"
    yield MissReason("idle", f"idle for {in_words(idle)}: {words}", {"seconds": round(idle, 3), "ttl": ttl})


def in_words(seconds: float) -> str:
    """A time in one unit: "45 seconds", "41 minutes", "1 hour", "2 days"."""
    size, unit = 1, "second"
    if seconds >= 60:
        size, unit = 60, "minute"
    if seconds >= 7200 or seconds == 3600:
        size, unit = 3600, "hour"
    if seconds >= 2 * 86400:
        size, unit = 86400, "day"
    number = round(seconds / size)
    return f"{number} {unit}{'' if number == 1 else 's'}"


def _out_of_sight(call: SentCall, before: SentCall, shared: int | None) -> Iterator[MissReason]:
    """The end of the request before, if no mark of this one looks back so far."""
    facts, blocks = call.facts, before.blocks
    if facts is None or facts.look_back is None or blocks is None or not call.marks or shared != len(blocks):
        return
    end = next((n for n in range(len(blocks) - 1, -1, -1) if blocks[n].markable), -1)
    distances = [mark - end for mark in call.marks if mark >= end]
    if end < 0 or not distances or min(distances) < facts.look_back:
        return
    words = f"more than {facts.look_back} blocks since the last cache mark"
    yield MissReason("look_back", words, {"blocks": min(distances), "look_back": facts.look_back})


def _otherwise(call: SentCall, reports: bool) -> MissReason:
    facts = call.facts
    if not reports and facts is None:
        words = "the provider reports no cached tokens: it does not cache, or does not say so"
        return MissReason("not_reported", words)
    words = "nothing that is recorded explains it: the prompt goes on from the request before it"
    if call.called.key is not None:
        words += ", with the same key"
    if facts is None:
        return MissReason("unexplained", f"{words}. Nothing is known of this provider's cache.")
    return MissReason("unexplained", f"{words}{'' if facts.ttl is None else ', in time'}. {facts.forgets}")

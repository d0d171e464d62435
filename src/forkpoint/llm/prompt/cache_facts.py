"""What is known of providers' prompt caches, as data: how small, how long, how far back, and what a write costs.

A figure stands here only if the provider's own documentation or its SDK says it. Of a server that is not listed nothing
is known, and nothing is assumed: its name is that of its host unless `LLM(provider=...)` says who it is.
Sources, read in autumn 2026: the prompt caching guides of OpenAI and Anthropic, and the types of their SDKs.
"""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from forkpoint.llm.catalog import Wire

FoundBy: TypeAlias = Literal["key and bytes", "bytes"]
"""What a provider finds a prompt by: whether the prompt-cache key takes part."""


class CacheFacts(Struct, frozen=True):
    """What is known of the prompt cache of a model. A figure is None if it is not known, or if there is no such limit.

    - ``smallest``: tokens of the shortest prompt that is cached.
    - ``step``: tokens of a prompt are cached in whole steps of so many.
    - ``ttl``: seconds without use that a prompt is kept, unless a call asks for another time. ``ttl_is_least`` if it
      may also be kept longer.
    - ``look_back``: how many blocks a mark looks back for an earlier mark, itself among them.
    - ``writes_cost``: whether tokens that are written to the cache have a price of their own.
    - ``forgets``: what else makes it forget a prompt, as a sentence.
    """

    name: str
    found_by: FoundBy
    smallest: int | None = None
    step: int = 1
    ttl: float | None = None
    ttl_is_least: bool = False
    look_back: int | None = None
    writes_cost: bool = False
    forgets: str = "It may have dropped the prompt early, or asked another of its machines."


class _ModelFacts(Struct, frozen=True):
    """The facts of the models whose names a pattern finds."""

    models: str
    facts: CacheFacts


_OPENAI = CacheFacts(
    "OpenAI",
    "key and bytes",
    smallest=1024,
    step=128,
    ttl=300,  # "5 to 10 minutes of inactivity", an hour at most; some organisations have 24 hours
    ttl_is_least=True,
    forgets="It may have dropped the prompt early, or asked another of its machines, as it does beyond about 15 "
    "requests a minute with one key.",
)
_OPENAI_MARKED = CacheFacts(
    "OpenAI",
    "key and bytes",
    smallest=1024,
    step=128,
    ttl=1800,
    ttl_is_least=True,
    writes_cost=True,
    forgets=_OPENAI.forgets,
)


def _anthropic(smallest: int | None) -> CacheFacts:
    return CacheFacts(
        "Anthropic",
        "bytes",
        smallest=smallest,
        ttl=300,
        look_back=20,
        writes_cost=True,
        forgets="It may have dropped the prompt early; and another tool choice than that of the request before it "
        "voids the cached history, which is not recorded.",
    )


_LOCAL = CacheFacts(
    "the model in this process",
    "bytes",
    forgets="A model in this process forgets its prompts when the process ends, and keeps only a few at a time.",
)

_KNOWN: Mapping[tuple[str, Wire], tuple[_ModelFacts, ...]] = {
    # The first row whose pattern is found in the model's name holds.
    **dict.fromkeys(
        (("openai", "responses"), ("openai", "chat")),
        (_ModelFacts(r"gpt-(5\.([6-9]|\d\d)|[6-9]|1\d)(\D|$)", _OPENAI_MARKED), _ModelFacts(r"", _OPENAI)),
    ),
    ("anthropic", "messages"): (
        _ModelFacts(r"(opus|fable|mythos)-5", _anthropic(512)),
        _ModelFacts(r"opus-4[-.]7", _anthropic(2048)),
        _ModelFacts(r"(opus|haiku)-4[-.][56]", _anthropic(4096)),
        _ModelFacts(r"3(-5)?-haiku", _anthropic(2048)),
        _ModelFacts(r"sonnet|opus-4|3-opus", _anthropic(1024)),
        _ModelFacts(r"", _anthropic(None)),
    ),
    ("local", "local"): (_ModelFacts(r"", _LOCAL),),
}


def facts_of(provider: str, wire: Wire, model: str) -> CacheFacts | None:
    """What is known of the cache that a model is asked with; None if nothing is. ``provider`` is that of a manifest."""
    rows = _KNOWN.get((provider, wire), ())
    return next((row.facts for row in rows if re.search(row.models, model)), None)


_TTL = re.compile(r"(\d+)([smh])")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def ttl_of(facts: CacheFacts | None, asked: str | None) -> float | None:
    """Seconds that a prompt is kept without use: as the call asked, else as the provider does; None if not known.

    ``asked`` is `LLM.cache_ttl`: ``5m``, ``1h``.
    """
    if asked is not None and (told := _TTL.fullmatch(asked)) is not None:
        return float(told[1]) * _SECONDS[told[2]]
    return None if facts is None else facts.ttl

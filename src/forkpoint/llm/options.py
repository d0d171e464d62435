"""What one call asks for, besides its prompt."""

import math
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from forkpoint.errors import BadSetting
from forkpoint.events import JsonText
from forkpoint.llm.catalog import BOUNDS, OPTIONS, SAMPLING, Wire
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import is_text


class Options(Struct, frozen=True, omit_defaults=True):
    """Settings of a single call. Where one is set it wins over the LLM's; none of them is part of a prompt.

    ``tool_choice``: ``auto``, ``none``, ``required``, or the name of the tool that must be used. Some providers keep no
    cache of a history across calls that differ in it.

    Not every wire has a place for each of them: `unsent` says which ones have no effect. Raises `BadSetting` for what
    cannot be, whoever is asked; what one provider refuses is for that provider to say.
    """

    tool_choice: str = "auto"
    parallel_calls: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: JsonText | None = None  # a JSON object of numbers, sent as the exact text that it is
    verbosity: str | None = None
    service_tier: str | None = None

    def __post_init__(self) -> None:
        stop: Any = self.stop
        if not isinstance(stop, tuple):  # one text is one of them, and not its letters
            force_setattr(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop or ()))
        for setting, why in _complaints(self):
            raise BadSetting("a call", setting, why)

    def unsent(self, wire: Wire) -> tuple[str, ...]:
        """Those that are set and that a wire has no place for: they have no effect there."""
        return tuple(name for name, wires in OPTIONS.items() if wire not in wires and _is_set(getattr(self, name)))

    def sent(self, wire: Wire) -> "Options":
        """The others: what a wire is told."""
        unsent = dict.fromkeys(self.unsent(wire), None) | ({"stop": ()} if "stop" in self.unsent(wire) else {})
        return replace(self, **unsent) if unsent else self

    def over(self, llm: LLM) -> LLM:
        """The LLM as this call asks it: with what is set here, as far as its wire has a place for it."""
        sent = self.sent(llm.wire)
        changes = {name: getattr(sent, name) for name in (*SAMPLING, "max_tokens") if _is_set(getattr(sent, name))}
        return llm.replace(**changes) if changes else llm


def _is_set(value: Any) -> bool:
    return value is not None and value != ()


def _complaints(options: Options) -> Iterator[tuple[str, str]]:
    for name, (least, most) in BOUNDS.items():
        number: Any = getattr(options, name)
        whole = name in {"top_k", "seed", "max_tokens"}
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
            yield name, f"it must be a {'whole ' if whole else ''}number"
        elif isinstance(number, float) and not math.isfinite(number):
            yield name, "it must be a finite number"
        elif number < least:
            yield name, f"it must be {least} or more"
        elif number > most:
            yield name, f"it must be at most {most}"
    texts: list[tuple[str, Any]] = [("verbosity", options.verbosity), ("service_tier", options.service_tier)]
    for name, text in (*texts, *(("stop", text) for text in options.stop)):
        if text is not None and not (isinstance(text, str) and is_text(text)):
            yield name, "it must be a text, in valid Unicode"
    if options.logit_bias is not None and not _is_bias(options.logit_bias):
        yield "logit_bias", "it must be a JSON object of numbers"


def _is_bias(value: Any) -> bool:
    try:
        msgspec.json.decode(value, type=dict[str, float])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, TypeError):
        return False
    return True

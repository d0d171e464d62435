"""The worst case of a call: the most that it can be billed, before it is made. Budgets reserve that much.

**What is assumed.** The bytes of a request are at least as many as its tokens: a token of the usual tokenizers stands
for a byte or more, and the JSON around each message has more bytes than the tokens that a provider puts there. A
picture or document can come by its address alone, so each counts `PART_TOKENS` on top, and `OVERHEAD` is for what a
provider adds by itself. The answer has at most as many tokens as the request allows; one without a limit gets
`OUTPUT`, which is then sent. Input is taken at the dearest price, that of writing it to a cache where this costs more.
A provider's own usage is the truth: one that bills more than this is counted as it bills.
Tests: tests/llm/test_worst_case.py.
"""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.events import Usage
from forkpoint.history.budgets import Amount
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.llm.prices import priced
from forkpoint.llm.request import Request
from forkpoint.llm.wires.chat import LOCAL_LIMIT
from forkpoint.llm.wires.messages import ANSWER_LIMIT

OUTPUT = 16_384
"""Tokens of output that a call under a budget may have, if nobody has set a limit. It is sent as the limit."""

LEAST = 1_024
"""An answer is not cut to fewer tokens than this to fit into a budget, thoughts aside."""

OVERHEAD = 1_024
"""Tokens that a provider may put into a prompt by itself, for example for tools."""

PART_TOKENS = 16_384
"""Tokens of a picture or document on top of its bytes: it may be an address, and have many pixels or pages."""

_PARTS = (b'"image_url"', b'"input_image"', b'"image"', b'"input_file"', b'"document"', b'"file"')
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class WorstCase(Struct, frozen=True):
    """What a call can be billed: with the longest answer that it allows, and with the shortest that makes sense."""

    most: Amount
    least: Amount
    input: int  # tokens at most
    limit: int | None  # of the answer, as the request has it already; None: it has none
    is_fixed: bool  # that limit cannot be changed

    def options(self, options: Options, granted: Amount) -> Options:
        """The options with a limit of output that keeps the call within what was granted."""
        output = granted.tokens - self.input
        return options if self.is_fixed or output == self.limit else replace(options, max_tokens=output)


def worst_case(request: Request) -> WorstCase:
    """What a request can be billed. The price list has to be loaded, if it decides what the model costs."""
    llm = request.options.over(request.llm)
    input = len(request.body) + OVERHEAD + PART_TOKENS * sum(request.body.count(part) for part in _PARTS)
    extra = _extra(llm)
    said = next((extra[name] for name in _LIMITS if isinstance(extra.get(name), int)), None)
    times = extra["n"] if isinstance(extra.get("n"), int) and extra["n"] > 1 else 1
    thoughts = request.rendering.manifest.reasoning_tokens or 0
    limit = said or _limit(llm, thoughts)
    output = (limit or OUTPUT + thoughts) * times
    is_fixed = said is not None or times > 1
    least = output if is_fixed else min(output, LEAST + thoughts)
    return WorstCase(_amount(llm, input, output), _amount(llm, input, least), input, limit, is_fixed)


def _limit(llm: LLM, thoughts: int) -> int | None:
    """The limit of output that is sent anyway."""
    if llm.max_tokens is not None:
        return llm.max_tokens
    match llm.wire:
        case "messages":
            return ANSWER_LIMIT + thoughts
        case "local":
            return LOCAL_LIMIT
        case _:
            return None


def _amount(llm: LLM, input: int, output: int) -> Amount:
    fresh = priced(llm, Usage(calls=1, input=input, output=output))
    written = priced(llm, Usage(calls=1, input=input, written=input, output=output))
    known = not (fresh.unpriced or written.unpriced)
    return Amount(max(fresh.nanodollars, written.nanodollars) if known else None, input + output)


def _extra(llm: LLM) -> dict[str, Any]:
    """The fields that an LLM puts into each request by itself."""
    found = {} if llm.extra is None else msgspec.json.decode(llm.extra)
    return found if isinstance(found, dict) else {}

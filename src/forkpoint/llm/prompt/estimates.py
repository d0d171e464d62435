"""What a request would take: its tokens, estimated, and its price with a warm cache and with a cold one.

No provider says how many tokens a prompt has before it was asked. Calls that a conversation has made say how many bytes
of its prompts are a token there, which is a much better guess than any fixed number.
"""

from msgspec import Struct

from forkpoint.events import Usage
from forkpoint.llm.prices import priced
from forkpoint.llm.prompt.blocks import Blocks
from forkpoint.llm.prompt.cache_facts import facts_of
from forkpoint.llm.request import Request

BYTES_PER_TOKEN = 4.0
"""What is assumed where no call says better: about right for English prose and for code."""

FEWEST_BYTES = 2.0
"""How many bytes a token has at least. A call counts a few tokens that no block has, which matter in a tiny prompt."""


class TokenEstimate(Struct, frozen=True):
    """How many tokens a prompt has, and how that is known.

    ``estimated`` is False if the provider counted them. ``shared`` of them stand in the request before it too.
    """

    tokens: int
    shared: int
    estimated: bool
    how: str


def estimate_tokens(
    blocks: Blocks,
    shared: int,
    *,
    counted: Usage | None = None,
    before: Blocks | None = None,
    counted_before: Usage | None = None,
) -> TokenEstimate:
    """How many tokens a prompt has, of which it has ``shared`` blocks in common with the prompt ``before``.

    ``counted`` is what its call reported, if it was made, and ``counted_before`` what the call before it did.
    """
    shared_bytes = sum(len(block.text) for n, block in enumerate(blocks) if n < shared)
    if counted is not None and counted.input:
        tokens = counted.input // max(counted.calls, 1)
        part = shared_bytes / blocks.size if blocks.size else 0.0
        return TokenEstimate(tokens, round(tokens * part), False, "counted by the provider")
    if before is not None and before.size and counted_before is not None and counted_before.input:
        known = counted_before.input // max(counted_before.calls, 1)
        ratio = max(before.size / known, FEWEST_BYTES)
        same = known if shared == len(before) else round(shared_bytes / ratio)
        tokens = same + round((blocks.size - shared_bytes) / ratio)
        return TokenEstimate(tokens, same, True, f"estimated: {ratio:.2f} bytes a token, as in the request before it")
    tokens, same = (round(size / BYTES_PER_TOKEN) for size in (blocks.size, shared_bytes))
    return TokenEstimate(tokens, same, True, f"estimated: {BYTES_PER_TOKEN:g} bytes a token, which is a rule of thumb")


def prices(request: Request, tokens: int, shared: int) -> tuple[float | None, float | None]:
    """Dollars for a prompt of so many tokens, without its answer: with a warm cache and with a cold one.

    Warm means that the tokens that it shares with the request before are read from the cache, cold that none are. What
    is written to the cache is counted where it has a price. Both are None if the price of the model is not known.
    """
    facts = facts_of(request.rendering.manifest.provider, request.rendering.manifest.wire, request.llm.name)
    writes = facts is not None and facts.writes_cost
    if request.llm.price is not None:
        writes = request.llm.price.written is not None
    smallest = (facts.smallest or 0) if facts is not None else 0
    found = shared if shared >= smallest else 0
    dollars = []
    for cached in (found, 0):
        written = tokens - cached if writes and tokens >= smallest else 0
        dollars.append(priced(request.llm, Usage(calls=1, input=tokens, cached=cached, written=written)).dollars)
    return dollars[0], dollars[1]

"""Looking at a request: its exact bytes, where its cached part ends, and how it differs from the one before.

A request can be made again at any time: it is a function of a path, a manifest and an identity, all of which are
stored. So what was sent needs no copy, and "why did this miss the cache?" is answered by comparing two of them.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from forkpoint.events import Usage
from forkpoint.llm.prompt.blocks import PromptBlock, common_prefix
from forkpoint.llm.prompt.estimates import estimate_tokens, prices
from forkpoint.llm.prompt.manifest import differences
from forkpoint.llm.request import Request

Change: TypeAlias = Literal["kept", "added", "removed"]


class BlockLine(Struct, frozen=True):
    """One block of a request, or of the request before it."""

    index: int
    change: Change
    place: str
    role: str
    text: str


class Inspection(Struct, frozen=True):
    """What is worth knowing about a request.

    ``shared`` is how many blocks, and ``shared_bytes`` how many bytes, it has in common with the request before: the
    part that a provider's cache can give back. ``why`` says what ended it. ``cached`` is the share of the prompt's
    tokens that the provider did take from its cache, if the call was made.

    ``tokens`` are those of the prompt: ``tokens_estimated`` unless the provider counted them, and ``tokens_how`` says
    in words how. ``price_warm`` and ``price_cold`` are dollars for the prompt alone, without its answer: if the part
    that it shares with the request before is read from the cache, and if nothing is. None if the price of the model is
    not known.
    """

    body: str
    headers: tuple[tuple[str, str], ...]
    key: str | None
    prefix: str
    manifest: str
    blocks: int
    bytes: int
    shared: int
    shared_bytes: int
    why: str
    cached: float | None
    lines: tuple[BlockLine, ...]
    tokens: int = 0
    tokens_estimated: bool = True
    tokens_how: str = ""
    price_warm: float | None = None
    price_cold: float | None = None

    def diff(self) -> str:
        """The blocks of both requests as text: kept ones counted, the others with + and -."""
        kept = sum(line.change == "kept" for line in self.lines)
        signs = {"added": "+", "removed": "-"}
        shown = [f"  {kept} blocks in common"] if kept else []
        shown += [f"{signs[line.change]} {line.text}" for line in self.lines if line.change != "kept"]
        return "\n".join(shown)


def inspect_request(
    request: Request, previous: Request | None = None, usage: Usage | None = None, *, usage_before: Usage | None = None
) -> Inspection:
    """What is worth knowing about a request, next to the one before it and with what its call reported.

    ``usage_before`` is what the call before reported: with it the tokens of this one are estimated.
    """
    blocks = request.rendering.blocks
    shared = common_prefix(blocks, previous.rendering.blocks) if previous else 0
    texts = list(blocks)
    lines = [_line(n, "kept" if n < shared else "added", block) for n, block in enumerate(texts)]
    if previous is not None:
        lines += [_line(n, "removed", block) for n, block in enumerate(previous.rendering.blocks) if n >= shared]
    before = None if previous is None else previous.rendering.blocks
    estimate = estimate_tokens(blocks, shared, counted=usage, before=before, counted_before=usage_before)
    warm, cold = prices(request, estimate.tokens, estimate.shared)
    return Inspection(
        body=request.body.decode(),
        headers=request.headers,
        key=request.key,
        prefix=request.rendering.prefix,
        manifest=request.rendering.manifest.hash,
        blocks=len(texts),
        bytes=sum(len(block.text) for block in texts),
        shared=shared,
        shared_bytes=sum(len(block.text) for block in texts[:shared]),
        why=_why(request, previous, shared),
        cached=usage.cached / usage.input if usage is not None and usage.input else None,
        lines=tuple(lines),
        tokens=estimate.tokens,
        tokens_estimated=estimate.estimated,
        tokens_how=estimate.how,
        price_warm=warm,
        price_cold=cold,
    )


def _why(request: Request, previous: Request | None, shared: int) -> str:
    """What ends the part that two requests have in common, and whatever else keeps a provider from finding it."""
    if previous is None:
        return "there is no request before it"
    now, before = request.rendering, previous.rendering
    said: list[str] = []
    if changes := differences(before.manifest, now.manifest):
        said.append("the manifest changed: " + "; ".join(changes))
    if request.key != previous.key:
        said.append(f"the cache key is {request.key or 'not sent'}, it was {previous.key or 'not sent'}")
    if request.headers != previous.headers:
        said.append("the headers that requests are routed by are others")
    if request.llm.cache_salt and request.context.salt != previous.context.salt:
        said.append("another tenant's salt keeps the two apart")
    if request.options.tool_choice != previous.options.tool_choice and now.manifest.wire == "messages":
        said.append("the tool choice is another, which voids the cached history there")
    if request.llm.base_url != previous.llm.base_url:
        said.append("another server is asked")
    if not changes and shared < len(before.blocks):
        said.append(f"the history parts at block {shared}: a fork, a rewind, a condensation or an erasure")
    return ". ".join(said) if said else "it continues the request before it"


def _line(index: int, change: Change, block: PromptBlock) -> BlockLine:
    return BlockLine(index, change, block.place, block.role, block.text.decode())

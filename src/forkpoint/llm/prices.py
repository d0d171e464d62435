"""What a call costs. A price that nobody knows is unknown, never zero."""

import functools
import importlib
import re
import sys
from decimal import Decimal
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from msgspec.structs import replace

from forkpoint.events import Usage
from forkpoint.llm.model import LLM, Price

_LIST = "genai_prices.data"  # the package itself loads its list only when it is asked for a price
_NANO = Decimal(1_000_000_000)


def priced(llm: LLM, usage: Usage) -> Usage:
    """The same usage with its cost. Models in this process cost nothing; the rest costs what its price list says."""
    if not usage or (llm.kind in {"local", "scripted"} and llm.price is None):
        return usage
    if llm.price is not None:
        return replace(usage, nanodollars=_by_price(llm.price, usage))
    dollars = _by_list(llm, usage)
    if dollars is None:
        return unpriced(usage)
    return replace(usage, nanodollars=int((dollars * _NANO).to_integral_value()))


def unpriced(usage: Usage) -> Usage:
    """The same usage, at a cost that nobody knows."""
    return replace(usage, unpriced=max(usage.calls, 1))


def needs_list(llm: LLM, usage: Usage) -> bool:
    """Whether the price list must be loaded before this can be priced."""
    return bool(usage) and is_priced_by_list(llm) and not _is_list_loaded()


def is_priced_by_list(llm: LLM) -> bool:
    """Whether the price list decides what a model costs. A model in this process costs nothing; an LLM may have a
    price of its own."""
    return llm.kind not in {"local", "scripted"} and llm.price is None


def load_list() -> None:
    """Loads the price list, which takes a fifth of a second: not in the loop's thread."""
    importlib.import_module(_LIST)


async def load_prices(llm: LLM) -> None:
    """Loads the price list in a thread, if it decides what a model costs and is not at hand."""
    if is_priced_by_list(llm) and not _is_list_loaded():
        await anyio.to_thread.run_sync(load_list, limiter=anyio.CapacityLimiter(1))


def _is_list_loaded() -> bool:
    """Whether the price list is at hand."""
    return _LIST in sys.modules


def _by_price(price: Price, usage: Usage) -> int:
    fresh = max(usage.input - usage.cached - usage.written, 0)
    cached = price.input if price.cached is None else price.cached
    written = price.input if price.written is None else price.written
    rates = ((fresh, price.input), (usage.cached, cached), (usage.written, written), (usage.output, price.output))
    return int(sum(tokens * Decimal(str(rate)) for tokens, rate in rates) * 1000)  # dollars a million: 1000 nano each


def _by_list(llm: LLM, usage: Usage) -> Decimal | None:
    import genai_prices

    if not _is_listed(llm.kind, llm.name, llm.base_url):
        return None

    counted = genai_prices.Usage(
        input_tokens=usage.input,
        cache_read_tokens=usage.cached,
        cache_write_tokens=usage.written,
        **({"cache_write_1h_tokens": usage.written} if llm.kind == "anthropic" and llm.cache_ttl == "1h" else {}),
        output_tokens=usage.output,
    )
    try:
        if llm.base_url is None:
            return genai_prices.calc_price(counted, llm.name, provider_id=llm.kind).total_price
        return genai_prices.calc_price(counted, llm.name, provider_api_url=llm.base_url).total_price
    except (LookupError, ValueError):
        return None


@functools.lru_cache(maxsize=1024)
def _is_listed(kind: str, name: str, base_url: str | None) -> bool:
    """Whether the list has a model of this server at all. Looking for one that it has not is the slowest."""
    import genai_prices

    nothing = genai_prices.Usage(input_tokens=0, output_tokens=0)
    try:
        if base_url is None:
            genai_prices.calc_price(nothing, name, provider_id=kind)
            return True
        address = urlsplit(base_url)
        price = genai_prices.calc_price(nothing, name, provider_api_url=base_url)
        asked = f"{address.scheme}://{address.netloc}{address.path}"
        # The list looks at the start of an address alone.
        return re.fullmatch(price.provider.api_pattern + r"(:\d+)?(/.*)?", asked) is not None
    except (LookupError, ValueError):
        return False

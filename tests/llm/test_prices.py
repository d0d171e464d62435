"""What a call costs, to the nanodollar; and what nobody knows is unknown, never zero."""

from decimal import Decimal

import genai_prices
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.events import Usage
from forkpoint.llm.model import LLM, Price
from forkpoint.llm.prices import priced

many = settings(max_examples=100, deadline=None, database=None)

HAIKU = LLM("anthropic/claude-3-5-haiku-latest")
GPT = LLM("openai/gpt-4o-mini")
MILLION = 1_000_000


def list_price(llm: LLM, **tokens: int) -> Decimal:
    """Dollars, as the price list itself says."""
    return genai_prices.calc_price(genai_prices.Usage(**tokens), llm.name, provider_id=llm.kind).total_price


def test_the_price_list_still_has_the_rates_that_these_tests_calculate_with() -> None:
    """Dollars for a million tokens. If this fails, a provider changed its prices: change the numbers here."""
    assert list_price(GPT, input_tokens=MILLION) == Decimal("0.15")
    assert list_price(GPT, input_tokens=MILLION, cache_read_tokens=MILLION) == Decimal("0.075")
    assert list_price(GPT, input_tokens=0, output_tokens=MILLION) == Decimal("0.6")
    assert list_price(HAIKU, input_tokens=MILLION) == Decimal("0.8")
    assert list_price(HAIKU, input_tokens=MILLION, cache_read_tokens=MILLION) == Decimal("0.08")
    assert list_price(HAIKU, input_tokens=MILLION, cache_write_tokens=MILLION) == Decimal(1)
    assert list_price(HAIKU, input_tokens=0, output_tokens=MILLION) == Decimal(4)


@pytest.mark.parametrize(
    ("llm", "usage", "nanodollars"),
    [
        # nanodollars for a token: gpt-4o-mini 150 fresh, 75 cached, 600 output; haiku 800, 80, 1000 written, 4000
        (GPT, Usage(calls=1, input=1000), 150_000),
        (GPT, Usage(calls=1, input=1000, cached=600), 400 * 150 + 600 * 75),
        (GPT, Usage(calls=1, input=1000, cached=1000, output=7, reasoning=5), 1000 * 75 + 7 * 600),
        (GPT, Usage(calls=1, output=1), 600),
        (GPT, Usage(calls=1, input=1, cached=1), 75),
        (HAIKU, Usage(calls=1, input=1000), 800_000),
        (
            HAIKU,
            Usage(calls=1, input=1000, cached=600, written=300, output=11),
            100 * 800 + 600 * 80 + 300_000 + 44_000,
        ),
        (HAIKU, Usage(calls=1, input=1000, written=1000), 1_000_000),
        (LLM("openai/gpt-4o-mini", base_url="https://api.openai.com/v1"), Usage(calls=1, input=1000), 150_000),
    ],
    ids=str,
)
def test_a_known_model_costs_exactly_what_its_price_list_says(llm: LLM, usage: Usage, nanodollars: int) -> None:
    cost = priced(llm, usage)
    assert cost.nanodollars == nanodollars
    assert cost.unpriced == 0
    assert cost - Usage(nanodollars=nanodollars) == usage, "nothing but the cost may change"


def test_thoughts_are_output_and_not_paid_for_twice() -> None:
    with_thoughts = priced(GPT, Usage(calls=1, input=10, output=100, reasoning=90))
    assert with_thoughts.nanodollars == priced(GPT, Usage(calls=1, input=10, output=100)).nanodollars


def test_what_is_written_to_be_kept_for_an_hour_costs_what_an_hour_costs() -> None:
    """Anthropic takes twice the plain price for an hour, and a quarter more for five minutes."""
    usage = Usage(calls=1, input=1000, written=1000)
    assert list_price(
        HAIKU, input_tokens=MILLION, cache_write_tokens=MILLION, cache_write_1h_tokens=MILLION
    ) == Decimal("1.6")
    assert priced(LLM(HAIKU.model, cache_ttl="5m"), usage).nanodollars == 1_000_000
    assert priced(LLM(HAIKU.model, cache_ttl="1h"), usage).nanodollars == 1_600_000


@pytest.mark.parametrize(
    "llm",
    [
        LLM("openai/a-model-that-nobody-knows"),
        LLM("anthropic/a-model-that-nobody-knows"),
        LLM("openai/gpt-4o-mini", base_url="http://localhost:8000/v1"),
        LLM("openai/gpt-4o-mini", base_url="https://gateway.example/api.openai.com/v1"),
        LLM("openai/gpt-4o-mini", base_url="https://unknown.example/v1", provider="openai"),
        LLM("anthropic/claude-3-5-haiku-latest", base_url="http://localhost:1"),
    ],
    ids=lambda llm: llm.to_json(),
)
def test_a_price_that_nobody_knows_is_unknown_and_never_zero(llm: LLM) -> None:
    usage = Usage(calls=1, input=1000, cached=10, written=5, output=3)
    cost = priced(llm, usage)
    assert (cost.nanodollars, cost.unpriced) == (0, 1)
    assert cost - Usage(unpriced=1) == usage


def test_a_host_that_only_begins_like_a_known_one_is_unknown() -> None:
    cost = priced(LLM("openai/gpt-4o-mini", base_url="https://api.openai.com.proxy.example/v1"), Usage(1, 1000))
    assert (cost.nanodollars, cost.unpriced) == (0, 1)


def test_usage_that_makes_no_sense_has_no_known_price() -> None:
    cost = priced(GPT, Usage(calls=1, input=10, cached=50))
    assert cost.unpriced == 1 or cost.nanodollars > 0, "a call that was counted cost nothing"


@pytest.mark.parametrize("model", ["local/smollm2", "scripted/echo"])
def test_a_model_in_this_process_costs_nothing_unless_told(model: str) -> None:
    usage = Usage(calls=1, input=1000, output=10)
    assert priced(LLM(model), usage) == usage
    assert priced(LLM(model, price=Price(1, 2)), usage).nanodollars == 1000 * 1000 + 10 * 2000


@pytest.mark.parametrize(
    "llm", [GPT, HAIKU, LLM("openai/unknown"), LLM("openai/x", price=Price(1, 1)), LLM("local/smollm2")], ids=str
)
def test_no_usage_costs_nothing_and_is_not_unknown(llm: LLM) -> None:
    assert priced(llm, Usage()) == Usage()


@pytest.mark.parametrize(
    "llm", [GPT, LLM("openai/gpt-4o-mini", base_url="http://localhost/v1"), LLM("openai/unknown")], ids=str
)
def test_a_price_of_one_s_own_wins_over_every_list(llm: LLM) -> None:
    own = LLM(llm.model, base_url=llm.base_url, price=Price(input=3, output=15, cached=0.3, written=3.75))
    usage = Usage(calls=1, input=1000, cached=600, written=300, output=10)
    cost = priced(own, usage)
    assert cost.nanodollars == 100 * 3000 + 600 * 300 + 300 * 3750 + 10 * 15000
    assert cost.unpriced == 0


def test_what_a_price_leaves_out_costs_what_plain_input_costs() -> None:
    usage = Usage(calls=1, input=1000, cached=600, written=300)
    assert priced(LLM("openai/x", price=Price(2, 1)), usage).nanodollars == 1000 * 2000
    assert priced(LLM("openai/x", price=Price(2, 1, cached=0)), usage).nanodollars == 400 * 2000


def test_a_price_of_zero_is_known_to_be_zero() -> None:
    cost = priced(LLM("openai/x", price=Price(0, 0)), Usage(calls=1, input=1000))
    assert (cost.nanodollars, cost.unpriced) == (0, 0)


@many
@given(tokens=st.tuples(*[st.integers(0, 10**9)] * 4), rate=st.floats(0, 1000, allow_nan=False, allow_infinity=False))
def test_a_price_of_one_s_own_is_exact_for_any_number_of_tokens(tokens: tuple[int, int, int, int], rate: float) -> None:
    fresh, cached, written, output = tokens
    usage = Usage(calls=1, input=fresh + cached + written, cached=cached, written=written, output=output)
    exact = Decimal(str(rate)) * 1000 * (fresh + cached + written + output)
    assert abs(priced(LLM("openai/x", price=Price(rate, rate)), usage).nanodollars - exact) < 1


def test_sums_keep_how_many_calls_have_no_known_price() -> None:
    known, unknown = priced(GPT, Usage(1, 1000)), priced(LLM("openai/unknown"), Usage(1, 1000))
    total = known + unknown + unknown
    assert (total.calls, total.nanodollars, total.unpriced) == (3, 150_000, 2)
    assert sum([unknown, known], Usage()) == known + unknown
    assert (total - unknown).unpriced == 1


def test_several_calls_that_are_counted_together_are_all_without_a_price() -> None:
    assert priced(LLM("openai/unknown"), Usage(calls=3, input=10)).unpriced == 3
    assert priced(LLM("openai/unknown"), Usage(input=10)).unpriced == 1

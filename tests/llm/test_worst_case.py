"""The worst case of a call is never below what can be billed, as far as anybody can know before it is made."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.engine.turns.journal import staged
from forkpoint.events import Image, NewEvent, Text, Usage, UserMessage
from forkpoint.llm import LLM, Options, Price
from forkpoint.llm.call import Models
from forkpoint.llm.prices import load_list, priced
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.manifest import manifest_of
from forkpoint.llm.prompt.rendering import render
from forkpoint.llm.request import Request
from forkpoint.llm.worst_case import LEAST, OUTPUT, OVERHEAD, PART_TOKENS, worst_case

PRICE = Price(input=2.0, output=10.0, cached=0.2, written=2.5)


def request_of(llm: LLM, *parts: Any, options: Options = Options()) -> Request:
    message = UserMessage(tuple(Text(part) if isinstance(part, str) else part for part in parts or ("hello",)))
    prompt = render(manifest_of(llm), staged([NewEvent(message)]))
    return Models().request(llm, prompt, CallContext(own_identity("c"), "default"), options)


@pytest.mark.parametrize("model", ["openai/gpt-5.6", "anthropic/claude-sonnet-5", "scripted/echo"])
def test_all_input_at_the_dearest_price_and_the_longest_answer_are_reserved(model: str) -> None:
    llm = LLM(model, price=PRICE, max_tokens=1000, api_key="k" if "/" in model and "scripted" not in model else None)
    request = request_of(llm)
    case = worst_case(request)
    assert case.input == len(request.body) + OVERHEAD
    assert case.most.tokens == case.input + 1000
    assert case.most.nanodollars == case.input * 2500 + 1000 * 10_000
    assert case.options(Options(), case.most) == Options(), "it is sent as it is"


def test_a_request_without_a_limit_gets_one_that_is_sent() -> None:
    llm = LLM("openai/gpt-5.6", price=PRICE, api_key="k")
    case = worst_case(request_of(llm))
    assert case.most.tokens == case.input + OUTPUT
    assert case.options(Options(), case.most).max_tokens == OUTPUT
    assert case.least.tokens == case.input + LEAST
    assert case.options(Options(), case.least).max_tokens == LEAST


def test_the_options_of_a_call_and_what_an_llm_puts_in_by_itself_count() -> None:
    llm = LLM("openai/gpt-5.6", price=PRICE, api_key="k", max_tokens=500)
    case = worst_case(request_of(llm, options=Options(max_tokens=50)))
    assert case.most.tokens == case.least.tokens == case.input + 50
    own = LLM("openai/x", base_url="http://localhost/v1", price=PRICE, extra='{"max_tokens": 70, "n": 3}')
    fixed = worst_case(request_of(own))
    assert fixed.most.tokens == fixed.least.tokens == fixed.input + 210
    assert fixed.options(Options(), fixed.most) == Options()


def test_thoughts_are_in_the_shortest_answer_too() -> None:
    llm = LLM("anthropic/claude-sonnet-5", price=PRICE, api_key="k", reasoning_tokens=5000)
    case = worst_case(request_of(llm))
    assert case.least.tokens == case.input + 5000 + LEAST


def test_a_picture_by_its_address_counts_more_than_the_bytes_of_the_address() -> None:
    llm = LLM("openai/gpt-5.6", api="chat", price=PRICE, api_key="k", max_tokens=10)
    picture = Image("image/png", url="https://example.com/a.png")
    plain = worst_case(request_of(llm, 'say "image_url" and "image"'))
    assert plain.input < OVERHEAD + 1000, "words about a picture are words"
    assert worst_case(request_of(llm, "look", picture)).input > PART_TOKENS


def test_a_model_whose_price_nobody_knows_has_none_and_one_in_this_process_costs_nothing() -> None:
    load_list()
    unknown = LLM("openai/never-heard-of", api_key="k", max_tokens=10)
    assert worst_case(request_of(unknown)).most.nanodollars is None
    assert worst_case(request_of(LLM("scripted/echo"))).most.nanodollars == 0
    known = worst_case(request_of(LLM("openai/gpt-4o", api_key="k", max_tokens=10))).most.nanodollars
    assert known is not None
    assert known > 0


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=200), output=st.integers(1, 300), share=st.floats(0, 1), written=st.booleans())
def test_no_bill_within_the_bounds_is_above_the_worst_case(text: str, output: int, share: float, written: bool) -> None:
    llm = LLM("scripted/echo", price=PRICE, max_tokens=300)
    request = request_of(llm, text or "x")
    case, input = worst_case(request), int(len(request.body) * share)
    used = priced(llm, Usage(calls=1, input=input, written=input if written else 0, output=output))
    assert used.nanodollars <= (case.most.nanodollars or 0)
    assert used.input + used.output <= case.most.tokens

"""Tokens and prices of a request before it is sent."""

import pytest

from forkpoint.events import Envelope, StagedEvent, Text, Usage, UserMessage
from forkpoint.llm import LLM, CallContext, Models, inspect_request, manifest_of, own_identity, render
from forkpoint.llm.model import Price
from forkpoint.llm.prompt.estimates import BYTES_PER_TOKEN
from forkpoint.llm.request import Request

LONG = "Why did the build fail? " * 400


def asked(llm: LLM, *texts: str) -> Request:
    events = [StagedEvent(Envelope("user_message", 0, "user"), UserMessage((Text(text),))) for text in texts]
    return Models().request(
        llm, render(manifest_of(llm, instructions="Be brief."), events), CallContext(own_identity("c"))
    )


def test_without_earlier_calls_a_rule_of_thumb_is_used_and_said() -> None:
    found = inspect_request(asked(LLM("openai/gpt-5"), LONG))
    assert found.tokens == round(found.bytes / BYTES_PER_TOKEN)
    assert found.tokens_estimated
    assert found.tokens_how == "estimated: 4 bytes a token, which is a rule of thumb"


def test_the_request_before_says_how_many_bytes_are_a_token_here() -> None:
    llm = LLM("openai/gpt-5")
    before, now = asked(llm, LONG), asked(llm, LONG, "And now? " * 100)
    size = before.rendering.blocks.size
    found = inspect_request(now, before, usage_before=Usage(calls=1, input=size // 2))
    assert found.tokens == size // 2 + round((found.bytes - size) / (size / (size // 2)))
    assert found.tokens_how == "estimated: 2.00 bytes a token, as in the request before it"


def test_tokens_that_no_block_has_do_not_make_a_longer_prompt_seem_huge() -> None:
    llm = LLM("openai/gpt-5")
    before, now = asked(llm, "Hi"), asked(llm, "Hi", LONG)
    size = before.rendering.blocks.size
    found = inspect_request(now, before, usage_before=Usage(calls=1, input=3 * size))
    assert found.tokens == 3 * size + round((found.bytes - size) / 2)


def test_a_call_that_was_tried_twice_has_counted_its_prompt_twice() -> None:
    llm = LLM("openai/gpt-5")
    before = asked(llm, LONG)
    found = inspect_request(before, before, usage_before=Usage(calls=2, input=4000))
    assert found.tokens == 2000


def test_what_the_provider_counted_is_no_estimate() -> None:
    found = inspect_request(asked(LLM("openai/gpt-5"), LONG), None, Usage(calls=1, input=1234))
    assert (found.tokens, found.tokens_estimated, found.tokens_how) == (1234, False, "counted by the provider")


def test_a_warm_cache_is_cheaper_by_what_is_shared() -> None:
    price = Price(input=10.0, output=50.0, cached=1.0, written=12.5)
    llm = LLM("anthropic/claude-sonnet-5", price=price)
    before, now = asked(llm, LONG), asked(llm, LONG, "And now?")
    found = inspect_request(now, before, usage_before=Usage(calls=1, input=3000))
    new = found.tokens - 3000
    assert found.price_cold == pytest.approx(found.tokens * 12.5 / 1e6)
    assert found.price_warm == pytest.approx((3000 * 1.0 + new * 12.5) / 1e6)


def test_a_prompt_under_the_smallest_is_never_warm_and_never_written() -> None:
    llm = LLM("anthropic/claude-sonnet-5", price=Price(input=10.0, output=50.0, cached=1.0, written=12.5))
    before, now = asked(llm, "Hi."), asked(llm, "Hi.", "And now?")
    found = inspect_request(now, before, usage_before=Usage(calls=1, input=30))
    assert found.price_warm == found.price_cold == pytest.approx(found.tokens * 10.0 / 1e6)


def test_prices_are_those_of_the_list_unknown_or_nothing() -> None:
    listed = inspect_request(asked(LLM("openai/gpt-4o"), LONG))
    assert listed.price_cold is not None
    assert listed.price_cold > 0
    assert listed.price_cold == listed.price_warm, "nothing came before it, so nothing can be warm"
    unknown = inspect_request(asked(LLM("openai/a-model", base_url="http://127.0.0.1:9/v1"), LONG))
    assert (unknown.price_warm, unknown.price_cold) == (None, None)
    local = inspect_request(asked(LLM("scripted/echo"), LONG))
    assert (local.price_warm, local.price_cold) == (0.0, 0.0)


def test_writes_are_counted_where_they_cost() -> None:
    written, plain = (
        inspect_request(asked(LLM(f"anthropic/{name}"), LONG)) for name in ("claude-sonnet-4-5", "claude-haiku-4-5")
    )
    assert written.price_cold == pytest.approx(written.tokens * 3.0 * 1.25 / 1e6)
    assert plain.price_cold == pytest.approx(plain.tokens * 1.0 / 1e6), "it is too short to be written"

"""What is known of providers' caches, and that nothing is invented of others."""

import pytest

from forkpoint.llm.prompt.cache_facts import facts_of, ttl_of


@pytest.mark.parametrize(
    ("model", "smallest"),
    [
        ("claude-sonnet-5", 1024),
        ("claude-sonnet-4-5-20250929", 1024),
        ("claude-opus-4-1-20250805", 1024),
        ("claude-opus-4-8", 1024),
        ("claude-opus-5", 512),
        ("claude-opus-4-7", 2048),
        ("claude-3-5-haiku-20241022", 2048),
        ("claude-haiku-4-5-20251001", 4096),
        ("claude-opus-4-6", 4096),
        ("claude-something-9", None),
    ],
)
def test_the_smallest_prompt_depends_on_the_model(model: str, smallest: int | None) -> None:
    facts = facts_of("anthropic", "messages", model)
    assert facts is not None
    assert (facts.smallest, facts.ttl, facts.look_back, facts.found_by) == (smallest, 300, 20, "bytes")


@pytest.mark.parametrize(
    ("model", "ttl", "writes"),
    [
        ("gpt-4o", 300, False),
        ("gpt-5", 300, False),
        ("gpt-5.5", 300, False),
        ("gpt-5.6", 1800, True),
        ("gpt-5.10-mini", 1800, True),
        ("gpt-6", 1800, True),
    ],
)
@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_newer_models_of_openai_keep_longer_and_charge_writes(model: str, ttl: int, writes: bool, wire: str) -> None:
    facts = facts_of("openai", wire, model)  # type: ignore[arg-type]
    assert facts is not None
    assert (facts.ttl, facts.writes_cost, facts.smallest, facts.step) == (ttl, writes, 1024, 128)


def test_of_an_unknown_server_nothing_is_known() -> None:
    assert facts_of("127.0.0.1", "chat", "gpt-5") is None
    assert facts_of("gateway.example.org", "messages", "claude-sonnet-5") is None
    assert facts_of("scripted", "scripted", "echo") is None
    assert ttl_of(None, None) is None


def test_a_call_may_ask_for_another_time_to_live() -> None:
    facts = facts_of("anthropic", "messages", "claude-sonnet-5")
    assert [ttl_of(facts, asked) for asked in (None, "5m", "1h", "12h")] == [300, 300, 3600, 43_200]
    assert ttl_of(None, "30m") == 1800

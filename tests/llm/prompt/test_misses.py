"""Reasons that no conversation of a test meets by itself. The others: tests/conversation/test_why.py."""

from typing import Any

import pytest
from msgspec.structs import replace

from forkpoint.events import AssistantMessage, Event, ModelCalled, NewEvent, Position, Text, Usage, UserMessage, seal
from forkpoint.llm import LLM, Rendering, manifest_of, render
from forkpoint.llm.prompt.blocks import Blocks
from forkpoint.llm.prompt.misses import Interlude, SentCall, explain, in_words

LONG = "You answer questions. " * 300
CLAUDE = LLM("anthropic/claude-sonnet-5")
OPENAI = LLM("openai/gpt-5")


def said(number: int, *, by_model: bool = False) -> Event:
    body = AssistantMessage((Text(f"{number}"),)) if by_model else UserMessage((Text(f"{number}"),))
    new = NewEvent(body, response=1 if by_model else None)
    return Event(Position(1, number), f"turn-{number}", seal(new, 0), body)


def sent(rendering: Rendering, llm: LLM, *, cached: int = 0, seconds: float = 0, **fields: Any) -> SentCall:
    tokens = rendering.blocks.size // 4
    called = ModelCalled(
        llm.model,
        rendering.manifest.origin,
        Usage(calls=1, input=tokens, cached=cached),
        prefix=rendering.prefix,
        manifest=rendering.manifest.hash,
        blocks=len(rendering.blocks),
    )
    call = SentCall(
        called, int(seconds * 1e6), "turn", rendering.manifest, rendering.blocks, rendering.marks(None), llm
    )
    return replace(call, **fields)


def codes(call: SentCall, before: SentCall, between: Interlude = Interlude()) -> list[str]:
    return [reason.code for reason in explain(call, before, between, reports=True).reasons]


def test_an_imported_history_of_many_blocks_is_out_of_sight_of_the_marks() -> None:
    first = render(manifest_of(CLAUDE, instructions=LONG), [said(1)])
    imported = [said(n, by_model=n % 2 == 0) for n in range(2, 33)]
    second = first.then(imported)
    found = explain(sent(second, CLAUDE), sent(first, CLAUDE), Interlude(), reports=True)
    assert [reason.words for reason in found.reasons] == ["more than 20 blocks since the last cache mark"]
    assert found.reasons[0].facts == {"blocks": 30, "look_back": 20}
    assert codes(
        sent(second, OPENAI, manifest=manifest_of(OPENAI)), sent(first, OPENAI, manifest=manifest_of(OPENAI))
    ) == ["unexplained"]


def test_the_end_of_the_last_request_is_marked_so_a_long_turn_is_in_sight() -> None:
    first = render(manifest_of(CLAUDE, instructions=LONG), [said(1)])
    second = first.then([said(2, by_model=True), *(said(n) for n in range(3, 40))])
    assert codes(sent(second, CLAUDE), sent(first, CLAUDE)) == ["unexplained"]


def test_another_wire_another_renderer_and_another_form_are_named() -> None:
    first = render(manifest_of(OPENAI, instructions=LONG), [said(1)])
    other = manifest_of(CLAUDE, instructions=LONG, output='{"type":"object"}')
    found = explain(sent(render(other, [said(1), said(2)]), CLAUDE), sent(first, OPENAI), Interlude(), reports=True)
    assert [reason.words for reason in found.reasons] == [
        "another provider: anthropic/messages, it was openai/responses",
        "another model: claude-sonnet-5, it was gpt-5",
        "the form that the answer must have changed",
    ]


def test_another_server_is_named_without_what_its_address_may_hide() -> None:
    one, other = (LLM("openai/m", base_url=f"https://{host}/secret/v1", provider="p") for host in "ab")
    first = render(manifest_of(one, instructions=LONG), [said(1)])
    second = first.then([said(2)])
    found = explain(sent(second, other), sent(first, one), Interlude(), reports=True)
    assert [reason.words for reason in found.reasons] == ["another server is asked: b, it was a"]
    assert "secret" not in str(found.reasons)


def test_a_prompt_that_cannot_be_made_again_is_not_compared() -> None:
    first = render(manifest_of(OPENAI, instructions=LONG), [said(1)])
    call = sent(first.then([said(2)]), OPENAI, blocks=None)
    found = explain(call, sent(first, OPENAI), Interlude(), reports=True)
    assert ([reason.code for reason in found.reasons], found.shared) == (["not_comparable"], None)
    assert found.possible == first.blocks.size // 4


def test_a_history_that_differs_for_no_recorded_reason_is_named_by_its_place() -> None:
    manifest = manifest_of(OPENAI, instructions=LONG)
    first, second = render(manifest, [said(1), said(2)]), render(manifest, [said(1), said(3), said(4)])
    assert codes(sent(second, OPENAI), sent(first, OPENAI)) == ["history_changed"]


def test_a_fork_behind_a_gateway_that_routes_by_sessions_may_miss() -> None:
    llm = LLM("anthropic/m", base_url="https://gateway.example.org")
    first = render(manifest_of(llm, instructions=LONG), [said(1)])
    second = first.then([said(2)])
    assert codes(sent(second, llm), sent(first, llm), Interlude(source="c-1")) == ["fork_with_own_key"]
    assert codes(sent(second, llm), sent(first, llm), Interlude(source="c-1", inherits=True)) == ["unexplained"]


def test_a_key_that_is_sent_no_more_is_another_key() -> None:
    first = render(manifest_of(OPENAI, instructions=LONG), [said(1)])
    before = sent(first, OPENAI)
    before = replace(before, called=replace(before.called, key="fp_1"))
    found = explain(sent(first.then([said(2)]), OPENAI), before, Interlude(), reports=True)
    assert [(reason.code, reason.words) for reason in found.reasons] == [("another_key", "no key is sent now")]


def test_what_is_certain_stands_before_what_is_likely() -> None:
    for llm, expected in ((CLAUDE, ["idle"]), (OPENAI, ["another_key", "idle"])):
        first = render(manifest_of(llm, instructions=LONG), [said(1)])
        before = sent(first, llm)
        before = replace(before, called=replace(before.called, key="fp_1"))
        assert codes(sent(first.then([said(2)]), llm, seconds=3600), before) == expected


def test_the_end_of_a_prompt_that_no_whole_step_covers_is_no_miss() -> None:
    first = render(manifest_of(OPENAI, instructions=LONG), [said(1)])
    tokens = first.blocks.size // 4
    second = first.then([said(2)])
    assert codes(sent(second, OPENAI, cached=tokens // 128 * 128), sent(first, OPENAI)) == []
    assert codes(sent(second, OPENAI, cached=tokens // 2), sent(first, OPENAI)) == ["unexplained"]


def test_what_is_not_known_of_the_request_before_is_estimated() -> None:
    first = render(manifest_of(OPENAI, instructions=LONG), [said(1)])
    before = sent(first, OPENAI)
    before = replace(before, called=replace(before.called, usage=Usage()))
    found = explain(sent(first.then([said(2)]), OPENAI), before, Interlude(), reports=True)
    assert found.possible_estimated
    assert found.possible is not None
    assert abs(found.possible - first.blocks.size // 4) <= 2
    nothing = explain(sent(first, OPENAI, blocks=Blocks()), before, Interlude(), reports=True)
    assert nothing.possible is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "1 second"),
        (45, "45 seconds"),
        (60, "1 minute"),
        (300, "5 minutes"),
        (41 * 60, "41 minutes"),
        (3600, "1 hour"),
        (3 * 3600, "3 hours"),
        (5 * 86400, "5 days"),
    ],
)
def test_times_are_said_in_one_unit(seconds: float, words: str) -> None:
    assert in_words(seconds) == words

"""What was told of a turn, in short, says the same as all of it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.backend.callbacks import Update
from forkpoint.backend.catch_up import CatchUp
from forkpoint.events import ModelCalled, Text, ToolCall, ToolResult, Usage
from forkpoint.updates import (
    Answered,
    CallEnded,
    CallPiece,
    CallProgress,
    CallStarted,
    ReasoningPiece,
    Restarted,
    TextPiece,
    TurnStarted,
)

STARTED = TurnStarted("turn", "conversation", ())
texts = st.text("ab", min_size=1, max_size=3)

pieces: st.SearchStrategy[Update] = st.one_of(
    st.builds(TextPiece, texts),
    st.builds(ReasoningPiece, texts),
    st.integers(0, 2).flatmap(lambda n: st.builds(CallPiece, st.just(n), st.just(f"c{n}"), st.just("look"), texts)),
)
attempts = st.lists(pieces, max_size=8)


@st.composite
def turns(draw: st.DrawFn) -> list[Update]:
    """A turn as it is told: answers, some of which are tried again, and calls that say how far they are."""
    told: list[Update] = [STARTED]
    for step in range(draw(st.integers(1, 3))):
        for attempt in draw(st.lists(attempts, min_size=1, max_size=3)):
            told += attempt
            told.append(Restarted("overloaded"))
        told.pop()
        told.append(Answered(ModelCalled(f"m{step}", "test", Usage())))
        calls = [f"c{step}{n}" for n in range(draw(st.integers(0, 2)))]
        told += [CallStarted(ToolCall(id, "look", "{}")) for id in calls]
        if calls:
            progress = st.builds(CallProgress, st.sampled_from(calls), st.just("look"), texts)
            told += draw(st.lists(progress, max_size=5))
        told += [CallEnded(ToolResult(id, "look", (Text("x"),), "done")) for id in calls]
    return told[: draw(st.integers(1, len(told)))]


def understood(updates: Iterable[Update]) -> list[Any]:
    """What a listener makes of updates who shows them: each answer in words, thoughts and calls; and what tools do."""
    seen: list[Any] = []
    text, reasoning, calls, progress = "", "", {}, {}  # type: str, str, dict[int, tuple[str, str, str]], dict[str, str]
    for update in updates:
        match update:
            case TextPiece():
                text += update.text
            case ReasoningPiece():
                reasoning += update.text
            case CallPiece():
                *_, before = calls.get(update.index, ("",))
                calls[update.index] = (update.call_id, update.tool, before + update.arguments)
            case Restarted():
                text, reasoning, calls = "", "", {}
            case CallProgress():
                progress[update.call_id] = update.text
            case Answered():
                seen += [(text, reasoning, calls), update]
                text, reasoning, calls = "", "", {}
            case _:
                seen.append(update)
    return [*seen, (text, reasoning, calls), progress]


def in_short(updates: Iterable[Update]) -> list[Update]:
    told = CatchUp()
    for update in updates:
        told.add(update)
    return told.updates


@settings(max_examples=50, deadline=None)
@given(turns())
def test_what_was_told_in_short_is_understood_as_all_of_it(updates: list[Update]) -> None:
    assert understood(in_short(updates)) == understood(updates)


@settings(max_examples=50, deadline=None)
@given(turns(), st.data())
def test_one_who_joins_anywhere_and_hears_the_rest_understands_all_of_it(
    updates: list[Update], data: st.DataObject
) -> None:
    joined = data.draw(st.integers(1, len(updates)))
    assert understood([*in_short(updates[:joined]), *updates[joined:]]) == understood(updates)


@settings(max_examples=50, deadline=None)
@given(turns())
def test_it_is_told_in_few_words(updates: list[Update]) -> None:
    short = in_short(updates)
    assert not any(isinstance(update, Restarted) for update in short), "what is void is gone"
    assert len(short) <= len(updates)
    assert _doubled(short) == []


def test_a_long_answer_is_one_update() -> None:
    spoken: list[Update] = [STARTED, *(TextPiece("word ") for _ in range(1000))]
    assert in_short(spoken) == [STARTED, TextPiece("word " * 1000)]


def test_pieces_of_calls_that_come_mixed_are_joined_call_by_call() -> None:
    mixed = [CallPiece(n % 2, f"c{n % 2}", "look", str(n)) for n in range(6)]
    assert in_short([STARTED, *mixed]) == [
        STARTED,
        CallPiece(0, "c0", "look", "024"),
        CallPiece(1, "c1", "look", "135"),
    ]


def _doubled(updates: Sequence[Update]) -> list[object]:
    """Pieces that stand beside another of the same kind, and progress of a call that said more since."""
    beside: list[object] = [
        now
        for before, now in pairwise(updates)
        if isinstance(now, TextPiece | ReasoningPiece) and type(before) is type(now)
    ]
    progress = [update.call_id for update in updates if isinstance(update, CallProgress)]
    return beside + [
        update for update in updates if isinstance(update, CallProgress) and progress.count(update.call_id) > 1
    ]

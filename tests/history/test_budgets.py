"""Budgets as values: what they may say, and exact amounts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkpoint import Budget
from forkpoint.errors import BadArgument
from forkpoint.history.budgets import MOST, Amount, in_words


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"dollars": -1},
        {"dollars": float("nan")},
        {"dollars": float("inf")},
        {"dollars": "5"},
        {"tokens": 1.5},
        {"tokens": True},
        {"turns": -1},
        {"seconds": -0.1},
        {"tokens": MOST + 1},
        {"dollars": 1e9},
    ],
)
def test_a_budget_that_limits_nothing_or_cannot_be_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        Budget(**limits)


def test_a_budget_is_frozen_and_counts_in_whole_numbers() -> None:
    budget = Budget(dollars=0.1, tokens=5, seconds=2.5)
    assert (budget.most.nanodollars, budget.most.tokens, budget.most.turns) == (100_000_000, 5, None)
    assert budget.most.micros == 2_500_000
    assert budget.most.budget == budget == Budget(0.1, 5, None, 2.5)
    assert hash(budget) == hash(budget.most.budget)
    with pytest.raises(AttributeError):
        budget.tokens = 6  # type: ignore[misc]


@given(st.integers(0, MOST // 10**7))
def test_dollars_come_back_as_they_were_given(cents: int) -> None:
    assert Budget(dollars=cents / 100).most.budget.dollars == cents / 100


def test_what_has_no_known_price_has_no_sum() -> None:
    assert (Amount(1, 2) + Amount(None, 3)) == Amount(None, 5)
    assert Amount(5, 6, 7, 8) - Amount(1, 2, 3, 4) == Amount(4, 4, 4, 4)
    assert Amount(1, 9).at_least(Amount(5, 5, 1)) == Amount(5, 9, 1)


@pytest.mark.parametrize(
    ("field", "number", "words"),
    [
        ("nanodollars", 50_000_000, "0.05"),
        ("nanodollars", 5_000_000_000, "5"),
        ("nanodollars", 1, "0.000000001"),
        ("tokens", 12_000, "12,000"),
        ("micros", 90_500_000, "90.5"),
        ("turns", 3, "3"),
    ],
)
def test_an_amount_is_written_as_people_do(field: str, number: int, words: str) -> None:
    assert in_words(field, number) == words

"""What is the same in two runs, and what is not."""

import pytest
from tests.console.likeness import Likeness

ONE, TWO = "01a1e234-3484-7808-b4ac-0378266a3c73", "01a1e234-37c1-7d6c-b342-8fb0fbe39e4b"
REAL, OTHER = "01a1ece4-d2a8-7391-b42b-348efa0a7020", "01a1ece4-d2b5-7102-a052-5951e483badd"


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("committed · 17 ms", "committed · 1.2 s"),
        ("ann  default  2 min ago", "ann      default  just now"),
        ("talks.db: 3 events, 147.5 kB", "talks.db: 3 events, 9.0 MB"),
        ("created    2026-11-16 02:33:56, just now", "created    2027-01-02 10:00:00, 3 s ago"),
        ('{"status":"idle",...', '{"status":"idle","events":0}'),
        ("a ────── b", "a ── b"),
        ("shell: git status ...", "shell: git status ..."),
    ],
)
def test_what_every_run_has_anew_is_compared_by_its_shape(shown: str, real: str) -> None:
    assert Likeness().matches([shown], [real])


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("committed · 17 ms", "failed · 17 ms"),
        ("3 events", "4 events"),
        ("  → read_log", "→ read_log"),
        ("$0.0022", "$0.0023"),
        ("http://127.0.0.1:8008", "http://127.0.0.2:8008"),
    ],
)
def test_everything_else_is_compared_to_the_character(shown: str, real: str) -> None:
    assert not Likeness().matches([shown], [real])


def test_one_id_of_the_page_is_one_id_of_the_run() -> None:
    likeness = Likeness()
    assert likeness.matches([f"turn {ONE}", f"turn {TWO}"], [f"turn {REAL}", f"turn {OTHER}"])
    assert likeness.matches([f"again {ONE}"], [f"again {REAL}"])
    assert likeness.matches([f"again {ONE[:13]}"], [f"again {REAL[:13]}"])
    assert not likeness.matches([f"again {ONE}"], [f"again {OTHER}"])
    assert not likeness.matches([f"again {ONE[:13]}"], [f"again {OTHER[:13]}"])
    assert likeness.real(f"show --turn {TWO} {ONE[:10]}") == f"show --turn {OTHER} {REAL[:10]}"


def test_a_key_has_its_label_in_it() -> None:
    likeness = Likeness()
    assert likeness.matches([f"fp_k3v9x2mq_{'a' * 43}"], [f"fp_w8d3r5tz_{'b' * 43}"])
    assert likeness.matches(["k3v9x2mq  ann"], ["w8d3r5tz  ann"])
    assert not likeness.matches(["k3v9x2mq  ann"], ["h7wq4n2c  ann"])


def test_lines_that_are_left_out_may_be_any() -> None:
    assert Likeness().matches(["a", "...", "z"], ["a", "b", "c", "z"])
    assert Likeness().matches(["...", "z"], ["a", "z"])
    assert not Likeness().matches(["a", "...", "z"], ["a", "b", "c"])


def test_what_is_written_into_a_page_keeps_what_was_right() -> None:
    likeness = Likeness()
    shown = [f"made {ONE}", "took 17 ms", "...", "says: old"]
    real = [f"made {REAL}", "took 2 s", "b", "c", f"says: new {REAL}"]
    assert not likeness.matches(shown, real)
    assert likeness.rewritten(shown, real) == [f"made {ONE}", "took 17 ms", "...", f"says: new {ONE}"]

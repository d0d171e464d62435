"""What makes two otherwise equal texts differ."""

import pytest

from forkpoint.llm.prompt.volatile_text import spots_in_words, volatile_spots

ONE, OTHER = "6f9619ff-8b86-4011-b42d-00cf4fc964ff", "0c7f3a52-1d6e-4a41-9d57-30e1a5a7a0aa"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ("It is 10:41 now.", "It is 10:43 now.", "the time of day"),
        ("It is 9:05 AM.", "It is 10:05 PM.", "the time of day"),
        ("At 2026-10-21T10:00:00Z.", "At 2026-10-21T10:05:00Z.", "the time of day"),
        ("At 2026-10-21T10:00:00Z.", "At 2026-10-22T10:05:00Z.", "a date and the time of day"),
        ("Seconds: 1760000000.", "Seconds: 1760000100.", "the time of day"),
        ("Today is Monday, 3 May 2026.", "Today is Tuesday, 4 May 2026.", "a date"),
        ("Since 10/21/2026.", "Since 10/22/2026.", "a date"),
        ("Oct 21, 2026", "Oct 22, 2026", "a date"),
        (f"Session {ONE}.", f"Session {OTHER}.", "a UUID"),
        ("Request 17 of many.", "Request 18 of many.", "a counter"),
        ("Request 18 of many.", "Request 17 of many.", "a number"),
        ("It costs 3.5 each.", "It costs 4.5 each.", "a number"),
        ("You are in /home/ann/one.", "You are in /home/ann/two.", "a path"),
        (r"You are in C:\Users\ann.", r"You are in C:\Users\bob.", "a path"),
        ("You are in /tmp/a1.", "You are in /tmp/a2/deep.", "a path"),
        ("Run deadbeef12 is on.", "Run 0123abcd99 is on.", "an id"),
        (f"{ONE} at 10:41 in /a/b, 1", f"{OTHER} at 10:42 in /a/c, 2", "a UUID, the time of day, a path and a counter"),
    ],
)
def test_what_differs_is_named(before: str, now: str, words: str) -> None:
    assert spots_in_words(volatile_spots(before, now)) == words


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("Be brief.", "Be brief."),
        ("Be brief.", "Be long."),
        ("It is 10:41. Be brief.", "It is 10:43. Be long."),
        ("It is 10:41.", "It is late."),
        ("", "10:41"),
    ],
)
def test_texts_that_are_equal_or_differ_in_more_have_nothing_to_name(before: str, now: str) -> None:
    assert volatile_spots(before, now) == ()


def test_a_spot_has_what_was_and_what_is() -> None:
    (spot,) = volatile_spots("It is 10:41, on day 3.", "It is 10:43, on day 3.")
    assert (spot.kind, spot.before, spot.now) == ("time", "10:41", "10:43")

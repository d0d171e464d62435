"""What a client could see of a path, and which path its own list of messages continues."""

import time
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forkpoint.events import (
    GONE,
    AnyBody,
    AssistantMessage,
    Brought,
    Content,
    Event,
    File,
    Image,
    Imported,
    ManifestChanged,
    ModelCalled,
    NewEvent,
    Opaque,
    Position,
    SystemMessage,
    Text,
    ToolResult,
    Usage,
    UserMessage,
    seal,
)
from forkpoint.history.client_view import (
    ERASED,
    ClientExchange,
    Match,
    Seen,
    after,
    answered_text,
    cut,
    extended,
    first_said,
    match,
    said_parts,
    said_results,
    said_text,
    seen,
    told,
    without_thoughts,
)
from forkpoint.history.pairing import NO_CALLS, safe_cuts
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says, thinks

quick = settings(max_examples=100, deadline=None, database=None)


def path_of(*turns: Iterable[NewEvent], segment: int = 1) -> list[Event]:
    """A path's events, from those of its turns and notes."""
    ordinals = count(1)
    return [
        Event(Position(segment, next(ordinals)), f"turn {number}", seal(new, 1), new.body)
        for number, turn in enumerate(turns, start=1)
        for new in turn
    ]


def asked(*events: NewEvent) -> list[AnyBody]:
    """A client's messages."""
    return [event.body for event in events if not isinstance(event.body, Opaque)]


def corrects(text: str = "Answer again") -> NewEvent:
    return NewEvent(SystemMessage((Text(text),)))


def imported(*events: NewEvent) -> list[NewEvent]:
    return [NewEvent(Imported("a client", len(events))), *events]


def unanswered(call_id: str) -> NewEvent:
    return NewEvent(ToolResult(call_id, "look", (), "not_answered"))


def without(events: list[Event], number: int, body: Content = GONE) -> list[Event]:
    return [replace(event, body=body) if n == number else event for n, event in enumerate(events)]


def questions(events: Iterable[Event]) -> list[bytes]:
    return [one.said for one in seen(events)]


# Digests.


@pytest.mark.parametrize("other", ["caf\u00e9 au  lait", " cafe\u0301 au\n\tlait ", "caf\u00e9\u00a0au lait"])
def test_white_space_and_the_way_accents_are_written_make_no_difference(other: str) -> None:
    assert said_text(other) == said_text("caf\u00e9 au lait")
    assert answered_text(other) == answered_text("caf\u00e9 au lait")


def test_other_words_other_case_and_other_roles_make_a_difference() -> None:
    assert len({said_text("a b"), said_text("ab"), said_text("A b"), answered_text("a b"), said_results(["a b"])}) == 5


def test_an_answer_is_the_same_however_its_pieces_were_joined() -> None:
    assert answered_text("I look.\n\nIt is 3.") == answered_text("I look.It is 3.")


def test_half_a_surrogate_pair_is_no_reason_to_fail() -> None:
    assert said_text("\ud83d") != said_text("\ude00")


def test_of_a_question_with_a_picture_only_the_text_counts() -> None:
    picture = Image("image/png", data="AAAA")
    assert said_parts([Text("what is"), picture, Text("this?")]) == said_text("what is this?")
    assert said_parts([Text("what is this?"), File("a.pdf", "application/pdf", url="x")]) == said_text("what is this?")


def test_a_question_without_any_text_is_what_kinds_of_things_it_showed() -> None:
    picture, other = Image("image/png", data="AAAA"), Image("image/png", url="https://example.org")
    assert said_parts([picture]) == said_parts([other])
    assert said_parts([picture]) != said_parts([picture, picture])
    assert said_parts([picture]) != said_parts([File("a", "text/plain", data="AAAA")])
    assert said_parts([picture]) != said_text("[image/png]"), "nobody wrote that"


def test_results_are_the_same_in_any_order() -> None:
    assert said_results(["a", "b"]) == said_results(["b", "a"]) != said_results(["a"])


# From events to exchanges.


def test_each_turn_is_an_exchange_that_ends_with_it() -> None:
    path = path_of(exchange("one"), exchange("two"))
    assert seen(path) == [
        Seen(said_text("one"), answered_text("You said: one"), Position(1, 2), "turn 1"),
        Seen(said_text("two"), answered_text("You said: two"), Position(1, 4), "turn 2"),
    ]


def test_an_empty_path_has_no_exchange() -> None:
    assert seen([]) == []


def test_what_was_brought_from_another_branch_was_not_seen() -> None:
    header = NewEvent(Brought("c", "turns", 2, ("t/0", "t/1"), ("", "")))
    path = path_of(exchange("one"), [header, *exchange("elsewhere")], exchange("two"))
    assert [one.said for one in seen(path)] == [said_text("one"), said_text("two")]


def test_several_user_messages_of_a_turn_are_one_question() -> None:
    path = path_of([says("one"), says("two"), answers("both")])
    assert questions(path) == [said_text("one\n\ntwo")]


def test_what_our_own_tools_did_is_not_seen_and_all_that_was_said_is() -> None:
    turn = [
        says("go"),
        thinks("hm", response=1),
        answers("I look.", response=1),
        calls("x", response=1),
        returns("x"),
        answers("It is 3.", response=2),
    ]
    (one,) = seen(path_of(turn))
    assert (one.said, one.answered) == (said_text("go"), answered_text("I look.\n\nIt is 3."))


def test_an_answer_that_had_the_wrong_form_was_not_shown() -> None:
    (one,) = seen(path_of([says("go"), answers("three", response=1), corrects(), answers("3", response=2)]))
    assert one.answered == answered_text("3")


def test_the_last_words_are_told_apart_where_they_are_not_all_for_they_may_be_all_that_was_shown() -> None:
    """A client that asks for a form is shown the answer that has it, and nothing that was said on the way."""
    looked = [says("go"), answers("I look.", response=1), calls("x", response=1), returns("x")]
    (plain,) = seen(path_of(exchange("one")))
    (once,) = seen(path_of([says("go"), thinks("hm", response=1), answers("a", response=1), answers("b", response=1)]))
    (twice,) = seen(path_of([*looked, answers("3", response=2), answers("4", response=2)]))
    (silent,) = seen(path_of([*looked, calls("y", client=True, response=2)]))
    (wrong,) = seen(path_of([*looked, answers("three", response=2), corrects(), answers("3", response=3)]))
    assert [plain.last, once.last, wrong.last] == [None, None, None]
    assert (twice.answered, twice.last) == (answered_text("I look.34"), answered_text("34"))
    assert (silent.answered, silent.last) == (answered_text("I look.", ["y"]), answered_text("", ["y"]))
    assert [twice.is_answer(answered_text(text)) for text in ("I look. 34", "34", "4", "I look.")] == [True, True] + [
        False
    ] * 2
    assert not plain.is_answer(ERASED)


def test_an_erased_answer_has_no_last_words() -> None:
    whole = path_of([says("go"), answers("I look.", response=1), calls("x"), returns("x"), answers("3", response=2)])
    (one,) = seen(without(whole, 1))
    assert (one.answered, one.last) == (ERASED, None)


def test_a_system_message_that_follows_no_answer_takes_nothing_back() -> None:
    turn = [corrects(), says("go"), corrects(), answers("I look.", response=1), calls("x", response=1), returns("x")]
    (one,) = seen(path_of([*turn, corrects(), answers("3", response=2)]))
    assert (one.said, one.answered) == (said_text("go"), answered_text("I look.\n\n3"))


def test_notes_are_no_exchange_and_the_turn_before_them_ends_before_them() -> None:
    changed = NewEvent(ManifestChanged("hash", "{}"))
    path = path_of([remembers("a", "1")], exchange("one"), [remembers("b", "2"), changed], exchange("two"), [changed])
    assert [(one.end.ordinal, one.turn) for one in seen(path)] == [(3, "turn 2"), (7, "turn 4")]


def test_a_turn_ends_with_its_last_event_whatever_kind_that_is() -> None:
    (one,) = seen(path_of([*exchange("one"), NewEvent(ModelCalled("m", "p", Usage())), remembers("a", "1")]))
    assert one.end == Position(1, 4)


def test_the_results_of_a_client_s_tools_are_a_question() -> None:
    path = path_of(
        [says("go"), calls("x", client=True), calls("y", client=True)], [returns("x"), returns("y"), answers("3")]
    )
    assert [(one.said, one.answered, one.safe) for one in seen(path)] == [
        (said_text("go"), answered_text("", ["x", "y"]), True),
        (said_results(["y", "x"]), answered_text("3"), True),
    ]


def test_results_that_the_client_did_not_send_are_not_part_of_its_question() -> None:
    path = path_of(
        [says("go"), calls("x", client=True), calls("y", client=True)], [returns("x"), unanswered("y"), answers("3")]
    )
    assert questions(path) == [said_text("go"), said_results(["x"])]


@pytest.mark.parametrize("result", [returns("x"), unanswered("x")])
def test_a_new_message_with_or_instead_of_results_is_the_question(result: NewEvent) -> None:
    path = path_of([says("go"), calls("x", client=True)], [result, says("never mind"), answers("ok")])
    assert questions(path) == [said_text("go"), said_text("never mind")]


def test_imported_exchanges_stand_for_themselves_and_the_path_may_end_after_each() -> None:
    path = path_of([*imported(*exchange("one"), says("two"), says("more"), answers("ok")), *exchange("three")])
    assert [(one.said, one.end.ordinal) for one in seen(path)] == [
        (said_text("one"), 3),
        (said_text("two more"), 6),
        (said_text("three"), 8),
    ]
    assert {one.turn for one in seen(path)} == {"turn 1"}


def test_what_a_turn_does_before_its_own_question_belongs_to_no_imported_exchange() -> None:
    path = path_of([*imported(*exchange("one")), NewEvent(ManifestChanged("h", "{}")), *exchange("two")])
    assert [one.end.ordinal for one in seen(path)] == [3, 6]


def test_imported_events_alone_are_exchanges_too() -> None:
    path = path_of(imported(*exchange("one"), *exchange("two")), exchange("three"))
    assert questions(path) == [said_text("one"), said_text("two"), said_text("three")]


def test_a_system_message_among_imported_ones_takes_no_answer_back() -> None:
    one, _ = seen(path_of([*imported(says("one"), answers("ok"), corrects("be brief")), *exchange("two")]))
    assert one.answered == answered_text("ok")


def test_a_greeting_before_the_first_question_is_no_exchange() -> None:
    path = path_of([*imported(answers("Hello!"), *exchange("one")), *exchange("two")])
    assert questions(path) == [said_text("one"), said_text("two")]
    assert seen(path)[0].answered == answered_text("You said: one")
    assert told(asked(answers("Hello!"), *exchange("one"), says("two"))) == [
        ClientExchange(said_text("one"), answered_text("You said: one"), 3)
    ]


def test_an_imported_question_that_nobody_answered_is_part_of_the_next() -> None:
    path = path_of([*imported(*exchange("one"), says("lost")), *exchange("two")])
    assert questions(path) == [said_text("one"), said_text("lost two")]
    assert questions(path) == [one.said for one in told(asked(*exchange("one"), says("lost"), *exchange("two")))]


def test_no_path_may_end_where_imported_calls_wait_for_their_results() -> None:
    events = [says("go"), answers("I look."), calls("x", client=True), returns("x"), answers("3")]
    path = path_of([*imported(*events), *exchange("next")])
    assert [(one.said, one.end.ordinal, one.safe) for one in seen(path)] == [
        (said_text("go"), 4, False),
        (said_results(["x"]), 6, True),
        (said_text("next"), 8, True),
    ]


def test_imported_calls_that_nobody_answered_belong_to_what_asked_for_them() -> None:
    events = [says("go"), calls("x", client=True), unanswered("x"), *exchange("well?")]
    path = path_of([*imported(*events), *exchange("next")])
    assert [(one.end.ordinal, one.safe) for one in seen(path)] == [(4, True), (6, True), (8, True)]


def test_results_for_imported_calls_are_the_turn_s_own_question() -> None:
    path = path_of([*imported(says("go"), calls("x", client=True)), returns("x"), answers("3")])
    assert [(one.said, one.safe) for one in seen(path)] == [(said_text("go"), False), (said_results(["x"]), True)]


def test_an_imported_answer_to_results_that_were_given_before_belongs_to_them() -> None:
    path = path_of([says("go"), calls("x", client=True)], [returns("x"), *imported(answers("4")), *exchange("next")])
    assert [(one.said, one.answered) for one in seen(path)[1:]] == [
        (said_results(["x"]), answered_text("4")),
        (said_text("next"), answered_text("You said: next")),
    ]


@pytest.mark.parametrize("body", [GONE, Opaque("user_message", '{"kind":"user_message","new":1}')])
def test_an_erased_question_matches_nothing_and_the_others_still_do(body: Content) -> None:
    whole = path_of(exchange("one"), exchange("two"), exchange("three"))
    path = seen(without(whole, 2, body))
    assert [one.said for one in path] == [said_text("one"), ERASED, said_text("three")]
    found = match(told(asked(*exchange("one"), *exchange("two"), *exchange("three"), says("new"))), [path])
    assert (found.length, found.at) == (1, Position(1, 2))


def test_an_erased_answer_is_not_the_same_as_any() -> None:
    (one,) = seen(without(path_of([says("one"), answers("a"), answers("b")]), 1))
    assert one.answered == ERASED
    assert match([ClientExchange(said_text("one"), answered_text(""))], [[one]]).exact == 0


def test_a_path_of_which_everything_was_erased_can_still_be_read() -> None:
    turns = [*imported(*exchange("one")), *exchange("two")], [calls("x", client=True)], [returns("x"), answers("3")]
    erased = [replace(event, body=GONE) for event in path_of(*turns)]
    assert {one.said for one in seen(erased)} == {ERASED, said_results(["x"])}


# From a client's list to exchanges.


def test_the_question_that_a_list_ends_with_is_for_the_turn_to_answer() -> None:
    assert told(asked(says("one"))) == []
    assert told(asked(*exchange("one"), says("two"), says("more"))) == [
        ClientExchange(said_text("one"), answered_text("You said: one"), 2)
    ]


def test_results_at_the_end_of_a_list_are_for_the_turn_too() -> None:
    listed = told(asked(says("go"), calls("x", client=True), returns("x")))
    assert [(one.said, one.upto) for one in listed] == [(said_text("go"), 2)]
    listed = told(asked(says("go"), calls("x", client=True), returns("x"), says("so?")))
    assert [(one.said, one.upto) for one in listed] == [(said_text("go"), 2)]


def test_a_list_with_client_tools_is_the_path_that_it_came_from_lived_or_imported() -> None:
    events = [says("go"), answers("I look."), calls("x", client=True), returns("x"), answers("3"), *exchange("next")]
    listed = told(asked(*events, says("new")))
    lived = seen(path_of(events[:3], events[3:5], events[5:]))
    taken = seen(path_of([*imported(*events[:5]), *events[5:]]))
    for path in (lived, taken):
        found = match(listed, [path])
        assert (found.length, found.is_head, found.exact) == (3, True, 3)


# Matching: single cases, for the reader.


def texts(*names: str, answers: str = "", segment: int = 1) -> list[Seen]:
    """A path on which this was asked, a word each; what was answered is its own unless it is given, a letter each."""
    return [
        Seen(said_text(name), answered_text(answers[n : n + 1] or f"to {name}"), Position(segment, 2 * n + 2), f"{n}")
        for n, name in enumerate(names)
    ]


def words(*names: str, answers: str = "") -> list[ClientExchange]:
    return [ClientExchange(one.said, one.answered) for one in texts(*names, answers=answers)]


def test_the_next_message_continues_at_the_head() -> None:
    assert match(words("a", "b"), [texts("a", "b")]) == Match(0, 0, 2, Position(1, 4), is_head=True, exact=2, same=2)


def test_an_empty_list_is_the_root() -> None:
    assert match([], [texts("a"), []]) == Match(0, 0, 0, None, is_head=False, exact=0)
    assert match([], [[], texts("a")]) == Match(0, 0, 0, None, is_head=True, exact=0)


def test_a_list_that_nothing_matches_is_a_fork_at_the_root_of_the_current_path() -> None:
    assert match(words("x"), [texts("a"), [], texts("b")]) == Match(0, 0, 0, None, is_head=False, exact=0)
    assert match(words("x"), [[]]) == Match(0, 0, 0, None, is_head=True, exact=0)


def test_an_edited_or_regenerated_message_cuts_the_path_before_it() -> None:
    """The list ends with the new question, or with the old one again: both times the exchanges before it are told."""
    assert match(words("a"), [texts("a", "b", "c")]) == Match(0, 0, 1, Position(1, 2), is_head=False, exact=1, same=1)
    assert match([], [texts("a", "b", "c")]).at is None


def test_an_edit_that_left_the_rest_of_the_list_in_place_cuts_the_path_before_it() -> None:
    assert match(words("a", "changed", "c"), [texts("a", "b", "c")]).at == Position(1, 2)


def test_going_back_to_an_older_alternative_continues_that_branch_at_its_head() -> None:
    current, older = texts("a", "b2"), texts("a", "b1", "c1", segment=2)
    assert match(words("a", "b1", "c1"), [current, older]) == Match(
        1, 0, 3, Position(2, 6), is_head=True, exact=3, same=3
    )


def test_of_two_answers_to_the_same_question_the_one_that_the_client_shows_is_continued() -> None:
    """Regenerated once, so there are two branches; the client lets its user choose between the answers."""
    first, second = texts("a", "b", answers="12"), texts("a", "b", answers="13", segment=2)
    assert match(words("a", "b", answers="13"), [first, second]).branch == 1
    assert match(words("a", "b", answers="12"), [first, second]).branch == 0
    assert match(words("a", "b", answers="99"), [first, second]).branch == 0, "in doubt, the current path"


def with_last(path: list[Seen], last: str) -> list[Seen]:
    """The same path, where each answer was only the end of what was said: a letter for each, a blank for none."""
    ends = [None if letter == " " else answered_text(letter) for letter in last]
    return [replace(one, last=end) for one, end in zip(path, ends, strict=True)]


def test_of_two_answers_the_one_whose_last_words_the_client_shows_is_continued() -> None:
    first, second = texts("a", answers="1"), texts("a", answers="2", segment=2)
    branches = [with_last(first, "x"), with_last(second, "y")]
    found = match(words("a", answers="y"), branches)
    assert found == Match(1, 0, 1, Position(2, 2), is_head=True, exact=1, same=1, partly=1)
    assert not found.is_exact
    assert match(words("a", answers="x"), branches).branch == 0
    assert match(words("a", answers="2"), branches) == Match(1, 0, 1, Position(2, 2), is_head=True, exact=1, same=1)
    assert match(words("a", answers="z"), branches) == Match(0, 0, 1, Position(1, 2), is_head=True, exact=0)


def test_the_same_in_all_its_words_is_nearer_than_the_same_in_its_last_words() -> None:
    """``On it. 5`` and a plain ``5`` are two answers; a client that shows ``5`` may have either, and has the second."""
    partly = with_last(texts("a", "b", answers="17"), " 5")
    whole = texts("a", "b", answers="15", segment=2)
    for branches, branch in (([partly, whole], 1), ([whole, partly], 0), ([texts("x"), partly, whole], 2)):
        found = match(words("a", "b", answers="15"), branches)
        assert (found.branch, found.exact, found.partly, found.is_exact) == (branch, 2, 0, True)
    assert match(words("a", "b", answers="15"), [partly, whole[:1]]).partly == 1, "but longer is nearer still"
    window = [*texts("z"), *whole]
    assert match(words("a", "b", answers="15"), [window, partly]).branch == 0


def test_all_answers_are_counted_before_it_counts_in_how_many_of_their_words() -> None:
    """Two that are the same by their last words are more than one that is the same in all, and one that is another."""
    lasts, one = with_last(texts("a", "b", answers="12"), "xy"), texts("a", "b", answers="x9", segment=2)
    assert match(words("a", "b", answers="xy"), [one, lasts]).branch == 1


def test_of_equal_windows_on_a_path_the_one_with_all_words_wins() -> None:
    path = with_last(texts("z", "on", "on", answers="057"), "  5")
    assert match(words("on", answers="5"), [path]) == Match(0, 1, 1, Position(1, 4), is_head=False, exact=1, same=1)


def test_a_path_that_begins_as_the_list_does_is_nearer_than_a_window() -> None:
    window, beginning = texts("z", "hi", answers="01"), texts("hi", "more", answers="12", segment=2)
    assert match(words("hi", answers="1"), [window]).start == 1
    assert match(words("hi", answers="1"), [window, beginning]) == Match(
        1, 0, 1, Position(2, 2), False, exact=1, same=1
    )


def test_a_list_that_begins_with_an_answer_goes_on_behind_it_if_it_is_the_last_of_a_path() -> None:
    current, older = texts("a", "b", answers="12"), with_last(texts("a", "c", answers="13", segment=2), " y")
    for text, branch in (("2", 0), ("3", 1), ("y", 1)):
        found = after(asked(answers(text)), [current, older])
        assert found == Match(branch, 2, 0, Position(branch + 1, 4), is_head=True, exact=0)
    root = Match(0, 0, 0, None, is_head=False, exact=0)
    assert after(asked(answers("1")), [current, older]) == root, "it is on the way, and not the last"
    assert after(asked(calls("x", client=True)), [current]) == after([], [current]) == root
    assert after(asked(answers("2")), [[]]) == Match(0, 0, 0, None, is_head=True, exact=0)


def test_an_edited_answer_cuts_the_path_before_it() -> None:
    path = texts("a", "b", "c", answers="123")
    found = match(words("a", "b", "c", answers="1x3"), [path])
    assert (found.length, found.exact, found.same) == (3, 2, 1)
    assert cut(found, path) == Match(0, 0, 1, Position(1, 2), is_head=False, exact=1, same=1)
    first = match(words("a", "b", answers="xy"), [path])
    assert cut(first, path) == Match(0, 0, 0, None, is_head=False, exact=0)
    plain = match(words("a", "b", "c", answers="123"), [path])
    assert cut(plain, path) is plain


def test_an_edit_in_a_window_keeps_what_stands_before_the_window() -> None:
    path = texts("a", "b", "c", answers="123")
    found = cut(match(words("b", "c", answers="xy"), [path]), path)
    assert (found.start, found.length, found.at) == (1, 0, Position(1, 2))


def test_a_branch_with_the_edited_answer_is_nearer_than_one_with_more_of_the_questions() -> None:
    longer, edited = texts("a", "b", answers="12"), texts("a", answers="x", segment=2)
    found = match(words("a", "b", answers="x2"), [longer, edited])
    assert (found.branch, found.same) == (1, 1)


def test_an_erased_answer_is_no_edit() -> None:
    path = [replace(one, answered=ERASED) for one in texts("a", "b")]
    found = match(words("a", "b"), [path])
    assert cut(found, path) is found


def test_an_edit_in_the_middle_of_a_turn_cuts_where_a_path_may_end() -> None:
    path = [replace(one, safe=n != 1) for n, one in enumerate(texts("a", "b", "c", answers="123"))]
    found = match(words("a", "b", "c", answers="12x"), [path])
    assert (found.length, found.same) == (3, 1)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>Hm.</think>Yes.", "Yes."),
        ("<thinking>Hm.</thinking>\nYes.<think>So.</think> No.", "\nYes. No."),
        ('<details type="reasoning" done="true">\n<summary>Hm</summary>\n> a\n</details>\nYes.', "\nYes."),
        ("<details><summary>More</summary>Yes.</details>", "<details><summary>More</summary>Yes.</details>"),
        ("<think>all of it</think>", "<think>all of it</think>"),
        ("<think>not closed. Yes.", "<think>not closed. Yes."),
        ("a < b, and <b>bold</b>", "a < b, and <b>bold</b>"),
    ],
)
def test_thoughts_are_left_out_of_an_answer(text: str, left: str) -> None:
    assert without_thoughts(text) == left


def test_many_blocks_that_do_not_end_are_looked_through_once() -> None:
    before = time.process_time()
    without_thoughts("<think>" * 300_000)
    without_thoughts("<think></think>" * 150_000)
    assert time.process_time() - before < 2


def test_the_first_question_of_a_list_is_known_answered_or_not() -> None:
    (one,) = texts("a")
    question = [UserMessage((Text("a"),))]
    assert first_said(question) == first_said([*question, AssistantMessage((Text("1"),))]) == one.said
    assert first_said([AssistantMessage((Text("Hello"),))]) is None


def test_a_window_continues_at_the_head() -> None:
    assert match(words("b", "c"), [texts("a", "b", "c")]) == Match(
        0, 1, 2, Position(1, 6), is_head=True, exact=2, same=2
    )


def test_an_edit_in_a_window_cuts_the_path_before_it() -> None:
    assert match(words("b", "c"), [texts("a", "b", "c", "d")]).at == Position(1, 6)


def test_a_window_of_another_branch_is_found_too() -> None:
    assert match(words("b1", "c"), [texts("a", "b2"), texts("a", "b1", "c", segment=2)]).at == Position(2, 6)


def test_a_window_with_a_gap_is_none() -> None:
    assert match(words("b", "d", answers="xy"), [texts("a", "b", "c", "d")]).length == 0


def test_a_list_that_begins_as_a_path_does_is_cut_where_they_part_though_a_window_is_longer() -> None:
    path = texts("hi", "a", "hi", "b", "c")
    assert match(words("hi", "b", "x"), [path]).at == Position(1, 2)
    assert match(words("hi", "b", "c"), [path]).is_head, "the whole list is a window, and longer"


def test_who_trims_and_edits_is_believed_if_the_first_answer_is_that_of_the_path() -> None:
    path = texts("a", "b", "c", "d", answers="1234")
    assert match(words("b", "c", "x", answers="239"), [path]) == Match(0, 1, 2, Position(1, 6), False, exact=2, same=2)
    assert match(words("b", "c", "x", answers="939"), [path]).length == 0, "anybody may have asked that"


def test_of_equal_windows_the_one_with_the_client_s_answers_wins_then_the_last() -> None:
    path = texts("a", "on", "on", "on", answers="1234")
    assert match(words("on", answers="3"), [path]).start == 2
    assert match(words("on", answers="9"), [path]).start == 3


def test_a_list_that_a_path_begins_with_is_no_window_of_it() -> None:
    assert match(words("on", answers="9"), [texts("on", "on", "on", answers="123")]).start == 0


def test_of_equal_branches_the_one_that_ends_there_wins_then_the_current_one_then_the_first() -> None:
    short, long = texts("a", "b"), texts("a", "b", "c")
    assert match(words("a", "b"), [long, long, short, short]).branch == 2
    assert match(words("a", "b"), [texts("x"), long, long]).branch == 1


def test_of_equal_windows_on_two_branches_the_one_with_more_before_it_wins() -> None:
    assert match(words("on"), [texts("x"), texts("a", "on"), texts("a", "b", "on")]).branch == 2


def test_a_list_is_never_cut_where_calls_wait() -> None:
    path = texts("a", "go", "results", "b")
    path[1] = replace(path[1], safe=False)
    assert match(words("a", "go", "results"), [path]).length == 3
    assert match(words("a", "go"), [path]).at == Position(1, 2)
    assert match(words("a", "go", "x"), [path]).at == Position(1, 2)
    assert match(words("go"), [path]).at is None
    assert match(words("go", "results"), [path]).at == Position(1, 6)


# Matching: against a slow reference, and what always holds.


def slow_match(told: Sequence[ClientExchange], branches: Sequence[Sequence[Seen]]) -> Match:
    """The rules, tried at every place."""

    def candidates(*, window: bool) -> Iterable[Match]:
        for branch, path in enumerate(branches):
            for start in range(1, len(path)) if window else range(1):
                for length in range(1, min(len(told), len(path) - start) + 1):
                    pairs = list(zip(told[:length], path[start : start + length], strict=True))
                    if all(mine.said == theirs.said for mine, theirs in pairs) and pairs[-1][1].safe:
                        exact = sum(mine.answered in (theirs.answered, theirs.last) for mine, theirs in pairs)
                        whole = sum(mine.answered == theirs.answered for mine, theirs in pairs)
                        end = path[start + length - 1].end
                        same = next((n for n, (mine, theirs) in enumerate(pairs) if not is_same(mine, theirs)), length)
                        while 0 < same < length and not pairs[same - 1][1].safe:
                            same -= 1
                        is_head = start + length == len(path)
                        yield Match(branch, start, length, end, is_head, exact, same, exact - whole)

    def is_same(mine: ClientExchange, theirs: Seen) -> bool:
        return theirs.is_answer(mine.answered)

    def nearness(one: Match) -> tuple[object, ...]:
        same = one.length, one.exact, -one.partly
        return *same, not one.start, one.is_head, not one.branch, one.start, -one.branch

    def rank(one: Match) -> tuple[object, ...]:
        return one.same, *nearness(one)

    def nearest(found: Iterable[Match]) -> list[Match]:
        """Of several places on one path, the one with the most answers; between paths the first edit decides."""
        best: dict[int, Match] = {}
        for one in sorted(found, key=nearness):
            best[one.branch] = one
        return list(best.values())

    windows = list(candidates(window=True))
    found = [*nearest(candidates(window=False)), *nearest(one for one in windows if one.length == len(told))]
    if not found:
        found = nearest(one for one in windows if branches[one.branch][one.start].is_answer(told[0].answered))
    return max(found, key=rank, default=Match(0, 0, 0, None, not branches[0], 0))


few = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12")), max_size=12)


@st.composite
def paths(draw: st.DrawFn) -> list[list[Seen]]:
    """Branches that share questions, and here and there a place where none may end."""
    found: list[list[Seen]] = []
    for number in range(draw(st.integers(1, 3))):
        asked = draw(few)
        path = texts(*(name for name, _ in asked), answers="".join(to for _, to in asked), segment=number)
        unsafe = draw(st.sets(st.integers(0, 11), max_size=3))
        last = draw(st.lists(st.sampled_from("12   "), min_size=len(path), max_size=len(path)))
        found.append([replace(one, safe=n not in unsafe) for n, one in enumerate(with_last(path, "".join(last)))])
    return found


@st.composite
def lists(draw: st.DrawFn, branches: list[list[Seen]]) -> list[ClientExchange]:
    """What a client may send: a stretch of a branch, here and there changed, and something of its own."""
    path = draw(st.sampled_from(branches))
    start = draw(st.integers(0, len(path)))
    listed = [ClientExchange(one.said, one.answered) for one in path[start : draw(st.integers(start, len(path)))]]
    for n in draw(st.sets(st.integers(0, 11), max_size=2)):
        if n < len(listed):
            listed[n] = replace(listed[n], answered=answered_text("another"))
    more = draw(few.map(lambda some: some[:2]))
    return [*listed, *words(*(name for name, _ in more), answers="".join(to for _, to in more))]


@settings(quick, max_examples=200)
@given(data=st.data())
def test_it_finds_what_trying_every_place_finds(data: st.DataObject) -> None:
    branches = data.draw(paths())
    listed = data.draw(lists(branches))
    found = match(listed, branches)
    assert found == slow_match(listed, branches)
    path = branches[found.branch]
    kept = cut(found, path)
    stretch = path[kept.start : kept.start + kept.length]
    assert all(
        one.said == mine.said and one.is_answer(mine.answered) for one, mine in zip(stretch, listed, strict=False)
    )
    assert kept.length == 0 or stretch[-1].safe
    end = kept.start + kept.length
    assert kept.at == (path[end - 1].end if end else None)


kinds = st.sampled_from(["plain", "tools", "client", "note", "imported", "two questions", "corrected"])


class Story(NamedTuple):
    """Turns and notes of all kinds, and the messages that a client has of them. Every text stands once."""

    turns: list[list[NewEvent]]
    messages: list[NewEvent]

    @property
    def told(self) -> list[ClientExchange]:
        return told(asked(*self.messages, says("something new")))


def story(kinds: list[str]) -> Story:
    turns: list[list[NewEvent]] = []
    messages: list[NewEvent] = []
    for number, kind in enumerate(kinds):
        a, b, c = (f"{letter} {number}" for letter in "abc")
        match kind:
            case "plain":
                turns.append(exchange(a))
                messages += exchange(a)
            case "tools":
                turns.append(
                    [says(a), answers(b, response=1), calls(a, response=1), returns(a), answers(c, response=2)]
                )
                messages += [says(a), answers(f"{b}\n\n{c}")]
            case "client":
                turns += [[says(a), answers(b), calls(a, client=True)], [returns(a), answers(c)]]
                messages += [says(a), answers(b), calls(a, client=True), returns(a), answers(c)]
            case "note":
                turns.append([remembers("a", "1")])
            case "imported":
                taken = [*exchange(a), says(b), calls(b, client=True), returns(b), answers(b)]
                turns.append([*imported(*taken), *exchange(c)])
                messages += [*taken, *exchange(c)]
            case "two questions":
                turns.append([says(a), says(b), answers(c)])
                messages += [says(a), says(b), answers(c)]
            case _:
                turns.append([says(a), answers("bad", response=1), corrects(), answers(b, response=2)])
                messages += [says(a), answers(b)]
    return Story(turns, messages)


stories = st.lists(kinds, max_size=7).map(story)


@quick
@given(story=stories)
def test_a_client_s_list_of_a_path_continues_at_its_head(story: Story) -> None:
    path = seen(path_of(*story.turns))
    assert [(one.said, one.answered) for one in path] == [(one.said, one.answered) for one in story.told]
    found = match(story.told, [path])
    assert (found.start, found.length, found.is_head, found.exact) == (0, len(path), True, len(path))
    assert found.at == (path[-1].end if path else None)


@quick
@given(story=stories, data=st.data())
def test_any_prefix_with_something_new_is_cut_exactly_there(story: Story, data: st.DataObject) -> None:
    path = seen(path_of(*story.turns))
    listed = story.told
    length = data.draw(st.sampled_from([0, *(n for n, one in enumerate(path, start=1) if one.safe)]))
    for own in ([], words("an edit", "and more")):
        found = match([*listed[:length], *own], [path])
        assert (found.length, found.at) == (length, path[length - 1].end if length else None)


@quick
@given(story=stories.filter(lambda story: bool(story.told)), data=st.data())
def test_any_window_up_to_the_end_continues_at_the_head(story: Story, data: st.DataObject) -> None:
    path = seen(path_of(*story.turns))
    start = data.draw(st.integers(0, len(path) - 1))
    found = match(story.told[start:], [texts("another"), path])
    assert (found.branch, found.start, found.is_head) == (1, start, True)


@quick
@given(story=stories, data=st.data())
def test_turns_can_be_added_to_what_was_seen_before(story: Story, data: st.DataObject) -> None:
    events = path_of(*story.turns)
    turns = list(dict.fromkeys(event.turn for event in events))
    known = set(turns[: data.draw(st.integers(0, len(turns)))])
    before = seen(event for event in events if event.turn in known)
    assert extended(before, (event for event in events if event.turn not in known)) == seen(events)


@quick
@given(story=stories)
def test_every_place_that_is_called_safe_is_one(story: Story) -> None:
    events = path_of(*story.turns)
    safe: set[Position] = set()
    calls = NO_CALLS
    for turn in dict.fromkeys(event.turn for event in events):
        part = [event for event in events if event.turn == turn]
        envelopes = [event.envelope for event in part]
        safe |= {part[cut - 1].id for cut in safe_cuts(envelopes, calls) if cut}
        calls = calls.after(envelopes).at_a_commit()
    for one in seen(events):
        assert (one.end in safe) == one.safe


# Speed: with ten thousand exchanges, in a time that no quadratic way could have.


@pytest.mark.parametrize("answer", ["the same", "its own"])
def test_that_the_same_was_said_ten_thousand_times_does_not_make_it_slow(answer: str) -> None:
    path = [
        Seen(said_text("continue"), b"%d" % (n if answer == "its own" else 0), Position(1, n + 1), "t")
        for n in range(10_000)
    ]
    window = [ClientExchange(one.said, one.answered) for one in path[2_000:7_000]]
    changed = [*window[:-1], replace(window[-1], answered=b"changed")]
    before = time.process_time()
    found = match(changed, [path])
    spent = time.process_time() - before
    assert (found.start, found.length, found.exact) == (2_000 if answer == "its own" else 0, 5_000, 4_999)
    assert spent < 1, f"it took {spent:.2f} s; trying each of the 5,000 places takes several"


def test_the_plain_continuation_of_ten_thousand_exchanges_is_a_matter_of_milliseconds() -> None:
    path = [Seen(b"q%d" % n, b"a%d" % n, Position(1, n + 1), "t") for n in range(10_000)]
    listed = [ClientExchange(b"q%d" % n, b"a%d" % n) for n in range(10_000)]
    spent = []
    for _ in range(5):
        before = time.process_time()
        assert match(listed, [path]).is_head
        assert match(listed[5_000:], [path]).is_head
        spent.append(time.process_time() - before)
    assert min(spent) < 0.25, f"it took {min(spent):.3f} s at best"

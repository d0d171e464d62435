"""Pairing: whatever breaks it is refused, and no cut ever falls inside an exchange or a response."""

from collections.abc import Sequence
from itertools import count, cycle
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forkpoint.errors import Unpaired
from forkpoint.events import Envelope, NewEvent, seal
from forkpoint.history.pairing import NO_CALLS, OpenCalls, safe_cuts
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says, thinks

quick = settings(max_examples=50, deadline=None, database=None)

# Kinds that neither ask nor answer nor speak: they may stand anywhere.
BESIDE = ["hook_run", "approval_asked", "approval_given", "state_change", "sub_agent_spawned", "from_the_future"]


class Turn(NamedTuple):
    """A valid turn: the client's calls that were open before it, and its events."""

    before: OpenCalls
    events: list[Envelope]

    @property
    def results(self) -> list[int]:
        return [n for n, event in enumerate(self.events) if event.kind == "tool_result"]

    @property
    def answered(self) -> dict[str, tuple[int, int]]:
        """Where each call of this turn that has a result stands, and where its result does."""
        asked = {event.call_id: n for n, event in enumerate(self.events) if event.kind == "tool_call"}
        found = {}
        for n in self.results:
            id = self.events[n].call_id
            if id is not None and id in asked:
                found[id] = (asked[id], n)
        return found

    def check(self, events: list[Envelope]) -> OpenCalls:
        """Commits other events in place of this turn's."""
        return self.before.after(events).at_a_commit()

    def refuses(self, events: list[Envelope], because: str) -> None:
        try:
            self.check(events)
        except Unpaired:
            return
        pytest.fail(f"committed although {because}: {[(event.kind, event.call_id) for event in events]}")


def event(kind: str, call_id: str | None = None, response: int | None = None, *, client: bool = False) -> Envelope:
    return Envelope(kind, 1, call_id=call_id, client=client, response=response)


def sealed(*new: NewEvent) -> list[Envelope]:
    return [seal(one, 1) for one in new]


def build(waiting: int, script: list[list[str]], beside: list[int], stays_open: bool) -> Turn:
    """A turn as it may stand in committed history: the client's answers, a message, and then for each entry of the
    script what a model wrote in one go, followed by the results."""
    before = OpenCalls((), tuple(f"client {n}" for n in range(waiting))).at_a_commit()
    events: list[Envelope] = []
    ids, kinds, gaps = count(1), cycle(BESIDE), cycle(beside)

    def add_results(of: Sequence[str]) -> None:
        for id in of:
            events.extend(event(next(kinds)) for _ in range(next(gaps)))
            events.append(event("tool_result", id))

    add_results(before.client)
    events.append(event("user_message"))
    for number, written in enumerate(script, start=1):
        ours: list[str] = []
        client: list[str] = []
        for kind in written:
            if kind in ("reasoning", "assistant_message"):
                events.append(event(kind, None, number))
                continue
            id = f"call {next(ids)}"
            (ours if kind == "our call" else client).append(id)
            events.append(event("tool_call", id, number, client=kind == "client call"))
        add_results(ours)
        if client and stays_open:
            break  # they stay open, at the head
        add_results(client)
        events.extend(event(next(kinds)) for _ in range(next(gaps)))
    return Turn(before, events)


written = st.lists(
    st.sampled_from(["reasoning", "assistant_message", "our call", "our call", "client call"]), min_size=1, max_size=5
)


def turns(script: st.SearchStrategy[list[list[str]]] = st.lists(written, max_size=4)) -> st.SearchStrategy[Turn]:
    gaps = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=6)
    return st.builds(build, st.integers(0, 2), script, gaps, st.booleans())


def exchanges() -> st.SearchStrategy[Turn]:
    """Turns in which at least two of our calls are answered."""
    script = st.lists(written, max_size=2)
    return turns(st.builds(lambda a, b: [["our call", "our call"], *a, ["our call"], *b], script, script))


@quick
@given(turn=turns())
def test_a_valid_turn_is_accepted_and_leaves_only_the_client_s_calls_open(turn: Turn) -> None:
    left = turn.check(turn.events)
    asked = [one for one in turn.events if one.kind == "tool_call"]
    done = {turn.events[n].call_id for n in turn.results}
    assert left.ours == ()
    assert left.client == tuple(one.call_id for one in asked if one.call_id not in done)
    assert left.at_a_commit() == left, "what is open at a commit is the same seen from any later one"


@quick
@given(turn=turns(), data=st.data())
def test_events_can_be_taken_in_any_portions(turn: Turn, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(turn.events)))
    whole = turn.before.after(turn.events)
    assert turn.before.after(turn.events[:place]).after(turn.events[place:]) == whole


@quick
@given(turn=turns(), data=st.data())
def test_what_is_open_survives_being_stored(turn: Turn, data: st.DataObject) -> None:
    calls = turn.before.after(turn.events[: data.draw(st.integers(0, len(turn.events)))])
    assert msgspec.json.decode(msgspec.json.encode(calls), type=OpenCalls) == calls


@quick
@given(turn=exchanges(), data=st.data())
def test_a_turn_with_a_result_gone_is_refused(turn: Turn, data: st.DataObject) -> None:
    ours = {one.call_id for one in turn.events if one.kind == "tool_call" and not one.client}
    places = [n for n in turn.results if turn.events[n].call_id in ours]
    place = data.draw(st.sampled_from(places))
    turn.refuses(turn.events[:place] + turn.events[place + 1 :], "a call of ours has no result")


@quick
@given(turn=exchanges(), data=st.data())
def test_a_turn_with_a_call_gone_is_refused(turn: Turn, data: st.DataObject) -> None:
    place, _ = turn.answered[data.draw(st.sampled_from(sorted(turn.answered)))]
    turn.refuses(turn.events[:place] + turn.events[place + 1 :], "a result answers no call")


@quick
@given(turn=exchanges(), data=st.data())
def test_a_turn_with_a_result_twice_is_refused(turn: Turn, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(turn.results))
    later = data.draw(st.integers(place + 1, len(turn.events)))
    turn.refuses([*turn.events[:later], turn.events[place], *turn.events[later:]], "a call has two results")


@quick
@given(turn=exchanges(), data=st.data())
def test_a_turn_with_two_results_exchanged_is_refused(turn: Turn, data: st.DataObject) -> None:
    first, second = sorted(data.draw(st.lists(st.sampled_from(turn.results), min_size=2, max_size=2, unique=True)))
    events = list(turn.events)
    events[first], events[second] = events[second], events[first]
    turn.refuses(events, "results are out of order")


@quick
@given(turn=exchanges(), data=st.data())
def test_a_turn_with_a_result_before_its_call_is_refused(turn: Turn, data: st.DataObject) -> None:
    asked, done = turn.answered[data.draw(st.sampled_from(sorted(turn.answered)))]
    place = data.draw(st.integers(0, asked))
    rest = turn.events[:done] + turn.events[done + 1 :]
    turn.refuses([*rest[:place], turn.events[done], *rest[place:]], "a result stands before its call")


@quick
@given(
    turn=exchanges(), data=st.data(), field=st.sampled_from(["call", "result"]), other=st.sampled_from(["", "another"])
)
def test_a_turn_with_a_call_or_a_result_renamed_is_refused(
    turn: Turn, data: st.DataObject, field: str, other: str
) -> None:
    asked, done = turn.answered[data.draw(st.sampled_from(sorted(turn.answered)))]
    place = asked if field == "call" else done
    events = list(turn.events)
    events[place] = replace(events[place], call_id=other or None)
    turn.refuses(events, "a call and its result have different ids")


@quick
@given(turn=exchanges(), data=st.data(), kind=st.sampled_from(["user_message", "system_message"]))
def test_a_turn_with_somebody_speaking_inside_an_exchange_is_refused(
    turn: Turn, data: st.DataObject, kind: str
) -> None:
    asked, done = turn.answered[data.draw(st.sampled_from(sorted(turn.answered)))]
    place = data.draw(st.integers(asked + 1, done))
    turn.refuses([*turn.events[:place], event(kind), *turn.events[place:]], f"a {kind} stands in an exchange")


@quick
@given(turn=exchanges(), data=st.data(), kind=st.sampled_from(["assistant_message", "reasoning", "tool_call"]))
def test_a_turn_in_which_the_model_goes_on_among_the_results_is_refused(
    turn: Turn, data: st.DataObject, kind: str
) -> None:
    """After the first result of a response, and before the last, the model cannot have written anything."""
    pairs = [
        (first, second)
        for first, second in zip(turn.results, turn.results[1:], strict=False)
        if not any(turn.events[n].response or turn.events[n].role for n in range(first, second))
        and not any(one.kind in ("user_message", "tool_call") for one in turn.events[first:second])
    ]
    assume(pairs)
    first, second = data.draw(st.sampled_from(pairs))
    place = data.draw(st.integers(first + 1, second))
    more = event(kind, "one more" if kind == "tool_call" else None, 99)
    answer = [event("tool_result", "one more")] if kind == "tool_call" else []
    turn.refuses([*turn.events[:place], more, *turn.events[place:], *answer], f"a {kind} stands among results")


@quick
@given(turn=exchanges(), data=st.data())
def test_a_turn_with_a_call_twice_in_one_response_is_refused(turn: Turn, data: st.DataObject) -> None:
    places = [n for n, one in enumerate(turn.events) if one.kind == "tool_call"]
    place = data.draw(st.sampled_from(places))
    turn.refuses([*turn.events[: place + 1], *turn.events[place:]], "a call stands twice")


@quick
@given(turn=turns(), data=st.data(), kind=st.sampled_from(BESIDE))
def test_what_has_no_part_in_pairing_may_stand_anywhere(turn: Turn, data: st.DataObject, kind: str) -> None:
    place = data.draw(st.integers(0, len(turn.events)))
    calls = turn.before.after(turn.events[:place])
    assert calls.then(event(kind)) is calls


# Single cases, for the reader.


def test_parallel_calls_are_answered_in_the_order_they_were_made() -> None:
    asked = sealed(says("go"), calls("a", response=1), calls("b", response=1), calls("c", response=1))
    done = sealed(returns("a"), returns("b"), returns("c"), answers("done", response=2))
    assert NO_CALLS.after(asked + done) == NO_CALLS
    with pytest.raises(Unpaired, match="'b' came where that for 'a' was due") as refused:
        NO_CALLS.after(asked + sealed(returns("b")))
    assert refused.value.call_id == "b"


def test_a_response_may_speak_and_think_among_its_calls() -> None:
    written = sealed(
        thinks("hm", response=1), calls("a", response=1), answers("and", response=1), calls("b", response=1)
    )
    assert NO_CALLS.after(written).ours == ("a", "b")


@pytest.mark.parametrize("later", [answers("next", response=2), thinks("next", response=2), calls("b", response=2)])
def test_a_later_response_is_refused_while_a_call_of_an_earlier_one_is_open(later: NewEvent) -> None:
    asked = NO_CALLS.after(sealed(says("go"), calls("a", response=1)))
    try:
        asked.then(seal(later, 1))
    except Unpaired:
        return
    pytest.fail(
        f"response 2 ({seal(later, 1).kind}) was accepted while call 'a' of response 1 has no result: "
        "no provider accepts that history"
    )


def test_a_call_id_may_be_used_again_once_it_was_answered() -> None:
    turn = sealed(calls("a", response=1), returns("a"), calls("a", response=2), returns("a"))
    assert NO_CALLS.after(turn).at_a_commit() == NO_CALLS


def test_a_call_without_an_id_is_refused() -> None:
    with pytest.raises(Unpaired, match="has no id"):
        NO_CALLS.then(event("tool_call"))
    with pytest.raises(Unpaired, match="has no id"):
        NO_CALLS.then(event("tool_call", ""))


def test_a_result_without_a_call_is_refused() -> None:
    with pytest.raises(Unpaired, match="answers no open call"):
        NO_CALLS.then(seal(returns("a"), 1))


def test_our_own_call_cannot_be_open_at_a_commit() -> None:
    with pytest.raises(Unpaired, match="'a' has no result"):
        NO_CALLS.after(sealed(says("go"), calls("a"))).at_a_commit()


def test_a_client_s_call_may_be_open_at_a_commit_and_is_answered_first_in_the_next_turn() -> None:
    head = NO_CALLS.after(sealed(says("go"), calls("x", client=True), calls("y", client=True))).at_a_commit()
    assert head.client == ("x", "y")
    for early in (says("well?"), answers("so"), thinks("hm"), calls("b")):
        with pytest.raises(Unpaired, match="'x' has no result"):
            head.then(seal(early, 1))
    with pytest.raises(Unpaired, match="was due"):
        head.then(seal(returns("y"), 1))
    assert head.after(sealed(returns("x"), returns("y"), says("well?"))) == NO_CALLS


def test_a_client_s_call_may_stay_open_over_a_note() -> None:
    head = NO_CALLS.after(sealed(says("go"), calls("x", client=True))).at_a_commit()
    assert head.after(sealed(remembers("a", "1"))).at_a_commit() == head


def test_of_both_kinds_in_one_response_ours_are_answered_first() -> None:
    asked = NO_CALLS.after(sealed(calls("x", client=True), calls("a"), calls("y", client=True), calls("b")))
    assert asked == OpenCalls(("a", "b"), ("x", "y"))
    with pytest.raises(Unpaired, match="'x' came where that for 'a' was due"):
        asked.then(seal(returns("x"), 1))
    head = asked.after(sealed(returns("a"), returns("b"))).at_a_commit()
    assert head.client == ("x", "y")
    assert head.after(sealed(returns("x"), returns("y"))) == NO_CALLS


def test_the_model_cannot_go_on_while_the_client_has_calls_and_ours_are_done() -> None:
    done = NO_CALLS.after(sealed(calls("a"), calls("x", client=True), returns("a")))
    for more in (answers("so"), thinks("hm"), calls("b"), says("well?")):
        with pytest.raises(Unpaired, match="'x' has no result"):
            done.then(seal(more, 1))


def test_nothing_open_is_false_and_something_open_is_true() -> None:
    assert not NO_CALLS
    assert OpenCalls(("a",))
    assert OpenCalls((), ("a",))


# Cuts.


def naive_cuts(turn: Turn) -> list[int]:
    """Every place where no call is open, and what was said last and what is said next are not of one response."""
    cuts = []
    for place in range(len(turn.events) + 1):
        before, after = turn.events[:place], turn.events[place:]
        asked = len(turn.before.client) + sum(one.kind == "tool_call" for one in before)
        done = sum(one.kind == "tool_result" for one in before)
        said = [one.response for one in before if one.kind not in BESIDE]
        to_say = [one.response for one in after if one.kind not in BESIDE]
        inside = said and to_say and said[-1] is not None and said[-1] == to_say[0]
        if not before or not after or (asked == done and not inside):
            cuts.append(place)
    return cuts


@quick
@given(turn=turns())
def test_a_turn_can_be_cut_exactly_where_no_exchange_and_no_response_is_under_way(turn: Turn) -> None:
    cuts = safe_cuts(turn.events, turn.before)
    assert cuts == naive_cuts(turn)
    assert cuts[0] == 0
    assert cuts[-1] == len(turn.events)


@quick
@given(turn=turns(), data=st.data())
def test_what_stands_before_a_cut_could_have_been_committed(turn: Turn, data: st.DataObject) -> None:
    cut = data.draw(st.sampled_from(safe_cuts(turn.events, turn.before)))
    head = turn.before.after(turn.events[:cut]).at_a_commit()
    assert 0 < cut < len(turn.events) or head in (turn.before, turn.check(turn.events))
    if 0 < cut < len(turn.events):
        assert head == NO_CALLS, "a fork in the middle of a turn starts with nothing open"


@quick
@given(turn=turns(), data=st.data(), kind=st.sampled_from(BESIDE))
def test_an_event_that_no_model_wrote_does_not_make_the_middle_of_a_response_safe(
    turn: Turn, data: st.DataObject, kind: str
) -> None:
    place = data.draw(st.integers(0, len(turn.events)))
    disturbed = Turn(turn.before, [*turn.events[:place], event(kind), *turn.events[place:]])
    inside = [cut for cut in safe_cuts(disturbed.events, turn.before) if cut not in naive_cuts(disturbed)]
    written = [(one.kind, one.response) for one in disturbed.events]
    assert not inside, f"cuts {inside} fall inside one model response of {written}"


def test_no_events_can_be_cut_nowhere_but_at_the_start() -> None:
    assert safe_cuts([]) == [0]


def test_a_plain_exchange_can_be_cut_after_each_message() -> None:
    assert safe_cuts(sealed(*exchange("hi"))) == [0, 1, 2]


def test_reasoning_is_not_cut_from_what_follows_it_in_its_response() -> None:
    turn = sealed(says("hi"), thinks("hm", response=1), answers("ho", response=1), answers("more", response=2))
    assert safe_cuts(turn) == [0, 1, 3, 4]


def test_a_hook_that_ran_while_a_response_came_in_does_not_make_its_middle_safe() -> None:
    turn = [event("reasoning", None, 1), event("hook_run"), event("assistant_message", None, 1)]
    assert safe_cuts(turn) == [0, 3], "a fork there would have reasoning without what followed it in its response"


def test_the_end_of_a_turn_is_safe_even_if_the_client_has_calls_open() -> None:
    turn = sealed(says("hi"), thinks("hm", response=1), calls("x", client=True, response=1))
    assert safe_cuts(turn) == [0, 1, 3]


def test_between_two_answers_of_the_client_is_no_safe_place() -> None:
    before = OpenCalls((), ("x", "y")).at_a_commit()
    assert safe_cuts(sealed(returns("x"), returns("y"), says("so")), before) == [0, 2, 3]


def test_cuts_of_a_turn_that_is_not_paired_are_refused() -> None:
    with pytest.raises(Unpaired):
        safe_cuts(sealed(says("hi"), returns("a")))

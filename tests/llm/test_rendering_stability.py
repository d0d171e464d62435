"""Promise 11: what was rendered once stays as it is, whatever follows, however it is reached, and whoever forks it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.llm.paths import (
    ALL_MODELS,
    CONTEXT,
    MESSAGES,
    MODELS,
    SAID,
    TOOLS,
    Commit,
    commit,
    common,
    elsewhere,
    histories,
    manifest_for,
    mark_in,
    next_turn,
    path_of,
    staged,
    steps_of,
    told,
)
from tests.llm.provider_rules import broken_rules

from forkpoint.events import (
    AssistantMessage,
    Condensation,
    Event,
    Image,
    SkillActivated,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.history.pairing import NO_CALLS
from forkpoint.llm.prompt.blocks import common_prefix
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.rendering import Rendering, render

quick = settings(common, max_examples=25)
few = settings(common, max_examples=15)

wires = pytest.mark.parametrize("wire", list(MODELS))
all_wires = pytest.mark.parametrize("wire", list(ALL_MODELS))
HELLO = UserMessage((Text("hello"),))


def prompt(rendering: Rendering) -> list[tuple[str, str, bytes, bytes]]:
    """What a provider's cache sees of a rendering."""
    return [(block.place, block.role, block.text, block.digest) for block in rendering.blocks]


def everything(wire: str, rendering: Rendering, base: int | None = None) -> dict[str, Any]:
    """All that a rendering is, but for how its blocks lie in chunks."""
    context = CallContext(own_identity("c-1"), fork_base=base)
    return {
        "blocks": list(rendering.blocks),
        "digest": rendering.prefix,
        "lost": rendering.lost,
        "open": rendering.open,
        "held": rendering.held,
        "asked": rendering.asked,
        "events": rendering.events,
        "head": rendering.head,
        "body": rendering.body(ALL_MODELS[wire], context, key="key"),
    }


def same(wire: str, one: Rendering, other: Rendering, why: str, path: Sequence[Event] = ()) -> None:
    left, right = everything(wire, one), everything(wire, other)
    differ = [name for name in left if left[name] != right[name]]
    assert not differ, f"{why}: {differ} differ, first {left[differ[0]]!r} and then {right[differ[0]]!r}\n{told(path)}"


# Growing.


@all_wires
@quick
@given(commits=histories(condensations=False))
def test_blocks_of_a_longer_path_start_with_those_of_the_shorter(wire: str, commits: list[Commit]) -> None:
    manifest = manifest_for(wire)
    whole = prompt(render(manifest, path_of(commits)))
    for end in range(len(commits)):
        shorter = prompt(render(manifest, path_of(commits[:end])))
        assert whole[: len(shorter)] == shorter, (
            f"{wire}: commit {end + 1} changed what stood before it:\n{told(path_of(commits[: end + 1]))}"
        )


@wires
@quick
@given(commits=histories(), data=st.data())
def test_rendering_commit_by_commit_is_rendering_at_once(wire: str, commits: list[Commit], data: st.DataObject) -> None:
    manifest = manifest_for(wire)
    grown = render(manifest)
    for end, events in enumerate(commits, start=1):
        grown = grown.then(events)
        path = path_of(commits[:end])
        same(wire, grown, render(manifest, path), f"{wire}: growing by commit {end} is not rendering at once", path)
    base = data.draw(st.integers(1, len(path_of(commits))))
    once = render(manifest, path_of(commits))
    assert everything(wire, grown, base) == everything(wire, once, base), f"{wire}: with a fork at {base} they differ"


@wires
@quick
@given(commits=histories(), data=st.data())
def test_a_running_turn_rendered_step_by_step_is_what_it_is_once_committed(
    wire: str, commits: list[Commit], data: st.DataObject
) -> None:
    """So that what a committed turn is shown as next time is what its own requests had written to the cache."""
    manifest = manifest_for(wire)
    number = data.draw(st.integers(0, len(commits) - 1))
    running = before = render(manifest, path_of(commits[:number]))
    for step in steps_of(commits[number]):
        running = running.then(staged(step))
    same(wire, running, before.then(commits[number]), f"{wire}: commit {number + 1} looked otherwise while it ran")
    later = path_of(commits[number + 1 :])
    same(wire, running.then(later), render(manifest, path_of(commits)), f"{wire}: and whatever follows it")


@wires
@quick
@given(commits=histories(condensations=False))
def test_each_request_of_a_running_turn_starts_with_the_one_before(wire: str, commits: list[Commit]) -> None:
    rendering = render(manifest_for(wire))
    for events in commits:
        for step in steps_of(events):
            longer = rendering.then(staged(step))
            assert common_prefix(rendering.blocks, longer.blocks) == len(rendering.blocks), (
                f"{wire}: a step took back what the request before had:\n{told(step)}"
            )
            rendering = longer


@wires
def test_the_empty_path_renders_to_the_head_alone(wire: str) -> None:
    rendering = render(manifest_for(wire))
    assert len(rendering.blocks) == rendering.head == len(TOOLS) + 1
    assert rendering.then([]) == rendering


# Forking.


@wires
@few
@given(commits=histories(), data=st.data())
def test_two_branches_that_grow_from_one_rendering_do_not_disturb_each_other(
    wire: str, commits: list[Commit], data: st.DataObject
) -> None:
    manifest = manifest_for(wire)
    place = data.draw(st.integers(0, len(commits)))
    path = path_of(commits[:place])
    shared = render(manifest, path)
    before = everything(wire, shared)
    rest = path_of(commits[place:])
    turns = [rest, next_turn(path, "one way"), next_turn(path, "another way")]
    branches = [shared.then(turn) for turn in turns]
    for turn, branch in zip(turns, branches, strict=True):
        same(wire, branch, render(manifest, path + turn), f"{wire}: a branch is not what it would be alone")
    assert everything(wire, shared) == before, f"{wire}: branches changed the rendering that they grew from"


@wires
def test_branches_that_grow_at_once_in_many_threads_are_what_they_are_alone(wire: str) -> None:
    manifest = manifest_for(wire)
    path = path_of(commit(f"t{n}", HELLO, AssistantMessage((Text(f"{n}"),)), after=2 * n) for n in range(50))
    shared = render(manifest, path)
    before = everything(wire, shared)

    def grow(branch: int) -> list[tuple[str, str, bytes, bytes]]:
        rendering, events = shared, list(path)
        for turn in range(20):
            more = next_turn(events, f"branch {branch} turn {turn}", turn=f"{branch}-{turn}")
            rendering, events = rendering.then(more), events + more
        return prompt(rendering)

    with ThreadPoolExecutor(8) as threads:
        grown = list(threads.map(grow, range(16)))
    assert grown == [grow(branch) for branch in range(16)]
    assert everything(wire, shared) == before


# Nothing volatile.


@wires
@few
@given(commits=histories())
def test_the_same_path_elsewhere_and_at_another_time_is_the_same_prompt(wire: str, commits: list[Commit]) -> None:
    path = path_of(commits)
    here, there = render(manifest_for(wire), path), render(manifest_for(wire), elsewhere(path))
    same(wire, here, there, f"{wire}: something of ids, times or segments is in the prompt")
    context = CallContext(own_identity("c-2"), tenant="another")
    assert here.body(MODELS[wire], CONTEXT) == here.body(MODELS[wire], context), "the conversation's id is in the body"


@wires
@few
@given(order=st.permutations(TOOLS))
def test_tools_in_any_order_give_the_same_bytes(wire: str, order: list[Any]) -> None:
    one, other = manifest_for(wire), manifest_for(wire, tools=order)
    assert one.hash == other.hash
    assert render(one, commit("t", HELLO)).body(MODELS[wire], CONTEXT) == render(other, commit("t", HELLO)).body(
        MODELS[wire], CONTEXT
    )


# Condensing.


def safe_starts(path: Sequence[Event]) -> list[int]:
    """The ordinals at which a prompt may start: no call is open there, and no response has begun."""
    starts, calls = [], NO_CALLS
    before: Event | None = None
    for event in path:
        kind = event.kind
        inside = before is not None and kind in SAID and before.kind in SAID
        if not calls and not (
            inside
            and before is not None
            and (before.turn, before.envelope.response) == (event.turn, event.envelope.response)
        ):
            starts.append(event.id.ordinal)
        calls = calls.then(event.envelope)
        if event.turn and kind in MESSAGES:
            before = event
    return starts if calls else [*starts, len(path) + 1]


def words_in(event: Event) -> list[str]:
    """Marks of what an event says in words, on every wire."""
    match event.body:
        case UserMessage(parts=parts) | AssistantMessage(parts=parts) | SystemMessage(parts=parts):
            return [mark_in(part.text) for part in parts if isinstance(part, Text)]
        case ToolResult(parts=parts):
            return [mark_in(part.text) for part in parts if isinstance(part, Text)]
        case SkillActivated(content=content):
            return [mark_in(content)]
        case _:
            return []


@wires
@quick
@given(commits=histories(condensations=False, damage=False), data=st.data())
def test_a_condensation_keeps_what_it_says_whole_and_drops_the_rest(
    wire: str, commits: list[Commit], data: st.DataObject
) -> None:
    end = data.draw(st.integers(1, len(commits)))
    path = path_of(commits[:end])
    kept_from = data.draw(st.integers(1, len(path) + 2))
    note = commit("note", Condensation("in short ~summary~", kept_from), after=len(path))
    rendering = render(manifest_for(wire), path + note)
    text = b"\n".join(block.text for block in rendering.blocks).decode()
    start = max((one for one in safe_starts(path) if one <= kept_from), default=1)
    assert text.count("~summary~") == 1, "the summary is not there once"
    for event in path:
        for mark in words_in(event):
            if event.kind == "system_message":
                assert mark in text, f"{wire}: system message {event.id.ordinal} is gone\n{told(path + note)}"
            elif event.id.ordinal >= kept_from:
                held = rendering.open and event.kind == "skill_activated"
                assert mark in text or held, f"{wire}: {event.id.ordinal} was to be kept\n{told(path + note)}"
            elif event.id.ordinal < start:
                assert mark not in text, f"{wire}: {event.id.ordinal} is still there\n{told(path + note)}"
    after = path + note + next_turn(path + note, "and now?")
    wrong = broken_rules(wire, render(manifest_for(wire), after).body(MODELS[wire], CONTEXT))
    assert not wrong, f"{wire}: kept from {kept_from}: {wrong}\n{told(after)}"


EXCHANGE = commit(
    "t",
    HELLO,
    ToolCall("call_1", "look", "{}"),
    ToolCall("call_2", "look", "{}"),
    SkillActivated("swim", "stroke"),
    ToolResult("call_1", "look", (Text("one"), Image("image/png", data="aGk="))),
    ToolResult("call_2", "look", (Text("two"),)),
    AssistantMessage((Text("done"),)),
    SystemMessage((Text("be kind"),)),
    UserMessage((Text("and?"),)),
    AssistantMessage((Text("so"),)),
)


@wires
def test_calls_stay_paired_wherever_a_condensation_cuts(wire: str) -> None:
    for kept_from in range(1, len(EXCHANGE) + 3):
        path = EXCHANGE + commit("note", Condensation("in short", kept_from), after=len(EXCHANGE))
        body = render(manifest_for(wire), path).body(MODELS[wire], CONTEXT)
        assert not broken_rules(wire, body), f"{wire} would refuse what is kept from {kept_from}: {body.decode()}"
        kept = [word in body for word in (b"stroke", b"call_1", b"call_2")]
        assert kept == [kept_from <= 6] * 3, f"{wire}: of the exchange {kept} is kept from {kept_from}"


@wires
@pytest.mark.parametrize("kept_from", [1, 2, 3, 4, 5, 9])
def test_a_condensation_with_the_client_s_calls_open_keeps_their_exchange(wire: str, kept_from: int) -> None:
    asked = commit("t", HELLO, AssistantMessage((Text("hi"),)), HELLO, ToolCall("call_1", "client_tool", "{}", True))
    note = commit("note", Condensation("in short", kept_from), after=4)
    answer = commit("u", ToolResult("call_1", "client_tool", (Text("here"),)), HELLO, after=5)
    rendering = render(manifest_for(wire), asked + note)
    assert rendering.open == ("call_1",)
    assert not broken_rules(wire, rendering.then(answer).body(MODELS[wire], CONTEXT))


@wires
@pytest.mark.parametrize("kept_from", [1, 2, 3, 4])
def test_leading_system_messages_stand_where_they_stood_after_a_condensation(wire: str, kept_from: int) -> None:
    path = commit("t", SystemMessage((Text("rule one"),)), SystemMessage((Text("rule two"),)), HELLO)
    before = render(manifest_for(wire), path[:2])
    after = render(manifest_for(wire), path + commit("note", Condensation("in short", kept_from), after=3))
    body = after.body(MODELS[wire], CONTEXT)
    assert not broken_rules(wire, body), f"{wire} would refuse this: {body.decode()}"
    rules = [block.text for block in after.blocks if b"rule" in block.text]
    assert len(rules) == 2, f"{wire}: not each rule is there once: {rules}"
    if kept_from > 2:
        shared = common_prefix(before.blocks, after.blocks)
        assert shared == len(before.blocks), f"{wire}: of what stays only {shared} blocks stay cached"


@wires
def test_a_system_message_in_the_middle_outlives_a_condensation(wire: str) -> None:
    path = commit("t", HELLO, AssistantMessage((Text("hi"),)), SystemMessage((Text("be kind"),)), HELLO)
    note = commit("note", Condensation("in short", 5), after=4)
    text = b"".join(block.text for block in render(manifest_for(wire), path + note).blocks)
    assert b"be kind" in text, f"on {wire} a rule that the developer gave is forgotten with the small talk around it"


@wires
def test_a_second_condensation_that_reaches_less_far_forgets_nothing_that_was_not_in_its_summary(wire: str) -> None:
    talk = [UserMessage((Text(f"talk {n}"),)) for n in range(1, 7)]
    path = commit("t", *talk)
    first = commit("n1", Condensation("one to four", 5), after=6)
    second = commit("n2", Condensation("one and two", 3), after=7)
    text = b"".join(block.text for block in render(manifest_for(wire), path + first + second).blocks)
    told_of = b"one to four" in text or (b"talk 3" in text and b"talk 4" in text)
    assert told_of, "talk 3 and 4 are in neither summary that is shown, and they are not shown themselves"


@wires
def test_a_second_condensation_takes_the_place_of_the_first(wire: str) -> None:
    path = commit("t", *(UserMessage((Text(f"talk {n}"),)) for n in range(1, 7)))
    first = commit("n1", Condensation("in short", 3), after=6)
    second = commit("n2", Condensation("even shorter", 6), after=7)
    text = b"".join(block.text for block in render(manifest_for(wire), path + first + second).blocks)
    assert b"in short" not in text
    assert b"even shorter" in text
    assert b"talk 6" in text
    assert b"talk 5" not in text

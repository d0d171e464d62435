"""Condensing: when it is due, where it cuts, what it asks, and what prompts show afterwards."""

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from tests.llm.paths import CONTEXT, MODELS, commit, common, histories, manifest_for, mark_in, next_turn, path_of, told
from tests.llm.provider_rules import broken_rules

from forkpoint.agent.agent import Agent
from forkpoint.agent.condense.condenser import INSTRUCTIONS, TOKENS, Condenser, Condenses, Window
from forkpoint.agent.condense.cut import Cut, tokens_counted, tokens_of
from forkpoint.agent.transcript import shortened, tokens_in, transcript
from forkpoint.errors import BadAgent, BadModel
from forkpoint.events import (
    AnyBody,
    AssistantMessage,
    Condensation,
    Event,
    File,
    Image,
    ModelCalled,
    NewEvent,
    Reasoning,
    SkillActivated,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from forkpoint.history.state import fold
from forkpoint.history.wholeness import check_whole
from forkpoint.ids import new_id
from forkpoint.llm import LLM, manifest_of, render
from forkpoint.llm.prompt.blocks import common_prefix
from forkpoint.store import open_store
from forkpoint.store.values import NewConversation, NewFork, OpenTurn

anyio = pytest.mark.anyio
wires = pytest.mark.parametrize("wire", list(MODELS))

WORD = "four" * 25  # 25 tokens, as they are estimated


def says(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def answers(text: str) -> AssistantMessage:
    return AssistantMessage((Text(text),))


def called(input: int, output: int = 0, **more: object) -> ModelCalled:
    return ModelCalled("m", "p", Usage(calls=1, input=input, output=output), **more)  # type: ignore[arg-type]


class Talk:
    """A path that grows by turns, and by what a condenser makes of it; as the conversation's layer will do it."""

    def __init__(self, overhead: int = 0) -> None:
        self.events: list[Event] = []
        self.overhead = overhead
        self.condensed = 0

    def commit(self, *bodies: AnyBody | NewEvent) -> None:
        turn = f"turn-{len(self.events)}"
        self.events += commit(turn, *bodies, after=len(self.events))

    def turn(self, *bodies: AnyBody | NewEvent) -> None:
        """A turn whose prompt a provider has counted."""
        question, *rest = bodies or (says(WORD), answers(WORD))
        state = fold(event.body for event in self.events)
        shown = [event.body for event in self.events if event.id.ordinal >= state.kept_from]
        size = sum(map(tokens_in, [*shown, *(one for one in bodies if not isinstance(one, NewEvent))]))
        self.commit(question, called(size + tokens_in(state.summary or "") + self.overhead), *rest)

    def condense(self, condenser: Condenses, answer: str = "in short") -> Cut | None:
        if (cut := condenser.due(self.events)) is None:
            return None
        bodies = condenser.condensed(cut, answer)
        for body in bodies:
            check_whole(NewEvent(body))
        self.commit(*bodies)
        self.condensed += 1
        return cut

    @property
    def kept_from(self) -> int:
        return fold(event.body for event in self.events).kept_from


def prompt(events: Sequence[Event], wire: str = "chat") -> str:
    rendering = render(manifest_for(wire), events)
    body = rendering.body(MODELS[wire], CONTEXT)
    assert not broken_rules(wire, body), told(events)
    return body.decode()


# When.


def test_nothing_is_due_before_the_limit_and_something_is_at_it() -> None:
    talk = Talk()
    while tokens_of(talk.events) < 1000:
        assert Condenser(tokens=1000).due(talk.events) is None
        talk.turn()
    cut = Condenser(tokens=1000).due(talk.events)
    assert cut is not None
    assert Window(tokens=1000).due(talk.events) == cut
    assert Condenser(events=len(talk.events) + 1).due(talk.events) is None
    assert Condenser(events=len(talk.events)).due(talk.events) is not None
    assert Condenser(tokens=10_000, events=len(talk.events)).due(talk.events) is not None, "one limit is enough"


def test_the_provider_s_count_is_used_and_only_what_came_since_is_estimated() -> None:
    talk = Talk()
    talk.commit(says("x"), called(5000, 20), answers("y" * 400))
    assert tokens_of(talk.events) == 5020, "the answer was counted by the provider"
    talk.commit(SkillActivated("s", "z" * 400))
    assert tokens_of(talk.events) == 5020 + 104
    talk.commit(says("x"), called(0), answers("y" * 400))
    assert tokens_of(talk.events) == 5020 + 104 + 4 + 104, "a server that counts nothing is not believed"
    assert tokens_counted(talk.events[-3:]) is None
    assert tokens_counted(talk.events[:4]) == 5020 + 104, "the end of a path is enough to know"
    talk.commit(says("x"), NewEvent(called(9000, 1)))
    assert tokens_of(talk.events) < 6000, "a call that brought no answer to this path says nothing of it"


def test_attempts_that_failed_do_not_make_a_prompt_longer() -> None:
    twice = ModelCalled("m", "p", Usage(calls=2, input=10_000, output=20), attempts=2)
    assert tokens_of(commit("t", says("x"), twice, answers("y"))) == 5010


def test_what_results_and_pictures_may_have_is_estimated() -> None:
    call = ToolCall("call_1", "look", "{}")
    seen = ToolResult("call_1", "look", (Text("x" * 4000), Image("image/png", data="A" * 1_000_000)))
    path = commit("t", says("x"), called(100), call, seen)
    assert 2000 < tokens_of(path) < 3000
    assert tokens_in(UserMessage((File("a.pdf", "application/pdf", data="A" * 1_000_000),))) < 10_000


def test_the_limit_follows_from_the_model_if_none_is_given() -> None:
    assert not Condenser().reached(10_000, TOKENS - 1)
    assert Condenser().reached(0, TOKENS)
    assert Condenser().reached(0, 6000, context=8000)
    assert not Condenser().reached(0, 5999, context=8000)
    assert not Condenser().reached(0, TOKENS - 1, context=1_000_000)
    assert not Condenser(events=10).reached(9, 1_000_000, context=8000)


def test_of_a_new_or_empty_path_nothing_is_forgotten() -> None:
    window = Window(events=1)
    assert window.due([]) is None
    assert window.due(commit("t", says("x"), answers("y"))) is None
    assert window.due(commit("t", says("x"), answers("y")), force=True) is None


def test_force_condenses_below_the_limit_and_again_until_only_the_newest_turn_is_left() -> None:
    talk = Talk()
    for _ in range(10):
        talk.turn()
    window = Window(tokens=1_000_000)
    assert window.due(talk.events) is None
    kept = []
    while (cut := window.due(talk.events, force=True)) is not None:
        talk.commit(*window.condensed(cut))
        kept.append(cut.kept_from)
        assert len(kept) < 10
    assert kept == sorted(set(kept))
    assert kept[-1] == 28, "the newest turn is the last three events of thirty"


# Hysteresis.


@pytest.mark.parametrize(
    "condenser",
    [Window(tokens=2000), Window(events=60), Condenser(tokens=2000)],
    ids=["window of tokens", "window of events", "condenser"],
)
def test_the_kept_part_slides_seldom_and_prompts_share_their_beginning_in_between(condenser: Condenses) -> None:
    talk = Talk()
    manifest = manifest_for("chat")
    anew, before = 0, render(manifest)
    for _ in range(150):
        talk.turn()
        talk.condense(condenser)
        after = render(manifest, talk.events)
        anew += common_prefix(before.blocks, after.blocks) < len(before.blocks)
        before = after
        assert tokens_of(talk.events) < 2500
    assert anew == talk.condensed
    assert 3 < talk.condensed < 15, "about 9,000 tokens, of which 1,400 are forgotten each time"


def test_after_a_condensation_nothing_is_due_until_a_model_has_answered_again() -> None:
    talk = Talk()
    for _ in range(20):
        talk.turn()
    window = Window(events=10, keep=0.8)
    assert talk.condense(window) is not None
    assert window.due(talk.events) is None
    assert window.due(talk.events, tokens=10**9) is None
    talk.commit(*[SystemMessage((Text("note"),))] * 30)
    assert window.due(talk.events) is None


@pytest.mark.parametrize("overhead", [900, 5000])
def test_instructions_that_fill_the_limit_do_not_condense_every_turn(overhead: int) -> None:
    talk = Talk(overhead)
    for _ in range(100):
        talk.turn()
        talk.condense(Window(tokens=1000))
    assert 1 < talk.condensed <= 60, "each gives up the cache, so it must gain a tenth of the limit at least"


def test_a_path_that_grew_long_before_it_had_a_condenser_comes_down_at_once() -> None:
    talk = Talk()
    for _ in range(250):
        talk.turn()
    assert tokens_of(talk.events) > 10_000
    talk.condense(Window(tokens=2000))
    assert tokens_of(talk.events) < 700
    talk = Talk()
    for _ in range(250):
        talk.turn()
    talk.condense(Window(events=100))
    assert len(talk.events) - talk.kept_from < 40


# Where.


EXCHANGE: list[AnyBody] = [
    says("look"),
    called(10),
    Reasoning("hm"),
    ToolCall("call_1", "look", "{}"),
    ToolCall("call_2", "look", "{}"),
    ToolResult("call_1", "look", (Text(WORD),)),
    ToolResult("call_2", "look", (Text(WORD),)),
    called(10),
    answers("done"),
]


@pytest.mark.parametrize("keep", [0.05, 0.2, 0.4, 0.6, 0.8])
@wires
def test_no_exchange_and_no_response_is_cut_and_the_newest_turn_is_kept(keep: float, wire: str) -> None:
    talk = Talk()
    for n in range(4):
        talk.commit(
            *(msgspec.structs.replace(b, call_id=f"{b.call_id}{n}") if hasattr(b, "call_id") else b for b in EXCHANGE)
        )
    cut = talk.condense(Window(events=1, keep=keep))
    assert cut is not None
    assert cut.kept_from <= 28
    first = next(event for event in talk.events if event.id.ordinal == cut.kept_from)
    assert first.kind in {"user_message", "model_called"}
    assert "call_13" in prompt(talk.events, wire)
    shown = {event.envelope.call_id for event in talk.events if event.id.ordinal >= cut.kept_from} - {None}
    assert all(f'"{id}"' in prompt(talk.events, wire) or f'"{id}_' in prompt(talk.events, wire) for id in shown)


def test_a_long_turn_of_the_past_is_cut_between_its_steps() -> None:
    talk = Talk()
    steps: list[AnyBody] = []
    for n in range(50):
        steps += [called(10), ToolCall(f"call_{n}", "look", "{}"), ToolResult(f"call_{n}", "look", (Text(WORD),))]
    talk.commit(says("work"), *steps, called(10), answers("done"))
    talk.turn(says("thanks"), answers("welcome"))
    cut = talk.condense(Window(tokens=1000))
    assert cut is not None
    assert 1 < cut.kept_from < 150
    assert talk.events[cut.kept_from - 2].kind == "tool_result"
    assert broken_rules("chat", render(manifest_for("chat"), talk.events).body(MODELS["chat"], CONTEXT)) == []


def test_what_is_kept_begins_with_a_turn_if_one_begins_nearby() -> None:
    talk = Talk()
    for n in range(6):
        result = ToolResult(f"c{n}", "look", (Text(WORD),))
        talk.commit(says(WORD), called(10), ToolCall(f"c{n}", "look", "{}"), result, called(10), answers(WORD))
    kinds = {
        talk.events[cut.kept_from - 1].kind
        for keep in range(10, 80)
        if (cut := Window(tokens=500, keep=keep / 100).due(talk.events, force=True)) is not None
    }
    assert kinds == {"user_message"}


def test_an_exchange_with_the_client_s_tools_is_kept_over_the_turns_that_it_takes() -> None:
    talk = Talk()
    for _ in range(5):
        talk.turn()
    talk.commit(says("ask"), called(10), ToolCall("c1", "client_tool", "{}", client=True))
    talk.commit(ToolResult("c1", "client_tool", (Text("x"),)), called(10), answers("y"))
    cut = talk.condense(Window(events=5, keep=0.01))
    assert cut is not None
    assert cut.kept_from == 16, "the newest turn answers a call of the one before, so both are kept"


def test_with_calls_of_the_client_open_at_the_head_their_exchange_is_kept() -> None:
    talk = Talk()
    for _ in range(5):
        talk.turn()
    talk.commit(says("ask"), called(10), ToolCall("c1", "client_tool", "{}", client=True))
    talk.condense(Window(events=5, keep=0.01))
    assert "c1" in prompt([*talk.events, *next_turn(talk.events, "go on")])


def test_a_turn_that_is_larger_than_all_that_may_be_kept_is_kept_alone() -> None:
    talk = Talk()
    talk.turn()
    talk.turn(says("x" * 40_000), answers("y"))
    cut = talk.condense(Window(tokens=1000))
    assert cut is None, "fifty tokens are not worth a new prompt"
    talk.turn(says("x" * 40_000), answers("y"))
    cut = talk.condense(Window(tokens=1000))
    assert cut is not None
    assert cut.kept_from == 7


@settings(common, max_examples=25)
@given(commits=histories(damage=True, min_turns=2, max_turns=5))
def test_whatever_a_path_has_its_prompt_stays_one_that_providers_take(commits: list[list[Event]]) -> None:
    path = path_of(commits)
    for condenser in (Window(events=1, keep=0.4), Condenser(tokens=1, keep=0.1)):
        cut = condenser.due(path, force=True)
        if cut is None:
            continue
        assert any(event.id.ordinal == cut.kept_from for event in path)
        note = commit("note", *condenser.condensed(cut, "in short ~sum~"), after=len(path))
        for wire in MODELS:
            prompt([*path, *note, *next_turn([*path, *note], "go on")], wire)


@settings(common, max_examples=25)
@given(commits=histories(condensations=False, damage=False, min_turns=2, max_turns=5))
def test_prompts_show_exactly_what_the_cut_says(commits: list[list[Event]]) -> None:
    path = path_of(commits)
    cut = Window(events=1, keep=0.3).due(path, force=True)
    if cut is None:
        return
    note = commit("note", *Window().condensed(cut), after=len(path))
    shown = prompt([*path, *note, *next_turn([*path, *note], "go on")])
    for event in path:
        if not isinstance(event.body, UserMessage | AssistantMessage) or not isinstance(event.body.parts[0], Text):
            continue
        assert (mark_in(event.body.parts[0].text) in shown) == (event.id.ordinal >= cut.kept_from), told(path)
    assert not any(isinstance(event.body, SystemMessage | Condensation) for event in cut.forgotten)


# What is said instead.


def test_the_question_has_what_was_said_and_done_and_what_earlier_notes_said() -> None:
    talk = Talk()
    talk.commit(SystemMessage((Text("stays"),)))
    talk.commit(says("Why did 1234 fail?"), called(1), Reasoning("secret thought"), ToolCall("c", "log", '{"n": 1234}'))
    talk.events += commit(
        talk.events[-1].turn,
        ToolResult("c", "log", (Text("disk full"), Image("image/png", data="AAAA")), "failed"),
        NewEvent(answers("The disk is full."), response=2),
        after=len(talk.events),
    )
    talk.turn()
    condenser = Condenser(events=1, keep=0.3)
    cut = condenser.due(talk.events)
    assert cut is not None
    assert condenser.question(cut) == (
        "<conversation>\n[user]\nWhy did 1234 fail?\n\n[assistant calls log]\n"
        '{"n": 1234}\n\n[log: failed]\ndisk full\n[a picture]\n\n[assistant]\nThe disk is full.\n</conversation>\n\n'
        "Write the notes now."
    )
    talk.commit(*condenser.condensed(cut, " the first notes \n"))
    talk.turn()
    talk.turn()
    cut = condenser.due(talk.events)
    assert cut is not None
    assert cut.earlier == "the first notes"
    question = condenser.question(cut) or ""
    assert question.startswith("<earlier_notes>\nthe first notes\n</earlier_notes>\n\n<conversation>\n[user]\n")
    assert "1234" not in question, "what was forgotten before is in the notes alone"


def test_the_question_is_no_longer_than_the_limit_however_much_is_forgotten() -> None:
    talk = Talk()
    for n in range(60):
        result = ToolResult(f"c{n}", "log", (Text("x" * 100_000),))
        talk.commit(says(f"question {n} {'y' * 5000}"), called(10**6), ToolCall(f"c{n}", "log", "{}"), result)
        talk.turn()
    cut = Condenser(tokens=10_000).due(talk.events)
    assert cut is not None
    question = Condenser(tokens=10_000).question(cut) or ""
    assert len(question) < 41_000
    assert all(f"question {n} " in question for n in range(10)), "long parts lose their middle first"
    assert len(shortened("x" * 1000, 100)) < 150
    assert transcript([], 10) == ""


def test_a_summary_takes_the_place_of_the_one_before_it() -> None:
    talk = Talk()
    condenser = Condenser(tokens=1000)
    for _ in range(100):
        talk.turn()
        talk.condense(condenser, f"notes number {talk.condensed}.")
    assert talk.condensed > 2
    shown = prompt(talk.events)
    assert [n for n in range(talk.condensed) if f"notes number {n}." in shown] == [talk.condensed - 1]


@pytest.mark.parametrize("answer", [None, "", " \n", "x" * 1_000_000])
def test_an_answer_of_no_use_condenses_nothing(answer: str | None) -> None:
    cut = Cut(5, tuple(commit("t", says("x"), answers("y"))), tokens=5000)
    assert Condenser().condensed(cut, answer) == ()
    assert Condenser().condensed(cut, "fine") == (Condensation("fine", 5),)


def test_a_window_says_that_something_is_missing_and_keeps_what_a_model_has_said_of_it() -> None:
    cut = Cut(11, ())
    (first,) = Window().condensed(cut)
    assert first == Condensation("What was said before this is no longer shown (10 events).", 11)
    assert isinstance(first, Condensation)
    (second,) = Window().condensed(Cut(1001, (), earlier=first.summary))
    assert second == Condensation("What was said before this is no longer shown (1,000 events).", 1001)
    (third,) = Window().condensed(Cut(21, (), earlier="Ann wants it blue."))
    assert isinstance(third, Condensation)
    (fourth,) = Window().condensed(Cut(31, (), earlier=third.summary))
    assert isinstance(fourth, Condensation)
    assert fourth.summary == "Ann wants it blue.\n\nWhat was said before this is no longer shown (30 events)."


def test_skills_that_were_forgotten_are_said_again_but_not_those_that_are_still_shown() -> None:
    talk = Talk()
    talk.commit(SkillActivated("old", "Do it."), SkillActivated("both", "Do it."), says("x"), called(1), answers("y"))
    talk.commit(SkillActivated("huge", "x" * 100_000), says("x"), called(1), answers("y"))
    for _ in range(50):
        talk.turn()
    talk.turn(SkillActivated("both", "Do it."), says("x"), answers("y"))
    talk.commit(says("x"), called(30_000), answers("y"))
    cut = talk.condense(Window(tokens=30_000, keep=0.01))
    assert cut is not None
    assert cut.skills == (SkillActivated("old", "Do it."),), "there is no room for the huge one"
    assert 'skill name=\\"old\\"' in prompt(talk.events)
    assert prompt(talk.events).count("skill name=") == 2
    for _ in range(10):
        talk.turn()
    assert talk.condense(Window(events=10, keep=0.2)) is not None
    assert prompt(talk.events).count("skill name=") == 2


# Settings.


@pytest.mark.parametrize(
    "given",
    [
        {"tokens": 0},
        {"tokens": 1.5},
        {"events": -1},
        {"events": True},
        {"keep": 0},
        {"keep": 0.9},
        {"keep": math.nan},
        {"keep": "0.3"},
        {"instructions": " "},
        {"instructions": "\udc80"},
    ],
)
def test_settings_that_cannot_be_are_refused_when_they_are_made(given: dict[str, object]) -> None:
    with pytest.raises(BadAgent, match="its condenser"):
        Condenser(**given)  # type: ignore[arg-type]
    with pytest.raises(BadModel):
        Condenser(llm="nothing/x")
    with pytest.raises(BadModel, match="no settings name it"):
        Agent("scripted/echo", condenser=Condenser(llm="nothing"))


def test_both_are_data_that_comes_back_from_json_as_it_was() -> None:
    for condenser in (Condenser(tokens=5, llm="scripted/x"), Condenser(llm=LLM("scripted/x")), Window(events=5)):
        text = msgspec.json.encode(condenser)
        assert msgspec.json.decode(text, type=Condenser | Window) == condenser
    assert Condenser(llm="scripted/x").model(LLM("scripted/y")) == LLM("scripted/x")
    assert Condenser().model(LLM("scripted/y")) == LLM("scripted/y")
    assert Condenser().instructions == INSTRUCTIONS


# With a store.


@anyio
async def test_what_was_forgotten_is_there_in_a_fork_made_before_and_not_in_one_made_after() -> None:
    manifest = manifest_of(LLM("scripted/x"))
    async with await open_store("memory:") as store:
        made = await store.create(NewConversation(id=new_id()))
        last = ""
        for n in range(8):
            last = new_id()
            turn = await store.begin(made.id, last)
            assert isinstance(turn, OpenTurn)
            said = [NewEvent(says(f"question {n}")), NewEvent(answers(f"answer {n}"), response=1)]
            await store.commit(turn, said)
        before = await store.fork(made.id, NewFork(id=new_id(), cache="{}"))
        path = await store.events(made.id)
        cut = Window(events=10, keep=0.4).due(path)
        assert cut is not None
        revision = (await store.read(made.id)).revision
        await store.note(made.id, new_id(), list(map(NewEvent, Window().condensed(cut))), if_revision=revision)
        after = await store.fork(made.id, NewFork(id=new_id(), cache="{}"))
        at_the_turn = await store.fork(made.id, NewFork(id=new_id(), cache="{}"), at=last)
        prompts = {}
        for one in (made, before, after, at_the_turn):
            events = await store.events(one.id)
            assert [event.id for event in events[:16]] == [event.id for event in path], "ids never change"
            prompts[one.id] = b"".join(block.text for block in render(manifest, events).blocks).decode()
        state = await store.state(after.id)
    assert "question 0" in prompts[before.id]
    assert prompts[before.id] == prompts[at_the_turn.id]
    assert prompts[made.id] == prompts[after.id]
    assert "question 0" not in prompts[after.id]
    assert "question 7" in prompts[after.id]
    assert (state.kept_from, cut.kept_from) == (13, 13)
    kept = Window(events=10, keep=0.4)
    assert kept.due(path[cut.kept_from - 1 :]) is None, "what is left is below the limit"

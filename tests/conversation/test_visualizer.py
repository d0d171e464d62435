"""`TerminalVisualizer`: what people see of a turn, and what never reaches their terminal."""

import io
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from forkpoint import LLM, Agent, Conversation, TerminalVisualizer, ToolContext, TurnFailed, tool
from forkpoint.conversation import Turn, TurnStarted, Update
from forkpoint.conversation.visualizer import LONGEST_INPUT, figures
from forkpoint.events import (
    ApprovalAsked,
    AssistantMessage,
    ModelCalled,
    NewEvent,
    StagedEvent,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    seal,
)
from forkpoint.history.steers import Steer
from forkpoint.llm import Retries
from forkpoint.store.values import TurnError
from forkpoint.testing import Fault, Reply, Script, ScriptedCall
from forkpoint.updates import (
    Answered,
    CallEnded,
    CallPiece,
    CallProgress,
    CallStarted,
    CallWaits,
    ReasoningPiece,
    Restarted,
    Steered,
    TextPiece,
)

EVIL = "[bold red]x[/] \x1b[31mred\x1b]0;title\x07 \x9b2J \x08\x7f \u202egnp.exe\u2066 \ud800 [link=http://x]y[/link]"
STYLES = re.compile(r"\x1b\[[0-9;]*m")


@tool
def read_log(ctx: ToolContext, build: int, lines: int = 100) -> str:
    """Reads a log."""
    ctx.progress(f"{lines // 2} of {lines} lines")
    return "the disk is full\n" * 100


@tool
def breaks(path: str) -> str:
    """Breaks."""
    raise ValueError("no such thing")


@tool(risky=True)
def remove(path: str) -> str:
    """Removes."""
    return "gone"


class Screen:
    """A console whose output a test can read."""

    def __init__(self, *, terminal: bool = False, width: int = 80, encoding: str = "utf-8") -> None:
        self._bytes = io.BytesIO()
        self._encoding = encoding
        file = io.TextIOWrapper(self._bytes, encoding=encoding, write_through=True, newline="")
        self.console = Console(
            file=file, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None
        )

    @property
    def raw(self) -> str:
        return self._bytes.getvalue().decode(self._encoding)

    @property
    def text(self) -> str:
        """Without colours, and with times that are always the same."""
        return re.sub(r"\d+(\.\d+)? m?s\b", "0 s", STYLES.sub("", self.raw))

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def turn(**fields: object) -> Turn:
    made: dict[str, object] = {"id": "t1", "conversation": "c1", "outcome": "committed", "given": (), "events": ()}
    return Turn(**(made | {"usage": Usage()} | fields))  # type: ignore[arg-type]


def said(text: str) -> tuple[UserMessage, ...]:
    return (UserMessage((Text(text),)),)


def agent(name: str, *replies: Reply) -> Agent:
    model = LLM(Script(replies).register(name), retries=Retries(attempts=2, wait=0.001))
    return Agent(model, tools=[read_log, breaks, remove], approval="risky")


# What is shown.


def test_a_whole_turn_is_shown_line_by_line_where_there_is_no_terminal() -> None:
    calls = (ScriptedCall("read_log", '{"build": 1234}'),)
    usage = Usage(calls=1, input=1000, cached=960, output=20)
    who = agent(
        "visualizer-whole",
        Reply("Let me look.", reasoning="The log first.", calls=calls, usage=usage),
        Reply("The disk\nis full.\n\n", usage=usage),
    )
    screen = Screen()
    with Conversation(who, store="memory:", visualizer=TerminalVisualizer(screen.console)) as conversation:
        conversation.run("Why did build 1234 fail?")
    shown = screen.lines
    command = shown.pop(-3)
    assert re.fullmatch(r"  · what is left out above is shown by: forkpoint show [0-9a-f-]+ --turn [0-9a-f-]+", command)
    assert shown == [
        "❯ Why did build 1234 fail?",
        "The log first.",
        "Let me look.",
        "  → read_log(build=1234)",
        "  · read_log: 50 of 100 lines",
        "  ← read_log (0 s): 100 lines",
        *["    the disk is full"] * 6,
        "    … 94 more lines",
        "The disk",
        "is full.",
        "✓ committed · 2,000 tokens in, 96 % cached · 40 out · $0 · 0 s",
        "",
    ]
    assert "\x1b" not in screen.raw


def test_a_tool_that_failed_is_marked_with_its_reason() -> None:
    who = agent("visualizer-broken", Reply(calls=(ScriptedCall("breaks", '{"path": "/x"}'),)), Reply("I see."))
    screen = Screen()
    with Conversation(who, store="memory:", visualizer=TerminalVisualizer(screen.console)) as conversation:
        conversation.run("Break it.")
    assert '  → breaks(path="/x")' in screen.lines
    assert "  ✗ breaks failed (0 s): ValueError: no such thing" in screen.lines


def test_calls_that_wait_are_shown_with_the_reason_and_their_id_and_the_turn_goes_on_when_approved() -> None:
    waits = (ScriptedCall("remove", '{"path": "/x"}', call_id="call_7"),)
    who = agent("visualizer-waits", Reply(calls=waits), Reply("Done."))
    screen = Screen()
    with Conversation(who, store="memory:", visualizer=TerminalVisualizer(screen.console)) as conversation:
        conversation.run("Remove it.")
        waiting = len(screen.lines)
        conversation.approve()
    assert screen.lines[1] == '  ? remove(path="/x") waits for an approval (the tool is risky), as call_7'
    assert screen.lines[2].startswith("? awaiting approval · 1 call waits · ")
    assert screen.lines[waiting:][:4] == [
        "  · the turn goes on",
        '  → remove(path="/x")',
        "  ← remove (0 s): gone",
        "Done.",
    ]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("live", [True, False])
def test_a_command_that_waits_is_shown_whole_however_long_it_is(terminal: bool, live: bool) -> None:
    command = "echo " + "a " * 12_000 + " \t; rm -rf ~/everything ;  " + "b " * 12_000
    call = ToolCall("call_7", "shell", json.dumps({"command": command, "timeout": 9}))
    said = AssistantMessage((Text("I tidy up."),))
    events = [NewEvent(said, 1), NewEvent(call, 1), NewEvent(ApprovalAsked("call_7", "shell", "it is risky"))]
    waits = turn(outcome="awaiting_approval", events=tuple(StagedEvent(seal(e, 0), e.body) for e in events))
    screen = Screen(terminal=terminal)
    show = TerminalVisualizer(screen.console)
    if live:
        show(TurnStarted("t1", "c1", ()))
        show(TextPiece("I tidy up."))
        show(Answered(ModelCalled("m", "p", Usage())))
        show(CallWaits(call, "it is risky"))
    show(waits)
    assert f"      $ {command}\n" in screen.text
    assert "      timeout=9\n" in screen.text
    assert "as call_7" in screen.text
    assert "I tidy up." in screen.text
    assert "…" not in screen.text


def test_where_answers_are_shown_when_committed_the_reason_of_a_waiting_call_is_shown_with_it() -> None:
    screen, answers = Screen(), Screen()
    show = TerminalVisualizer(screen.console, answers=answers.console, stream=False)
    called = Answered(ModelCalled("m", "p", Usage()))
    call = ToolCall("c", "restart", '{"build": 7}')
    for update in (
        TurnStarted("t1", "c1", ()),
        TextPiece("Let me look."),
        called,
        CallStarted(call),
        TextPiece("Build 7"),
        Restarted("model_timeout"),
        TextPiece("Build 7 "),
        TextPiece("hangs."),
        called,
        CallStarted(call),
        CallWaits(call, "it is risky"),
        CallWaits(call, "it is risky"),
    ):
        show(update)
    assert screen.text.count("the model says:") == 1
    assert "  · the model says:\n      | Build 7 hangs.\n  ? restart(build=7) waits" in screen.text
    assert answers.text == ""


def test_a_failed_turn_is_shown_with_its_reason_and_what_its_tools_did() -> None:
    who = agent(
        "visualizer-fails",
        Reply(calls=(ScriptedCall("read_log", '{"build": 1}'),)),
        Reply("half", fault=Fault("context_too_long", after=1, message="it is 9,000 tokens")),
    )
    screen = Screen()
    show = TerminalVisualizer(screen.console)
    with Conversation(who, store="memory:", visualizer=show) as conversation, pytest.raises(TurnFailed):
        conversation.run("Why?")
    end = screen.lines[screen.lines.index("half") + 1 :]
    assert "forkpoint show" in end.pop(0)
    assert end[0].startswith("✗ failed: The prompt is too long for scripted/visualizer-fails: it is 9,000 tokens.")
    assert end[1] == "  What its tools did stays done (done: read_log)."
    assert end[2].startswith("  the conversation is as it was · ")


def test_a_message_is_shown_when_it_is_delivered_and_at_the_end_if_it_was_not() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console)
    show(TurnStarted("t1", "c1", said("hello")))
    show(TextPiece("Fine."))
    show(Steered("s1", said("Be brief.")[0]))
    late = Steer("s2", 0, said("In English.")[0])
    show(turn(steered=(Steer("s1", 0, said("Be brief.")[0], delivered=True), late)))
    assert screen.lines[:4] == ["❯ hello", "Fine.", "❯ Be brief.", "? not delivered: In English."]
    show(turn(id="t2", outcome="failed", steered=(late,)))
    assert any("What was steered to it is no part of a retry" in line for line in screen.lines)


def test_a_cancelled_turn_is_shown_as_such() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console)
    show(TurnStarted("t1", "c1", said("hello")))
    show(TextPiece("half an ans"))
    show(turn(outcome="cancelled"))
    end = ["✗ cancelled", "  the conversation is as it was · no tokens reported · 0 s", ""]
    assert screen.lines == ["❯ hello", "half an ans", *end]


def test_a_call_that_is_tried_again_says_that_what_was_heard_is_void() -> None:
    who = agent("visualizer-again", Reply("half an", fault=Fault("overloaded", after=1)), Reply("whole"))
    screen = Screen()
    with Conversation(who, store="memory:", visualizer=TerminalVisualizer(screen.console)) as conversation:
        conversation.run("Say it.")
    void = "  ↻ the model is asked again (model_overloaded): what was heard of this answer is void"
    assert screen.lines[1:4] == ["half an", void, "whole"]


def test_a_call_that_is_tried_again_before_anything_was_heard_voids_nothing() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console)
    show(TurnStarted("t1", "c1", said("hello")))
    show(Restarted("model_timeout"))
    assert screen.lines[-1] == "  ↻ the model is asked again (model_timeout)"


def test_an_answer_that_stops_at_its_limit_says_so() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console)
    show(TextPiece("and so"))
    show(Answered(ModelCalled("m", "p", Usage(output=256), finish="length")))
    assert screen.lines == ["and so", "  · the answer was cut at the limit of 256 tokens"]


def test_a_turn_that_was_not_told_while_it_ran_is_shown_whole() -> None:
    with Conversation(agent("visualizer-late", Reply("Paris.")), store="memory:") as conversation:
        done = conversation.run("The capital of France?")
    screen = Screen()
    TerminalVisualizer(screen.console)(done)
    assert screen.lines[:2] == ["❯ The capital of France?", "Paris."]
    assert screen.lines[2].startswith("✓ committed · ")


@pytest.mark.parametrize(
    ("usage", "shown"),
    [
        (Usage(calls=1, input=1000, cached=999, output=5), "1,000 tokens in, 99 % cached · 5 out · $0"),
        (Usage(calls=1, input=1000, cached=1, output=5), "1,000 tokens in, 1 % cached · 5 out · $0"),
        (Usage(calls=1, input=10, cached=10, output=5), "10 tokens in, 100 % cached · 5 out · $0"),
        (Usage(calls=1, input=10, output=5, unpriced=1), "10 tokens in, 0 % cached · 5 out · price unknown"),
        (Usage(calls=1, input=10, output=5, nanodollars=1_234_567), "10 tokens in, 0 % cached · 5 out · $0.0012"),
        (Usage(calls=1, input=10, output=5, nanodollars=999), "10 tokens in, 0 % cached · 5 out · under $0.0001"),
        (Usage(calls=1, input=10, output=5, nanodollars=1_200_000_000), "10 tokens in, 0 % cached · 5 out · $1.20"),
        (Usage(), "no tokens reported"),
    ],
)
def test_figures_are_honest(usage: Usage, shown: str) -> None:
    assert figures(turn(usage=usage)) == shown


def test_figures_stay_together_on_a_narrow_screen_and_messages_are_left_as_they_are() -> None:
    screen = Screen(terminal=True, width=40)
    show = TerminalVisualizer(screen.console)
    show(
        turn(given=said("Nine words · with · dots between them · and more"), usage=Usage(calls=1, input=1234, output=5))
    )
    assert screen.lines == [
        "❯ Nine words · with · dots between them",
        "  · and more",
        "✓ committed",
        "  1,234 tokens in, 0 % cached · 5 out",
        "  $0",
        "",
    ]


def test_a_very_narrow_screen_shows_how_a_turn_ended() -> None:
    screen = Screen(terminal=True, width=20)
    TerminalVisualizer(screen.console)(turn(outcome="cancelled"))
    assert screen.lines == ["✗ cancelled", "  the conversation", "  is as it was", "  no tokens reported", ""]


def test_what_is_not_wanted_is_not_shown() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console, show_input=False, show_reasoning=False, show_end=False)
    for update in (TurnStarted("t1", "c1", said("hello")), ReasoningPiece("hm"), TextPiece("yes"), turn()):
        show(update)
    assert screen.lines == ["yes"]


def test_a_thought_without_a_word_leaves_no_line() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console, show_input=False, show_end=False)
    for update in (TurnStarted("t1", "c1", said("hello")), ReasoningPiece(""), TextPiece("yes"), turn()):
        show(update)
    assert screen.lines == ["yes"]


def test_long_messages_arguments_and_results_are_shortened() -> None:
    screen = Screen(terminal=True, width=50)
    show = TerminalVisualizer(screen.console, markdown=False)
    show(TurnStarted("t1", "c1", said("long " * 10_000)))
    before = len(screen.lines)
    show(CallStarted(ToolCall("c", "search", '{"words": "' + "w " * 10_000 + '"}')))
    show(CallProgress("c", "search", "p " * 10_000))
    show(CallEnded(ToolResult("c", "search", (Text("r\n" * 10_000),))))
    assert len(" ".join(screen.lines[:before])) < LONGEST_INPUT + 100
    assert "(50,000 characters)" in " ".join(" ".join(screen.lines[:before]).split())
    cut = screen.lines[before : before + 2]
    assert all(re.search(r"… \[[0-9,]+ more characters\]$", line) for line in cut)
    assert all(cell_len(line) <= 50 for line in screen.lines[before:])
    result = ["  ← search: 10,000 lines", *["    r"] * 6, "    … 9,994 more lines"]
    assert screen.lines[before + 2 :] == result
    show(turn(conversation="c 1"))
    after = " ".join(" ".join(screen.lines[before + 2 + len(result) :]).split())
    assert "what is left out above is shown by: forkpoint show 'c 1' --turn t1" in after


def test_how_a_turn_ended_is_shown_once_whoever_shows_it_again() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console)
    show(TurnStarted("t1", "c1", said("hello")))
    for _ in range(2):
        show(turn(outcome="cancelled"))
    assert screen.lines.count("✗ cancelled") == 1
    show(TurnStarted("t1", "c1", (), resumed=True))
    for _ in range(2):
        show(turn(outcome="cancelled"))
    assert screen.lines.count("✗ cancelled") == 2


@pytest.mark.parametrize("arguments", ["", "{", "[1, 2]", '"text"', '{"a": {"b": [1, null]}}', "[" * 10_000])
def test_any_arguments_can_be_shown(arguments: str) -> None:
    screen = Screen()
    TerminalVisualizer(screen.console)(CallStarted(ToolCall("c", "search", arguments)))
    assert screen.lines[0].startswith("  → search(")


# What never reaches a terminal.


def updates_with(text: str) -> list[Update]:
    """Every update that has somebody's text in it, with this text in all those places."""
    call = ToolCall(text, text, '{"path": "' + text + '"}')
    failed = turn(outcome="failed", error=TurnError("code", text))
    return [
        TurnStarted("t1", "c1", said(text)),
        TextPiece(text),
        ReasoningPiece(text),
        CallPiece(0, text, text, text),
        Restarted(text),
        CallStarted(call),
        CallStarted(ToolCall("c", "tool", text)),
        CallProgress(text, text, text),
        CallEnded(ToolResult(text, text, (Text(text),), "failed")),
        CallEnded(ToolResult(text, text, (Text(text),))),
        CallWaits(call, text),
        Steered("s1", said(text)[0], text),
        turn(steered=(Steer("s1", 0, said(text)[0]),)),
        failed,
        turn(id="other", outcome="failed", given=said(text), error=TurnError("code", text)),
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_models_and_tools_say_is_neither_markup_nor_a_command_to_the_terminal(terminal: bool) -> None:
    screen = Screen(terminal=terminal, width=300)
    show = TerminalVisualizer(screen.console, markdown=False)
    for update in updates_with(EVIL):
        show(update)
    shown = STYLES.sub("", screen.raw) if terminal else screen.raw
    assert [c for c in shown if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c in "\u202e\u2066"] == []
    assert shown.count("[bold red]x[/]") >= len(updates_with(EVIL))
    assert "\x1b[31m" not in screen.raw.replace("\x1b[31m✗", "")  # its colour is only ever ours


@pytest.mark.parametrize("terminal", [True, False])
def test_a_command_to_the_terminal_that_comes_in_two_pieces_is_not_one(terminal: bool) -> None:
    screen = Screen(terminal=terminal)
    show = TerminalVisualizer(screen.console, markdown=False)
    for piece in ("a\x1b", "[2J", "b"):
        show(TextPiece(piece))
    show.end_line()
    assert screen.raw == "a␛[2Jb\n"


def test_ends_of_lines_of_other_systems_are_ends_of_lines_wherever_they_are_cut() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console)
    for piece in ("a\r\nb\r", "\nc"):
        show(TextPiece(piece))
    show.end_line()
    assert screen.lines == ["a", "b", "c"]


def test_a_terminal_that_knows_ascii_only_is_shown_everything_in_ascii() -> None:
    screen = Screen(encoding="ascii", terminal=True)
    show = TerminalVisualizer(screen.console)
    for update in (*updates_with("日本 …"), turn()):
        show(update)
    assert "> \\u65e5\\u672c ..." in screen.text


def test_colours_are_left_out_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(terminal=True)
    show = TerminalVisualizer(screen.console)
    for update in (*updates_with("text"), turn()):
        show(update)
    assert set(re.findall(r"\x1b\[([0-9;]*)m", screen.raw)) <= {"0", "1", "2", "2;3"}  # bold, dim and italic


# How a text that comes in pieces is broken into lines.

WORDS = st.text(st.sampled_from("abc.`-"), min_size=1, max_size=20)
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from([" ", "  ", "\n", "\n\n", " \n"])), max_size=30).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
)


def streamed(pieces: Sequence[str], *, width: int | None) -> str:
    screen = Screen(terminal=width is not None, width=width or 80)
    show = TerminalVisualizer(screen.console, markdown=False)
    for piece in pieces:
        show(TextPiece(piece))
    show.end_line()
    return screen.raw


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200)), width=st.sampled_from([None, 20, 33]))
def test_however_an_answer_is_cut_into_pieces_it_looks_the_same(text: str, cuts: list[int], width: int | None) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    assert streamed(pieces, width=width) == streamed([text], width=width)


@given(text=TEXTS.filter(lambda text: "```" not in text))
def test_no_line_is_longer_than_the_screen_and_no_word_is_lost_or_broken(text: str) -> None:
    shown = streamed([text], width=20)
    assert shown.split() == text.split()
    assert all(len(line) <= 20 for line in shown.splitlines())


def test_where_there_is_no_terminal_the_answer_is_left_as_it_is() -> None:
    text = "A line that is much longer than eighty characters: " + "word " * 20 + "\n\n\tcode\n  end"
    assert streamed([f"\n\n{text}\n\n\n"], width=None) == f"{text}\n"


def test_code_is_not_broken_and_text_after_it_is() -> None:
    code = "```python\nprint('a line of code that is longer than the screen')\n```"
    shown = streamed([f"Look at this example:\n{code}\nand then it goes on here"], width=20).splitlines()
    assert shown[:2] == ["Look at this", "example:"]
    assert "\n".join(shown[2:5]) == code
    assert shown[5:] == ["and then it goes on", "here"]


def test_a_script_without_blanks_is_broken_anywhere_and_shown_at_once() -> None:
    screen = Screen(terminal=True, width=20)
    TerminalVisualizer(screen.console, markdown=False)(TextPiece("日本語の文には空白がありません"))
    assert screen.raw == "日本語の文には空白が\nありません"


def test_a_long_word_is_not_waited_for() -> None:
    screen = Screen(terminal=True)
    TerminalVisualizer(screen.console)(TextPiece("https://example.com/some/where"))
    assert screen.raw == "https://example.com/some/where"


def test_a_word_that_is_longer_than_the_screen_is_left_to_the_terminal() -> None:
    link = "https://example.com/" + "a" * 40
    assert streamed([f"See {link[:30]}", f"{link[30:]} now"], width=20).split() == ["See", link, "now"]


# Several consoles, several conversations.


def test_answers_can_be_kept_apart_from_all_the_rest() -> None:
    who = agent("visualizer-apart", Reply("Hm. ", calls=(ScriptedCall("read_log", '{"build": 1}'),)), Reply("Full."))
    aside, answers = Screen(), Screen()
    show = TerminalVisualizer(aside.console, answers=answers.console)
    with Conversation(who, store="memory:", visualizer=show) as conversation:
        conversation.run("Why?")
    assert answers.lines == ["Hm.", "Full."]
    assert aside.lines[0] == "❯ Why?"
    assert "Full." not in aside.text


def test_an_answer_that_is_not_streamed_comes_once_it_is_committed_and_never_a_void_one() -> None:
    who = agent("visualizer-held", Reply("half an", fault=Fault("overloaded", after=1)), Reply("whole"))
    screen = Screen()
    seen: list[str] = []
    show = TerminalVisualizer(screen.console, stream=False)
    with Conversation(who, store="memory:", callbacks=[lambda _: seen.append(screen.text)], visualizer=show) as one:
        one.run("Say it.")
    assert not any("whole" in text or "half" in text for text in seen)  # the turn itself was told last
    assert screen.lines[1:3] == ["  ↻ the model is asked again (model_overloaded)", "whole"]


def test_an_answer_that_is_not_streamed_and_fails_is_not_shown() -> None:
    screen = Screen()
    show = TerminalVisualizer(screen.console, stream=False)
    answer = AssistantMessage((Text("half an answer"),))
    failed = turn(outcome="failed", events=(StagedEvent(seal(NewEvent(answer), 0), answer),))
    assert failed.text == "half an answer"
    for update in (TurnStarted("t1", "c1", said("hello")), TextPiece("half an answer"), failed):
        show(update)
    assert "half an answer" not in screen.text


def test_a_fork_is_shown_on_the_same_console() -> None:
    who = agent("visualizer-fork", Reply("one"), Reply("two"))
    screen = Screen()
    with Conversation(who, store="memory:", visualizer=TerminalVisualizer(screen.console)) as conversation:
        conversation.run("first")
        with conversation.fork() as fork:
            fork.run("second")
    assert [line for line in screen.lines if line and not line.startswith("✓")] == ["❯ first", "one", "❯ second", "two"]


def test_two_conversations_that_speak_at_once_do_not_share_a_line() -> None:
    screen = Screen()
    first = TerminalVisualizer(screen.console)
    second = first.for_fork()

    def speak(show: Callable[[Update], None], word: str) -> None:
        for _ in range(200):
            show(TextPiece(f"{word} "))

    threads = [threading.Thread(target=speak, args=args) for args in ((first, "one"), (second, "two"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first.end_line()
    assert sorted(screen.text.split()) == ["one"] * 200 + ["two"] * 200
    assert all(len(set(line.split())) == 1 for line in screen.lines)


class Gone(io.TextIOBase):
    """A file whose reader has left."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_turn_is_not_lost_when_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.dup2", lambda *_: 0)  # rich would put an end to this process's stdout
    console = Console(file=Gone())  # type: ignore[arg-type]
    who = agent("visualizer-gone", Reply("Paris."))
    with Conversation(who, store="memory:", visualizer=TerminalVisualizer(console)) as conversation:
        assert conversation.run("The capital of France?").outcome == "committed"


def test_importing_it_loads_no_rich() -> None:
    script = "import sys, forkpoint.conversation.visualizer, forkpoint.cli; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

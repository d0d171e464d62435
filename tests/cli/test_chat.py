"""``forkpoint chat``, as a program: on a pipe, and on a terminal with somebody at its keys."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Program, one_line
from tests.cli.terminal import CTRL_C, CTRL_D, UP, Terminal

from forkpoint import Conversation, Turn
from forkpoint.testing import Fault, Reply, ScriptedCall

READ = ScriptedCall("read_log", '{"build": 1234}')
RESTART = ScriptedCall("restart", '{"build": 1234}', call_id="call_7")
HANGS = Reply("Let me think about that for a while", fault=Fault("hang", after=2))
FAILS = Reply("half", fault=Fault("refused", after=1, message="as scripted"))
ECHO = ("--model", "scripted/echo")
AGENT = ("--agent", "builds:agent")
PROMPT = "❯ "


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def chat(program: Program, *lines: str, options: tuple[str, ...] = ECHO) -> list[str]:
    """What a chat prints that is told these lines, without blank lines and without what turns took."""
    done = program.run("chat", *options, stdin="".join(f"{line}\n" for line in lines))
    assert (done.returncode, done.stderr) == (0, "")
    shown = [re.sub(r" · \d.*", "", line) for line in done.stdout.splitlines()]
    return [line for line in shown if line]


def documents(program: Program, *lines: str, options: tuple[str, ...] = ECHO) -> list[Any]:
    done = program.run("chat", "--json", *options, stdin="".join(f"{line}\n" for line in lines))
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def turns(program: Program, name: str) -> tuple[Turn, ...]:
    with Conversation.open(name, bind=False, store=program.store) as conversation:
        return conversation.turns().items


def found(pattern: str, lines: list[str]) -> str:
    """What a pattern finds in exactly one of the lines."""
    matches = [match for line in lines if (match := re.search(pattern, line))]
    assert len(matches) == 1, lines
    return matches[0][1]


# On a pipe.


def test_a_chat_on_a_pipe_is_a_transcript_that_ends_with_how_to_go_on(forkpoint: Program) -> None:
    shown = chat(forkpoint, "hello", "", "  and again  ", options=("talk", *ECHO))
    assert shown == [
        "new conversation talk · scripted/echo · /help shows what you can do",
        "❯ hello",
        "You said: hello",
        "✓ committed",
        "❯ and again",
        "You said: and again",
        "✓ committed",
        "Go on with: forkpoint chat talk",
    ]


def test_a_chat_goes_on_where_the_last_one_ended(forkpoint: Program) -> None:
    chat(forkpoint, "one", options=("talk", *ECHO))
    shown = chat(forkpoint, "two", options=("talk",))
    assert shown[0] == "conversation talk · scripted/echo · 1 turn · /help shows what you can do".partition(" · 1")[0]
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: one", "You said: two"]


def test_a_chat_in_which_nothing_is_said_leaves_nothing(forkpoint: Program) -> None:
    shown = chat(forkpoint, "/tree", "/turns", "/help", options=("talk", *ECHO))
    assert {"There are no turns yet.", "Nothing was said yet."} <= set(shown)
    assert not any("Go on with" in line or "error" in line for line in shown)
    assert forkpoint.json("list")["items"] == []


def test_a_fork_is_gone_on_in_and_its_source_stays_as_it_was(forkpoint: Program) -> None:
    shown = chat(forkpoint, "one", "/fork Another way", "two", "/switch talk", "three", options=("talk", *ECHO))
    fork = found(r"This is the fork (\S+) now\. Back: /switch talk", shown)
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: one", "You said: three"]
    assert [turn.text for turn in turns(forkpoint, fork)] == ["You said: one", "You said: two"]
    assert f"Back: /switch {fork}" in shown
    assert shown[-1] == "Go on with: forkpoint chat talk"
    with Conversation.open(fork, bind=False, store=forkpoint.store) as conversation:
        assert conversation.title() == "Another way"


def test_a_rewind_goes_back_and_keeps_what_stood_there(forkpoint: Program) -> None:
    shown = chat(forkpoint, "one", "two", "three", "/rewind 2", "four", options=("talk", *ECHO))
    aside = found(r"Back by 2 turns\. What stood there is kept: /switch (\S+)", shown)
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: one", "You said: four"]
    assert [turn.text for turn in turns(forkpoint, aside)] == ["You said: one", "You said: two", "You said: three"]


def test_a_rewind_goes_back_one_turn_and_into_what_a_fork_has_from_its_source(forkpoint: Program) -> None:
    shown = chat(forkpoint, "one", "two", "/fork", "three", "/rewind", "/rewind", "four", options=("talk", *ECHO))
    fork = found(r"This is the fork (\S+) now", shown)
    assert [turn.text for turn in turns(forkpoint, fork)] == ["You said: one", "You said: four"]
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: one", "You said: two"]


@pytest.mark.parametrize("given", ["0", "-1", "x", "1.5", "²"])
def test_a_rewind_by_something_else_than_a_number_is_refused(forkpoint: Program, given: str) -> None:
    shown = chat(forkpoint, "one", f"/rewind {given}", options=("talk", *ECHO))
    assert "error: Use it like this: /rewind [N]" in shown
    assert len(turns(forkpoint, "talk")) == 1


def test_a_rewind_beyond_the_start_is_refused(forkpoint: Program) -> None:
    assert "it has 1 committed turn." in found("^(error: .*)", chat(forkpoint, "one", "/rewind 2"))


def test_commands_that_do_not_exist_are_never_sent(forkpoint: Program) -> None:
    shown = chat(forkpoint, "/nonsense at all", "//nonsense at all", "/", options=("talk", *ECHO))
    assert shown[2].startswith("error: There is no command /nonsense.")
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: /nonsense at all"]


def test_a_failed_turn_is_shown_and_can_be_run_again(forkpoint: Program) -> None:
    forkpoint.script(Reply("one"), FAILS, Reply("whole"))
    shown = chat(forkpoint, "first", "second", "/retry", options=("talk", *AGENT))
    failed = next(number for number, line in enumerate(shown) if line.startswith("✗ failed: "))
    assert "as scripted" in shown[failed]
    assert shown[failed + 1] == "  the conversation is as it was"
    assert shown[failed + 2].startswith("/retry runs it again from the last good state, /resume goes on")
    assert shown[failed + 3 : failed + 6] == ["❯ /retry", "❯ second", "whole"]
    assert [turn.outcome for turn in turns(forkpoint, "talk")] == ["committed", "failed", "committed"]


def test_a_failed_turn_can_be_gone_on_with(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(READ,)), FAILS, Reply("It is full."))
    shown = chat(forkpoint, "Why?", "/resume", options=("talk", *AGENT))
    assert shown.count("  → read_log(build=1234)") == 1
    assert shown[-4:-1] == ["  · the turn goes on", "It is full.", "✓ committed"]
    assert len(turns(forkpoint, "talk")) == 1


def test_what_goes_wrong_is_said_and_the_chat_goes_on(forkpoint: Program) -> None:
    lines = ["/retry", "/resume", "/approve", "/deny", "/discard", "/switch", "/switch nowhere", "/ask", "one"]
    shown = chat(forkpoint, *lines, options=("talk", *ECHO))
    assert len([line for line in shown if line.startswith("error: ")]) == len(lines) - 1
    assert "You said: one" in shown


def test_a_side_question_leaves_nothing_but_its_cost(forkpoint: Program) -> None:
    shown = chat(forkpoint, "one", "/ask and aside?", options=("talk", *ECHO))
    assert shown[-4:-1] == ["❯ /ask and aside?", "You said: and aside?", "asked aside, not kept"]
    with Conversation.open("talk", bind=False, store=forkpoint.store) as conversation:
        assert len(conversation.turns().items) == 1
        assert conversation.stats().spent.calls == 2


def test_calls_can_be_approved(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(RESTART,)), Reply("Restarted."))
    shown = chat(forkpoint, "Do it.", "Now?", "/approve call_7", options=("talk", *AGENT))
    assert "  ? restart(build=1234) waits for an approval (the tool is risky), as call_7" in shown
    assert shown.count("/approve lets it run, /deny refuses it, /discard ends the turn.") == 2
    assert "is open (awaiting_approval)" in found("^(error: .*)", shown)
    assert shown[-3:-1] == ["Restarted.", "✓ committed"]
    assert (forkpoint.folder / "restarted").exists()


def test_calls_can_be_denied_with_a_reason_that_the_model_is_told(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(RESTART,)), Reply("I see."))
    chat(forkpoint, "Do it.", "/deny not on a Friday", options=("talk", *AGENT))
    (turn,) = turns(forkpoint, "talk")
    assert [(call.status, call.reason) for call in turn.calls] == [("denied", "not on a Friday")]
    assert turn.text == "I see."
    assert not (forkpoint.folder / "restarted").exists()


def test_what_waits_is_announced_when_somebody_comes_back(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(RESTART,)))
    chat(forkpoint, "Do it.", options=("talk", *AGENT))
    shown = chat(forkpoint, "/discard", options=("talk",))
    assert shown[1] == "  restart(build=1234) waits for an approval (the tool is risky), as call_7"
    assert shown[2] == "/approve lets it run, /deny refuses it, /discard ends the turn."
    assert [turn.outcome for turn in turns(forkpoint, "talk")] == ["cancelled"]


def test_an_interrupted_turn_is_announced_and_can_be_gone_on_with(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(READ,)), HANGS)
    with forkpoint.start("run", "Why?", "-c", "talk", *AGENT) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        process.stdin.close()
        while "← read_log" not in process.stderr.readline():
            pass
        process.kill()
    forkpoint.script(Reply("It is full."))
    shown = chat(forkpoint, "Hello?", "/resume", options=("talk",))
    (turn,) = turns(forkpoint, "talk")
    assert shown[1] == f"Turn {turn.id} was interrupted: its process ended."
    assert shown[2].startswith("/resume goes on after its last finished step")
    assert "is open (interrupted)" in found("^(error: .*)", shown)
    assert shown[-3:-1] == ["It is full.", "✓ committed"]
    assert turn.outcome == "committed"


def test_turns_and_tree_show_where_one_is(forkpoint: Program) -> None:
    shown = chat(forkpoint, "one", "/fork Another way", "two", "/turns", "/tree", options=("talk", *ECHO))
    table = shown[shown.index("❯ /turns") + 1 : shown.index("❯ /tree")]
    assert [line.split(maxsplit=2)[:2] for line in table] == [["1", "committed"], ["2", "committed"]]
    assert "You said: two" in table[1]
    tree = shown[shown.index("❯ /tree") + 1 :]
    assert tree[0].startswith("○ talk")
    assert re.match(r"└── ● \S+  Another way", tree[2])


def test_every_line_gets_one_document_with_json(forkpoint: Program) -> None:
    lines = [
        "one",
        "",
        "/nonsense",
        "/retry",
        "/fork",
        "two",
        "/rewind",
        "/ask what?",
        "/turns",
        "/tree",
        "/help",
        "/quit",
    ]
    got = documents(forkpoint, *lines, options=("talk", *ECHO))
    assert len(got) == len(lines) - 1
    one, nonsense, retry, fork, two, rewind, ask, listed, tree, commands, ended = got
    assert (one["outcome"], one["text"], one["name"]) == ("committed", "You said: one", "talk")
    assert nonsense["error"]["message"].startswith("There is no command /nonsense")
    assert retry["error"]["code"] == "no_such_turn"
    assert fork["source"] == one["conversation"]
    assert two["conversation"] == fork["conversation"] == ended["conversation"]
    assert ask["text"] == "You said: what?"
    assert [turn["text"] for turn in listed["turns"]] == ["You said: one"]
    assert {branch["id"] for branch in tree["branches"]} == {one["conversation"], fork["conversation"], rewind["aside"]}
    assert "fork" in commands["commands"]


def test_a_failed_turn_is_a_document_too(forkpoint: Program) -> None:
    forkpoint.script(FAILS)
    (failed,) = documents(forkpoint, "one", options=AGENT)
    assert (failed["outcome"], failed["error"]["code"]) == ("failed", "model_refused")


def test_quit_ends_it_whatever_follows(forkpoint: Program) -> None:
    assert chat(forkpoint, "/quit", "one")[1:] == ["❯ /quit"]


def test_ctrl_c_on_a_pipe_cancels_the_turn_and_ends_the_program(forkpoint: Program) -> None:
    forkpoint.script(HANGS)
    with forkpoint.start("chat", "talk", *AGENT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("Why?\nAnd?\n")
        process.stdin.flush()
        heard = ""
        while "Let me think" not in heard:
            heard += (more := process.stdout.read(1))
            assert more, heard
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, err) == (130, "")
    assert "✗ cancelled" in out
    assert [turn.outcome for turn in turns(forkpoint, "talk")] == ["cancelled"]


# On a terminal.


def test_ctrl_c_stops_an_answer_and_ctrl_d_ends_the_program(forkpoint: Program) -> None:
    forkpoint.script(HANGS, Reply("All of it."))
    with Terminal(forkpoint, "chat", "talk", *AGENT) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Why?\n")
        terminal.wait_for("Let me think about that for")
        terminal.type(CTRL_C)
        terminal.wait_for("✗ cancelled")
        terminal.wait_for("/retry runs it again")
        terminal.wait_for(PROMPT)
        terminal.type("/retry\n")
        terminal.wait_for("❯ Why?\nAll of it.\n✓ committed")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert terminal.text.endswith("Go on with: forkpoint chat talk\n")
    assert [turn.outcome for turn in turns(forkpoint, "talk")] == ["cancelled", "committed"]


def test_a_second_ctrl_c_at_the_prompt_ends_the_program_with_how_to_go_on(forkpoint: Program) -> None:
    store = f"sqlite:///{forkpoint.folder / 'other.db'}"
    with Terminal(forkpoint, "chat", "talk", *ECHO, "--store", store, width=400) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("hello\n")
        terminal.wait_for("✓ committed")
        terminal.wait_for(PROMPT)
        terminal.press(CTRL_C, "Ctrl-C again leaves; so does Ctrl-D.")
        terminal.wait_for(PROMPT)
        assert terminal.end_with(CTRL_C) == 0
    assert terminal.text.endswith(f"Go on with: forkpoint chat talk --store {store}\n")


def test_what_was_said_before_is_at_hand(forkpoint: Program) -> None:
    chat(forkpoint, "hello again", options=("talk", *ECHO))
    with Terminal(forkpoint, "chat", "talk") as terminal:
        terminal.wait_for("conversation talk")
        terminal.wait_for("❯ hello again\nYou said: hello again\n")  # the last exchange, to remember where one was
        terminal.wait_for(PROMPT)
        terminal.type(f"{UP}\n")
        terminal.wait_for("You said: hello again\n✓ committed")
        terminal.type("/qui\t\n")  # commands are completed
        assert terminal.end() == 0
    assert len(turns(forkpoint, "talk")) == 2


def test_lines_that_are_pasted_are_one_message(forkpoint: Program) -> None:
    readline = pytest.importorskip("readline")
    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit knows no pastes")
    with Terminal(forkpoint, "chat", "talk", *ECHO) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("\x1b[200~first\nsecond\x1b[201~\n")
        terminal.wait_for("✓ committed")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        terminal.end()
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: first\nsecond"]
    assert "\x1b[?2004h" in terminal.raw  # the terminal is asked to say where a paste begins and ends


def test_a_narrow_terminal_without_colours_shows_everything(forkpoint: Program) -> None:
    forkpoint.script(Reply("An answer that has more words than one line of this terminal can hold."))
    with Terminal(forkpoint, "chat", *AGENT, width=30, NO_COLOR="1") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Why?\n")
        terminal.wait_for("✓ committed")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        terminal.end()
    assert "An answer that has more words\nthan one line of this terminal\ncan hold.\n" in terminal.text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal.raw)
    assert one_line(terminal.text).count("Go on with: forkpoint chat") == 1

"""``forkpoint run``, as a program: where things are printed, how it exits, and what it leaves behind."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line
from tests.cli.terminal import CTRL_C, Terminal

from forkpoint import Conversation, Turn
from forkpoint.events import Text, Usage
from forkpoint.testing import Fault, Reply, ScriptedCall

READ = ScriptedCall("read_log", '{"build": 1234}')
RESTART = ScriptedCall("restart", '{"build": 1234}', call_id="call_7")
HANGS = Reply("Let me think about that for a while", fault=Fault("hang", after=2))
ECHO = ("--model", "scripted/echo")


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def turns(program: Program, name: str) -> tuple[Turn, ...]:
    with Conversation.open(name, bind=False, store=program.store) as conversation:
        return conversation.turns().items


def test_the_answer_is_on_stdout_and_all_the_rest_on_stderr(forkpoint: Program) -> None:
    forkpoint.script(Reply("Let me look.", calls=(READ,), reasoning="Hm."), Reply("The disk\n\nis full."))
    done = forkpoint.run("run", "Why did 1234 fail?", "-c", "build", "--agent", "builds:agent")
    assert (done.returncode, done.stdout) == (0, "The disk\n\nis full.\n")
    lines = done.stderr.splitlines()
    assert lines[0] == "Hm."
    assert lines[1] == "  → read_log(build=1234)"
    assert lines[2].startswith("  ← read_log (")
    assert lines[2].endswith(": log of 1234: disk full")
    turn = turns(forkpoint, "build")[0]
    assert lines[3].startswith("conversation build · committed · ")
    assert "0 % cached · " in lines[3]
    assert "$0 · " in lines[3]
    assert lines[3].endswith(f" · turn {turn.id}")
    assert len(lines) == 4


def test_an_answer_that_was_cut_says_so_in_words_and_in_json(forkpoint: Program) -> None:
    cut = Reply("The disk", finish="length", usage=Usage(1, output=256))
    forkpoint.script(cut, cut)
    done = forkpoint.run("run", "Why?", "-c", "build", "--agent", "builds:agent")
    assert (done.returncode, done.stdout) == (0, "The disk\n")
    assert "the answer was cut at the limit of 256 tokens" in done.stderr
    again = forkpoint.json("run", "Why?", "-c", "build")
    assert again["finish"] == "length"
    for shown in (["--events"], ["--turns"], ["--turn", again["id"]]):
        assert "cut at the limit of 256 tokens" in one_line(forkpoint.run("show", "build", *shown).stdout), shown


def test_without_a_name_each_run_is_a_conversation_of_its_own(forkpoint: Program) -> None:
    ids = [forkpoint.json("run", "hello", *ECHO)["conversation"] for _ in range(2)]
    assert len(set(ids)) == 2


def test_a_named_conversation_is_made_and_then_gone_on_with(forkpoint: Program) -> None:
    first = forkpoint.json("run", "one", "-c", "talk", *ECHO)
    again = forkpoint.json("run", "two", "--conversation", "talk")
    by_id = forkpoint.json("run", "three", "-c", first["conversation"][:13])
    assert first["conversation"] == again["conversation"] == by_id["conversation"]
    assert [turn.text for turn in turns(forkpoint, "talk")] == ["You said: one", "You said: two", "You said: three"]


def test_the_document_for_programs_has_everything(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(READ,)), Reply("Full."))
    done = forkpoint.run("run", "Why?", "-c", "build", "--agent", "builds:agent", "--json")
    document = json.loads(done.stdout)
    turn = turns(forkpoint, "build")[0]
    assert done.stderr == ""
    assert (document["id"], document["conversation"], document["name"]) == (turn.id, turn.conversation, "build")
    assert (document["outcome"], document["text"], document["output"]) == ("committed", "Full.", None)
    assert (document["usage"]["input"], document["usage"]["dollars"]) == (turn.usage.input, 0)
    assert [(call["tool"], call["status"]) for call in document["calls"]] == [("read_log", "done")]
    assert (document["waiting"], document["error"]) == ([], None)


def test_an_answer_with_a_type_is_in_the_document(forkpoint: Program) -> None:
    (forkpoint.folder / "script.json").write_text('[{"text": "{\\"city\\": \\"Paris\\"}"}]')
    (forkpoint.folder / "typed.py").write_text(
        "from dataclasses import dataclass\nfrom forkpoint import Agent\n"
        "@dataclass\nclass Place:\n    city: str\n"
        "agent = Agent('scripted/script.json', output=Place)\n"
    )
    assert forkpoint.json("run", "Where?", "--agent", "typed:agent")["output"] == {"city": "Paris"}


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_a_message_can_come_from_a_pipe(forkpoint: Program, arguments: tuple[str, ...]) -> None:
    done = forkpoint.run("run", *arguments, *ECHO, "-c", "talk", stdin="first line\nsecond: ünï\n")
    assert done.stdout == "You said: first line\nsecond: ünï\n"
    (turn,) = turns(forkpoint, "talk")
    assert turn.input[0].parts == (Text("first line\nsecond: ünï"),)


@pytest.mark.parametrize("arguments", [(), ("-",), ("",), ("  \n",)])
def test_nothing_to_say_is_a_command_line_that_makes_no_sense(forkpoint: Program, arguments: tuple[str, ...]) -> None:
    done = forkpoint.run("run", *arguments, *ECHO)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is nothing to say" in one_line(done.stderr)
    assert not (forkpoint.folder / "store.db").exists()


def test_bytes_that_are_no_text_are_refused_in_words(forkpoint: Program) -> None:
    with forkpoint.start("run", *ECHO) as process:
        assert process.stdin is not None
        os.write(process.stdin.fileno(), b"\xff\xfe")
        _, err = process.communicate()
    assert process.returncode == 1
    assert "its text is not valid Unicode" in err


def test_a_failed_turn_exits_with_1_and_names_what_can_be_done(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(READ,)), Reply("half", fault=Fault("refused", after=1, message="as scripted")))
    store = f"sqlite:///{forkpoint.folder / 'other store.db'}"
    done = forkpoint.run("run", "Why?", "-c", "build", "--agent", "builds:agent", "--store", store)
    assert (done.returncode, done.stdout) == (1, "")
    told = one_line(done.stderr)
    assert "did not commit, and the conversation is as it was" in told
    assert "refused the content: as scripted" in told
    assert "What its tools did stays done (done: read_log)." in told
    assert f"forkpoint retry build --store '{store}'" in told
    assert f"forkpoint resume build --store '{store}'" in told
    with Conversation.open("build", bind=False, store=store) as conversation:
        assert conversation.events() == []


def test_a_failed_turn_is_a_document_too(forkpoint: Program) -> None:
    forkpoint.script(Reply("half", fault=Fault("refused", after=1)))
    done = forkpoint.run("run", "Why?", "--agent", "builds:agent", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] == "failed"
    assert json.loads(done.stdout)["error"]["code"] == "model_refused"
    assert json.loads(done.stderr)["error"]["code"] == "turn_failed"


def test_a_pipe_gets_no_answer_that_is_void(forkpoint: Program) -> None:
    forkpoint.script(Reply("half an answ", fault=Fault("overloaded", after=1)), Reply("whole"))
    done = forkpoint.run("run", "Say it.", "--model", "scripted/script.json")
    assert (done.returncode, done.stdout) == (0, "whole\n")
    assert "the model is asked again (model_overloaded)" in done.stderr


def test_a_turn_that_waits_exits_with_3_and_goes_on_when_approved(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(RESTART,)))
    done = forkpoint.run("run", "Restart it.", "-c", "build", "--agent", "builds:agent")
    assert (done.returncode, done.stdout) == (3, "")
    assert "restart(build=1234) waits for an approval (the tool is risky), as call_7" in done.stderr
    assert "conversation build · awaiting approval · " in done.stderr
    assert "  forkpoint approve build " in done.stderr
    assert "  forkpoint deny build " in done.stderr
    again = forkpoint.run("run", "Hello?", "-c", "build")
    assert again.returncode == 1
    assert "is open (awaiting_approval)" in again.stderr
    assert "  forkpoint approve build " in again.stderr
    forkpoint.script(Reply("Restarted."))
    assert forkpoint.text("approve", "build", *forkpoint.seen("build")) == "Restarted.\n"
    assert (forkpoint.folder / "restarted").read_text() == "1234\n"


def test_a_turn_that_waits_is_a_document_too(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(RESTART,)))
    document = forkpoint.json("run", "Restart it.", "--agent", "builds:agent", status=3)
    assert (document["outcome"], document["waiting"]) == ("awaiting_approval", ["call_7"])


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_ctrl_c_cancels_the_turn_and_says_how_it_ended(forkpoint: Program, arguments: tuple[str, ...]) -> None:
    forkpoint.script(Reply(calls=(READ, ScriptedCall("press_ctrl_c"))))
    done = forkpoint.run("run", "Why?", "-c", "build", "--agent", "builds:agent", *arguments)
    assert done.returncode == 130
    turn = turns(forkpoint, "build")[0]
    assert turn.outcome == "cancelled"
    if arguments:
        assert json.loads(done.stdout)["outcome"] == "cancelled"
    else:
        assert done.stdout == ""
        assert f"turn {turn.id}" in done.stderr
        assert "conversation build · cancelled · " in done.stderr
        assert "  forkpoint retry build " in done.stderr


def test_ctrl_c_while_the_model_is_silent_cancels_the_turn(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(READ,)), HANGS)
    with forkpoint.start("run", "Why?", "-c", "build", "--agent", "builds:agent") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.close()
        while "← read_log" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
    assert process.returncode == 130
    assert "conversation build · cancelled · " in err
    (turn,) = turns(forkpoint, "build")
    assert (turn.outcome, [call.status for call in turn.calls]) == ("cancelled", ["done"])


def test_on_a_terminal_the_answer_is_shown_as_it_comes_and_ctrl_c_stops_it(forkpoint: Program) -> None:
    forkpoint.script(HANGS)
    with Terminal(forkpoint, "run", "Why?", "-c", "build", "--agent", "builds:agent") as terminal:
        terminal.wait_for("Let me think about that for")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    assert "conversation build · cancelled · " in one_line(terminal.text)
    assert [turn.outcome for turn in turns(forkpoint, "build")] == ["cancelled"]


def test_on_a_terminal_nothing_that_a_model_says_steers_it(forkpoint: Program) -> None:
    forkpoint.script(Reply("[bold]a[/bold] \x1b]0;title\x07\x1b[2Jb"))
    with Terminal(forkpoint, "run", "Why?", "--agent", "builds:agent", width=40) as terminal:
        assert terminal.end() == 0
    assert "[bold]a[/bold] ␛]0;title␇␛[2Jb\r\n" in terminal.raw


def test_one_key_has_one_effect(forkpoint: Program) -> None:
    first = forkpoint.json("run", "hello", "-c", "talk", "--key", "k", *ECHO)
    assert forkpoint.text("run", "hello", "-c", "talk", "--key", "k") == "You said: hello\n"
    assert [turn.id for turn in turns(forkpoint, "talk")] == [first["id"]]
    other = forkpoint.run("run", "goodbye", "-c", "talk", "--key", "k")
    assert other.returncode == 1
    assert "was used before for another request" in other.stderr


def test_quiet_prints_the_answer_alone_and_errors_all_the_same(forkpoint: Program) -> None:
    forkpoint.script(Reply(calls=(READ,), reasoning="Hm."), Reply("Full."))
    done = forkpoint.run("run", "Why?", "--agent", "builds:agent", "--quiet")
    assert (done.stdout, done.stderr) == ("Full.\n", "")
    forkpoint.script(Reply(fault=Fault("refused")))
    assert "did not commit" in forkpoint.run("run", "Why?", "--agent", "builds:agent", "-q").stderr


def test_an_option_that_would_have_no_effect_is_refused(forkpoint: Program) -> None:
    given = ("--instructions", "Be kind.", "--workspace", ".")
    forkpoint.text("run", "one", "-c", "talk", *ECHO, *given)
    forkpoint.text("run", "two", "-c", "talk", *ECHO, *given)  # what is so already may be said
    for option, value in (("--model", "scripted/other"), ("--instructions", "Be quick."), ("--workspace", "/")):
        done = forkpoint.run("run", "three", "-c", "talk", option, value)
        assert (done.returncode, done.stdout) == (2, "")
        assert option in done.stderr
    assert len(turns(forkpoint, "talk")) == 2


def test_an_agent_can_be_given_for_tools_that_cannot_be_imported_any_more(forkpoint: Program) -> None:
    forkpoint.script(Reply("one"))
    forkpoint.text("run", "one", "-c", "build", "--agent", "builds:agent")
    (forkpoint.folder / "builds.py").rename(forkpoint.folder / "moved.py")
    done = forkpoint.run("run", "two", "-c", "build")
    assert done.returncode == 1
    assert "What this conversation was made with is not here as it was" in done.stderr
    assert forkpoint.text("run", "two", "-c", "build", "--agent", "moved:agent") == "one\n"


# What is piped, and what is printed.


def test_a_message_and_a_pipe_are_said_together(forkpoint: Program) -> None:
    said = forkpoint.run("run", "Review this:", *ECHO, "--quiet", stdin="+ one\n- two\n")
    assert said.stdout == "You said: Review this:\n\n+ one\n- two\n"
    with forkpoint.start("run", "Review this:", *ECHO, "--quiet") as process:  # a pipe and not a file
        assert process.communicate("+ one\n")[0] == "You said: Review this:\n\n+ one\n"


def test_an_empty_pipe_is_no_text_and_a_stdin_that_does_not_end_is_not_waited_for(forkpoint: Program) -> None:
    assert forkpoint.run("run", "hello", *ECHO, "--quiet", stdin=" \n").stdout == "You said: hello\n"
    command = [sys.executable, "-m", "forkpoint", "run", "hello", *ECHO, "--quiet"]
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as nothing:
        for stdin in (nothing.fileno(), theirs.fileno()):
            done = subprocess.run(
                command, cwd=forkpoint.folder, env=forkpoint.environment, stdin=stdin, stdout=subprocess.PIPE, text=True
            )
            assert done.stdout == "You said: hello\n"
    closed = shlex.join(command) + " <&-"
    done = subprocess.run(
        closed, shell=True, cwd=forkpoint.folder, env=forkpoint.environment, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == "You said: hello\n"


def test_the_first_code_block_of_an_answer_can_be_printed_alone(forkpoint: Program) -> None:
    forkpoint.script(Reply("So:\n```sh\nls -l\n```\nand ```more```"))
    arguments = ("run", "How?", "-c", "build", "--agent", "builds:agent", "--extract")
    done = forkpoint.run(*arguments)
    assert (done.returncode, done.stdout) == (0, "ls -l\n")
    assert "conversation build · committed · " in done.stderr
    forkpoint.script(Reply("I do not know."))
    done = forkpoint.run(*arguments, "--quiet")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "error: The answer has no code block, and the turn has committed. `forkpoint show build --turn" in done.stderr
    )
    assert [turn.outcome for turn in turns(forkpoint, "build")] == ["committed", "committed"]


def test_the_last_used_conversation_goes_on(forkpoint: Program) -> None:
    nothing = forkpoint.run("run", "hello", "--last", *ECHO)
    assert nothing.returncode == 1
    assert "There is no conversation" in nothing.stderr
    for name in ("one", "two", "one"):
        forkpoint.text("run", "hello", "-c", name, *ECHO)
    assert forkpoint.json("run", "And?", "--last")["name"] == "one"
    forkpoint.text("rewind", "one", "--turns", "1")
    assert forkpoint.json("run", "And?", "-l")["name"] == "one"
    forkpoint.text("run", "hello", "-c", "two")
    assert forkpoint.json("run", "And?", "-l")["name"] == "two"
    assert forkpoint.run("run", "And?", "--last", "-c", "one").returncode == 2

"""``forkpoint retry``, ``resume``, ``approve``, ``deny``, ``discard`` and ``ask``."""

import json
import re
import shlex
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.program import Program, one_line
from tests.cli.terminal import CTRL_D, Terminal

from forkpoint.testing import Fault, Reply, ScriptedCall


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


RESTARTS = Reply(
    calls=(ScriptedCall("restart", '{"build": 7}', "call_a"), ScriptedCall("restart", '{"build": 8}', "call_b"))
)
READS = Reply(calls=(ScriptedCall("read_log", '{"build": 7}', "call_r"),))


def begun(forkpoint: Program, *replies: Reply) -> None:
    """A conversation ``it`` whose second turn a process has begun, and left as it was when the model had said this."""
    forkpoint.script(Reply("Hello."), *replies)
    forkpoint.python(
        "from forkpoint import ForkpointError\n"
        "made = Conversation(builds.agent, conversation_id='it')\n"
        "made.run('hi')\n"
        "try:\n"
        "    made.run('Do it.')\n"
        "except ForkpointError:\n"
        "    pass\n"
    )


def restarted(forkpoint: Program) -> list[str]:
    """What the tool did to the world."""
    file = forkpoint.folder / "restarted"
    return file.read_text().split() if file.exists() else []


def test_retry_runs_the_same_input_again_and_prints_the_answer_alone(forkpoint: Program) -> None:
    begun(forkpoint, READS, Reply("x", fault=Fault("overloaded")))
    forkpoint.script(Reply("It is \x1b[1mdone\x1b[0m."))
    done = forkpoint.run("retry", "it")
    assert (done.returncode, done.stdout) == (0, "It is ␛[1mdone␛[0m.\n")
    assert "conversation it · committed · " in done.stderr
    _, failed, again = forkpoint.json("show", "it", "--turns")["turns"]
    assert (again["retry_of"], again["input"]) == (failed["id"], failed["input"])
    nothing = forkpoint.run("retry", "it")
    assert nothing.returncode == 1
    assert "has no turn to retry: all that was run from here is committed" in nothing.stderr


def test_a_turn_that_fails_again_exits_with_1_and_says_what_can_be_done(forkpoint: Program) -> None:
    begun(forkpoint, Reply("x", fault=Fault("overloaded")))
    forkpoint.script(READS, Reply("x", fault=Fault("refused")))
    done = forkpoint.run("retry", "it")
    assert (done.returncode, done.stdout) == (1, "")
    error = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "did not commit, and the conversation is as it was: scripted/script.json refused the content" in error
    assert "stays done (done: read_log)." in error
    assert "forkpoint resume it" in done.stderr
    assert forkpoint.json("show", "it")["conversation"]["events"] == 4


def test_a_turn_that_fails_is_two_documents_for_programs(forkpoint: Program) -> None:
    begun(forkpoint, Reply("x", fault=Fault("overloaded")))
    forkpoint.script(READS, Reply("x", fault=Fault("refused")))
    done = forkpoint.run("retry", "it", "--json")
    assert done.returncode == 1
    turn, error = json.loads(done.stdout), json.loads(done.stderr)["error"]
    assert (turn["outcome"], turn["error"]["code"], turn["calls"][0]["status"]) == ("failed", "model_refused", "done")
    assert (error["code"], error["cause"], error["turn"]) == ("turn_failed", "model_refused", turn["id"])


def test_resume_goes_on_without_running_a_finished_tool_again(forkpoint: Program) -> None:
    begun(forkpoint, RESTARTS)
    forkpoint.script(Reply("x", fault=Fault("overloaded")))
    assert forkpoint.run("approve", "it", *forkpoint.seen("it")).returncode == 1
    forkpoint.script(Reply("Both are up."))
    document = forkpoint.json("resume", "it")
    assert (document["outcome"], document["text"], document["name"]) == ("committed", "Both are up.", "it")
    assert sorted(restarted(forkpoint)) == ["7", "8"]


def test_resume_takes_limits_in_the_place_of_the_agents(forkpoint: Program) -> None:
    begun(forkpoint, Reply("x", fault=Fault("overloaded")))
    forkpoint.script(READS, Reply("Done."))
    done = forkpoint.run("resume", "it", "--limit-steps", "2")
    assert done.returncode == 1
    assert "limit of 2 steps" in done.stderr
    assert forkpoint.run("resume", "it", "--limit-seconds", "0").stderr.startswith("error: ")
    assert forkpoint.run("resume", "it", "--limit-steps", "0").returncode == 2
    forkpoint.script(Reply("Done."))
    assert forkpoint.text("resume", "it", "--limit-steps", "3", "--limit-tokens", "100000") == "Done.\n"


@pytest.mark.parametrize(("options", "status"), [((), "unknown"), (("--rerun", "call_k"), "done")])
def test_resume_runs_a_call_that_may_have_run_again_only_if_it_is_named(
    forkpoint: Program, options: tuple[str, ...], status: str
) -> None:
    forkpoint.script(Reply(calls=(ScriptedCall("restart_or_die", '{"build": 9}', "call_k"),)))
    (forkpoint.folder / "deadly").touch()
    forkpoint.python(
        "import os\n"
        "if not os.fork():\n"
        "    Conversation(builds.mortal, conversation_id='it').run('x')\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == -9\n"
    )
    (forkpoint.folder / "deadly").unlink()
    forkpoint.script(Reply("Let me see."))
    document = forkpoint.json("resume", "it", *options)
    assert [call["status"] for call in document["calls"]] == [status]
    assert len(restarted(forkpoint)) == (1 if options else 0)


def test_a_turn_that_waits_exits_with_3_and_shows_what_waits(forkpoint: Program) -> None:
    begun(forkpoint, Reply("x", fault=Fault("overloaded")))
    forkpoint.script(RESTARTS)
    done = forkpoint.run("retry", "it")
    assert (done.returncode, done.stdout) == (3, "")
    assert "restart(build=7) waits for an approval" in done.stderr
    assert "forkpoint approve it" in done.stderr
    assert restarted(forkpoint) == []
    document = forkpoint.json("show", "it")
    assert document["conversation"]["status"] == "awaiting_approval"


def test_approve_lets_calls_run_in_another_process(forkpoint: Program) -> None:
    begun(forkpoint, RESTARTS)
    forkpoint.script(Reply("Both are up."))
    first = forkpoint.json("approve", "it", *forkpoint.seen("it")[4:], "--by", "ann", status=3)
    assert (first["waiting"], restarted(forkpoint)) == (["call_a"], ["8"])
    assert forkpoint.text("approve", "it", *forkpoint.seen("it")) == "Both are up.\n"
    assert restarted(forkpoint) == ["8", "7"]
    shown = forkpoint.text("show", "it", "--events")
    assert "approval   given for restart call_b by ann" in shown
    again = forkpoint.run("approve", "it")
    assert (again.returncode, "has no turn to approve: none is open" in again.stderr) == (1, True)


def test_approve_refuses_a_call_that_does_not_wait(forkpoint: Program) -> None:
    begun(forkpoint, RESTARTS)
    done = forkpoint.run("approve", "it", "--call", "call_x")
    assert done.returncode == 1
    assert "has no turn to approve: call 'call_x' does not wait" in done.stderr
    assert "call_a, call_b" in done.stderr


def test_without_a_terminal_approve_shows_what_waits_and_the_command_that_approves_it(forkpoint: Program) -> None:
    begun(forkpoint, replace(RESTARTS, text="Both hang."))
    forkpoint.script(Reply("Both are up."))
    looked = forkpoint.run("approve", "it", "--by", "ann")
    assert (looked.returncode, looked.stdout) == (2, "")
    assert "| Both hang." in looked.stderr
    assert "restart(build=8) waits for an approval (the tool is risky), as call_b" in looked.stderr
    line = next(line for line in looked.stderr.splitlines() if line.startswith("  forkpoint approve it "))
    command = shlex.split(line)[1:]
    assert command == ["approve", "it", *forkpoint.seen("it"), "--by", "ann"]
    assert all(digest in looked.stderr for digest in command if digest.startswith("sha256:"))
    assert restarted(forkpoint) == []
    program = forkpoint.json("approve", "it", status=2)
    assert [call["digest"] for call in program["calls"]] == [part for part in command if part.startswith("sha256:")]
    assert forkpoint.text(*command) == "Both are up.\n"
    assert sorted(restarted(forkpoint)) == ["7", "8"]


def test_approve_and_deny_refuse_a_digest_of_other_content(forkpoint: Program) -> None:
    begun(forkpoint, RESTARTS)
    a, b = (part for part in forkpoint.seen("it") if part.startswith("sha256:"))
    for verb in ("approve", "deny"):
        done = forkpoint.run(verb, "it", "--call", "call_a", "--digest", b, "--json")
        assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (1, "call_changed")
    alone = forkpoint.run("approve", "it", "--call", "call_a", "--call", "call_b", "--digest", a)
    assert (alone.returncode, "each --call needs a --digest" in one_line(alone.stderr)) == (2, True)
    assert forkpoint.json("show", "it")["conversation"]["status"] == "awaiting_approval"
    assert restarted(forkpoint) == []


def test_approve_allows_such_calls_for_good_if_somebody_says_so(forkpoint: Program) -> None:
    begun(forkpoint, RESTARTS)
    shown = forkpoint.run("approve", "it", "--call", "call_a", "--always", "tool")
    assert "--always tool" in shown.stderr, "the command that approves it where nobody can be asked"
    refused = forkpoint.run(*shlex.split(shown.stderr.splitlines()[-1])[1:-1], "prefix:ls")
    assert (refused.returncode, restarted(forkpoint)) == (1, [])
    assert "no shell command" in refused.stderr
    forkpoint.script(Reply("Restarted."))
    assert forkpoint.run(*shlex.split(shown.stderr.splitlines()[-1])[1:]).returncode == 0
    assert sorted(restarted(forkpoint)) == ["7", "8"], "what waits beside it is allowed too"
    (rule,) = forkpoint.json("approvals", "it")["items"]
    assert (rule["kind"], rule["tool"]) == ("tool", "restart")


def test_a_call_is_approved_with_other_arguments(forkpoint: Program) -> None:
    begun(forkpoint, RESTARTS)
    forkpoint.script(Reply("9 is up."))
    both = forkpoint.seen("it")
    instead = ("--arguments", '{"build": 9}')
    refused = forkpoint.run("approve", "it", *both, *instead)
    assert (refused.returncode, "it is for one call" in one_line(refused.stderr)) == (2, True)
    wrong = forkpoint.run("approve", "it", *both[:4], "--arguments", '{"house": 9}')
    assert (wrong.returncode, "house" in wrong.stderr) == (1, True)
    shown = forkpoint.run("approve", "it", "--call", "call_a", *instead)
    assert (shown.returncode, shown.stderr.count("restart(build=")) == (2, 2)
    assert "approved with these arguments instead: restart(build=9)" in shown.stderr
    assert forkpoint.run("approve", "it", *both[:4], *instead).returncode == 3
    assert restarted(forkpoint) == ["9"]
    assert "7" not in forkpoint.text("deny", "it", "--call", "call_b")
    assert 'with these arguments instead: {"build": 9}' in forkpoint.text("show", "it", "--events")
    assert 'restart(build=7), approved with {"build": 9}' in forkpoint.text("show", "it", "--turns")


def test_on_a_terminal_approve_shows_what_waits_and_asks(forkpoint: Program) -> None:
    begun(forkpoint, replace(RESTARTS, text="Both hang."))
    forkpoint.script(Reply("Both are up."))
    with Terminal(forkpoint, "approve", "it") as user:
        user.wait_for("| Both hang.")
        user.wait_for("restart(build=8) waits for an approval (the tool is risky), as call_b")
        user.wait_for("May these 2 calls run? [y/n] ")
        user.type("what?\n")
        user.wait_for("[y/n] ")
        user.type("n\n")
        user.wait_for("Nothing was approved. To refuse: forkpoint deny it")
        assert user.end() == 3
    assert restarted(forkpoint) == []
    with Terminal(forkpoint, "approve", "it", "--call", "call_b") as user:
        user.wait_for("May it run? [y/n] ")
        user.type("y\n")
        assert user.end() == 3, "the other call still waits"
    assert restarted(forkpoint) == ["8"]


def test_a_command_of_48_kb_is_shown_whole_wherever_somebody_could_approve_it(forkpoint: Program) -> None:
    command = f"echo {'a ' * 12_000} \t; rm -rf ~/everything ;   echo {'b ' * 12_000}"
    shell = ScriptedCall("shell", json.dumps({"command": command}), "call_s")
    forkpoint.script(Reply("I tidy up.", calls=(shell,)))
    coder = ("--agent", "coder", "--model", "scripted/script.json")
    ran = forkpoint.run("run", "Tidy up.", "-c", "job", *coder)
    turn = forkpoint.json("show", "job", "--turns")["turns"][-1]["id"]
    shows = [forkpoint.run("show", "job", *more) for more in ((), ("--turns",), ("--turn", turn))]
    for done in (ran, *shows, forkpoint.run("approve", "job")):
        shown = done.stdout + done.stderr
        assert f"$ {command}\n" in shown, done.args
        assert "I tidy up." in shown
    with Terminal(forkpoint, "chat", "talk", *coder) as user:
        user.type("Tidy up.\n")
        user.wait_for(f"$ {command}\n")
        user.type(CTRL_D)
    with Terminal(forkpoint, "approve", "job") as user:
        user.wait_for(f"$ {command}\n")
        user.wait_for("lines are above the screen: scroll up before you decide.")
        user.wait_for("May it run? [y/n] ")
        user.type(CTRL_D)
        assert user.end() == 3


def test_rows_of_show_that_leave_something_out_say_how_much_and_what_shows_it(forkpoint: Program) -> None:
    reads = Reply(calls=(ScriptedCall("read_log", json.dumps({"build": 7, "note": "x" * 1_000}), "call_r"),))
    begun(forkpoint, reads, Reply("y" * 1_000))
    turn = forkpoint.json("show", "it", "--turns")["turns"][-1]
    shown = one_line(forkpoint.text("show", "it", "--turns"))
    assert len(re.findall(r"[xy]+… \[[0-9,]+ more characters\]", shown)) == 2
    assert f"whole in forkpoint show it --turn {turn['id']}" in shown
    whole = "".join(forkpoint.text("show", "it", "--turn", turn["id"]).split())
    assert "x" * 1_000 in whole
    assert "y" * 1_000 in whole


def test_deny_tells_the_model_why(forkpoint: Program) -> None:
    begun(forkpoint, RESTARTS)
    forkpoint.script(Reply("Then not."))
    assert forkpoint.text("deny", "it", "--reason", "not on a Friday", "--by", "ann") == "Then not.\n"
    assert restarted(forkpoint) == []
    turn = forkpoint.json("show", "it", "--turns")["turns"][1]
    assert [(call["status"], call["reason"]) for call in turn["calls"]] == [("denied", "not on a Friday")] * 2
    assert "approval   denied for restart call_a by ann: not on a Friday" in forkpoint.text("show", "it", "--events")


def test_discard_ends_an_open_turn_without_its_tools_at_hand(forkpoint: Program) -> None:
    begun(forkpoint, RESTARTS)
    (forkpoint.folder / "builds.py").unlink()
    done = forkpoint.run("discard", "it")
    assert (done.returncode, done.stdout) == (0, "")
    assert "conversation it · cancelled · " in done.stderr
    assert forkpoint.json("show", "it")["conversation"]["status"] == "idle"
    again = forkpoint.run("discard", "it", "--json")
    assert (again.returncode, json.loads(again.stderr)["error"]["code"]) == (1, "no_such_turn")


def test_tools_that_cannot_be_imported_are_named_and_can_be_given(forkpoint: Program) -> None:
    begun(forkpoint, Reply("x", fault=Fault("overloaded")))
    forkpoint.script(Reply("Done."))
    (forkpoint.folder / "builds.py").rename(forkpoint.folder / "moved.py")
    done = forkpoint.run("retry", "it")
    assert done.returncode == 1
    assert "tool restart: builds:restart cannot be imported" in done.stderr
    assert forkpoint.text("retry", "it", "--agent", "moved:agent") == "Done.\n"


def test_ctrl_c_cancels_the_turn_and_exits_with_130(forkpoint: Program) -> None:
    begun(forkpoint, Reply("x", fault=Fault("overloaded")))
    forkpoint.script(Reply(calls=(ScriptedCall("press_ctrl_c"),)))
    with forkpoint.start("retry", "it") as process:
        _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGINT, err
    assert "conversation it · cancelled · " in err
    assert "forkpoint retry it" in err
    assert "Traceback" not in err
    assert forkpoint.json("show", "it")["conversation"]["status"] == "idle"


def test_ask_answers_beside_the_conversation(forkpoint: Program) -> None:
    begun(forkpoint, Reply("x", fault=Fault("overloaded")))
    forkpoint.script(Reply("A side answer."))
    before = forkpoint.json("show", "it")
    done = forkpoint.run("ask", "it", "By the way?")
    assert (done.returncode, done.stdout) == (0, "A side answer.\n")
    assert one_line(done.stderr).endswith("$0 · not kept")
    assert forkpoint.json("ask", "it", "By the way?")["text"] == "A side answer."
    after = forkpoint.json("show", "it")
    assert after["conversation"]["events"] == before["conversation"]["events"]
    assert after["stats"]["spent"]["calls"] == before["stats"]["spent"]["calls"] + 2


# go-on


def test_go_on_runs_a_turn_without_a_message_after_a_fork_into_a_turn(forkpoint: Program) -> None:
    forkpoint.script(READS, Reply("It is full."))
    forkpoint.python("Conversation(builds.agent, conversation_id='it').run('Why?')\n")
    (turn,) = forkpoint.json("show", "it", "--turns")["turns"]
    (call,) = turn["calls"]
    result = f"1-{int(call['event'].split('-')[1]) + 1}"
    forkpoint.run("fork", "it", "--at", result, "--name", "half", "--inherit-cache")
    other = ("--result", "call_r=The log is empty.", "--state", 'seen=["log"]', "--name", "other")
    assert forkpoint.run("fork", "it", "--at", call["event"], *other).returncode == 0
    forkpoint.script(Reply("Too full."), Reply("Nothing in it."))
    done = forkpoint.run("go-on", "half", "--key", "k")
    assert (done.returncode, done.stdout) == (0, "Too full.\n"), done.stderr
    assert forkpoint.json("go-on", "half", "--key", "k")["text"] == "Too full."
    assert forkpoint.json("go-on", "other")["go_on"] is True
    events = forkpoint.json("show", "other", "--events")["events"]
    assert [event["body"]["parts"][0]["text"] for event in events if event["kind"] == "tool_result"] == [
        "The log is empty."
    ]
    shown = forkpoint.text("show", "half", "--turns")
    assert "committed, in part" in shown
    assert "without a message" in shown
    refused = forkpoint.run("go-on", "half")
    assert refused.returncode == 1
    assert "it ends in a finished answer" in one_line(refused.stderr)
    for wrong in (("--result", "call_r"), ("--state", "a={"), ("--state", "a")):
        assert forkpoint.run("fork", "it", "--at", call["event"], *wrong).returncode == 2

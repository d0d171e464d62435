"""Whatever a hook does, it comes to a recorded run; it may block, or add context, and it ends within its time."""

import json
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.agent.journal import Memory, asked, says

from forkpoint.agent import Agent
from forkpoint.agent.hooks.hook import (
    Block,
    Hook,
    HookContext,
    Moment,
    from_stored,
    hooks_of,
    left_to_run,
    project_hooks,
    ran_before,
)
from forkpoint.agent.hooks.point import HookPoint
from forkpoint.agent.hooks.run import CONTEXT, OUTPUT, Ran, run_hooks
from forkpoint.agent.run import Run
from forkpoint.engine.turns.journal import staged
from forkpoint.errors import BadAgent, TurnLost
from forkpoint.events import (
    AnyBody,
    AssistantMessage,
    HookRun,
    Image,
    NewEvent,
    StagedEvent,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
    decode_body,
    encode_body,
)
from forkpoint.history.wholeness import check_whole
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.rendering import render

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
PATIENCE = 20  # seconds until a test that hangs is a failed one; none waits for it

CALL = HookContext(
    "before_tool",
    conversation="c1",
    turn="t1",
    workspace="/repo",
    agent="coder",
    messages=(UserMessage((Text("delete it"), Image("image/png", url="https://x.example/p"))),),
    call_id="call-1",
    tool="shell",
    arguments='{"command": "rm -rf x"}',
)


def python(code: str, moment: Moment = "before_tool", **settings: Any) -> Hook:
    """A hook that is a Python program."""
    return Hook(moment, command=[sys.executable, "-c", code], name="check", **settings)


async def ran(*hooks: Hook, context: HookContext = CALL, **settings: Any) -> Ran:
    """What hooks came to, in records that a store would take."""
    with anyio.fail_after(PATIENCE):
        found = await run_hooks(hooks, context, **settings)
    for run in found.events:
        check_whole(NewEvent(run))
        assert decode_body(encode_body(run)) == run
    return found


async def only(hook: Hook, **settings: Any) -> HookRun:
    (run,) = (await ran(hook, **settings)).events
    return run


def allow(context: HookContext) -> None:
    """A function that can be imported."""


async def refuse(context: HookContext) -> Block:
    return Block(f"no {context.tool} here")


# Data.


def test_a_hook_is_stored_and_comes_back() -> None:
    for hook in (
        Hook("before_tool", command=["./guard.sh", "a b"], tools="shell|write_*", timeout=5, on_error="block"),
        Hook("turn_end", command="make test | tail", name="tests"),
        Hook("user_message", function=allow),
        Hook("turn_start", function="package.module:name", name="hello"),
    ):
        again = Hook.from_json(hook.to_json())
        assert again.to_json() == hook.to_json()
        assert (again.name, again.path) == (hook.name, hook.path)
        if not callable(hook.function):
            assert again == hook
            assert hash(again) == hash(hook)
        assert from_stored(hook.stored(), hook.function if callable(hook.function) else None) == hook


def test_what_is_stored_says_no_more_than_it_must() -> None:
    assert json.loads(Hook("turn_end", command=["make", "test"]).to_json()) == {
        "moment": "turn_end",
        "command": ["make", "test"],
    }


def test_a_hook_is_named_after_what_it_runs_unless_it_says_otherwise() -> None:
    assert Hook("turn_end", command=["make", "a b"]).name == "make 'a b'"
    assert Hook("turn_end", command="make | tail").name == "make | tail"
    assert Hook("turn_end", function="package.module:name").name == "package.module:name"
    assert Hook("turn_end", function=allow).name.endswith(":allow")
    assert Hook("turn_end", function=lambda context: None).name.endswith("<lambda>")
    assert Hook("turn_end", command="x", name="tests").name == "tests"


def test_a_function_that_cannot_be_imported_cannot_be_stored() -> None:
    with pytest.raises(BadAgent, match="cannot be imported"):
        Hook("turn_end", function=lambda context: None).to_json()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"moment": "sometimes", "command": "x"}, "the moments are turn_start"),
        ({}, "a command or a function"),
        ({"command": "x", "function": allow}, "and not both"),
        ({"command": []}, "list of texts"),
        ({"command": [" "]}, "is blank"),
        ({"command": ["x", 7]}, "list of texts"),
        ({"command": "x\0"}, "list of texts"),
        ({"function": "no path"}, "package.module:name"),
        ({"function": 7}, "must be a function"),
        ({"command": "x", "tools": ""}, "must be a pattern"),
        ({"moment": "turn_end", "command": "x", "tools": "shell"}, "leave them out"),
        ({"command": "x", "timeout": 0}, "timeout"),
        ({"command": "x", "timeout": float("nan")}, "timeout"),
        ({"command": "x", "timeout": True}, "timeout"),
        ({"command": "x", "on_error": "panic"}, "ignore or block"),
        ({"command": "x", "name": " "}, "name of a hook"),
    ],
)
def test_what_is_no_hook_is_refused_with_the_reason(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadAgent, match=said):
        Hook(**{"moment": "before_tool", **settings})


def test_a_document_that_is_none_is_refused() -> None:
    for text in (
        "{",
        "[]",
        "{}",
        '{"moment":"turn_end","command":"x","shell":true}',
        '{"moment":"never","command":"x"}',
    ):
        with pytest.raises(BadAgent):
            Hook.from_json(text)


def test_the_same_hook_runs_once_though_an_agent_and_its_parent_have_it() -> None:
    one, other = Hook("turn_end", command="x"), Hook("turn_end", command="y")
    assert hooks_of([one, other, Hook("turn_end", command="x")]) == (one, other)
    wrong: Any
    for wrong in (one, [one, "x"], "x", {"x": one}):
        with pytest.raises(BadAgent):
            hooks_of(wrong)


def test_hooks_of_a_project_are_commands_alone() -> None:
    said = [{"moment": "before_tool", "command": ["./guard"], "tools": "shell", "timeout": 5, "on_error": "block"}]
    guard = Hook("before_tool", command=["/repo/guard"], tools="shell", timeout=5, on_error="block", name="./guard")
    assert project_hooks(said, Path("/repo")) == (guard,), "its program is in the project's root"
    for command in (["make", "./guard"], "./guard"):
        assert project_hooks([{"moment": "turn_end", "command": command}], Path("/repo")) == (
            Hook("turn_end", command=command),
        )
    for wrong in ([{"moment": "turn_end", "function": "os:abort"}], [{"moment": "turn_end"}], "x", [{"command": "x"}]):
        with pytest.raises(BadAgent):
            project_hooks(wrong, Path("/repo"))


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [("*", "shell write_file"), ("shell", "shell"), ("write_*", "write_file"), ("shell | write_*", "shell write_file")],
)
def test_a_hook_runs_for_the_tools_that_its_pattern_names(pattern: str, matches: str) -> None:
    hook = Hook("before_tool", command="x", tools=pattern)
    tools = ["shell", "write_file", "Shell", "read_file"] if pattern != "*" else ["shell", "write_file"]
    found = [tool for tool in tools if hook._is_for(msgspec.structs.replace(CALL, tool=tool))]
    assert found == matches.split()
    assert not hook._is_for(msgspec.structs.replace(CALL, moment="after_tool"))


# What a hook is given.


def test_the_document_of_each_moment_has_what_belongs_to_it() -> None:
    told = json.loads(CALL.document())
    assert told == {
        "moment": "before_tool",
        "conversation": "c1",
        "turn": "t1",
        "workspace": "/repo",
        "agent": "coder",
        "sub_agent": None,
        "message": "delete it\n[image/png]",
        "call_id": "call-1",
        "tool": "shell",
        "arguments": {"command": "rm -rf x"},
    }
    after = msgspec.structs.replace(
        CALL, moment="after_tool", arguments="{broken", result=ToolResult("call-1", "shell", (Text("gone"),), "failed")
    )
    told = json.loads(after.document())
    assert told["arguments"] == "{broken"
    assert told["result"] == {"status": "failed", "text": "gone"}
    told = json.loads(HookContext("turn_end", turn="t1", answer="done").document())
    assert told["answer"] == "done"
    assert "tool" not in told


async def test_a_command_reads_the_document_and_runs_in_the_workspace(tmp_path: Path) -> None:
    code = "import json, os, sys; print(json.load(sys.stdin)['tool'], os.getcwd(), os.environ.get('WHO'))"
    run = await only(python(code), workspace=tmp_path, env={"WHO": "me"})
    assert run == HookRun(
        "check",
        "before_tool",
        command=shlex.join([sys.executable, "-c", code]),
        exit_code=0,
        output=f"shell {tmp_path} me\n",
        call_id="call-1",
    )


async def test_a_text_is_a_command_for_the_shell_and_a_program_is_found_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "guard.sh").write_text("#!/bin/sh\necho guarded\n")
    (tmp_path / "guard.sh").chmod(0o755)
    assert (await only(Hook("before_tool", command="echo a | tr a b"))).output == "b\n"
    assert (await only(Hook("before_tool", command=["./guard.sh"]), workspace=tmp_path)).output == "guarded\n"


# What it may say.


@both
@pytest.mark.parametrize(
    ("code", "blocked", "context"),
    [
        ("print('fine')", None, ()),
        ('print(\'{"context": "the tests are slow"}\')', None, ("the tests are slow",)),
        ('print(\'{"context": " "}\')', None, ()),
        ('print(\'{"block": true, "reason": "not today"}\')', "not today", ()),
        ("print('{\"block\": true}')", "it gives no reason", ()),
        ('print(\'{"block": false, "reason": "fine"}\')', None, ()),
        ("import sys; sys.stderr.write('no\\n'); sys.exit(2)", "no", ()),
        ("print('said here'); exit(2)", "said here", ()),
        ('print(\'{"reason": "in JSON"}\'); exit(2)', "in JSON", ()),
        ("print('{\"block\": false}'); exit(2)", "it gives no reason", ()),
        ("exit(2)", "it gives no reason", ()),
        ("print('{\"files\": 3}')", None, ()),
        ("print('{not JSON')", None, ()),
        ("print('[true]')", None, ()),
    ],
)
async def test_a_command_agrees_blocks_or_adds_context(
    code: str, blocked: str | None, context: tuple[str, ...]
) -> None:
    found = await ran(python(code))
    assert (found.blocked, found.context) == (blocked, context)
    (run,) = found.events
    assert (run.blocked, run.reason) == (blocked is not None, blocked)
    assert run.exit_code == (2 if "exit(2)" in code else 0)


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (python("import sys; sys.exit('broken')"), "it ended with exit code 1: broken"),
        (python("exit(3)"), "it ended with exit code 3"),
        (python("import os; os.kill(os.getpid(), 9)"), "signal 9 ended it"),
        (python('print(\'{"block": "yes"}\')'), "what it printed makes no sense"),
        (python("import time; time.sleep(60)", timeout=0.3), "it did not end within 0.3 s"),
        (Hook("before_tool", command=["/nowhere/at/all"], name="check"), "it could not be started (No such file"),
        (Hook("before_tool", function="nowhere.at:all", name="check"), "ModuleNotFoundError"),
        (Hook("before_tool", function="os:name", name="check"), "TypeError: at os:name is no function"),
        (Hook("before_tool", function=lambda context: 7, name="check"), "it returned int"),
        (Hook("before_tool", function=lambda context: 1 / 0, name="check"), "ZeroDivisionError"),
        (Hook("before_tool", function=lambda context: sys.exit(2), name="check"), "SystemExit: 2"),
    ],
    ids=lambda value: value[:25] if isinstance(value, str) else "",
)
async def test_a_hook_that_fails_does_what_its_setting_says(hook: Hook, reason: str) -> None:
    for on_error in ("ignore", "block"):
        stored = msgspec.structs.replace(hook.stored(), on_error=on_error)
        found = await ran(from_stored(stored, hook.function if callable(hook.function) else None))
        (run,) = found.events
        assert run.blocked == (on_error == "block")
        assert (run.reason or "").startswith(reason)
        assert found.blocked == (run.reason if on_error == "block" else None)


async def test_the_first_that_blocks_is_the_last_that_runs() -> None:
    order: list[str] = []

    def one(context: HookContext) -> str:
        order.append("one")
        return "context of one"

    def never(context: HookContext) -> None:
        order.append("never")

    found = await ran(
        Hook("after_tool", function=never),
        Hook("before_tool", function=one, name="one"),
        Hook("before_tool", function=refuse, name="two"),
        Hook("before_tool", function=never),
    )
    assert order == ["one"]
    assert [(run.hook, run.blocked) for run in found.events] == [("one", False), ("two", True)]
    assert (found.blocked, found.context) == ("no shell here", ("context of one",))


@both
async def test_a_function_may_be_plain_or_async_and_does_not_hold_the_loop() -> None:
    here = threading.get_ident()

    def plain(context: HookContext) -> str:
        assert threading.get_ident() != here
        return f"{context.tool} {context.decoded['command']}"

    async def waits(context: HookContext) -> str:
        await anyio.lowlevel.checkpoint()
        return context.message

    def gives(context: HookContext) -> Any:
        return waits(context)

    found = await ran(*(Hook("before_tool", function=one) for one in (plain, waits, gives)))
    assert found.context == ("shell rm -rf x", "delete it\n[image/png]", "delete it\n[image/png]")
    assert [run.output for run in found.events] == list(found.context)
    assert all(run.command is None and run.exit_code is None for run in found.events)


@both
async def test_a_function_that_hangs_has_failed_when_its_time_is_up() -> None:
    release = threading.Event()

    async def forever(context: HookContext) -> None:
        await anyio.sleep_forever()

    def in_a_thread(context: HookContext) -> None:
        release.wait(PATIENCE)

    try:
        for function in (forever, in_a_thread):
            run = await only(Hook("before_tool", function=function, timeout=0.05))
            assert run.reason == "it did not end within 0.05 s"
    finally:
        release.set()


async def test_a_hook_that_raises_a_cancellation_of_its_own_has_failed() -> None:
    async def cancelled(context: HookContext) -> None:
        raise anyio.get_cancelled_exc_class()

    assert (await only(Hook("before_tool", function=cancelled))).reason == "CancelledError"


# Hostile ones.


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def gone(pid: int) -> None:
    with anyio.fail_after(PATIENCE):
        while is_alive(pid):  # noqa: ASYNC110
            await anyio.sleep(0.01)


STUBBORN = "trap '' TERM; sleep 600 & echo $! $$ > pids.new; mv pids.new pids; wait; sleep 600"
"""Two processes that ignore being told to end."""


@both
async def test_a_timeout_ends_the_whole_group_though_it_ignores_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.system.process.GRACE", 0.1)
    found = await ran(Hook("before_tool", command=STUBBORN, timeout=0.5, on_error="block"), workspace=tmp_path)
    assert found.blocked == "it did not end within 0.5 s"
    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(started) == 2
    for pid in started:
        await gone(pid)


@both
async def test_a_cancelled_turn_ends_the_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkpoint.system.process.GRACE", 0.1)
    pids = tmp_path / "pids"
    hook = Hook("before_tool", command=STUBBORN, on_error="block")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_hooks([hook], CALL, workspace=tmp_path))
            while not pids.exists():  # noqa: ASYNC110
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
    for pid in map(int, pids.read_text().split()):
        await gone(pid)


async def test_what_a_command_leaves_behind_ends_with_it_and_nobody_waits_for_it() -> None:
    run = await only(Hook("before_tool", command="sleep 600 & echo $!", timeout=PATIENCE))
    assert run.exit_code == 0
    await gone(int(run.output))


async def test_a_command_that_does_not_read_what_it_is_given_is_fine() -> None:
    large = msgspec.structs.replace(CALL, arguments=json.dumps("x" * 5_000_000))
    assert (await only(Hook("before_tool", command="exit 0"), context=large)).exit_code == 0


async def test_output_is_bounded() -> None:
    run = await only(python("import os; [os.write(1, b'y' * 1000000) for _ in range(50)]"))
    assert (run.exit_code, run.reason) == (0, None)
    assert OUTPUT < len(run.output) < OUTPUT + 100
    assert "characters left out" in run.output
    run = await only(python("import sys; sys.stderr.write('e' * 1000000); sys.exit(2)"))
    assert len(run.reason or "") < 2_100
    found = await ran(python("import json; print(json.dumps({'context': 'c' * 500000}))"))
    assert len(found.context[0]) < CONTEXT + 100


async def test_output_that_is_no_text_is_kept_as_well_as_it_can_be() -> None:
    run = await only(python("import os; os.write(1, b'a\\xff\\x00b')"))
    assert run.output == "a\ufffd\x00b"
    run = await only(Hook("before_tool", function=lambda context: "half \ud800", name="x"))
    assert run.output == "half \\ud800"


async def test_what_is_kept_is_masked_first() -> None:
    def mask(text: str) -> str:
        return text.replace("hush-hush", "***")

    code = "import json; print(json.dumps({'context': 'it is hush-hush'}))"
    found = await ran(python(code), mask=mask)
    blocked = await ran(python("import sys; sys.exit('hush-hush')", on_error="block"), mask=mask)
    assert found.context == ("it is ***",)
    assert blocked.blocked == "it ended with exit code 1: ***"
    for run in (*found.events, *blocked.events):
        assert "hush-hush" not in encode_body(run)


# What ran before.


def steps(*bodies: AnyBody) -> list[StagedEvent]:
    return list(staged(map(NewEvent, bodies)))


def test_a_resumed_turn_runs_only_the_hooks_that_did_not_run_yet() -> None:
    one, two, three = (Hook("before_tool", command="x", name=name) for name in ("one", "two", "two"))
    journal = steps(
        ToolCall("call-1", "shell", "{}"),
        HookRun("one", "before_tool", call_id="call-1"),
        HookRun("one", "before_tool", call_id="call-2"),
        HookRun("two", "before_tool", call_id="call-1"),
        HookRun("two", "after_tool", call_id="call-1"),
    )
    before = ran_before(journal, "before_tool", "call-1")
    assert [run.hook for run in before] == ["one", "two"]
    assert left_to_run([one, two, three], CALL, before) == (three,)
    assert left_to_run([one, two, three], CALL, ()) == (one, two, three)
    blocked = HookRun("one", "before_tool", blocked=True, reason="no", call_id="call-1")
    assert left_to_run([one, two], CALL, [blocked]) == ()


def test_runs_of_an_earlier_call_with_the_same_id_or_an_earlier_answer_do_not_count() -> None:
    journal = steps(
        ToolCall("0", "shell", "{}"),
        HookRun("one", "before_tool", call_id="0"),
        ToolResult("0", "shell"),
        AssistantMessage((Text("done?"),)),
        HookRun("end", "turn_end", blocked=True, reason="no"),
        ToolCall("0", "shell", "{}"),
    )
    assert ran_before(journal, "before_tool", "0") == ()
    assert len(ran_before(journal, "turn_end")) == 1
    assert ran_before([*journal, *steps(AssistantMessage((Text("done"),)))], "turn_end") == ()


def test_runs_that_a_sub_agent_copied_from_its_parent_do_not_count() -> None:
    copied = list(staged([NewEvent(HookRun("hello", "turn_start"), origin="t1/0")]))
    assert ran_before(copied, "turn_start") == ()
    assert len(ran_before(steps(HookRun("hello", "turn_start")), "turn_start")) == 1


# The hooks of a turn.


def point(hooks: list[Hook], journal: Memory, said: tuple[UserMessage, ...] = ()) -> HookPoint:
    """The hooks of a turn of an agent that has these."""
    agent = Agent("scripted/hooks", hooks=hooks)
    context = CallContext(own_identity("conversation"))
    run = Run(agent=agent, context=context, base=render(agent.manifest, ()), turn="t1", messages=said)
    return HookPoint(run, journal)


async def test_each_run_is_on_disk_before_the_next_and_is_not_repeated_when_the_turn_is_resumed() -> None:
    journal = Memory(says("hello"))
    on_disk: list[int] = []

    def note(context: HookContext) -> str:
        on_disk.append(len(journal.flushed))
        return f"{context.moment} {context.message}"

    hooks = [
        Hook("turn_start", function=note, name="one"),
        Hook("turn_start", function=note, name="two"),
        Hook("user_message", function=note, name="three"),
    ]
    said = (UserMessage((Text("hello"),)),)
    assert await point(hooks, journal, said).begin() is None
    assert on_disk == [1, 2, 3]
    assert [run.hook for run in journal.flushed[1:]] == ["one", "two", "three"]
    assert await point(hooks, journal, said).begin() is None
    assert on_disk == [1, 2, 3], "what is in the journal is not run again"


async def test_a_block_still_holds_when_the_turn_is_resumed_and_nothing_runs_after_it() -> None:
    journal = Memory(says("hello"), *asked("call-1"))
    call = ToolCall("call-1", "work", "{}")
    hooks = [Hook("before_tool", function=refuse), Hook("before_tool", function=allow)]
    for _ in range(2):
        assert await point(hooks, journal).at("before_tool", call) == "no work here"
    assert [(run.blocked, run.call_id) for run in journal.flushed[3:]] == [(True, "call-1")]


async def test_a_turn_that_was_lost_runs_no_further_hook() -> None:
    journal = Memory(says("hello"), refuse=lambda steps: True)
    hooks = [Hook("turn_start", function=allow, name=name) for name in ("one", "two")]
    with pytest.raises(TurnLost):
        await point(hooks, journal).begin()
    assert [body.hook for body in journal.bodies[1:]] == ["one"]


async def test_a_turn_without_messages_has_no_user_message_hooks() -> None:
    journal = Memory()
    assert await point([Hook("user_message", function=refuse)], journal).begin() is None
    assert journal.bodies == []

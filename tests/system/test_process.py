"""When a command has ended, nothing of it runs any more; and it ends when it should, whatever it does against that."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from forkpoint.system import process
from forkpoint.system.process import MARK, CannotStart, Ended, Finished, Job, OutputHead, run, run_command, supervise

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found through /proc")
PATIENCE = 15  # seconds that no test takes


def job(folder: Path, script: str, said: bytearray | None = None, **settings: Any) -> Job:
    heard = bytearray() if said is None else said
    env = {"PATH": os.environ["PATH"]}
    defaults: dict[str, Any] = {"timeout": PATIENCE, "grace": 0.1, "env": env, "heard": heard.extend}
    return Job(command=["bash", "-c", script], folder=str(folder), **(defaults | settings))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


async def written(path: Path) -> None:
    with anyio.fail_after(PATIENCE):
        while not has_text(path):  # noqa: ASYNC110 - another process writes it
            await anyio.sleep(0.005)


def has_text(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


@both
async def test_a_command_is_heard_and_its_code_told(tmp_path: Path) -> None:
    said = bytearray()
    assert await run(job(tmp_path, "echo out; echo err >&2; cat; pwd; exit 7", said)) == Ended("exited", 7)
    assert said.decode() == f"out\nerr\n{tmp_path}\n"


async def test_a_signal_is_told_as_one(tmp_path: Path) -> None:
    assert (await run(job(tmp_path, "kill -9 $$"))).code == -signal.SIGKILL


async def test_what_cannot_be_started_is_a_clear_failure(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="No such file"):
        await run(Job(command=["/nowhere"], folder=str(tmp_path), env={}, timeout=1, heard=print))
    with pytest.raises(CannotStart, match="No such file"):
        await run(job(tmp_path / "gone", "true"))


@needs_proc
@pytest.mark.parametrize(
    "script",
    [
        "sleep 1000 & echo $! $$ >pids; wait",
        "trap '' TERM INT HUP; (trap '' TERM; echo $BASHPID $$ >pids; while :; do sleep 1000; done)",
        "echo $$ >pids; kill -STOP $$",
        "for i in 1 2 3 4 5 6 7 8; do (trap '' TERM; sleep 1000 & echo $! >>pids; wait) & done; wait",
        "set -m; sleep 1000 & echo $! $$ >pids; wait",
        "setsid sh -c 'trap \"\" TERM; echo $$ >pids; while :; do sleep 1000; done' & wait",
        "(setsid sh -c 'sh -c \"echo \\$\\$ >pids; exec sleep 1000\" &' &) ; sleep 1000",
    ],
    ids=["child", "ignores signals", "stopped", "many", "job control", "setsid", "daemon"],
)
async def test_a_cancellation_ends_all_that_a_command_started(script: str, tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, job(tmp_path, script))
        await written(tmp_path / "pids")
        began = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - began < PATIENCE / 3
    assert not [pid for pid in pids(tmp_path) if is_running(pid)]


@needs_proc
async def test_a_timeout_ends_all_of_it_and_says_so(tmp_path: Path) -> None:
    script = "trap '' TERM; setsid sleep 1000 & echo $! $$ >pids; while :; do sleep 1000; done"
    ended = await run(job(tmp_path, script, timeout=0.4))
    assert (ended.why, ended.code, ended.stuck) == ("timeout", -signal.SIGKILL, False)
    assert not [pid for pid in pids(tmp_path) if is_running(pid)]


@both
@needs_proc
async def test_a_cancellation_goes_on_when_all_of_it_has_ended(tmp_path: Path) -> None:
    script = "setsid sh -c 'echo $$ >pids; exec sleep 1000' & trap '' TERM; echo $$ >>own; while :; do sleep 1000; done"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, job(tmp_path, script))
        await written(tmp_path / "pids")
        await written(tmp_path / "own")
        tasks.cancel_scope.cancel()
    assert not [pid for pid in pids(tmp_path) if is_running(pid)]
    assert not is_running(int((tmp_path / "own").read_text()))


@needs_proc
async def test_a_task_that_is_cancelled_without_a_scope_ends_all_of_it_too(tmp_path: Path) -> None:
    import asyncio

    task = asyncio.create_task(run(job(tmp_path, "trap '' TERM; echo $$ >pids; while :; do sleep 1000; done")))
    await written(tmp_path / "pids")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [pid for pid in pids(tmp_path) if is_running(pid)]


@both
async def test_a_command_that_is_cancelled_before_it_begins_does_not_begin(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/fd"))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run(job(tmp_path, "touch began", side=(*os.pipe(), print)))
    assert scope.cancelled_caught
    assert not (tmp_path / "began").exists()
    assert len(os.listdir("/dev/fd")) == len(before), "its pipes are closed"


@needs_proc
async def test_what_was_left_in_the_background_ends_with_the_command_and_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = await run(
        job(tmp_path, "(trap '' HUP; sleep 1000) & echo $! >pids; nohup sleep 1000 & echo $! >>pids; exit 3")
    )
    assert (ended.why, ended.code, ended.swept) == ("exited", 3, True)
    assert time.monotonic() - began < PATIENCE / 3
    assert not [pid for pid in pids(tmp_path) if is_running(pid)]


@needs_proc
async def test_what_left_the_session_goes_on_and_cannot_hold_up_the_end(tmp_path: Path) -> None:
    """It has the output open, too."""
    ended = await run(job(tmp_path, "setsid sh -c 'echo $$ >pids; exec sleep 1000' & until [ -s pids ]; do :; done"))
    (pid,) = pids(tmp_path)
    try:
        assert ended == Ended("exited", 0)
        assert is_running(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_flood_from_beyond_the_session_does_not_hold_up_the_end(tmp_path: Path) -> None:
    said = bytearray()
    began = time.monotonic()
    ended = await run(job(tmp_path, "setsid yes & sleep 0.05", said))
    assert ended.why == "exited"
    assert time.monotonic() - began < PATIENCE / 3, "and it is ended by the closed pipe"


async def test_a_command_that_closes_its_output_is_waited_for(tmp_path: Path) -> None:
    assert await run(job(tmp_path, "exec >&- 2>&-; read -t 0.1 <>pipe; touch late; exit 5")) == Ended("exited", 5)
    assert (tmp_path / "late").exists()


async def test_nothing_is_left_open(tmp_path: Path) -> None:
    await run(job(tmp_path, "true"))
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        await run(job(tmp_path, "echo a", side=(*os.pipe(), print)))
        with pytest.raises(CannotStart):
            await run(job(tmp_path / "gone", "true", side=(*os.pipe(), print)))
    assert len(os.listdir("/dev/fd")) == before


def test_a_thread_can_stop_a_command_too(tmp_path: Path) -> None:
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) > 3

    assert supervise(job(tmp_path, "exec sleep 1000"), stopped).why == "cancelled"


@needs_proc
async def test_forkpoint_in_a_command_of_forkpoint_does_not_hide_its_processes(tmp_path: Path) -> None:
    """The inner one marks its commands too, and they are still found by the outer mark."""
    inner = (
        "import os; from forkpoint.system.process import Job, supervise; supervise(Job("
        "command=['sh', '-c', 'echo $$ >pids; exec sleep 1000'], folder='.', env=os.environ, timeout=99, heard=print))"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, job(tmp_path, f'exec {sys.executable} -c "{inner}"', env=dict(os.environ)))
        await written(tmp_path / "pids")
        tasks.cancel_scope.cancel()
    assert not [pid for pid in pids(tmp_path) if is_running(pid)]


async def test_a_command_gets_its_input_and_each_output_is_kept_apart(tmp_path: Path) -> None:
    finished = await run_command("cat; pwd; echo $A >&2; exit 3", input=b"in\n", cwd=tmp_path, env={"A": "b"})
    assert finished == Finished(3, f"in\n{tmp_path}\n".encode(), b"b\n")


async def test_a_command_that_reads_none_of_a_large_input_makes_nobody_wait() -> None:
    assert await run_command(["true"], input=bytes(1 << 20)) == Finished(0)


async def test_of_each_output_the_beginning_is_kept() -> None:
    finished = await run_command("printf 12345; printf 67890 >&2", limit=4)
    assert finished == Finished(0, b"1234", b"6789", is_cut=True)
    assert await run_command("printf 1234", limit=4) == Finished(0, b"1234")


async def test_a_command_that_takes_too_long_has_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkpoint.system.process.GRACE", 0.1)
    assert await run_command("echo a; exec sleep 1000", seconds=0.3) == Finished(None, b"a\n")


async def test_a_command_that_cannot_be_started_is_the_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run_command(["/nowhere"])
    with pytest.raises(ValueError, match="null"):
        await run_command("echo \0")


def test_the_beginning_of_an_output_is_the_same_however_it_is_cut_into_chunks() -> None:
    for sizes in ([7], [3, 4], [1] * 7, [5, 0, 2]):
        head, rest = OutputHead(5), b"1234567"
        for size in sizes:
            head.add(rest[:size])
            rest = rest[size:]
        assert (bytes(head.data), head.is_cut) == (b"12345", True)


LEAVES_WHEN_TOLD = """
import os, signal, time
def leave(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may be told twice
    os.setsid()
    open("left", "w").close()
signal.signal(signal.SIGTERM, leave)
with open("pids", "w") as file:
    file.write(str(os.getpid()))
while True:
    time.sleep(1000)
"""


@needs_proc
async def test_a_process_that_leaves_the_session_while_it_is_ended_is_said_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES_WHEN_TOLD)
    script = f"{sys.executable} leaves.py & until [ -s pids ]; do :; done"
    ended = await run(job(tmp_path, script, grace=PATIENCE))
    (pid,) = pids(tmp_path)
    try:
        assert is_running(pid), "it ended, so this tests nothing"
        assert (ended.why, ended.swept, ended.left, ended.stuck) == ("exited", False, True, False)
    finally:
        os.kill(pid, signal.SIGKILL)


@needs_proc
async def test_a_server_that_is_left_behind_at_once_is_left_alone(tmp_path: Path) -> None:
    for _ in range(10):
        ended = await run(job(tmp_path, "setsid sleep 1000 >/dev/null 2>&1 & echo $! >pids"))
        (pid,) = pids(tmp_path)
        try:
            assert is_running(pid), "it was ended before it could leave"
            assert (ended.swept, ended.left, ended.stuck) == (False, False, False)
        finally:
            os.kill(pid, signal.SIGKILL)


@needs_proc
async def test_a_process_that_just_becomes_another_program_is_waited_for_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system shows no environment of a process for as long as it is given a new one."""
    looks: dict[int, int] = {}
    real = process._environment

    def environment(pid: int) -> bytes | None:
        looks[pid] = looks.get(pid, 0) + 1
        return None if pid in escaped and looks[pid] % 3 else real(pid)

    escaped: list[int] = []
    monkeypatch.setattr(process, "_environment", environment)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, job(tmp_path, "setsid sh -c 'echo $$ >pids; exec sleep 1000' & wait"))
        await written(tmp_path / "pids")
        escaped += pids(tmp_path)
        tasks.cancel_scope.cancel()
    assert looks[escaped[0]] >= 3, "nobody has looked, so this tests nothing"
    assert not is_running(escaped[0])


@needs_proc
def test_what_has_no_environment_for_good_is_not_waited_for() -> None:
    for environment in ({}, {"NAME": "value"}):
        with subprocess.Popen(["sleep", "1000"], env=environment) as child:
            try:
                while (seen := process._environment(child.pid)) is None:  # it is just becoming `sleep`
                    time.sleep(0.001)
                assert (b"NAME=value" in seen) == bool(environment)
            finally:
                child.kill()
    assert process._environment(child.pid) == b"", "it is gone"


@needs_proc
def test_marked_processes_are_ended_wherever_they_are(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"], MARK: ":one-token"}) as marked:
        assert process.marked_processes(b"one-token") == [marked.pid]
        assert process.end_marked(b"another-token")
        assert marked.poll() is None
        assert process.end_marked(b"one-token")
        assert marked.wait() == -signal.SIGKILL

"""`shell`: a command in the workspace. Its folder and its variables carry over to the next one."""

import codecs
import os
import shlex
import shutil
from typing import Annotated

import msgspec

from forkpoint.agent.builtin import environment
from forkpoint.agent.builtin.environment import ShellState
from forkpoint.agent.builtin.failure import ToolFailed, shown, starting
from forkpoint.agent.builtin.output import Output
from forkpoint.agent.builtin.paths import Workspace, workspace_of
from forkpoint.agent.context import SHELL, ToolContext
from forkpoint.agent.secrets.withheld import is_withheld
from forkpoint.agent.tool import tool
from forkpoint.system.exposure import conceal
from forkpoint.system.process import Ended, Job, run

_LONGEST = 100_000  # characters of a command: a program's argument has a limit
_SIDE = 200  # the least number of the pipe for what carries over: commands use the low ones


@tool(risky=True, secrets="shell")
async def shell(
    ctx: ToolContext,
    command: str,
    timeout: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 120,  # noqa: ASYNC109 - the model chooses it
) -> str:
    """Runs a shell command in the workspace, and returns what it prints (stdout and stderr) and its exit code.

    The working folder and exported variables carry over to the next command. There is no input and no terminal. When
    the command ends, what it left in the background is ended too; to leave a server running, start it with
    `setsid SERVER >server.log 2>&1 &`. Of a long output the beginning and the end are shown, and the whole is put into
    a file.

    Args:
        command: what to run, for bash
        timeout: seconds after which it is ended
    """
    if len(command) > _LONGEST:
        raise ToolFailed(f"The command has more than {_LONGEST:,} characters. Write it into a file, and run that.")
    with workspace_of(ctx) as workspace:
        call = _ShellCall(ctx, workspace, timeout)
        return call.result(await call.run(command))


class _ShellCall:
    def __init__(self, ctx: ToolContext, workspace: Workspace, timeout: int) -> None:
        self._state = ctx.state
        self._workspace, self._timeout = workspace, timeout
        self._before = ShellState.of(self._state.get(SHELL))
        self._secrets = dict(ctx.secrets)
        self._masking = ctx.masking
        self._masked = ctx.masking.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # bytes go round as they are
        self._base = environment.base(ctx.masking)
        conceal(lambda name, value: is_withheld(name, value) or name not in self._base)
        self._output = Output(workspace, ctx.progress)
        self._dump = bytearray()
        self._notes: list[str] = []

    async def run(self, command: str) -> Ended:
        folder = self._folder()
        read, write = os.pipe()
        moved = _out_of_the_way(write)
        job = Job(
            command=_script(command, moved),
            folder=folder,
            env=self._before.environment(self._base, self._workspace.path) | self._secrets,
            timeout=self._timeout,
            heard=self._hear if self._masking else self._output.add,
            side=(read, moved, self._hear_dump),
        )
        try:
            with starting():
                return await run(job)
        finally:
            if self._masking:
                self._show(self._masked.feed(self._decoder.decode(b"", True)) + self._masked.end())
            self._output.close()

    def result(self, ended: Ended) -> str:
        """What the model is told. Raises `ToolFailed` if the command did not end by itself."""
        if ended.stuck:
            self._notes.append("Some of its processes could not be ended and may still run.")
        if ended.why == "timeout":
            self._notes.insert(
                0, f"It did not end within {self._timeout} s and was ended, with all that it had started."
            )
            raise ToolFailed(self._told(""))
        if ended.swept:
            self._notes.append("Processes that it had left in the background were ended.")
        if ended.left:
            self._notes.append("A process that was to be ended with it has left its session, and runs on.")
        self._keep()
        code = ended.code or 0
        return self._told(f"exit code {code}" if code >= 0 else f"ended by signal {-code}")

    def _keep(self) -> None:
        after, notes = environment.read_back(
            bytes(self._dump), self._before, self._base, self._workspace.path, self._secrets, self._masking
        )
        self._notes += notes
        if after.cwd != self._before.cwd:
            where = "the workspace's own" if after.cwd == "." else shown(after.cwd)
            self._notes.append(f"The working folder is now {where}.")
        if after != self._before:  # else two commands that run at once would be in each other's way
            self._state[SHELL] = msgspec.to_builtins(after)

    def _told(self, end: str) -> str:
        text = self._output.text()
        if text and not text.endswith("\n"):
            text += "\n"
        said = [f"[{end}]"] if end else []
        return ("" if text else "[no output]\n") + text + "\n".join([*said, *(f"[{note}]" for note in self._notes)])

    def _folder(self) -> str:
        real = os.path.realpath(os.path.join(self._workspace.path, self._before.cwd.replace("\0", "")))
        inside = os.path.commonpath([real, self._workspace.path]) == self._workspace.path
        if inside and os.path.isdir(real):
            return real
        self._notes.append(f"The folder {shown(self._before.cwd)} is gone; this ran in the workspace's own folder.")
        return self._workspace.path

    def _hear(self, chunk: bytes) -> None:
        self._show(self._masked.feed(self._decoder.decode(chunk)))

    def _show(self, text: str) -> None:
        self._output.add(text.encode("utf-8", "surrogateescape"))

    def _hear_dump(self, chunk: bytes) -> None:
        if len(self._dump) <= environment.DUMP_LIMIT:
            self._dump += chunk


def _script(command: str, pipe: int) -> list[str]:
    """The command, with what the shell says at its end. All in one line, so that line numbers in errors are right."""
    program, env = shutil.which("bash") or "/bin/sh", shutil.which("env") or "/usr/bin/env"
    say = f"{{ command pwd -P; command printf '\\0'; {shlex.quote(env)} -0; }} >/dev/fd/{pipe} 2>/dev/null"
    return [program, "-c", f"trap {shlex.quote(say)} EXIT; {command}"]


def _out_of_the_way(pipe: int) -> int:
    import fcntl  # which is not everywhere

    try:
        moved = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, _SIDE)
    except OSError:  # so many files cannot be open here
        return pipe
    os.close(pipe)
    return moved

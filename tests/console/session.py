"""A page as one session: a user with a home folder types its commands, one after another, at a terminal."""

import os
import re
import shlex
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.console.likeness import Likeness
from tests.console.page import Before, Command, File, NotRun, Step
from tests.console.shell import CTRL_C, CTRL_D, Shell, Silence
from tests.nursery import nursery

WIDTH, HEIGHT = 160, 50
HOME, PORT = "/home/ann", "8008"  # in the pages
STAND_IN, MODEL = "scripted/words.json", "local/smollm2"  # a page may let a script answer in the model's place
WORK = "builds"  # the folder in it in which a session begins

_SERVER = re.compile(r"(?:\w+=\S+ )*forkpoint serve\b")
_TYPED = re.compile(r"(?P<asked>❯|.*\[y/n[^]]*\]) (?P<typed>.+)")
_ASKS = re.compile(r"❯$|\[y/n[^]]*\]$")
_KEYS = {"^C": CTRL_C, "^D": CTRL_D}


@dataclass(frozen=True)
class Outcome:
    """What a command of a page has really shown, in the page's own words."""

    command: Command
    rows: tuple[str, ...]
    status: int | None  # None if the command still runs

    @property
    def faulty(self) -> bool:
        return self.rows != self.command.shown


class Session:
    """A home folder, with a terminal for each server and one for everything else."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.likeness = Likeness()
        self._port = _free_port()
        self._aside = home / ".aside"
        self._work = home / WORK
        for folder in (self._aside, self._work):
            folder.mkdir(parents=True)
        (programs := self._aside / "bin").mkdir()
        nursery().install(programs)
        self._environment = _environment(home, programs)
        self._open = ExitStack()
        self._shell = self._new_shell()
        self._server: Shell | None = None  # the one that runs

    def close(self) -> None:
        self._open.close()

    def take(self, step: Step) -> Outcome | None:
        """Does what the page says. Gives what came of a command that it shows."""
        match step:
            case NotRun():
                return None
            case File(name, content):
                file = self._work / self._real(name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(self._real(content))
                return None
            case Before(line, command):
                self._prepare(line, command)
                return None
            case Command():
                return self._run(step)

    def _prepare(self, line: int, command: str) -> None:
        if _SERVER.match(command):
            self._serve(self._real(command), "Forkpoint serves at ...")
            return
        status = self._shell.run(self._real(command))
        assert status == 0, f"line {line}: {command!r} did not work ({status}):\n" + "\n".join(self._shell.rows)

    def _run(self, step: Command) -> Outcome:
        command = self._real(step.command)
        if _SERVER.match(command):
            shell = self._serve(command, step.shown[-1] if step.shown else "Forkpoint serves at ...")
        else:
            shell = self._shell
            shell.begin(command)
            with suppress(Silence):  # what it shows is not what the page shows: that will be told
                self._type(shell, step.shown)
        rows, status = [self._of_page(row) for row in shell.rows], shell.status
        if shell is self._shell:
            shell.end()
        if not step.shown:
            works = not status and not any('{"error":{' in row for row in rows)  # with which curl ends well
            assert works, f"line {step.line}: {step.command!r} did not work ({status}):\n" + "\n".join(rows)
            return Outcome(step, (), status)
        alike = self.likeness.matches(step.shown, rows, loose=step.loose)
        real = step.shown if alike else tuple(self.likeness.rewritten(step.shown, rows))
        return Outcome(step, real, status)

    def _type(self, shell: Shell, shown: tuple[str, ...]) -> None:
        """Types what the page says that the user typed, each after what it answers."""
        place = -1  # where the cursor was when the last line was typed
        for number, line in enumerate(shown):
            if line == "^C":
                self._wait_for_all(shell, shown[:number])
                shell.type(CTRL_C)
            elif typed := _TYPED.fullmatch(line):
                self._wait_for(shell, typed["asked"], place, unless=line)
                if self._has(shell, line, place):  # the program says it again, such as the message of a retry
                    continue
                place = shell.place
                shell.type(_KEYS.get(typed["typed"], self._real(typed["typed"]) + "\r"))
            elif line.endswith("^C"):  # in the middle of an answer
                shell.wait(lambda: shell.place > place and bool(shell.row))  # noqa: B023 - it is waited for here
                shell.type(CTRL_C)
        if shown and _ASKS.search(shown[-1]):
            self._wait_for(shell, shown[-1], place)
        else:
            shell.wait()

    def _wait_for(self, shell: Shell, question: str, after: int, unless: str = "") -> None:
        """Waits until the program asks this, below a row, or has shown another line there."""
        shell.wait(
            lambda: (
                (shell.place > after and self.likeness.matches_line(question, self._of_page(shell.row)))
                or self._has(shell, unless, after)
            )
        )

    def _has(self, shell: Shell, line: str, after: int) -> bool:
        return bool(line) and any(line == self._of_page(row) for row in shell.below(after))

    def _wait_for_all(self, shell: Shell, shown: tuple[str, ...]) -> None:
        shell.wait(lambda: replace(self.likeness).matches(shown, [self._of_page(row) for row in shell.rows]))

    def _serve(self, command: str, last: str) -> Shell:
        """Starts a server in a terminal of its own, with what the commands before have set. It replaces the last."""
        if self._server:
            self._server.end()
        state = self._aside / "state"
        self._shell.run(f'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {shlex.quote(str(state))}')
        shell = self._server = self._new_shell()
        shell.run(f". {shlex.quote(str(state))}")
        shell.begin(command if "--port" in command else f"{command} --port {self._port}")
        shell.wait(lambda: any(self.likeness.matches_line(last, self._of_page(row)) for row in shell.rows))
        assert shell.status is None, "the server has ended:\n" + "\n".join(shell.rows)
        return shell

    def _new_shell(self) -> Shell:
        shell = Shell(self._work, self._environment, width=WIDTH, height=HEIGHT, aside=self._aside)
        return self._open.enter_context(shell)

    def _real(self, text: str) -> str:
        """A text of the page, as it is in this session."""
        if (self._work / STAND_IN.removeprefix("scripted/")).exists():  # a script answers in the model's place
            text = text.replace(f"--model {MODEL}", f"--model {STAND_IN}")
        return self.likeness.real(text).replace(HOME, str(self.home)).replace(PORT, self._port)

    def _of_page(self, text: str) -> str:
        """A text of this session, as the page would have it, but for ids."""
        return text.replace(str(self.home), HOME).replace(self._port, PORT).replace(STAND_IN, MODEL)


@contextmanager
def session() -> Iterator[Session]:
    """A session in a folder of its own, in memory if tests keep their files there."""
    home = Path(tempfile.mkdtemp(prefix="ann", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    try:
        opened = Session(home)
        try:
            yield opened
        finally:
            opened.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def rewritten(text: str, outcomes: list[Outcome]) -> str:
    """A page with what its commands have really shown."""
    lines = text.splitlines()
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.command.line):
        if outcome.faulty:
            start, indent = outcome.command.first - 1, outcome.command.indent
            lines[start : start + len(outcome.command.shown)] = [f"{indent}{row}".rstrip() for row in outcome.rows]
    return "\n".join(lines) + "\n"


def _environment(home: Path, programs: Path) -> Mapping[str, str]:
    theirs = ("FORKPOINT_", "OPENAI_", "ANTHROPIC_", "XDG_", "GIT_", "COLUMNS", "LINES", "NO_COLOR", "PYTHON")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(theirs) and not name.lower().endswith("_proxy")
    }
    return kept | {
        "HOME": str(home),
        "USER": "ann",
        "LOGNAME": "ann",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "INPUTRC": os.devnull,
        "OMP_WAIT_POLICY": "passive",  # threads of llama.cpp that spin take the cores of other tests
    }


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])

"""A command cannot read back from its parent what it was not given: not as the same user, and its block not as root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is read is in /proc")

PROGRAM = r"""
import ctypes, os, subprocess, sys
from forkpoint.system.exposure import conceal
user, concealed = int(sys.argv[1]), sys.argv[2] == "concealed"
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    libc.prctl(4, 1, 0, 0, 0)  # to become another user has made it not dumpable already
if concealed:
    for _ in range(2):
        conceal(lambda name, value: name.startswith("HIDDEN"))
print("ours:", os.environ["HIDDEN_ONE"], os.environ["HIDDEN_CHANGED"], os.environ["SHOWN"])
print("C:", libc.getenv(b"HIDDEN_ONE").decode(), libc.getenv(b"SHOWN").decode())
sys.stdout.flush()
given = {name: value for name, value in os.environ.items() if not name.startswith("HIDDEN")}
for command in (
    "tr '\\0' '\\n' < /proc/$PPID/environ; echo read: $?",
    "if (exec 3< /proc/$PPID/mem) 2>/dev/null; then echo memory: open; else echo memory: shut; fi",
    "test $HIDDEN_ONE || echo child: nothing; cat /proc/$$/environ >/dev/null && echo child: whole",
):
    subprocess.run(["/bin/sh", "-c", command], env=given, stderr=subprocess.DEVNULL)
subprocess.run(["/bin/sh", "-c", "echo handed on: $HIDDEN_ONE"])
"""

NOBODY = 65534


def says(user: int, how: str, **further: str) -> str:
    """What the program prints, started by this user."""
    env = {name: value for name, value in os.environ.items() if name != "FORKPOINT_DUMPABLE"}
    env |= {"HIDDEN_ONE": "pass-4711", "HIDDEN_CHANGED": "x=y=z", "SHOWN": "in the open", **further}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(user), how], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def users() -> list[int]:
    return [0, NOBODY] if os.geteuid() == 0 else [0]


@linux
@pytest.mark.parametrize("user", users())
def test_what_is_withheld_is_in_no_environment_that_a_command_can_read(user: int) -> None:
    before, after = says(user, "as it is"), says(user, "concealed")
    assert "HIDDEN_ONE=pass-4711" in before, "the test reads the environment in vain"
    for said in (before, after):
        assert "ours: pass-4711 x=y=z in the open" in said
        assert "C: pass-4711 in the open" in said
        assert "child: nothing\nchild: whole" in said
        assert "handed on: pass-4711" in said, "whoever is given the variable has its value"
    shown = after.partition("handed on")[0].partition("C: ")[2].partition("\n")[2]
    assert "pass-4711" not in shown
    assert "x=y=z" not in shown


@linux
def test_the_block_is_readable_by_whoever_may_read_it_and_has_stars_for_what_is_withheld() -> None:
    said = says(0, "concealed", FORKPOINT_DUMPABLE="1")
    assert "HIDDEN_ONE=*********\n" in said
    assert "HIDDEN_CHANGED=*****\n" in said
    assert "SHOWN=in the open\n" in said
    assert "read: 0" in said


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_s_commands_cannot_read_its_memory_unless_it_is_to_stay_dumpable() -> None:
    assert "memory: open" in says(NOBODY, "as it is")
    assert "memory: shut" in says(NOBODY, "concealed")
    assert "memory: open" in says(NOBODY, "concealed", FORKPOINT_DUMPABLE="1")


def test_where_there_is_no_such_block_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from forkpoint.system import exposure

    monkeypatch.setattr(exposure, "_block", lambda: (0, 0))
    monkeypatch.setenv("FORKPOINT_DUMPABLE", "1")
    exposure.conceal(lambda name, value: True)
    monkeypatch.setattr(sys, "platform", "darwin")
    exposure.conceal(lambda name, value: pytest.fail("nobody is asked"))


def test_the_place_of_the_block_is_found_by_the_system_s_own_account(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("it is in /proc")
    from forkpoint.system import exposure

    start, end = exposure._block()
    assert 0 < start < end

"""What another process of this machine can read of this one, though it was not given it.

A command that is started with a smaller environment can look at its parent's: Linux shows the environment that a
process began with in ``/proc/PID/environ``, and all its memory in ``/proc/PID/mem``, to whoever has the same user. Two
things are done about it before such a command runs:

- **The values are taken out of the block that the process began with.** They are in ``os.environ`` and in the C library
  as before; ``/proc/PID/environ`` shows stars. Root sees stars too.
- **The process is made "not dumpable"**, so that its memory cannot be read or traced by its own user. It leaves no core
  file then, and debuggers and profilers such as py-spy cannot attach to it, unless they run as root. Set
  ``FORKPOINT_DUMPABLE=1`` to have it stay as it is.

It does not keep out root, or whoever may trace any process: they read the memory. Elsewhere than on Linux nothing is
done. Tests: tests/system/test_exposure.py.
"""

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable

DUMPABLE = "FORKPOINT_DUMPABLE"
"""The variable that keeps the process dumpable, if it is set to anything but 0."""

_PR_SET_DUMPABLE = 4
_LARGEST = 32 * 1024 * 1024  # bytes of an environment; Linux has a smaller limit, so a larger number is an error
_lock = threading.Lock()


def conceal(is_withheld: Callable[[str, str], bool]) -> None:
    """Keeps the variables for which ``is_withheld(name, value)`` is true from the processes that we start.

    What cannot be done on this system is left out. It may be called before each start: it takes some microseconds.
    """
    if not sys.platform.startswith("linux"):
        return
    with _lock:
        _clean_block(is_withheld)
        if os.environ.get(DUMPABLE, "0") in {"", "0"}:
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _clean_block(is_withheld: Callable[[str, str], bool]) -> None:
    """Puts stars in the place of values, in the environment that the system gave to this process at its start."""
    start, end = _block()
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, found, value = entry.partition(b"=")
        if found and value.strip(b"*") and is_withheld(os.fsdecode(name), os.fsdecode(value)):
            if (now := os.environ.get(os.fsdecode(name))) is not None:
                os.putenv(name, os.fsencode(now))  # the C library has a copy of its own then, elsewhere
            ctypes.memset(at + len(name) + 1, ord("*"), len(value))
        at += len(entry) + 1


@functools.cache
def _block() -> tuple[int, int]:
    """From where to where in memory the first environment is; (0, 0) if the system does not say, or it is not there.

    It is read through the system first, which refuses a wrong address; a process that may not read its own memory in
    that way is not dumpable already, and nobody else reads it.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])  # the fields 50 and 51: two stand before what is split here
        if not 0 < end - start <= _LARGEST:
            return 0, 0
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            return (start, end) if len(os.pread(memory.fileno(), end - start, start)) == end - start else (0, 0)
    except (OSError, IndexError, ValueError, OverflowError):
        return 0, 0

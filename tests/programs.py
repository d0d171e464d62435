"""Programs in processes of their own that share one start of Python and one import of Forkpoint.

    python -W error -m tests.programs

makes a child for each line of JSON on standard input, by ``os.fork``: ``[CODE, FOLDER, OUT, ERR]``. The child runs the
code as ``python -c`` does, in the folder, and writes to these two files. The program answers with how the child ended.
It has no thread and no event loop of its own, which a fork would cut in half.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Self

ROOT = Path(__file__).parents[1]


class Programs:
    """The program, started."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, folder: Path, said: Path) -> str:
        """What a program prints that must end well. ``said`` is a folder for its output, and not the program's own."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = said / "out", said / "err"
        print(json.dumps([code, *map(str, (folder, out, err))]), file=self._process.stdin, flush=True)
        ended = self._process.stdout.readline().strip()
        assert ended == "0", f"it does not run ({ended}):\n{err.read_text()}"
        return out.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _become(code: str, folder: str, out: str, err: str) -> None:
    """What a child does: all that it leaves to do at its end, Python does."""
    os.chdir(folder)
    for path, number in ((os.devnull, 0), (out, 1), (err, 2)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv, sys.path[0] = ["-c"], ""
    program = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), program.__dict__)


def main() -> None:
    import forkpoint.conversation
    import forkpoint.engine.engine
    import forkpoint.store.sqlite
    import forkpoint.testing  # noqa: F401 - what nearly every program needs

    for line in sys.stdin:
        child = os.fork()
        if not child:
            return _become(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


if __name__ == "__main__":
    main()

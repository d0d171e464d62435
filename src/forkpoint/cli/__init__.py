"""The program ``forkpoint``: commands and terminal output. It holds no rules: what it can do, the Python API can do.

`table` lists the commands, and `app` runs them: it imports a command's module when the command runs. `commands` has one
module for each group of commands; `output` says how results and errors look. `completion` answers a shell.
"""

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program, and exits; or answers a shell that completes a command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "_FORKPOINT_COMPLETE" in os.environ:
        from forkpoint.cli.completion.answer import answer

        answer(given)
    else:
        from forkpoint.cli.app import main as run  # after that question: it takes longer to load than to answer

        run(given)

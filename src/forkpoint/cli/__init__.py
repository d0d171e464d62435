"""The program ``forkpoint``: commands and terminal output. It holds no rules: what it can do, the Python API can do.

`table` lists the commands, and `app` runs them: it imports a command's module when the command runs. `commands` has one
module for each group of commands; `output` says how results and errors look.
"""

from forkpoint.cli.app import main

__all__ = ["main"]

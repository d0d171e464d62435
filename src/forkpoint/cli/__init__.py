"""The program ``forkpoint``: commands and terminal output. It holds no rules: what it can do, the Python API can do.

There is one module for each group of commands; `app` puts them together and `output` says how results and errors look.
"""

from forkpoint.cli.app import main

__all__ = ["main"]

"""``python -m forkpoint``: the program ``forkpoint``."""

from forkpoint.cli import main

main()

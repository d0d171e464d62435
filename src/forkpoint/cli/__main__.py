"""``python -m forkpoint.cli``: the program ``forkpoint``."""

from forkpoint.cli import main

main()

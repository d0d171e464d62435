"""``python -m forkpoint.cli``: the program ``forkpoint``."""

from forkpoint.cli.app import main

main()

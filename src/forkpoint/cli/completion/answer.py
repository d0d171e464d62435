"""The program's answer to a shell that completes a command line.

``_FORKPOINT_COMPLETE=words forkpoint show b`` gets the words, the last of which is not finished, and
``_FORKPOINT_COMPLETE=line forkpoint "forkpoint show b"`` a line as bash has it. The answer's first line says what
follows: ``words`` (a word on each line, and after a tab what it is), ``files`` or ``folders`` (the shell knows them).
Tests: tests/cli/test_completion.py.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress

from forkpoint.cli.completion.candidates import Candidates, candidates
from forkpoint.cli.completion.words import set_apart, split

VARIABLE = "_FORKPOINT_COMPLETE"


def answer(given: Sequence[str]) -> None:
    """Prints what may stand at the cursor. An error is not printed: it would stand in the middle of a command line."""
    is_line = os.environ.pop(VARIABLE) == "line"
    words = split(given[0] if given else "")[1:] if is_line else list(given)
    *before, word = words or [""]
    late = False
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # nor is a warning
            found = candidates(before, word)
    except Exception as error:
        found, late = Candidates("words"), isinstance(error, TimeoutError)
    apart = set_apart(word, os.environ.get("COMP_WORDBREAKS", "")) if is_line else 0
    with suppress(AttributeError):  # a test may have replaced the stream
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    print(found.kind)
    for value, help in found.words:
        print(f"{value[apart:]}\t{' '.join(help.split())}")
    sys.stdout.flush()
    if late:
        os._exit(0)  # else the program would end only when the store has answered

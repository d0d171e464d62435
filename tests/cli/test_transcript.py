"""Events in words, as `forkpoint show` has them."""

import pytest

from forkpoint.cli.transcript import told
from forkpoint.events import HookRun


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (HookRun("guard", "before_tool", exit_code=0), "guard (before tool) ran"),
        (HookRun("guard", "turn_end", blocked=True, reason="no"), "guard (turn end) blocked: no"),
        (
            HookRun("guard", "turn_start", reason="it ended with exit code 3"),
            "guard (turn start) failed: it ended with exit code 3",
        ),
    ],
)
def test_a_hook_ran_blocked_or_failed(run: HookRun, words: str) -> None:
    assert told(run) == ("hook", words)

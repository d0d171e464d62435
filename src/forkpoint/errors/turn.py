"""Errors of a turn that did not commit. Tests: tests/test_errors.py."""

from typing import Any, cast

from forkpoint.errors.error import ForkpointError, Surface


class TurnFailed(ForkpointError, code="turn_failed"):
    """Turn {id} did not commit, and the conversation is as it was: {why} {tools}

    Python: retry() runs the same input again from the last good state; resume() goes on after the last finished step.

    Command line: `forkpoint retry` runs the same input again from the last good state; `forkpoint resume` goes on after
    the last finished step.

    HTTP: Call /retry of the turn to run the same input again from the last good state, or /resume to go on after the
    last finished step.

    Chat: Send the request again to retry it.
    """

    id: str
    why: str
    tools: str = "It had run no tools."
    turn: "Any" = None  # the `Turn`, with what its tools did and what it cost
    cause: Exception | None = None  # the typed reason

    @property
    def in_words_of_its_cause(self) -> bool:
        """Whether ``why`` says what the cause says, so that the cause is what each surface shows."""
        return isinstance(self.cause, ForkpointError) and self.why in {self.cause.message(), str(self.cause)}

    def _words(self, surface: Surface | None) -> dict[str, Any]:
        why = cast("ForkpointError", self.cause).message(surface) if self.in_words_of_its_cause else self.why
        return {**vars(self), "why": why}


class TurnCancelled(TurnFailed, code="turn_cancelled"):
    """Turn {id} was cancelled, and the conversation is as it was: {why} {tools}

    Python: retry() runs the same input again from the last good state; resume() goes on after the last finished step.

    Command line: `forkpoint retry` runs the same input again from the last good state; `forkpoint resume` goes on after
    the last finished step.

    HTTP: Call /retry of the turn to run the same input again from the last good state, or /resume to go on after the
    last finished step.

    Chat: Send the request again to retry it.
    """


class LimitReached(ForkpointError, code="limit_reached"):
    """The turn reached its limit of {limit} {what}.

    Resume it with limits that are higher, or make it shorter.

    Command line: Resume it with a higher limit, as with `forkpoint resume NAME --limit-steps N`, or ask for less.

    Chat: Ask for less, or in several messages; whoever runs the server can raise the limit.
    """

    what: str
    limit: str


class HookBlocked(ForkpointError, code="hook_blocked"):
    """A hook did not let the turn go on at its {moment}: {why}.

    Say it in another way, or change the hooks and retry.

    Chat: Say it in another way.
    """

    moment: str
    why: str


class BadOutput(ForkpointError, code="bad_output"):
    """The answer does not have the form that was asked for, after {tries} tries: {why}.

    Make the form simpler, or use another model.
    """

    tries: int
    why: str

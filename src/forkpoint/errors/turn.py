"""Errors of a turn that did not commit. Tests: tests/test_errors.py."""

from typing import Any, cast

from forkpoint.errors.error import ForkpointError, Surface
from forkpoint.errors.form import form


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
        if not isinstance(self.cause, ForkpointError):
            return False
        return self._with_names(self.why) in {self.cause.message(), str(self.cause)}

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


class BudgetExceeded(ForkpointError, code="budget_exceeded"):
    """The budget of {whose} {how}: of {limit} {what}, {spent} are spent and {reserved} reserved by calls under
    way{more}.

    Raise the budget, and resume the turn; or wait until calls under way give back what they do not use.

    Python: Raise it with set_budget(), and go on with resume(), or run() if no turn has begun; or wait until calls
    under way give back what they do not use.

    Command line: Raise it with `forkpoint budget NAME`, and go on with `forkpoint resume`, or run it again if no turn
    has begun.

    HTTP: Raise it with PUT /api/conversations/ID/budget, and go on with /resume of the turn, or send the request again
    if no turn has begun.

    Chat: Ask for less; whoever runs the server can raise the budget.
    """

    whose: str  # "conversation ID" or "family ID"
    what: str  # dollars, tokens, turns or seconds
    limit: str
    spent: str
    reserved: str
    needed: str
    used_up: bool = False  # nothing is left of it, however little is needed

    def _words(self, surface: Surface | None) -> dict[str, Any]:
        how = "is used up" if self.used_up else "does not allow this"
        more = "" if self.used_up else f", and up to {self.needed} more may be needed"
        return {**vars(self), "how": how, "more": more}

    @form
    def budget_unpriced(self, whose: str, limit: str, model: str) -> None:
        """The budget of {whose} is in dollars ({limit}), and the price of {model} is not known.

        Give the model a price, or remove the limit in dollars.

        Python: Pass a price with LLM(price=Price(...)), or set a budget without dollars.
        """
        self.what, self.spent, self.reserved, self.needed = "dollars", "", "", ""


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

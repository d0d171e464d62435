"""Errors of a turn that did not commit. Tests: tests/test_errors.py."""

from typing import Any

from forkpoint.errors.error import ForkpointError


class TurnFailed(ForkpointError, code="turn_failed"):
    """Turn {id} did not commit, and the conversation is as it was: {why} {tools} retry() runs the same input again from
    the last good state; resume() goes on after the last finished step."""

    id: str
    why: str
    tools: str = "It had run no tools."
    turn: "Any" = None  # the `Turn`, with what its tools did and what it cost
    cause: Exception | None = None  # the typed reason


class TurnCancelled(TurnFailed, code="turn_cancelled"):
    """Turn {id} was cancelled, and the conversation is as it was: {why} {tools} retry() runs the same input again from
    the last good state; resume() goes on after the last finished step."""


class LimitReached(ForkpointError, code="limit_reached"):
    """The turn reached its limit of {limit} {what}. Resume it with limits that are higher, or make it shorter."""

    what: str
    limit: str


class HookBlocked(ForkpointError, code="hook_blocked"):
    """A hook did not let the turn go on at its {moment}: {why}. Say it in another way, or change the hooks and
    retry."""

    moment: str
    why: str


class BadOutput(ForkpointError, code="bad_output"):
    """The answer does not have the form that was asked for, after {tries} tries: {why}. Make the form simpler, or use
    another model."""

    tries: int
    why: str

"""Approval: which calls wait until somebody has said yes. Several policies together ask whenever one of them asks.
Tests: tests/conversation/test_approval.py, tests/agent/test_unattended.py."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from forkpoint.agent.arguments import typed
from forkpoint.agent.tool import Tool
from forkpoint.errors import BadAgent
from forkpoint.events import ToolCall

Asker: TypeAlias = Callable[[ToolCall, Tool], bool | str]
"""Decides whether a call must be approved first. A text is the reason that is shown."""

Policy: TypeAlias = Literal["never", "always", "risky"] | Asker
"""Which calls wait for somebody's approval: none, all, those of risky tools, or those that a function says."""

Approval: TypeAlias = Policy | tuple[Policy, ...]
"""One policy, or several: then a call waits if any of them asks, and the first reason is shown."""


def approval_of(given: Any) -> Approval:
    """The same approval in its plainest form, so that equal ones are equal. Raises `BadAgent`.

    Several in one another are one row; what never asks and what stands there twice is left out, and whoever always
    asks decides alone.
    """
    row: list[Policy] = []
    for policy in _row(given):
        if policy != "never" and policy not in row:
            row.append(policy)
    if "always" in row:
        return "always"
    return tuple(row) if len(row) > 1 else row[0] if row else "never"


def policies(approval: Approval) -> tuple[Policy, ...]:
    """All policies of an approval; none if it never asks."""
    if isinstance(approval, tuple):
        return approval
    return () if approval == "never" else (approval,)


def why_asked(approval: Approval, call: ToolCall, tool: Tool | None) -> str | None:
    """The first reason to ask before a call; None if nobody has one. Raises what a policy raises."""
    reasons = (_why(policy, call, tool) for policy in policies(approval))
    return next((reason for reason in reasons if reason is not None), None)


def _why(policy: Policy, call: ToolCall, tool: Tool | None) -> str | None:
    match policy:
        case "never":
            return None
        case "always":
            return "every call is to be approved"
        case "risky":
            return "the tool is risky" if tool is not None and tool.risky else None
        case asker:
            said = asker(call, tool) if tool is not None else False
            return said if isinstance(said, str) and said else "the policy asks for it" if said else None


def _row(given: Any) -> list[Policy]:
    if isinstance(given, tuple):
        return [policy for one in given for policy in _row(one)]
    if not callable(given) and given not in ("never", "always", "risky"):
        raise BadAgent(
            f"its approval policy is {given!r}, and must be never, always, risky or a function, or a tuple of those"
        )
    if inspect.iscoroutinefunction(typed(given)):
        raise BadAgent("its approval policy is async, and must decide at once")
    return [given]

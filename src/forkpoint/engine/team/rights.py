"""A sub-agent never has more rights than its parent has now.

The parent may have become stricter since it made the sub-agent. So each turn of a sub-agent also asks about everything
that its parents would have to ask about today, whoever asks for the turn.
Tests: tests/conversation/test_sub_agents.py.
"""

from collections.abc import Iterable
from operator import attrgetter

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent, Unattended
from forkpoint.agent.approval import Approval
from forkpoint.agent.hooks.hook import Hook, StoredHook, hooks_of
from forkpoint.agent.stored.document import StoredPolicy
from forkpoint.agent.stored.functions import find_hooks, find_policies
from forkpoint.backend.settings import Settings
from forkpoint.errors import NotFound
from forkpoint.store.protocol import Store


class _StoredApproval(Struct, frozen=True):
    """As much of a stored agent as tells what it has to ask about."""

    approval: StoredPolicy | tuple[StoredPolicy, ...] = "never"
    unattended: Unattended = "deny"
    hooks: tuple[StoredHook, ...] = ()


async def beneath(store: Store, settings: Settings, agent: Agent, above: Agent | None) -> Agent:
    """The agent of a sub-agent's turn, with no more rights than all above it have. ``above`` is its parent's agent, if
    that is at hand."""
    approval: list[Approval] = [] if above is None else [above.approval]
    unattended: list[Unattended] = [] if above is None else [above.unattended]
    hooks: list[Hook] = [] if above is None else [*above.hooks]
    of = settings.sub_agent
    while of is not None:
        try:
            theirs = Settings.from_json((await store.read(of.parent)).settings)
        except NotFound:  # it was deleted, and what it was made with is all that is known
            break
        said = _said_by(theirs)
        approval += _policies(said.approval, above or agent)
        unattended.append(said.unattended)
        found = find_hooks(said.hooks, above or agent, [])
        hooks += found
        if len(found) < len(said.hooks):
            approval.append("always")  # what a hook would have decided, somebody has to
        of = theirs.sub_agent
    if not approval and not unattended:
        return agent
    stricter = agent.replace(
        approval=(*approval, agent.approval),
        unattended="deny" if "deny" in (*unattended, agent.unattended) else "run",
        hooks=hooks_of((*hooks, *agent.hooks)),
    )
    rights = attrgetter("approval", "unattended", "hooks")
    same = rights(stricter) == rights(agent)
    return agent if same else stricter


def _said_by(settings: Settings) -> _StoredApproval:
    try:
        return msgspec.json.decode(settings.agent_json or "{}", type=_StoredApproval)
    except msgspec.ValidationError:
        is_named = (settings.agent_json or "").startswith('"')  # one of a server's own, looked up when it is made
        return _StoredApproval() if is_named else _StoredApproval("always")  # nobody knows what it has to ask about


def _policies(stored: StoredPolicy | tuple[StoredPolicy, ...], given: Agent) -> Iterable[Approval]:
    """The policies, their functions taken from the agent at hand; one that is not here asks about every call."""
    return find_policies(stored if isinstance(stored, tuple) else (stored,), given, [], same=False)

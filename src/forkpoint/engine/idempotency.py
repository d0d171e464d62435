"""Idempotency: what tells one request from another that has the same key.

The digests are stored with the keys: a change here would refuse repeats of requests that were made before it.
Tests: tests/conversation/test_idempotency.py, test_fork_keys.py.
"""

import hashlib
import json
from collections.abc import Mapping

import msgspec
from msgspec.structs import asdict

from forkpoint.backend.options import Draft, ForkOptions, NewTurn, SpawnOptions
from forkpoint.engine.views import stored_tags
from forkpoint.events import JsonText, Position, UserMessage
from forkpoint.store.values import IdempotencyKey


def turn_key(new: NewTurn, input: JsonText) -> IdempotencyKey | None:
    """The key of a turn, bound to its input and to what it takes the place of; None if it has none."""
    if new.key is None:
        return None
    if new.how.request is not None:
        return IdempotencyKey(new.key, bytes.fromhex(new.how.request))
    asked = f"{new.retry_of or ''}\0{new.supersede}\0{input}"
    return IdempotencyKey(new.key, hashlib.sha256(asked.encode()).digest())


def go_on_key(new: NewTurn, base: Position | None, manifest: str) -> IdempotencyKey | None:
    """The key of a turn without input, bound to its base and its manifest, and to what it retries; or None."""
    if new.key is None:
        return None
    asked = f"go on\0{new.retry_of or ''}\0{base}\0{manifest}"
    return IdempotencyKey(new.key, hashlib.sha256(asked.encode()).digest())


def create_key(key: str | None, draft: Draft) -> IdempotencyKey | None:
    """The key of a new conversation, bound to all that was asked of it."""
    if key is None:
        return None
    settings = draft.settings if draft.asked is None else draft.asked
    asked = _new(draft) | {"settings": settings.to_json(), "asked": None}
    if draft.history is None:  # absent where nothing was asked, as in digests that were made before this
        del asked["history"]
    else:
        asked["history"] = {"format": draft.history.format, "messages": draft.history.messages}
    return _bound(key, asked)


def fork_key(key: str | None, options: ForkOptions) -> IdempotencyKey | None:
    """The key of a fork, bound to all that was asked of it."""
    if key is None:
        return None
    agent = options.agent.to_json() if options.agent else None
    point = {"at": _place(options.at), "before": _place(options.before)}
    asked = _new(options) | point | {"agent": agent}
    for name in ("results", "state"):  # absent where nothing was asked, as in digests that were made before these
        if given := asked.pop(name):
            asked[name] = msgspec.json.encode(given, order="sorted").decode()
    return _bound(key, asked)


def rewind_key(key: str | None, at: str | Position | None, before: str | Position | None) -> IdempotencyKey | None:
    """The key of a rewind, bound to where it goes."""
    return None if key is None else _bound(key, {"at": _place(at), "before": _place(before)})


def keep_key(key: str | None, branch: str) -> IdempotencyKey | None:
    """The key of a keep, bound to the branch as the caller named it: its name may be another's by the time of a
    repeat."""
    return None if key is None else _bound(key, {"branch": branch})


def bring_key(key: str | None, branch: str, what: str) -> IdempotencyKey | None:
    """The key of a request to bring something, bound to what is brought and from where, as the caller named it."""
    return None if key is None else _bound(key, {"bring": what, "branch": branch})


def spawn_key(key: str | None, parent: str, options: SpawnOptions) -> IdempotencyKey | None:
    """The key of a new sub-agent, bound to its parent and all that was asked of it."""
    if key is None:
        return None
    agent = None if options.agent is None else options.agent.to_json()
    task = options.task
    asked = (parent, task.task, task.role, agent, task.agent, task.model, task.nickname)
    own = () if options.budget is None else (options.budget,)
    said = (*asked, task.fork, options.title, sorted(options.tags.items()), *own)
    return IdempotencyKey(key, hashlib.sha256(msgspec.json.encode(said)).digest())


def reach_key(key: str | None, id: str, agent: str) -> IdempotencyKey | None:
    """The key of a request to reach a sub-agent."""
    return None if key is None else IdempotencyKey(key, hashlib.sha256(f"reach {id} {agent}".encode()).digest())


def steer_key(key: str | None, message: UserMessage) -> IdempotencyKey | None:
    """The key of a message for an open turn. Which turn that is, the first request has decided."""
    return (
        None if key is None else IdempotencyKey(key, hashlib.sha256(b"steer " + msgspec.json.encode(message)).digest())
    )


def _bound(key: str, asked: Mapping[str, object]) -> IdempotencyKey:
    return IdempotencyKey(key, hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest())


def _new(new: Draft | ForkOptions) -> dict[str, object]:
    """What was asked of a new conversation. An id that nobody chose differs with each try, so it is left out."""
    asked = asdict(new) | {"id": new.id if new.chosen and new.name is None else None, "tags": stored_tags(new.tags)}
    asked.pop("beside", None)  # such a branch begins with a turn, whose key says what was asked
    for name in ("budget", "family_budget"):  # without one, it is the same request as before there were budgets
        if (budget := asked.pop(name, None)) is not None:
            asked[name] = msgspec.to_builtins(budget)
    return asked


def _place(point: str | Position | None) -> str | None:
    return None if point is None else str(point)

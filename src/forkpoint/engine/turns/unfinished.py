"""Unfinished paths: where a turn can go on without input, and which turn did so under a key.

A go-on has no input that its key could be bound to. What tells one request from another is where it goes on and with
which manifest. After its commit the head stands elsewhere, so the base of the turn that the key made is looked up
first. Tests: tests/conversation/test_go_on.py.
"""

from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.messages import goes_on
from forkpoint.backend.options import NewTurn
from forkpoint.engine.conversation_cache import check_idle, check_revision
from forkpoint.engine.idempotency import go_on_key
from forkpoint.engine.turns.path import read_ending
from forkpoint.engine.turns.plan import Planner
from forkpoint.errors import CannotResume, KeyReused, NothingToRun
from forkpoint.store.protocol import Store
from forkpoint.store.values import IdempotencyKey, StoredConversation, StoredTurn

ANSWERED = "it ends in a finished answer"
EMPTY = "nothing was said in it yet"
HANDED = "calls of the client's own tools wait for their results ({calls})"


class UnfinishedPaths:
    """Decides what may go on in a store's conversations."""

    def __init__(self, store: Store, planner: Planner) -> None:
        self._store = store
        self._planner = planner

    async def gone_on(self, id: str, agent: Agent, new: NewTurn) -> StoredTurn | None:
        """The turn that an earlier go-on with this key began; None if the key is free. Raises `KeyReused`."""
        if new.key is None:
            return None
        made = await self._store.made_with(IdempotencyKey(new.key, None), "turn", id)
        if made is None:
            return None
        assert isinstance(made, StoredTurn)
        try:
            manifest = self._manifest(await self._store.read(id), agent, new)
        except CannotResume:  # a repeat finds its turn, even if nothing could begin any more
            if goes_on(made.input):
                return made
            raise KeyReused(new.key) from None
        asked = made
        while True:
            key = go_on_key(new, asked.base, manifest)
            assert key is not None
            try:
                await self._store.made_with(key, "turn", id)
                return made
            except KeyReused:
                if asked.retry_of is None:
                    raise
                asked = await self._store.turn(asked.retry_of)  # a retry has taken over the key, perhaps elsewhere

    async def next(self, id: str, agent: Agent, new: NewTurn) -> tuple[NewTurn, IdempotencyKey | None]:
        """The same request, bound to where the path ends now, and its key.

        Raises `NothingToRun` if the path ends in a finished answer, is empty, or waits for its client; and `Busy`,
        `TurnOpen` or `Stale`.
        """
        record = await self._store.read(id)
        check_revision(record, new.if_revision)
        await check_idle(self._store, record)
        await self._check(record)
        key = go_on_key(new, record.head.position, self._manifest(record, agent, new)) if new.key is not None else None
        return replace(new, if_revision=record.revision), key

    async def _check(self, record: StoredConversation) -> None:
        if waiting := record.head.open_calls.client:
            why = HANDED.format(calls=", ".join(waiting[:10]))
            raise NothingToRun.going_on(record.id, why, ", or the results: run(results=...)")
        match await read_ending(self._store, record.id, record.head.position):
            case "empty":
                raise NothingToRun.going_on(record.id, EMPTY)
            case "answered" | "handed":
                raise NothingToRun.going_on(record.id, ANSWERED)
            case "unfinished":
                pass

    def _manifest(self, record: StoredConversation, agent: Agent, new: NewTurn) -> str:
        """The hash of the manifest, without what MCP servers list: that may be another by the time of a repeat."""
        answers = self._planner.agent_for(record.settings, agent, new.how.allow)
        return (answers.replace(mcp=()) if answers.mcp else answers).manifest.hash

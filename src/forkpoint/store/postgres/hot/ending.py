"""The end of a turn that failed or was cancelled, in one statement.
Tests: tests/postgres/test_hot_turns.py, forkpoint.testing.conformance."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal

from forkpoint.events import Usage
from forkpoint.history import records
from forkpoint.history.records import Fact
from forkpoint.ids import id_to_bytes
from forkpoint.store.postgres.hot.statement import compose
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.evidence.records import base_of, turn_facts
from forkpoint.store.tables.operations import turns
from forkpoint.store.tables.rows import Scope, blob, dumps, turn_of
from forkpoint.store.values import OpenTurn, StoredTurn, TurnError


class Ending:
    """The end of a turn that stood at the head, and that this writer knows as it is."""

    def __init__(
        self, scope: Scope, turn: OpenTurn, kind: Literal["failed", "cancelled"], error: TurnError | None, usage: Usage
    ) -> None:
        """``usage`` is what was spent last."""
        self.turn = turn
        self._scope = scope
        id, conversation = id_to_bytes(turn.id), id_to_bytes(turn.conversation)
        row: dict[str, Any] = {
            "id": id,
            "outcome": kind,
            "usage": dumps(turn.usage + usage),
            "started": turn.started,
            "ended": scope.now,
            "by": turn.by,
            "retry_of": blob(turn.retry_of),
            "input": turn.input,
            "error": None if error is None else dumps(error),
            "steps_digest": turn.steps_digest,
            "steered": turn.steered,
        }
        salt = records.new_salt()
        facts = turn_facts(row, salt, base=base_of(turn.base), end=None)
        body = records.encode(Fact(kind=kind, time=scope.now, by=scope.by, turn=facts))
        parameters = {
            "tenant": scope.tenant,
            "conversation": conversation,
            "turn": id,
            "token": turn.token,
            "staged": turn.staged,
            "steps": turn.steps_digest,
            "steered": turn.steered,
            "input": turn.input,
            "spent": dumps(turn.usage),
            "outcome": kind,
            "error": row["error"],
            "usage": row["usage"],
            "chain": records.conversation_chain(conversation),
            "body": body,
            "body_digest": sha256(body.encode()).digest(),
            "salt": salt,
            "now": scope.now,
        }
        self.statement: tuple[bytes, list[Any]] = compose("end_at_once", {}, parameters)

    def done(self, row: Mapping[str, Any]) -> StoredTurn:
        return turn_of(row, self._scope)

    def read(self, db: Database, scope: Scope) -> StoredTurn | None:
        """The turn from the database, if nobody heard what the statement has answered. None: it still runs."""
        if turns.is_held(db, scope, self.turn.id, self.turn.token):
            return None
        return turns.read(db, scope, self.turn.id)

"""The begin of a turn in one statement. Tests: tests/postgres/test_hot_turns.py, forkpoint.testing.conformance."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from forkpoint.events import JsonText
from forkpoint.ids import id_to_bytes
from forkpoint.store.postgres.hot.statement import compose
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import turns
from forkpoint.store.tables.operations.conversations import MINUTE
from forkpoint.store.tables.rows import Scope, head_of, possible_revision, state_or_empty
from forkpoint.store.values import IdempotencyKey, OpenTurn

WITH_KEY = ("begin_key", "begin_key_guard", "begin_key_row")
"""The parts of the statement that belong to an idempotency key. Most turns of a program have none."""


class Begin:
    """The begin of a turn at the head of a conversation."""

    def __init__(
        self,
        scope: Scope,
        conversation: str,
        turn: str,
        *,
        token: bytes,
        input: JsonText | None,
        if_revision: int | None,
        if_name: str | None,
        key: IdempotencyKey | None,
        by: str | None,
        accepted: bool,
        beat: Mapping[str, Any] | None,
    ) -> None:
        """``beat`` says who holds the turn, if that has to be said again."""
        self.turn, self.token, self.input, self.by = turn, token, input, by
        self._conversation = conversation
        self._started = scope.now
        parameters = {
            "tenant": scope.tenant,
            "conversation": id_to_bytes(conversation),
            "turn": id_to_bytes(turn),
            "token": token,
            "holder": scope.holder,
            "input": input,
            "revision": possible_revision(if_revision),
            "name": if_name,
            "key": None if key is None else key.key,
            "request": None if key is None else key.request,
            "by": by,
            "accepted": int(accepted),
            "now": scope.now,
            "minute": MINUTE,
        }
        parts = (*(() if key is None else WITH_KEY), *(() if beat is None else ("begin_beat",)))
        self.statement: tuple[bytes, list[Any]] = compose(
            "begin_at_once", dict.fromkeys(parts, ()), parameters | dict(beat or {})
        )

    def done(self, row: Mapping[str, Any]) -> OpenTurn | None:
        """The turn's handle. None if its folded state has to be read: the head has moved while the statement waited."""
        base = head_of(row)
        if base.state is not None:
            state = base.state
        elif base.state_of is not None and row["folded"] is None:
            return None
        else:
            state = state_or_empty(row["folded"])
        taken = turns.handle_at(
            row, self.turn, self.token, base, row["open_segment"], state, started=self._started, by=self.by
        )
        return replace(taken, input=self.input, erasures=row["erasures"])

    def read(self, db: Database, scope: Scope) -> OpenTurn | None:
        """The handle from the database, if nobody heard what the statement has answered. None: it was not done."""
        if not turns.is_held(db, scope, self.turn, self.token):
            return None
        return turns.handle(db, scope, self._conversation, self.turn, self.token)

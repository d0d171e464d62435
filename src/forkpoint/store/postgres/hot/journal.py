"""The steps of a turn in one statement. Tests: tests/postgres/test_hot_turns.py, forkpoint.testing.conformance."""

from typing import Any

from forkpoint.events import JsonText, Usage
from forkpoint.ids import id_to_bytes
from forkpoint.store.postgres.hot.statement import compose
from forkpoint.store.stage import Staged
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import turns
from forkpoint.store.tables.rows import Scope, dumps
from forkpoint.store.values import OpenTurn


class Journal:
    """A write to a turn's journal that can be one statement."""

    def __init__(self, scope: Scope, turn: OpenTurn, staged: Staged, usage: Usage) -> None:
        self.turn = turn
        links = turns.step_links(turn, staged)
        self.digest = links[-1].chain_digest if links else turn.steps_digest
        self._staged = turn.staged + len(links)
        self._usage = usage
        parameters = {
            "tenant": scope.tenant,
            "turn": id_to_bytes(turn.id),
            "token": turn.token,
            "staged": turn.staged,
            "more": len(links),
            "steps": self.digest,
            "usage": dumps(usage),
        }
        rows = [(link.envelope, link.payload, link.salt, link.payload_digest) for link in links]
        self.statement: tuple[bytes, list[Any]] = compose(
            "journal_at_once", {"journal_steps": rows} if rows else {}, parameters
        )

    def done(self, steered: JsonText | None) -> tuple[bytes | None, JsonText | None, bool]:
        """What `turns.journal` returns: the digest of all steps, what was steered to the turn, and that no budget
        counts it."""
        return self.digest, steered, False

    def read(self, db: Database, scope: Scope) -> tuple[bytes | None, JsonText | None, bool] | None:
        """The same from the turn's row, if nobody heard what the statement has answered. None: it was not done."""
        if not turns.journalled(db, scope, self.turn.id, self._staged, self._usage):
            return None
        row = turns.find(db, scope, self.turn.id)
        return None if row is None or row["steps_digest"] != self.digest else self.done(row["steered"])

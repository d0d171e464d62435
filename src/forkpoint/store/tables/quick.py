"""Quick writes: what a database may have for the most frequent writes, beside the operations that all databases share.

On a database that is reached over a network, a transaction of a dozen statements is a dozen round trips. So a store may
do a write in one statement. Each method here does so, or returns None if the write is not a plain one and nothing was
written: then the shared operation runs, which also finds out what to tell the caller.
Tests: forkpoint.testing.conformance, which every store passes, whether it has them or not.
"""

from typing import Literal, Protocol

from forkpoint.events import JsonText, Usage
from forkpoint.store.stage import Staged
from forkpoint.store.values import Committed, IdempotencyKey, OpenTurn, StoredTurn, TurnError


class QuickWrites(Protocol):
    """The writes of a turn, each in one statement. They raise as the shared operations do."""

    async def begin(
        self,
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
    ) -> OpenTurn | None:
        """Begins a turn at the head of a conversation that is there and free, and whose family has no budget.

        It is synced only if it is ``accepted``: then somebody is promised the turn.
        """
        ...

    async def journal(
        self, turn: OpenTurn, staged: Staged, usage: Usage
    ) -> tuple[bytes | None, JsonText | None, bool] | None:
        """Stores steps, and returns what `turns.journal` does. ``usage`` is all that the turn has spent."""
        ...

    async def commit(
        self, turn: OpenTurn, staged: Staged, usage: Usage, *, settings: JsonText | None, cache: JsonText | None
    ) -> Committed | None:
        """Makes a turn history that stands at the head. ``usage`` is all that the turn has spent."""
        ...

    async def end(
        self, turn: OpenTurn, kind: Literal["failed", "cancelled"], error: TurnError | None, usage: Usage
    ) -> StoredTurn | None:
        """Ends a turn as failed or cancelled. ``usage`` is what was spent last."""
        ...

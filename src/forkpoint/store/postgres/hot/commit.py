"""The commit of a turn as one statement: its parameters, and what it has come to.
Tests: tests/postgres/test_hot_commit.py, forkpoint.testing.conformance."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.events import JsonText, Position, Usage
from forkpoint.history import records
from forkpoint.history.steers import steers_among, with_delivered
from forkpoint.ids import id_to_bytes
from forkpoint.store.postgres.hot.statement import compose
from forkpoint.store.stage import Sealed, Staged, chain
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.erasure.copied_events import copy_rows
from forkpoint.store.tables.operations import turns
from forkpoint.store.tables.operations.commits import commit_fact, committed_columns, head_after
from forkpoint.store.tables.operations.landmarks import landmark_rows
from forkpoint.store.tables.rows import Scope, pack, unpack
from forkpoint.store.values import Committed, Head, OpenTurn


class Commit(Struct, frozen=True):
    """A commit that can be one statement."""

    turn: OpenTurn
    head: Head  # without its position, if the segment is not known yet
    ordinal: int
    ended: int
    statement: tuple[bytes, list[Any]]

    def done(self, segment: int) -> Committed:
        """What the commit has come to, once it is known in which segment its events stand."""
        first, last = Position(segment, self.turn.base.ordinal + 1), Position(segment, self.ordinal)
        head = replace(self.head, position=last)
        return Committed(
            self.turn.conversation, self.turn.id, self.turn.revision + 1, head, first, last, ended=self.ended
        )

    def read(self, db: Database, scope: Scope) -> Committed | None:
        """The same from the turn's row, if nobody heard what the statement has answered. None: it was not done."""
        row = turns.find(db, scope, self.turn.id)
        end = None if row is None or row["outcome"] != "committed" else unpack(row["end"])
        return None if end is None else self.done(end.segment)


def prepare(
    scope: Scope,
    turn: OpenTurn,
    sealed: Sequence[Sealed],
    staged: Staged,
    usage: Usage,
    *,
    settings: JsonText | None,
    cache: JsonText | None,
) -> Commit:
    """The commit of a turn that stands at the head. ``sealed`` are all of its events, those of its journal first."""
    id, conversation = id_to_bytes(turn.id), id_to_bytes(turn.conversation)
    links = chain(sealed, digest=turn.base.digest, turn=id, calls=turn.base.open_calls)
    ordinal = turn.base.ordinal + len(links)
    head = replace(head_after(turn, staged, usage), position=None, digest=links[-1].chain_digest)
    delivered = with_delivered(turn.steered, steers_among([event.envelope for event in staged.events]))
    # The record says where the head is by its ordinal, and not in which segment: that may not be known yet.
    placed = replace(head, position=Position(turn.segment or 0, ordinal))
    salt = records.new_salt()
    told = replace(turn, steered=delivered)
    body = records.encode(commit_fact(scope, told, placed, usage, salt, settings=settings, cache=cache))
    columns = committed_columns(turn, staged, usage, head)
    del columns["id"]
    parameters = columns | {
        "tenant": scope.tenant,
        "conversation": conversation,
        "turn": id,
        "revision": turn.revision,
        "token": turn.token,
        "staged": turn.staged,
        "steered": turn.steered,
        "delivered": delivered,
        "erasures": turn.erasures,
        "family": id_to_bytes(turn.family),
        "base": pack(turn.base.position),
        "base_digest": turn.base.digest,
        "base_ordinal": turn.base.ordinal,
        "ordinal": ordinal,
        "head_digest": head.digest,
        "chain": records.conversation_chain(conversation),
        "body": body,
        "body_digest": sha256(body.encode()).digest(),
        "salt": salt,
        "settings": settings,
        "cache": cache,
        "now": scope.now,
    }
    parts: dict[str, Sequence[Sequence[Any]]] = {
        "commit_at_once": [
            (link.envelope, link.payload, link.salt, link.payload_digest, link.chain_digest) for link in links
        ]
    }
    if turn.staged:
        parts["commit_steps"] = ()
    if marks := landmark_rows(1, sealed, links):
        parts["commit_landmarks"] = marks
    if copies := copy_rows(1, sealed, links):
        parts["commit_copies"] = copies
    return Commit(turn, head, ordinal, scope.now, compose("commit_at_once", parts, parameters))

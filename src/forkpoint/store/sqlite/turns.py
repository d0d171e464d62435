"""Operations on turns: each a function of its inputs, run inside a transaction and fenced by the turn's token."""

import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from forkpoint.errors import BadCursor, Busy, NotFound, NotResumable, Stale, TurnLost, TurnOpen
from forkpoint.events import JsonText, Position, Usage
from forkpoint.history.digests import Link
from forkpoint.history.state import fold
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.records import (
    Committed,
    Head,
    IdempotencyKey,
    NewConversation,
    OpenTurn,
    Outcome,
    Page,
    TurnError,
    TurnRecord,
)
from forkpoint.store.sqlite import conversations, idempotency
from forkpoint.store.sqlite.connection import SQL, Connection
from forkpoint.store.sqlite.history import read_path, read_state, read_steps
from forkpoint.store.sqlite.rows import (
    Scope,
    blob,
    dumps,
    head_columns,
    head_of,
    outcome_of,
    pack,
    possible_revision,
    turn_of,
)
from forkpoint.store.staging import Staged


def begin(
    db: Connection,
    scope: Scope,
    conversation: str,
    turn: str,
    *,
    token: bytes,
    input: JsonText | None,
    retry_of: str | None,
    create: NewConversation | None,
    supersede: bool,
    if_revision: int | None,
    key: IdempotencyKey | None,
) -> OpenTurn | TurnRecord:
    """Takes the lock of a conversation for a new turn; or returns the turn that the key already made."""
    if made := idempotency.find(db, scope, key, "turn"):
        return read(db, scope, id_from_bytes(made))  # before the lock: a repeat joins, it does not hear "busy"
    row = _take_lock(db, scope, conversation, turn, if_revision)
    if row is None:
        _make_way(db, scope, conversation, create=create, supersede=supersede, if_revision=if_revision)
        row = _take_lock(db, scope, conversation, turn, if_revision)
        if row is None:
            raise NotFound("conversation", conversation)
    idempotency.take(db, scope, key, "turn", turn)
    parameters = {
        "id": id_to_bytes(turn),
        "tenant": scope.tenant,
        "conversation": row["id"],
        "kind": "turn",
        "outcome": "running",
        "base": row["head"],
        "end": None,
        "holder": scope.holder,
        "token": token,
        "input": input,
        "usage": "{}",
        "totals": row["head_totals"],
        "state_of": row["head_state_of"],
        "state": None,
        "open_calls": "{}",
        "retry_of": blob(retry_of),
        "now": scope.now,
        "ended": None,
    }
    db.execute(SQL["insert_turn"], parameters)
    return _open_turn(db, row, turn, token)


def journal(db: Connection, scope: Scope, turn: OpenTurn, staged: Staged, usage: Usage) -> None:
    """Stores steps, if the turn is still this writer's."""
    id = id_to_bytes(turn.id)
    spent = db.execute(SQL["spend"], {"id": id, "token": turn.token, "usage": dumps(usage)})
    if spent.rowcount != 1:
        raise _lost(db, scope, turn.id)
    first = turn.base.ordinal + turn.staged + 1
    db.executemany(SQL["insert_step"], _rows(first, id, staged.links))


def commit(db: Connection, scope: Scope, turn: OpenTurn, staged: Staged, usage: Usage) -> Committed:
    """Makes the turn history: its row by compare-and-set, its events, and the head, in this order."""
    count = turn.staged + len(staged.links)
    id = id_to_bytes(turn.id)
    ordinal = turn.base.ordinal + count
    head = _head_after(turn, staged, usage)
    parameters = {
        "id": id,
        "token": turn.token,
        "end": None if turn.segment is None else turn.segment << 32 | ordinal,
        "usage": dumps(usage),
        "totals": dumps(head.totals),
        "state_of": blob(head.state_of),
        "state": dumps(staged.state) if head.state_of == turn.id else None,
        "open_calls": dumps(head.open_calls),
        "now": scope.now,
    }
    if db.execute(SQL["commit_turn"], parameters).rowcount != 1:
        raise _lost(db, scope, turn.id)
    segment = turn.segment
    if segment is None:
        segment = _open_segment(db, scope, id_to_bytes(turn.family), turn.base)
        db.execute(SQL["place_turn"], {"id": id, "end": segment << 32 | ordinal})
    first = Position(segment, turn.base.ordinal + 1)
    last = Position(segment, ordinal)
    head = replace(head, position=last)
    if turn.staged:
        db.execute(SQL["steps_become_events"], {"turn": id, "segment": segment})
        db.execute(SQL["delete_steps"], {"turn": id})
    _insert_events(db, id, Position(segment, first.ordinal + turn.staged), staged.links)
    _move_head(db, scope, turn.conversation, head, revision=turn.revision, segment=segment, open_turn=turn.id)
    return Committed(turn.conversation, turn.id, turn.revision + 1, head, first, last)


def note(
    db: Connection,
    scope: Scope,
    base: OpenTurn,
    staged: Staged,
    *,
    usage: Usage,
    settings: JsonText | None,
    cache: JsonText | None,
) -> Committed:
    """A commit that is not a turn. It needs no lock of its own, only that nobody moved the head meanwhile."""
    segment = base.segment or _open_segment(db, scope, id_to_bytes(base.family), base.base)
    first = Position(segment, base.base.ordinal + 1)
    last = Position(segment, base.base.ordinal + len(staged.links))
    head = replace(_head_after(base, staged, usage), position=last)
    parameters = {
        "id": id_to_bytes(base.id),
        "tenant": scope.tenant,
        "conversation": id_to_bytes(base.conversation),
        "kind": "note",
        "outcome": "committed",
        "base": pack(base.base.position),
        "end": pack(last),
        "holder": None,
        "token": None,
        "input": None,
        "usage": dumps(usage),
        "totals": dumps(head.totals),
        "state_of": blob(head.state_of),
        "state": dumps(staged.state) if head.state_of == base.id else None,
        "open_calls": dumps(head.open_calls),
        "retry_of": None,
        "now": scope.now,
        "ended": scope.now,
    }
    db.execute(SQL["insert_turn"], parameters)
    _insert_events(db, id_to_bytes(base.id), first, staged.links)
    _move_head(
        db,
        scope,
        base.conversation,
        head,
        revision=base.revision,
        segment=segment,
        open_turn=None,
        settings=settings,
        cache=cache,
    )
    return Committed(base.conversation, base.id, base.revision + 1, head, first, last)


def base_for_note(db: Connection, scope: Scope, conversation: str, note: str, if_revision: int | None) -> OpenTurn:
    """Where a note would stand. Raises if a turn holds the conversation."""
    row = conversations.row_of(db, scope, conversation)
    conversations.check_revision(row, if_revision)
    conversations.check_free(row, scope)
    return _open_turn(db, row, note, b"")


def end(
    db: Connection, scope: Scope, turn: OpenTurn, outcome: Outcome, error: TurnError | None, usage: Usage
) -> TurnRecord:
    """Ends a running turn as failed or cancelled. The head has not moved."""
    _leave_running(db, scope, turn, outcome, error, usage, ended=scope.now)
    _release(db, scope, id_to_bytes(turn.id), id_to_bytes(turn.conversation))
    return read(db, scope, turn.id)


def wait(db: Connection, scope: Scope, turn: OpenTurn, staged: Staged, usage: Usage) -> TurnRecord:
    """Parks a running turn until somebody approves or denies. The conversation stays taken."""
    if staged.links:
        journal(db, scope, turn, staged, usage)
    _leave_running(db, scope, turn, "awaiting_approval", None, usage, ended=None)
    return read(db, scope, turn.id)


def resume(db: Connection, scope: Scope, id: str, token: bytes) -> OpenTurn:
    """Takes over a turn that no process runs, under a new token."""
    row = _turn_row(db, scope, id)
    outcome = outcome_of(row, scope)
    conversation = id_from_bytes(row["conversation"])
    match outcome:
        case "running":
            raise Busy(conversation, id)
        case "committed":
            raise NotResumable(id, outcome, "it is part of history already")
        case "failed" | "cancelled":
            _reopen(db, scope, id, row, outcome)
        case "awaiting_approval" | "interrupted":
            pass
    parameters = {
        "id": row["id"],
        "holder": scope.holder,
        "token": token,
        "old_token": row["token"],
        "outcome": row["outcome"],
    }
    if db.execute(SQL["take_over"], parameters).rowcount != 1:
        raise _lost(db, scope, id)
    taken = _open_turn(db, conversations.row_of(db, scope, conversation), id, token)
    return _caught_up(db, taken, read(db, scope, id).usage)


def discard(db: Connection, scope: Scope, id: str) -> TurnRecord:
    """Ends an open turn that no process runs, as cancelled."""
    row = _turn_row(db, scope, id)
    outcome = outcome_of(row, scope)
    if outcome == "running":
        raise Busy(id_from_bytes(row["conversation"]), id)
    if outcome in ("awaiting_approval", "interrupted"):
        _close(db, scope, row, "cancelled", None)
    return read(db, scope, id)


def settle(db: Connection, scope: Scope, id: str, token: bytes) -> Outcome:
    """What became of a turn whose commit failed: if it still runs, it is written down as failed."""
    row = db.execute(SQL["read_turn"], {"tenant": scope.tenant, "id": id_to_bytes(id)}).fetchone()
    if row is None:
        return "failed"
    if row["outcome"] == "running" and row["token"] == token:
        _close(db, scope, row, "failed", TurnError("store_unavailable", "its commit did not reach the disk"))
        return "failed"
    return outcome_of(row, scope)


def let_go(db: Connection, scope: Scope, id: str, token: bytes) -> None:
    """Ends a turn that was just taken by a caller who is no longer there."""
    if is_held(db, scope, id, token):
        _close(db, scope, _turn_row(db, scope, id), "cancelled", None)


def is_held(db: Connection, scope: Scope, id: str, token: bytes) -> bool:
    """Whether a turn runs under this token."""
    row = db.execute(SQL["read_turn"], {"tenant": scope.tenant, "id": id_to_bytes(id)}).fetchone()
    return row is not None and row["outcome"] == "running" and row["token"] == token


def is_over(db: Connection, scope: Scope, id: str) -> bool:
    """Whether a turn has an outcome that is final unless somebody resumes it."""
    return read(db, scope, id).outcome in ("committed", "failed", "cancelled")


def is_not_held(db: Connection, scope: Scope, id: str, token: bytes) -> bool:
    return not is_held(db, scope, id, token)


def exists(db: Connection, scope: Scope, id: str) -> bool:
    return db.execute(SQL["read_turn"], {"tenant": scope.tenant, "id": id_to_bytes(id)}).fetchone() is not None


def journalled(db: Connection, scope: Scope, turn: str, ordinal: int) -> bool:
    """Whether the journal of a turn reaches an ordinal."""
    parameters = {"turn": id_to_bytes(turn), "ordinal": ordinal}
    return db.execute(SQL["has_step"], parameters).fetchone() is not None


def read(db: Connection, scope: Scope, id: str) -> TurnRecord:
    return turn_of(_turn_row(db, scope, id), scope)


def uncommitted(db: Connection, scope: Scope, conversation: sqlite3.Row) -> list[TurnRecord]:
    """A conversation's tries that are not history: failed, cancelled, and the open one."""
    own = {"conversation": conversation["id"], "open_turn": conversation["open_turn"], "tenant": scope.tenant}
    return [turn_of(turn, scope) for turn in db.execute(SQL["uncommitted_turns"], own)]


def page(db: Connection, scope: Scope, conversation: str, cursor: str | None, limit: int) -> Page[TurnRecord]:
    """The path's turns and notes with the conversation's own uncommitted tries, by where they started, then when."""
    after = (-1, "") if cursor is None else _parse_cursor(cursor)
    row = conversations.row_of(db, scope, conversation)
    found = uncommitted(db, scope, row)
    committed: list[TurnRecord] = []
    for span in read_path(db, row["family"], head_of(row).position).after(max(after[0], 0)):
        stretch = {"first": span.segment << 32 | span.first, "last": span.segment << 32 | span.last}
        rows = db.execute(SQL["turns_in_span"], stretch | {"limit": limit + 2})  # the cursor's own turn, and one more
        committed += [turn_of(turn, scope) for turn in rows]
        if len(committed) > limit + 1:
            break
    found = sorted((turn for turn in found + committed if _order(turn) > after), key=_order)
    items = tuple(found[:limit])
    return Page(items, "{}:{}".format(*_order(items[-1])) if len(found) > limit else None)


def _take_lock(db: Connection, scope: Scope, conversation: str, turn: str, revision: int | None) -> sqlite3.Row | None:
    parameters = {
        "tenant": scope.tenant,
        "id": conversations.key_of(conversation),
        "turn": id_to_bytes(turn),
        "revision": possible_revision(revision),
    }
    rows = db.execute(SQL["take_lock"], parameters).fetchall()
    return rows[0] if rows else None


def _make_way(
    db: Connection,
    scope: Scope,
    conversation: str,
    *,
    create: NewConversation | None,
    supersede: bool,
    if_revision: int | None,
) -> None:
    """Finds out why the lock could not be taken, and removes the reason if the caller said so."""
    if create is not None and not conversations.exists(db, scope, conversation):
        conversations.create(db, scope, create, draft=True)
        return
    row = conversations.row_of(db, scope, conversation)
    conversations.check_revision(row, if_revision)
    try:
        conversations.check_free(row, scope)
    except TurnOpen as open:
        if not supersede:
            raise
        discard(db, scope, open.turn)


def _open_turn(db: Connection, row: sqlite3.Row, turn: str, token: bytes) -> OpenTurn:
    """A turn's handle at its base, from the row of the conversation that it holds."""
    base = head_of(row)
    return OpenTurn(
        id=turn,
        conversation=id_from_bytes(row["id"]),
        token=token,
        revision=row["revision"],
        base=base,
        segment=row["open_segment"],
        family=id_from_bytes(row["family"]),
        digest=base.digest,
        calls=base.open_calls.at_a_commit(),
        state=read_state(db, base),
        state_changed=base.state is not None,  # no commit stood at the base, so this one has to keep the state
    )


def _caught_up(db: Connection, turn: OpenTurn, usage: Usage) -> OpenTurn:
    """The handle as it was after the last journalled step."""
    steps = read_steps(db, turn.id)
    if not steps:
        return replace(turn, usage=usage)
    state = fold((event.body for event, _ in steps), turn.state)
    return replace(
        turn,
        digest=steps[-1][1],
        staged=len(steps),
        calls=turn.calls.after(event.envelope for event, _ in steps),
        state_changed=turn.state_changed or state is not turn.state,
        state=state,
        usage=usage,
    )


def _head_after(turn: OpenTurn, staged: Staged, usage: Usage) -> Head:
    """What is true once these events are history, wherever they will stand. Raises `Unpaired` if a call is open."""
    changed = turn.state_changed or staged.state is not turn.state
    return Head(
        position=None,
        digest=staged.digest,
        turn=turn.id,
        totals=turn.base.totals + usage,
        state_of=turn.id if changed else turn.base.state_of,
        open_calls=staged.calls.at_a_commit(),
    )


def _open_segment(db: Connection, scope: Scope, family: bytes, base: Head) -> int:
    parameters = {
        "tenant": scope.tenant,
        "family": family,
        "base": pack(base.position),
        "base_digest": base.digest,
    }
    segment = db.execute(SQL["open_segment"], parameters).lastrowid
    assert segment is not None
    return segment


def _insert_events(db: Connection, turn: bytes, first: Position, links: Sequence[Link]) -> None:
    db.executemany(SQL["insert_event"], _rows(first.segment << 32 | first.ordinal, turn, links))


def _rows(first: int, turn: bytes, links: Sequence[Link]) -> list[tuple[object, ...]]:
    return [
        (first + n, turn, link.envelope, link.payload, link.salt, link.payload_digest, link.chain_digest)
        for n, link in enumerate(links)
    ]


def _move_head(
    db: Connection,
    scope: Scope,
    conversation: str,
    head: Head,
    *,
    revision: int,
    segment: int,
    open_turn: str | None,
    settings: JsonText | None = None,
    cache: JsonText | None = None,
) -> None:
    parameters = head_columns(head) | {
        "tenant": scope.tenant,
        "id": id_to_bytes(conversation),
        "open_turn": blob(open_turn),
        "open_segment": segment,
        "revision": revision,
        "settings": settings,
        "cache": cache,
        "now": scope.now,
    }
    if db.execute(SQL["move_head"], parameters).rowcount != 1:
        row = conversations.row_of(db, scope, conversation)
        raise Stale(conversation, revision, row["revision"])


def _reopen(db: Connection, scope: Scope, id: str, row: sqlite3.Row, outcome: Outcome) -> None:
    """Takes the lock again for a turn that had ended, if nothing has happened since."""
    conversation = id_from_bytes(row["conversation"])
    held = conversations.row_of(db, scope, conversation)
    conversations.check_free(held, scope)
    if held["head"] != row["base"]:
        raise NotResumable(id, outcome, "the conversation has gone on since; retry it instead")
    _take_lock(db, scope, conversation, id, None)


def _leave_running(
    db: Connection,
    scope: Scope,
    turn: OpenTurn,
    outcome: Outcome,
    error: TurnError | None,
    usage: Usage,
    *,
    ended: int | None,
) -> None:
    parameters = {
        "id": id_to_bytes(turn.id),
        "token": turn.token,
        "outcome": outcome,
        "error": None if error is None else dumps(error),
        "usage": dumps(usage),
        "ended": ended,
    }
    if db.execute(SQL["end_turn"], parameters).rowcount != 1:
        raise _lost(db, scope, turn.id)


def _close(db: Connection, scope: Scope, row: sqlite3.Row, outcome: Outcome, error: TurnError | None) -> None:
    """Ends an open turn from its row, whoever held it."""
    parameters = {
        "id": row["id"],
        "outcome": outcome,
        "error": None if error is None else dumps(error),
        "now": scope.now,
    }
    db.execute(SQL["close_turn"], parameters)
    _release(db, scope, row["id"], row["conversation"])


def _release(db: Connection, scope: Scope, turn: bytes, conversation: bytes) -> None:
    """The turn did not commit: the conversation is free, and so is the turn's idempotency key."""
    parameters = {"tenant": scope.tenant, "turn": turn, "id": conversation, "now": scope.now}
    db.execute(SQL["release_lock"], parameters)
    idempotency.free(db, turn)


def _turn_row(db: Connection, scope: Scope, id: str) -> sqlite3.Row:
    parameters = {"tenant": scope.tenant, "id": conversations.key_of(id, "turn")}
    row: sqlite3.Row | None = db.execute(SQL["read_turn"], parameters).fetchone()
    if row is None:
        raise NotFound("turn", id)
    return row


def _lost(db: Connection, scope: Scope, id: str) -> TurnLost:
    row = db.execute(SQL["read_turn"], {"tenant": scope.tenant, "id": id_to_bytes(id)}).fetchone()
    outcome = "gone" if row is None else outcome_of(row, scope)
    return TurnLost(id, "running elsewhere" if outcome == "running" else outcome)


def _order(turn: TurnRecord) -> tuple[int, str]:
    return (turn.base.ordinal if turn.base else 0, turn.id)


def _parse_cursor(cursor: str) -> tuple[int, str]:
    ordinal, colon, id = cursor.partition(":")
    if not (colon and ordinal.isascii() and ordinal.isdigit()):
        raise BadCursor(cursor[:200])
    if len(ordinal) > 10:
        raise BadCursor(cursor[:200])
    return int(ordinal), id

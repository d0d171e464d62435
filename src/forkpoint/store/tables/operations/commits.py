"""Commits: the operations that make events history and move a head, each by one compare-and-set.
Tests: forkpoint.testing.conformance.turns, tests/store/test_failed_commit.py."""

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from forkpoint.errors import KeyReused, NotWhole, Stale
from forkpoint.events import JsonText, NewEvent, Position, Usage, encode_body
from forkpoint.history.records import Fact, TurnFacts, conversation_chain, new_salt, salted
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.stage import Sealed, Staged, chain, stage
from forkpoint.store.tables.budgets import accounts
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.erasure.copied_events import insert_copies
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import conversations, garbage, idempotency, ledger
from forkpoint.store.tables.operations.conversations import Spend
from forkpoint.store.tables.operations.departure import leave_head
from forkpoint.store.tables.operations.history import head_at, read_sealed
from forkpoint.store.tables.operations.landmarks import insert_landmarks
from forkpoint.store.tables.operations.turns import deliver, find, open_turn, write_as_budgeted
from forkpoint.store.tables.rows import ORDINALS, Parameters, Scope, blob, dumps, head_columns, load_usage, pack, unpack
from forkpoint.store.values import Announcement, Committed, Head, IdempotencyKey, NewFork, OpenTurn, StoreLimits


def commit(
    db: Database,
    scope: Scope,
    turn: OpenTurn,
    staged: Staged,
    usage: Usage,
    *,
    settings: JsonText | None = None,
    cache: JsonText | None = None,
    aside: NewFork | None = None,
) -> Committed:
    """Makes the turn history: its row by compare-and-set, its events, and the head, in this order."""
    id = id_to_bytes(turn.id)
    ordinal = turn.base.ordinal + turn.staged + len(staged.events)
    head = head_after(turn, staged, usage)
    parameters = committed_columns(turn, staged, usage, head) | {
        "token": turn.token,
        "staged": turn.staged,
        "steered": turn.steered,
        "end": None if turn.segment is None else turn.segment << 32 | ordinal,
        "record": turn.records + 1,
        "now": scope.now,
    }
    _, before = write_as_budgeted(db, scope, turn, "commit_turn", parameters)
    if before is not None:
        place, spent = (id, before["conversation"], id_to_bytes(turn.family)), load_usage(before["usage"])
        accounts.count_turn(db, scope, *place, spent, usage - spent)
        accounts.end_turn(db, scope, *place, before["since"])
    if turn.steered is not None:
        turn = replace(turn, steered=deliver(db, id, turn.steered, staged))
    spend, kept = (None, None) if turn.branch is None else leave_head(db, scope, turn, aside)
    if turn.branch is not None:
        garbage.unpin(db, scope, id, is_committed=True)
    segment = turn.segment
    if segment is None:
        segment = _open_segment(db, scope, id_to_bytes(turn.family), turn.base)
        db.run("place_turn", {"id": id, "end": segment << 32 | ordinal})
    first, last = Position(segment, turn.base.ordinal + 1), Position(segment, ordinal)
    events = list(staged.events)
    if turn.staged:
        events = read_sealed(db, turn.id) + events
        db.run("delete_steps", {"turn": id})
    digest = _insert_events(db, id, first, turn.base, events)
    head = replace(head, position=last, digest=digest)
    record = _move_head(
        db,
        scope,
        turn,
        head,
        usage,
        kind="committed",
        segment=segment,
        settings=settings,
        cache=cache,
        spend=spend,
        aside=kept,
    )
    if record != turn.records + 1:
        db.run("name_record", {"id": id, "record": record})
    return Committed(turn.conversation, turn.id, turn.revision + 1, head, first, last, kept, scope.now)


def note(
    db: Database,
    scope: Scope,
    conversation: str,
    note: str,
    events: Sequence[NewEvent],
    *,
    limits: StoreLimits,
    settings: JsonText | None = None,
    cache: JsonText | None = None,
    usage: Usage = Usage(),
    if_revision: int | None = None,
    if_erasures: int | None = None,
    key: IdempotencyKey | None = None,
    by: str | None = None,
) -> Committed:
    """A commit that is not a turn, once for each id and each key. It needs no lock, only that nobody moved the head
    meanwhile."""
    if not events:
        raise NotWhole("note", "it has no events")
    subject = conversations.key_of(conversation)
    if (before := idempotency.find(db, scope, key, "turn", subject)) is not None:
        return _done(db, scope, conversation, id_from_bytes(before))
    if (done := _same_note(db, scope, conversation, note, events)) is not None:
        return done
    if if_erasures is not None:
        erasures = db.run("read_erasures").fetchone()["erasures"]
        if erasures != if_erasures:
            raise Stale(conversation, if_erasures, erasures)
    base = replace(_base_for_note(db, scope, conversation, note, if_revision), started=scope.now, by=by)
    staged = stage(base, events, now=scope.now, limits=limits)
    segment = base.segment or _open_segment(db, scope, id_to_bytes(base.family), base.base)
    first = Position(segment, base.base.ordinal + 1)
    last = Position(segment, base.base.ordinal + len(staged.events))
    id = id_to_bytes(base.id)
    digest = _insert_events(db, id, first, base.base, staged.events)
    head = replace(head_after(base, staged, usage), position=last, digest=digest)
    parameters = {
        "id": id,
        "tenant": scope.tenant,
        "conversation": id_to_bytes(base.conversation),
        "kind": "note",
        "outcome": "committed",
        "base": pack(base.base.position),
        "end": pack(last),
        "holder": None,
        "token": None,
        "input": None,
        "key": None,
        "request": None,
        "usage": dumps(usage),
        "totals": dumps(head.totals),
        "state_of": blob(head.state_of),
        "state": dumps(staged.state) if head.state_of == base.id else None,
        "open_calls": dumps(head.open_calls),
        "retry_of": None,
        "now": scope.now,
        "ended": scope.now,
        "by": by,
        "budgeted": 0,
        "since": None,
        "accepted": 0,
    }
    if usage:
        ledger.count_beside(db, scope, id, id_to_bytes(base.conversation), id_to_bytes(base.family), usage)
    record = _move_head(db, scope, base, head, usage, kind="note", segment=segment, settings=settings, cache=cache)
    db.run("insert_turn", parameters | {"record": record})
    idempotency.take(db, scope, key, "turn", subject, note)
    return Committed(base.conversation, base.id, base.revision + 1, head, first, last)


def announce(db: Database, scope: Scope, made: str, announced: Announcement, *, limits: StoreLimits) -> None:
    """Notes a conversation that was made in this transaction in another one. Raises if that must not be written."""
    note(
        db,
        scope,
        announced.conversation,
        made,
        announced.events,
        limits=limits,
        if_revision=announced.if_revision,
        by=announced.by,
    )


def head_after(turn: OpenTurn, staged: Staged, usage: Usage) -> Head:
    """What is true once these events are history, wherever they will stand. Raises `Unpaired` if a call is open."""
    changed = turn.state_changed or staged.state is not turn.state
    return Head(
        position=None,
        digest=b"",
        turn=turn.id,
        totals=turn.base.totals + usage,
        state_of=turn.id if changed else turn.base.state_of,
        open_calls=staged.calls.at_a_commit(),
    )


def committed_columns(turn: OpenTurn, staged: Staged, usage: Usage, head: Head) -> Parameters:
    """What the row of a turn says once the turn is history, and which row that is."""
    return {
        "id": id_to_bytes(turn.id),
        "usage": dumps(usage),
        "totals": dumps(head.totals),
        "state_of": blob(head.state_of),
        "state": dumps(staged.state) if head.state_of == turn.id else None,
        "open_calls": dumps(head.open_calls),
    }


def commit_fact(
    scope: Scope,
    turn: OpenTurn,
    head: Head,
    usage: Usage,
    salt: bytes,
    *,
    kind: Literal["committed", "note"] = "committed",
    settings: JsonText | None = None,
    cache: JsonText | None = None,
    spend: Spend | None = None,
    aside: str | None = None,
) -> Fact:
    """What the record of a commit says."""
    return Fact(
        kind=kind,
        time=scope.now,
        by=scope.by,
        turn=TurnFacts(
            id=turn.id,
            outcome="committed",
            base=records.base_of(turn.base),
            end=records.point_of(head),
            usage=usage,
            started=turn.started,
            ended=scope.now,
            by=turn.by,
            retry_of=turn.retry_of,
            input=None if turn.input is None else salted(salt, turn.input),
            steered=None if turn.steered is None else salted(salt, turn.steered),
        ),
        revision=turn.revision + 1,
        own_from=None if spend is None else spend.own_from,
        inherited=None if spend is None else spend.inherited,
        settings=None if settings is None else salted(salt, settings),
        cache=None if cache is None else salted(salt, cache),
        aside=aside,
    )


def _same_note(db: Database, scope: Scope, conversation: str, id: str, events: Sequence[NewEvent]) -> Committed | None:
    """What a note with this id did, if it was this one: its id is an idempotency key too. Raises `KeyReused`."""
    if find(db, scope, id) is None:
        return None
    done = _done(db, scope, conversation, id)
    stretch = {"first": pack(done.first), "last": pack(done.last), "limit": -1}
    payloads = sorted(link["payload"] or "" for link in db.run("links_between", stretch))
    if payloads != sorted(encode_body(event.body) for event in events):
        raise KeyReused(id)
    return done


def _done(db: Database, scope: Scope, conversation: str, id: str) -> Committed:
    """What the note with this id did. Raises `KeyReused` if the id is not that of a note of this conversation.

    The revision in it is the conversation's of today.
    """
    row = find(db, scope, id)
    end = None if row is None else unpack(row["end"])
    if row is None or end is None or row["kind"] != "note" or row["conversation"] != conversations.key_of(conversation):
        raise KeyReused(id)
    first = Position(end.segment, ((row["base"] or 0) & ORDINALS) + 1)
    held = conversations.row_of(db, scope, conversation)
    return Committed(conversation, id, held["revision"], head_at(db, held["family"], end), first, end)


def _base_for_note(db: Database, scope: Scope, conversation: str, note: str, if_revision: int | None) -> OpenTurn:
    """Where a note would stand. Raises if a turn holds the conversation."""
    row = conversations.row_of(db, scope, conversation)
    conversations.check_revision(row, if_revision)
    conversations.check_free(row, scope)
    return open_turn(db, row, note, b"")


def _open_segment(db: Database, scope: Scope, family: bytes, base: Head) -> int:
    parameters = {"tenant": scope.tenant, "family": family, "base": pack(base.position), "base_digest": base.digest}
    return db.insert("open_segment", parameters)


def _insert_events(db: Database, turn: bytes, first: Position, base: Head, events: Sequence[Sealed]) -> bytes:
    """Makes events history, and returns the digest of the last one."""
    key = first.segment << 32 | first.ordinal
    links = chain(events, digest=base.digest, turn=turn, calls=base.open_calls)
    rows = [
        (key + n, turn, link.envelope, link.payload, link.salt, link.payload_digest, link.chain_digest)
        for n, link in enumerate(links)
    ]
    db.run_many("insert_event", rows)
    insert_landmarks(db, key, events, links)
    insert_copies(db, key, events, links)
    return links[-1].chain_digest


def _move_head(
    db: Database,
    scope: Scope,
    turn: OpenTurn,
    head: Head,
    usage: Usage,
    *,
    kind: Literal["committed", "note"],
    segment: int,
    settings: JsonText | None = None,
    cache: JsonText | None = None,
    spend: Spend | None = None,
    aside: str | None = None,
) -> int:
    """Moves the head to what was committed, and adds the record of that. Returns the record's number."""
    salt = new_salt()
    fact = commit_fact(
        scope, turn, head, usage, salt, kind=kind, settings=settings, cache=cache, spend=spend, aside=aside
    )
    id = id_to_bytes(turn.conversation)
    parameters = head_columns(head) | {
        "tenant": scope.tenant,
        "id": id,
        "open_turn": None if kind == "note" else blob(turn.id),
        "revision": turn.revision,
        "settings": settings,
        "cache": cache,
        "own_from": None if spend is None else spend.own_from,
        "inherited": None if spend is None else dumps(spend.inherited),
        "now": scope.now,
    }
    link = records.next_link(conversation_chain(id), turn.records, turn.record_digest, fact)
    if db.run("move_head", parameters | link.place).rowcount != 1:  # a charge has come between, or a writer
        found = conversations.row_of(db, scope, turn.conversation)
        link = records.next_link(link.chain, found["records"], found["record_digest"], fact)
        if db.run("move_head", parameters | link.place).rowcount != 1:
            raise Stale(turn.conversation, turn.revision, found["revision"])
    if segment != turn.segment:
        db.run("append_to", {"tenant": scope.tenant, "id": id, "segment": segment})
    if turn.draft:
        db.run("admit_conversation", {"tenant": scope.tenant, "id": id, "now": scope.now})
    records.insert(db, scope, link, salt=salt, subject=id_to_bytes(turn.id))
    return link.number

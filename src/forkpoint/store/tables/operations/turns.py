"""Operations on turns: each a function of its inputs, run inside a transaction and fenced by the turn's token.
Tests: forkpoint.testing.conformance.turns, branches.elsewhere."""

import os
from collections.abc import Sequence

from msgspec.structs import replace

from forkpoint.errors import (
    AlreadyExists,
    BudgetExceeded,
    NotFound,
    NotResumable,
    Stale,
    TurnBehind,
    TurnLost,
    TurnOpen,
    TurnSteered,
)
from forkpoint.events import JsonText, Usage
from forkpoint.history.budgets import Amount
from forkpoint.history.digests import Link, forge
from forkpoint.history.records import start_of_steps
from forkpoint.history.state import State, fold
from forkpoint.history.steers import steers_among, with_delivered
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.stage import Staged
from forkpoint.store.tables.budgets import accounts, admission
from forkpoint.store.tables.budgets.reservations import give_back
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import conversations, garbage, idempotency
from forkpoint.store.tables.operations.history import head_at, read_state, read_steps, resolve
from forkpoint.store.tables.rows import (
    Parameters,
    Scope,
    blob,
    dumps,
    head_of,
    load_usage,
    outcome_of,
    pack,
    possible_revision,
    turn_of,
)
from forkpoint.store.values import (
    MOST_TAKEOVERS,
    Head,
    IdempotencyKey,
    KeyedOperation,
    NewConversation,
    Onto,
    OpenTurn,
    Outcome,
    StopReason,
    StoredConversation,
    StoredTurn,
    TurnError,
)


def begin(
    db: Database,
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
    if_name: str | None,
    key: IdempotencyKey | None,
    onto: Onto | None,
    by: str | None,
    accepted: bool,
) -> OpenTurn | StoredTurn:
    """Takes the lock of a conversation for a new turn; or returns the turn that the key already made."""
    subject = conversations.key_of(conversation)
    if made := idempotency.find(db, scope, key, "turn", subject):
        return read(db, scope, id_from_bytes(made))  # before the lock: a repeat joins, it does not hear "busy"
    if retry_of is not None and (retried := find(db, scope, retry_of)) is not None:
        _check_not_expired(retried)
    row = _take_lock(db, scope, conversation, turn, if_revision)
    if row is None:
        _make_way(db, scope, conversation, create=create, supersede=supersede, if_revision=if_revision)
        row = _take_lock(db, scope, conversation, turn, if_revision)
        if row is None:
            raise NotFound("conversation", conversation)
    if if_name is not None and row["name"] != if_name:
        raise NotFound("conversation", if_name)  # which undoes all of it: the lock is free again
    base = None if onto is None else _elsewhere(db, scope, row, onto)
    parameters = {
        "id": id_to_bytes(turn),
        "tenant": scope.tenant,
        "conversation": row["id"],
        "kind": "turn",
        "outcome": "running",
        "base": row["head"] if base is None else pack(base.position),
        "end": None,
        "holder": scope.holder,
        "token": token,
        "input": input,
        "key": None if key is None else key.key,
        "request": None if key is None else key.request,
        "usage": "{}",
        "totals": row["head_totals"] if base is None else dumps(base.totals),
        "state_of": row["head_state_of"] if base is None else blob(base.state_of),
        "state": None,
        "open_calls": "{}",
        "retry_of": blob(retry_of),
        "now": scope.now,
        "ended": None,
        "by": by,
        "record": None,
        "budgeted": row["budgeted"],
        "since": scope.now,
        "accepted": int(accepted),
    }
    try:
        db.run("insert_turn", parameters)
    except Exception as error:
        if db.is_duplicate(error):
            raise AlreadyExists("turn", turn) from None
        raise
    if base is not None:
        garbage.pin(db, id_to_bytes(turn), pack(base.position))
    idempotency.take(db, scope, key, "turn", subject, turn)
    if retry_of is not None:
        idempotency.take_over(db, scope, subject, turn, retry_of, input)
    conversations.use(db, scope, row)
    slice = None
    if row["budgeted"]:
        slice = admission.enter(db, scope, parameters["id"], row["id"], row["family"], is_counted=False)
    branch = None if onto is None or base is None else onto.branch
    taken = open_turn(db, row, turn, token, started=scope.now, by=by, base=base, branch=branch)
    budgeted = bool(row["budgeted"])
    return replace(taken, input=input, retry_of=retry_of, erasures=row["erasures"], budgeted=budgeted, slice=slice)


def made_with(
    db: Database, scope: Scope, key: IdempotencyKey, operation: KeyedOperation, source: str | None
) -> StoredConversation | StoredTurn | None:
    """The turn or conversation that an earlier request with this key made; None if the key is free."""
    subject = None if source is None else conversations.key_of(source)
    made = idempotency.find(db, scope, key, operation, subject)
    if made is None:
        return None
    id = id_from_bytes(made)
    if operation == "turn":
        return read(db, scope, id)
    if operation == "keep" and source is not None and not conversations.exists(db, scope, id):
        id = source  # what was set aside is deleted
    return conversations.read(db, scope, id)


def journal(
    db: Database, scope: Scope, turn: OpenTurn, staged: Staged, usage: Usage, *, calling: bool = False
) -> tuple[bytes | None, JsonText | None, bool]:
    """Stores steps, if the turn is still this writer's. Returns the digest of all that it has, what was steered to it,
    and whether its family has a budget. What was reserved for a call is given back, unless the turn is still
    ``calling`` a model."""
    id = id_to_bytes(turn.id)
    links = step_links(turn, staged)
    digest = links[-1].chain_digest if links else turn.steps_digest
    rows = [
        (id, number, link.envelope, link.payload, link.salt, link.payload_digest)
        for number, link in enumerate(links, start=turn.staged + 1)
    ]
    mine = {"id": id, "token": turn.token, "staged": turn.staged}
    more = {"usage": dumps(usage), "more": len(staged.events), "steps": digest}
    written, before = write_as_budgeted(db, scope, turn, "journal_turn", mine | more)
    db.run_many("insert_step", rows)
    if before is not None:
        spent = load_usage(before["usage"])
        accounts.count_turn(db, scope, id, before["conversation"], id_to_bytes(turn.family), spent, usage - spent)
        if not calling:
            give_back(db, id, "call")
    steered = None if written is None else written["steered"]
    return digest, deliver(db, id, steered, staged), before is not None


def step_links(turn: OpenTurn, staged: Staged) -> list[Link]:
    """The next steps of a turn, each chained to the step before."""
    id = id_to_bytes(turn.id)
    digest, links = turn.steps_digest or start_of_steps(id), []
    for event in staged.events:
        links.append(forge(digest, id, event.text, event.payload))
        digest = links[-1].chain_digest
    return links


def deliver(db: Database, turn: bytes, steered: JsonText | None, staged: Staged) -> JsonText | None:
    """Marks the messages that these steps deliver, and returns what the turn's row says of all messages then."""
    if steered is None:
        return None
    left = with_delivered(steered, steers_among([event.envelope for event in staged.events]))
    if left != steered:
        db.run("change_steered", {"id": turn, "steered": left})
    return left


def write_as_budgeted(
    db: Database, scope: Scope, turn: OpenTurn, statement: str, parameters: Parameters
) -> tuple[Row | None, Row | None]:
    """Writes to the row of a running turn by compare-and-set. Returns what the statement returns, if anything, and the
    row as it was, if a budget has to count what was written.

    Whether the turn's family has a budget is a part of the compare-and-set. So a turn notices a budget that was set
    while it ran, and a turn without a budget costs no look. Raises `TurnLost`, `TurnBehind` or `TurnSteered`.
    """
    row = find(db, scope, turn.id) if turn.budgeted else None
    is_written, told = _written(db, statement, parameters | {"budgeted": turn.budgeted})
    if is_written:
        return told, row
    row = find(db, scope, turn.id)
    if row is None or bool(row["budgeted"]) == turn.budgeted:
        raise lost(db, scope, turn)
    is_written, told = _written(db, statement, parameters | {"budgeted": row["budgeted"]})
    if not is_written:
        raise lost(db, scope, turn)
    return told, row if row["budgeted"] else None


def _written(db: Database, statement: str, parameters: Parameters) -> tuple[bool, Row | None]:
    """Whether a statement has written its row, and what it returned."""
    cursor = db.run(statement, parameters)
    told: Row | None = cursor.fetchone()
    return told is not None or cursor.rowcount == 1, told


def end(
    db: Database,
    scope: Scope,
    turn: OpenTurn,
    outcome: Outcome,
    error: TurnError | None,
    usage: Usage,
    *,
    unless_accepted: bool = False,
) -> StoredTurn:
    """Ends a running turn as failed or cancelled, and adds what was spent last. The head has not moved.

    With ``unless_accepted`` a turn that somebody was promised is left open instead, for any process to go on with.
    """
    if unless_accepted and (row := find(db, scope, turn.id)) is not None and row["accepted"]:
        if row["outcome"] != "running" or row["token"] != turn.token:
            raise lost(db, scope, turn)
        _leave_open(db, scope, row, usage)
        return read(db, scope, turn.id)
    _leave_running(db, scope, turn, outcome, error, usage, ended=scope.now)
    _release(db, scope, id_to_bytes(turn.id), id_to_bytes(turn.conversation))
    return tell(db, scope, turn.id, outcome)


def wait(db: Database, scope: Scope, turn: OpenTurn, staged: Staged, usage: Usage) -> StoredTurn:
    """Parks a running turn until somebody approves or denies. The conversation stays taken."""
    if staged.events:
        journal(db, scope, turn, staged, turn.usage)
    _leave_running(db, scope, turn, "awaiting_approval", None, usage, ended=None)
    conversations.admit(db, scope, turn.conversation)  # whoever is to approve has to find it in a list
    return tell(db, scope, turn.id, "awaiting_approval")


def resume(db: Database, scope: Scope, id: str, token: bytes) -> OpenTurn:
    """Goes on with a turn that no process runs, under a new token."""
    return _take(db, scope, _turn_row(db, scope, id), id, token, deaths=0)


def take_over(db: Database, scope: Scope, id: str, token: bytes) -> OpenTurn | StoredTurn:
    """The same for a turn whose process is gone, without anybody asking for it: that is counted. If it has happened too
    often, the turn is given up, and returned as it is then."""
    row = _turn_row(db, scope, id)
    if outcome_of(row, scope) == "running":
        raise turn_of(row, scope).busy()
    if row["outcome"] != "running" or row["takeovers"] > MOST_TAKEOVERS:
        raise NotResumable(id, row["outcome"], "it is no orphan any more")
    deaths = int(row["holder_seen"] is not None)  # a process that left, or gave the turn back, did not die of it
    if row["takeovers"] + deaths <= MOST_TAKEOVERS:
        return _take(db, scope, row, id, token, deaths=deaths)
    db.run("give_up", {"id": row["id"], "token": token, "old_token": row["token"]})
    if row["budgeted"]:
        give_back(db, row["id"])
    return read(db, scope, id)


def accept(db: Database, scope: Scope, id: str) -> StoredTurn:
    """Notes that somebody was promised a turn, if it runs."""
    db.run("accept_turn", {"id": conversations.key_of(id, "turn"), "tenant": scope.tenant})
    return read(db, scope, id)


def _take(db: Database, scope: Scope, row: Row, id: str, token: bytes, *, deaths: int) -> OpenTurn:
    outcome = outcome_of(row, scope)
    conversation = id_from_bytes(row["conversation"])
    _check_not_expired(row)
    if db.run("is_turn_erased", {"tenant": scope.tenant, "id": row["id"]}).fetchone() is not None:
        raise NotResumable(id, outcome, "its content was erased")
    match outcome:
        case "running":
            raise turn_of(row, scope).busy()
        case "committed":
            raise NotResumable(id, outcome, "it is part of history already")
        case "failed" | "cancelled":
            _reopen(db, scope, id, row, outcome)
        case "awaiting_approval" | "interrupted":
            if conversations.row_of(db, scope, conversation)["head"] != row["base"]:
                raise NotResumable(id, outcome, "it stood elsewhere than at the head; discard it and send it again")
    family = conversations.row_of(db, scope, conversation)["family"]
    budgeted, slice = accounts.has_budgets(db, scope, family), None
    parameters = {
        "id": row["id"],
        "holder": scope.holder,
        "token": token,
        "old_token": row["token"],
        "outcome": row["outcome"],
        "budgeted": budgeted,
        "now": scope.now,
        "deaths": deaths,
    }
    if db.run("take_over", parameters).rowcount != 1:
        raise NotResumable(id, outcome, "somebody else has just taken it")
    if budgeted:
        is_counted = bool(load_usage(row["usage"]).calls)
        slice = admission.enter(db, scope, row["id"], row["conversation"], family, is_counted=is_counted)
    tell(db, scope, id, "resumed")
    conversations.use(db, scope, conversations.row_of(db, scope, conversation))
    return replace(handle(db, scope, conversation, id, token), slice=slice)


def renew(db: Database, scope: Scope, turn: OpenTurn) -> tuple[int | None, BudgetExceeded | None]:
    """Counts the time that a turn has run, and reserves more: so much, or it says why not."""
    row = find(db, scope, turn.id)
    if row is None or row["outcome"] != "running" or row["token"] != turn.token:
        raise lost(db, scope, turn)
    return admission.renew(db, scope, row, id_to_bytes(turn.family))


def reserve(db: Database, scope: Scope, turn: OpenTurn, most: Amount, least: Amount, model: str) -> Amount:
    """Reserves the most that the next call of a turn can cost, if the turn is still this writer's."""
    if not is_held(db, scope, turn.id, turn.token):
        raise lost(db, scope, turn)
    place = id_to_bytes(turn.id), id_to_bytes(turn.conversation), id_to_bytes(turn.family)
    return admission.reserve(db, scope, *place, most, least, model)


def refresh(db: Database, scope: Scope, turn: OpenTurn) -> OpenTurn:
    """The handle of a running turn with all steps that its journal has."""
    if not is_held(db, scope, turn.id, turn.token):
        raise lost(db, scope, turn)
    found = handle(db, scope, turn.conversation, turn.id, turn.token, turn.branch)
    return replace(found, slice=turn.slice)


def discard(db: Database, scope: Scope, id: str) -> StoredTurn:
    """Ends an open turn that no process runs, as cancelled."""
    row = _turn_row(db, scope, id)
    outcome = outcome_of(row, scope)
    if outcome == "running":
        raise turn_of(row, scope).busy()
    if outcome in ("awaiting_approval", "interrupted"):
        _close(db, scope, row, "cancelled", None)
    return read(db, scope, id)


def ask_cancel(db: Database, scope: Scope, id: str) -> StoredTurn:
    """Asks the process that runs a turn to cancel it."""
    db.run("ask_cancel", {"id": conversations.key_of(id, "turn"), "tenant": scope.tenant, "now": scope.now})
    return read(db, scope, id)


def stops(db: Database, scope: Scope, turns: Sequence[OpenTurn]) -> dict[str, StopReason]:
    """Which of these turns the process that runs them has to stop, and why."""
    held = b"".join(id_to_bytes(turn.id) + turn.token for turn in turns)
    rows = db.run("read_stops", {"tenant": scope.tenant, "held": held})
    return {turns[row["number"]].id: "cancel" if row["mine"] else "lost" for row in rows}


def settle(db: Database, scope: Scope, id: str, token: bytes, usage: Usage) -> Outcome:
    """What became of a turn whose commit failed: if it still runs, it is written down as failed, with what it cost. A
    turn that somebody was promised is left open instead: its failure is the store's alone."""
    row = find(db, scope, id)
    if row is None:
        return "failed"
    if row["outcome"] == "running" and row["token"] == token:
        if row["accepted"]:
            _leave_open(db, scope, row, usage)
            return "interrupted"
        _close(db, scope, row, "failed", TurnError("commit_failed", "its commit did not reach the disk"), usage)
        return "failed"
    return outcome_of(row, scope)


def let_go(db: Database, scope: Scope, id: str, token: bytes, *, begun: bool) -> None:
    """Gives a turn back that nobody here runs: its caller was cancelled while it took it, or heard no answer.

    A new turn ends, another is as it was. A turn that somebody was promised is left open, and another process goes on
    with it.
    """
    row = find(db, scope, id)
    if row is None or row["outcome"] != "running" or row["token"] != token:
        return
    if row["accepted"]:
        _leave_open(db, scope, row, Usage())
    elif begun:
        _close(db, scope, row, "cancelled", None)
    else:
        db.run("let_go", {"id": row["id"]})
        if row["budgeted"]:
            give_back(db, row["id"])


def is_held(db: Database, scope: Scope, id: str, token: bytes) -> bool:
    """Whether a turn runs under this token."""
    row = find(db, scope, id)
    return row is not None and row["outcome"] == "running" and row["token"] == token


def is_renewed(db: Database, scope: Scope, id: str) -> bool:
    """Whether the time of a turn was counted up to this moment."""
    row = find(db, scope, id)
    return row is not None and row["since"] == scope.now


def is_over(db: Database, scope: Scope, id: str) -> bool:
    """Whether a turn has an outcome that is final unless somebody resumes it."""
    row = find(db, scope, id)
    return row is not None and row["outcome"] in ("committed", "failed", "cancelled")


def is_cancel_asked(db: Database, scope: Scope, id: str) -> bool:
    """Whether somebody asked to cancel a turn that runs."""
    row = find(db, scope, id)
    return row is not None and row["outcome"] == "running" and row["cancel_asked"] is not None


def is_not_held(db: Database, scope: Scope, id: str, token: bytes) -> bool:
    return not is_held(db, scope, id, token)


def is_taken(db: Database, scope: Scope, id: str, token: bytes) -> bool:
    """Whether a turn has this token, whether it runs or was given up."""
    row = find(db, scope, id)
    return row is not None and row["token"] == token


def is_accepted(db: Database, scope: Scope, id: str) -> bool:
    """Whether somebody was promised a turn, or it does not run."""
    row = find(db, scope, id)
    return row is None or row["outcome"] != "running" or bool(row["accepted"])


def exists(db: Database, scope: Scope, id: str) -> bool:
    return find(db, scope, id) is not None


def journalled(db: Database, scope: Scope, id: str, staged: int, usage: Usage) -> bool:
    """Whether the journal of a turn has come this far."""
    row = find(db, scope, id)
    return row is not None and row["staged"] == staged and load_usage(row["usage"]) == usage


def read(db: Database, scope: Scope, id: str) -> StoredTurn:
    return turn_of(_turn_row(db, scope, id), scope)


def uncommitted(db: Database, scope: Scope, conversation: Row, since: int = 0) -> list[StoredTurn]:
    """A conversation's tries that are not history, from an ordinal on: failed, cancelled, and the open one."""
    own = {
        "conversation": conversation["id"],
        "open_turn": conversation["open_turn"],
        "tenant": scope.tenant,
        "since": since,
    }
    return [turn_of(turn, scope) for turn in db.run("uncommitted_turns", own)]


def _take_lock(db: Database, scope: Scope, conversation: str, turn: str, revision: int | None) -> Row | None:
    parameters = {
        "tenant": scope.tenant,
        "id": conversations.key_of(conversation),
        "turn": id_to_bytes(turn),
        "revision": possible_revision(revision),
    }
    if not db.run("take_lock", parameters).rowcount:
        return None
    row: Row = db.run("read_taken", parameters).fetchone()
    return row


def _make_way(
    db: Database,
    scope: Scope,
    conversation: str,
    *,
    create: NewConversation | None,
    supersede: bool,
    if_revision: int | None,
) -> None:
    """Finds out why the lock could not be taken, and removes the reason if the caller said so."""
    if create is not None and not conversations.exists(db, scope, conversation):
        if if_revision:  # it would begin at 0
            raise Stale(conversation, if_revision, 0)
        if made := conversations.made_before(db, scope, create):
            raise AlreadyExists("sub-agent", made.id)  # of the same call, under another id
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


def _elsewhere(db: Database, scope: Scope, row: Row, onto: Onto) -> Head | None:
    """The head at another base of a turn; None if the base is the head of the conversation that the turn holds."""
    own = conversations.key_of(onto.branch) == row["id"]
    branch = row if own else conversations.row_of(db, scope, onto.branch, drafts=False)
    if branch["family"] != row["family"]:
        raise NotFound("conversation", onto.branch)
    here = head_of(branch)
    if onto.position is None:
        base = head_at(db, row["family"], None)
    elif own and onto.position == here.position:
        return None
    else:
        base = resolve(db, scope, row["family"], here, onto.position, None)
    return None if pack(base.position) == row["head"] else base


def open_turn(
    db: Database,
    row: Row,
    turn: str,
    token: bytes,
    *,
    started: int = 0,
    by: str | None = None,
    base: Head | None = None,
    branch: str | None = None,
) -> OpenTurn:
    """A turn's handle at its base, from the row of the conversation that it holds.

    ``base`` and ``branch`` are None if the turn's base is the head.
    """
    segment = row["open_segment"] if base is None else None
    base = base or head_of(row)
    return handle_at(row, turn, token, base, segment, read_state(db, base), started=started, by=by, branch=branch)


def handle_at(
    row: Row,
    turn: str,
    token: bytes,
    base: Head,
    segment: int | None,
    state: State,
    *,
    started: int,
    by: str | None,
    branch: str | None = None,
) -> OpenTurn:
    """The same for a base whose folded state is known."""
    return OpenTurn(
        id=turn,
        conversation=id_from_bytes(row["id"]),
        token=token,
        revision=row["revision"],
        base=base,
        segment=segment,
        family=id_from_bytes(row["family"]),
        calls=base.open_calls.at_a_base(),
        state=state,
        state_changed=base.state is not None,  # no commit stood at the base, so this one has to keep the state
        started=started,
        branch=branch,
        by=by,
        records=row["records"],
        record_digest=row["record_digest"],
        draft=bool(row["draft"]),
    )


def handle(db: Database, scope: Scope, conversation: str, id: str, token: bytes, branch: str | None = None) -> OpenTurn:
    """A turn's handle as far as its journal goes."""
    row, held = conversations.row_of(db, scope, conversation), _turn_row(db, scope, id)
    record, steps_digest = turn_of(held, scope), held["steps_digest"]
    base = None if branch is None else head_at(db, row["family"], record.base)
    turn = open_turn(db, row, id, token, started=record.started, by=record.by, base=base, branch=branch)
    steps = read_steps(db, id)
    calls = turn.calls
    for step in steps:
        calls = calls.arrived(step.envelope)
    state = fold((step.body for step in steps), turn.state)
    return replace(
        turn,
        staged=len(steps),
        calls=calls,
        state_changed=turn.state_changed or state is not turn.state,
        state=state,
        usage=record.usage,
        steps_digest=steps_digest,
        budgeted=bool(held["budgeted"]),
        input=record.input,
        retry_of=record.retry_of,
        erasures=db.run("read_erasures").fetchone()["erasures"],
        steered=held["steered"],
    )


def _reopen(db: Database, scope: Scope, id: str, row: Row, outcome: Outcome) -> None:
    """Takes the lock again for a turn that had ended, if nothing has happened since."""
    conversation = id_from_bytes(row["conversation"])
    held = conversations.row_of(db, scope, conversation)
    conversations.check_free(held, scope)
    if held["head"] != row["base"]:
        raise NotResumable(id, outcome, "the conversation has gone on since; retry it instead")
    if row["key"] is not None:
        if db.run("find_key", {"tenant": scope.tenant, "key": row["key"]}).fetchone() is not None:
            raise NotResumable(id, outcome, "its idempotency key was used for another try since")
        db.run("retake_key", {"tenant": scope.tenant, "turn": row["id"], "now": scope.now})
    if row["retry_of"] is not None:
        idempotency.take_over(db, scope, row["conversation"], id, id_from_bytes(row["retry_of"]), row["input"])
    _take_lock(db, scope, conversation, id, None)


def _check_not_expired(row: Row) -> None:
    """Raises `NotResumable` if a rule of retention has removed what a try was asked."""
    if row["expired"] is not None:
        why = "what it was asked and what it did was removed, since it is too old; send it as a new message"
        raise NotResumable(id_from_bytes(row["id"]), row["outcome"], why)


def _leave_running(
    db: Database,
    scope: Scope,
    turn: OpenTurn,
    outcome: Outcome,
    error: TurnError | None,
    usage: Usage,
    *,
    ended: int | None,
) -> None:
    row = find(db, scope, turn.id)
    spent = usage if row is None else load_usage(row["usage"]) + usage  # a handle may be behind; its turn's row is not
    parameters = {
        "id": id_to_bytes(turn.id),
        "token": turn.token,
        "outcome": outcome,
        "error": None if error is None else dumps(error),
        "usage": dumps(spent),
        "ended": ended,
        "now": scope.now,
    }
    if db.run("end_turn", parameters).rowcount != 1:
        raise lost(db, scope, turn)
    if row is not None and row["budgeted"]:
        place = row["id"], row["conversation"], id_to_bytes(turn.family)
        accounts.count_turn(db, scope, *place, load_usage(row["usage"]), usage)
        accounts.end_turn(db, scope, *place, row["since"])


def _close(
    db: Database, scope: Scope, row: Row, outcome: Outcome, error: TurnError | None, usage: Usage = Usage()
) -> None:
    """Ends an open turn from its row, whoever held it, and adds what was spent last."""
    parameters = {
        "id": row["id"],
        "outcome": outcome,
        "error": None if error is None else dumps(error),
        "usage": dumps(load_usage(row["usage"]) + usage),
        "now": scope.now,
    }
    db.run("close_turn", parameters)
    if row["budgeted"]:
        family = conversations.row_of(db, scope, id_from_bytes(row["conversation"]))["family"]
        place = row["id"], row["conversation"], family
        accounts.count_turn(db, scope, *place, load_usage(row["usage"]), usage)
        accounts.end_turn(db, scope, *place, None)
    _release(db, scope, row["id"], row["conversation"])
    tell(db, scope, id_from_bytes(row["id"]), outcome)


def _leave_open(db: Database, scope: Scope, row: Row, usage: Usage) -> None:
    """Leaves a running turn open that no process holds any more, with what was spent last.

    It counts as a take-over, so that a turn which fails on every process, whatever the reason, is given up in the end.
    """
    spent = load_usage(row["usage"])
    parameters = {
        "id": row["id"],
        "token": os.urandom(16),  # whoever had the turn writes nothing any more
        "old_token": row["token"],
        "usage": dumps(spent + usage),
        "now": scope.now,
    }
    db.run("leave_open", parameters)
    if row["budgeted"]:
        family = conversations.row_of(db, scope, id_from_bytes(row["conversation"]))["family"]
        place = row["id"], row["conversation"], family
        accounts.count_turn(db, scope, *place, spent, usage)
        accounts.end_turn(db, scope, *place, row["since"])


def _release(db: Database, scope: Scope, turn: bytes, conversation: bytes) -> None:
    """The turn did not commit: the conversation is free, and so is the turn's idempotency key."""
    parameters = {"tenant": scope.tenant, "turn": turn, "id": conversation, "now": scope.now}
    db.run("release_lock", parameters)
    idempotency.free(db, scope, turn)
    garbage.unpin(db, scope, turn)


def tell(db: Database, scope: Scope, id: str, kind: str) -> StoredTurn:
    """A turn as it has just become, once there is a record of that."""
    row = _turn_row(db, scope, id)
    records.tell_of_turn(db, scope, row, kind)
    return turn_of(row, scope)


def _turn_row(db: Database, scope: Scope, id: str) -> Row:
    parameters = {"tenant": scope.tenant, "id": conversations.key_of(id, "turn")}
    row: Row | None = db.run("read_turn", parameters).fetchone()
    if row is None:
        raise NotFound("turn", id)
    return row


def find(db: Database, scope: Scope, id: str) -> Row | None:
    row: Row | None = db.run("read_turn", {"tenant": scope.tenant, "id": id_to_bytes(id)}).fetchone()
    return row


def lost(db: Database, scope: Scope, turn: OpenTurn) -> TurnLost | TurnBehind | TurnSteered:
    """Why a write to a turn had no effect."""
    row = find(db, scope, turn.id)
    if row is not None and row["outcome"] == "running" and row["token"] == turn.token:
        if row["staged"] == turn.staged and row["steered"] != turn.steered:
            return TurnSteered(turn.id)
        return TurnBehind(turn.id, turn.staged, row["staged"])
    outcome = "gone" if row is None else outcome_of(row, scope)
    return TurnLost(turn.id, "running elsewhere" if outcome == "running" else outcome)

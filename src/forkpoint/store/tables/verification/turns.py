"""Turns: whether each row says what the last record about its turn says, and each journal is as it was written.
Tests: tests/store/test_verify.py."""

from typing import Any

import msgspec

from forkpoint.errors import ForkpointError
from forkpoint.history.digests import SALT_BYTES, chain_digest, payload_digest
from forkpoint.history.records import Point, TurnFacts, salted, start_of_steps
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.operations.history import head_at
from forkpoint.store.tables.rows import ORDINALS, Scope, blob, load_usage, text, unpack
from forkpoint.store.tables.verification.absences import Absences
from forkpoint.store.tables.verification.findings import Findings
from forkpoint.store.tables.verification.part_cost import part_cost

COMMITTED = ("committed", "note")
"""Kinds of records after which no other record about the same turn follows."""


def check_turn(
    scope: Scope, findings: Findings, absences: Absences, conversation: bytes, row: Row, facts: TurnFacts
) -> None:
    """Checks a turn's row against the last record about it. Both are in ``row``."""
    where = f"turn {facts.id}"
    if row["turn"] is None:
        if row["kind"] not in COMMITTED:  # a committed turn goes with its events; an event without one is found there
            findings.found(where, "it is missing, though a record tells of it")
        return
    if row["turn_conversation"] != conversation or row["turn_tenant"] != scope.tenant:
        findings.found(where, "its row says that another conversation has it")
    for what in _differences(row, facts):
        findings.found(where, f"{what} not what its record says")
    if row["base"] is not None and row["base_digest"] is None and facts.base is not None:
        absences.lost_bases[facts.base.digest] = where  # right only if the event is nowhere else
    may_be_gone = absences.lost_its_texts(row["turn"])
    texts = [("input", "its input"), ("error", "its error")]
    if not _runs_on(row, facts):
        texts.append(("steered", "what was steered to it"))
    for column, name in texts:
        stated, found = getattr(facts, column), row[column]
        if found is None or stated is None:
            if (found is None) != (stated is None) and not (found is None and may_be_gone):
                findings.found(where, f"{name} is {'missing' if found is None else 'in no record'}")
        elif row["salt"] is not None and salted(row["salt"], found) != stated:
            findings.found(where, f"{name} is not what its record says")


def _differences(row: Row, facts: TurnFacts) -> list[str]:
    """What of a turn's row is not what the last record about it says."""
    is_open = _runs_on(row, facts)
    try:
        usage = load_usage(row["usage"])
    except msgspec.DecodeError:
        return ["what it cost is"]
    agree = {
        "whether it is a note is": (row["turn_kind"] == "note") == (row["kind"] == "note"),
        "its outcome is": row["outcome"] == ("running" if is_open else facts.outcome),
        "its base is": _agree(facts.base, row["base"], row["base_digest"]),
        "its last event is": _agree(facts.end, row["end"], row["end_digest"]),
        "its times are": row["started"] == facts.started and row["ended"] == facts.ended,
        "who asked for it is": row["by"] == facts.by,
        "the try that it repeats is": row["retry_of"] == blob(facts.retry_of),
        "what it cost is": is_open or usage == facts.usage,
        "the digest of its steps is": is_open or row["steps_digest"] == facts.steps,
    }
    return [] if all(agree.values()) else [what for what, agrees in agree.items() if not agrees]


def _runs_on(row: Row, facts: TurnFacts) -> bool:
    """Whether a turn runs on after its last record: then its journal adds to usage and steps, and takes messages."""
    return row["kind"] == "resumed" or (row["kind"] == "steered" and facts.outcome == "running")


def _agree(point: Point | None, key: int | None, digest: bytes | None) -> bool:
    """Whether a row names the point that a record names. The event there may have been collected."""
    if point is None or key is None:
        return point is None and key is None
    return point.ordinal == key & ORDINALS and (digest is None or digest == point.digest)


def check_tries(db: Database, scope: Scope, findings: Findings, absences: Absences, conversation: bytes | None) -> None:
    """Checks the turns that are not committed: their rows beside what records say, and their journals."""
    within = {"tenant": scope.tenant, "conversation": conversation}
    for row in db.run("tries_to_verify", within):
        where = f"turn {_name(row['id'])}"
        if row["end"] is not None or row["state"] is not None or row["open_calls"] != "{}":
            findings.found(where, "it has left something behind, though it is not committed")
        _check_base(db, findings, where, row)
        _check_usage(findings, where, row)
        _check_steps(db, findings, absences, where, row)
    for row in db.run("turns_that_nothing_vouches_for", within):
        where = f"turn {_name(row['id'])}"
        if row["outcome"] != "running" and row["untold"]:
            findings.found(where, "no record tells of it")
        elif row["abandoned"]:
            findings.found(where, "its conversation is missing")
        else:
            findings.found(where, "it is open, and its conversation does not say so")
    if conversation is None:
        for row in db.run("steps_of_no_try", {"tenant": scope.tenant}):
            findings.found(f"turn {_name(row['turn'])}", f"it has {row['steps']} steps, and no turn that could go on")


def _check_base(db: Database, findings: Findings, where: str, row: Row) -> None:
    """What a try says was true where it began must be true there. The events there may have been collected."""
    if row["base"] is None:
        if (row["totals"], row["state_of"]) != ("{}", None):
            findings.found(where, "it began at the root, and says that something was spent or set before")
        return
    if db.run("event_at", {"id": row["base"]}).fetchone() is None:
        if row["outcome"] in ("running", "awaiting_approval"):
            findings.found(where, "the event at which it stands is missing")
        return
    try:
        base, totals = head_at(db, b"", unpack(row["base"])), load_usage(row["totals"])
        part = part_cost(db, base.position) if totals != base.totals else None
        is_cost = totals == base.totals or (part is not None and part.allows(totals))
        if text(row["state_of"]) != base.state_of or not is_cost:
            findings.found(where, "it states another cost or state than there was where it began")
    except (ForkpointError, msgspec.DecodeError) as damage:
        findings.found(where, f"its base does not hold: {damage}")


def _check_usage(findings: Findings, where: str, row: Row) -> None:
    try:
        load_usage(row["usage"])
    except msgspec.DecodeError as error:
        findings.found(where, f"what it cost cannot be read: {error}")


def _check_steps(db: Database, findings: Findings, absences: Absences, where: str, row: Row) -> None:
    turn: bytes = row["id"]
    steps = db.run("steps_with_digests", {"turn": turn}).fetchall()
    if not steps and turn in absences.expired_turns:
        return None
    digest = None
    for number, step in enumerate(steps, start=1):
        if step["number"] != number:
            return findings.found(where, f"step {number} is missing")
        if what := _flaw(step, erased=turn in absences.erased_turns):
            findings.found(where, f"step {number}: {what}")
        digest = chain_digest(digest or start_of_steps(turn), turn, step["envelope"], step["payload_digest"])
    if len(steps) != row["staged"]:
        findings.found(where, f"it has {len(steps)} steps, and says that it has {row['staged']}")
    if digest != row["steps_digest"]:
        findings.found(where, "its steps are not those that its digest stands for")
    return None


def _flaw(step: Row, *, erased: bool) -> str | None:
    payload, salt = step["payload"], step["salt"]
    if payload is None:
        return None if erased and salt is None else "its payload is missing, and no erasure names it"
    if salt is None or len(salt) != SALT_BYTES or payload_digest(salt, payload) != step["payload_digest"]:
        return "its payload was changed"
    return None


def _name(id: Any) -> str:
    return id_from_bytes(id) if isinstance(id, bytes) and len(id) == 16 else repr(id)

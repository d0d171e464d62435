"""Removal: erases what `reach` has found, in the transaction that it is called in, and gives the receipt.
Tests: forkpoint.testing.conformance.evidence.erasures, tests/store/test_erasure.py."""

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec import Struct

from forkpoint.errors import BadArgument, NotFound
from forkpoint.events import Position
from forkpoint.history.records import ErasedRun, Erasure, Fact, conversation_chain, family_chain
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.erasure import NAMED, Erasing, Receipt, Touched
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.erasure.reach import Found, Reach
from forkpoint.store.tables.erasure.refold import refold
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import conversations, holds, turns
from forkpoint.store.tables.rows import ORDINALS, Scope

NO_TASK = "[erased]"
"""What stands in the place of a sub-agent's task that was erased."""

_PROMPT = '{"kind":"model_called"%'


class Plan(Struct):
    """All that an erasure changes."""

    reach: Reach
    events: dict[int, Found]  # with those that only have a digest of the text
    affected: list[Row]
    after: list[Row]  # tries that had the text before them
    untitled: list[Row]
    summaries: list[Found]


def preview(db: Database, scope: Scope, id: str, chosen: Erasing, reason: str) -> Receipt:
    """What an erasure would remove. Raises `Held` or `NotFound`."""
    return _receipt(db, scope, id, _plan(db, scope, chosen), chosen, reason, done=False)


def erase(db: Database, scope: Scope, id: str, chosen: Erasing, reason: str) -> Receipt:
    """Erases what was chosen. Raises `Busy` if a turn runs in what it touches, and `Held` or `NotFound`."""
    return erase_planned(db, scope, id, _plan(db, scope, chosen), chosen, reason)


def erase_planned(db: Database, scope: Scope, id: str, plan: Plan, chosen: Erasing, reason: str) -> Receipt:
    """Erases what a plan has. Raises `Busy` if a turn runs in what it touches."""
    for row in _open(plan):
        if _is_running(row, scope):
            raise conversations.busy(row)
    receipt = _receipt(db, scope, id, plan, chosen, reason, done=True)
    for row in _open(plan):
        turns.discard(db, scope, id_from_bytes(row["open_turn"]))
    carry_out(db, scope, plan, receipt)
    return receipt


def is_made(db: Database, scope: Scope, id: str) -> bool:
    """Whether an erasure is in the store."""
    return db.run("erasure_record", {"tenant": scope.tenant, "subject": id_to_bytes(id)}).fetchone() is not None


def carry_out(db: Database, scope: Scope, plan: Plan, receipt: Receipt) -> None:
    """Removes all that a plan has, and adds the record of that to the family's chain."""
    unsalted = remove(db, scope, plan)
    erased = Erasure(
        receipt.id, receipt.reason, receipt.runs, receipt.turns, receipt.conversations, untitled=receipt.untitled
    )
    fact = Fact(kind="erased", time=scope.now, by=scope.by, erased=erased)
    records.tell_in(db, scope, family_chain(plan.reach.family), fact, subject=id_to_bytes(receipt.id))
    restate(db, scope, plan, unsalted)


def remove(db: Database, scope: Scope, plan: Plan) -> set[bytes]:
    """Removes all that a plan has. Returns the conversations that have to be stated anew, beside those of turns."""
    reach = plan.reach
    _erase_events(db, plan)
    refold(db, scope, reach.family, plan.events.values(), plan.affected)
    unsalted = {row["id"] for row in plan.untitled} | reach.described | (reach.untasked & reach.conversations.keys())
    stated = _forget_tasks(db, scope, reach)
    _erase_turns(db, scope, plan, stated)
    for row in plan.untitled:
        db.run("erase_title", {"tenant": scope.tenant, "id": row["id"]})
    for id in reach.described:
        called = {"tenant": scope.tenant, "id": id}
        db.run("erase_description", called | {"name": id_from_bytes(id)})
        db.run("free_all_keys_of_a_conversation", called)
    for id in unsalted:
        db.run("drop_salts_beside_turns", {"tenant": scope.tenant, "chain": conversation_chain(id)})
    db.run("count_erasure")
    return unsalted


def _plan(db: Database, scope: Scope, chosen: Erasing) -> Plan:
    if chosen.family is not None:
        return _plan_of_family(db, scope, chosen.family)
    rows = [conversations.row_of(db, scope, one) for one in chosen.conversations]
    family = rows[0]["family"]
    if any(row["family"] != family for row in rows):
        raise BadArgument("erase()", "conversations", "they are of several families, and an erasure is of one")
    holds.check_not_held(db, scope, family, rows[0]["id"])
    reach = Reach(db, scope, family)
    for row in rows:
        if chosen.turn is not None:
            reach.add_turn_of(row, chosen.turn)
        elif chosen.event is not None:
            reach.add_event_of(row, chosen.event)
        else:
            reach.add_conversation(row)
    return spread(reach, keep_summaries=chosen.keep_summaries)


def _plan_of_family(db: Database, scope: Scope, id: str) -> Plan:
    family = conversations.key_of(id, "family")
    reach = Reach(db, scope, family)
    if not reach.conversations:
        raise NotFound("family", id)
    holds.check_not_held(db, scope, family)
    reach.add_everything()
    return spread(reach, keep_summaries=False)


def spread(reach: Reach, *, keep_summaries: bool) -> Plan:
    """What an erasure changes beside what it was asked to: all that was made of the text."""
    summaries: dict[int, Found] = {}
    while True:
        found = [one for one in reach.summaries() if one.key not in summaries]
        summaries |= {one.key: one for one in found}
        if not keep_summaries:
            reach.add_summaries(found)
        quoted = reach.add_quotes()
        if not reach.add_sides(reach.affected()) and not found and not quoted:
            break
    affected = reach.affected()
    prompts = {one.key: one for one in reach.after(reach.region(), "model_called")}
    after = [row for row in reach.tries_after(affected) if row["id"] not in reach.turns]
    untitled = [row for row in affected if reach.loses_title(row)]
    covering = sorted(summaries.values(), key=lambda one: one.key)
    return Plan(reach, prompts | reach.events, affected, after, untitled, covering)


def _open(plan: Plan) -> list[Row]:
    """The conversations with an open turn in what an erasure touches."""
    region, ids = plan.reach.region(), {row["id"] for row in plan.affected} | plan.reach.described
    return [
        row
        for row in plan.reach.conversations.values()
        if row["open_turn"] is not None
        and (row["id"] in ids or row["open_turn"] in plan.reach.turns or _stands_in(region, row["turn_base"]))
    ]


def _is_running(row: Row, scope: Scope) -> bool:
    return row["turn_outcome"] == "running" and scope.alive(row["turn_holder"], row["holder_seen"])


def _stands_in(region: dict[int, int], base: int | None) -> bool:
    return base is not None and region.get(base >> 32, ORDINALS + 1) <= (base & ORDINALS)


def _erase_events(db: Database, plan: Plan) -> None:
    db.run_many("erase_event", [(key,) for key in plan.events])


def _erase_turns(db: Database, scope: Scope, plan: Plan, stated: Iterable[bytes]) -> None:
    for id in (*plan.reach.turns, *stated):
        db.run("erase_turn", {"id": id})
        db.run("free_all_keys", {"tenant": scope.tenant, "target": id})
        _drop_salts(db, scope, id)
    for id in plan.reach.tries:
        db.run("erase_steps", {"turn": id})
    for row in plan.after:
        db.run("erase_error", {"id": row["id"]})
        db.run("erase_steps_of_a_kind", {"turn": row["id"], "kind": _PROMPT})
        _drop_salts(db, scope, row["id"])


def _drop_salts(db: Database, scope: Scope, turn: bytes) -> None:
    """Keeps everybody from guessing what a turn was asked from the digests in its records."""
    row = db.run("read_turn", {"tenant": scope.tenant, "id": turn}).fetchone()
    if row is not None:
        records.forget_salts(db, scope, row)


def _forget_tasks(db: Database, scope: Scope, reach: Reach) -> list[bytes]:
    """Takes tasks out of the settings of sub-agents. Returns the turns whose records have a digest of these."""
    stated: list[bytes] = []
    for id in reach.untasked:
        row = reach.conversations.get(id)
        settings = None if row is None else _without_task(row["settings"])
        if settings is not None:
            db.run("change_settings", {"tenant": scope.tenant, "id": id, "settings": settings})
            stated += turns_stating_settings(db, scope, id)
    return stated


def turns_stating_settings(db: Database, scope: Scope, conversation: bytes) -> list[bytes]:
    of_it = {"tenant": scope.tenant, "chain": conversation_chain(conversation)}
    return [row["subject"] for row in db.run("turns_that_state_settings", of_it).fetchall()]


def _without_task(settings: str) -> str | None:
    """The settings of a sub-agent without its task; None if they have none."""
    found = msgspec.json.decode(settings)
    place = found.get("sub_agent") if isinstance(found, dict) else None
    if not isinstance(place, dict) or not place.get("task") or place["task"] == NO_TASK:
        return None
    return msgspec.json.encode(found | {"sub_agent": place | {"task": NO_TASK}}).decode()


def restate(db: Database, scope: Scope, plan: Plan, unsalted: Iterable[bytes], but: Collection[bytes] = ()) -> None:
    """States how the conversations stand whose records have lost a salt, except those that have it in a record."""
    ids = set(unsalted)
    for turn in (*plan.reach.turns, *(row["id"] for row in plan.after)):
        row = turns.find(db, scope, id_from_bytes(turn))
        if row is not None:
            ids.add(row["conversation"])
    for id in sorted(ids & plan.reach.conversations.keys() - set(but)):
        records.restate(db, scope, conversations.row_of(db, scope, id_from_bytes(id)))


def _receipt(db: Database, scope: Scope, id: str, plan: Plan, chosen: Erasing, reason: str, *, done: bool) -> Receipt:
    reach = plan.reach
    open = _open(plan)
    running = [row for row in open if _is_running(row, scope)]
    tasks = reach.untasked & reach.conversations.keys()
    stated = {turn for child in tasks for turn in turns_stating_settings(db, scope, child)}
    lost = reach.turns | {row["id"] for row in plan.after} | stated
    untitled = ({row["id"] for row in plan.untitled} | tasks) - reach.described
    steps = [db.run("size_of_steps", {"turn": turn}).fetchone() for turn in sorted(reach.tries)]
    touched = {row["id"]: row["name"] for row in plan.affected}
    touched |= {one: reach.conversations[one]["name"] for one in reach.described | untitled}
    named = sorted(touched.items())[:NAMED]
    runs = list(_runs(plan.events.values()))
    places = {
        "event": len(plan.events),
        "step": sum(row["steps"] for row in steps),
        "turn": len(lost),
        "conversation": len(reach.described | untitled),
    }
    return Receipt(
        id=id,
        tenant=scope.tenant,
        family=id_from_bytes(reach.family),
        reason=reason,
        time=scope.now,
        by=scope.by,
        done=done,
        events=len(plan.events),
        bytes=sum(one.size for one in plan.events.values()) + sum(row["bytes"] for row in steps),
        positions=tuple(map(_positions, runs)),
        runs=runs_of(plan),
        turns=_ids(lost),
        conversations=_ids(reach.described | untitled),
        untitled=_ids(untitled),
        summaries=tuple(_place(one) for one in plan.summaries),
        summaries_kept=chosen.keep_summaries and bool(plan.summaries),
        discarded=_ids(row["open_turn"] for row in open if not _is_running(row, scope)),
        running=_ids(row["open_turn"] for row in running),
        touched=len(touched),
        touched_named=tuple(
            Touched(id_from_bytes(one), id_from_bytes(one) if done and one in reach.described else name)
            for one, name in named
        ),
        places={table: rows for table, rows in places.items() if rows},
    )


def runs_of(plan: Plan) -> tuple[ErasedRun, ...]:
    """The erased events by their digests, neighbours together."""
    return tuple(ErasedRun(run[0].digest, run[-1].digest, len(run)) for run in _runs(plan.events.values()))


def _runs(found: Iterable[Found]) -> Iterable[Sequence[Found]]:
    """Erased events, neighbours together."""
    run: list[Found] = []
    for one in sorted(found, key=lambda one: one.key):
        if run and one.key != run[-1].key + 1:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _positions(run: Sequence[Found]) -> str:
    return _place(run[0]) if len(run) == 1 else f"{_place(run[0])}..{_place(run[-1])}"


def _place(one: Found) -> str:
    return str(Position(one.key >> 32, one.key & ORDINALS))


def _ids(raw: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(map(id_from_bytes, sorted(raw)))

"""Receipts of erasures: read from the families' records, and done again in a copy that was made before them.
Tests: tests/store/test_erasure.py."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from forkpoint.errors import BadName
from forkpoint.history.records import ErasedRun, decode_fact
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.paging import Page
from forkpoint.store.erasure import Receipt
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.erasure import removal
from forkpoint.store.tables.erasure.reach import Found, Reach
from forkpoint.store.tables.operations import turns
from forkpoint.store.tables.rows import ORDINALS, Scope


def page(db: Database, scope: Scope, cursor: str | None, limit: int) -> Page[Receipt]:
    """The receipts of a tenant's erasures, the oldest first, as far as records have them."""
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise BadName.bad_cursor(cursor[:200])
    parameters = {"tenant": scope.tenant, "after": int(cursor or 0), "limit": limit + 1}
    rows = db.run("erasure_records", parameters).fetchall()
    items = tuple(_receipt(row, scope.tenant) for row in rows[:limit])
    return Page(items, str(rows[limit - 1]["id"]) if len(rows) > limit else None)


def count(db: Database, scope: Scope) -> int:
    """How often content was erased in this store: caches of an older count are void."""
    return int(db.run("read_erasures").fetchone()["erasures"])


def replay(db: Database, scope: Scope, receipt: Receipt) -> bool:
    """Erases what a receipt names, as far as it is here. False if that was done already, or nothing of it is here.

    A hold does not keep it: the erasure was made, and this copy only does not know of it yet. What the copy has beside
    that was made of the text, such as a title that was another one when the text was erased, goes too.
    """
    family = id_to_bytes(receipt.family)
    if removal.is_made(db, scope, receipt.id):
        return False
    reach = Reach(db, scope, family)
    reach.events = {one.key: one for one in named_events(db, scope, family, receipt.runs)}
    reach.turns = {row["id"] for id in receipt.turns if (row := turns.find(db, scope, id)) is not None}
    reach.tries = {id for id in reach.turns if _is_try(db, scope, id)}
    there = {id_to_bytes(id) for id in receipt.conversations} & reach.conversations.keys()
    untitled = {id_to_bytes(id) for id in receipt.untitled} & there
    reach.described = there - untitled
    reach.untasked = set(there)
    if not (reach.events or reach.turns or there):
        return False
    plan = removal.spread(reach, keep_summaries=True)  # those that went are among the events
    known = {row["id"] for row in plan.untitled}
    plan.untitled += [reach.conversations[id] for id in sorted(untitled - known - reach.described)]
    removal.carry_out(db, scope, plan, _as_done_here(receipt, plan))
    return True


def _as_done_here(receipt: Receipt, plan: removal.Plan) -> Receipt:
    """A receipt that names what goes here: history may end earlier, and more may have been made of the text."""
    turns = {*map(id_from_bytes, plan.reach.turns), *(id_from_bytes(row["id"]) for row in plan.after)}
    untitled = {id_from_bytes(row["id"]) for row in plan.untitled}
    described = set(map(id_from_bytes, plan.reach.described))
    return replace(
        receipt,
        runs=removal.runs_of(plan),
        turns=tuple(sorted({*receipt.turns, *turns})),
        conversations=tuple(sorted({*receipt.conversations, *untitled, *described})),
        untitled=tuple(sorted({*receipt.untitled, *untitled})),
    )


def _is_try(db: Database, scope: Scope, id: bytes) -> bool:
    row = turns.find(db, scope, id_from_bytes(id))
    return row is not None and row["end"] is None


def named_events(db: Database, scope: Scope, family: bytes, runs: Iterable[ErasedRun]) -> Iterator[Found]:
    """The events that runs name and that have their content, found by their chain digests."""
    wanted = {run.first: run for run in runs}
    for segment in db.run("segments_of_a_family", {"tenant": scope.tenant, "family": family}).fetchall():
        whole = {"first": segment["id"] << 32, "last": segment["id"] << 32 | ORDINALS}
        for row in db.run("digests_of_a_segment", whole).fetchall():
            if (run := wanted.get(row["chain_digest"])) is not None:
                stretch = {"first": row["id"], "last": row["id"] + run.events - 1}
                found = map(Found, db.run("events_to_erase", stretch).fetchall())
                yield from (one for one in found if one.is_there)


def _receipt(row: Row, tenant: str) -> Receipt:
    fact = decode_fact(row["body"])
    erased = fact.erased
    assert erased is not None, "the statement gives only such records"
    return Receipt(
        id=erased.id,
        tenant=tenant,
        family=id_from_bytes(row["chain"][1:]),
        reason=erased.reason,
        time=fact.time,
        by=fact.by,
        events=sum(run.events for run in erased.runs),
        runs=erased.runs,
        turns=erased.turns,
        conversations=erased.conversations,
        untitled=erased.untitled,
    )

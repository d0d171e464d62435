"""Repetition: what was erased in another store is erased here too, when its records come with an import.

What the records name goes without a further record, since they say it. Conversations that only this store has may show
the same text: what was made of it there is looked for as in any erasure, and that one has a record of its own.
Tests: tests/store/test_import_of_gaps.py.
"""

from collections.abc import Collection, Sequence

from forkpoint.history.records import Erasure
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.erasure import removal
from forkpoint.store.tables.erasure.reach import Reach
from forkpoint.store.tables.erasure.receipts import named_events
from forkpoint.store.tables.operations import turns
from forkpoint.store.tables.rows import Scope


def repeat(
    db: Database, scope: Scope, family: bytes, erasures: Sequence[Erasure], told: Collection[bytes], came: set[bytes]
) -> int:
    """Erases what erasures name, whose records are here already. Returns how many events lost their content.

    ``told`` are the conversations of the file, which was written after these erasures, and ``came`` those that are as
    the file has them now. Raises `Busy` if a turn runs in another one that shows the text.
    """
    reach = Reach(db, scope, family)
    found = named_events(db, scope, family, [run for one in erasures for run in one.runs])
    reach.events = {one.key: one for one in found}
    for turn in {turn for one in erasures for turn in one.turns}:
        row = turns.find(db, scope, turn)
        if row is not None and (row["end"] is not None or row["conversation"] not in came):
            reach.turns.add(row["id"])
            if row["end"] is None:
                reach.tries.add(row["id"])
    named = {id_to_bytes(id) for one in erasures for id in one.conversations} & reach.conversations.keys()
    for conversation in named:
        db.run("free_all_keys_of_a_conversation", {"tenant": scope.tenant, "id": conversation})
    untitled = {id_to_bytes(id) for one in erasures for id in one.untitled} & named - came
    reach.untasked, reach.described = named - came, named - came - untitled
    titles = [reach.conversations[id] for id in sorted(untitled)]
    affected = reach.affected()
    if any(row["id"] not in told for row in affected):
        return _erase_all(db, scope, reach, titles, erasures)
    plan = removal.Plan(reach, dict(reach.events), affected, [], titles, [])
    unsalted = removal.remove(db, scope, plan)
    removal.restate(db, scope, plan, unsalted, but=came)
    return len(plan.events)


def _erase_all(db: Database, scope: Scope, reach: Reach, titles: list[Row], erasures: Sequence[Erasure]) -> int:
    """Erases what was found and all that was made of it here, with a record of that."""
    reach.follow()
    plan = removal.spread(reach, keep_summaries=False)
    known = {row["id"] for row in plan.untitled}
    plan.untitled += [row for row in titles if row["id"] not in known]
    reason = "; ".join(dict.fromkeys(one.reason for one in erasures))
    removal.erase_planned(db, scope, new_id(), plan, Erasing(), reason)
    return len(plan.events)

"""What `verify` says of a path that ends in the middle of a turn: what it may have cost there, and what it may not."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forkpoint.events import Usage
from forkpoint.ids import id_to_bytes
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.verification.part_cost import PartCost
from forkpoint.testing.conformance.base import create, fork_of, run
from forkpoint.testing.conformance.parts import FIRST, stepped

pytestmark = pytest.mark.anyio

NOTHING = Usage()
ALL = Usage(calls=2, input=30, output=8)


@pytest.mark.parametrize(
    ("most", "totals", "allowed"),
    [
        (None, FIRST, True),
        (None, NOTHING, True),
        (None, Usage(calls=1, input=9, output=1), False),
        (None, ALL, False),
        (ALL, ALL, True),
        (ALL, Usage(calls=2, input=12, output=3), True),
        (ALL, Usage(calls=3, input=12, output=3), False),
        (ALL, Usage(calls=1, input=9, output=1), False),
    ],
)
def test_a_figure_is_what_was_known_what_was_before_or_between_if_calls_were_erased(
    most: Usage | None, totals: Usage, allowed: bool
) -> None:
    assert PartCost(NOTHING, FIRST, most).allows(totals) is allowed


@pytest.mark.parametrize(
    ("stated", "is_right"),
    [(FIRST, True), (NOTHING, True), (Usage(calls=1, input=9, output=1), False), (ALL, False)],
    ids=["as it is", "by an earlier program", "another figure", "all of the turn"],
)
@pytest.mark.parametrize("goes_on", [False, True], ids=["at the head", "under a turn"])
async def test_verify_accepts_what_an_earlier_program_counted_and_nothing_else(
    tmp_path: Path, stated: Usage, is_right: bool, goes_on: bool
) -> None:
    """An earlier program counted nothing of a turn that a rewind had cut."""
    file = tmp_path / "store.db"
    async with await SqliteStore.open(file) as store:
        made = await create(store)
        await stepped(store, made.id)
        await store.rewind(made.id, fork_of(), at=(await store.path(made.id)).at(7))
        turn = (await run(store, made.id, "on", Usage(input=3))).turn if goes_on else None
    totals = stated + Usage(input=3) if goes_on else stated
    written = json.dumps({name: getattr(totals, name) for name in totals.__struct_fields__ if getattr(totals, name)})
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE conversation SET head_totals = ? WHERE id = ?", (written, id_to_bytes(made.id)))
        if turn is not None:
            db.execute("UPDATE turn SET totals = ? WHERE id = ?", (written, id_to_bytes(turn)))
    async with await SqliteStore.open(file) as store:
        assert (await store.verify()).ok is is_right
        assert (await store.verify(made.id)).ok is is_right


async def test_who_goes_on_from_a_part_that_an_earlier_program_counted_counts_from_there(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with await SqliteStore.open(file) as store:
        made = await create(store)
        await stepped(store, made.id)
        cut = (await store.path(made.id)).at(7)
        await store.rewind(made.id, fork_of(), at=cut)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE conversation SET head_totals = '{}' WHERE id = ?", (id_to_bytes(made.id),))
    async with await SqliteStore.open(file) as store:
        await run(store, made.id, "on", Usage(input=3))
        back, aside = await store.rewind(made.id, fork_of(), at=cut)
        assert aside is not None
        assert (back.spent, aside.spent) == (NOTHING, Usage(input=3)), "no token moves from one branch to the other"
        assert (await store.turns(made.id)).items[0].usage == NOTHING
        assert (await store.verify()).ok

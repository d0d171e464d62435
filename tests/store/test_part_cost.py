"""What `verify` says of a path that ends in the middle of a turn: what it may have cost there, and what it may not."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from forkpoint.events import Position, Usage
from forkpoint.history import records
from forkpoint.ids import id_to_bytes
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.tables.verification.part_cost import PartCost
from forkpoint.testing.conformance.base import create, fork_of, run
from forkpoint.testing.conformance.branches.parts import FIRST, stepped

pytestmark = pytest.mark.anyio

NOTHING = Usage()
ALL = Usage(calls=2, input=30, output=8)
MORE = Usage(input=3)


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


def stated(totals: Usage) -> str:
    return json.dumps({name: getattr(totals, name) for name in totals.__struct_fields__ if getattr(totals, name)})


def as_an_earlier_program(file: Path, conversation: str, *, turn: str | None, totals: Usage) -> None:
    """Writes what a path has cost as a program did that left the cost out of the record of a rewind."""
    id = id_to_bytes(conversation)
    chain = records.conversation_chain(id)
    with closing(sqlite3.connect(file)) as db, db:
        ((digest,),) = db.execute("SELECT first_digest FROM conversation WHERE id = ?", (id,))
        found = db.execute("SELECT number, body FROM record WHERE chain = ? ORDER BY number", (chain,)).fetchall()
        for number, body in found:
            without = records.encode(replace(records.decode_fact(body), totals=None))
            digest = records.record_digest(digest, chain, number, without)
            row = (without, digest, chain, number)
            db.execute("UPDATE record SET body = ?, digest = ? WHERE chain = ? AND number = ?", row)
        db.execute("UPDATE conversation SET record_digest = ? WHERE id = ?", (digest, id))
    write_totals(file, conversation, turn=turn, totals=totals)


def write_totals(file: Path, conversation: str, *, turn: str | None, totals: Usage) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        written = (stated(totals), id_to_bytes(conversation))
        db.execute("UPDATE conversation SET head_totals = ? WHERE id = ?", written)
        if turn is not None:
            db.execute("UPDATE turn SET totals = ? WHERE id = ?", (stated(totals), id_to_bytes(turn)))


async def rewound(file: Path, *, goes_on: bool) -> tuple[str, str | None, Position | None]:
    """A conversation that was rewound into its turn, and the turn that it has had since."""
    async with await SqliteStore.open(file) as store:
        made = await create(store)
        await stepped(store, made.id)
        cut = (await store.path(made.id)).at(7)
        _, aside = await store.rewind(made.id, fork_of(), at=cut)
        assert aside is not None
        await store.delete(aside.id)  # its chain would go on from records that are written anew here
        return made.id, (await run(store, made.id, "on", MORE)).turn if goes_on else None, cut


@pytest.mark.parametrize(
    ("totals", "earlier", "now"),
    [
        (FIRST, True, True),
        (NOTHING, True, False),
        (Usage(calls=1, input=9, output=1), False, False),
        (ALL, False, False),
    ],
    ids=["as it is", "nothing of the turn", "another figure", "all of the turn"],
)
@pytest.mark.parametrize("goes_on", [False, True], ids=["at the head", "under a turn"])
async def test_verify_accepts_what_an_earlier_program_counted_only_from_that(
    tmp_path: Path, totals: Usage, earlier: bool, now: bool, goes_on: bool
) -> None:
    file = tmp_path / "store.db"
    id, turn, _ = await rewound(file, goes_on=goes_on)
    totals = totals + MORE if goes_on else totals
    write_totals(file, id, turn=turn, totals=totals)
    async with await SqliteStore.open(file) as store:
        assert ((await store.verify()).ok, (await store.verify(id)).ok) == (now, now)
    as_an_earlier_program(file, id, turn=turn, totals=totals)
    async with await SqliteStore.open(file) as store:
        assert ((await store.verify()).ok, (await store.verify(id)).ok) == (earlier, earlier)


async def test_who_goes_on_from_a_part_that_an_earlier_program_counted_counts_from_there(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    id, _, cut = await rewound(file, goes_on=False)
    as_an_earlier_program(file, id, turn=None, totals=NOTHING)
    async with await SqliteStore.open(file) as store:
        await run(store, id, "on", MORE)
        back, aside = await store.rewind(id, fork_of(), at=cut)
        assert aside is not None
        assert (back.spent, aside.spent) == (NOTHING, MORE), "no token moves from one branch to the other"
        assert (await store.turns(id)).items[0].usage == NOTHING
        assert (await store.verify()).ok

"""Seals find what was rewritten so that every chain fits again; anchors find it if the seals were rewritten too."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest
from msgspec.structs import asdict

from forkpoint.errors import BadArgument
from forkpoint.events import Position, Usage
from forkpoint.history import records
from forkpoint.history.anchors import Anchor
from forkpoint.history.seals import START, Seal, hints, tree_hash
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import connect
from forkpoint.store.tables.operations import garbage
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.seals import recent, rows
from forkpoint.store.values import DEFAULT_TENANT, Onto, TurnError, Verification
from forkpoint.testing.conformance.base import begin, create, fork_of, run
from forkpoint.testing.samples import says

pytestmark = pytest.mark.anyio

Tampering: TypeAlias = Callable[[sqlite3.Connection], None]


async def build(path: Path) -> list[Anchor]:
    """Two conversations with a seal after every turn, and a record that no seal covers. Returns the anchors."""
    async with await SqliteStore.open(path) as store:
        one, two = await create(store, "one"), await create(store, "two")
        anchors = []
        for conversation, text in ((one, "a"), (two, "b"), (one, "c"), (two, "d")):
            await run(store, conversation.id, text)
            anchors.append(await store.anchor())
        await store.rename(two.id, "second")
        assert (await store.verify(anchors=anchors)).ok
    return anchors


def tamper(path: Path, change: Tampering) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.row_factory = sqlite3.Row
        change(db)


async def verified(path: Path, *anchors: Anchor) -> Verification:
    async with await SqliteStore.open(path) as store:
        return await store.verify(anchors=anchors)


def places(found: Verification) -> set[str]:
    return {flaw.where for flaw in found.flaws}


def said(found: Verification, where: str) -> str:
    return " ".join(flaw.what for flaw in found.flaws if flaw.where == where)


def rewrite_chain(db: sqlite3.Connection, name: str = "one") -> None:
    """Makes a conversation's first turn cheaper, and every digest of its records fit to that again."""
    row = db.execute("SELECT id, born FROM conversation WHERE name = ?", (name,)).fetchone()
    chain = records.conversation_chain(row["id"])
    digest = records.first_digest(records.NO_SOURCE, 0, row["born"])
    changed = 0
    for record in db.execute("SELECT * FROM record WHERE chain = ? ORDER BY number", (chain,)).fetchall():
        body = record["body"] if changed else record["body"].replace('"input":10', '"input":1')
        changed += body != record["body"]
        digest = records.record_digest(digest, chain, record["number"], body)
        db.execute("UPDATE record SET body = ?, digest = ? WHERE id = ?", (body, digest, record["id"]))
    assert changed, "no record was changed, so this proves nothing"
    db.execute("UPDATE conversation SET record_digest = ? WHERE id = ?", (digest, row["id"]))


def cut_tail(db: sqlite3.Connection) -> None:
    """Removes the last record of a conversation, and says in its row that there never was one."""
    row = db.execute("SELECT id, records FROM conversation WHERE name = 'one'").fetchone()
    chain = records.conversation_chain(row["id"])
    db.execute("DELETE FROM record WHERE chain = ? AND number = ?", (chain, row["records"]))
    before = db.execute("SELECT digest FROM record WHERE chain = ? AND number = ?", (chain, row["records"] - 1))
    values = (row["records"] - 1, before.fetchone()["digest"], row["id"])
    db.execute("UPDATE conversation SET records = ?, record_digest = ? WHERE id = ?", values)


def rewrite_seals(db: sqlite3.Connection) -> None:
    """Makes every seal anew, so that it fits to the records that are there."""
    previous, last, count = START, 0, 0
    for row in db.execute("SELECT * FROM seal ORDER BY number").fetchall():
        under = db.execute("SELECT id, digest FROM record WHERE id > ? AND id <= ? ORDER BY id", (last, row["last"]))
        found = under.fetchall()
        digests = [record["digest"] for record in found]
        count += len(found)
        seal = Seal(
            store=row["store"],
            tenant=row["tenant"],
            number=row["number"],
            first=found[0]["id"],
            last=found[-1]["id"],
            count=count,
            root=tree_hash(digests),
            previous=previous,
            time=row["time"],
        )
        columns = ", ".join(f"{name} = :{name}" for name in ("first", "last", "count", "root", "previous"))
        db.execute(
            f"UPDATE seal SET {columns}, digest = :digest, leaves = :leaves WHERE number = :number",
            asdict(seal) | {"digest": seal.digest, "leaves": hints(digests)},
        )
        previous, last = seal.digest, row["last"]


async def test_a_chain_that_was_rewritten_as_a_whole_is_found_by_its_seal_which_names_the_record(
    tmp_path: Path,
) -> None:
    await build(tmp_path / "store.db")
    tamper(tmp_path / "store.db", rewrite_chain)
    found = await verified(tmp_path / "store.db")
    assert {"seal 1", "seal 3"} <= places(found)  # those that cover records of it
    assert "seal 2" not in places(found)
    assert "conversation one, record 1" in said(found, "seal 1")
    assert "conversation one, record 2" in said(found, "seal 3")


async def test_a_tail_that_was_cut_off_is_found_by_its_seal(tmp_path: Path) -> None:
    await build(tmp_path / "store.db")
    tamper(tmp_path / "store.db", cut_tail)
    found = await verified(tmp_path / "store.db")
    assert "1 of 1 are missing" in said(found, "seal 3")
    assert not {"seal 1", "seal 2", "seal 4"} & places(found)


async def test_if_the_seals_were_rewritten_too_only_an_anchor_finds_it(tmp_path: Path) -> None:
    anchors = await build(tmp_path / "store.db")

    def everything(db: sqlite3.Connection) -> None:
        rewrite_chain(db)
        rewrite_seals(db)

    tamper(tmp_path / "store.db", everything)
    assert not {place for place in places(await verified(tmp_path / "store.db")) if "seal" in place}
    found = await verified(tmp_path / "store.db", *anchors)
    assert {f"anchor {number} of tenant default" for number in (1, 2, 3, 4)} <= places(found)
    assert "conversation one, record 1" in said(found, "anchor 1 of tenant default")


async def test_anchors_say_after_which_seal_something_was_rewritten(tmp_path: Path) -> None:
    anchors = await build(tmp_path / "store.db")

    def late(db: sqlite3.Connection) -> None:
        db.execute("UPDATE record SET digest = randomblob(32) WHERE id = (SELECT last FROM seal WHERE number = 3)")
        rewrite_seals(db)

    tamper(tmp_path / "store.db", late)
    found = await verified(tmp_path / "store.db", *anchors)
    assert not {"anchor 1 of tenant default", "anchor 2 of tenant default"} & places(found)
    what = said(found, "anchor 3 of tenant default")
    assert "what seal 3 covers" in what
    assert "conversation one, record 2" in what


async def test_seals_and_records_that_were_cut_off_together_are_found_by_an_anchor_only(tmp_path: Path) -> None:
    anchors = await build(tmp_path / "store.db")

    def cut(db: sqlite3.Connection) -> None:
        last = db.execute("SELECT last FROM seal WHERE number = 3").fetchone()[0]
        db.execute("DELETE FROM seal WHERE number = 4")
        db.execute("DELETE FROM record WHERE id > ?", (last,))

    tamper(tmp_path / "store.db", cut)
    assert not {place for place in places(await verified(tmp_path / "store.db")) if "seal" in place}
    found = await verified(tmp_path / "store.db", *anchors)
    assert "there is no seal 4" in said(found, "anchor 4 of tenant default")
    assert "anchor 3 of tenant default" not in places(found)


CHANGED = {
    "the number of records": "UPDATE seal SET count = count + 1 WHERE number = 2",
    "its time": "UPDATE seal SET time = time + 1 WHERE number = 2",
    "its store": "UPDATE seal SET store = zeroblob(16) WHERE number = 2",
    "its root": "UPDATE seal SET root = zeroblob(32) WHERE number = 2",
    "its digest": "UPDATE seal SET digest = zeroblob(32) WHERE number = 2",
    "the seal before it": "UPDATE seal SET previous = zeroblob(32) WHERE number = 2",
    "where it begins": "UPDATE seal SET first = first - 1 WHERE number = 2",
    "where it ends": "UPDATE seal SET last = last - 1 WHERE number = 2",
    "a seal, removed": "DELETE FROM seal WHERE number = 2",
    "the first seal, removed": "DELETE FROM seal WHERE number = 1",
    "whose it is": "UPDATE seal SET tenant = 'other' WHERE number = 4",
    "a record's chain digest": "UPDATE record SET digest = zeroblob(32) WHERE id = (SELECT last FROM seal LIMIT 1)",
    "a record, removed": "DELETE FROM record WHERE id = (SELECT last FROM seal LIMIT 1)",
    "whose a record is": "UPDATE record SET tenant = 'other' WHERE id = (SELECT last FROM seal LIMIT 1)",
    "two records, in each other's place": (
        "UPDATE record SET digest = (SELECT r.digest FROM record r WHERE r.id = 3 - record.id) WHERE id IN (1, 2)"
    ),
}


@pytest.mark.parametrize("what", CHANGED)
async def test_a_change_of_a_seal_or_of_what_it_covers_is_found(tmp_path: Path, what: str) -> None:
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        made = await create(store)
        for number in range(4):
            await run(store, made.id, f"{number}a")
            await run(store, made.id, f"{number}b")
            anchor = await store.anchor()
    tamper(tmp_path / "store.db", lambda db: _changes(db, CHANGED[what]))
    found = await verified(tmp_path / "store.db", anchor)
    assert any("seal" in place for place in places(found)), f"nobody noticed that somebody changed {what}"


def _changes(db: sqlite3.Connection, statement: str) -> None:
    assert db.execute(statement).rowcount > 0, "the statement changed nothing, so this proves nothing"


async def test_a_record_that_was_put_in_where_all_was_sealed_is_found(tmp_path: Path) -> None:
    """Two tenants: the end of one's seals is before the end of all that is sealed."""
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        made, other = await create(store, "one"), store.within("other")
        await run(store, made.id, "a")
        await run(other, (await create(other)).id, "b")
        await store.anchor()
    tamper(
        tmp_path / "store.db", lambda db: _changes(db, "UPDATE record SET tenant = 'default' WHERE tenant = 'other'")
    )
    found = await verified(tmp_path / "store.db")
    assert "put in where all was sealed" in said(found, "seal 2")


async def test_the_anchor_of_the_whole_store_finds_what_was_changed_in_any_tenant(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        for tenant in ("default", "other"):
            its = store.within(tenant)
            await run(its, (await create(its, "one")).id, "a")
        anchor = await store.anchor(all_tenants=True)
    change = "UPDATE record SET digest = zeroblob(32) WHERE tenant = 'other' AND kind = 'committed'"
    tamper(tmp_path / "store.db", lambda db: _changes(db, change))
    assert (await verified(tmp_path / "store.db")).ok  # the default tenant's
    found = await verified(tmp_path / "store.db", anchor)
    assert "conversation one, record 1" in said(found, "seal 1 of tenant other")
    tamper(tmp_path / "store.db", lambda db: _changes(db, "DELETE FROM seal WHERE tenant = 'other'"))
    found = await verified(tmp_path / "store.db", anchor)
    assert "seal 1 of the whole store" in places(found)
    tamper(tmp_path / "store.db", lambda db: _changes(db, "DELETE FROM store_seal"))
    assert "there is no seal 1" in said(await verified(tmp_path / "store.db", anchor), anchor.name)


async def test_anchors_of_the_original_verify_in_a_restored_copy_which_is_said(tmp_path: Path) -> None:
    anchors = await build(tmp_path / "store.db")
    tamper(tmp_path / "store.db", lambda db: _changes(db, "UPDATE meta SET store = randomblob(16)"))
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        newer = await store.anchor()
        assert newer.store != anchors[0].store
        assert (newer.number, newer.previous) == (5, anchors[-1].digest)
        found = await store.verify(anchors=[*anchors, newer])
        assert found.ok, found.flaws
        assert [anchors[0].store in remark and newer.store in remark for remark in found.remarks] == [True]


async def test_many_new_records_are_sealed_in_several_seals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LARGEST", 3)
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        other = store.within("other")
        for its in (store, other):
            made = await create(its)
            for number in range(5):
                await run(its, made.id, str(number))
        anchor, whole = await store.anchor(), await store.anchor(all_tenants=True)
        assert anchor.number >= 2
        found = await store.verify(anchors=[anchor, whole])
        assert found.ok, found.flaws
        assert (await other.verify()).seals >= 2
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        assert max(size for (size,) in db.execute("SELECT length(leaves) / 8 FROM seal")) <= 3


async def test_what_is_recorded_after_a_seal_is_known(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        one, two = await create(store), await create(store)
        await run(store, one.id, "a")
        await run(store, two.id, "b")
        anchor = await store.anchor()
        done = await run(store, two.id, "c")
        scope = store._view.scope()
    with closing(connect(str(tmp_path / "store.db"))) as db:
        seal = recent.seal_at(db, "default", anchor)
        assert seal is not None
        found = recent.recent(db, scope, seal.last)
    assert found.chains == {records.conversation_chain(id_to_bytes(two.id)): 2}
    assert found.turns == {id_to_bytes(done.turn)}


# What is newer than an anchor.


async def grown(path: Path) -> tuple[Anchor, SqliteStore]:
    """A store with history on both sides of an anchor: turns, failed tries, forks, charges, a deletion."""
    store = await SqliteStore.open(path)
    old, both = await create(store, "old"), await create(store, "both")
    for conversation in (old, both):
        await run(store, conversation.id, f"{conversation.name} before")
    await store.charge(both.id, new_id(), Usage(calls=1))
    await store.charge(None, CHARGED, Usage(calls=1))
    doomed = await store.fork(both.id, fork_of("doomed"))
    await run(store, doomed.id, "doomed before")
    anchor = await store.anchor()
    await run(store, both.id, "both after")
    turn = await begin(store, both.id)
    await store.fail(await store.journal(turn, [says("tried")]), TurnError("tried", "It was to fail."))
    await store.fork(both.id, fork_of("fork"))
    new = await store.fork(both.id, fork_of("new"))
    await run(store, new.id, "new after")
    await store.charge(both.id, new_id(), Usage(calls=1))
    await store.charge(None, new_id(), Usage(calls=1))
    await run(store, doomed.id, "doomed after")
    await store.delete(doomed.id)
    return anchor, store


CHARGED = new_id()

NEWER = {
    "a payload": "UPDATE event SET payload = replace(payload, 'both after', 'other words')",
    "a payload of a fork": "UPDATE event SET payload = replace(payload, 'new after', 'other words')",
    "what a turn cost": """UPDATE turn SET usage = '{"calls":9}' WHERE id = (SELECT head_turn FROM conversation
        WHERE name = 'new')""",
    "a failed try": "UPDATE turn SET outcome = 'cancelled' WHERE outcome = 'failed'",
    "a step": "UPDATE step SET payload = replace(payload, 'tried', 'did it')",
    "a name": "UPDATE conversation SET name = 'another' WHERE name = 'renamed'",
    "a record's body": """UPDATE record SET body = replace(body, '"calls":1', '"calls":2')
        WHERE id = (SELECT max(id) FROM record WHERE kind = 'charged')""",
    "a record, removed": "DELETE FROM record WHERE id = (SELECT max(id) FROM record WHERE kind = 'failed')",
    "the last event of a turn, removed": """DELETE FROM event WHERE id = (SELECT head FROM conversation
        WHERE name = 'new')""",
    "a head": "UPDATE conversation SET head = head - 2 WHERE name = 'both'",
    "the end of a chain": "UPDATE chain SET records = records - 1",
}


async def test_what_was_recorded_since_an_anchor_is_verified_alone_and_the_result_says_so(tmp_path: Path) -> None:
    anchor, store = await grown(tmp_path / "store.db")
    async with store:
        everything, since = await store.verify(), await store.verify(since=anchor)
        assert everything.ok, everything.flaws
        assert since.ok, since.flaws
        assert (everything.since, since.since) == (None, 1)
        assert 0 < since.events < everything.events
        assert 0 < since.records < everything.records
        last = await store.anchor()
        nothing = await store.verify(since=last)
        assert (nothing.ok, nothing.events, nothing.records, nothing.conversations) == (True, 0, 0, 0), nothing.flaws


@pytest.mark.parametrize("what", NEWER)
async def test_a_change_of_what_is_newer_than_an_anchor_is_found(tmp_path: Path, what: str) -> None:
    anchor, store = await grown(tmp_path / "store.db")
    async with store:
        await store.rename((await store.find("fork")).id, "renamed")
    tamper(tmp_path / "store.db", lambda db: _changes(db, NEWER[what]))
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        assert not (await store.verify(since=anchor)).ok, f"nobody noticed that somebody changed {what}"


async def test_events_of_a_newer_turn_are_missing_only_after_the_last_that_somebody_reaches(tmp_path: Path) -> None:
    """The one who reaches it is a turn that runs, of a conversation in which nothing else is newer than the anchor."""
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        made = await create(store)
        doomed, runner = await store.fork(made.id, fork_of()), await store.fork(made.id, fork_of())
        await run(store, runner.id, "older")
        anchor = await store.anchor()
        note = await store.note(doomed.id, new_id(), [says(str(number)) for number in range(5)])
        place = Position(note.first.segment, 3)
        await store.begin(runner.id, new_id(), onto=Onto(doomed.id, place))
        await store.delete(doomed.id)
        assert (await store.collect()).events == 2
        assert (await store.verify(since=anchor)).ok
        key = place.segment << 32 | place.ordinal
        tamper(tmp_path / "store.db", lambda db: _changes(db, f"DELETE FROM event WHERE id = {key}"))
        assert str(place) in places(await store.verify(since=anchor)), "nobody noticed that an event is missing"


async def test_what_is_newer_verifies_in_the_middle_of_a_collection(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        made = await create(store)
        anchor = await store.anchor()
        await store.note(made.id, new_id(), [says("1"), says("2"), says("3")])
        await store.delete(made.id)
        left, seen = True, 0
        while left:
            left = collect_one_event(tmp_path / "store.db")
            found = await store.verify(since=anchor)
            assert found.ok, found.flaws
            seen += found.events
        assert seen == 2 + 1, "the rest of the turn was not looked at"


async def test_a_newer_turn_that_nobody_reaches_is_there_with_an_event_or_not_at_all(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        made = await create(store)
        anchor = await store.anchor()
        note = await store.note(made.id, new_id(), [says("1"), says("2"), says("3")])
        await store.delete(made.id)
        tamper(tmp_path / "store.db", lambda db: _changes(db, "DELETE FROM event"))
        assert places(await store.verify(since=anchor)) == {str(note.first)}


def collect_one_event(path: Path) -> bool:
    """Removes one event of the garbage; says whether there is more."""
    scope = Scope(DEFAULT_TENANT, 0, b"", lambda holder, seen: False)
    with closing(connect(str(path))) as db:
        db.execute("BEGIN IMMEDIATE")
        _, is_more = garbage.collect_slice(db, scope, garbage.Tenants.only(DEFAULT_TENANT), most=1)
        db.execute("COMMIT")
    return is_more


async def test_older_payloads_are_not_looked_at(tmp_path: Path) -> None:
    anchor, store = await grown(tmp_path / "store.db")
    await store.close()
    change = "UPDATE event SET payload = replace(payload, 'before', 'ever') WHERE payload LIKE '%before%'"
    tamper(tmp_path / "store.db", lambda db: _changes(db, change))
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        assert not (await store.verify()).ok
        assert (await store.verify(since=anchor)).ok


async def test_what_is_newer_cannot_be_asked_for_together_with_a_part_of_what_is_older(tmp_path: Path) -> None:
    anchor, store = await grown(tmp_path / "store.db")
    async with store:
        with pytest.raises(BadArgument):
            await store.verify((await store.find("old")).id, since=anchor)
        with pytest.raises(BadArgument):
            await store.verify(head_digest=b"0" * 32, since=anchor)

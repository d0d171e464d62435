"""Records: every operation writes a record of what it did and who did it, and `verify` finds no flaw after it."""

import pytest

from forkpoint.errors import BadName, NotFound
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.actor import acting
from forkpoint.store.protocol import Store
from forkpoint.store.values import Lineage, NewConversation, OpenTurn, Record, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run
from forkpoint.testing.samples import calls, exchange, remembers, returns, says

A_DAY = 24 * 3600


async def kinds(store: Store, conversation: str) -> list[str]:
    """What was kept about a conversation, in order; and it verifies, alone and with all others."""
    for id in (None, conversation):
        found = await store.verify(id)
        assert found.ok, found.flaws
    return [record.kind for record in (await store.records(conversation, limit=1000)).items]


async def last(store: Store, conversation: str) -> Record:
    return (await store.records(conversation, limit=1000)).items[-1]


class RecordConformance(Conformance):
    async def test_a_conversation_begins_with_its_birth(self, store: Store) -> None:
        made = await create(store, "root")
        (born,) = (await store.records(made.id)).items
        assert (born.number, born.kind, born.time, born.subject) == (0, "born", made.created, None)
        assert (born.body["id"], born.body["kind"]) == (made.id, "root")
        assert await kinds(store, made.id) == ["born"]

    async def test_each_record_says_who_acted_and_when(self, store: Store, clock: ManualClock) -> None:
        made = await create(store)
        with acting("alice"):
            await run(store, made.id, "one")
        clock.pass_by(5)
        with acting("bob"):
            await store.describe(made.id, title="A title")
        await store.describe(made.id, title="Another")
        records = (await store.records(made.id)).items
        assert [(record.kind, record.by) for record in records[1:]] == [
            ("committed", "alice"),
            ("described", "bob"),
            ("described", None),
        ]
        assert records[2].time - records[1].time >= 5_000_000
        assert len({record.digest for record in records}) == 4

    async def test_a_commit_states_what_it_changed(self, store: Store) -> None:
        made = await create(store)
        turn = await store.begin(made.id, new_id(), input='{"text":"hi"}', by="alice")
        assert isinstance(turn, OpenTurn)
        done = await store.commit(
            turn, exchange("one"), usage=Usage(calls=1, input=5), settings='{"b":2}', cache='{"key":"c"}'
        )
        record = await last(store, made.id)
        assert (record.kind, record.subject) == ("committed", done.turn)
        assert record.body["revision"] == 1
        assert {"settings", "cache"} <= record.body.keys()
        told = record.body["turn"]
        assert (told["outcome"], told["by"], told["usage"]["input"], told["end"][0]) == ("committed", "alice", 5, 2)
        assert await kinds(store, made.id) == ["born", "committed"]

    async def test_every_way_a_try_can_end_is_kept(self, store: Store) -> None:
        made = await create(store)
        turn = await store.journal(await begin(store, made.id), [says("x"), calls("c1"), returns("c1")])
        await store.fail(turn, TurnError("x", "y"), usage=Usage(calls=1))
        assert await kinds(store, made.id) == ["born", "failed"]
        await store.cancel(await store.resume(turn.id))
        assert await kinds(store, made.id) == ["born", "failed", "resumed", "cancelled"]
        await store.wait(await begin(store, made.id), [says("may I?")])
        assert (await kinds(store, made.id))[4:] == ["awaiting_approval"]
        waiting = await last(store, made.id)
        assert waiting.subject is not None
        await store.commit(await store.resume(waiting.subject), exchange("done"))
        assert (await kinds(store, made.id))[5:] == ["resumed", "committed"]
        await store.wait(await begin(store, made.id), [says("and now?")])
        parked = await last(store, made.id)
        assert parked.subject is not None
        await store.discard(parked.subject)
        assert (await kinds(store, made.id))[7:] == ["awaiting_approval", "cancelled"]

    async def test_an_interrupted_turn_that_is_discarded_is_kept(
        self, store: Store, second: Store, clock: ManualClock
    ) -> None:
        if second is store:
            pytest.skip("nobody else can see this store")
        made = await create(store)
        turn = await store.journal(await begin(store, made.id), [says("half")])
        clock.pass_by(A_DAY)
        assert await kinds(second, made.id) == ["born"]  # a turn that has only begun has no record
        await second.discard(turn.id)
        assert await kinds(second, made.id) == ["born", "cancelled"]

    async def test_notes_and_changes_of_metadata_are_kept(self, store: Store) -> None:
        made = await create(store, "first")
        await store.note(made.id, new_id(), [remembers("k", "1")], by="alice")
        await store.describe(made.id, title="A title", tags=(("team", "blue"),))
        await store.describe(made.id, title="")
        await store.rename(made.id, "second")
        await store.rename(made.id, None, if_revision=1)
        assert await store.change_approvals(made.id, '["look"]', if_approvals="[]")
        await store.charge(made.id, new_id(), Usage(calls=1, input=2))
        expected = ["born", "note", "described", "described", "renamed", "renamed", "approvals", "charged"]
        assert await kinds(store, made.id) == expected

    async def test_a_change_that_is_refused_leaves_no_record(self, store: Store) -> None:
        made = await create(store)
        assert not await store.change_approvals(made.id, "[1]", if_approvals="[2]")
        id = new_id()
        for _ in range(2):
            await store.charge(made.id, id, Usage(calls=1))
        assert await kinds(store, made.id) == ["born", "charged"]

    async def test_a_charge_of_no_conversation_verifies(self, store: Store) -> None:
        for _ in range(10):
            await store.charge(None, new_id(), Usage(calls=1, input=2))
        found = await store.verify()
        assert (found.flaws, found.records) == ((), 10)

    async def test_a_draft_becomes_a_conversation_by_a_record(self, store: Store) -> None:
        new = NewConversation(id=new_id())
        turn = await store.begin(new.id, new_id(), create=new)
        assert isinstance(turn, OpenTurn)
        await store.wait(turn, [says("may I?")])
        assert await kinds(store, new.id) == ["born", "admitted", "awaiting_approval"]

    async def test_a_fork_goes_on_from_its_source(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        at_head, earlier = await store.fork(made.id, fork_of()), await store.fork(made.id, fork_of(), at=one.turn)
        of_fork = await store.fork(at_head.id, fork_of())
        for fork, records in ((at_head, 2), (earlier, 2), (of_fork, 0)):
            (born,) = (await store.records(fork.id)).items
            assert born.body["records"] == records
            await run(store, fork.id, "on")
            assert await kinds(store, fork.id) == ["born", "committed"]

    async def test_a_rewind_says_what_it_left_and_a_turn_elsewhere_too(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        await run(store, made.id, "two")
        aside = fork_of()
        await store.rewind(made.id, aside, at=one.turn)
        assert (await last(store, made.id)).body["aside"] == aside.id
        assert await kinds(store, made.id) == ["born", "committed", "committed", "rewound"]
        assert await kinds(store, aside.id) == ["born"]

    async def test_what_is_left_behind_and_collected_still_verifies(self, store: Store) -> None:
        """The settings that a turn had stated hold, though the turn itself is gone."""
        made = await create(store)
        one = await run(store, made.id, "one")
        await store.commit(await begin(store, made.id), exchange("two"), settings='{"b":2}')
        aside = fork_of()
        await store.rewind(made.id, aside, at=one.turn)
        await store.delete(aside.id)
        assert (await store.collect()).turns == 1
        assert (await kinds(store, made.id))[:4] == ["born", "committed", "committed", "rewound"]

    async def test_a_sub_agent_and_its_note_verify(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        lineage = Lineage("sub_agent", made.id, None, new_id(), "c1")
        new = NewConversation(id=new_id(), family=made.id, lineage=lineage)
        child = await store.create(new, exchange("a task"))
        assert await kinds(store, child.id) == ["born", "note"]

    async def test_a_deleted_conversation_and_its_forks_verify(self, store: Store) -> None:
        made = await create(store)
        early = await store.fork(made.id, fork_of())
        await run(store, made.id, "one")
        late = await store.fork(made.id, fork_of())
        await store.fail(await begin(store, made.id), TurnError("x", "y"), usage=Usage(calls=1))
        await store.charge(made.id, new_id(), Usage(calls=1))
        await store.delete(made.id)
        assert await kinds(store, early.id) == ["born"]
        await store.collect()
        await run(store, late.id, "on")
        assert await kinds(store, late.id) == ["born", "committed"]
        with pytest.raises(NotFound):
            await store.records(made.id)

    async def test_an_id_that_is_used_again_has_records_of_its_own(self, store: Store) -> None:
        id = new_id()
        forks = []
        for times in (1, 2, 0, 1):
            await store.create(NewConversation(id=id))
            forks.append((await store.fork(id, fork_of())).id)
            for _ in range(times):
                await run(store, id, "again")
            assert await kinds(store, id) == ["born", *["committed"] * times]
            forks.append((await store.fork(id, fork_of())).id)
            await store.delete(id)
            await store.collect()
        for fork in forks:
            assert await kinds(store, fork) == ["born"]

    async def test_records_come_in_pages(self, store: Store) -> None:
        made = await create(store)
        for number in range(6):
            await store.describe(made.id, title=str(number))
        whole = await store.records(made.id)
        assert whole.next is None
        found: list[Record] = []
        cursor = None
        for _ in range(4):
            page = await store.records(made.id, cursor=cursor, limit=2)
            found += page.items
            cursor = page.next
        assert (tuple(found), cursor) == (whole.items, None)
        assert [record.number for record in found] == list(range(7))
        for bad in ("x", "-1", "9" * 30):
            with pytest.raises(BadName):
                await store.records(made.id, cursor=bad)

"""Care: verifying, deleting, collecting."""

import pytest

from forkpoint.backend.messages import write_input
from forkpoint.errors import NotFound, NotResumable
from forkpoint.events import Text, Usage, UserMessage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import Collected, IdempotencyKey, Lineage, NewConversation, OpenTurn, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.samples import exchange, remembers, says

A_MONTH = 31 * 24 * 3600


class CareConformance(Conformance):
    async def test_verify_counts_what_it_checked_and_knows_a_head_digest(self, store: Store) -> None:
        made = await create(store)
        done = await run(store, made.id, "one")
        await run(store, made.id, "two")
        fork = await store.fork(made.id, fork_of())
        everything = await store.verify()
        assert (everything.ok, everything.conversations, everything.events) == (True, 2, 4)
        assert (await store.verify(fork.id, head_digest=done.head.digest)).ok
        assert not (await store.verify(fork.id, head_digest=b"\1" * 32)).ok
        other = await create(store)
        assert not (await store.verify(other.id, head_digest=done.head.digest)).ok

    async def test_a_deleted_conversation_is_gone_and_its_fork_is_whole(self, store: Store) -> None:
        made = await create(store, "source")
        await run(store, made.id, [*exchange("one"), remembers("k", "1")], Usage(calls=1, input=1))
        fork = await store.fork(made.id, fork_of())
        await run(store, made.id, "after the fork", Usage(calls=1, input=2))
        expected = await store.events(fork.id)
        assert (await store.delete(made.id)).conversations == (made.id,)
        with pytest.raises(NotFound):
            await store.read(made.id)
        collected = await store.collect()
        assert (collected.events, collected.turns) == (2, 1)
        assert await store.events(fork.id) == expected
        assert (await store.state(fork.id)).get("k") == "1"
        await run(store, fork.id, "on", Usage(calls=1, input=4))
        assert await store.usage(made.id) == Usage(calls=3, input=7)
        assert (await store.verify()).ok
        await create(store, "source")

    async def test_deleting_takes_sub_agents_along_but_never_a_fork(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        turn = new_id()

        async def spawn(parent: str, call: str) -> str:
            lineage = Lineage("sub_agent", parent, None, turn, call)
            return (await store.create(NewConversation(id=new_id(), family=made.id, lineage=lineage))).id

        child = await spawn(made.id, "c1")
        grandchild = await spawn(child, "c2")
        fork, fork_of_child = await store.fork(made.id, fork_of()), await store.fork(child, fork_of())
        deleted = await store.delete(made.id)
        assert set(deleted.conversations) == {made.id, child, grandchild}
        left = {record.id for record in (await store.conversations()).items}
        assert left == {fork.id, fork_of_child.id}

    async def test_the_collector_takes_what_nobody_reaches_and_nothing_else(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        aside = fork_of()
        await run(store, made.id, "two")
        await store.rewind(made.id, aside, at=one.turn)
        nested = await store.fork(aside.id, fork_of())
        await run(store, nested.id, "three")
        assert await store.collect() == Collected()
        await store.delete(nested.id)
        await store.delete(aside.id)
        expected = await store.collect(dry_run=True)
        assert (expected.events, expected.segments, expected.turns) == (4, 1, 2)
        assert await store.collect() == expected
        assert await store.collect() == Collected()
        assert texts(await store.events(made.id)) == ["one", "You said: one"]
        await run(store, made.id, "on")
        assert (await store.verify()).ok

    async def test_a_fork_in_the_middle_of_a_turn_outlives_the_rest_of_it(self, store: Store) -> None:
        made = await create(store)
        done = await run(store, made.id, [*exchange("one"), remembers("k", "1"), *exchange("rest")])
        fork = await store.fork(made.id, fork_of(), before=await _fourth(store, made.id))
        await store.delete(made.id)
        assert (await store.collect()).events == 2
        assert len(await store.events(fork.id)) == 3
        assert (await store.state(fork.id)).get("k") == "1"
        again = await store.fork(fork.id, fork_of(), at=done.first)
        assert len(await store.events(again.id)) == 1
        assert (await store.verify()).ok

    async def test_a_whole_family_is_collected_when_its_last_conversation_goes(self, store: Store) -> None:
        made = await create(store)
        for question in ("one", "two"):
            await run(store, made.id, question)
        await store.delete(made.id)
        collected = await store.collect()
        assert (collected.events, collected.segments) == (4, 1)
        assert await store.usage(made.id) == Usage(calls=2, input=20)
        assert (await store.verify()).events == 0

    async def test_what_failed_turns_spent_survives_deletion(self, store: Store) -> None:
        made = await create(store)
        turn = await store.journal(await begin(store, made.id), [says("secret")], usage=Usage(calls=1, input=3))
        await store.fail(turn, TurnError("x", "y"), usage=Usage(calls=1, input=4))
        assert await store.usage(made.id) == Usage(calls=2, input=7)
        await store.delete(made.id)
        assert await store.usage(made.id) == Usage(calls=2, input=7)
        with pytest.raises(NotFound):
            await store.steps(turn.id)

    async def test_drafts_and_keys_run_out(self, store: Store, clock: ManualClock) -> None:
        new = NewConversation(id=new_id())
        turn = await store.begin(new.id, new_id(), create=new)
        assert isinstance(turn, OpenTurn)
        await store.fail(turn, TurnError("x", "y"))
        kept = await store.create(NewConversation(id=new_id()), key=IdempotencyKey("old", b"1"))
        assert await store.collect() == Collected()
        clock.pass_by(A_MONTH)
        expected = Collected(drafts=1, keys=1)
        assert await store.collect(dry_run=True) == expected
        assert await store.collect() == expected
        with pytest.raises(NotFound):
            await store.read(new.id)
        assert (await store.read(kept.id)).id == kept.id

    async def test_conversations_of_responses_run_out_unless_somebody_named_used_or_holds_them(
        self, store: Store, clock: ManualClock
    ) -> None:
        unnamed = (("responses", "unnamed"),)
        response, native = write_input((), echo="{}"), write_input((UserMessage((Text('"echo":"{}"'),)),))
        left, noted, natively_used, named, titled, held, used, other = [
            await store.create(NewConversation(id=new_id(), name=name, title=title, tags=tags))
            for name, title, tags in (
                (None, None, unnamed),
                (None, None, unnamed),
                (None, None, unnamed),
                ("mine", None, unnamed),
                (None, "Mine", unnamed),
                (None, None, unnamed),
                (None, None, unnamed),
                (None, None, (("responses", "named"),)),
            )
        ]
        for made in (left, noted, natively_used, named, titled, held, used, other):
            await run(store, made.id, "hi", input=response)
        await store.note(noted.id, new_id(), [says("noted")])
        await run(store, natively_used.id, "mine", input=native)
        fork = await store.fork(left.id, fork_of())
        await store.hold(held.id, new_id(), "a case")
        assert await store.collect() == Collected()
        clock.pass_by(A_MONTH)
        await run(store, used.id, "still here", input=response)
        expected = await store.collect(dry_run=True)
        assert expected.responses == 2
        assert (await store.collect()).responses == 2
        for made in (left, noted):
            with pytest.raises(NotFound):
                await store.read(made.id)
        for made in (natively_used, named, titled, held, used, other, fork):
            assert len(await store.events(made.id)) >= 2
        assert (await store.collect()).responses == 0
        assert (await store.verify()).ok

    async def test_failed_tries_lose_their_content_after_a_while_and_keep_the_rest(
        self, store: Store, clock: ManualClock
    ) -> None:
        made = await create(store)
        turn = await store.journal(await begin(store, made.id), [says("secret")], usage=Usage(calls=1, input=3))
        failed = await store.fail(turn, TurnError("x", "y"))
        clock.pass_by(A_MONTH)
        assert await store.collect(dry_run=True) == Collected(tries=1)
        assert await store.collect() == Collected(tries=1)
        assert await store.collect() == Collected()
        found, steps = await store.turn(turn.id), await store.steps(turn.id)
        assert (found.input, found.error, steps) == (None, None, [])
        assert (found.outcome, found.usage, found.ended) == ("failed", failed.usage, failed.ended)
        assert await store.usage(made.id) == Usage(calls=1, input=3)
        with pytest.raises(NotResumable):
            await store.resume(turn.id)
        with pytest.raises(NotResumable):
            await store.begin(made.id, new_id(), retry_of=turn.id)
        await run(store, made.id, "on")
        assert (await store.verify()).ok

    async def test_a_tenant_collects_its_own_and_whoever_runs_the_store_everybodys(self, store: Store) -> None:
        for tenant in ("one", "two"):
            made = await create(store.within(tenant))
            await run(store.within(tenant), made.id, "hi")
            await store.within(tenant).delete(made.id)
        assert (await store.collect()).events == 0
        assert (await store.within("one").collect()).events == 2
        assert (await store.collect(every_tenant=True)).events == 2

    async def test_a_compacted_store_has_all_that_it_had(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        gone = await create(store)
        await run(store, gone.id, "two")
        await store.delete(gone.id)
        assert (await store.collect(compact=True)).events == 2
        assert texts(await store.events(made.id)) == ["one", "You said: one"]
        await run(store, made.id, "on")
        assert (await store.verify()).ok

    async def test_a_draft_that_waits_for_an_approval_is_left_alone(self, store: Store, clock: ManualClock) -> None:
        new = NewConversation(id=new_id())
        turn = await store.begin(new.id, new_id(), create=new)
        assert isinstance(turn, OpenTurn)
        await store.wait(turn, [says("may I?")])
        clock.pass_by(A_MONTH)
        assert (await store.collect()).drafts == 0
        assert len(await store.steps(turn.id)) == 1

    async def test_an_id_can_be_used_again_after_deletion(self, store: Store) -> None:
        id = new_id()
        for _ in range(3):
            await store.create(NewConversation(id=id))
            await run(store, id, "again", Usage(calls=1, input=1))
            await store.delete(id)
            await store.collect()
        assert await store.usage(id) == Usage(calls=3, input=3)

    async def test_a_digest_kept_of_an_empty_conversation_stays_good(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        assert (await store.verify(made.id, head_digest=made.head.digest)).ok

    async def test_a_draft_whose_turn_runs_is_left_alone(self, store: Store, clock: ManualClock) -> None:
        new = NewConversation(id=new_id())
        turn = await store.begin(new.id, new_id(), create=new)
        assert isinstance(turn, OpenTurn)
        clock.pass_by(A_MONTH)
        assert (await store.collect()).drafts == 0
        await store.commit(turn, exchange("slow"))


async def _fourth(store: Store, conversation: str) -> str:
    return str((await store.events(conversation))[3].id)

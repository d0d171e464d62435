"""Branches that begin with their first turn: sides, and what stands beside a conversation's head."""

from functools import partial

import pytest

from forkpoint.errors import Busy, NotFound
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import Lineage, NewConversation, Onto, OpenTurn, StoredConversation
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.conformance.evidence.care import A_MONTH
from forkpoint.testing.samples import exchange


class SideConformance(Conformance):
    async def test_a_side_begins_with_nothing_says_where_its_conversation_stood_and_counts_in_the_family(
        self, store: Store
    ) -> None:
        made = await create(store, "talk")
        one = await run(store, made.id, "one", Usage(calls=1, input=1))
        before = await store.read(made.id)
        side = await begun(store, beside(made, "side", at=before))
        assert (await store.read(made.id)) == before
        await store.commit(side, exchange("a title"), usage=Usage(calls=1, input=2))
        kept = await store.read(side.conversation)
        assert (kept.name, kept.family, kept.draft) == (kept.id, made.family, False)
        assert kept.lineage == Lineage("side", made.id, one.last)
        assert texts(await store.events(kept.id)) == ["a title", "You said: a title"]
        assert await store.spent(kept.id) == Usage(calls=1, input=2)
        assert await store.usage(made.family) == await store.usage() == Usage(calls=2, input=3)
        assert await store.read(made.id) == before, "its conversation is as it was"
        assert (await store.verify()).ok

    async def test_a_side_needs_no_lock_of_its_conversation_and_may_begin_before_the_first_commit(
        self, store: Store
    ) -> None:
        new = NewConversation(id=new_id(), name="talk")
        first = await store.begin(new.id, new_id(), create=new)
        assert isinstance(first, OpenTurn)
        draft = await store.read(new.id)
        sides = [await begun(store, beside(draft, "side")) for _ in range(3)]
        for number, side in enumerate(sides):
            await store.commit(side, exchange(f"title {number}"))
        assert (await store.find("talk")).draft
        await store.commit(first, exchange("one"))
        assert texts(await store.events(new.id)) == ["one", "You said: one"]
        assert {side.conversation for side in sides} < {one.id for one in (await store.conversations()).items}
        assert (await store.verify()).ok

    async def test_lists_leave_sides_out_on_request(self, store: Store) -> None:
        made = await create(store)
        fork = await store.fork(made.id, fork_of())
        sides = [(await begun(store, beside(made, "side"))) for _ in range(3)]
        for side in sides:
            await store.commit(side, exchange("title"))

        async def listed(limit: int = 50, **which: object) -> set[str]:
            read = partial(store.conversations, **which)  # type: ignore[arg-type]
            return {record.id async for record in every(read, limit=limit)}

        every_id = {made.id, fork.id, *(side.conversation for side in sides)}
        assert await listed() == await listed(family=made.family) == every_id
        assert await listed(sides=False) == await listed(1, sides=False) == {made.id, fork.id}
        assert await listed(family=made.family, sides=False) == {made.id, fork.id}

    async def test_a_conversation_takes_its_sides_along_when_it_is_deleted_and_none_of_its_forks(
        self, store: Store
    ) -> None:
        made = await create(store)
        await run(store, made.id, "one", Usage(calls=1, input=1))
        fork = await store.fork(made.id, fork_of())
        side, others = await begun(store, beside(made, "side")), await begun(store, beside(fork, "side"))
        for turn in (side, others):
            await store.commit(turn, exchange("title"), usage=Usage(calls=1, input=2))
        running = await begin(store, side.conversation)
        with pytest.raises(Busy):
            await store.delete(made.id)
        await store.cancel(running)
        assert set((await store.delete(made.id)).conversations) == {made.id, side.conversation}
        with pytest.raises(NotFound):
            await store.read(side.conversation)
        assert {one.id for one in (await store.conversations()).items} == {fork.id, others.conversation}
        assert await store.usage(made.family) == Usage(calls=3, input=5)

    async def test_a_draft_that_is_collected_takes_its_sides_along(self, store: Store, clock: ManualClock) -> None:
        new = NewConversation(id=new_id(), name="talk")
        first = await store.begin(new.id, new_id(), create=new)
        assert isinstance(first, OpenTurn)
        side = await begun(store, beside(await store.read(new.id), "side"))
        await store.commit(side, exchange("title"), usage=Usage(calls=1, input=2))
        await store.cancel(first)
        clock.pass_by(A_MONTH)
        assert (await store.collect()).drafts == 1
        assert (await store.conversations()).items == ()
        assert await store.usage() == Usage(calls=1, input=2)

    @pytest.mark.parametrize("kept", [0, 1, 2], ids=["root", "one turn", "head"])
    async def test_a_branch_that_begins_with_its_turn_parts_where_its_path_leaves_the_others(
        self, store: Store, kept: int
    ) -> None:
        made = await create(store)
        turns = [await run(store, made.id, text, Usage(calls=1, input=1)) for text in ("one", "two")]
        at = None if not kept else turns[kept - 1].last
        running = await begin(store, made.id)
        branch = await begun(store, beside(made, "aside", onto=Onto(made.id, at)))
        await store.commit(branch, exchange("instead"), usage=Usage(calls=1, input=2))
        await store.commit(running, exchange("three"), usage=Usage(calls=1, input=4))
        record = await store.read(branch.conversation)
        assert record.lineage == Lineage("aside", made.id, at)
        said = ["one", "You said: one", "two", "You said: two"][: 2 * kept]
        assert texts(await store.events(record.id)) == [*said, "instead", "You said: instead"]
        assert await store.spent(record.id) == Usage(calls=1, input=2)
        assert await store.usage(made.family) == Usage(calls=4, input=8)
        assert (await store.verify()).ok


def beside(
    source: StoredConversation, kind: str, *, at: StoredConversation | None = None, onto: Onto | None = None
) -> NewConversation:
    """A branch of this kind, to be made with its first turn."""
    where = None if at is None else at.head.position
    lineage = Lineage(kind, source.id, where)  # type: ignore[arg-type]
    return NewConversation(id=new_id(), family=source.family, lineage=lineage, onto=onto)


async def begun(store: Store, new: NewConversation) -> OpenTurn:
    turn = await store.begin(new.id, new_id(), create=new)
    assert isinstance(turn, OpenTurn)
    return turn

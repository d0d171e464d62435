"""How one finds out that something was committed: the pulse of a store, and the revisions of many conversations."""

from collections.abc import Awaitable, Callable

import pytest

from forkpoint.errors import Stale
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.store.values import NewConversation, TurnError
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run
from forkpoint.testing.samples import answers, says


class ChangeConformance(Conformance):
    async def test_revisions_of_many_are_those_that_each_has(self, store: Store) -> None:
        made = [await create(store) for _ in range(5)]
        for number, one in enumerate(made):
            for _ in range(number):
                await run(store, one.id, "hello")
        fork = await store.fork(made[3].id, fork_of())
        ids = [one.id for one in made]
        expected = dict(zip(ids, range(5), strict=True)) | {fork.id: fork.revision}
        assert await store.revisions([*ids, fork.id]) == expected
        assert await store.revisions([*ids, *ids, fork.id]) == expected, "also for one that is named twice"
        assert await store.revisions({made[2].id}) == {made[2].id: 2}

    async def test_revisions_leave_out_what_does_not_exist(self, store: Store) -> None:
        made, gone = await create(store, "a-name"), await create(store)
        theirs = await create(store.within("somebody-else"))
        await store.delete(gone.id)
        strangers = [new_id(), gone.id, theirs.id, "a-name", "", "x" * 1000, made.id.upper(), made.id.replace("-", "")]
        assert await store.revisions([*strangers, made.id]) == {made.id: 0}
        assert await store.revisions(strangers) == {}
        assert await store.revisions([]) == {}
        assert await store.within("somebody-else").revisions([made.id, theirs.id]) == {theirs.id: 0}

    async def test_a_draft_has_a_revision(self, store: Store) -> None:
        draft = NewConversation(id=new_id(), settings="{}", cache="{}")
        await store.begin(draft.id, new_id(), create=draft)
        assert await store.revisions([draft.id]) == {draft.id: 0}

    async def test_revisions_of_thousands_are_one_read(self, store: Store) -> None:
        made = [await create(store) for _ in range(3)]
        await run(store, made[1].id, "hello")
        ids = [new_id() for _ in range(5000)]
        ids[0], ids[2500], ids[-1] = (one.id for one in made)
        assert await store.revisions(ids) == {made[0].id: 0, made[1].id: 1, made[2].id: 0}

    async def test_the_pulse_stays_as_long_as_nobody_writes(self, store: Store) -> None:
        made = await create(store)
        pulse = await store.pulse()
        await store.read(made.id)
        await store.conversations()
        assert await store.revisions([made.id]) == {made.id: 0}
        assert await store.pulse() == pulse

    async def test_every_write_changes_the_pulse(self, store: Store) -> None:
        pulse = await store.pulse()

        async def changed(what: str) -> None:
            nonlocal pulse
            before, pulse = pulse, await store.pulse()
            assert pulse != before, f"{what} did not change the pulse"

        made = await create(store)
        await changed("create")
        turn = await begin(store, made.id)
        await changed("begin")
        turn = await store.journal(turn, [says("hello")])
        await changed("journal")
        await store.commit(turn, [answers("hello")])
        await changed("commit")
        failed = await begin(store, made.id)
        await changed("begin")
        await store.fail(failed, TurnError("x", "x"))
        await changed("fail")
        fork = await store.fork(made.id, fork_of())
        await changed("fork")
        await store.describe(made.id, title="t")
        await changed("describe")
        await store.change_approvals(made.id, "[1]", if_approvals="[]")
        await changed("change_approvals")
        await store.note(made.id, new_id(), [says("aside")])
        await changed("note")
        await store.rewind(made.id, fork_of(), at=turn.id)
        await changed("rewind")
        await run(store, fork.id, "on")
        await changed("run")
        await store.keep(made.id, fork.id, fork_of())
        await changed("keep")
        await store.charge(made.id, new_id(), Usage(calls=1, input=1))
        await changed("charge")
        await store.delete(fork.id)
        await changed("delete")
        theirs = store.within("somebody-else")
        await create(theirs)
        await changed("another tenant's write")
        assert await theirs.pulse() == pulse, "there is one for all tenants"

    async def test_who_reads_after_a_new_pulse_finds_what_changed_it(self, store: Store) -> None:
        made = await create(store)
        pulse, seen = await store.pulse(), 0
        for number in range(1, 20):
            await run(store, made.id, "hello")
            now = await store.pulse()
            assert now != pulse
            pulse, seen = now, (await store.revisions([made.id]))[made.id]
            assert seen == number

    @pytest.mark.parametrize("writes", [1, 0])
    async def test_a_refused_write_changes_no_revision(self, store: Store, writes: int) -> None:
        made = await create(store)
        for _ in range(writes):
            await run(store, made.id, "hello")
        refused: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: store.begin(made.id, new_id(), if_revision=7),
            lambda: store.fork(made.id, fork_of(), if_revision=7),
            lambda: store.rewind(made.id, fork_of(), before="x", if_revision=7),
            lambda: store.note(made.id, new_id(), [says("aside")], if_revision=7),
            lambda: store.delete(made.id, if_revision=7),
        )
        for write in refused:
            with pytest.raises(Stale) as stale:
                await write()
            assert (stale.value.expected, stale.value.actual) == (7, writes)
        assert await store.revisions([made.id]) == {made.id: writes}
        assert len((await store.conversations()).items) == 1

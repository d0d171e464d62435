"""Holds: what keeps a family from deletion and erasure."""

import pytest

from forkpoint.errors import BadArgument, Held, NotFound
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.protocol import Store
from forkpoint.testing.conformance.base import Conformance, create, fork_of, run


class HoldConformance(Conformance):
    async def test_a_held_family_is_neither_deleted_nor_erased_until_all_holds_are_released(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        fork = await store.fork(made.id, fork_of())
        first = await store.hold(made.id, new_id(), "case 17")
        second = await store.hold(fork.id, new_id(), "case 18")
        assert await store.holds(made.id) == await store.holds(fork.id) == await store.holds() == (first, second)
        for held in (made.id, fork.id):
            with pytest.raises(Held) as refused:
                await store.delete(held)
            assert "case 17" in str(refused.value)
            assert second.id in str(refused.value)
            with pytest.raises(Held):
                await store.erase(new_id(), Erasing(conversations=(held,)), reason="no")
        assert await store.release(fork.id, first.id) == (first,)
        with pytest.raises(Held):
            await store.delete(made.id)
        assert await store.release(made.id) == (second,)
        await store.delete(made.id)
        assert (await store.verify()).ok

    async def test_a_hold_is_set_once_and_has_a_reason(self, store: Store) -> None:
        made, id = await create(store), new_id()
        assert await store.hold(made.id, id, "why") == await store.hold(made.id, id, "why")
        assert len(await store.holds(made.id)) == 1
        with pytest.raises(BadArgument):
            await store.hold(made.id, new_id(), " ")
        with pytest.raises(NotFound):
            await store.release(made.id, new_id())
        with pytest.raises(NotFound):
            await store.hold(new_id(), new_id(), "why")

    async def test_another_tenant_knows_nothing_of_a_hold(self, store: Store) -> None:
        made = await create(store)
        await store.hold(made.id, new_id(), "why")
        other = store.within("other")
        assert await other.holds() == ()
        with pytest.raises(NotFound):
            await other.release(made.id)

"""Turns, the newest first: a page at a time, in the order in which they began."""

from functools import partial
from typing import Any

import pytest

from forkpoint.errors import BadName
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import TurnError
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run
from forkpoint.testing.samples import exchange, says


class NewestTurnConformance(Conformance):
    async def test_turns_can_be_listed_newest_first(self, store: Store) -> None:
        made = await create(store)
        await store.fail(await begin(store, made.id), TurnError("x", "y"))
        one = await run(store, made.id, "one")
        source = await store.fork(made.id, fork_of())
        two = await run(store, source.id, [*exchange("two"), *exchange("more")])
        fork = await store.fork(source.id, fork_of())
        failed = await begin(store, fork.id)
        await store.fail(failed, TurnError("x", "y"))
        note = await store.note(fork.id, new_id(), [says("three")])
        four = await run(store, fork.id, "four")
        cancelled = await begin(store, fork.id)
        await store.cancel(cancelled)
        running = await begin(store, fork.id)
        everything = [running.id, cancelled.id, four.turn, note.turn, failed.id, two.turn, one.turn]
        for limit in (1, 2, 3, 7, 8):
            assert await _newest(store, fork.id, limit) == everything, f"{limit} at a time"
            without = await _newest(store, fork.id, limit, notes=False)
            assert without == [id for id in everything if id != note.turn]
            assert await _newest(store, fork.id, limit, committed=True) == [four.turn, note.turn, two.turn, one.turn]
            assert await _newest(store, fork.id, limit, committed=True, notes=False) == [four.turn, two.turn, one.turn]
            assert await _newest(store, fork.id, limit, since=1) == everything[:-1]
            assert await _newest(store, fork.id, limit, since=7) == everything[:3]
        assert await _newest(store, (await create(store)).id, 2) == []

    async def test_newest_first_is_when_turns_began_wherever_they_stand(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        two = await run(store, made.id, "two")
        beyond = await begin(store, made.id)
        await store.fail(beyond, TurnError("x", "y"))
        await store.rewind(made.id, fork_of(), at=one.head.position)
        three = await run(store, made.id, "three")
        assert [turn.id for turn in (await store.turns(made.id)).items] == [one.turn, three.turn, beyond.id]
        for limit in (1, 2, 3):
            assert await _newest(store, made.id, limit) == [three.turn, beyond.id, one.turn]
        assert (await store.turn(two.turn)).outcome == "committed", "it was set aside"

    async def test_a_turn_that_begins_meanwhile_is_on_no_later_page(self, store: Store) -> None:
        made = await create(store)
        done = [(await run(store, made.id, str(n))).turn for n in range(3)]
        running = await begin(store, made.id)
        first = await store.turns(made.id, limit=1, newest_first=True)
        assert [turn.id for turn in first.items] == [running.id]
        await store.commit(running, exchange("now"))
        await run(store, made.id, "later")
        rest = await store.turns(made.id, cursor=first.next, newest_first=True)
        assert [turn.id for turn in rest.items] == done[::-1]

    async def test_a_cursor_belongs_to_its_order(self, store: Store) -> None:
        made = await create(store)
        for n in range(3):
            await run(store, made.id, str(n))
        oldest, newest = [(await store.turns(made.id, limit=1, newest_first=first)).next for first in (False, True)]
        for cursor, newest_first in ((oldest, True), (newest, False), ("-1:x", True), ("-", True), ("-x:", True)):
            with pytest.raises(BadName):
                await store.turns(made.id, cursor=cursor, newest_first=newest_first)


async def _newest(store: Store, conversation: str, limit: int, **wanted: Any) -> list[str]:
    """The ids of all turns, the newest first, read a few at a time."""
    read = partial(store.turns, conversation, newest_first=True, **wanted)
    return [turn.id async for turn in every(read, limit=limit)]

"""Lists: both orders, every filter, and pages while others write."""

from functools import partial
from itertools import cycle, product
from typing import Any

import pytest

from forkpoint.errors import BadArgument, BadName
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import Lineage, NewConversation, OpenTurn, StoredConversation, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run
from forkpoint.testing.samples import exchange

A_WHILE = 61.0
"""Seconds after which the next use of a conversation counts in any case."""


class ListConformance(Conformance):
    async def test_a_list_by_use_begins_with_the_conversation_whose_turn_began_last(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = [(await create(store)).id for _ in range(3)]
        assert await ids(store, order="used") == [third, second, first], "unused ones stand where they were made"
        clock.pass_by(A_WHILE)
        await run(store, first, "hello")
        assert await ids(store, order="used") == [first, third, second]
        fork = (await store.fork(second, fork_of())).id
        assert await ids(store, order="used") == [fork, first, third, second]
        clock.pass_by(A_WHILE)
        turn = await begin(store, second)
        assert await ids(store, order="used") == [second, fork, first, third], "a turn that runs is a use"
        await store.cancel(turn)
        assert await ids(store, order="used") == [second, fork, first, third], "also one that did not commit"
        assert await ids(store) == [fork, third, second, first], "the list by creation stays as it is"

    async def test_whoever_goes_on_with_a_turn_uses_its_conversation(self, store: Store, clock: ManualClock) -> None:
        first, second = (await create(store)).id, (await create(store)).id
        waiting = await store.wait(await begin(store, first), exchange("may I?"))
        clock.pass_by(A_WHILE)
        await run(store, second, "hello")
        assert await ids(store, order="used") == [second, first]
        clock.pass_by(A_WHILE)
        await store.resume(waiting.id)
        assert await ids(store, order="used") == [first, second]

    async def test_a_time_of_use_lags_a_minute_behind_at_most(self, store: Store, clock: ManualClock) -> None:
        made = (await create(store)).id
        for _ in range(6):
            clock.pass_by(25)
            began = clock()
            await run(store, made, "hello")
            lag = began - (await store.read(made)).used
            assert lag < 60_000_000, f"the conversation was used {lag / 1e6} s after the time that its list goes by"

    async def test_a_description_a_name_and_a_note_are_no_use(self, store: Store, clock: ManualClock) -> None:
        first, second = (await create(store)).id, (await create(store)).id
        clock.pass_by(A_WHILE)
        await store.describe(first, title="t", tags=(("a", "b"),))
        await store.rename(first, "other")
        await store.note(first, new_id(), exchange("noted"))
        assert await ids(store, order="used") == [second, first]
        assert await ids(store, order="used", tags=(("a", "b"),)) == [first]

    async def test_a_cursor_of_the_other_order_is_refused(self, store: Store) -> None:
        for _ in range(3):
            await create(store)
        for order, other in (("created", "used"), ("used", "created")):
            cursor = (await store.conversations(order=order, limit=1)).next  # type: ignore[arg-type]
            assert cursor is not None
            assert len((await store.conversations(order=order, cursor=cursor)).items) == 2  # type: ignore[arg-type]
            with pytest.raises(BadName, check=BadName.bad_cursor.made):
                await store.conversations(order=other, cursor=cursor)  # type: ignore[arg-type]
        for rubbish in ("", ":", "1:", "-1:" + new_id(), "9" * 30 + ":" + new_id(), "½:" + new_id(), new_id() + ":1"):
            for order in ("created", "used"):
                with pytest.raises(BadName, check=BadName.bad_cursor.made):
                    await store.conversations(order=order, cursor=rubbish)  # type: ignore[arg-type]

    async def test_an_order_that_there_is_not_is_refused(self, store: Store) -> None:
        with pytest.raises(BadArgument):
            await store.conversations(order="size")  # type: ignore[arg-type]

    async def test_every_filter_in_either_order_finds_what_it_names_and_nothing_else(
        self, store: Store, clock: ManualClock
    ) -> None:
        made = await _mixed(store, clock)
        parent, family = made[0].id, made[0].family
        shown = [await store.read(one.id) for one in made]
        asked = 0
        limits = cycle(
            (3, 50, 50, 50, 50, 50, 50)
        )  # most lists are read in one go: a database may be a round trip away
        for tags, status, sub_agents, sides, asides, narrow, order in product(
            ((), (("a", "1"),), (("a", "1"), ("b", "2")), (("a", "2"),), (("c", "1"),)),
            (None, "idle", "running", "awaiting_approval", "interrupted"),
            (True, False),
            (True, False),
            (True, False),
            ({}, {"parent": parent}, {"family": family}),
            ("created", "used"),
        ):
            which: dict[str, Any] = {"tags": tags, "status": status, "sub_agents": sub_agents, "sides": sides}
            which |= {"asides": asides} | narrow
            wanted = [
                one
                for one in shown
                if set(tags) <= set(one.tags)
                and status in (None, one.status)
                and (sub_agents or one.lineage.kind != "sub_agent")
                and (sides or one.lineage.kind != "side")
                and (asides or one.lineage.kind != "aside")
                and ("parent" not in narrow or (one.lineage.kind, one.lineage.source) == ("sub_agent", parent))
                and ("family" not in narrow or one.family == family)
            ]
            wanted.sort(key=lambda one: (one.used, one.id) if order == "used" else (0, one.id), reverse=True)
            found = await ids(store, limit=next(limits), order=order, **which)
            assert found == [one.id for one in wanted], f"{which}, by {order}"
            asked += len(found)
        assert asked > 500, "the filters find so little that this test shows nothing"

    async def test_a_filter_by_tag_follows_every_change_of_tags(self, store: Store) -> None:
        made = await store.create(NewConversation(id=new_id(), tags=(("team", "ci"), ("kind", "debug"))))
        fork = await store.fork(made.id, fork_of(tags=(("team", "ci"),)))
        bare = await store.fork(made.id, fork_of())
        assert await ids(store, tags=(("team", "ci"),)) == [fork.id, made.id]
        assert await ids(store, tags=(("kind", "debug"),)) == [made.id]
        await store.describe(made.id, tags=(("team", "web"), ("kind", "debug")))
        await store.describe(bare.id, tags=(("team", "ci"),))
        await store.describe(fork.id, title="only a title")
        assert await ids(store, tags=(("team", "ci"),)) == [bare.id, fork.id]
        assert await ids(store, tags=(("team", "web"), ("kind", "debug"))) == [made.id]
        await store.describe(bare.id, tags=())
        await store.delete(made.id)
        assert await ids(store, tags=(("team", "ci"),)) == [fork.id]
        assert await ids(store, tags=(("kind", "debug"),)) == []
        assert await ids(store.within("other"), tags=(("team", "ci"),)) == []

    async def test_a_draft_is_in_no_list_until_its_first_commit(self, store: Store) -> None:
        tags = (("team", "ci"),)
        turn = await store.begin(id := new_id(), new_id(), create=NewConversation(id=id, tags=tags))
        assert isinstance(turn, OpenTurn)
        filters: list[dict[str, Any]] = [{}, {"tags": tags}, {"status": "running"}, {"family": id}]
        for which, order in product(filters, ("created", "used")):
            assert await ids(store, order=order, **which) == []
        await store.commit(turn, exchange("hello"))
        filters[2] = {"status": "idle"}
        for which, order in product(filters, ("created", "used")):
            assert await ids(store, order=order, **which) == [id]

    async def test_a_list_with_drafts_has_them_in_their_places(self, store: Store, clock: ManualClock) -> None:
        tags = (("team", "ci"),)
        first = (await store.create(NewConversation(id=new_id(), tags=tags))).id
        clock.pass_by(A_WHILE)
        failed = await store.begin(id := new_id(), new_id(), create=NewConversation(id=id, tags=tags))
        assert isinstance(failed, OpenTurn)
        await store.fail(failed, TurnError("model_unavailable", "away"))
        clock.pass_by(A_WHILE)
        last = (await store.create(NewConversation(id=new_id(), tags=tags))).id
        clock.pass_by(A_WHILE)
        await run(store, first, "hello")
        for which in ({}, {"tags": tags}, {"status": "idle"}):
            for limit in (1, 2, 50):
                listed = partial(ids, store, limit=limit, drafts=True, **which)
                assert await listed(order="created") == [last, id, first]
                assert await listed(order="used") == [first, last, id]
        assert await ids(store, drafts=True, family=id) == [id]
        assert await ids(store, drafts=True, status="running") == []
        assert await ids(store.within("other"), drafts=True) == []

    async def test_a_glance_has_the_first_turn_and_what_is_folded(self, store: Store) -> None:
        root = (await create(store)).id
        empty = (await create(store)).id
        first = (await run(store, root, "hello")).turn
        second = await run(store, root, "more")
        fork = (await store.fork(root, fork_of())).id
        branch = (await store.fork(root, fork_of())).id
        own = (await run(store, branch, "in the branch")).turn
        tried = await begin(store, fork)
        await store.fail(tried, TurnError("model_unavailable", "away"))
        await store.rewind(root, fork_of(), before=first)
        lineage = Lineage("side", root, second.last)
        await store.create(NewConversation(id=new_id(), family=root, lineage=lineage))
        found = await store.glances([root, fork, branch, empty, new_id()])
        assert set(found) == {root, fork, branch, empty}
        assert {id: glance.first.id for id, glance in found.items() if glance.first} == {branch: own, fork: tried.id}
        assert [(found[id].asides, found[id].sides) for id in (root, fork, branch, empty)] == [(1, 1), *[(0, 0)] * 3]
        (aside,) = [one.id for one in (await store.conversations()).items if one.lineage.kind == "aside"]
        assert (glance := (await store.glances([aside]))[aside]).first is not None
        assert glance.first.id == first, "what was set aside began there"
        unsaid = (await store.fork(branch, fork_of())).id
        inherited = (await store.glances([unsaid]))[unsaid].first
        assert inherited is not None
        assert inherited.id == first, "a branch in which nothing was said shows how its history begins"
        assert await store.within("other").glances([root]) == {}

    async def test_pages_by_creation_miss_nothing_and_repeat_nothing_while_others_write(
        self, store: Store, clock: ManualClock
    ) -> None:
        made = [(await create(store)).id for _ in range(40)]
        seen: list[str] = []
        gone: set[str] = set()
        cursor: str | None = None
        while True:
            page = await store.conversations(cursor=cursor, limit=4)
            seen += [one.id for one in page.items]
            if page.next is None:
                break
            cursor = page.next
            clock.pass_by(A_WHILE)
            unseen = [id for id in made if id not in seen and id not in gone]
            for id in {seen[-1], seen[-2], *unseen[-2:-1]} - gone:  # the page's last, which the cursor names, too
                await store.delete(id)
                gone.add(id)
            await create(store)
            await store.fork(unseen[0], fork_of())
            await run(store, unseen[0], "hello")
            await store.describe(unseen[0], tags=(("a", str(len(seen))),))
        assert len(seen) == len(set(seen)), "a conversation was listed twice"
        assert set(seen) >= set(made) - gone, "a conversation was missed that was there throughout"
        assert seen == sorted(seen, reverse=True)

    async def test_pages_by_use_repeat_nothing_while_others_write(self, store: Store, clock: ManualClock) -> None:
        made = [(await create(store)).id for _ in range(20)]
        used: set[str] = set()
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.conversations(cursor=cursor, limit=4, order="used")
            seen += [one.id for one in page.items]
            if page.next is None:
                break
            cursor = page.next
            clock.pass_by(A_WHILE)
            for id in (seen[-1], made[len(used) // 2]):  # one that was listed, and one that was not
                await run(store, id, "hello")
                used.add(id)
        assert len(seen) == len(set(seen)), "a conversation was listed twice"
        assert set(seen) >= set(made) - used, "a conversation was missed that nobody used meanwhile"


async def ids(store: Store, *, limit: int = 50, **which: Any) -> list[str]:
    """The ids of a whole list, read page by page."""
    return [one.id async for one in every(partial(store.conversations, **which), limit=limit)]


async def _mixed(store: Store, clock: ManualClock) -> list[StoredConversation]:
    """Conversations of every kind, with tags and open turns, used in another order than they were made."""
    tags = [(), (("a", "1"),), (("a", "1"), ("b", "2")), (("a", "2"), ("b", "2"))]
    root = await store.create(NewConversation(id=new_id(), tags=tags[2]), exchange("hello"))
    made = [root]
    for number in range(8):
        each = tags[number % 4]
        made.append(await store.create(NewConversation(id=new_id(), tags=each)))
        made.append(await store.fork(root.id, fork_of(tags=each)))
        for kind in ("side", "sub_agent", "aside"):
            lineage = Lineage(kind, made[number // 4].id)
            family = made[number // 4].family
            made.append(await store.create(NewConversation(id=new_id(), family=family, tags=each, lineage=lineage)))
        clock.pass_by(A_WHILE)
    for one in made[::-2]:
        clock.pass_by(A_WHILE)
        await run(store, one.id, "hello")
    for number, one in enumerate(made):
        if number % 3 == 0:
            turn = await begin(store, one.id)
            if number % 2:
                await store.wait(turn)
    return made

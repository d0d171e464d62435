"""Keeps: a head goes to the head of a branch, what stood there is set aside, and each token is counted once."""

import msgspec
import pytest
from msgspec.structs import replace

from forkpoint.errors import AlreadyExists, Busy, CannotKeep, KeyReused, NotFound, Stale, TurnOpen
from forkpoint.events import Gone, Usage
from forkpoint.ids import new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.protocol import Store
from forkpoint.store.values import IdempotencyKey, Lineage, NewConversation, NewFork, StoredConversation, TurnError
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says

SETTINGS, CACHE = '{"a":2}', '{"key":"theirs"}'
"""What a caller has made of the settings and the cache identity of a branch."""


def used(input: int) -> Usage:
    return Usage(calls=1, input=input)


async def kept(
    store: Store,
    id: str,
    branch: str,
    aside: NewFork,
    *,
    if_unchanged: tuple[StoredConversation, ...] = (),
    key: IdempotencyKey | None = None,
) -> tuple[StoredConversation, StoredConversation | None]:
    """A keep with which other settings and another cache identity come."""
    return await store.keep(id, branch, aside, settings=SETTINGS, cache=CACHE, if_unchanged=if_unchanged, key=key)


class TwoBranches:
    """A conversation, and a fork of it after its first turn; both have gone on since."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def make(self) -> "TwoBranches":
        made = await create(self.store, "build")
        self.id, self.one = made.id, await run(self.store, made.id, [*exchange("one"), remembers("k", "1")], used(1))
        self.branch = (await self.store.fork(made.id, fork_of("branch"))).id
        self.two = await run(self.store, made.id, [*exchange("two"), remembers("k", "2")], used(2))
        self.three = await run(self.store, self.branch, [*exchange("three"), remembers("k", "3")], used(4))
        return self

    async def seen(self, id: str) -> object:
        return await self.store.read(id), await self.store.events(id), await self.store.state(id)

    async def spent(self, *ids: str) -> list[int]:
        return [(await self.store.spent(id)).input for id in ids]


class KeepConformance(Conformance):
    async def test_the_head_goes_to_the_branch_and_what_stood_there_is_set_aside(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        await store.describe(family.id, title="T", tags=(("a", "b"),))
        await store.change_approvals(family.id, "[1]", if_approvals="[]")
        before, theirs = await store.read(family.id), await family.seen(family.branch)
        whole = await store.events(family.id)
        now, aside = await kept(store, family.id, family.branch, fork_of("left", title="before"))

        assert await family.seen(family.branch) == theirs, "the branch stays as it is"
        assert (now.id, now.name, now.title, now.tags) == (family.id, "build", "T", (("a", "b"),))
        assert (now.lineage, now.family, now.created) == (before.lineage, before.family, before.created)
        assert (now.revision, now.head, now.status) == (before.revision + 1, family.three.head, "idle")
        assert (now.settings, now.cache) == (SETTINGS, CACHE)
        assert await store.approvals(family.id) == "[1]"
        assert texts(await store.events(family.id))[3:5] == ["three", "You said: three"]
        assert (await store.state(family.id)).get("k") == "3"
        assert aside is not None
        assert (aside.name, aside.title, aside.head, aside.settings) == ("left", "before", before.head, before.settings)
        assert aside.lineage == Lineage("aside", family.id, family.one.last)
        assert await store.approvals(aside.id) == "[1]"
        assert await store.events(aside.id) == whole
        assert (await store.state(aside.id)).get("k") == "2"
        assert await store.read(family.id) == now
        for id in (family.id, family.branch, aside.id):
            await run(store, id, "on")
            assert texts(await store.events(id))[-1] == "You said: on"
        assert len({event.id for id in (family.id, family.branch) for event in await store.events(id)}) == 10
        assert (await store.verify()).ok

    async def test_it_is_undone_by_keeping_what_was_set_aside(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        before, events = await store.read(family.id), await store.events(family.id)
        for _ in range(3):
            _, aside = await kept(store, family.id, family.branch, fork_of())
            assert aside is not None
            back, other = await store.keep(family.id, aside.id, fork_of(), settings=before.settings, cache=before.cache)
            assert (back.head, back.settings, back.cache) == (before.head, before.settings, before.cache)
            assert other is not None
            assert (other.head, other.settings) == (family.three.head, SETTINGS)
            assert await store.events(family.id) == events
        assert (await store.verify()).ok
        kinds = [record.kind for record in (await store.records(family.id)).items]
        assert kinds == ["born", "committed", "committed", *["kept"] * 6]

    async def test_what_was_spent_is_counted_once_however_often_a_head_moves(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        _, aside = await kept(store, family.id, family.branch, fork_of())
        assert aside is not None
        assert await family.spent(family.id, aside.id, family.branch) == [0, 3, 4]
        assert (await store.read(family.id)).inherited == used(1) + used(4)
        await run(store, family.id, "four", used(8))
        assert await family.spent(family.id, aside.id, family.branch) == [8, 3, 4]
        _, left = await store.keep(family.id, aside.id, fork_of())
        assert left is not None
        assert await family.spent(family.id, aside.id, family.branch, left.id) == [0, 3, 4, 8]
        await store.fail(await begin(store, family.id), TurnError("no_answer", "gone"), usage=used(16))
        assert await family.spent(family.id) == [16], "a try stays with the conversation that made it"
        assert await store.usage(family.id) == await store.usage() == Usage(calls=5, input=31)
        for id in (family.id, aside.id, family.branch, left.id):
            await store.delete(id)
        await store.collect()
        assert await store.usage(family.id) == Usage(calls=5, input=31)
        assert (await store.verify()).ok

    async def test_a_branch_that_goes_on_from_the_head_sets_nothing_aside(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one", used(1))
        fork = await store.fork(made.id, fork_of())
        two = await run(store, fork.id, "two", used(2))
        new = fork_of()
        now, aside = await store.keep(made.id, fork.id, new, cache='{"key":"theirs"}')
        assert (now.head, aside) == (two.head, None)
        with pytest.raises(NotFound):
            await store.read(new.id)
        assert [(await store.spent(id)).input for id in (made.id, fork.id)] == [1, 2]
        assert await store.usage(made.id) == Usage(calls=2, input=3)
        _, back = await store.rewind(made.id, fork_of(), at=one.turn)
        assert back is not None
        assert (await store.read(made.id)).head == one.head
        assert (await store.verify()).ok

    async def test_settings_that_nothing_else_has_are_set_aside_with_their_head(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one", used(1))
        fork = await store.fork(made.id, fork_of())
        await run(store, fork.id, "two", used(2))
        now, aside = await kept(store, made.id, fork.id, fork_of())
        assert now.settings == SETTINGS
        assert aside is not None
        assert (aside.head, aside.settings) == (one.head, made.settings)
        assert [(await store.spent(id)).input for id in (made.id, fork.id, aside.id)] == [1, 2, 0]
        assert (await store.verify()).ok

    async def test_a_branch_at_the_same_place_changes_nothing_but_settings(self, store: Store) -> None:
        made = await create(store)
        await run(store, made.id, "one", used(1))
        fork = await store.fork(made.id, fork_of())
        before = await store.read(made.id)
        assert await store.keep(made.id, fork.id, fork_of(), cache='{"key":"theirs"}') == (before, None)
        assert len((await store.records(made.id)).items) == 2, "nothing happened, so there is nothing to record"
        now, aside = await kept(store, made.id, fork.id, fork_of())
        assert (now.head, now.settings, now.revision) == (before.head, SETTINGS, before.revision + 1)
        assert aside is not None
        assert [(await store.spent(id)).input for id in (made.id, fork.id, aside.id)] == [1, 0, 0]

    async def test_a_branch_behind_the_head_and_an_empty_one_are_rewinds(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        early = await store.fork(family.id, fork_of(), at=family.one.turn)
        empty = await store.fork(family.id, fork_of(), before=family.one.turn)
        _, first = await store.keep(family.id, early.id, fork_of())
        assert first is not None
        assert first.lineage.at == family.one.last
        assert await family.spent(family.id, first.id) == [1, 2]
        now, second = await store.keep(family.id, empty.id, fork_of())
        assert second is not None
        assert (now.head.position, second.lineage.at) == (None, None)
        assert await family.spent(family.id, first.id, second.id) == [0, 2, 1]
        assert await store.events(family.id) == []
        back, third = await store.keep(family.id, first.id, fork_of())
        assert (back.head, third) == (family.two.head, None)
        assert (await store.verify()).ok

    async def test_a_branch_in_the_middle_of_a_turn_can_be_kept_and_kept_from(self, store: Store) -> None:
        made = await create(store)
        whole = [*exchange("one"), remembers("k", "1"), says("more"), remembers("k", "2")]
        await run(store, made.id, whole, used(1))
        middle = await store.fork(made.id, fork_of(), at=(await store.events(made.id))[2].id)
        now, aside = await store.keep(made.id, middle.id, fork_of())
        assert aside is not None
        assert (now.head.state, (await store.state(made.id)).get("k")) == (middle.head.state, "1")
        await run(store, made.id, "on", used(2))
        assert await store.usage(made.id) == Usage(calls=2, input=3)
        assert (await store.verify()).ok

    async def test_a_turn_that_runs_in_the_branch_is_not_waited_for(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        turn = await store.journal(await begin(store, family.branch), [says("four")])
        now, _ = await kept(store, family.id, family.branch, fork_of())
        assert now.head == family.three.head
        await store.commit(turn, [answers("done")])
        assert (await store.read(family.id)).head == family.three.head
        assert (await store.verify()).ok

    async def test_a_turn_that_holds_the_conversation_keeps_its_head_where_it_is(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        running = await begin(store, family.id)
        before = await family.seen(family.id)
        with pytest.raises(Busy):
            await kept(store, family.id, family.branch, fork_of())
        assert await family.seen(family.id) == before
        await store.wait(running, [says("may I?")])
        with pytest.raises(TurnOpen):
            await kept(store, family.id, family.branch, fork_of())
        await store.discard(running.id)
        await kept(store, family.id, family.branch, fork_of())

    async def test_only_a_branch_that_can_go_on_is_kept(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        stranger = await create(store)
        await run(store, stranger.id, "elsewhere")
        child = NewConversation(id=new_id(), lineage=Lineage("sub_agent", family.id), family=family.id)
        await store.create(child)
        draft = await store.fork(family.branch, fork_of(), draft=True)
        waits = await store.fork(family.id, fork_of())
        await run(store, waits.id, [says("look"), calls("c1", client=True, response=1)])
        before = await family.seen(family.id)
        count = len((await store.conversations()).items)
        for branch in (stranger.id, child.id, draft.id, waits.id, family.id):
            with pytest.raises(CannotKeep) as refused:
                await kept(store, family.id, branch, fork_of())
            assert (refused.value.conversation, refused.value.branch) == (family.id, branch)
            assert family.id in str(refused.value)
        theirs = await store.within("other").create(NewConversation(id=new_id()))
        for missing in (theirs.id, new_id(), "no-id", ""):
            with pytest.raises(NotFound):
                await kept(store, family.id, missing, fork_of())
            with pytest.raises(NotFound):
                await kept(store, missing, family.branch, fork_of())
        with pytest.raises(NotFound):
            await kept(store.within("other"), family.id, family.branch, fork_of())
        with pytest.raises(NotFound):
            await kept(store, draft.id, family.branch, fork_of())
        with pytest.raises(AlreadyExists):
            await kept(store, family.id, family.branch, fork_of("branch"))
        assert await family.seen(family.id) == before
        assert len((await store.conversations()).items) == count
        await run(store, waits.id, [returns("c1"), answers("seen", response=1)])
        await kept(store, family.id, waits.id, fork_of())
        assert (await store.verify()).ok

    async def test_an_open_client_call_at_the_old_head_goes_with_it(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        await run(store, family.id, [says("look"), calls("c1", client=True, response=1)])
        now, aside = await kept(store, family.id, family.branch, fork_of())
        assert aside is not None
        assert (now.head.open_calls.client, aside.head.open_calls.client) == ((), ("c1",))
        with pytest.raises(CannotKeep):
            await store.keep(family.id, aside.id, fork_of())
        await run(store, aside.id, [returns("c1"), answers("seen", response=1)])
        await store.keep(family.id, aside.id, fork_of())
        assert (await store.verify()).ok

    async def test_nothing_is_kept_that_is_not_as_the_caller_read_it(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        keeper, branch = await store.read(family.id), await store.read(family.branch)
        stale: tuple[tuple[StoredConversation, StoredConversation], ...] = (
            (replace(keeper, revision=keeper.revision + 1), branch),
            (replace(keeper, settings="{}"), branch),
            (replace(keeper, cache="{}"), branch),
            (keeper, replace(branch, revision=branch.revision - 1)),
            (keeper, replace(branch, settings="{}")),
            (keeper, replace(branch, cache="{}")),
        )
        before = await family.seen(family.id)
        for read in stale:
            with pytest.raises(Stale):
                await kept(store, family.id, family.branch, fork_of(), if_unchanged=read)
        assert await family.seen(family.id) == before
        await store.describe(family.id, title="other")
        await kept(store, family.id, family.branch, fork_of(), if_unchanged=(keeper, branch))

    async def test_the_same_key_keeps_once(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        key = IdempotencyKey("keep-1", b"body")
        assert await store.made_with(key, "keep", family.id) is None
        first = await kept(store, family.id, family.branch, fork_of(), key=key)
        assert await kept(store, family.id, family.branch, fork_of(), key=key) == first
        assert await store.made_with(key, "keep", family.id) == first[1]
        await run(store, family.id, "on")
        await store.delete(family.branch)
        now, aside = await kept(store, family.id, family.branch, fork_of(), key=key)
        assert (now, aside) == (await store.read(family.id), first[1]), "it moves nothing, whatever came since"
        with pytest.raises(KeyReused):
            await store.keep(family.id, family.branch, fork_of(), key=IdempotencyKey("keep-1", b"another"))
        with pytest.raises(KeyReused):
            await store.fork(family.id, fork_of(), key=key)
        assert aside is not None
        await store.delete(aside.id)
        assert await store.keep(family.id, family.branch, fork_of(), key=key) == (now, None)
        assert await store.made_with(key, "keep", family.id) == now

    async def test_a_keep_that_sets_nothing_aside_is_done_once_too(self, store: Store) -> None:
        made = await create(store)
        one = await run(store, made.id, "one")
        fork = await store.fork(made.id, fork_of())
        await run(store, fork.id, "two")
        key = IdempotencyKey("keep-1", b"body")
        assert (await store.keep(made.id, fork.id, fork_of(), key=key))[1] is None
        await store.rewind(made.id, fork_of(), at=one.turn)
        now = await store.read(made.id)
        assert await store.keep(made.id, fork.id, fork_of(), key=key) == (now, None)
        assert await store.made_with(key, "keep", made.id) == now

    async def test_a_record_says_from_where_to_where_and_what_came_along(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        _, aside = await kept(store, family.id, family.branch, fork_of())
        assert aside is not None
        record = (await store.records(family.id)).items[-1]
        body = msgspec.json.decode(msgspec.json.encode(record.body))
        assert (record.kind, record.subject) == ("kept", None)
        assert body["kept"]["branch"] == family.branch
        assert (body["kept"]["left"][0], body["head"][0]) == (family.two.last.ordinal, family.three.last.ordinal)
        assert (body["aside"], body["revision"]) == (aside.id, 3)
        assert {"settings", "cache", "own_from", "inherited"} <= set(body)

    async def test_branches_can_be_deleted_and_collected_and_the_head_stays(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        _, aside = await kept(store, family.id, family.branch, fork_of())
        assert aside is not None
        events = await store.events(family.id)
        for id in (family.branch, aside.id):
            await store.delete(id)
            await store.collect()
            assert await store.events(family.id) == events
            assert (await store.verify()).ok
        await run(store, family.id, "on")
        assert (await store.verify()).ok

    async def test_a_held_family_can_be_kept_and_an_erased_one_too(self, store: Store) -> None:
        family = await TwoBranches(store).make()
        hold = await store.hold(family.id, new_id(), "a question")
        _, aside = await kept(store, family.id, family.branch, fork_of())
        assert aside is not None
        await store.release(family.id, hold.id)
        await store.erase(aside.id, Erasing(conversations=(aside.id,), turn=family.two.turn), reason="asked")
        assert not any(isinstance(event.body, Gone) for event in await store.events(family.id))
        await store.keep(family.id, aside.id, fork_of())
        assert [isinstance(event.body, Gone) for event in await store.events(family.id)] == [False] * 3 + [True] * 3
        await store.erase(family.id, Erasing(conversations=(family.id,)), reason="asked")
        assert (await store.verify()).ok
        await kept(store, family.id, family.branch, fork_of())
        assert (await store.verify()).ok

    async def test_what_is_read_by_another_process_is_the_whole_keep(self, store: Store, second: Store) -> None:
        family = await TwoBranches(store).make()
        before = await second.read(family.id)
        now, aside = await kept(store, family.id, family.branch, fork_of())
        assert await second.read(family.id) == now
        assert aside is not None
        assert await second.read(aside.id) == aside
        with pytest.raises(Stale):
            await second.begin(family.id, new_id(), if_revision=before.revision)
